#include "engine/grammar/run.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/grammar/mask.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

/* Limits of one automaton: above SOFT, new users get a new one; at HARD, a text that needs more ends with an error.
 * POSITIONS: of one state.  WORK: positions visited in total. */
#define BYTES_SOFT ((size_t)8 << 20)
#define BYTES_HARD ((size_t)32 << 20)
/* Memory limit for all automata of the process with their masks.  At half of it, unused automata are freed (otherwise a
 * cached grammar keeps its automaton), so at least half is available to running requests.  Above it, requests that need
 * more fail. */
#define BYTES_ALL ((size_t)256 << 20)
#define WORK_MAX ((uint64_t)1 << 25)
enum { POSITIONS_MAX = 1 << 14, HURRY = 1 << 10, MASK_BYTES_MAX = 8 << 20, NOT_MADE = -3 };

struct position {
    uint32_t pc, sub, stack; /* sub: bytes read of a LITERAL; class node reached in a CLASS, 0 before the first byte */
};

struct frame {
    uint32_t parent, pc, count, loose; /* pc: return address; loose: gram_loose's frame */
    uint32_t slack;                    /* gram_slack of the whole stack */
};

struct state {
    uint32_t first, n; /* positions */
    int32_t next;      /* start of its row in `next`; -1: no transition computed yet */
    int32_t loose;     /* NOT_MADE */
    uint32_t slack;
    struct gram_run run;
    const struct gram_forced *forced; /* NULL: not known; owned, unless it is NOT_FORCED */
    bool accepts;
    struct gram_mask *mask;
    int32_t newer, older; /* list of the states with masks, by last use */
};

static const struct gram_forced NOT_FORCED;

struct gram_automaton {
    _Atomic int refs;
    pthread_mutex_t lock;
    const struct gram_program *p;
    uint64_t vocabulary;

    struct position *positions; /* of all states, end to end */
    struct frame *frames;       /* frames[0]: the empty stack */
    struct state *states;
    int32_t *next; /* (rows, p->n_kinds) */
    size_t n_positions, cap_positions, n_frames, cap_frames, n_states, cap_states, n_next, cap_next;
    uint32_t *frame_slots, *state_slots; /* interned ones, index + 1 */
    size_t frame_mask, state_mask;

    /* the transition being computed */
    struct position *found; /* positions reached by reading a byte */
    uint32_t *todo;         /* pairs (pc, stack) to follow */
    size_t n_found, cap_found, n_todo, cap_todo;
    struct seen {
        uint32_t pc, stack, stamp;
    } * seen; /* pairs followed already */
    size_t seen_mask, n_seen;
    uint32_t stamp;
    bool accepts;

    uint64_t work;
    const char *why;      /* not NULL: a limit of the automaton was reached */
    const char *why_here; /* a limit of a single transition was reached */
    bool hurry, late;     /* late: the current transition was abandoned because of hurry */
    int32_t newest, oldest;
    size_t mask_bytes, forced_bytes, counted; /* counted: bytes of this automaton included in all_bytes */
};

static _Atomic size_t all_bytes;

/* ---- creation and removal ---- */

static struct gram_automaton *automaton_new(const struct gram_program *p, uint64_t vocabulary)
{
    struct gram_automaton *a = mem_zalloc(sizeof *a);
    atomic_init(&a->refs, 1);
    pthread_mutex_init(&a->lock, NULL);
    a->p = p;
    a->vocabulary = vocabulary;
    a->newest = a->oldest = -1;
    mem_grow(&a->frames, &a->cap_frames, 1, sizeof *a->frames);
    a->frames[a->n_frames++] = (struct frame){.slack = UINT32_MAX};
    a->frame_mask = a->state_mask = a->seen_mask = 63;
    a->frame_slots = mem_array(a->frame_mask + 1, sizeof *a->frame_slots);
    a->state_slots = mem_array(a->state_mask + 1, sizeof *a->state_slots);
    a->seen = mem_array(a->seen_mask + 1, sizeof *a->seen);
    return a;
}

static size_t automaton_bytes(const struct gram_automaton *a)
{
    return a->cap_positions * sizeof *a->positions + a->cap_frames * sizeof *a->frames +
           a->cap_states * sizeof *a->states + a->cap_next * sizeof *a->next + a->cap_found * sizeof *a->found +
           a->cap_todo * sizeof *a->todo + (a->seen_mask + 1) * sizeof *a->seen +
           (a->frame_mask + a->state_mask + 2) * sizeof(uint32_t) + a->forced_bytes;
}

/* Adds its growth to the total. */
static void count_bytes(struct gram_automaton *a)
{
    size_t now = automaton_bytes(a) + a->mask_bytes;
    if (now != a->counted) atomic_fetch_add(&all_bytes, now - a->counted);
    a->counted = now;
}

size_t gram_memory(void)
{
    return atomic_load(&all_bytes);
}

struct gram_automaton *gram_automaton_of(struct grammar *g, uint64_t vocabulary)
{
    pthread_mutex_lock(&g->lock);
    struct gram_automaton *a = g->current;
    if (a) {
        pthread_mutex_lock(&a->lock);
        bool old = a->vocabulary != vocabulary || a->why || automaton_bytes(a) > BYTES_SOFT || a->work > WORK_MAX / 4;
        pthread_mutex_unlock(&a->lock);
        if (old) {
            gram_automaton_unref(a);
            a = NULL;
        }
    }
    if (!a) a = g->current = automaton_new(&g->p, vocabulary);
    atomic_fetch_add(&a->refs, 1);
    pthread_mutex_unlock(&g->lock);
    return a;
}

void gram_automaton_unref(struct gram_automaton *a)
{
    if (!a || atomic_fetch_sub(&a->refs, 1) != 1) return;
    for (int32_t s = a->newest; s >= 0; s = a->states[s].older) gram_mask_unref(a->states[s].mask);
    for (size_t s = 0; s < a->n_states; s++)
        if (a->states[s].forced != &NOT_FORCED) free((void *)a->states[s].forced);
    atomic_fetch_sub(&all_bytes, a->counted);
    pthread_mutex_destroy(&a->lock);
    free(a->positions);
    free(a->frames);
    free(a->states);
    free(a->next);
    free(a->frame_slots);
    free(a->state_slots);
    free(a->found);
    free(a->todo);
    free(a->seen);
    free(a);
}

void gram_automaton_leave(struct grammar *g, struct gram_automaton *a)
{
    struct gram_automaton *idle = NULL;
    gram_automaton_unref(a);
    pthread_mutex_lock(&g->lock);
    if (g->current && atomic_load(&g->current->refs) == 1 && gram_memory() > BYTES_ALL / 2) {
        idle = g->current;
        g->current = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    gram_automaton_unref(idle);
}

pthread_mutex_t *gram_lock(struct gram_automaton *a)
{
    return &a->lock;
}

static int32_t full(struct gram_automaton *a, const char *why)
{
    if (!a->why) a->why = why;
    return GRAM_FULL;
}

static bool has_room(struct gram_automaton *a)
{
    if (a->why) return false;
    count_bytes(a);
    if (gram_memory() > BYTES_ALL) full(a, "no memory for the states of grammars");
    if (automaton_bytes(a) > BYTES_HARD) full(a, "too many states");
    if (a->work > WORK_MAX) full(a, "too much work");
    return !a->why;
}

/* ---- stacks ---- */

static uint32_t frame_find(struct gram_automaton *a, uint32_t parent, uint32_t pc, uint32_t count, uint32_t **slot)
{
    size_t at = rng_mix(((uint64_t)parent << 32 | pc) ^ (uint64_t)count * 0x9e3779b97f4a7c15u) & a->frame_mask;
    for (; a->frame_slots[at]; at = (at + 1) & a->frame_mask) {
        const struct frame *f = a->frames + a->frame_slots[at] - 1;
        if (f->parent == parent && f->pc == pc && f->count == count) return a->frame_slots[at] - 1;
    }
    *slot = a->frame_slots + at;
    return UINT32_MAX;
}

static void frames_grow(struct gram_automaton *a)
{
    if (2 * a->n_frames <= a->frame_mask) return;
    uint32_t *slot;
    a->frame_mask = 2 * a->frame_mask + 1;
    free(a->frame_slots);
    a->frame_slots = mem_array(a->frame_mask + 1, sizeof *a->frame_slots);
    for (uint32_t i = 1; i < a->n_frames; i++)
        if (frame_find(a, a->frames[i].parent, a->frames[i].pc, a->frames[i].count, &slot) == UINT32_MAX) *slot = i + 1;
}

/* The count's class (below min, or between min and max) without its exact value; counts that are already a class, or
 * past the minimum of an unbounded repetition, are kept. */
static uint32_t loose_count(const struct gram_loop *l, uint32_t count)
{
    if (count >= GRAM_FEW || (l->max == UINT32_MAX && count >= l->min)) return count;
    return count < l->min ? GRAM_FEW : GRAM_MANY;
}

static uint32_t count_slack(const struct gram_loop *l, uint32_t count)
{
    if (count >= GRAM_FEW) return UINT32_MAX;
    if (count < l->min) return l->min - count - 1;
    if (l->max == UINT32_MAX) return UINT32_MAX;
    return count < l->max ? l->max - count - 1 : 0;
}

static uint32_t frame_push(struct gram_automaton *a, uint32_t parent, uint32_t pc, uint32_t count)
{
    uint32_t *slot = NULL, known = frame_find(a, parent, pc, count, &slot);
    if (known != UINT32_MAX) return known;
    const struct gram_ins *at = a->p->code + pc;
    uint32_t parent_loose = a->frames[parent].loose;
    uint32_t count_loose = count, loose = UINT32_MAX /* itself */, slack = a->frames[parent].slack;
    if (at->op == GRAM_AGAIN) {
        const struct gram_loop *l = a->p->loops + at->a;
        count_loose = loose_count(l, count);
        if (count_slack(l, count) < slack) slack = count_slack(l, count);
    }
    if (parent_loose != parent || count_loose != count) loose = frame_push(a, parent_loose, pc, count_loose);
    frames_grow(a);
    CHECK(frame_find(a, parent, pc, count, &slot) == UINT32_MAX && slot);
    mem_grow(&a->frames, &a->cap_frames, a->n_frames + 1, sizeof *a->frames);
    if (loose == UINT32_MAX) loose = (uint32_t)a->n_frames;
    a->frames[a->n_frames] = (struct frame){parent, pc, count, loose, slack};
    *slot = (uint32_t)a->n_frames + 1;
    return (uint32_t)a->n_frames++;
}

/* ---- following instructions that read nothing ---- */

static void seen_grow(struct gram_automaton *a)
{
    if (2 * a->n_seen <= a->seen_mask) return;
    struct seen *old = a->seen;
    size_t n = a->seen_mask + 1;
    a->seen_mask = 2 * a->seen_mask + 1;
    a->seen = mem_array(a->seen_mask + 1, sizeof *a->seen);
    for (size_t i = 0; i < n; i++) {
        if (old[i].stamp != a->stamp) continue;
        size_t at = rng_mix((uint64_t)old[i].pc << 32 | old[i].stack) & a->seen_mask;
        while (a->seen[at].stamp == a->stamp) at = (at + 1) & a->seen_mask;
        a->seen[at] = old[i];
    }
    free(old);
}

static void go(struct gram_automaton *a, uint32_t pc, uint32_t stack)
{
    size_t at = rng_mix((uint64_t)pc << 32 | stack) & a->seen_mask;
    for (; a->seen[at].stamp == a->stamp; at = (at + 1) & a->seen_mask)
        if (a->seen[at].pc == pc && a->seen[at].stack == stack) return;
    a->seen[at] = (struct seen){pc, stack, a->stamp};
    a->n_seen++;
    seen_grow(a);
    mem_grow(&a->todo, &a->cap_todo, a->n_todo + 2, sizeof *a->todo);
    a->todo[a->n_todo++] = pc;
    a->todo[a->n_todo++] = stack;
}

static void stay(struct gram_automaton *a, uint32_t pc, uint32_t sub, uint32_t stack)
{
    mem_grow(&a->found, &a->cap_found, a->n_found + 1, sizeof *a->found);
    a->found[a->n_found++] = (struct position){pc, sub, stack};
}

/* The body of a counted repetition was read. */
static void again(struct gram_automaton *a, uint32_t pc, uint32_t stack)
{
    const struct gram_loop *l = a->p->loops + a->p->code[pc].a;
    const struct frame f = a->frames[stack];
    if (f.count >= GRAM_FEW) {
        if (f.count == GRAM_MANY) go(a, l->after, f.parent);
        go(a, l->body, stack);
        return;
    }
    uint32_t done = f.count + 1;
    if (done >= l->min) go(a, l->after, f.parent);
    if (l->max == UINT32_MAX && done > l->min) done = l->min;
    if (done < l->max) go(a, l->body, frame_push(a, f.parent, pc, done));
}

static void step_into(struct gram_automaton *a, uint32_t pc, uint32_t stack)
{
    const struct gram_program *p = a->p;
    const struct gram_ins *i = p->code + pc;
    switch ((enum gram_op)i->op) {
    case GRAM_LITERAL:
    case GRAM_CLASS: stay(a, pc, 0, stack); break;
    case GRAM_SPLIT:
        for (uint32_t k = 0; k < i->b; k++) go(a, p->targets[i->a + k], stack);
        break;
    case GRAM_TAIL:
    case GRAM_JUMP: go(a, i->a, stack); break;
    case GRAM_CALL: go(a, i->a, frame_push(a, stack, pc + 1, 0)); break;
    case GRAM_RETURN: go(a, a->frames[stack].pc, a->frames[stack].parent); break;
    case GRAM_COUNT:
        if (p->loops[i->a].min == 0) go(a, p->loops[i->a].after, stack);
        go(a, p->loops[i->a].body, frame_push(a, stack, p->loops[i->a].again, 0));
        break;
    case GRAM_AGAIN: again(a, pc, stack); break;
    case GRAM_MATCH: a->accepts = true; break;
    }
}

static void open_set(struct gram_automaton *a)
{
    a->n_found = a->n_todo = a->n_seen = 0;
    a->accepts = a->late = false;
    if (++a->stamp == 0) { /* wraps around after 2^32 transitions */
        memset(a->seen, 0, (a->seen_mask + 1) * sizeof *a->seen);
        a->stamp = 1;
    }
}

/* Follows everything in todo. */
static bool follow_all(struct gram_automaton *a)
{
    size_t most = a->hurry ? HURRY : 8 * (size_t)POSITIONS_MAX;
    while (a->n_todo && a->n_found <= POSITIONS_MAX && a->n_seen <= most) {
        uint32_t stack = a->todo[--a->n_todo], pc = a->todo[--a->n_todo];
        a->work++;
        step_into(a, pc, stack);
    }
    if (a->n_todo || a->n_found > POSITIONS_MAX) {
        a->late = a->hurry;
        if (!a->late) a->why_here = "too many ways to read the same text";
        return false;
    }
    return has_room(a);
}

/* ---- states ---- */

static int by_position(const void *x, const void *y)
{
    const struct position *a = x, *b = y;
    if (a->stack != b->stack) return a->stack < b->stack ? -1 : 1;
    if (a->pc != b->pc) return a->pc < b->pc ? -1 : 1;
    return (a->sub > b->sub) - (a->sub < b->sub);
}

static uint64_t positions_hash(const struct position *v, size_t n, bool accepts)
{
    uint64_t h = 2 * n + accepts;
    for (size_t i = 0; i < n; i++)
        h = rng_mix(h ^ ((uint64_t)v[i].pc << 32 | v[i].stack)) + (uint64_t)v[i].sub * 0x9e3779b97f4a7c15u;
    return rng_mix(h);
}

static void states_grow(struct gram_automaton *a)
{
    if (2 * a->n_states < a->state_mask) return;
    a->state_mask = 2 * a->state_mask + 1;
    free(a->state_slots);
    a->state_slots = mem_array(a->state_mask + 1, sizeof *a->state_slots);
    for (uint32_t i = 0; i < a->n_states; i++) {
        const struct state *s = a->states + i;
        size_t at = positions_hash(a->positions + s->first, s->n, s->accepts) & a->state_mask;
        while (a->state_slots[at]) at = (at + 1) & a->state_mask;
        a->state_slots[at] = i + 1;
    }
}

static uint32_t slack_of(const struct gram_automaton *a)
{
    uint32_t slack = UINT32_MAX;
    for (size_t i = 0; i < a->n_found; i++)
        if (a->frames[a->found[i].stack].slack < slack) slack = a->frames[a->found[i].stack].slack;
    return slack;
}

/* The state of the positions found. */
static int32_t close_set(struct gram_automaton *a)
{
    size_t n = 0;
    if (!a->n_found && !a->accepts) return GRAM_DEAD;
    if (a->n_found > 1) qsort(a->found, a->n_found, sizeof *a->found, by_position);
    for (size_t i = 0; i < a->n_found; i++)
        if (n == 0 || by_position(a->found + n - 1, a->found + i)) a->found[n++] = a->found[i];
    a->n_found = n;
    states_grow(a);
    size_t at = positions_hash(a->found, n, a->accepts) & a->state_mask;
    for (; a->state_slots[at]; at = (at + 1) & a->state_mask) {
        const struct state *s = a->states + a->state_slots[at] - 1;
        if (s->n == n && s->accepts == a->accepts &&
            (!n || memcmp(a->positions + s->first, a->found, n * sizeof *a->found) == 0))
            return (int32_t)a->state_slots[at] - 1;
    }
    mem_grow(&a->positions, &a->cap_positions, a->n_positions + n, sizeof *a->positions);
    if (n) memcpy(a->positions + a->n_positions, a->found, n * sizeof *a->found);
    mem_grow(&a->states, &a->cap_states, a->n_states + 1, sizeof *a->states);
    a->states[a->n_states] = (struct state){.first = (uint32_t)a->n_positions,
                                            .n = (uint32_t)n,
                                            .next = -1,
                                            .loose = NOT_MADE,
                                            .slack = slack_of(a),
                                            .accepts = a->accepts};
    a->n_positions += n;
    a->state_slots[at] = (uint32_t)a->n_states + 1;
    return (int32_t)a->n_states++;
}

int32_t gram_begin(struct gram_automaton *a)
{
    if (a->n_states) return GRAM_START;
    if (!has_room(a)) return GRAM_FULL;
    open_set(a);
    go(a, 0, 0);
    return follow_all(a) ? close_set(a) : a->late ? GRAM_LATER : GRAM_FULL;
}

/* One byte read at a position. */
static void read_byte(struct gram_automaton *a, struct position at, uint8_t byte)
{
    const struct gram_ins *i = a->p->code + at.pc;
    if (i->op == GRAM_LITERAL) {
        if (a->p->bytes[i->a + at.sub] != byte) return;
        if (at.sub + 1 < i->b)
            stay(a, at.pc, at.sub + 1, at.stack);
        else
            go(a, at.pc + 1, at.stack);
        return;
    }
    uint32_t to = class_next(&a->p->classes, at.sub ? at.sub : i->a, byte);
    if (to == CLASS_END)
        go(a, at.pc + 1, at.stack);
    else if (to != CLASS_NOTHING)
        stay(a, at.pc, to, at.stack);
}

static int32_t make_next(struct gram_automaton *a, int32_t state, uint8_t byte)
{
    if (!has_room(a)) return GRAM_FULL;
    const struct state *s = a->states + state;
    if (a->hurry && s->n > HURRY) return GRAM_LATER;
    open_set(a);
    for (uint32_t i = 0; i < s->n; i++) read_byte(a, a->positions[s->first + i], byte);
    a->work += s->n;
    return follow_all(a) ? close_set(a) : a->late ? GRAM_LATER : GRAM_FULL;
}

static void next_row(struct gram_automaton *a, int32_t state)
{
    size_t n = (size_t)a->p->n_kinds;
    mem_grow(&a->next, &a->cap_next, a->n_next + n, sizeof *a->next);
    for (size_t k = 0; k < n; k++) a->next[a->n_next + k] = NOT_MADE;
    a->states[state].next = (int32_t)a->n_next;
    a->n_next += n;
}

int32_t gram_known(const struct gram_automaton *a, int32_t state, uint8_t byte)
{
    const struct state *s = a->states + state;
    int32_t to = s->next < 0 ? NOT_MADE : a->next[s->next + a->p->kind[byte]];
    return to == NOT_MADE ? GRAM_FULL : to;
}

int32_t gram_next(struct gram_automaton *a, int32_t state, uint8_t byte)
{
    if (a->states[state].next < 0) next_row(a, state);
    size_t at = (size_t)a->states[state].next + a->p->kind[byte];
    if (a->next[at] != NOT_MADE) return a->next[at];
    int32_t to = make_next(a, state, byte);
    if (to != GRAM_LATER && !a->why) a->next[at] = to; /* GRAM_FULL of this transition is cached as well */
    return to;
}

bool gram_accepts(const struct gram_automaton *a, int32_t state)
{
    return a->states[state].accepts;
}

bool gram_ends(const struct gram_automaton *a, int32_t state)
{
    return a->states[state].n == 0;
}

const char *gram_why(const struct gram_automaton *a)
{
    return a->why ? a->why : a->why_here;
}

void gram_hurry(struct gram_automaton *a, bool on)
{
    a->hurry = on;
}

int32_t gram_loose(struct gram_automaton *a, int32_t state)
{
    if (a->states[state].loose != NOT_MADE) return a->states[state].loose;
    if (!has_room(a)) return GRAM_FULL;
    const struct state *s = a->states + state;
    if (a->hurry && s->n > HURRY) return GRAM_LATER;
    open_set(a);
    for (uint32_t i = 0; i < s->n; i++) {
        struct position at = a->positions[s->first + i];
        stay(a, at.pc, at.sub, a->frames[at.stack].loose);
    }
    a->accepts = s->accepts;
    int32_t loose = close_set(a);
    a->states[loose].loose = loose;
    return a->states[state].loose = loose;
}

uint32_t gram_slack(const struct gram_automaton *a, int32_t state)
{
    return a->states[state].slack;
}

bool gram_hurries(const struct gram_automaton *a)
{
    return a->hurry;
}

int gram_only_byte(const struct gram_automaton *a, int32_t state)
{
    const struct state *s = a->states + state;
    int byte = -1;
    if (s->accepts) return -1;
    for (uint32_t i = 0; i < s->n; i++) {
        struct position at = a->positions[s->first + i];
        const struct gram_ins *ins = a->p->code + at.pc;
        if (ins->op != GRAM_LITERAL) return -1;
        int here = a->p->bytes[ins->a + at.sub];
        if (byte >= 0 && here != byte) return -1;
        byte = here;
    }
    return byte;
}

const struct gram_forced *gram_forced_of(const struct gram_automaton *a, int32_t state)
{
    return a->states[state].forced;
}

const struct gram_forced *gram_forced_store(struct gram_automaton *a, int32_t state, struct gram_forced *f)
{
    a->states[state].forced = f ? f : &NOT_FORCED;
    if (f) a->forced_bytes += sizeof *f + (size_t)f->n * sizeof *f->ids;
    return a->states[state].forced;
}

struct gram_run *gram_run(struct gram_automaton *a, int32_t state)
{
    return &a->states[state].run;
}

uint8_t gram_kind(const struct gram_automaton *a, uint8_t byte)
{
    return a->p->kind[byte];
}

uint64_t gram_work(const struct gram_automaton *a)
{
    return a->work;
}

size_t gram_states(const struct gram_automaton *a)
{
    return a->n_states;
}

/* ---- masks ---- */

static void mask_unlink(struct gram_automaton *a, int32_t state)
{
    struct state *s = a->states + state;
    if (s->newer >= 0)
        a->states[s->newer].older = s->older;
    else
        a->newest = s->older;
    if (s->older >= 0)
        a->states[s->older].newer = s->newer;
    else
        a->oldest = s->newer;
}

static void mask_link(struct gram_automaton *a, int32_t state)
{
    struct state *s = a->states + state;
    s->newer = -1;
    s->older = a->newest;
    if (a->newest >= 0)
        a->states[a->newest].newer = state;
    else
        a->oldest = state;
    a->newest = state;
}

struct gram_mask *gram_mask_of(struct gram_automaton *a, int32_t state)
{
    if (!a->states[state].mask) return NULL;
    mask_unlink(a, state);
    mask_link(a, state);
    return a->states[state].mask;
}

void gram_mask_store(struct gram_automaton *a, int32_t state, struct gram_mask *m)
{
    size_t bytes = gram_mask_bytes(m);
    while (a->oldest >= 0 && a->mask_bytes + bytes > MASK_BYTES_MAX) {
        int32_t old = a->oldest;
        mask_unlink(a, old);
        a->mask_bytes -= bytes;
        gram_mask_unref(a->states[old].mask);
        a->states[old].mask = NULL;
    }
    if (a->states[state].mask) return;
    a->states[state].mask = gram_mask_ref(m);
    a->mask_bytes += bytes;
    mask_link(a, state);
    count_bytes(a);
}
