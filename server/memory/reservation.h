/* Memory that requests hold, reserved before it is allocated: one budget for the whole process.
 *
 * An allocation whose size a client controls (a body, a JSON tree, tokens, an answer) is reserved first, and refused
 * when the budget has no room.  The budget is a limit on the sum, not a pool: memory still comes from malloc. Any
 * thread; a `struct reservation` has one owner at a time. */
#ifndef TANDEM_SERVER_MEMORY_RESERVATION_H
#define TANDEM_SERVER_MEMORY_RESERVATION_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; reservation_free releases everything. */
struct reservation {
    size_t bytes;
};

/* Sets the limit in bytes for all requests together; 0: no limit (commands other than serve). */
void reservation_budget(size_t bytes);
/* @return the default budget for a machine (or control group, or RLIMIT_AS) with a limit of `limit` bytes, `used` of
 * them in use. */
size_t reservation_default(size_t limit, size_t used);
/* @return the limit in bytes for the JSON tree of one body: a part of the budget, so that one request leaves room for
 * others. */
size_t reservation_tree_limit(void);

/* Adds `bytes`.  @return false with nothing added and *e: ERR_NOMEM (more than the whole budget: a retry is useless) or
 * ERR_FULL (no room now), with a message that names `what`.  e may be NULL. */
__attribute__((warn_unused_result)) bool reserve(struct reservation *, size_t bytes, const char *what, struct err *e);
/* Raises it to at least `bytes`, in steps, so that it is cheap to call for every event. */
__attribute__((warn_unused_result)) bool reserve_up_to(struct reservation *, size_t bytes, const char *what,
                                                       struct err *e);
void reservation_shrink(struct reservation *, size_t bytes); /* releases `bytes` */
void reservation_free(struct reservation *);

/* The HTTP status for an error of reserve: 413, 503, or `otherwise` when it is another error. */
int reservation_status(const struct err *, int otherwise);

struct reservation_stats {
    size_t budget, used, peak;
    uint64_t refused;
};
void reservation_stats(struct reservation_stats *);

/* Returns freed memory to the system, where the allocator would keep it.  Takes milliseconds: not on the loop thread.
 */
void reservation_trim(void);

#endif
