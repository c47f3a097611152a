/* See gradient.h. */
#include "tests/ops/gradient.h"

#include <math.h>

void gradient_check(struct gradient_check g)
{
    double most = 0;
    int samples = g.n < (size_t)g.most ? (int)g.n : g.most;
    for (size_t i = 0; i < g.n; i++) most = fmax(most, fabs((double)g.dx[i]));
    CHECK(most > 0 && g.n > 0, "%s: the gradient is zero everywhere, which shows nothing", g.label);
    for (int s = 0; s < samples; s++) {
        size_t i = (size_t)samples == g.n ? (size_t)s : (size_t)random_below((int)g.n);
        float was = g.x[i], up = was + (float)g.step, down = was - (float)g.step;
        g.x[i] = up;
        double above = g.loss(g.ctx);
        g.x[i] = down;
        double below = g.loss(g.ctx), slope = (above - below) / ((double)up - (double)down);
        g.x[i] = was;
        CHECK(fabs(slope - (double)g.dx[i]) <= g.tolerance * most,
              "%s: by [%zu] %.9g, the slope is %.9g (largest %.3g)", g.label, i, (double)g.dx[i], slope, most);
    }
}

double gradient_loss(const struct mat *y, const float *dy)
{
    double sum = 0;
    for (int r = 0; r < y->rows; r++)
        for (int c = 0; c < y->cols; c++)
            sum += (double)dy[(size_t)r * y->cols + c] * ((const float *)y->p)[(size_t)r * y->ld + c];
    return sum;
}
