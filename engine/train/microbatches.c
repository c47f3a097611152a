#include "engine/train/microbatches.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <stdlib.h>
#include <string.h>

enum { GROUP_STEPS = 64 }; /* rows of similar length are grouped within windows of this many steps */

/* random streams of the seed */
enum { STREAM_ROWS = 1, STREAM_STEPS = 2 };

struct microbatches {
    struct microbatches_options o;
    uint32_t n, steps;
    uint32_t *length; /* (n) */
    uint32_t *order;  /* (n) the epoch's rows in the order of its steps */
    uint32_t *start;  /* (steps + 1) start of each step in `order`; capacity n + 1 */
    uint32_t longest;
    uint64_t tokens;
    /* of the step requested last */
    uint32_t *row, *micro_start; /* (n), (n + 1) */
    uint32_t *bin, *bin_tokens;  /* (n) */
    uint32_t *part;              /* (n) the slot of each row, in the order of the epoch */
    uint32_t *slot;              /* (slots + 1) */
};

struct microbatches *microbatches_new(const uint32_t *length, uint32_t n, const struct microbatches_options *o)
{
    CHECK(n >= 1 && o->batch_tokens >= 1 && o->micro_tokens >= 1);
    struct microbatches *b = mem_zalloc(sizeof *b);
    size_t room = (size_t)n + 1;
    *b = (struct microbatches){.o = *o, .n = n};
    if (b->o.slots < 1) b->o.slots = 1;
    b->slot = mem_array((size_t)b->o.slots + 1, sizeof *b->slot);
    uint32_t **arrays[] = {&b->length,      &b->order, &b->start,      &b->row,
                           &b->micro_start, &b->bin,   &b->bin_tokens, &b->part};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = mem_array(room, sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        b->length[i] = length[i];
        b->tokens += length[i];
        if (length[i] > b->longest) b->longest = length[i];
    }
    return b;
}

void microbatches_free(struct microbatches *b)
{
    if (!b) return;
    uint32_t *arrays[] = {b->length, b->order,      b->start, b->row, b->micro_start,
                          b->bin,    b->bin_tokens, b->part,  b->slot};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(b);
}

int microbatches_micro_max(const struct microbatches *b)
{
    int cap = b->o.micro_tokens < b->o.batch_tokens ? b->o.micro_tokens : b->o.batch_tokens;
    if ((uint64_t)cap > b->tokens) cap = (int)b->tokens;
    return (uint32_t)cap > b->longest ? cap : (int)b->longest;
}

/* ---- an epoch -------------------------------------------------------------------------------------------------- */

/* Fisher-Yates shuffle, with one random number per position. */
static void shuffle(uint32_t *v, uint32_t n, uint64_t seed)
{
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = (uint32_t)(((unsigned __int128)rng_at(seed, i) * i) >> 64), t = v[i - 1];
        v[i - 1] = v[j];
        v[j] = t;
    }
}

/* Sorts longer rows first, and rows of equal length by their previous position, which is in the low 32 bits of the key.
 */
static int longer_first(const void *pa, const void *pb)
{
    uint64_t a = *(const uint64_t *)pa, b = *(const uint64_t *)pb;
    return a < b ? -1 : a > b;
}

static void sort_by_length(const struct microbatches *b, uint32_t *row, uint32_t n)
{
    uint64_t *key = mem_array(n, sizeof *key);
    uint32_t *old = mem_array(n, sizeof *old);
    memcpy(old, row, n * sizeof *row);
    for (uint32_t i = 0; i < n; i++) key[i] = (uint64_t)(UINT32_MAX - b->length[row[i]]) << 32 | i;
    qsort(key, n, sizeof *key, longer_first);
    for (uint32_t i = 0; i < n; i++) row[i] = old[(uint32_t)key[i]];
    free(key);
    free(old);
}

/* @return the end of the rows from `from` on that fit into the budget together. */
static uint32_t fill(const struct microbatches *b, const uint32_t *row, uint32_t from, uint32_t n, uint64_t budget)
{
    uint64_t sum = b->length[row[from]];
    uint32_t i = from + 1;
    while (i < n && sum + b->length[row[i]] <= budget) sum += b->length[row[i++]];
    return i;
}

/* Partitions order[from, to) into steps. */
static void split_steps(struct microbatches *b, uint32_t from, uint32_t to)
{
    while (from < to) {
        b->start[b->steps++] = from;
        from = fill(b, b->order, from, to, (uint64_t)b->o.batch_tokens);
    }
}

/* Shuffles the steps [first, steps) of one window, whose rows start at order[from]. */
static void mix_steps(struct microbatches *b, uint32_t first, uint32_t from, uint32_t to, uint64_t seed)
{
    uint32_t n = b->steps - first, rows = to - from, at = from, i;
    uint32_t *which = mem_array(n, sizeof *which), *start = mem_array((size_t)n + 1, sizeof *start);
    uint32_t *old = mem_array(rows, sizeof *old);
    memcpy(old, b->order + from, rows * sizeof *old);
    for (i = 0; i < n; i++) which[i] = i, start[i] = b->start[first + i] - from;
    start[n] = rows;
    shuffle(which, n, rng_at(seed, first));
    for (i = 0; i < n; i++) {
        uint32_t w = which[i], len = start[w + 1] - start[w];
        b->start[first + i] = at;
        memcpy(b->order + at, old + start[w], len * sizeof *old);
        at += len;
    }
    free(which);
    free(start);
    free(old);
}

uint32_t microbatches_epoch(struct microbatches *b, uint32_t epoch)
{
    for (uint32_t i = 0; i < b->n; i++) b->order[i] = i;
    uint64_t seed = rng_at(b->o.seed, (uint64_t)STREAM_ROWS << 32 | epoch);
    b->steps = 0;
    if (!b->o.in_order) shuffle(b->order, b->n, seed);
    if (b->o.in_order || b->o.packing || !b->o.by_length) {
        split_steps(b, 0, b->n);
    } else {
        uint64_t window = (uint64_t)b->o.batch_tokens * GROUP_STEPS;
        seed = rng_at(b->o.seed, (uint64_t)STREAM_STEPS << 32 | epoch);
        for (uint32_t from = 0, to; from < b->n; from = to) {
            uint32_t first = b->steps;
            to = fill(b, b->order, from, b->n, window);
            sort_by_length(b, b->order + from, to - from);
            split_steps(b, from, to);
            mix_steps(b, first, from, to, seed);
        }
    }
    b->start[b->steps] = b->n;
    return b->steps;
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */

/* Best fit decreasing: each row, longest first, goes into the micro-batch with the least space left that still fits
 * it.  Uses at most 4/3 of the optimal number of micro-batches (Johnson et al., 1974: 11/9).  sorted (n): the rows in
 * the order in which b->bin has their micro-batches. */
static uint32_t pack(struct microbatches *b, const uint32_t *row, uint32_t n, uint32_t *sorted)
{
    uint32_t bins = 0, cap = (uint32_t)b->o.micro_tokens;
    memcpy(sorted, row, n * sizeof *row);
    sort_by_length(b, sorted, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t len = b->length[sorted[i]], best = bins;
        for (uint32_t k = 0; k < bins; k++)
            if (b->bin_tokens[k] + len <= cap && (best == bins || b->bin_tokens[k] > b->bin_tokens[best])) best = k;
        if (best == bins) b->bin_tokens[bins++] = 0;
        b->bin_tokens[best] += len;
        b->bin[i] = best;
    }
    return bins;
}

/* Sorts the rows by bin, and sets start (bins + 1) to where each bin begins. */
static void gather_bins(const struct microbatches *b, uint32_t *row, uint32_t n, uint32_t bins, uint32_t *start)
{
    memset(start, 0, ((size_t)bins + 1) * sizeof *start);
    for (uint32_t i = 0; i < n; i++) start[b->bin[i] + 1]++;
    for (uint32_t k = 0; k < bins; k++) start[k + 1] += start[k];
    uint32_t *sorted = mem_array(n, sizeof *sorted);
    memcpy(sorted, row, n * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++) row[start[b->bin[i]]++] = sorted[i];
    for (uint32_t k = bins; k > 0; k--) start[k] = start[k - 1];
    start[0] = 0;
    free(sorted);
}

/* Partitions rows into micro-batches, whose rows are put at `at` and which are number `first` and those after it.
 * @return how many. */
static uint32_t split_rows(struct microbatches *b, const uint32_t *row, uint32_t n, uint32_t at, uint32_t first)
{
    uint32_t *out = b->row + at, *start = b->micro_start + first, micro = 0;
    if (!n) {
        start[0] = 0;
    } else if (b->o.packing) {
        micro = pack(b, row, n, out);
        gather_bins(b, out, n, micro, start);
    } else {
        memcpy(out, row, n * sizeof *row);
        for (uint32_t i = 0; i < n; i = fill(b, out, i, n, (uint64_t)b->o.micro_tokens)) start[micro++] = i;
        start[micro] = n;
    }
    for (uint32_t i = 0; i <= micro; i++) start[i] += at;
    return micro;
}

/* Sets b->part to the slot of each row: longest first, each into the one that has the fewest tokens so far. */
static void choose_slots(struct microbatches *b, const uint32_t *row, uint32_t n)
{
    uint64_t *key = mem_array(n, sizeof *key), *tokens = mem_array((size_t)b->o.slots, sizeof *tokens);
    for (uint32_t i = 0; i < n; i++) key[i] = (uint64_t)(UINT32_MAX - b->length[row[i]]) << 32 | i;
    qsort(key, n, sizeof *key, longer_first);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)key[i], least = 0;
        for (uint32_t s = 1; s < (uint32_t)b->o.slots; s++)
            if (tokens[s] < tokens[least]) least = s;
        tokens[least] += b->length[row[at]];
        b->part[at] = least;
    }
    free(key);
    free(tokens);
}

/* Several slots, each with its rows in the epoch's order and partitioned for itself.  @return the micro-batches. */
static uint32_t split_slots(struct microbatches *b, const uint32_t *row, uint32_t n)
{
    uint32_t micro = 0, at = 0, *mine = mem_array(n, sizeof *mine);
    choose_slots(b, row, n);
    for (uint32_t s = 0; s < (uint32_t)b->o.slots; s++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < n; i++)
            if (b->part[i] == s) mine[k++] = row[i];
        b->slot[s] = micro;
        micro += split_rows(b, mine, k, at, micro);
        at += k;
    }
    free(mine);
    return micro;
}

struct microbatches_step microbatches_step(struct microbatches *b, uint32_t step)
{
    CHECK(step < b->steps);
    const uint32_t *row = b->order + b->start[step];
    uint32_t n = b->start[step + 1] - b->start[step];
    uint32_t micro = b->o.slots > 1 ? split_slots(b, row, n) : split_rows(b, row, n, 0, 0);
    b->slot[b->o.slots] = micro;
    return (struct microbatches_step){b->row, b->micro_start, micro, n, b->slot, row, b->start[step]};
}
