/* add_norm with a norm of what it adds: against ref, and the bits of norm in place, then add_norm. */
#include "tests/ops/train_run.h"

#include <stdio.h>
#include <stdlib.h>

/* in: w, b, post_w, post_b (C), x, y (T, C); out: x, y and the norm after (T, C) */
static void run(struct dev *d, const struct shape *s, bool fused, bool bias, const float *in, float *out)
{
    struct bed b = {d, s->pad};
    size_t C = (size_t)s->C;
    float *w = bed_put(&b, in, 4 * C * sizeof *w);
    const float *post_w = w + 2 * C, *post_b = bias ? w + 3 * C : NULL;
    struct add_norm_args a = {.out = bed_mat(&b, NULL, s->T, s->C),
                              .x = bed_mat(&b, in + 4 * C, s->T, s->C),
                              .y = bed_mat(&b, in + 4 * C + size_TC(s), s->T, s->C),
                              .w = w,
                              .b = bias ? w + C : NULL,
                              .eps = 1e-5f,
                              .kind = (enum norm_kind)s->kind};
    if (fused)
        a.post_w = post_w, a.post_b = post_b;
    else
        op_norm(d, (struct norm_args){a.y, a.y, post_w, post_b, a.eps, a.kind});
    op_add_norm(d, a);
    bed_take(&b, &a.out, bed_take(&b, &a.y, bed_take(&b, &a.x, out)));
    bed_end(&b, "add_norm after norm");
}

static void post_norm(struct dev *dev, struct dev *ref, const struct shape *s, bool bias)
{
    if (case_left_out()) return;
    char label[LABEL];
    size_t n = size_TC(s), before = 4 * (size_t)s->C;
    float *in = random_floats(before + 2 * n, 3), *got = malloc(9 * n * sizeof *got);
    if (!got) abort();
    float *two = got + 3 * n, *want = two + 3 * n;
    run(dev, s, true, bias, in, got);
    run(dev, s, false, bias, in, two);
    run(ref, s, true, bias, in, want);
    snprintf(label, sizeof label, "add_norm after norm T=%d C=%d kind %d bias %d pad %d", s->T, s->C, s->kind, bias,
             s->pad);
    struct tolerance tol = {3e-5, 1e-5, 1e-10};
    compare(label, got, want, n, tol);
    compare(label, got + 2 * n, want + 2 * n, n, tol);
    compare_bits(label, got, two, n);
    compare_bits(label, got + 2 * n, two + 2 * n, n);
    compare_bits(label, got + n, in + before + n, n); /* y stays */
    free(in), free(got);
}

void post_norms(struct dev *dev, struct dev *ref)
{
    static const int rows[] = {1, 2, 7, 33}, cols[] = {1, 4, 16, 67, 1028, 8196};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t k = 0; k < sizeof cols / sizeof *cols; k++)
            for (int j = 0; j < 4; j++) {
                struct shape s = {.T = rows[i], .C = cols[k], .kind = j & 1 ? NORM_LAYER : NORM_RMS};
                s.pad = i % 2 ? 4 : 3;
                post_norm(dev, ref, &s, j & 2);
            }
}
