/* The models of a daemon: which there are, which are loaded, and who waits for one.
 *
 *   unloaded --request--> loading --> loaded --idle, least recently used, POST /models/unload--> unloading --> unloaded
 *                            \--error--> failed --back-off--> loading
 *
 * A model is loaded for the first request that names it, if it fits into the budget beside the others; requests that
 * come meanwhile wait for the same load.  Where there is no room, the least recently used model that nobody uses is
 * unloaded.  Where all are in use, the one that was loaded longest ago yields once it has run for its share of time:
 * new requests for it wait, and it is unloaded when those in progress have ended.  So every model gets its turn, and a
 * load is worth its time.
 *
 * Estimating, loading and unloading run on a thread of the table's own, one at a time; finding a model, which may
 * download it, on one of its own beside that: until then it is "loading".  All else: loop thread, unless stated
 * otherwise. */
#ifndef TANDEM_SERVER_API_MODEL_TABLE_H
#define TANDEM_SERVER_API_MODEL_TABLE_H

#include "server/api/model_finder.h"
#include "server/api/served_model.h"

#include "engine/base/err.h"
#include "engine/serve/engine.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct app;
struct http_req;
struct model_table;

/* A model that was opened, until the loop takes it over. */
struct model_loading {
    struct served_model *model;
    struct engine *engine;
    struct err e;
    double template_seconds, adapters_seconds;
};

struct model_table_config {
    struct app *app;
    size_t memory;             /* bytes of weights, KV cache and workspace of all loaded models; 0: no limit */
    int max;                   /* loaded at once; 0: no limit */
    double idle, longest_wait; /* seconds; idle 0: never */
    int max_waiting;
    model_find_fn *find;
    /* Any thread; they change only the chat format and the tokenizer's description of the model. */
    void (*estimate)(struct app *, struct served_model *, struct engine_memory *, struct err *);
    void (*load)(struct app *, struct model_loading *);
    void (*watch)(struct app *, const struct engine *, bool opened); /* it was opened, or is about to be closed */
    void (*lost)(void *);                                            /* an engine lost its device */
    void *lost_arg;
};

struct model_table *model_table_open(const struct model_table_config *);
/* name, where: copied.  The first that is added is the default one. */
struct served_model *model_table_add(struct model_table *, const char *name, const char *where);
/* Takes over a model that was opened outside the table, and makes it loaded.  @return 0, or *e: nothing was taken. */
int model_table_adopt(struct model_table *, struct model_loading *, struct err *e);
/* Whoever waits is refused, and nothing is loaded any more. */
void model_table_drain(struct model_table *);
/* Unloads all and frees the table; done(arg) when that is over. */
void model_table_close(struct model_table *, void (*done)(void *), void *arg);

int model_table_count(const struct model_table *);
struct served_model *model_table_at(const struct model_table *, int i);
/* The model of that name, or with the adapter of that name (then *adapter is true); the default one for NULL, "" and
 * what stands for any model.  NULL: there is none.  adapter may be NULL. */
struct served_model *model_table_find(struct model_table *, const char *name, bool *adapter);
/* Of this name exactly, its own.  Any thread, while no model is added. */
struct served_model *model_table_named(const struct model_table *, const char *name);
/* "`a`, `b`", with as many names as fit. */
void model_table_put_names(const struct model_table *, struct buf *out);

/* ---- using a model ---------------------------------------------------------------------------------------------- */

/* Called once, on the loop: e->code 0, and the model is loaded and used; or why it cannot be. */
typedef void model_wait_fn(void *arg, const struct err *e);

struct model_wait {
    struct model_wait *next, *prev; /* NULL: it does not wait */
    struct served_model *model;
    uint64_t since, until; /* until 0: it waits as long as it takes */
    uint64_t client;       /* of a request; 0: it is for none */
    bool background;
    model_wait_fn *fn;
    void *arg;
};

/* @return true: it is loaded, and stays so until model_release. */
bool model_use(struct model_table *, struct served_model *);
/* Waits until it may be used, and loads it where that is needed.  fn may not be called before this returns.
 * req: for whom, which bounds the wait; NULL: it waits as long as it takes.  @return false: too many wait. */
bool model_wait_for(struct model_table *, struct served_model *, struct model_wait *, const struct http_req *req,
                    model_wait_fn *, void *arg);
void model_wait_cancel(struct model_table *,
                       struct model_wait *); /* fn is not called; one that does not wait is fine */
/* Keeps it loaded if it is, and does not load it. */
void model_use_as_is(struct served_model *);
/* For one more user of a model that somebody uses already. */
void model_use_again(struct served_model *);
/* Once for every model_use and model_use_again, and every fn that was told of no error. */
void model_release(struct model_table *, struct served_model *);
/* A use that may last for hours: a job, an evaluation.  Such a model does not yield. */
void model_hold(struct served_model *);
void model_unhold(struct served_model *);
/* Unloads it now.  @return 0, ERR_FULL while it is used, ERR_NOT_FOUND when it is not loaded. */
int model_unload(struct model_table *, struct served_model *, struct err *e);

/* ---- all loaded models together ---------------------------------------------------------------------------------- */

struct model_totals {
    int loaded, waiting;
    uint64_t loads, unloads, failures;
    size_t bytes, budget;
};
void model_table_totals(const struct model_table *, struct model_totals *);
/* The sums over all engines that there were. */
void model_table_stats(const struct model_table *, struct engine_stats *);
/* @return whether an engine lost its device. */
bool model_table_lost(const struct model_table *);

#endif
