/* Prometheus' text format 0.0.4, line by line: https://prometheus.io/docs/instrumenting/exposition_formats/.  Any
 * thread; names and label names are the program's own. */
#ifndef TANDEM_SERVER_METRICS_PROMETHEUS_TEXT_H
#define TANDEM_SERVER_METRICS_PROMETHEUS_TEXT_H

#include "engine/base/buf.h"
#include "engine/base/histogram.h"

/* # HELP and # TYPE; once for a name, before its samples. */
void prometheus_head(struct buf *, const char *name, const char *type, const char *help);
/* A whole number as such, others with 17 digits. */
void prometheus_value(struct buf *, double);
/* label="value" with value escaped. */
void prometheus_label(struct buf *, const char *label, const char *value);
/* A family with one sample and no labels. */
void prometheus_one(struct buf *, const char *name, const char *type, const char *help, double value);
/* name{labels} value; labels: "" or what stands between the braces, escaped already. */
void prometheus_sample(struct buf *, const char *name, const char *labels, double value);
/* name{label="value"} number; value is escaped. */
void prometheus_by(struct buf *, const char *name, const char *label, const char *value, double number);
/* The buckets, sum and count; labels as above. */
void prometheus_histogram(struct buf *, const char *name, const char *labels, const struct histogram *,
                          const double *bounds);

/* Families of one sample each, as a table. */
struct prometheus_row {
    const char *name, *type, *help;
    double value;
};
void prometheus_rows(struct buf *, const struct prometheus_row *, int n);

#endif
