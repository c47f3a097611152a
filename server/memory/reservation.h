/* Memory that requests hold, reserved before it is allocated: one budget for the whole process.
 *
 * Whoever allocates what a client can make large (a body, a JSON tree, tokens, an answer) reserves its size first and
 * is refused when the budget has no room.  The budget is a limit on the sum, not a pool: memory still comes from
 * malloc. Any thread; a `struct reservation` has one owner at a time. */
#ifndef TANDEM_SERVER_MEMORY_RESERVATION_H
#define TANDEM_SERVER_MEMORY_RESERVATION_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise; reservation_free gives everything back. */
struct reservation {
    size_t bytes;
};

/* Bytes that all requests together may hold; 0: no limit (commands other than serve). */
void reservation_budget(size_t bytes);
/* The budget for a machine (or control group, or RLIMIT_AS) that allows `limit` bytes, of which `used` are taken. */
size_t reservation_default(size_t limit, size_t used);
/* Bytes that the JSON tree of one body may take: a part of the budget, so that one request leaves room for others. */
size_t reservation_tree_limit(void);

/* Adds `bytes`.  False: nothing was added; *e has ERR_NOMEM (more than the whole budget: asking again is in vain) or
 * ERR_FULL (no room now), with a message that names `what`.  e may be NULL. */
__attribute__((warn_unused_result)) bool reserve(struct reservation *, size_t bytes, const char *what, struct err *e);
/* Raises it to at least `bytes`, in steps, so that it can be asked for every event. */
__attribute__((warn_unused_result)) bool reserve_up_to(struct reservation *, size_t bytes, const char *what,
                                                       struct err *e);
void reservation_shrink(struct reservation *, size_t bytes); /* gives so many back */
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
