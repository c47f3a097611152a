#include "server/jobs/split_report.h"

#include "engine/base/file.h"
#include "server/json/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double GIB = 1024.0 * 1024 * 1024;

enum { BENCH_BYTES = 16 << 20 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

int split_gpus_parse(const char *text, int *gpus, double *memory, struct err *e)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (end == text || *end != 'x' || n < 1 || n > TRAIN_SPLIT_GPUS)
        return err_set(e, ERR_INVALID, "gpus: %.40s is not NUMBERxMEMORY, as 8x80G, of at most %d cards", text,
                       TRAIN_SPLIT_GPUS);
    const char *size = end + 1;
    double v = strtod(size, &end), unit = *end == 'T' ? 1024 * GIB : *end == 'M' ? GIB / 1024 : GIB;
    bool known = *end && strchr("MGT", *end),
         named = known && (!end[1] || !strcmp(end + 1, "iB") || !strcmp(end + 1, "B"));
    if (end == size || !(v > 0) || !named || !(v * unit <= 1024 * GIB))
        return err_set(e, ERR_INVALID, "gpus: %.40s: the memory of a card is a number with M, G or T, at most 1T",
                       text);
    *gpus = (int)n;
    *memory = v * unit;
    return 0;
}

static double number_of(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, name);
    return cJSON_IsNumber(v) && v->valuedouble > 0 ? v->valuedouble : 0;
}

double split_bench_rate(const char *file, struct err *e)
{
    char *text = NULL;
    size_t n = 0;
    double rate = 0;
    if (file_read(file, BENCH_BYTES, &text, &n, e)) return 0;
    cJSON *report = json_parse(text, n, e), *row;
    const cJSON *rows = report ? cJSON_GetObjectItemCaseSensitive(report, "rows") : NULL;
    cJSON_ArrayForEach(row, rows) rate =
        fmax(rate, 2 * number_of(row, "tokens_per_s") * number_of(row, "macs_per_token"));
    json_free(report);
    free(text);
    if (rate <= 0) err_set(e, ERR_INVALID, "--bench: %s is no report of tandem bench --train --json", file);
    return rate;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void put_seconds(struct buf *b, double s)
{
    if (isnan(s))
        buf_str(b, "        -");
    else
        buf_printf(b, " %8.3g", s);
}

static void put_line(struct buf *b, const struct train_split *x, bool best)
{
    double all = x->weight_bytes + x->state_bytes + x->activation_bytes;
    buf_printf(b, "%4d %6d %4d %8.1f %8.1f %8.1f%c %8.1f %10.2f", x->data, x->tensor, x->zero, x->weight_bytes / GIB,
               x->state_bytes / GIB, x->activation_bytes / GIB, x->recompute ? '*' : ' ', all / GIB,
               x->sent_bytes / GIB);
    put_seconds(b, x->compute_s);
    put_seconds(b, x->link_s);
    put_seconds(b, x->step_s);
    buf_printf(b, "  %s%s\n",
               !x->fits        ? "too large"
               : x->supported  ? "fits"
               : x->tensor > 1 ? "fits, but tandem train does not share layers"
                               : "fits, but tandem train divides a base on processors alone",
               best ? ", best" : "");
}

void split_text(struct buf *b, const struct train_split_question *q, const struct train_split_answer *a)
{
    bool again = false;
    buf_printf(b,
               "%.3f B parameters, %.3f M are trained; %d cards of %.1f GiB, filled to "
               "%.0f %% at most\n",
               a->parameters * 1e-9, a->trainable * 1e-6, q->gpus, q->memory / GIB, 100 * TRAIN_SPLIT_FILLED);
    buf_printf(b, "steps of %d tokens in %d slots, micro-batches of at most %d tokens\n\n", q->p.batch_tokens,
               a->grad_slots, a->micro_tokens);
    buf_str(b, "data tensor zero  weights   states  activat.     GiB   sent GiB compute s   link s   step s\n");
    for (int i = 0; i < a->n; i++) {
        put_line(b, &a->v[i], i == a->best);
        again |= a->v[i].recompute;
    }
    if (again) buf_str(b, "* activations are computed again in the backward pass\n");
    const struct train_split *best = a->best >= 0 ? &a->v[a->best] : NULL;
    if (!best)
        buf_printf(b, "\nnone fits: use %s, more or larger cards, or lower batch_tokens and max_length\n",
                   q->p.method == TRAIN_FULL ? "method lora or adamw_8bit" : "method qlora");
    else
        buf_printf(b, "\nmpirun -n %d tandem train --zero %d --grad-slots %d --micro-tokens %d ...\n", best->data,
                   best->zero, a->grad_slots, a->micro_tokens);
    if (!(q->flops > 0)) buf_str(b, "no times: --tflops, or --bench, and --link say how fast a card is\n");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void put_number(struct buf *b, const char *name, double v)
{
    buf_printf(b, ",\"%s\":", name);
    json_put_number(b, v);
}

static void put_split(struct buf *b, const struct train_split *x)
{
    buf_printf(b,
               "{\"data_parallel\":%d,\"tensor_parallel\":%d,\"zero\":%d,\"recompute\":%s,\"fits\":%s,\"supported\":%s",
               x->data, x->tensor, x->zero, x->recompute ? "true" : "false", x->fits ? "true" : "false",
               x->supported ? "true" : "false");
    buf_printf(b, ",\"weight_bytes\":%.0f,\"state_bytes\":%.0f,\"activation_bytes\":%.0f,\"sent_bytes_per_step\":%.0f",
               x->weight_bytes, x->state_bytes, x->activation_bytes, x->sent_bytes);
    put_number(b, "compute_seconds", x->compute_s);
    put_number(b, "link_seconds", x->link_s);
    put_number(b, "step_seconds", x->step_s);
    put_number(b, "tokens_per_s", x->tokens_per_s);
    buf_char(b, '}');
}

void split_json(struct buf *b, const struct train_split_question *q, const struct train_split_answer *a)
{
    buf_printf(b, "{\"object\":\"train.splits\",\"gpus\":%d,\"memory_bytes\":%.0f,\"filled_at_most\":%g", q->gpus,
               q->memory, TRAIN_SPLIT_FILLED);
    put_number(b, "link_bytes_per_s", q->link > 0 ? q->link : NAN);
    put_number(b, "flops", q->flops > 0 ? q->flops : NAN);
    buf_printf(b, ",\"parameters\":%.0f,\"trainable_parameters\":%.0f,\"macs_per_token\":%.0f", a->parameters,
               a->trainable, a->macs_per_token);
    buf_printf(b, ",\"batch_tokens\":%d,\"grad_slots\":%d,\"micro_tokens\":%d,\"splits\":[", q->p.batch_tokens,
               a->grad_slots, a->micro_tokens);
    for (int i = 0; i < a->n; i++) {
        if (i) buf_char(b, ',');
        put_split(b, &a->v[i]);
    }
    buf_str(b, "],\"best\":");
    if (a->best >= 0)
        put_split(b, &a->v[a->best]);
    else
        buf_str(b, "null");
    buf_char(b, '}');
}

void split_json_error(struct buf *b, const struct err *e)
{
    buf_str(b, "{\"object\":\"train.splits\",\"error\":");
    json_put_string(b, e->msg, strlen(e->msg));
    buf_char(b, '}');
}
