#include "engine/train/prefetch.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <pthread.h>
#include <stdlib.h>

enum { SLOTS = 2 }; /* one is computed, one is prepared */

enum work { IDLE, WANTED, READY, END };

struct prefetch {
    struct train_rows *rows;
    int max_tokens;
    bool several;
    uint32_t first_slot, end_slot, stride;
    /* of the thread, or of the caller while the thread is idle */
    struct prefetched slot[SLOTS];
    struct microbatches_step step; /* what rows returned for step `at` */
    int64_t at;                    /* -1: none */

    int current; /* slot that was taken last */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: the other slot is to become, or is, this micro-batch */
    enum work work;
    int64_t next_step;
    uint32_t next_slot, next_from;
};

/* ---- a micro-batch ----------------------------------------------------------------------------------------------- */

static uint64_t tokens_before(const struct prefetch *p, uint32_t unit)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < unit; i++) n += (uint64_t)train_rows_tokens(p->rows, &p->step, i);
    return n;
}

/* The end of the micro-batch that begins with unit i of the step, which ends before unit `end`. */
static uint32_t end_of(const struct prefetch *p, uint32_t i, uint32_t end)
{
    int tokens = train_rows_tokens(p->rows, &p->step, i++), more;
    for (; p->several && i < end; i++, tokens += more) {
        more = train_rows_tokens(p->rows, &p->step, i);
        if (tokens + more > p->max_tokens) break;
    }
    return i;
}

static void prepare(struct prefetch *p, struct prefetched *s, int64_t step, uint32_t slot, uint32_t from)
{
    if (p->at != step) p->step = train_rows_step(p->rows, step);
    p->at = step;
    uint32_t first = p->step.slot[slot], end = p->step.slot[slot + 1], unit = first + from, to;
    CHECK(unit < end || (first == end && !from));
    s->step = step;
    s->slot = slot;
    s->from = from;
    s->n_units = end - first;
    to = s->n_units ? end_of(p, unit, end) : end;
    s->to = to - first;
    s->targets = train_rows_targets(p->rows, &p->step);
    s->chosen_tokens = train_rows_chosen(p->rows, &p->step);
    s->n_rows = p->step.n_rows;
    if (s->n_units) micro_fill(&s->micro, p->rows, &p->step, unit, to, tokens_before(p, unit));
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void *run(void *arg)
{
    struct prefetch *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (p->work == IDLE || p->work == READY) pthread_cond_wait(&p->changed, &p->lock);
        if (p->work == END) break;
        struct prefetched *s = &p->slot[!p->current];
        int64_t step = p->next_step;
        uint32_t slot = p->next_slot, from = p->next_from;
        pthread_mutex_unlock(&p->lock);
        prepare(p, s, step, slot, from);
        pthread_mutex_lock(&p->lock);
        p->work = READY;
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Waits until the thread prepares nothing.  @return whether the other slot is ready. */
static bool settle(struct prefetch *p)
{
    if (!p->has_thread) return false;
    pthread_mutex_lock(&p->lock);
    while (p->work == WANTED) pthread_cond_wait(&p->changed, &p->lock);
    bool ready = p->work == READY;
    p->work = IDLE;
    pthread_mutex_unlock(&p->lock);
    return ready;
}

static void set_work(struct prefetch *p, enum work work)
{
    pthread_mutex_lock(&p->lock);
    p->work = work;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

/* ---- for the trainer --------------------------------------------------------------------------------------------- */

struct prefetch *prefetch_open(struct train_rows *rows, int max_tokens, int near_len, bool several, bool thread)
{
    struct prefetch *p = mem_zalloc(sizeof *p);
    *p = (struct prefetch){
        .rows = rows, .max_tokens = max_tokens, .several = several, .end_slot = 1, .stride = 1, .at = -1};
    for (int i = 0; i < SLOTS; i++) micro_open(&p->slot[i].micro, max_tokens, near_len);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
    p->has_thread = thread && !pthread_create(&p->thread, NULL, run, p);
    return p;
}

void prefetch_slots(struct prefetch *p, uint32_t first, uint32_t end, uint32_t stride)
{
    CHECK(first < end && stride);
    p->stride = stride;
    p->first_slot = first;
    p->end_slot = end;
}

const struct prefetched *prefetch_take(struct prefetch *p, int64_t step, uint32_t slot, uint32_t from)
{
    struct prefetched *s = &p->slot[!p->current];
    bool ready = settle(p);
    if (!ready || s->step != step || s->slot != slot || s->from != from) prepare(p, s, step, slot, from);
    p->current = !p->current;
    bool of_slot = s->to == s->n_units, of_step = of_slot && slot + p->stride >= p->end_slot; /* it is the last one */
    if (!p->has_thread || (of_step && step + 1 >= p->rows->before[p->rows->epochs])) return s;
    p->next_step = of_step ? step + 1 : step;
    p->next_slot = of_step ? p->first_slot : of_slot ? slot + p->stride : slot;
    p->next_from = of_slot ? 0 : s->to;
    set_work(p, WANTED);
    return s;
}

void prefetch_wait(struct prefetch *p)
{
    if (!p) return;
    settle(p);
    p->at = -1;
}

void prefetch_limit(struct prefetch *p, int max_tokens)
{
    if (!p) return;
    prefetch_wait(p);
    CHECK(max_tokens <= p->max_tokens);
    p->max_tokens = max_tokens;
}

void prefetch_close(struct prefetch *p)
{
    if (!p) return;
    if (p->has_thread) {
        settle(p);
        set_work(p, END);
        pthread_join(p->thread, NULL);
    }
    for (int i = 0; i < SLOTS; i++) micro_close(&p->slot[i].micro);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}
