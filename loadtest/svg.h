/* Plots as inline SVG: axes with round ticks, linear or logarithmic, lines, steps or dots.  Pure. */
#ifndef TANDEM_LOADTEST_SVG_H
#define TANDEM_LOADTEST_SVG_H

#include "engine/base/buf.h"

#include <stdbool.h>

enum svg_style { SVG_LINE, SVG_STEPS, SVG_DOTS, SVG_MARKED /* a line with dots */ };

struct svg_series {
    const char *name;
    const double *x, *y; /* n; points that are not finite, or not positive on a logarithmic axis, are left out */
    size_t n;
    enum svg_style style;
    const char *const *labels; /* n texts beside the points; NULL: none */
};

struct svg_plot {
    const char *title, *x, *y;    /* what the axes show, with units */
    bool log_x, log_y, from_zero; /* from_zero: a linear y axis begins at 0 */
    const struct svg_series *series;
    int n;
};

void svg_put(struct buf *out, const struct svg_plot *);
void html_put_text(struct buf *out, const char *); /* escaped */

#endif
