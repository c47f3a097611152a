/* The specification of a fine-tuning job: POST /train's body, checked field by field, and its stored form. */
#ifndef TANDEM_SERVER_JOBS_TRAIN_SPEC_H
#define TANDEM_SERVER_JOBS_TRAIN_SPEC_H

#include "engine/data/dataset.h"
#include "engine/serve/engine.h"
#include "server/jobs/train_params.h"

enum data_kind { DATA_NONE, DATA_PATH, DATA_FILE, DATA_ROWS, DATA_TEXT };

/* One of the files, and which of the sets it belongs to when sets are mixed: 0, 1... in order. */
struct data_ref {
    char *name; /* DATA_PATH: within the data directory, a pattern until train_check; DATA_FILE: the file's id; owned */
    int set;
};

struct data_spec {
    enum data_kind kind;
    struct data_ref *ref; /* (n_refs) of DATA_PATH and DATA_FILE; owned */
    int n_refs;
    double *weight; /* (n_weights) of each set; owned */
    int n_weights;
    const cJSON *inline_; /* DATA_ROWS, DATA_TEXT: in the request's tree, borrowed; NULL once stored */
    int64_t size;         /* of them: rows, bytes */
    enum dataset_format format;
    struct dataset_field *map; /* (n_map) texts and list owned */
    int n_map;
    bool train_on_prompt, keep_duplicates, no_eos;
};

/* Of method draft: which model is trained, and how its texts are made. */
struct draft_spec {
    bool on;
    int layers; /* > 0: the first layers of the served model; 0: init */
    char *init; /* the name of a model in models/; NULL; owned */
    int max_new_tokens;
    double temperature; /* 0: greedy */
};

struct train_spec {
    struct train_params p; /* method draft trains by method full */
    struct draft_spec draft;
    char *serve_as; /* NULL: to be chosen; owned */
    char *base;     /* id of the model to train; NULL: the served one; owned */
    char *from;     /* name of the adapter to continue from; NULL; owned */
    char *teacher;  /* of method distill: name of an adapter, or of another model; NULL: the model without an adapter;
                       owned */
    bool teacher_model; /* it is a model's: as found when the job is submitted, then stored */
    bool own_top_k;     /* teacher_top_k was given */
    bool gate;          /* the result is published only if it is better on held-out rows than what it starts from */
    struct data_spec data, eval;
    bool fit_length;  /* max_length is the default, and the model's positions were not known: at most those */
    int batch_size;   /* rows per optimizer step (OpenAI's unit), converted to batch_tokens once the rows are known; 0:
                        unset */
    bool asks_others; /* its rewards ask another server */
    char *rewards;    /* method grpo: JSON list of checks (rewards.h); NULL; owned */
    char *metadata;   /* JSON object of strings; NULL; owned */
};

/* The limits for a body. */
struct train_limits {
    const char *model_id, *weight_type; /* weight_type NULL: not known before the model is loaded */
    int max_model_len, max_lora_rank;
    int max_total_tokens; /* of a prompt and what is sampled for it; 0: not known */
    bool stored;          /* the text was written by train_spec_put */
};

/* @return 0, or an HTTP status with *e (and the field at fault in *param, static text, when known).  Inline data points
 * into tree, which must outlive the spec; free the spec in either case. */
int train_spec_read(struct train_spec *, const cJSON *tree, const struct train_limits *, struct err *e);
/* @return 0, or *e: the method cannot train weights of this type. */
int train_method_suits(enum train_method, const char *weight_type, struct err *e);
/* @return 0, or *e: what the method samples, of at most max_length with its prompt, has no room here. */
int train_length_suits(const struct train_params *, int max_total_tokens, struct err *e);
/* @return "lora", "qlora", "full", "dpo"..., or "draft". */
const char *train_spec_method(const struct train_spec *);
/* Appends a file. */
void data_spec_add(struct data_spec *, const char *name, int set);
void data_spec_clear(struct data_spec *); /* frees what it owns */
/* Appends the spec as a JSON object; inline data is replaced by its count. */
void train_spec_put(struct buf *, const struct train_spec *);
void train_spec_free(struct train_spec *);
/* {"name": "value"}, at most 16 of them with names of at most 64 bytes and values of at most 512: @return owned text,
 * or NULL; *e when it is malformed. */
char *train_metadata_read(struct json_at *at);

#endif
