/* A fine-tuning job as it was asked for: POST /train's body, checked field by field; and as it is stored. */
#ifndef TANDEM_SERVER_JOBS_TRAIN_SPEC_H
#define TANDEM_SERVER_JOBS_TRAIN_SPEC_H

#include "engine/data/dataset.h"
#include "engine/serve/engine.h"
#include "server/jobs/train_params.h"

enum data_kind { DATA_NONE, DATA_PATH, DATA_FILE, DATA_ROWS, DATA_TEXT };

struct data_spec {
    enum data_kind kind;
    char *ref;            /* DATA_PATH: within the data directory; DATA_FILE: the file's id; owned */
    const cJSON *inline_; /* DATA_ROWS, DATA_TEXT: in the request's tree, borrowed; NULL once stored */
    int64_t size;         /* of them: rows, bytes */
    enum dataset_format format;
    bool train_on_prompt, keep_duplicates, no_eos;
};

struct train_spec {
    struct train_params p;
    char *serve_as; /* NULL: to be chosen; owned */
    char *base;     /* the model that is trained, by its id; NULL: the one that is served; owned */
    char *from;     /* the adapter to go on from, by name; NULL; owned */
    struct data_spec data, eval;
    int batch_size; /* rows of an optimizer step, as OpenAI counts: decides batch_tokens when the rows are known; 0 */
    char *metadata; /* JSON object of strings; NULL; owned */
};

/* What the body is checked against. */
struct train_limits {
    const char *model_id, *weight_type;
    int max_model_len, max_lora_rank;
    bool stored; /* the text was written by train_spec_put */
};

/* 0, or an HTTP status with *e (and which field it was in *param, static text, when it is known).  tree is borrowed by
 * what came inline; the spec is to be freed in either case. */
int train_spec_read(struct train_spec *, const cJSON *tree, const struct train_limits *, struct err *e);
/* A JSON object; what came inline is only counted in it. */
void train_spec_put(struct buf *, const struct train_spec *);
void train_spec_free(struct train_spec *);
/* {"name": "value"}, at most 16 of them with names of at most 64 bytes and values of at most 512: owned text, or NULL;
 * *e when it is something else. */
char *train_metadata_read(struct json_at *at);

#endif
