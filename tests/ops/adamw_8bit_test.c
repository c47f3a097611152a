/* Op adamw_8bit: one step from random states, in double beside it; each code is that of the nearest entry of its map,
 * and no level, number of threads or alignment changes a bit. */
#include "kernels/dynamic8.h"
#include "tests/ops/harness.h"
#include "tests/ops/train_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = DYNAMIC8_BLOCK, END = 0xa5, SPARE = 8 };

/* The states on the host: codes with some bytes more, which no op may touch. */
struct states {
    size_t n, blocks;
    float *p, *g, *m_scale, *v_scale;
    uint8_t *m, *v;
};

static void *filled(size_t n)
{
    void *p = malloc(n ? n : 1);
    if (!p) abort();
    return memset(p, END, n);
}

static struct states states_open(size_t n)
{
    size_t blocks = (n + BLOCK - 1) / BLOCK;
    return (struct states){n,
                           blocks,
                           filled(n * 4),
                           filled(n * 4),
                           filled(blocks * 4),
                           filled(blocks * 4),
                           filled(n + SPARE),
                           filled(n + SPARE)};
}

static void states_close(struct states *s)
{
    free(s->p), free(s->g), free(s->m_scale), free(s->v_scale), free(s->m), free(s->v);
}

/* Every kind of block: from nothing, tiny, ordinary, large; one without a gradient. */
static struct states states_random(size_t n)
{
    static const float sizes[] = {1e-2f, 0, 1e-12f, 30, 1e-4f, 1e-2f, 3e-5f};
    struct states s = states_open(n);
    for (size_t b = 0; b < s.blocks; b++) {
        s.m_scale[b] = sizes[b % 7];
        s.v_scale[b] = sizes[b % 7] * sizes[b % 7];
    }
    for (size_t i = 0; i < n; i++) {
        float size = sizes[i / BLOCK % 7];
        s.p[i] = random_float();
        s.g[i] = i / BLOCK % 7 == 5 ? 0 : i % 11 == 3 ? 0 : random_float() * (size > 0 ? size : 1);
        s.m[i] = (uint8_t)random_below(256);
        s.v[i] = (uint8_t)random_below(256);
    }
    return s;
}

static struct adamw_8bit_args step_args(int t)
{
    return (struct adamw_8bit_args){.lr = 1e-2 / t,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .eps = 1e-8,
                                    .decay = 0.1,
                                    .bias1 = 1 - pow(0.9, t),
                                    .bias2 = 1 - pow(0.999, t),
                                    .grad_scale = 0.5};
}

/* Step t by the op, the arrays `shift` floats and bytes off their alignment. */
static void run_step(struct dev *d, struct states *s, int t, size_t shift)
{
    struct bed b = {d, 0};
    struct adamw_8bit_args a = step_args(t);
    size_t n = s->n;
    a.n = n;
    a.p = (float *)bed_put(&b, NULL, (n + shift) * 4) + shift;
    a.m = (uint8_t *)bed_put(&b, NULL, n + SPARE + shift) + shift;
    a.v = (uint8_t *)bed_put(&b, NULL, n + SPARE + shift) + shift;
    a.g = bed_put(&b, s->g, n * 4);
    a.m_scale = bed_put(&b, s->m_scale, s->blocks * 4);
    a.v_scale = bed_put(&b, s->v_scale, s->blocks * 4);
    d->ops->upload(d, a.p, s->p, n * 4);
    d->ops->upload(d, a.m, s->m, n + SPARE);
    d->ops->upload(d, a.v, s->v, n + SPARE);
    op_adamw_8bit(d, a);
    d->ops->finish(d);
    d->ops->download(d, s->p, a.p, n * 4);
    d->ops->download(d, s->m, a.m, n + SPARE);
    d->ops->download(d, s->v, a.v, n + SPARE);
    d->ops->download(d, s->m_scale, a.m_scale, s->blocks * 4);
    d->ops->download(d, s->v_scale, a.v_scale, s->blocks * 4);
    bed_end(&b, "adamw_8bit");
    for (size_t i = n; i < n + SPARE; i++)
        CHECK(s->m[i] == END && s->v[i] == END, "adamw_8bit of %zu wrote past the end", n);
}

/* Whether x, known to within `slack`, is nearest to entry i. */
static bool is_nearest(const float *entry, int entries, int i, double x, double slack)
{
    double low = i ? dynamic8_between(entry[i - 1], entry[i]) : 0;
    double high = i + 1 < entries ? dynamic8_between(entry[i], entry[i + 1]) : 1;
    return x >= low - slack && x <= high + slack;
}

/* The maps and, of a block, the moments wanted. */
struct wanted {
    float with_signs[DYNAMIC8_UNSIGNED], without[DYNAMIC8_UNSIGNED];
    double m[BLOCK], v[BLOCK], most_m, most_v, terms; /* terms: the largest of which an m is the sum */
};

static void check_codes(const struct states *s, size_t b, const struct wanted *w, int n)
{
    double m_scale = s->m_scale[b], v_scale = s->v_scale[b];
    CHECK(fabs(m_scale - w->most_m) <= 2e-6 * w->terms, "block %zu: m_scale %g, wanted %g", b, m_scale, w->most_m);
    CHECK(fabs(v_scale - w->most_v) <= 2e-6 * w->most_v, "block %zu: v_scale %g, wanted %g", b, v_scale, w->most_v);
    for (int i = 0; i < n; i++) {
        int m = s->m[b * BLOCK + (size_t)i] - DYNAMIC8_ZERO, v = s->v[b * BLOCK + (size_t)i];
        double x = m_scale > 0 ? w->m[i] / m_scale : 0, y = v_scale > 0 ? w->v[i] / v_scale : 0;
        double slack = m_scale > 0 ? 2e-6 * w->terms / m_scale + 1e-5 * fabs(x) : 0;
        bool sign = m == 0 || (m < 0) == (x < 0) || fabs(x) <= slack;
        int entries = m < 0 ? DYNAMIC8_SIGNED - 1 : DYNAMIC8_SIGNED; /* there is no -1 */
        CHECK(sign && is_nearest(w->with_signs, entries, abs(m), fabs(x), slack), "%zu of block %zu: m %g has entry %d",
              (size_t)i, b, x, m);
        bool first = v == 1 && y > 0 && y < w->without[1]; /* what is above 0 stays above it */
        CHECK(first || (is_nearest(w->without, DYNAMIC8_UNSIGNED, v, y, 1e-5 * y) && (v > 0 || y < 1e-37)),
              "%zu of block %zu: v %g has entry %d", (size_t)i, b, y, v);
    }
}

/* One step of the op, and the same in double. */
static void check_step(struct dev *d, struct states *s, int t, size_t shift, struct wanted *w)
{
    char label[80];
    struct states was = states_open(s->n);
    struct adamw_8bit_args a = step_args(t);
    float *want = filled(s->n * 4);
    memcpy(was.m, s->m, s->n), memcpy(was.v, s->v, s->n), memcpy(was.p, s->p, s->n * 4);
    memcpy(was.m_scale, s->m_scale, s->blocks * 4), memcpy(was.v_scale, s->v_scale, s->blocks * 4);
    run_step(d, s, t, shift);
    for (size_t b = 0; b < s->blocks; b++) {
        int n = s->n - b * BLOCK < BLOCK ? (int)(s->n - b * BLOCK) : BLOCK;
        w->most_m = w->most_v = w->terms = 0;
        for (int i = 0; i < n; i++) {
            size_t at = b * BLOCK + (size_t)i;
            int code = was.m[at] - DYNAMIC8_ZERO;
            double g = s->g[at] * a.grad_scale, m = code < 0 ? -w->with_signs[-code] : w->with_signs[code];
            m *= was.m_scale[b];
            w->m[i] = a.beta1 * m + (1 - a.beta1) * g;
            w->v[i] = a.beta2 * w->without[was.v[at]] * was.v_scale[b] + (1 - a.beta2) * g * g;
            double step = a.lr * w->m[i] / a.bias1 / (sqrt(w->v[i] / a.bias2) + a.eps);
            want[at] = (float)(was.p[at] * (1 - a.lr * a.decay) - step);
            w->most_m = fmax(w->most_m, fabs(w->m[i]));
            w->most_v = fmax(w->most_v, w->v[i]);
            w->terms = fmax(w->terms, fmax(fabs(m), fabs(g)));
        }
        check_codes(s, b, w, n);
    }
    snprintf(label, sizeof label, "adamw_8bit n=%zu, step %d, %zu off", s->n, t, shift);
    compare(label, s->p, want, s->n, (struct tolerance){1e-5, 1e-5, 1e-10});
    states_close(&was);
    free(want);
}

/* Entries ascend from 0 to 1, with signs or without. */
static void check_entries(bool with_signs)
{
    float entry[DYNAMIC8_UNSIGNED];
    int n = dynamic8_entries(with_signs, entry);
    CHECK(n == (with_signs ? DYNAMIC8_SIGNED : DYNAMIC8_UNSIGNED), "%d entries", n);
    CHECK(entry[0] == 0 && entry[n - 1] == 1, "entries from %g to %g", (double)entry[0], (double)entry[n - 1]);
    for (int i = 0; i + 1 < n; i++) CHECK(entry[i] < entry[i + 1], "entry %d is not above the one before", i + 1);
}

void test_adamw_8bit(struct dev *dev, struct dev *ref)
{
    static const size_t counts[] = {1, 15, 255, 256, 257, 1000, 4099, 20003};
    struct wanted w;
    dynamic8_entries(true, w.with_signs);
    dynamic8_entries(false, w.without);
    for (int with_signs = 0; with_signs < 2; with_signs++) check_entries(with_signs);
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++) {
        if (case_left_out()) continue;
        struct states s = states_random(counts[k]);
        for (int t = 1; t <= 3; t++) check_step(dev, &s, t, (size_t)t - 1, &w);
        check_step(ref, &s, 4, 0, &w);
        states_close(&s);
    }
}

void adamw_8bit_bits(struct dev *d, float out[ADAMW_8BIT_FLOATS])
{
    struct states s = states_random(ADAMW_8BIT_N);
    for (int t = 1; t <= 2; t++) run_step(d, &s, t, 0);
    float *at = out;
    memset(out, 0, ADAMW_8BIT_FLOATS * sizeof *out);
    memcpy(at, s.p, s.n * 4), at += s.n;
    memcpy(at, s.m_scale, s.blocks * 4), at += s.blocks;
    memcpy(at, s.v_scale, s.blocks * 4), at += s.blocks;
    memcpy(at, s.m, s.n), memcpy((char *)at + s.n, s.v, s.n);
    states_close(&s);
}
