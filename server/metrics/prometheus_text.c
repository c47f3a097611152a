#include "server/metrics/prometheus_text.h"

#include <math.h>
#include <stdint.h>

void prometheus_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void prometheus_value(struct buf *out, double v)
{
    if (isnan(v))
        buf_str(out, "NaN\n");
    else if (isinf(v))
        buf_str(out, v > 0 ? "+Inf\n" : "-Inf\n");
    else if (v == floor(v) && fabs(v) < 0x1p53)
        buf_printf(out, "%.0f\n", v);
    else
        buf_printf(out, "%.17g\n", v);
}

void prometheus_label(struct buf *out, const char *label, const char *value)
{
    buf_printf(out, "%s=\"", label);
    for (; *value; value++) {
        if (*value == '\n')
            buf_str(out, "\\n");
        else if (*value == '"' || *value == '\\')
            buf_printf(out, "\\%c", *value);
        else
            buf_char(out, *value);
    }
    buf_char(out, '"');
}

void prometheus_sample(struct buf *out, const char *name, const char *labels, double value)
{
    buf_str(out, name);
    if (*labels) buf_printf(out, "{%s}", labels);
    buf_char(out, ' ');
    prometheus_value(out, value);
}

void prometheus_by(struct buf *out, const char *name, const char *label, const char *value, double number)
{
    buf_printf(out, "%s{", name);
    prometheus_label(out, label, value);
    buf_str(out, "} ");
    prometheus_value(out, number);
}

void prometheus_one(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    prometheus_head(out, name, type, help);
    prometheus_sample(out, name, "", value);
}

void prometheus_rows(struct buf *out, const struct prometheus_row *rows, int n)
{
    for (int i = 0; i < n; i++) prometheus_one(out, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}

void prometheus_histogram(struct buf *out, const char *name, const char *labels, const struct histogram *h,
                          const double *bounds)
{
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    uint64_t sum = 0;
    int i = 0;
    for (; bounds[i] > 0; i++) {
        sum += h->counts[i];
        buf_printf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, labels, comma, bounds[i], (unsigned long long)sum);
    }
    sum += h->counts[i];
    buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_sum%s%s%s ", name, labels, comma, (unsigned long long)sum,
               name, open, labels, close);
    prometheus_value(out, h->sum);
    buf_printf(out, "%s_count%s%s%s %llu\n", name, open, labels, close, (unsigned long long)sum);
}
