/* Implements number.h.  All languages are built from one: the multiples of a step between two bounds, on the grid of
 * numbers with `places` digits after the point, as integers of up to 18 digits, most significant digit first.  A number
 * without a step is the union over several grids. */
#include "server/schema/number.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGITS = 18,         /* of an integer; fits 64 bits */
    USUAL = 15,          /* of an unbounded integer, and of any fraction: the precision of a double */
    PLACES = 6,          /* after the point, unless the bounds need more */
    LISTED = 256,        /* up to this many multiples are enumerated */
    LISTED_MAX = 4096,   /* the same where the step is too large for an automaton */
    REMAINDERS_MAX = 128 /* largest step that becomes an automaton over remainders */
};

static int64_t power(int n)
{
    int64_t v = 1;
    while (n-- > 0) v *= 10;
    return v;
}

/* ---- decimals -------------------------------------------------------------------------------------------------- */

void decimal_read(struct decimal *out, const cJSON *item)
{
    char text[40];
    const char *s = item->valuestring;
    if (!s) { /* at most 15 characters, without an exponent: the double reproduces them */
        snprintf(text, sizeof text, "%.15g", item->valuedouble);
        s = text;
    }
    *out = (struct decimal){.negative = *s == '-'};
    bool behind = false;
    for (s += out->negative; (*s >= '0' && *s <= '9') || *s == '.'; s++) {
        if (*s == '.') {
            behind = true;
        } else if (out->n == 0 && *s == '0') {
            out->point -= behind; /* leading zeros */
        } else if (out->n < (int)sizeof out->d) {
            out->d[out->n++] = *s;
            out->point += !behind;
        }
    }
    if (*s == 'e' || *s == 'E') {
        long exponent = strtol(s + 1, NULL, 10);
        out->point += (int)(exponent > 100000 ? 100000 : exponent < -100000 ? -100000 : exponent);
    }
    while (out->n && out->d[out->n - 1] == '0') out->n--;
    if (out->n == 0) *out = (struct decimal){0};
}

static int compare_magnitudes(const struct decimal *a, const struct decimal *b)
{
    if (!a->n || !b->n) return (a->n > 0) - (b->n > 0);
    if (a->point != b->point) return a->point < b->point ? -1 : 1;
    int n = a->n < b->n ? a->n : b->n, rc = memcmp(a->d, b->d, (size_t)n);
    return rc ? (rc < 0 ? -1 : 1) : (a->n > b->n) - (a->n < b->n);
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int rc = compare_magnitudes(a, b);
    return a->negative ? -rc : rc;
}

/* @return the number of digits after the point. */
static int decimal_places(const struct decimal *v)
{
    return v->n > v->point ? v->n - v->point : 0;
}

/* @return v x 10^places as an integer, rounded towards minus infinity and clamped to +-10^DIGITS; *exact: not
 * rounded. */
static int64_t decimal_scaled(const struct decimal *v, int places, bool *exact)
{
    int64_t m = 0;
    long point = (long)v->point + places;
    *exact = true;
    if (v->n && point > DIGITS) return v->negative ? -power(DIGITS) : power(DIGITS);
    for (int i = 0; i < point && v->n; i++) m = m * 10 + (i < v->n ? v->d[i] - '0' : 0);
    *exact = v->n <= point || !v->n;
    return v->negative ? -m - !*exact : m;
}

/* ---- digits ---------------------------------------------------------------------------------------------------- */

/* A grid of numbers with `places` digits after the point, multiples of step.  The rest of a partial number depends only
 * on the number of digits left and the remainder so far: `rest` caches the rules. */
struct grid {
    struct jpool *p;
    int places;
    int64_t step;
    jx *rest; /* (DIGITS + 1, step); JX_NONE: not built */
};

static jx digit_range(struct jpool *p, int lo, int hi)
{
    if (lo > hi) return JX_NONE;
    if (lo == hi) return jx_bytes(p, &"0123456789"[lo], 1);
    return jx_chars(p, &(struct grange){(uint32_t)('0' + lo), (uint32_t)('0' + hi)}, 1);
}

/* The remaining `left` digits with any values; the point is where `places` are left. */
static jx free_digits(const struct grid *g, int left)
{
    jx nine = digit_range(g->p, 0, 9);
    int before = left > g->places ? left - g->places : 0, behind = left - before;
    jx whole = jx_repeat(g->p, nine, (uint32_t)before, (uint32_t)before);
    jx part = jx_repeat(g->p, nine, (uint32_t)behind, (uint32_t)behind);
    jx point = g->places && left >= g->places ? jx_text(g->p, ".") : JX_EMPTY;
    return jx_seq3(g->p, whole, point, part);
}

/* The point, if its position is before the last `left` digits. */
static jx point_at(const struct grid *g, int left)
{
    return g->places && left == g->places ? jx_text(g->p, ".") : JX_EMPTY;
}

/* As free_digits, so that the whole number is a multiple of the step; `r`: the remainder of the digits so far. */
static jx stepped_digits(struct grid *g, int left, int64_t r)
{
    jx v[10];
    if (g->step == 1) return free_digits(g, left);
    jx *slot = &g->rest[left * g->step + r];
    if (*slot != JX_NONE || jpool_failed(g->p)) return *slot;
    if (left == 0) return r == 0 ? JX_EMPTY : JX_NONE;
    *slot = jx_rule(g->p);
    jx rule = *slot;
    for (int d = 0; d < 10; d++)
        v[d] = jx_seq2(g->p, digit_range(g->p, d, d), stepped_digits(g, left - 1, (r * 10 + d) % g->step));
    jx_define(g->p, rule, jx_seq2(g->p, point_at(g, left), jx_alt(g->p, v, 10)));
    return rule;
}

/* Numbers of `left` more digits between those of lo and hi; at_lo, at_hi: the digits so far equal those of lo, of
 * hi. */
static jx between(struct grid *g, int64_t lo, int64_t hi, int left, bool at_lo, bool at_hi, int64_t r)
{
    int64_t unit = power(left);
    /* a bound at the end of its range no longer restricts */
    if (at_lo && lo % unit == 0) at_lo = false;
    if (at_hi && hi % unit == unit - 1) at_hi = false;
    if (left == 0) return r == 0 ? JX_EMPTY : JX_NONE;
    if (!at_lo && !at_hi) return stepped_digits(g, left, r);
    int64_t next = unit / 10;
    int low = at_lo ? (int)(lo / next % 10) : 0, high = at_hi ? (int)(hi / next % 10) : 9;
    jx v[10];
    size_t n = 0;
    for (int d = low; d <= high;) {
        bool edge_lo = at_lo && d == low, edge_hi = at_hi && d == high;
        int last = d;
        if (g->step == 1 && !edge_lo && !edge_hi) last = at_hi ? high - 1 : high; /* one class for equivalent digits */
        jx rest = between(g, lo, hi, left - 1, edge_lo, edge_hi, (r * 10 + d) % g->step);
        v[n++] = jx_seq2(g->p, digit_range(g->p, d, last), rest);
        d = last + 1;
    }
    return jx_seq2(g->p, point_at(g, left), jx_alt(g->p, v, n));
}

/* The multiples between 0 <= lo <= hi < 10^DIGITS, length by length; the whole part has no leading zero. */
static jx magnitudes(struct grid *g, int64_t lo, int64_t hi)
{
    jx v[DIGITS + 1];
    size_t n = 0;
    int from = 0; /* lengths [from, length) are unrestricted and not yet emitted */
    for (int length = g->places + 1; length <= DIGITS; length++) {
        int64_t least = length == g->places + 1 ? 0 : power(length - 1), most = power(length) - 1;
        int64_t a = lo > least ? lo : least, b = hi < most ? hi : most;
        bool whole = g->step == 1 && least > 0 && a == least && b == most;
        if (whole && !from) from = length;
        if (from && !(whole && length < DIGITS)) {
            int top = whole ? length : length - 1;
            jx rest = jx_repeat(g->p, digit_range(g->p, 0, 9), (uint32_t)(from - g->places - 1),
                                (uint32_t)(top - g->places - 1));
            v[n++] = jx_seq3(g->p, digit_range(g->p, 1, 9), rest, free_digits(g, g->places));
            from = 0;
        }
        if (whole || a > b) continue;
        /* `least` ensures that the first digit is not 0 */
        v[n++] = between(g, a, b, length, true, true, 0);
    }
    return jx_alt(g->p, v, n);
}

/* ---- grids ----------------------------------------------------------------------------------------------------- */

static jx listed(struct jpool *p, int64_t lo, int64_t hi, int64_t step, int places)
{
    size_t n = 0, cap = (size_t)(hi / step - lo / step + 1);
    jx *v = mem_array(cap, sizeof *v);
    for (int64_t k = lo / step; k <= hi / step; k++) {
        int64_t m = k * step, size = m < 0 ? -m : m, unit = power(places);
        struct buf text = {0};
        buf_printf(&text, "%s%lld", m < 0 ? "-" : "", (long long)(size / unit));
        if (places) buf_printf(&text, ".%0*lld", places, (long long)(size % unit));
        if (n < cap) v[n++] = jx_bytes(p, text.data, text.len);
        buf_free(&text);
    }
    jx out = jx_alt(p, v, n);
    free(v);
    return out;
}

/* The largest multiple of step <= v, and the smallest >= v. */
static int64_t floor_to(int64_t v, int64_t step)
{
    int64_t rest = v % step;
    return v - (rest < 0 ? rest + step : rest);
}

static int64_t ceil_to(int64_t v, int64_t step)
{
    int64_t rest = v % step;
    return rest == 0 ? v : v - rest + (rest > 0 ? step : 0);
}

static jx on_both_sides(struct grid *g, int64_t lo, int64_t hi)
{
    jx minus = JX_NONE, plus = JX_NONE;
    if (lo < 0) minus = magnitudes(g, hi < 0 ? -hi : g->step, -lo);
    if (hi >= 0) plus = magnitudes(g, lo > 0 ? lo : 0, hi);
    return jx_alt2(g->p, jx_seq2(g->p, jx_text(g->p, "-"), minus), plus);
}

/* Multiples of step (>= 1) in [lo, hi], |.| < 10^DIGITS, all of them over 10^places. */
static jx grid_numbers(struct jpool *p, int64_t lo, int64_t hi, int64_t step, int places, struct err *e)
{
    lo = ceil_to(lo, step);
    hi = floor_to(hi, step);
    if (lo > hi) return JX_NONE;
    int64_t count = hi / step - lo / step + 1;
    if (step > 1 && count <= LISTED) return listed(p, lo, hi, step, places);
    if (step > 1 && step % 10 == 0 && places == 0) { /* 500 is 5 and two zeros */
        /* 0 itself is a single zero */
        jx minus = lo < 0 ? grid_numbers(p, lo / 10, hi / 10 < 0 ? hi / 10 : -1, step / 10, 0, e) : JX_NONE;
        jx plus = hi > 0 ? grid_numbers(p, lo / 10 > 0 ? lo / 10 : 1, hi / 10, step / 10, 0, e) : JX_NONE;
        jx zero = lo <= 0 && hi >= 0 ? jx_text(p, "0") : JX_NONE;
        return jx_alt2(p, jx_seq2(p, jx_alt2(p, minus, plus), jx_text(p, "0")), zero);
    }
    if (step > REMAINDERS_MAX && count <= LISTED_MAX) return listed(p, lo, hi, step, places);
    if (step > REMAINDERS_MAX) {
        err_set(e, ERR_INVALID, "`multipleOf` %lld is supported within bounds that leave at most %d values only",
                (long long)step, LISTED_MAX);
        return JX_NONE;
    }
    struct grid g = {.p = p, .places = places, .step = step};
    g.rest = step > 1 ? mem_array((size_t)(DIGITS + 1) * (size_t)step, sizeof *g.rest) : NULL;
    jx out = on_both_sides(&g, lo, hi);
    free(g.rest);
    return out;
}

/* Computes the limits on a grid.  Without a bound on one side: `digits` digits, or the most supported where the other
 * bound has more. */
static void bounds_at(const struct number_limits *l, int places, int digits, int64_t *lo, int64_t *hi)
{
    bool exact;
    int64_t most = power(digits) - 1;
    *lo = -most;
    *hi = most;
    if (l->has_min) {
        *lo = decimal_scaled(&l->min, places, &exact);
        *lo += !exact || l->min_excluded;
    }
    if (l->has_max) {
        *hi = decimal_scaled(&l->max, places, &exact);
        *hi -= exact && l->max_excluded;
    }
    int64_t limit = power(l->whole ? DIGITS : USUAL) - 1;
    if (!l->has_max && *lo > most) *hi = limit;
    if (!l->has_min && *hi < -most) *lo = -limit;
    if (*lo < -limit) *lo = -limit;
    if (*hi > limit) *hi = limit;
}

/* -?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})? */
static jx any_number(struct jpool *p)
{
    jx digit = digit_range(p, 0, 9);
    jx whole = jx_alt2(p, jx_text(p, "0"), jx_seq2(p, digit_range(p, 1, 9), jx_repeat(p, digit, 0, USUAL - 1)));
    jx part = jx_optional(p, jx_seq2(p, jx_text(p, "."), jx_repeat(p, digit, 1, USUAL)));
    jx sign = jx_optional(p, jx_alt2(p, jx_text(p, "+"), jx_text(p, "-")));
    jx e = jx_alt2(p, jx_text(p, "e"), jx_text(p, "E"));
    jx exponent = jx_optional(p, jx_seq3(p, e, sign, jx_repeat(p, digit, 1, 2)));
    return jx_seq(p, (jx[]){jx_optional(p, jx_text(p, "-")), whole, part, exponent}, 4);
}

/* One grid for each number of places. */
static jx bounded_numbers(struct jpool *p, const struct number_limits *l, struct err *e)
{
    int places = PLACES;
    if (l->has_min && decimal_places(&l->min) + 2 > places) places = decimal_places(&l->min) + 2;
    if (l->has_max && decimal_places(&l->max) + 2 > places) places = decimal_places(&l->max) + 2;
    if (places > USUAL - 1) places = USUAL - 1;
    jx v[USUAL];
    for (int i = 0; i <= places; i++) {
        int64_t lo, hi;
        bounds_at(l, i, USUAL, &lo, &hi);
        v[i] = grid_numbers(p, lo, hi, 1, i, e);
    }
    return jx_alt(p, v, (size_t)places + 1);
}

/* A step with digits after the point: on the grid with as many places. */
static jx stepped_numbers(struct jpool *p, const struct number_limits *l, struct err *e)
{
    int places = l->whole ? 0 : decimal_places(&l->step);
    bool exact;
    int64_t lo, hi, step = 0;
    if (places < USUAL) step = decimal_scaled(&l->step, places, &exact);
    if (l->step.negative || !l->step.n) {
        err_set(e, ERR_INVALID, "`multipleOf` must be greater than 0");
        return JX_NONE;
    }
    if (step < 1 || !exact || step >= power(USUAL)) {
        err_set(e, ERR_INVALID, "this `multipleOf` is not supported");
        return JX_NONE;
    }
    bounds_at(l, places, USUAL, &lo, &hi);
    return grid_numbers(p, lo, hi, step, places, e);
}

jx json_numbers(struct jpool *p, const struct number_limits *l, struct err *e)
{
    int64_t lo, hi;
    if (l->has_step) return stepped_numbers(p, l, e);
    if (!l->whole && !l->has_min && !l->has_max) return any_number(p);
    if (!l->whole) return bounded_numbers(p, l, e);
    bounds_at(l, 0, USUAL, &lo, &hi);
    return grid_numbers(p, lo, hi, 1, 0, e);
}
