/* tandem perplexity: how well a model predicts a text, and how far quantising moves it.  Main thread.
 *
 * Windows of W tokens step by W/2.  The first window scores all its tokens, a later one its second half only, so every
 * token of the text is scored exactly once and, except at the beginning, after at least W/2 tokens of context.  Each
 * window starts with the tokenizer's begin-of-text token where it has one.  Error bars are one standard error over
 * tokens. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/bench/eval.h"
#include "server/cli/cmd.h"
#include "server/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "tandem perplexity [--model DIR] --file FILE [--quantize TYPE [--kl]] [options]";
static const char about[] = "Measures the perplexity of a model on a text; with --kl also what quantising changes.";

enum { DEFAULT_WINDOW = 512 };

/* running mean and variance (Welford) */
struct stat {
    double n, mean, m2;
};

static void stat_add(struct stat *s, double x)
{
    double d = x - s->mean;
    s->n++;
    s->mean += d / s->n;
    s->m2 += d * (x - s->mean);
}

static double stat_error(const struct stat *s)
{
    return s->n > 1 ? sqrt(s->m2 / (s->n - 1) / s->n) : 0;
}

struct measure {
    struct eval *model, *base; /* base: NULL without --kl */
    int vocab, window, bos;    /* bos: -1 when there is none */
    int32_t *ids;              /* (window) the current window, including bos */
    int n, first;              /* its length; the first position whose successor is scored */
    float *base_logits;        /* (window, vocab), base only */
    struct stat nll, kl, ratio, same;
};

/* log of the sum of exp */
static double log_sum(const float *v, int n)
{
    float max = v[0];
    double sum = 0;
    for (int i = 1; i < n; i++) max = v[i] > max ? v[i] : max;
    for (int i = 0; i < n; i++) sum += (double)expf(v[i] - max);
    return (double)max + log(sum);
}

static int argmax(const float *v, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (v[i] > v[best]) best = i;
    return best;
}

static void keep_row(void *arg, int pos, const float *logits)
{
    struct measure *m = arg;
    memcpy(m->base_logits + (size_t)pos * (size_t)m->vocab, logits, (size_t)m->vocab * sizeof *logits);
}

static void compare_row(struct measure *m, const float *base, const float *logits, int32_t next, double log_z)
{
    double base_z = log_sum(base, m->vocab), kl = 0;
    for (int i = 0; i < m->vocab; i++) {
        double lp = (double)base[i] - base_z;
        if (lp > -40) kl += exp(lp) * (lp - ((double)logits[i] - log_z));
    }
    stat_add(&m->kl, kl);
    stat_add(&m->same, argmax(base, m->vocab) == argmax(logits, m->vocab));
    stat_add(&m->ratio, (log_z - (double)logits[next]) - (base_z - (double)base[next]));
}

static void score_row(void *arg, int pos, const float *logits)
{
    struct measure *m = arg;
    if (pos < m->first || pos + 1 >= m->n) return;
    int32_t next = m->ids[pos + 1];
    double log_z = log_sum(logits, m->vocab);
    stat_add(&m->nll, log_z - (double)logits[next]);
    if (m->base) compare_row(m, m->base_logits + (size_t)pos * (size_t)m->vocab, logits, next, log_z);
}

static int score_window(struct measure *m, const struct tokens *t, size_t at, struct err *e)
{
    int lead = m->bos >= 0, half = (m->window - lead) / 2;
    m->n = 0;
    if (lead) m->ids[m->n++] = m->bos;
    for (size_t i = at; i < t->n && m->n < m->window; i++) m->ids[m->n++] = t->v[i].id;
    /* position p predicts p + 1: the first window scores from its second token, a later one from its second half */
    m->first = at ? lead + half - 1 : 0;
    if (m->base && eval_logits(m->base, m->ids, m->n, keep_row, m, e)) return e->code;
    return eval_logits(m->model, m->ids, m->n, score_row, m, e);
}

static void show_progress(const struct measure *m, size_t done, size_t total, uint64_t started)
{
    if (!isatty(STDERR_FILENO)) return;
    double s = (double)(clock_now() - started) * 1e-9;
    fprintf(stderr, "\r%5.1f %%  perplexity %.4f  %.0f tokens/s ", 100.0 * (double)done / (double)total,
            exp(m->nll.mean), m->nll.n / s);
}

static int score_text(struct measure *m, const struct tokens *t, struct err *e)
{
    int half = (m->window - (m->bos >= 0)) / 2, lead = m->bos >= 0;
    size_t span = (size_t)(m->window - lead), at = 0;
    uint64_t started = clock_now();
    for (;;) {
        if (score_window(m, t, at, e)) return e->code;
        size_t end = at + span < t->n ? at + span : t->n;
        show_progress(m, end, t->n, started);
        if (end == t->n) break;
        at += span - (size_t)half; /* the next window's context is `half` tokens that were scored already */
    }
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r\033[K");
    return 0;
}

/* The token that the tokenizer puts before a text, or -1. */
static int find_bos(const struct tokenizer *tk)
{
    struct tokens plain = {0}, special = {0};
    struct err e = {0};
    int bos = -1;
    if (tokenizer_encode(tk, "a", 1, 0, &plain, &e) == 0 &&
        tokenizer_encode(tk, "a", 1, TOKENIZE_SPECIAL, &special, &e) == 0 && special.n > plain.n && plain.n &&
        special.v[0].id != plain.v[0].id)
        bos = special.v[0].id;
    tokens_free(&plain);
    tokens_free(&special);
    return bos;
}

/* ---- report ---------------------------------------------------------------------------------------------------- */

struct summary {
    const char *model, *file, *quantize;
    double seconds, weight_bits;
    size_t bytes, tokens;
};

static void print_text(const struct measure *m, const struct summary *s)
{
    double ppl = exp(m->nll.mean);
    printf("perplexity       %.4f ± %.4f\n", ppl, ppl * stat_error(&m->nll));
    printf("bits per byte    %.4f\n", m->nll.mean * m->nll.n / log(2) / (double)s->bytes);
    printf("scored           %.0f of %zu tokens, windows of %d, stride %d\n", m->nll.n, s->tokens, m->window,
           (m->window - (m->bos >= 0)) - (m->window - (m->bos >= 0)) / 2);
    printf("weights          %.3f bits each, all that is kept for them\n", s->weight_bits);
    printf("speed            %.1f tokens/s\n", m->nll.n / s->seconds);
    if (!m->base) return;
    double ratio = exp(m->ratio.mean);
    printf("kl divergence    %.6f ± %.6f nats (%s from the file's own weights)\n", m->kl.mean, stat_error(&m->kl),
           s->quantize);
    printf("same top token   %.2f %% ± %.2f %%\n", 100 * m->same.mean, 100 * stat_error(&m->same));
    printf("perplexity ratio %.5f ± %.5f\n", ratio, ratio * stat_error(&m->ratio));
}

static void put_number(struct buf *out, const char *name, double v)
{
    buf_printf(out, ",\"%s\":", name);
    json_put_number(out, v);
}

static void print_json(const struct measure *m, const struct summary *s)
{
    struct buf out = {0};
    double ppl = exp(m->nll.mean);
    buf_str(&out, "{\"model\":");
    json_put_string(&out, s->model, strlen(s->model));
    buf_str(&out, ",\"file\":");
    json_put_string(&out, s->file, strlen(s->file));
    buf_str(&out, ",\"quantize\":");
    json_put_string(&out, s->quantize, strlen(s->quantize));
    put_number(&out, "perplexity", ppl);
    put_number(&out, "perplexity_error", ppl * stat_error(&m->nll));
    put_number(&out, "mean_nll", m->nll.mean);
    put_number(&out, "bits_per_byte", m->nll.mean * m->nll.n / log(2) / (double)s->bytes);
    put_number(&out, "bits_per_weight", s->weight_bits);
    put_number(&out, "tokens", (double)s->tokens);
    put_number(&out, "scored_tokens", m->nll.n);
    put_number(&out, "window", m->window);
    put_number(&out, "seconds", s->seconds);
    put_number(&out, "tokens_per_second", m->nll.n / s->seconds);
    if (m->base) {
        double ratio = exp(m->ratio.mean);
        put_number(&out, "kl_divergence", m->kl.mean);
        put_number(&out, "kl_divergence_error", stat_error(&m->kl));
        put_number(&out, "top1_agreement", m->same.mean);
        put_number(&out, "top1_agreement_error", stat_error(&m->same));
        put_number(&out, "perplexity_ratio", ratio);
        put_number(&out, "perplexity_ratio_error", ratio * stat_error(&m->ratio));
    }
    buf_str(&out, "}\n");
    fwrite(out.data, 1, out.len, stdout);
    buf_free(&out);
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static int open_models(struct measure *m, const struct settings *s, struct err *e)
{
    struct engine_config c = cmd_engine_config(s);
    m->model = eval_open(&c, e);
    if (!m->model) return e->code;
    if (s->kl) {
        c.quantize = "none";
        m->base = eval_open(&c, e);
        if (!m->base) return err_prefix(e, "the unquantised model");
    }
    int context = eval_context(m->model);
    m->vocab = eval_vocab(m->model);
    m->window = s->window ? s->window : DEFAULT_WINDOW < context ? DEFAULT_WINDOW : context;
    m->bos = find_bos(eval_tokenizer(m->model));
    if (m->window < 4 || m->window > context)
        return err_set(e, ERR_INVALID, "--window: %d is not between 4 and %d, the model's positions", m->window,
                       context);
    m->ids = mem_array((size_t)m->window, sizeof *m->ids);
    if (m->base) {
        m->base_logits = mem_try_alloc((size_t)m->window * (size_t)m->vocab * sizeof *m->base_logits);
        if (!m->base_logits) return err_set(e, ERR_NOMEM, "no memory for %d rows of logits", m->window);
    }
    return 0;
}

static int measure_file(struct measure *m, const struct settings *s, struct err *e)
{
    struct buf text = {0};
    struct tokens tokens = {0};
    int rc = cmd_read_file(s->file, &text, e);
    if (!rc) rc = open_models(m, s, e);
    if (!rc) rc = tokenizer_encode(eval_tokenizer(m->model), text.data ? text.data : "", text.len, 0, &tokens, e);
    if (!rc && tokens.n < 2) rc = err_set(e, ERR_INVALID, "%s: too short, %zu tokens", s->file, tokens.n);
    uint64_t started = clock_now();
    if (!rc) rc = score_text(m, &tokens, e);
    if (!rc) {
        const struct engine_info *info = eval_info(m->model);
        struct summary sum = {.model = s->model,
                              .file = s->file,
                              .quantize = s->quantize,
                              .bytes = text.len,
                              .seconds = (double)(clock_now() - started) * 1e-9,
                              .weight_bits = 8.0 * (double)info->weight_bytes / (double)info->parameters,
                              .tokens = tokens.n};
        if (s->json)
            print_json(m, &sum);
        else
            print_text(m, &sum);
    }
    tokens_free(&tokens);
    buf_free(&text);
    return rc;
}

int cmd_perplexity(int argc, char **argv)
{
    struct settings s;
    struct err e = {0};
    int status = 0;
    if (cmd_settings(&s, CMD_PERPLEXITY, argc, argv, usage, about, &status)) {
        struct measure m = {0};
        const char *wrong = !s.file ? "--file is missing"
                            : s.kl && strcmp(s.quantize, "none") == 0
                                ? "--kl needs --quantize: it compares with the unquantised model"
                                : NULL;
        if (wrong) {
            fprintf(stderr, "tandem: %s\nusage: %s\n", wrong, usage);
            status = 2;
        } else if (measure_file(&m, &s, &e)) {
            status = cmd_fail(&e);
        }
        eval_close(m.model);
        eval_close(m.base);
        free(m.ids);
        free(m.base_logits);
    }
    settings_free(&s);
    return status;
}
