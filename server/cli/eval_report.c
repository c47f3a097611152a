#include "server/cli/eval_report.h"

#include "server/cli/train_progress.h"

#include <math.h>
#include <string.h>

void eval_report_progress(const struct evaluation_subject *s, const struct evaluation_rows *rows, double seconds,
                          bool terminal, FILE *out)
{
    struct evaluation_progress p = evaluation_progress(s->evaluation);
    char left[32];
    train_time_text(p.done > 0 ? seconds / p.done * (p.work - p.done) : NAN, left);
    fprintf(out, "%s%s: %zu of %zu rows  %.0f %%  %.1f rows/s  %.0f tokens/s  %s left%s", terminal ? "\r" : "", s->name,
            p.rows_done, rows->n, 100 * p.done / p.work, p.done / seconds, (double)p.tokens / seconds, left,
            terminal ? "\033[K" : "\n");
}

static int longest_name(const struct evaluation_report *r)
{
    int most = 7; /* "subject" */
    for (int i = 0; i < r->n_subjects; i++) {
        int n = (int)strnlen(r->subjects[i].name, 60);
        most = n > most ? n : most;
    }
    return most;
}

/* Large perplexities of single rows must not break the columns. */
static void number_text(double v, bool sign, char out[24])
{
    const char *format = fabs(v) < 1e6 ? (sign ? "%+.4f" : "%.4f") : (sign ? "%+.4g" : "%.4g");
    snprintf(out, 24, format, v);
}

static void put_interval(double low, double high, int width, FILE *out)
{
    char from[24], to[24], text[64] = "";
    number_text(low, false, from);
    number_text(high, false, to);
    if (!isnan(low)) snprintf(text, sizeof text, "[%s, %s]", from, to);
    fprintf(out, "  %-*s", width, text);
}

static void put_subject_line(const char *metric, int width, const struct evaluation_subject *s,
                             const struct evaluation_score *score, bool first, FILE *out)
{
    char value[24], gain[24];
    number_text(score->value, false, value);
    number_text(score->gain, true, gain);
    fprintf(out, "%-15s  %-*.60s  %10s", metric, width, s->name, value);
    put_interval(score->low, score->high, first ? 0 : 22, out);
    if (!first) fprintf(out, "  %10s", gain);
    if (!first) put_interval(score->gain_low, score->gain_high, 0, out);
    fputc('\n', out);
}

void eval_report_table(const struct evaluation_report *r, FILE *out)
{
    const struct evaluation_metric *metrics;
    int n = evaluation_metrics(r->rows->kind, &metrics), width = longest_name(r);
    fprintf(out, "%-15s  %-*s  %10s  %-*s", "metric", width, "subject", "value", r->n_subjects > 1 ? 22 : 0,
            "95 % interval");
    if (r->n_subjects > 1) fprintf(out, "  %10s  %s", "difference", "95 % interval");
    fputc('\n', out);
    for (int m = 0; m < n; m++) {
        for (int i = 0; i < r->n_subjects; i++) {
            put_subject_line(i ? "" : metrics[m].name, width, &r->subjects[i], &r->scores[i * n + m], i == 0, out);
        }
    }
}
