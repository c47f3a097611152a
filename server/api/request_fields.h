/* The fields that all generation requests share, whoever's convention the rest of the body follows: read one by one
 * into a gen_request.  An error is a text without a lead ("`stop` supports up to 4...") and the field's name, which
 * OpenAI's error shape has a place for.  Pure: any thread. */
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
    const char *param; /* after an error: the field at fault; the name that was asked for */
    int vocab;
};

/* Each returns false after an error, also an earlier one.  What is absent or null leaves *out alone. */
bool fields_bool(struct request_fields *, const char *name, bool *out);
bool fields_string(struct request_fields *, const char *name, const char **out);
bool fields_object(struct request_fields *, const char *name, const cJSON **out);
bool fields_int(struct request_fields *, const char *name, int64_t min, int64_t max, int64_t *out, bool *given);
bool fields_u64(struct request_fields *, const char *name, uint64_t *out, bool *given);
bool fields_float(struct request_fields *, const char *name, float *out,
                  bool *given); /* as the sampler works with it */
/* A field of any type, the last of duplicates, as Python takes it; NULL when absent or null. */
const cJSON *fields_find(const struct request_fields *, const char *name);
/* An error about `param`; always false, so that a check can end with `return fields_refuse(...)`. */
__attribute__((format(printf, 3, 4))) bool fields_refuse(struct request_fields *, const char *param, const char *fmt,
                                                         ...);
/* The way to a field, for messages: "parameters.stop" */
struct field_path {
    char text[96];
};
struct field_path fields_path(const struct request_fields *, const char *name);

/* repetition_penalty, frequency_penalty, presence_penalty */
bool fields_penalties(struct request_fields *, struct sampling_params *);
float fields_clamp(float v, float low, float high);
/* A text or a list of at most `max` texts; texts: ENGINE_STOP_MAX of room, becomes r->stop.  They stay the tree's. */
bool fields_stop(struct request_fields *, const char *name, int max, struct gen_request *r, const char **texts);
/* stop_token_ids; ids: ENGINE_STOP_MAX of room, becomes r->stop_ids */
bool fields_stop_ids(struct request_fields *, struct gen_request *r, int32_t *ids);
/* logit_bias {"id": number}; *owned becomes r->sampling.bias, to be freed by the caller */
bool fields_bias(struct request_fields *, struct gen_request *r, struct logit_bias **owned);
/* timeout_ms: milliseconds that the request has, up to a day */
bool fields_timeout(struct request_fields *, int64_t *out);
/* ignore_eos, priority */
bool fields_extras(struct request_fields *, struct gen_request *r);
/* An object (or no object at all) of at most 1000 members: looking a field up costs as many steps as there are. */
bool fields_few(const cJSON *obj, struct err *e);
/* A token id of the model, from a JSON value. */
bool fields_is_token(const struct request_fields *, const cJSON *item);

/* A text of more bytes than max_total_tokens of the longest token can spell does not fit whatever the tokenizer does,
 * so no time is spent on it.  (Tokenizers that drop or fuse characters could make an exception; such a text is noise.)
 */
bool text_may_fit(size_t bytes, int max_total_tokens, size_t longest_token);

/* Below 2^53, so that a client whose numbers are doubles can send back what it read. */
uint64_t seed_random(void);
/* Text i of one request: a different seed for each, and each one reproducible alone. */
uint64_t seed_derive(uint64_t base, int i);

#endif
