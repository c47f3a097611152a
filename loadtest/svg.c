#include "loadtest/svg.h"

#include <math.h>
#include <stdio.h>

enum { WIDTH = 640, HEIGHT = 300, LEFT = 64, RIGHT = 16, TOP = 34, BOTTOM = 46 };

static const char *const colors[] = {"#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2"};

enum { COLORS = sizeof colors / sizeof *colors };

struct axis {
    double low, high; /* logarithms (base 10) when log */
    bool log;
    int from, to; /* pixels */
};

void html_put_text(struct buf *out, const char *s)
{
    for (; *s; s++) {
        switch (*s) {
        case '<': buf_str(out, "&lt;"); break;
        case '>': buf_str(out, "&gt;"); break;
        case '&': buf_str(out, "&amp;"); break;
        case '"': buf_str(out, "&quot;"); break;
        default: buf_char(out, (unsigned char)*s < 0x20 && *s != '\n' ? ' ' : *s);
        }
    }
}

static bool shown(double v, bool log)
{
    return isfinite(v) && (!log || v > 0);
}

static double place(const struct axis *a, double v)
{
    double t = a->log ? log10(v) : v;
    return a->from + (t - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* Covers the points' values, with some room. */
static struct axis axis_of(const struct svg_plot *p, bool is_x)
{
    struct axis a = {.low = INFINITY, .high = -INFINITY, .log = is_x ? p->log_x : p->log_y};
    for (int k = 0; k < p->n; k++)
        for (size_t i = 0; i < p->series[k].n; i++) {
            const struct svg_series *s = &p->series[k];
            if (!shown(s->x[i], p->log_x) || !shown(s->y[i], p->log_y)) continue;
            double v = is_x ? s->x[i] : s->y[i];
            if (a.log) v = log10(v);
            a.low = fmin(a.low, v), a.high = fmax(a.high, v);
        }
    if (a.low > a.high) a.low = 0, a.high = 1;
    if (!is_x && p->from_zero && !a.log) a.low = fmin(a.low, 0);
    bool labels = p->n && p->series[0].labels;
    double room = is_x && !labels ? 0 : 0.05 * (a.high - a.low);
    a.high += room;
    if (a.low != 0 || a.log) a.low -= room;
    if (a.high - a.low < 1e-9) a.high = a.low + (a.log ? 0.5 : 1);
    a.from = is_x ? LEFT : HEIGHT - BOTTOM;
    a.to = is_x ? WIDTH - RIGHT : TOP;
    return a;
}

/* 1, 2 or 5 times a power of ten: some five ticks on the axis */
static double step_of(double span)
{
    double power = pow(10, floor(log10(span / 5))), rest = span / 5 / power;
    return power * (rest < 1.5 ? 1 : rest < 3.5 ? 2 : rest < 7.5 ? 5 : 10);
}

static void put_tick(struct buf *out, const struct axis *a, bool is_x, double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", fabs(v) < 1e-12 ? 0 : v);
    double at = place(a, v);
    if (is_x)
        buf_printf(out, "<path class=g d=\"M%.1f %dV%d\"/><text x=\"%.1f\" y=\"%d\" text-anchor=middle>%s</text>", at,
                   TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 16, text);
    else
        buf_printf(out, "<path class=g d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=end>%s</text>", LEFT,
                   at, WIDTH - RIGHT, LEFT - 6, at + 4, text);
}

static void put_axis(struct buf *out, const struct axis *a, bool is_x)
{
    if (!a->log) {
        double step = step_of(a->high - a->low);
        long long first = (long long)ceil(a->low / step - 1e-9), last = (long long)floor(a->high / step + 1e-9);
        for (long long i = first; i <= last; i++) put_tick(out, a, is_x, (double)i * step);
        return;
    }
    bool narrow = a->high - a->low < 2.2; /* then 2 and 5 of each decade as well */
    for (int d = (int)floor(a->low); d <= (int)ceil(a->high); d++)
        for (int k = 0; k < (narrow ? 3 : 1); k++) {
            double v = pow(10, d) * (k == 0 ? 1 : k == 1 ? 2 : 5);
            if (log10(v) >= a->low - 1e-9 && log10(v) <= a->high + 1e-9) put_tick(out, a, is_x, v);
        }
}

static void put_line(struct buf *out, const struct svg_series *s, const struct axis *x, const struct axis *y,
                     const char *color)
{
    bool pen = false;
    double last = 0;
    buf_printf(out, "<path fill=none stroke=\"%s\" stroke-width=1.6 d=\"", color);
    for (size_t i = 0; i < s->n; i++) {
        if (!shown(s->x[i], x->log) || !shown(s->y[i], y->log)) {
            pen = false;
            continue;
        }
        double px = place(x, s->x[i]), py = place(y, s->y[i]);
        if (pen && s->style == SVG_STEPS) buf_printf(out, "L%.1f %.1f", px, last);
        buf_printf(out, "%c%.1f %.1f", pen ? 'L' : 'M', px, py);
        pen = true;
        last = py;
    }
    buf_str(out, "\"/>");
}

static void put_dots(struct buf *out, const struct svg_series *s, const struct axis *x, const struct axis *y,
                     const char *color)
{
    double radius = s->style == SVG_DOTS ? 1.7 : 3.2;
    buf_printf(out, "<g fill=\"%s\" fill-opacity=%s>", color, s->style == SVG_DOTS ? "0.5" : "1");
    for (size_t i = 0; i < s->n; i++) {
        if (!shown(s->x[i], x->log) || !shown(s->y[i], y->log)) continue;
        double px = place(x, s->x[i]), py = place(y, s->y[i]);
        buf_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=%.1f />", px, py, radius);
        if (!s->labels) continue;
        buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\">", px + 6, py - 5);
        html_put_text(out, s->labels[i]);
        buf_str(out, "</text>");
    }
    buf_str(out, "</g>");
}

void svg_put(struct buf *out, const struct svg_plot *p)
{
    struct axis x = axis_of(p, true), y = axis_of(p, false);
    buf_printf(out, "<svg viewBox=\"0 0 %d %d\" role=img><text class=t x=\"%d\" y=16>", WIDTH, HEIGHT, LEFT);
    html_put_text(out, p->title);
    buf_str(out, "</text>");
    put_axis(out, &x, true);
    put_axis(out, &y, false);
    for (int k = 0, at = WIDTH - RIGHT; k < p->n; k++) {
        const struct svg_series *s = &p->series[k];
        if (s->style != SVG_DOTS) put_line(out, s, &x, &y, colors[k % COLORS]);
        if (s->style == SVG_DOTS || s->style == SVG_MARKED) put_dots(out, s, &x, &y, colors[k % COLORS]);
        if (p->n < 2) continue;
        buf_printf(out, "<text x=\"%d\" y=16 text-anchor=end style=\"fill:%s\">", at, colors[k % COLORS]);
        html_put_text(out, s->name);
        buf_str(out, "</text>");
        size_t letters = 0;
        while (s->name[letters]) letters++;
        at -= (int)letters * 7 + 14;
    }
    buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=middle>", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10);
    html_put_text(out, p->x);
    buf_printf(out, "</text><text transform=\"translate(14 %d) rotate(-90)\" text-anchor=middle>",
               (TOP + HEIGHT - BOTTOM) / 2);
    html_put_text(out, p->y);
    buf_str(out, "</text></svg>\n");
}
