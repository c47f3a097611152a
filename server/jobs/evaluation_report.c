#include "server/jobs/evaluation_report.h"

#include "server/api/generate_answer.h"
#include "server/json/json.h"

#include <math.h>
#include <string.h>

static const char *const kind_names[] = {"text", "choice", "generation"};

/* With all digits of a double; null where it is not finite. */
static void put_double(struct buf *b, double v)
{
    if (isfinite(v))
        buf_printf(b, "%.17g", v);
    else
        buf_str(b, "null");
}

static void put_member(struct buf *b, const char *name, double v)
{
    buf_printf(b, "\"%s\":", name);
    put_double(b, v);
}

static void put_text(struct buf *b, const char *name, const char *text)
{
    buf_printf(b, "\"%s\":", name);
    if (text)
        json_put_string(b, text, strlen(text));
    else
        buf_str(b, "null");
}

static void put_score(struct buf *b, const struct evaluation_score *s, bool compared)
{
    buf_char(b, '{');
    put_member(b, "value", s->value);
    buf_char(b, ',');
    put_member(b, "low", s->low);
    buf_char(b, ',');
    put_member(b, "high", s->high);
    if (compared) {
        buf_char(b, ',');
        put_member(b, "difference", s->gain);
        buf_char(b, ',');
        put_member(b, "difference_low", s->gain_low);
        buf_char(b, ',');
        put_member(b, "difference_high", s->gain_high);
    }
    buf_char(b, '}');
}

static void put_subject(struct buf *b, const struct evaluation_report *r, int i)
{
    const struct evaluation_subject *s = &r->subjects[i];
    const struct evaluation_metric *metrics;
    int n = evaluation_metrics(r->rows->kind, &metrics);
    struct evaluation_progress p = evaluation_progress(s->evaluation);
    buf_char(b, '{');
    put_text(b, "name", s->name);
    buf_char(b, ',');
    put_text(b, "adapter", s->adapter);
    buf_char(b, ',');
    put_text(b, "quantize", s->quantize);
    buf_printf(b, ",\"tokens\":%llu,\"truncated\":%zu,", (unsigned long long)p.tokens, p.truncated);
    put_member(b, "seconds", s->seconds);
    buf_str(b, ",\"metrics\":{");
    for (int m = 0; m < n; m++) {
        buf_printf(b, "%s\"%s\":", m ? "," : "", metrics[m].name);
        put_score(b, &r->scores[i * n + m], i > 0);
    }
    buf_str(b, "}}");
}

void evaluation_report_json(const struct evaluation_report *r, struct buf *b)
{
    buf_char(b, '{');
    put_text(b, "model", r->model);
    buf_char(b, ',');
    put_text(b, "data", r->rows->name);
    buf_printf(b, ",\"kind\":\"%s\",\"rows\":%zu,\"resamples\":%d,\"seed\":%llu,\"subjects\":[",
               kind_names[r->rows->kind], r->rows->n, r->resamples, (unsigned long long)r->seed);
    for (int i = 0; i < r->n_subjects; i++) {
        if (i) buf_char(b, ',');
        put_subject(b, r, i);
    }
    buf_str(b, "]}");
}

static void put_logprobs(struct buf *b, const double *v, int n)
{
    buf_str(b, ",\"logprobs\":[");
    for (int i = 0; i < n; i++) {
        if (i) buf_char(b, ',');
        put_double(b, v[i]);
    }
    buf_char(b, ']');
}

/* The members that rows of the kind have. */
static void put_answer(struct buf *b, enum evaluation_kind kind, const struct evaluation_row *row,
                       const struct evaluation_answer *a)
{
    switch (kind) {
    case EVALUATION_TEXT:
        buf_char(b, ',');
        put_member(b, "logprob", a->logprob[0]);
        buf_printf(b, ",\"tokens\":%d", a->n_scored);
        break;
    case EVALUATION_CHOICE:
        put_logprobs(b, a->logprob, row->n);
        buf_printf(b, ",\"choice\":%d,\"answer\":%d", a->choice, row->answer);
        break;
    case EVALUATION_GENERATION:
        buf_char(b, ',');
        put_text(b, "text", a->text);
        buf_char(b, ',');
        put_text(b, "prediction", a->prediction);
        if (a->cut) buf_str(b, ",\"cut\":true");
        buf_printf(b, ",\"finish_reason\":\"%s\",\"prompt_tokens\":%d,\"generated_tokens\":%d", finish_name(a->finish),
                   a->n_prompt, a->n_generated);
        break;
    }
}

static void put_row(struct buf *b, const struct evaluation_report *r, const struct evaluation_subject *s, size_t at)
{
    const struct evaluation_row *row = &r->rows->v[at];
    const struct evaluation_metric *metrics;
    int n = evaluation_metrics(r->rows->kind, &metrics);
    buf_char(b, '{');
    put_text(b, "subject", s->name);
    buf_printf(b, ",\"row\":%zu,\"line\":%llu,\"id\":", at, (unsigned long long)row->line);
    if (row->id)
        json_put_value(b, row->id, ",", ":");
    else
        buf_str(b, "null");
    put_answer(b, r->rows->kind, row, evaluation_answer(s->evaluation, at));
    buf_str(b, ",\"scores\":{");
    for (int m = 0; m < n; m++) {
        if (m) buf_char(b, ',');
        put_member(b, metrics[m].name, evaluation_row_score(s->evaluation, at, m));
    }
    buf_str(b, "}}\n");
}

void evaluation_report_rows(const struct evaluation_report *r, FILE *out)
{
    struct buf b = {0};
    for (int i = 0; i < r->n_subjects; i++) {
        for (size_t row = 0; row < r->rows->n; row++) {
            put_row(&b, r, &r->subjects[i], row);
            fwrite(b.data, 1, b.len, out);
            buf_clear(&b);
        }
    }
    buf_free(&b);
}
