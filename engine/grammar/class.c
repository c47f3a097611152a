#include "engine/grammar/class.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/rng.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { UNICODE_MAX = 0x10ffff, SURROGATE_FIRST = 0xd800, SURROGATE_LAST = 0xdfff };

/* ---- sets ---- */

void ranges_add(struct ranges *r, uint32_t lo, uint32_t hi)
{
    mem_grow(&r->v, &r->cap, r->n + 1, sizeof *r->v);
    r->v[r->n++] = (struct grange){lo, hi};
}

void ranges_add_all(struct ranges *r, const struct ranges *from)
{
    for (size_t i = 0; i < from->n; i++) ranges_add(r, from->v[i].lo, from->v[i].hi);
}

void ranges_free(struct ranges *r)
{
    free(r->v);
    *r = (struct ranges){0};
}

static int by_lo(const void *a, const void *b)
{
    const struct grange *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void keep(struct grange *v, size_t *n, uint32_t lo, uint32_t hi)
{
    if (hi > UNICODE_MAX) hi = UNICODE_MAX;
    if (lo > hi) return;
    if (*n && v[*n - 1].hi + 1 >= lo) {
        if (hi > v[*n - 1].hi) v[*n - 1].hi = hi;
        return;
    }
    v[(*n)++] = (struct grange){lo, hi};
}

void ranges_normalize(struct ranges *r)
{
    if (!r->n) return;
    size_t n = 0;
    qsort(r->v, r->n, sizeof *r->v, by_lo);
    struct grange *out = mem_array(2 * r->n, sizeof *out); /* a range may be split in two */
    for (size_t i = 0; i < r->n; i++) {
        uint32_t lo = r->v[i].lo, hi = r->v[i].hi;
        keep(out, &n, lo, hi < SURROGATE_FIRST ? hi : SURROGATE_FIRST - 1);
        keep(out, &n, lo > SURROGATE_LAST ? lo : SURROGATE_LAST + 1, hi);
    }
    free(r->v);
    r->v = out;
    r->cap = 2 * r->n;
    r->n = n;
}

void ranges_complement(struct ranges *r)
{
    struct ranges out = {0};
    uint32_t from = 0;
    for (size_t i = 0; i < r->n; i++) {
        if (r->v[i].lo > from) ranges_add(&out, from, r->v[i].lo - 1);
        from = r->v[i].hi + 1;
    }
    if (from <= UNICODE_MAX) ranges_add(&out, from, UNICODE_MAX);
    ranges_normalize(&out);
    ranges_free(r);
    *r = out;
}

/* ---- tables from Unicode, computed once ---- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ranges digits, words;
static struct lowered {
    uint32_t c, lower;
} * lowered; /* every character that differs from its lower case, ascending */
static size_t n_lowered;
/* the few lower-case letters whose upper case has another lower case: s and long s, mu and micro sign... */
static struct cased {
    uint32_t c, other;
} * cased;
static size_t n_cased;
static struct ranges with_case;        /* characters with another case, and those other cases */
static struct ranges ascii_cases[128]; /* the characters equal to a letter when case is ignored */

/* str.isalnum: letters and everything numeric. */
static bool is_word(utf8proc_category_t k)
{
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static bool ranges_have(const struct ranges *r, uint32_t c)
{
    size_t lo = 0, hi = r->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (c > r->v[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < r->n && c >= r->v[lo].lo;
}

/* Adds to a set every Unicode character that equals a member when case is ignored. */
static void add_cases(struct ranges *r)
{
    struct ranges lower = {0};
    ranges_add_all(&lower, r);
    for (size_t i = 0; i < n_lowered; i++)
        if (ranges_have(r, lowered[i].c)) ranges_add(&lower, lowered[i].lower, lowered[i].lower);
    ranges_normalize(&lower);
    struct ranges same = {0};
    for (size_t i = 0; i < n_cased; i++) {
        if (ranges_have(&lower, cased[i].other)) ranges_add(&same, cased[i].c, cased[i].c);
        if (ranges_have(&lower, cased[i].c)) ranges_add(&same, cased[i].other, cased[i].other);
    }
    ranges_add_all(&lower, &same);
    ranges_free(&same);
    ranges_normalize(&lower);
    for (size_t i = 0; i < n_lowered; i++)
        if (ranges_have(&lower, lowered[i].lower)) ranges_add(&same, lowered[i].c, lowered[i].c);
    ranges_add_all(r, &lower);
    ranges_add_all(r, &same);
    ranges_normalize(r);
    ranges_free(&lower);
    ranges_free(&same);
}

static void unicode_read(void)
{
    size_t cap = 0;
    for (int32_t c = 0; c <= UNICODE_MAX; c++) {
        utf8proc_category_t k = utf8proc_category(c);
        if (k == UTF8PROC_CATEGORY_CN) continue;
        if (k == UTF8PROC_CATEGORY_ND) ranges_add(&digits, (uint32_t)c, (uint32_t)c);
        if (is_word(k) || c == '_') ranges_add(&words, (uint32_t)c, (uint32_t)c);
        int32_t lower = utf8proc_tolower(c);
        if (lower == c) continue;
        mem_grow(&lowered, &cap, n_lowered + 1, sizeof *lowered);
        lowered[n_lowered++] = (struct lowered){(uint32_t)c, (uint32_t)lower};
        ranges_add(&with_case, (uint32_t)c, (uint32_t)c);
        ranges_add(&with_case, (uint32_t)lower, (uint32_t)lower);
    }
    ranges_normalize(&digits);
    ranges_normalize(&words);
    cap = 0;
    for (int32_t c = 0x69; c <= 0x1fbe; c++) {
        int32_t upper = utf8proc_toupper(c), other = utf8proc_tolower(upper);
        if (upper == c || other == c || utf8proc_tolower(c) != c) continue;
        mem_grow(&cased, &cap, n_cased + 1, sizeof *cased);
        cased[n_cased++] = (struct cased){(uint32_t)c, (uint32_t)other};
        ranges_add(&with_case, (uint32_t)c, (uint32_t)c);
        ranges_add(&with_case, (uint32_t)other, (uint32_t)other);
    }
    ranges_normalize(&with_case);
    for (uint32_t c = 'A'; c <= 'z'; c++) {
        if (c > 'Z' && c < 'a') continue;
        ranges_add(&ascii_cases[c], c, c);
        add_cases(&ascii_cases[c]);
    }
}

void ranges_add_escape(struct ranges *out, char which, bool ascii)
{
    static const struct grange ascii_word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    static const struct grange space[] = {{9, 13},          {' ', ' '},       {28, 31},         {0x85, 0x85},
                                          {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                          {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    pthread_once(&once, unicode_read);
    if (which == 's')
        for (size_t i = 0; i < (ascii ? 2 : sizeof space / sizeof *space); i++)
            ranges_add(out, space[i].lo, space[i].hi);
    else if (!ascii)
        ranges_add_all(out, which == 'd' ? &digits : &words);
    else
        for (size_t i = 0; i < (which == 'd' ? 1 : 4); i++) ranges_add(out, ascii_word[i].lo, ascii_word[i].hi);
}

/* re compares lower cases, and treats lower-case letters with the same upper case as equal (CPython's _casefix.py). */
void ranges_add_cases(struct ranges *r, bool ascii)
{
    pthread_once(&once, unicode_read);
    ranges_normalize(r);
    if (ascii) {
        struct ranges out = {0};
        for (uint32_t c = 'A'; c <= 'Z'; c++) {
            if (ranges_have(r, c)) ranges_add(&out, c + 32, c + 32);
            if (ranges_have(r, c + 32)) ranges_add(&out, c, c);
        }
        ranges_add_all(r, &out);
        ranges_free(&out);
        ranges_normalize(r);
        return;
    }
    bool single = r->n == 1 && r->v[0].hi == r->v[0].lo;
    if (single && !ranges_have(&with_case, r->v[0].lo)) return;
    if (single && r->v[0].lo < 128) {
        ranges_add_all(r, &ascii_cases[r->v[0].lo]);
        ranges_normalize(r);
        return;
    }
    add_cases(r);
}

/* ---- machines ---- */

void class_table_free(struct class_table *t)
{
    free(t->edges);
    free(t->nodes);
    free(t->slots);
    *t = (struct class_table){0};
}

static uint64_t edges_hash(const struct class_edge *e, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) h = rng_mix(h ^ ((uint64_t)e[i].to << 16 | (uint64_t)e[i].lo << 8 | e[i].hi));
    return h;
}

static bool edges_equal(const struct class_edge *a, const struct class_edge *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i].lo != b[i].lo || a[i].hi != b[i].hi || a[i].to != b[i].to) return false;
    return true;
}

static void grow_slots(struct class_table *t)
{
    if (t->slots && 2 * t->n_nodes <= t->mask) return;
    t->mask = t->slots ? 2 * t->mask + 1 : 255;
    free(t->slots);
    t->slots = mem_array(t->mask + 1, sizeof *t->slots);
    for (uint32_t i = 1; i < t->n_nodes; i++) {
        size_t at = edges_hash(t->edges + t->nodes[i].first, t->nodes[i].n) & t->mask;
        while (t->slots[at]) at = (at + 1) & t->mask;
        t->slots[at] = i;
    }
}

static uint32_t intern(struct class_table *t, const struct class_edge *e, uint32_t n)
{
    if (!n) return CLASS_NOTHING;
    if (!t->n_nodes) {
        mem_grow(&t->nodes, &t->cap_nodes, 1, sizeof *t->nodes);
        t->nodes[t->n_nodes++] = (struct class_node){0, 0};
    }
    grow_slots(t);
    size_t at = edges_hash(e, n) & t->mask;
    for (; t->slots[at]; at = (at + 1) & t->mask) {
        const struct class_node *node = t->nodes + t->slots[at];
        if (node->n == n && edges_equal(t->edges + node->first, e, n)) return t->slots[at];
    }
    mem_grow(&t->edges, &t->cap_edges, t->n_edges + n, sizeof *t->edges);
    memcpy(t->edges + t->n_edges, e, n * sizeof *e);
    mem_grow(&t->nodes, &t->cap_nodes, t->n_nodes + 1, sizeof *t->nodes);
    t->nodes[t->n_nodes] = (struct class_node){(uint32_t)t->n_edges, n};
    t->n_edges += n;
    t->slots[at] = (uint32_t)t->n_nodes;
    return (uint32_t)t->n_nodes++;
}

static uint32_t put_edge(struct class_edge *e, uint32_t n, uint8_t byte, uint32_t to)
{
    if (to == CLASS_NOTHING) return n;
    if (n && e[n - 1].to == to && e[n - 1].hi + 1 == byte) {
        e[n - 1].hi = byte;
        return n;
    }
    e[n] = (struct class_edge){byte, byte, to};
    return n + 1;
}

/* any k continuation bytes */
static uint32_t whole(struct class_table *t, int k)
{
    if (k == 0) return CLASS_END;
    if (!t->whole[k]) {
        struct class_edge e = {0x80, 0xbf, whole(t, k - 1)};
        t->whole[k] = intern(t, &e, 1);
    }
    return t->whole[k];
}

/* The node that reads k continuation bytes, of the characters of the set in [base, base + 64^k). */
static uint32_t tail(struct class_table *t, const struct grange *r, size_t n, uint32_t base, int k)
{
    uint32_t last = base + ((uint32_t)1 << 6 * k) - 1;
    while (n && r->hi < base) r++, n--;
    while (n && r[n - 1].lo > last) n--;
    if (!n) return CLASS_NOTHING;
    if (r->lo <= base && r->hi >= last) return whole(t, k);
    CHECK(k > 0); /* 0 would mean a complete character */
    struct class_edge e[64];
    uint32_t m = 0, span = (uint32_t)1 << 6 * (k - 1);
    for (uint32_t v = 0; v < 64; v++) m = put_edge(e, m, (uint8_t)(0x80 + v), tail(t, r, n, base + v * span, k - 1));
    return intern(t, e, m);
}

uint32_t class_node_of(struct class_table *t, const struct grange *r, size_t n)
{
    static const struct {
        uint32_t lead, first_lead, last_lead, lo, hi; /* code points that take k + 1 bytes */
    } length[4] = {{0, 0, 0x7f, 0, 0x7f},
                   {0xc0, 0xc2, 0xdf, 0x80, 0x7ff},
                   {0xe0, 0xe0, 0xef, 0x800, 0xffff},
                   {0xf0, 0xf0, 0xf4, 0x10000, UNICODE_MAX}};
    struct class_edge e[256];
    uint32_t m = 0;
    struct ranges part = {0};
    for (int k = 0; k < 4; k++) {
        part.n = 0;
        for (size_t i = 0; i < n; i++) {
            uint32_t lo = r[i].lo > length[k].lo ? r[i].lo : length[k].lo;
            uint32_t hi = r[i].hi < length[k].hi ? r[i].hi : length[k].hi;
            if (lo <= hi) ranges_add(&part, lo, hi);
        }
        for (uint32_t b = length[k].first_lead; part.n && b <= length[k].last_lead; b++)
            m = put_edge(e, m, (uint8_t)b, tail(t, part.v, part.n, (b - length[k].lead) << 6 * k, k));
    }
    ranges_free(&part);
    return intern(t, e, m);
}

uint32_t class_next(const struct class_table *t, uint32_t node, uint8_t byte)
{
    const struct class_edge *e = t->edges + t->nodes[node].first;
    uint32_t lo = 0, hi = t->nodes[node].n;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (byte > e[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < t->nodes[node].n && byte >= e[lo].lo ? e[lo].to : CLASS_NOTHING;
}
