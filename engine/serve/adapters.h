/* The loaded adapters: a table of names, each with its current version on the device.
 *
 * A version is immutable and reference-counted: the table holds a reference while the version is current, each request
 * one from submission to its end.  So a request ends with the version it began with.  A replaced or deleted version
 * moves to the `buried` list with its last reference, and the engine thread, which uses the device, frees it there.
 * Version numbers are never reused, since keys of the prefix cache start with them.
 *
 * Any thread, except adapters_sweep and adapters_publish. */
#ifndef TANDEM_ENGINE_SERVE_ADAPTERS_H
#define TANDEM_ENGINE_SERVE_ADAPTERS_H

#include "engine/model/model.h"
#include "engine/serve/engine.h"

#include <pthread.h>

struct adapter_version {
    struct adapter_version *next; /* in the table, sorted by name; or in the buried list */
    struct lora_weights lora;
    struct adapter_info info;  /* requests, running: left 0 */
    float *score;              /* (hidden) its head of scores, on the host; owned; NULL: none */
    unsigned char content[32]; /* the adapter's */
    int refs, running; /* under the lock; running: requests with a reference that were scheduled at least once */
};

struct adapters {
    pthread_mutex_t lock;
    struct adapter_version *current, *buried;
    int n, max, max_rank;
    size_t bytes; /* of all versions on the device, buried ones included */
    uint64_t last;
};

void adapters_init(struct adapters *, int max, int max_rank);
/* After the last reference of a request was released. */
void adapters_close(struct adapters *, struct model *);

/* Checks that `name` is valid and the table has room. */
int adapters_check_new(struct adapters *, const char *name, struct err *e);
/* Checks that `name` is valid and the table has room, and reads the adapter to *out; its rank is within the limit. */
int adapters_read(struct adapters *, const char *name, const char *dir, const struct model_config *,
                  struct adapter **out, struct err *e);
/* Engine thread: uploads the adapter and makes it the current version of the name.  The adapter stays the caller's. */
int adapters_publish(struct adapters *, struct model *, const char *name, const struct adapter *, uint64_t *version,
                     struct err *e);
/* Removes the name from the table.  *buried: whether adapters_sweep must be called. */
int adapters_remove(struct adapters *, const char *name, bool *buried, struct err *e);

/* @return the current version with a reference taken; NULL and *e (ERR_NOT_FOUND, with the known names) for none. */
struct adapter_version *adapters_acquire(struct adapters *, const char *name, struct err *e);
/* Whether requests may name it: names that begin with '@' are known to adapters_acquire only. */
int adapters_check(struct adapters *, const char *name, struct err *e);
/* Whether this version is the current one of a name that requests may use; name: that. */
bool adapters_current(struct adapters *, uint64_t version, char name[ADAPTER_NAME_MAX + 1]);
/* As engine_adapter_scores. */
bool adapters_scores(struct adapters *, const char *name);
/* Adds `more` to the number of its running requests. */
void adapters_run(struct adapters *, struct adapter_version *, int more);
/* Releases a reference; NULL is allowed.  @return whether adapters_sweep must be called. */
bool adapters_release(struct adapters *, struct adapter_version *);
/* Engine thread: frees the buried versions. */
void adapters_sweep(struct adapters *, struct model *);

/* @return the number of names; *bytes: size of all versions on the device, including replaced ones still in use. */
int adapters_count(struct adapters *, size_t *bytes);
int adapters_list(struct adapters *, struct adapter_info *out, int max);

/* The parent of this version's first pages in the prefix cache (kv.h; 0 is the base model).  The plan is sorted by it
 * (sched.h); versions that change gate or up come last. */
uint64_t adapter_root(const struct adapter_version *);

#endif
