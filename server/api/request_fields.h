/* The fields common to the generation requests of all conventions, read one by one into a gen_request.  An error
 * consists of a message without prefix ("`stop` supports up to 4...") and the field's name, which OpenAI's error format
 * has a member for.  Pure: any thread. */
#ifndef TANDEM_SERVER_API_REQUEST_FIELDS_H
#define TANDEM_SERVER_API_REQUEST_FIELDS_H

#include "engine/serve/engine.h"
#include "server/json/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request_fields {
    struct json_at at; /* obj NULL: there are none */
    struct err *e;
    const char *param; /* after an error: the field at fault; as the caller named it */
    int vocab;
};

/* @return false after an error, including an earlier one.  An absent or null field leaves *out unchanged. */
bool fields_bool(struct request_fields *, const char *name, bool *out);
bool fields_string(struct request_fields *, const char *name, const char **out);
bool fields_object(struct request_fields *, const char *name, const cJSON **out);
bool fields_int(struct request_fields *, const char *name, int64_t min, int64_t max, int64_t *out, bool *given);
bool fields_u64(struct request_fields *, const char *name, uint64_t *out, bool *given);
bool fields_float(struct request_fields *, const char *name, float *out,
                  bool *given); /* rounded to float, the sampler's type */
/* @return a field of any type, the last of duplicates, as in Python; NULL when absent or null. */
const cJSON *fields_find(const struct request_fields *, const char *name);
/* Sets an error about `param`.  @return false always, so that a check can end with `return fields_refuse(...)`. */
__attribute__((format(printf, 3, 4))) bool fields_refuse(struct request_fields *, const char *param, const char *fmt,
                                                         ...);
/* The path of a field, for messages: "parameters.stop" */
struct field_path {
    char text[96];
};
struct field_path fields_path(const struct request_fields *, const char *name);

/* repetition_penalty, frequency_penalty, presence_penalty */
bool fields_penalties(struct request_fields *, struct sampling_params *);
float fields_clamp(float v, float low, float high);
/* A text or a list of at most `max` texts; texts: (ENGINE_STOP_MAX), becomes r->stop; its strings belong to the
 * tree. */
bool fields_stop(struct request_fields *, const char *name, int max, struct gen_request *r, const char **texts);
/* stop_token_ids; ids: (ENGINE_STOP_MAX), becomes r->stop_ids */
bool fields_stop_ids(struct request_fields *, struct gen_request *r, int32_t *ids);
/* logit_bias {"id": number}; *owned becomes r->sampling.bias, to be freed by the caller */
bool fields_bias(struct request_fields *, struct gen_request *r, struct logit_bias **owned);
/* timeout_ms: the request's time limit in milliseconds, up to a day */
bool fields_timeout(struct request_fields *, int64_t *out);
/* ignore_eos, priority, cache_salt */
bool fields_extras(struct request_fields *, struct gen_request *r);
/* Checks that obj (NULL allowed) has at most 1000 members, because looking a field up is linear. */
bool fields_few(const cJSON *obj, struct err *e);
/* @return whether a JSON value is a token id of the model. */
bool fields_is_token(const struct request_fields *, const cJSON *item);

/* A text of more bytes than max_total_tokens of the longest token can spell does not fit whatever the tokenizer does,
 * so no time is spent on it.  (Tokenizers that drop or fuse characters could make an exception; such a text is noise.)
 */
bool text_may_fit(size_t bytes, int max_total_tokens, size_t longest_token);

/* Below 2^53, so that a client whose numbers are doubles can send back what it read. */
uint64_t seed_random(void);
/* @return the seed of sequence i of one request: distinct, and each sequence is reproducible alone. */
uint64_t seed_derive(uint64_t base, int i);

#endif
