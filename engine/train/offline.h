/* Training without serving: a model, its data and a trainer opened together, for `tandem train`.  One thread. */
#ifndef TANDEM_ENGINE_TRAIN_OFFLINE_H
#define TANDEM_ENGINE_TRAIN_OFFLINE_H

#include "engine/data/sources.h"
#include "engine/model/options.h"
#include "engine/train/train.h"

struct train_offline_config {
    struct model_options model;
    const char *cpus;                          /* which cores the threads are bound to (cpus.h) */
    const struct dataset_sources *data, *eval; /* eval: none: eval_fraction of data */
    struct dataset_options options; /* max_length, seed, eos and the cache directory are set from the other fields */
    struct train_params p;
    int batch_rows;      /* of a step, instead of p.batch_tokens; 0: not given */
    const char *from;    /* an adapter directory; NULL */
    const char *teacher; /* of method distill, likewise */
    const char
        *chat_template; /* a file, or "plain": lines of "role: content"; NULL or "": the model's own, else plain */
    const char *dir;    /* directory of checkpoints and prepared data; created when missing */
    const char *out;
    struct comm *comm; /* the ranks that train together (ranks.h), borrowed until train_offline_close; or NULL */
};

struct train_offline;

/* Loads, prepares and plans; arguments are borrowed for the call only.  @return NULL on failure, and *e is set. */
struct train_offline *train_offline_open(const struct train_offline_config *, struct err *e);
struct train *train_offline_train(struct train_offline *);
const struct dataset_report *train_offline_report(const struct train_offline *, bool eval); /* NULL: no eval data */
void train_offline_close(struct train_offline *);                                           /* NULL is allowed */

/* After the job is done: deletes `dir` with the checkpoints and the prepared data. */
void train_offline_clear(const char *dir);

#endif
