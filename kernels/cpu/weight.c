/* Packs weights in the layout of the linear kernels (see struct weight), on all threads. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/f8.h"
#include "kernels/cpu/nf4.h"

#include <stdlib.h>
#include <string.h>

enum { SCALES_ALIGN = 64, I4_SCALES = PAIR * sizeof(uint16_t) };

struct pack_job {
    struct weight *w;
    const struct weight_src *parts;
    int n_parts;
    const struct isa *isa;
    int pair0, pair1, pairs_per_task; /* of an update */
};

/* The part that contains an output, and its row there; NULL: padding. */
static const struct weight_src *part_of(const struct pack_job *j, int pair, int lane, int *row)
{
    if (j->w->gate_up) {
        const struct weight_src *s = j->parts + lane / PANEL;
        *row = pair * PANEL + lane % PANEL;
        return *row < s->rows ? s : NULL;
    }
    *row = pair * PAIR + lane;
    for (int i = 0; i < j->n_parts; i++) {
        if (*row < j->parts[i].rows) return j->parts + i;
        *row -= j->parts[i].rows;
    }
    return NULL;
}

static void pack_row_bf16(uint16_t *to, const uint16_t *from, int K)
{
    for (int k = 0; k < K; k++) to[k / 2 * (2 * PAIR) + k % 2] = from[k];
}

static void pack_row_f16(uint16_t *to, const uint16_t *from, int K)
{
    for (int k = 0; k < K; k++) to[k * PAIR] = from[k];
}

static void pack_row_f32(float *to, const float *from, int K)
{
    for (int k = 0; k < K; k++) to[k * PAIR] = from[k];
}

/* Packs a row; returns its entry of bias_sum. */
static int32_t pack_row_i8(uint8_t *to, const int8_t *from, int K)
{
    int sum = 0;
    for (int k = 0; k < K; k++) {
        to[k / 4 * (4 * PAIR) + k % 4] = (uint8_t)from[k];
        sum += from[k];
    }
    return -128 * sum;
}

static void pack_row_i4(const struct weight *w, uint8_t *to, int lane, const uint8_t *from, const uint16_t *scale)
{
    size_t group_bytes = w->pair_bytes / (size_t)w->n_groups;
    for (int g = 0; g < w->n_groups; g++, to += group_bytes) {
        ((uint16_t *)to)[lane] = scale[g];
        uint8_t *q = to + I4_SCALES + lane * 4;
        for (int k = 0; k < w->group; k++) {
            int at = g * w->group + k;
            uint8_t nibble = at & 1 ? from[at / 2] >> 4 : from[at / 2] & 15;
            q[k / 8 * (4 * PAIR) + k % 4] |= (uint8_t)(nibble << (k & 4));
        }
    }
}

static void pack_row(const struct pack_job *j, int pair, int lane)
{
    struct weight *w = j->w;
    int n, K = w->cols;
    uint8_t *to = w->data + (size_t)pair * w->pair_bytes;
    const struct weight_src *s = part_of(j, pair, lane, &n);
    if (!s) return;
    size_t at = (size_t)n * K;
    switch (w->t) {
    case DT_F32: pack_row_f32((float *)to + lane, (const float *)s->data + at, K); break;
    case DT_BF16: pack_row_bf16((uint16_t *)to + lane * 2, (const uint16_t *)s->data + at, K); break;
    case DT_F16: pack_row_f16((uint16_t *)to + lane, (const uint16_t *)s->data + at, K); break;
    case DT_I8:
        ((int32_t *)w->bias_sum)[pair * PAIR + lane] = pack_row_i8(to + lane * 4, (const int8_t *)s->data + at, K);
        ((float *)w->scale)[pair * PAIR + lane] = ((const float *)s->scale)[n];
        break;
    case DT_NF4: nf4_pack_row(to, lane, s, n); break;
    case DT_F8: f8_pack_row(w, to, lane, s, n); break;
    case DT_BLOCK: block_pack_row(w, pair, lane, s, n); break;
    default:
        pack_row_i4(w, to, lane, (const uint8_t *)s->data + (size_t)n * (w->k_pad / 2),
                    (const uint16_t *)s->scale + (size_t)n * w->n_groups);
    }
}

static void pack_task(void *ctx, int task, int worker)
{
    const struct pack_job *j = ctx;
    int chunk = (j->w->pairs + POOL_TASKS_MAX - 1) / POOL_TASKS_MAX;
    for (int pair = task * chunk; pair < (task + 1) * chunk && pair < j->w->pairs; pair++)
        for (int lane = 0; lane < PAIR; lane++) pack_row(j, pair, lane);
}

/* Computes sizes. @return false for shapes that the kernels do not support: int8 rows so long that a sum with the
 * bias could pass 2^31. */
static bool weight_plan(struct weight *w, const struct weight_src *s, int n_parts, size_t rows)
{
    enum dtype t = s->t;
    int cols = s->cols, group = s->group;
    if (rows < 1 || cols < 1 || rows > INT32_MAX - 64 || cols > INT32_MAX - 256) return false;
    *w = (struct weight){.t = t, .rows = (int)rows, .cols = cols, .group = group, .k_pad = cols, .gate_up = s->gate_up};
    w->pairs = s->gate_up ? (w->rows / 2 + PANEL - 1) / PANEL : (w->rows + PAIR - 1) / PAIR;
    size_t K = (size_t)cols, scale_bytes = 0, data_bytes;
    switch (t) {
    case DT_F32: w->pair_bytes = K * PAIR * 4; break;
    case DT_F16: w->pair_bytes = K * PAIR * 2; break;
    case DT_BF16:
        w->k_pad = (cols + 1) / 2 * 2;
        w->pair_bytes = (size_t)w->k_pad * PAIR * 2;
        break;
    case DT_I8:
        if (cols > 1 << 16) return false;
        w->k_pad = (cols + 3) / 4 * 4;
        w->pair_bytes = (size_t)w->k_pad * PAIR;
        scale_bytes = (size_t)w->pairs * PAIR * (sizeof(float) + sizeof(int32_t));
        break;
    case DT_I4:
        if (group != 32 && group != 64 && group != 128) return false;
        w->n_groups = (cols + group - 1) / group;
        w->k_pad = w->n_groups * group;
        w->pair_bytes = (size_t)w->n_groups * (I4_SCALES + (size_t)group / 2 * PAIR);
        break;
    case DT_NF4:
        if (group != NF4_BLOCK || cols % NF4_BLOCK) return false;
        w->pair_bytes = nf4_pair_bytes(cols);
        break;
    case DT_F8:
        if (group < 0 || group % 16) return false;
        w->n_groups = group ? (cols - 1) / group + 1 : 1;
        w->k_pad = (cols + 3) / 4 * 4;
        w->pair_bytes = (size_t)w->n_groups * F8_SCALES + (size_t)w->k_pad * PAIR;
        break;
    case DT_BLOCK: return block_plan(w, s, n_parts);
    default: return false;
    }
    bool fits = !__builtin_mul_overflow(w->pair_bytes, (size_t)w->pairs, &data_bytes) && data_bytes < SIZE_MAX / 4;
    w->data_bytes = data_bytes + scale_bytes;
    return fits;
}

/* Sets the addresses of int8 scales within data. */
static void weight_set_data(struct weight *w, uint8_t *data)
{
    w->data = data;
    if (w->t != DT_I8) return;
    w->scale = (const float *)(data + (size_t)w->pairs * w->pair_bytes);
    w->bias_sum = (const int32_t *)(w->scale + (size_t)w->pairs * PAIR);
}

/* Int8 weights of -128 are refused: see i_dot_s in vec_avx2.h. */
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

static void drop(struct weight *w)
{
    if (w) free(w->runs), free(w->order);
    free(w);
}

struct weight *cpu_weight_pack(struct dev *head, const struct weight_src *parts, int n_parts)
{
    struct cpu_dev *d = cpu_of(head);
    size_t rows = 0;
    if (n_parts < 1 || (parts->gate_up && (n_parts != 2 || parts[0].rows != parts[1].rows))) return NULL;
    for (int i = 0; i < n_parts; i++) {
        const struct weight_src *p = parts + i;
        if (p->t != parts->t || p->cols != parts->cols || p->group != parts->group || p->rows < 1) return NULL;
        rows += (size_t)p->rows;
    }
    struct weight *w = calloc(1, sizeof *w);
    if (!w || !weight_plan(w, parts, n_parts, rows) || (w->t == DT_I8 && has_minus_128(parts, n_parts)))
        return drop(w), NULL;
    uint8_t *data;
    if (!(w->slab = slab_take(&d->slabs, w->data_bytes, &data))) return drop(w), NULL;
    weight_set_data(w, data);
    struct pack_job j = {w, parts, n_parts, d->isa};
    int chunk = (w->pairs + POOL_TASKS_MAX - 1) / POOL_TASKS_MAX;
    cpu_run(d, pack_task, &j, (w->pairs + chunk - 1) / chunk, (double)w->data_bytes);
    return w;
}

static void update_task(void *ctx, int task, int worker)
{
    const struct pack_job *j = ctx;
    int from = j->pair0 + task * j->pairs_per_task, n;
    for (int pair = from; pair < from + j->pairs_per_task && pair < j->pair1; pair++) {
        const float *row[PAIR];
        for (int lane = 0; lane < PAIR; lane++) {
            const struct weight_src *s = part_of(j, pair, lane, &n);
            row[lane] = s ? (const float *)s->data + (size_t)n * s->cols : NULL;
        }
        j->isa->gemm.pack(j->w->data + (size_t)pair * j->w->pair_bytes, j->w->t, row, j->w->cols);
    }
}

void cpu_weight_update(struct dev *d, struct weight *w, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks)
{
    struct pack_job j = {w, parts, n_parts, cpu_of(d)->isa};
    j.pair0 = (int)((int64_t)w->pairs * chunk / chunks);
    j.pair1 = (int)((int64_t)w->pairs * (chunk + 1) / chunks);
    int n = j.pair1 - j.pair0;
    if (n == 0) return;
    j.pairs_per_task = (n + POOL_TASKS_MAX - 1) / POOL_TASKS_MAX;
    cpu_run(cpu_of(d), update_task, &j, (n + j.pairs_per_task - 1) / j.pairs_per_task,
            (double)n * (double)w->pair_bytes);
}

const struct weight *weight_slice(const struct weight *w, int first, int n, struct weight *slice)
{
    if (first == 0 && n == w->rows) return w;
    int pair = first / PAIR;
    *slice = *w;
    slice->rows = n;
    slice->pairs = (n + PAIR - 1) / PAIR;
    if (w->t == DT_BLOCK)
        slice->pair0 += pair;
    else
        slice->data += (size_t)pair * w->pair_bytes;
    slice->data_bytes = (size_t)slice->pairs * w->pair_bytes;
    if (w->scale) slice->scale += (size_t)pair * PAIR;
    if (w->bias_sum) slice->bias_sum += (size_t)pair * PAIR;
    return slice;
}

const void *cpu_weight_packed(const struct weight *w, size_t *bytes)
{
    *bytes = w->data_bytes;
    return w->data;
}

struct weight *cpu_weight_open(struct dev *d, const struct weight_src *shape, const void *packed, size_t bytes)
{
    struct weight *w = calloc(1, sizeof *w);
    if (!w || shape->t == DT_BLOCK || shape->rows < 1 || (shape->gate_up && shape->rows % 2) ||
        !weight_plan(w, shape, 1, (size_t)shape->rows) || w->data_bytes != bytes || (uintptr_t)packed % SCALES_ALIGN)
        return free(w), NULL;
    weight_set_data(w, (uint8_t *)packed);
    return w;
}

void weight_row(const struct weight *w, int row, float *out)
{
    int pair = row / PAIR, lane = row % PAIR, half = w->rows / 2;
    if (w->gate_up) {
        pair = row % half / PANEL;
        lane = row / half * PANEL + row % half % PANEL;
    }
    const uint8_t *p = w->data + (size_t)pair * w->pair_bytes, *q = p + lane * 4;
    const float *f = (const float *)p + lane;
    const uint16_t *h = (const uint16_t *)p;
    size_t group_bytes = w->n_groups ? w->pair_bytes / (size_t)w->n_groups : 0;
    switch (w->t) {
    case DT_F32:
        for (int k = 0; k < w->cols; k++) out[k] = f[(size_t)k * PAIR];
        break;
    case DT_F16:
        for (int k = 0; k < w->cols; k++) out[k] = f16_to_f32(h[(size_t)k * PAIR + lane]);
        break;
    case DT_BF16:
        for (int k = 0; k < w->cols; k++) out[k] = bf16_to_f32(h[(size_t)(k / 2) * (2 * PAIR) + lane * 2 + k % 2]);
        break;
    case DT_I8:
        for (int k = 0; k < w->cols; k++)
            out[k] = (float)(int8_t)q[(size_t)(k / 4) * (4 * PAIR) + k % 4] * w->scale[pair * PAIR + lane];
        break;
    case DT_NF4: nf4_unpack_row(p, lane, w->cols, out); break;
    case DT_F8: f8_unpack_row(w, p, lane, out); break;
    case DT_BLOCK: block_unpack_row(w, pair, lane, out); break;
    default:
        for (int k = 0; k < w->cols; k++) {
            int in = k % w->group;
            const uint8_t *g = p + (size_t)(k / w->group) * group_bytes;
            int nibble = g[I4_SCALES + lane * 4 + in / 8 * (4 * PAIR) + in % 4] >> (in & 4) & 15;
            out[k] = (float)(nibble - 8) * f16_to_f32(((const uint16_t *)g)[lane]);
        }
    }
}

void cpu_weight_free(struct dev *d, struct weight *w)
{
    if (!w) return;
    if (w->slab) slab_give(&cpu_of(d)->slabs, w->slab);
    drop(w);
}

size_t cpu_weight_bytes(const struct weight *w)
{
    return w->data_bytes + (w->order ? (size_t)w->cols * sizeof *w->order : 0);
}
