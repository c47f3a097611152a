/* Weights in the layout of the linear kernels (see struct weight), packed on all threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/nf4.h"

#include <stdlib.h>
#include <string.h>

struct pack_job {
    struct weight *w;
    const struct weight_src *parts;
    int n_parts, bias;
};

/* the part that row n of the stack lies in, and n within it; NULL past the last row */
static const struct weight_src *part_of(const struct pack_job *j, int *n)
{
    for (int i = 0; i < j->n_parts; i++) {
        if (*n < j->parts[i].rows) return j->parts + i;
        *n -= j->parts[i].rows;
    }
    return NULL;
}

static void pack_row_u16(uint16_t *to, const uint16_t *from, int K)
{
    for (int k = 0; k < K; k++) to[k * PANEL] = from[k];
}

static void pack_row_f32(float *to, const float *from, int K)
{
    for (int k = 0; k < K; k++) to[k * PANEL] = from[k];
}

static void pack_row_i8(uint8_t *to, const int8_t *from, int K, int bias)
{
    for (int k = 0; k < K; k++) to[k / 4 * 64 + k % 4] = (uint8_t)(from[k] + bias);
}

static void pack_row_i4(uint8_t *to, const uint8_t *from, int k_pad)
{
    for (int k = 0; k < k_pad; k++) {
        uint8_t nibble = k & 1 ? from[k / 2] >> 4 : from[k / 2] & 15;
        to[k / 8 * 64 + k % 4] |= (uint8_t)(nibble << (k & 4));
    }
}

static void pack_row(const struct pack_job *j, int panel, int lane)
{
    struct weight *w = j->w;
    int n = panel * PANEL + lane, K = w->cols;
    uint8_t *to = (uint8_t *)w->data + (size_t)panel * w->panel_bytes;
    const struct weight_src *s = part_of(j, &n);
    if (!s) return;
    size_t at = (size_t)n * K;
    if (w->t == DT_NF4) {
        nf4_pack_row((uint8_t *)w->data + (size_t)panel / 2 * nf4_pair_bytes(K), panel % 2 * PANEL + lane, s, n);
        return;
    }
    switch (w->t) {
    case DT_F32: pack_row_f32((float *)to + lane, (const float *)s->data + at, K); break;
    case DT_BF16:
    case DT_F16: pack_row_u16((uint16_t *)to + lane, (const uint16_t *)s->data + at, K); break;
    case DT_I8:
        pack_row_i8(to + lane * 4, (const int8_t *)s->data + at, K, j->bias);
        ((float *)w->scale)[panel * PANEL + lane] = ((const float *)s->scale)[n];
        break;
    default:
        pack_row_i4(to + lane * 4, (const uint8_t *)s->data + (size_t)n * (w->k_pad / 2), w->k_pad);
        for (int g = 0; g < w->n_groups; g++)
            ((uint16_t *)w->scale)[((size_t)panel * w->n_groups + g) * PANEL + lane] =
                ((const uint16_t *)s->scale)[(size_t)n * w->n_groups + g];
    }
}

static void pack_task(void *ctx, int task, int worker)
{
    const struct pack_job *j = ctx;
    int chunk = (j->w->panels + POOL_TASKS_MAX - 1) / POOL_TASKS_MAX;
    for (int panel = task * chunk; panel < (task + 1) * chunk && panel < j->w->panels; panel++)
        for (int lane = 0; lane < PANEL; lane++) pack_row(j, panel, lane);
}

/* Sizes; false for shapes the kernels do not take: int8 rows so long that a sum could pass 2^31, or int8 weights of
 * -128 (see vec_avx2.h). */
static bool weight_plan(struct weight *w, const struct weight_src *parts, int n_parts)
{
    size_t rows = 0;
    if (n_parts < 1) return false;
    *w = (struct weight){.t = parts[0].t, .cols = parts[0].cols, .group = parts[0].group};
    for (int i = 0; i < n_parts; i++) {
        const struct weight_src *p = parts + i;
        if (p->t != w->t || p->cols != w->cols || p->group != w->group || p->rows < 1 || p->cols < 1) return false;
        rows += (size_t)p->rows;
    }
    if (rows > INT32_MAX - 64 || w->cols > INT32_MAX - 256) return false;
    w->rows = (int)rows;
    w->panels = (w->rows + 2 * PANEL - 1) / (2 * PANEL) * 2;
    w->k_pad = w->cols;
    size_t K = (size_t)w->cols;
    switch (w->t) {
    case DT_F32: w->panel_bytes = K * PANEL * 4; break;
    case DT_BF16:
    case DT_F16: w->panel_bytes = K * PANEL * 2; break;
    case DT_I8:
        if (w->cols > 1 << 17) return false;
        w->k_pad = (w->cols + 3) / 4 * 4;
        w->panel_bytes = (size_t)w->k_pad * PANEL;
        w->scale_bytes = (size_t)w->panels * PANEL * sizeof(float);
        break;
    case DT_I4:
        if (w->group != 32 && w->group != 64 && w->group != 128) return false;
        w->n_groups = (w->cols + w->group - 1) / w->group;
        w->k_pad = w->n_groups * w->group;
        w->panel_bytes = (size_t)w->k_pad * PANEL / 2;
        w->scale_bytes = (size_t)w->panels * (size_t)w->n_groups * PANEL * sizeof(uint16_t);
        break;
    case DT_NF4:
        if (w->group != NF4_BLOCK || w->cols % NF4_BLOCK) return false;
        w->panel_bytes = nf4_pair_bytes(w->cols) / 2;
        break;
    default: return false;
    }
    return !__builtin_mul_overflow(w->panel_bytes, (size_t)w->panels, &w->data_bytes) && w->data_bytes < SIZE_MAX / 4;
}

static bool has_minus_128(const struct weight_src *parts, int n_parts)
{
    for (int i = 0; i < n_parts; i++) {
        const int8_t *q = parts[i].data;
        size_t n = (size_t)parts[i].rows * parts[i].cols;
        int8_t least = 0;
        for (size_t k = 0; k < n; k++) least = q[k] < least ? q[k] : least;
        if (least == -128) return true;
    }
    return false;
}

struct weight *cpu_weight_pack(struct dev *head, const struct weight_src *parts, int n_parts)
{
    struct cpu_dev *d = cpu_of(head);
    struct weight *w = calloc(1, sizeof *w);
    if (!w || !weight_plan(w, parts, n_parts) || (w->t == DT_I8 && has_minus_128(parts, n_parts))) return free(w), NULL;
    w->data = cpu_map(w->data_bytes);
    if (w->scale_bytes) w->scale = cpu_map(w->scale_bytes);
    if (!w->data || (w->scale_bytes && !w->scale)) return cpu_weight_free(head, w), NULL;
    struct pack_job j = {w, parts, n_parts, d->isa->i8_bias};
    int chunk = (w->panels + POOL_TASKS_MAX - 1) / POOL_TASKS_MAX;
    cpu_run(d, pack_task, &j, (w->panels + chunk - 1) / chunk, (double)w->data_bytes);
    return w;
}

void cpu_weight_free(struct dev *d, struct weight *w)
{
    if (!w) return;
    cpu_unmap(w->data, w->data_bytes);
    cpu_unmap(w->scale, w->scale_bytes);
    free(w);
}

size_t cpu_weight_bytes(const struct weight *w)
{
    return w->data_bytes + w->scale_bytes;
}
