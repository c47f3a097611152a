/* See twin.h. */
#include "tests/ops/twin.h"

#include <math.h>
#include <stdlib.h>

struct twin twin_make(struct dev *dev, struct dev *ref, int rows, int cols, int gap)
{
    size_t n = (size_t)rows * (size_t)(cols + gap);
    struct twin t = {.n = n, .host = random_floats(n, 1)};
    t.dev = (struct mat){put(dev, t.host, n * 4), DT_F32, rows, cols, cols + gap};
    t.ref = (struct mat){put(ref, t.host, n * 4), DT_F32, rows, cols, cols + gap};
    return t;
}

void twin_free(struct dev *dev, struct dev *ref, struct twin *t)
{
    dev->ops->free(dev, t->dev.p);
    ref->ops->free(ref, t->ref.p);
    free(t->host);
}

void twin_compare(const char *label, struct dev *dev, struct dev *ref, const struct twin *t, double bf16)
{
    float *got = get(dev, t->dev.p, t->n), *want = get(ref, t->ref.p, t->n);
    for (int r = 0; r < t->dev.rows; r++) {
        float *g = got + (size_t)r * (size_t)t->dev.ld, *w = want + (size_t)r * (size_t)t->dev.ld;
        double most = 1e-30;
        for (int c = 0; c < t->dev.cols; c++) most = fmax(most, fabs((double)w[c]));
        struct tolerance exact = {most * 1e-5, 1e-5, 1e-9}, rounded = {bf16, 0.01, 1e30};
        compare(label, g, w, (size_t)t->dev.cols, bf16 > 0 ? rounded : exact);
        compare_bits(label, g + t->dev.cols, t->host + (size_t)r * (size_t)t->dev.ld + t->dev.cols,
                     (size_t)(t->dev.ld - t->dev.cols));
    }
    check_device(label, dev);
    check_device(label, ref);
    free(got);
    free(want);
}
