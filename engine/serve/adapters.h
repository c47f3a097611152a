/* The adapters that can be named in requests: a table of names, each with its current version on the device.
 *
 * A version is immutable and counted: the table holds one reference while the version is current, each request one from
 * submission to its end.  So a request ends with the version it began with, and the last one to leave a replaced or
 * deleted version buries it; only the engine's thread, which has the device, frees it.  Versions are numbered, never
 * twice the same: the prefix cache's keys begin with them.
 *
 * Everything but adapters_sweep and adapters_publish may be called on any thread. */
#ifndef TANDEM_ENGINE_SERVE_ADAPTERS_H
#define TANDEM_ENGINE_SERVE_ADAPTERS_H

#include "engine/model/lora_weights.h"
#include "engine/serve/engine.h"

#include <pthread.h>

struct adapter_version {
    struct adapter_version *next; /* in the table, by name; or among the buried */
    struct lora_weights lora;
    struct adapter_info info; /* requests, running: left 0 */
    int refs, running;        /* under the lock; running: those that hold it and were scheduled */
};

struct adapters {
    pthread_mutex_t lock;
    struct adapter_version *current, *buried;
    int n, max, max_rank;
    size_t bytes; /* of every version that is not freed */
    uint64_t last;
};

void adapters_init(struct adapters *, int max, int max_rank);
/* Nobody holds a version any more. */
void adapters_close(struct adapters *, struct dev *);

/* May `name` be loaded from a directory: it is a name, and there is room.  *out: read and within the rank. */
int adapters_read(struct adapters *, const char *name, const char *dir, const struct model_config *,
                  struct adapter **out, struct err *e);
/* The engine's thread: to the device, and current from now on.  The adapter stays the caller's. */
int adapters_publish(struct adapters *, struct dev *, const char *name, const struct adapter *, uint64_t *version,
                     struct err *e);
/* Takes the name out of the table.  *buried: a sweep is due. */
int adapters_remove(struct adapters *, const char *name, bool *buried, struct err *e);

/* The current version, held; NULL and *e (ERR_NOT_FOUND, with the known names) for none. */
struct adapter_version *adapters_hold(struct adapters *, const char *name, struct err *e);
int adapters_check(struct adapters *, const char *name, struct err *e);
/* So many more of its requests run. */
void adapters_run(struct adapters *, struct adapter_version *, int more);
/* NULL is allowed.  True: a sweep is due. */
bool adapters_release(struct adapters *, struct adapter_version *);
/* The engine's thread: frees what nobody holds. */
void adapters_sweep(struct adapters *, struct dev *);

/* how many can be named; *bytes: of all on the device, replaced ones that are still used included */
int adapters_count(struct adapters *, size_t *bytes);
int adapters_list(struct adapters *, struct adapter_info *out, int max);

/* What the prefix cache's keys of this version begin with (kv.h: 0 is the base model's).  Of two versions, the one that
 * changes gate or up comes later: sched.h sorts by it. */
uint64_t adapter_root(const struct adapter_version *);

#endif
