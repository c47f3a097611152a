/* The reference device: every op exactly as its contract in ops.h defines it, one loop per index, sums in double,
 * weights unpacked, the KV cache kept as floats rounded to its type. It is the oracle of the op tests and documents
 * the arithmetic; it is not meant to be fast. Sampling is in ref_sample.c, the training ops in ref_train.c and
 * ref_train_gemm.c. */
#include "kernels/ref/ref.h"

#include "kernels/block.h"
#include "kernels/dev.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kv {
    struct kv_shape shape;
    float *data; /* (layers, pages, 2, KV_PAGE, kv_heads, head_dim): k then v, already rounded to the type */
};

static float *mat_row(const struct mat *m, int row)
{
    return (float *)m->p + (size_t)row * m->ld;
}

static float load_as_f32(const void *p, enum dtype t, size_t i)
{
    if (t == DT_F32) return ((const float *)p)[i];
    if (t == DT_BF16) return bf16_to_f32(((const uint16_t *)p)[i]);
    return f16_to_f32(((const uint16_t *)p)[i]);
}

/* ---- embed, norms, elementwise ------------------------------------------------------------------------------- */

static void ref_embed(struct dev *d, const struct embed_args *a)
{
    for (int t = 0; t < a->out.rows; t++)
        for (int c = 0; c < a->out.cols; c++) {
            float v = a->w ? ref_weight_at(a->w, a->id[t], c)
                           : load_as_f32(a->table.p, a->table.t, (size_t)a->id[t] * a->table.ld + c);
            v *= a->scale == 0 ? 1 : a->scale;
            if (a->pos_table.p)
                v += load_as_f32(a->pos_table.p, a->pos_table.t, (size_t)a->pos[t] * a->pos_table.ld + c);
            mat_row(&a->out, t)[c] = v;
        }
}

static void norm_row(float *out, const float *x, int n, const float *w, const float *b, float eps, enum norm_kind kind)
{
    double mean = 0, square = 0;
    if (kind == NORM_LAYER) {
        for (int i = 0; i < n; i++) mean += x[i];
        mean /= n;
    }
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean);
    double inv = 1 / sqrt(square / n + eps);
    for (int i = 0; i < n; i++) out[i] = (float)((x[i] - mean) * inv * w[i] + (b ? b[i] : 0));
}

static void ref_norm(struct dev *d, const struct norm_args *a)
{
    for (int t = 0; t < a->x.rows; t++)
        norm_row(mat_row(&a->out, t), mat_row(&a->x, t), a->x.cols, a->w, a->b, a->eps, a->kind);
}

static void ref_head_norm(struct dev *d, const struct head_norm_args *a)
{
    for (int t = 0; t < a->x.rows; t++)
        for (int h = 0; h < a->heads; h++) {
            float *x = mat_row(&a->x, t) + a->col + h * a->head_dim;
            size_t at = a->by_head ? (size_t)h * a->head_dim : 0;
            norm_row(x, x, a->head_dim, a->w + at, a->b ? a->b + at : NULL, a->eps, a->kind);
        }
}

static void ref_add(struct dev *d, const struct add_args *a)
{
    for (int t = 0; t < a->x.rows; t++)
        for (int c = 0; c < a->x.cols; c++) mat_row(&a->x, t)[c] += mat_row(&a->y, t)[c];
}

double ref_act_value(double x, enum act_kind act)
{
    switch (act) {
    case ACT_SILU: return x / (1 + exp(-x));
    case ACT_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case ACT_GELU_ERF: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_SWIGLU_CLAMPED: x = x > 7 ? 7 : x; return x / (1 + exp(-1.702 * x));
    }
    return NAN;
}

double ref_act_up(double up, enum act_kind act)
{
    return act != ACT_SWIGLU_CLAMPED ? up : 1 + (up > 7 ? 7 : up < -7 ? -7 : up);
}

static void ref_act_mul(struct dev *d, const struct act_mul_args *a)
{
    for (int t = 0; t < a->out.rows; t++)
        for (int c = 0; c < a->out.cols; c++) {
            const float *gu = mat_row(&a->gu, t);
            mat_row(&a->out, t)[c] = (float)(ref_act_value(gu[c], a->act) * ref_act_up(gu[a->out.cols + c], a->act));
        }
}

static void ref_act(struct dev *d, const struct act_args *a)
{
    for (int t = 0; t < a->x.rows; t++)
        for (int c = 0; c < a->x.cols; c++) {
            float *x = mat_row(&a->x, t) + c;
            *x = (float)ref_act_value(*x, a->act);
        }
}

double ref_softcap(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

static void ref_softcap_op(struct dev *d, const struct softcap_args *a)
{
    for (int t = 0; t < a->x.rows; t++)
        for (int c = 0; c < a->x.cols; c++) {
            float *x = mat_row(&a->x, t) + c;
            *x = (float)ref_softcap((double)*x * a->scale, a->cap);
        }
}

static void ref_rows(struct dev *d, const struct rows_args *a)
{
    for (int r = 0; r < a->out.rows; r++)
        memcpy(mat_row(&a->out, r), mat_row(&a->x, a->row[r]), (size_t)a->x.cols * sizeof(float));
}

/* ---- linear -------------------------------------------------------------------------------------------------- */

/* Whether a row is quantised twice, see linear_args. */
static bool is_outlier(const float *x, int n)
{
    double sum = 0, amax = 0;
    for (int i = 0; i < n; i++) {
        if (!isfinite(x[i])) return false;
        sum += fabs((double)x[i]);
        amax = fmax(amax, fabs((double)x[i]));
    }
    return amax >= (double)QUANT_AMAX_MIN && amax * n > (double)QUANT_OUTLIER * sum;
}

/* Quantises n values with one step; returns the step amax / 127.  All in f32, so that every device gets the same
 * integers.  A row with a NaN or an infinity has step NaN. */
static float quantise(int8_t *q, const float *x, int n)
{
    float amax = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    for (int i = 0; i < n; i++) q[i] = 0;
    if (!finite) return NAN;
    if (amax < QUANT_AMAX_MIN) return 0;
    float inv = 127.0f / amax;
    for (int i = 0; i < n; i++) q[i] = (int8_t)lrintf(x[i] * inv);
    return amax / 127.0f;
}

static double dot_float(const struct weight *w, int n, const float *x, bool bf16_x)
{
    double sum = 0;
    for (int k = 0; k < w->cols; k++) {
        float xk = bf16_x && (w->t == DT_BF16 || w->t == DT_F8) ? bf16_to_f32(f32_to_bf16(x[k])) : x[k];
        sum += (double)xk * w->f[(size_t)n * w->cols + k];
    }
    return sum;
}

static double dot_int(const struct weight *w, int n, const int8_t *q, float step)
{
    double sum = 0;
    for (int g = 0; g < w->n_groups; g++) {
        size_t at = (size_t)n * w->n_groups + g;
        int64_t part = 0, all = 0;
        for (int k = g * w->group; k < w->cols && k < (g + 1) * w->group; k++) {
            part += q[k] * w->q[(size_t)n * w->cols + k];
            all += q[k];
        }
        sum += (double)part * w->scale[at];
        if (w->minimum) sum -= (double)all * w->minimum[at];
    }
    return sum * step;
}

static void ref_linear(struct dev *d, const struct linear_args *a)
{
    const struct weight *w = a->w;
    size_t K = (size_t)w->cols;
    int8_t *q = malloc(2 * K + 1), *q2 = q + K; /* q2: the residual of an outlier row */
    float *rest = malloc((2 * K + 1) * sizeof *rest), *sorted = rest + K;
    if (!q || !rest) {
        free(q), free(rest);
        dev_fail(d, "linear", "out of memory");
        return;
    }
    for (int t = 0; t < a->x.rows; t++) {
        const float *x = mat_row(&a->x, t);
        for (size_t k = 0; w->order && k < K; k++) sorted[k] = x[w->order[k]];
        if (w->order) x = sorted;
        float step = w->q ? quantise(q, x, w->cols) : 0, step2 = 0;
        bool outlier = w->q && is_outlier(x, w->cols);
        for (int k = 0; outlier && k < w->cols; k++) rest[k] = fmaf(-(float)q[k], step, x[k]);
        if (outlier) step2 = quantise(q2, rest, w->cols);
        for (int n = 0; n < a->y.cols; n++) {
            int o = a->first + n;
            double y = w->q ? dot_int(w, o, q, step) : dot_float(w, o, x, d->bf16_x);
            if (outlier) y += dot_int(w, o, q2, step2);
            mat_row(&a->y, t)[n] = (float)(y + (a->b ? a->b[n] : 0));
        }
    }
    free(q), free(rest);
}

static void ref_weight_free(struct dev *d, struct weight *w)
{
    if (!w) return;
    free(w->f);
    free(w->q);
    free(w->scale);
    free(w->minimum);
    free(w->order);
    free(w);
}

static void unpack_int4(struct weight *w, size_t row0, const struct weight_src *s)
{
    const uint8_t *data = s->data;
    const uint16_t *scale = s->scale;
    size_t row_bytes = (size_t)w->n_groups * s->group / 2;
    for (int n = 0; n < s->rows; n++) {
        for (int k = 0; k < s->cols; k++) {
            uint8_t byte = data[n * row_bytes + k / 2];
            w->q[(row0 + n) * s->cols + k] = (int8_t)((k & 1 ? byte >> 4 : byte & 15) - 8);
        }
        for (int g = 0; g < w->n_groups; g++)
            w->scale[(row0 + n) * w->n_groups + g] = f16_to_f32(scale[(size_t)n * w->n_groups + g]);
    }
}

/* Groups of any part are whole groups of 16 here: parts may differ. */
static void unpack_block(struct weight *w, size_t row0, const struct weight_src *s)
{
    const uint8_t *code = s->data;
    for (int n = 0; n < s->rows; n++) {
        for (int k = 0; k < s->cols; k++)
            w->q[(row0 + n) * s->cols + k] = s->block->value[code[(size_t)n * s->cols + k]];
        for (int g = 0; g < w->n_groups; g++) {
            int its = g * w->group / s->block->group;
            w->scale[(row0 + n) * w->n_groups + g] = block_scale(s, n, its);
            w->minimum[(row0 + n) * w->n_groups + g] = block_minimum(s, n, its);
        }
    }
}

static void unpack_nf4(struct weight *w, size_t at, const struct weight_src *s)
{
    const uint8_t *data = s->data;
    const float *scale = s->scale;
    for (size_t i = 0; i < (size_t)s->rows * s->cols; i++)
        w->f[at + i] = nf4_code[i & 1 ? data[i / 2] & 15 : data[i / 2] >> 4] * scale[i / 64];
}

static void unpack_f8(struct weight *w, size_t at, const struct weight_src *s)
{
    const uint8_t *code = s->data;
    const float *scale = s->scale;
    int groups = s->group ? (s->cols - 1) / s->group + 1 : 1;
    for (int n = 0; n < s->rows; n++)
        for (int k = 0; k < s->cols; k++) {
            size_t i = (size_t)n * s->cols + k, g = (size_t)n * groups + (s->group ? k / s->group : 0);
            w->f[at + i] = e4m3_to_f32(code[i]) * scale[g];
        }
}

static void unpack_part(struct weight *w, size_t row0, const struct weight_src *s)
{
    size_t n = (size_t)s->rows * s->cols, at = row0 * s->cols;
    if (s->t == DT_I4) {
        unpack_int4(w, row0, s);
    } else if (s->t == DT_BLOCK) {
        unpack_block(w, row0, s);
    } else if (s->t == DT_NF4) {
        unpack_nf4(w, at, s);
    } else if (s->t == DT_F8) {
        unpack_f8(w, at, s);
    } else if (s->t == DT_I8) {
        memcpy(w->q + at, s->data, n);
        memcpy(w->scale + row0, s->scale, (size_t)s->rows * sizeof(float));
    } else {
        for (size_t i = 0; i < n; i++) w->f[at + i] = load_as_f32(s->data, s->t, i);
    }
}

static bool set_order(struct weight *w, const uint32_t *order)
{
    size_t K = (size_t)w->cols;
    if (!(w->order = malloc(2 * K * sizeof *w->order))) return false;
    w->place = w->order + K;
    memcpy(w->order, order, K * sizeof *order);
    for (size_t k = 0; k < K; k++) w->place[order[k]] = (uint32_t)k;
    return true;
}

static struct weight *ref_weight_pack(struct dev *d, const struct weight_src *parts, int n_parts)
{
    struct weight *w = calloc(1, sizeof *w);
    if (!w || n_parts < 1) return free(w), NULL;
    bool is_block = parts[0].t == DT_BLOCK, is_int = is_block || parts[0].t == DT_I8 || parts[0].t == DT_I4;
    size_t rows = 0, n;
    for (int i = 0; i < n_parts; i++) {
        if (parts[i].t != parts[0].t || parts[i].cols != parts[0].cols || parts[i].group != parts[0].group ||
            parts[i].rows < 1 || parts[i].cols < 1 || (parts[i].t == DT_NF4 && parts[i].cols % 64) ||
            (parts[i].t == DT_F8 && (parts[i].group < 0 || parts[i].group % 16)) ||
            (is_block && (block_error(parts + i) || !block_codes_ok(parts + i))))
            return free(w), NULL;
        rows += (size_t)parts[i].rows;
    }
    if (!block_order_ok(parts, n_parts)) return free(w), NULL;
    *w = (struct weight){.t = parts[0].t, .rows = (int)rows, .cols = parts[0].cols, .group = parts[0].group};
    if (w->t != DT_I4) w->group = is_block ? 16 : w->cols;
    w->n_groups = (w->cols - 1) / w->group + 1;
    if (rows > INT32_MAX || __builtin_mul_overflow(rows, (size_t)w->cols, &n)) return free(w), NULL;
    if (is_int) {
        w->q = calloc(n, 1);
        w->scale = calloc(rows * (size_t)w->n_groups, sizeof(float));
        if (is_block) w->minimum = calloc(rows * (size_t)w->n_groups, sizeof(float));
    } else {
        w->f = calloc(n, sizeof(float));
    }
    if (is_int ? !w->q || !w->scale || (is_block && !w->minimum) : !w->f) return ref_weight_free(d, w), NULL;
    if (is_block && parts->block->order && !set_order(w, parts->block->order)) return ref_weight_free(d, w), NULL;
    for (size_t i = 0, row = 0; i < (size_t)n_parts; row += (size_t)parts[i++].rows) unpack_part(w, row, parts + i);
    return w;
}

static size_t ref_weight_bytes(const struct weight *w)
{
    size_t n = (size_t)w->rows * w->cols;
    size_t groups = (size_t)w->rows * w->n_groups * (w->minimum ? 2 : 1);
    return w->q ? n + groups * sizeof(float) : n * sizeof(float);
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* the head_dim floats of one token and head; which: 0 k, 1 v */
static float *kv_at(const struct kv *kv, int layer, int slot, int which, int head)
{
    const struct kv_shape *s = &kv->shape;
    size_t page = (size_t)layer * s->pages + slot / KV_PAGE;
    return kv->data + (((page * 2 + which) * KV_PAGE + slot % KV_PAGE) * s->kv_heads + head) * s->head_dim;
}

/* out = x rounded as by storing to and loading from the cache. */
static void kv_round(float *out, const float *x, int n, enum dtype t)
{
    if (t == DT_I8) {
        int8_t q[REF_HEAD_MAX];
        float step = quantise(q, x, n);
        for (int i = 0; i < n; i++) out[i] = (float)q[i] * step;
        return;
    }
    for (int i = 0; i < n; i++)
        out[i] = t == DT_F32 ? x[i] : t == DT_BF16 ? bf16_to_f32(f32_to_bf16(x[i])) : f16_to_f32(f32_to_f16(x[i]));
}

static void rope_head(float *x, int rot, const float *cosines, const float *sines)
{
    for (int i = 0; i < rot / 2; i++) {
        double x0 = x[i], x1 = x[i + rot / 2];
        x[i] = (float)(x0 * cosines[i] - x1 * sines[i]);
        x[i + rot / 2] = (float)(x1 * cosines[i] + x0 * sines[i]);
    }
}

static void ref_rope_kv(struct dev *d, const struct rope_kv_args *a)
{
    for (int t = 0; t < a->qkv.rows; t++) {
        float *row = mat_row(&a->qkv, t), *k = row + a->heads * a->head_dim, *v = k + a->kv_heads * a->head_dim;
        if (a->rot)
            for (int h = 0; h < a->heads + a->kv_heads; h++)
                rope_head(row + h * a->head_dim, a->rot, a->cos + (size_t)a->pos[t] * (a->rot / 2),
                          a->sin + (size_t)a->pos[t] * (a->rot / 2));
        for (int h = 0; h < a->kv_heads; h++) {
            kv_round(kv_at(a->kv, a->layer, a->slot[t], 0, h), k + h * a->head_dim, a->head_dim, a->kv->shape.t);
            kv_round(kv_at(a->kv, a->layer, a->slot[t], 1, h), v + h * a->head_dim, a->head_dim, a->kv->shape.t);
        }
        if (!a->rounds) continue;
        for (int h = a->kv->shape.t == DT_BF16 ? 0 : a->heads; h < a->heads + 2 * a->kv_heads; h++)
            kv_round(row + h * a->head_dim, row + h * a->head_dim, a->head_dim, a->kv->shape.t);
    }
}

/* q rounded as the contract requires for the cache's type. */
static float attn_q(const struct attn_args *a, float q)
{
    return a->kv->shape.t == DT_BF16 ? bf16_to_f32(f32_to_bf16(q)) : q;
}

static double attn_score(const struct attn_args *a, const float *q, const int32_t *pages, int pos, int kv_head)
{
    const float *k = kv_at(a->kv, a->layer, pages[pos / KV_PAGE] * KV_PAGE + pos % KV_PAGE, 0, kv_head);
    double dot = 0;
    for (int i = 0; i < a->head_dim; i++) dot += (double)attn_q(a, q[i]) * k[i];
    return ref_softcap(dot * a->scale, a->softcap);
}

/* One query head of one token at position p; score holds p + 1 elements. */
static void attn_head(const struct attn_args *a, int t, int h, int p, const int32_t *pages, double *score)
{
    int first = a->window && p - a->window + 1 > 0 ? p - a->window + 1 : 0, kv_head = h / (a->heads / a->kv_heads);
    const float *q = mat_row(&a->qkv, t) + h * a->head_dim;
    float *out = mat_row(&a->out, t) + h * a->head_dim;
    double sink = a->sinks ? a->sinks[h] : -INFINITY, max = sink;
    for (int i = first; i <= p; i++) {
        score[i] = attn_score(a, q, pages, i, kv_head);
        max = fmax(max, score[i]);
    }
    double sum = exp(sink - max);
    for (int i = first; i <= p; i++) sum += score[i] = exp(score[i] - max);
    for (int c = 0; c < a->head_dim; c++) {
        double o = 0;
        for (int i = first; i <= p; i++)
            o += score[i] * kv_at(a->kv, a->layer, pages[i / KV_PAGE] * KV_PAGE + i % KV_PAGE, 1, kv_head)[c];
        out[c] = (float)(o / sum);
    }
    if (a->lse.p) mat_row(&a->lse, t)[h] = (float)(max + log(sum));
}

static void ref_attn(struct dev *d, const struct attn_args *a)
{
    for (int s = 0; s < a->n_seqs; s++) {
        int n = a->q_start[s + 1] - a->q_start[s];
        if (n == 0) continue;
        double *score = malloc((size_t)a->kv_len[s] * sizeof(double));
        if (!score) {
            dev_fail(d, "attn", "out of memory");
            return;
        }
        for (int i = 0; i < n; i++)
            for (int h = 0; h < a->heads; h++)
                attn_head(a, a->q_start[s] + i, h, a->kv_len[s] - n + i, a->pages + (size_t)s * a->pages_ld, score);
        free(score);
    }
}

static size_t ref_kv_page_bytes(const struct kv_shape *s)
{
    return (size_t)s->layers * 2 * KV_PAGE * s->kv_heads * s->head_dim * sizeof(float);
}

static struct kv *ref_kv_open(struct dev *d, const struct kv_shape *s)
{
    struct kv *kv = calloc(1, sizeof *kv);
    double bytes = (double)s->layers * s->pages * 2 * KV_PAGE * s->kv_heads * s->head_dim * sizeof(float);
    if (!kv || s->head_dim > REF_HEAD_MAX || bytes > 1e15) return free(kv), NULL;
    kv->shape = *s;
    kv->data = calloc((size_t)s->pages, ref_kv_page_bytes(s));
    if (!kv->data) return free(kv), NULL;
    return kv;
}

static void ref_kv_close(struct dev *d, struct kv *kv)
{
    if (kv) free(kv->data);
    free(kv);
}

/* of one layer's page, whose tokens are adjacent: see kv_at */
static size_t ref_kv_part(const struct kv *kv)
{
    return ref_kv_page_bytes(&kv->shape) / (size_t)kv->shape.layers;
}

static void ref_kv_save(struct dev *d, const struct kv *kv, int page, void *host)
{
    size_t part = ref_kv_part(kv);
    for (size_t l = 0; l < (size_t)kv->shape.layers; l++)
        memcpy((char *)host + l * part, (char *)kv->data + (l * (size_t)kv->shape.pages + (size_t)page) * part, part);
}

static void ref_kv_load(struct dev *d, struct kv *kv, int page, const void *host)
{
    size_t part = ref_kv_part(kv);
    for (size_t l = 0; l < (size_t)kv->shape.layers; l++)
        memcpy((char *)kv->data + (l * (size_t)kv->shape.pages + (size_t)page) * part, (const char *)host + l * part,
               part);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

static void *ref_alloc(struct dev *d, size_t bytes)
{
    if (bytes > SIZE_MAX - 64) return NULL;
    size_t size = (bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, size ? size : 64);
    return p ? memset(p, 0, size ? size : 64) : NULL;
}

static void ref_free(struct dev *d, void *p)
{
    free(p);
}

static void ref_copy(struct dev *d, void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
}

static int ref_finish(struct dev *d)
{
    return d->error.op ? -1 : 0;
}

static void ref_close(struct dev *d)
{
    free(d);
}

struct ref_dev {
    struct dev head;
    struct dev_ops ops;
};

struct dev *ref_open(char why[160])
{
    struct ref_dev *d = calloc(1, sizeof *d);
    if (!d) {
        snprintf(why, 160, "out of memory");
        return NULL;
    }
    d->ops = (struct dev_ops){.name = "ref",
                              .host_memory = true,
                              .embed = ref_embed,
                              .norm = ref_norm,
                              .add = ref_add, /* add_norm: composed */
                              .linear = ref_linear,
                              .route = ref_route,
                              .experts_linear = ref_experts_linear, /* experts_gate_up: composed */
                              .combine = ref_combine,
                              .head_norm = ref_head_norm,
                              .rope_kv = ref_rope_kv,
                              .attn = ref_attn,
                              .act_mul = ref_act_mul,
                              .act = ref_act,
                              .softcap = ref_softcap_op,
                              .rows = ref_rows,
                              .sample = ref_sample,
#define X(op) .op = ref_##op,
                              TRAIN_OPS(X)
#undef X
                                  .weight_pack = ref_weight_pack,
                              .weight_free = ref_weight_free,
                              .weight_update = ref_weight_update,
                              .weight_bytes = ref_weight_bytes,
                              .kv_type = DT_F16,
                              .kv_page_bytes = ref_kv_page_bytes,
                              .kv_open = ref_kv_open,
                              .kv_close = ref_kv_close,
                              .kv_save = ref_kv_save,
                              .kv_load = ref_kv_load,
                              .alloc = ref_alloc,
                              .free = ref_free,
                              .upload = ref_copy,
                              .download = ref_copy,
                              .finish = ref_finish,
                              .close = ref_close};
    compose_fill(&d->ops);
    d->head = (struct dev){.ops = &d->ops, .threads = 1, .level = "ref"};
    return &d->head;
}
