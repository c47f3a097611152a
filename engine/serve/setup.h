/* Opens a model for engine_open and eval_open: loads it, sizes the page pool and the limits from a struct
 * engine_config, and describes the result as a struct engine_info. */
#ifndef TANDEM_ENGINE_SERVE_SETUP_H
#define TANDEM_ENGINE_SERVE_SETUP_H

#include "engine/base/cpus.h"
#include "engine/model/model.h"
#include "engine/serve/draft.h"
#include "engine/serve/engine.h"

enum { ENGINE_MORE_ROWS = 48 }; /* rows of logits in an engine's step, for prompt log-probabilities and forced tokens */

struct setup {
    struct model model;
    struct tokenizer *tokenizer;
    struct engine_info info;
    struct draft *draft; /* NULL: none */
    struct embedder embedder;
    struct cpus cpus; /* cores that the device's threads are bound to */
    int max_rows;     /* rows of logits in one step */
    char model_id[256], device_name[32];
    char *base_name;
    bool record_steps; /* as configured */
    enum dtype kv_type;
};

/* more_rows: rows of logits in one step beyond one for each of max_seqs. */
int setup_open(struct setup *, const struct engine_config *, int more_rows, struct err *e);
/* Sets the limits that do not depend on the model: max_seqs, max_batch_tokens... */
void setup_limits(struct engine_info *, const struct engine_config *);
/* KV pages for max_seqs requests of moderate length, at least for one of max_len tokens. */
size_t setup_usual_pages(const struct engine_info *, int max_len);
/* Binds the device's threads and the calling thread, which must be the one that uses the model, to the configured
 * cores. */
int setup_pin(struct setup *, struct err *e);
void setup_close(struct setup *);
struct model_options setup_options(const struct engine_config *); /* of the model; they borrow the config's strings */

#endif
