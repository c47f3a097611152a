/* The budget of request memory (reservation.h): two counters and the rule for the default. */
#include "server/memory/reservation.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <stdatomic.h>

enum {
    TREE_PART = 4,         /* a body's tree may take a quarter of the budget */
    STEP = 64 * 1024,      /* of reserve_up_to */
    PROBE = 64 * 1024,     /* from this size on, also checks that malloc can allocate */
    BUDGET_MIN = 16 << 20, /* bytes: one body of the default limit, and its processing */
    LIMIT_PART = 4,        /* divisor of the machine's limit */
};
#define BUDGET_MAX ((size_t)4 << 30)

static struct {
    _Atomic size_t budget, used, peak;
    _Atomic uint64_t refused;
} total;

void reservation_budget(size_t bytes)
{
    atomic_store(&total.budget, bytes);
}

size_t reservation_default(size_t limit, size_t used)
{
    size_t rest = (limit > used ? limit - used : 0) / 2, part = limit / LIMIT_PART;
    size_t budget = rest < part ? rest : part;
    if (budget > BUDGET_MAX) budget = BUDGET_MAX;
    return budget < BUDGET_MIN ? BUDGET_MIN : budget;
}

size_t reservation_tree_limit(void)
{
    size_t budget = atomic_load(&total.budget);
    return budget ? budget / TREE_PART : SIZE_MAX;
}

static bool refuse(struct err *e, int code, const char *what, size_t bytes, size_t budget)
{
    atomic_fetch_add(&total.refused, 1);
    if (code == ERR_NOMEM)
        err_set(e, code, "%s takes %zu bytes of memory, and all requests together may take %zu (--request-memory)",
                what, bytes, budget);
    else
        err_set(e, code, "no memory for %s: %zu bytes", what, bytes);
    return false;
}

bool reserve(struct reservation *r, size_t bytes, const char *what, struct err *e)
{
    size_t budget = atomic_load(&total.budget), used = atomic_load(&total.used);
    if (budget && bytes > budget) return refuse(e, ERR_NOMEM, what, bytes, budget);
    do {
        if (budget && (used > budget || bytes > budget - used)) return refuse(e, ERR_FULL, what, bytes, budget);
    } while (!atomic_compare_exchange_weak(&total.used, &used, used + bytes));
    /* The system may have less than the budget: a training job runs, or a limit was lowered. */
    if (bytes >= PROBE && !mem_available(bytes)) {
        atomic_fetch_sub(&total.used, bytes);
        return refuse(e, ERR_FULL, what, bytes, budget);
    }
    for (size_t peak = atomic_load(&total.peak); peak < used + bytes;)
        if (atomic_compare_exchange_weak(&total.peak, &peak, used + bytes)) break;
    r->bytes += bytes;
    return true;
}

bool reserve_up_to(struct reservation *r, size_t bytes, const char *what, struct err *e)
{
    if (bytes <= r->bytes) return true;
    size_t more = bytes - r->bytes, least = r->bytes / 2 > STEP ? r->bytes / 2 : STEP;
    return reserve(r, more > least ? more : least, what, e);
}

void reservation_shrink(struct reservation *r, size_t bytes)
{
    CHECK(bytes <= r->bytes);
    r->bytes -= bytes;
    size_t before = atomic_fetch_sub(&total.used, bytes);
    CHECK(before >= bytes);
}

void reservation_free(struct reservation *r)
{
    reservation_shrink(r, r->bytes);
}

int reservation_status(const struct err *e, int otherwise)
{
    return e->code == ERR_NOMEM ? 413 : e->code == ERR_FULL ? 503 : otherwise;
}

void reservation_stats(struct reservation_stats *out)
{
    *out = (struct reservation_stats){
        .budget = atomic_load(&total.budget),
        .used = atomic_load(&total.used),
        .peak = atomic_load(&total.peak),
        .refused = atomic_load(&total.refused),
    };
}

/* glibc only; jemalloc's background thread does this itself. */
int malloc_trim(size_t pad) __attribute__((weak));

void reservation_trim(void)
{
    if (malloc_trim) malloc_trim(0);
}
