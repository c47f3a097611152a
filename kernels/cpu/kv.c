/* The KV cache and the op that fills it. */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POPULATE_BYTES = 2 << 20 }; /* populated per layer and head at a time: a huge page */

/* ---- its shape ---- */

/* Computes the layout. @return false for a shape that the kernels do not support or that is too large. */
static bool kv_plan(struct kv *kv, const struct kv_shape *s)
{
    *kv = (struct kv){.shape = *s, .dim_pad = (s->head_dim + 15) / 16 * 16};
    if (s->layers < 1 || s->pages < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->head_dim > HEAD_DIM_MAX) return false;
    if (s->t != DT_F32 && s->t != DT_F16 && s->t != DT_BF16 && s->t != DT_I8) return false;
    int k_dim = s->t == DT_BF16 ? (s->head_dim + 1) / 2 * 2 : s->head_dim;
    kv->v_at = dtype_bytes(s->t, (size_t)k_dim * KV_PAGE);
    kv->scale_at = kv->v_at + dtype_bytes(s->t, (size_t)kv->dim_pad * KV_PAGE);
    size_t bytes = kv->scale_at + (s->t == DT_I8 ? 2 * KV_PAGE * sizeof(float) : 0);
    kv->block_bytes = (bytes + 63) / 64 * 64;
    size_t blocks = (size_t)s->layers * (size_t)s->pages; /* both below 2^31 */
    return !__builtin_mul_overflow(blocks, (size_t)s->kv_heads, &blocks) &&
           !__builtin_mul_overflow(blocks, kv->block_bytes, &kv->data_bytes);
}

size_t cpu_kv_page_bytes(const struct kv_shape *s)
{
    struct kv kv;
    struct kv_shape one = *s;
    one.pages = 1;
    return kv_plan(&kv, &one) ? kv.data_bytes : 0;
}

/* ---- its memory ---- */

/* Thread: makes pages `from` to from + ahead resident, in every layer and head. */
static void *populate(void *arg)
{
    const struct kv *kv = arg;
    int left = kv->shape.pages - kv->from, n = left < kv->ahead ? left : kv->ahead;
    size_t step = (size_t)sysconf(_SC_PAGESIZE);
    for (int layer = 0; layer < kv->shape.layers; layer++)
        for (int head = 0; head < kv->shape.kv_heads; head++) {
            uint8_t *p = kv_block(kv, layer, kv->from, head), *end = p + (size_t)n * kv->block_bytes;
            p -= (uintptr_t)p % step;
            cpu_populate(p, (size_t)(end - p));
        }
    return NULL;
}

/* Called before `page` is written. Pages are first used in order. The first touch of a huge page may take the kernel
 * milliseconds, and a page of the cache touches one in every layer and head, so a thread makes them resident in
 * advance. */
static void reach(struct kv *kv, int page)
{
    if (page + kv->ahead / 2 < kv->asked || kv->asked >= kv->shape.pages) return;
    if (kv->populating) pthread_join(kv->populator, NULL); /* has usually finished long ago */
    kv->from = kv->asked;
    kv->asked += kv->ahead;
    /* if that fails, pages become resident on first touch */
    kv->populating = pthread_create(&kv->populator, NULL, populate, kv) == 0;
}

struct kv *cpu_kv_open(struct dev *d, const struct kv_shape *s)
{
    struct kv *kv = malloc(sizeof *kv);
    if (!kv || !kv_plan(kv, s)) return free(kv), NULL;
    kv->data = cpu_map(kv->data_bytes);
    if (!kv->data) return free(kv), NULL;
    kv->ahead = (int)(POPULATE_BYTES / kv->block_bytes) + 1; /* block_bytes: at most some KiB */
    reach(kv, 0);
    return kv;
}

void cpu_kv_close(struct dev *d, struct kv *kv)
{
    if (!kv) return;
    if (kv->populating) pthread_join(kv->populator, NULL);
    cpu_unmap(kv->data, kv->data_bytes);
    free(kv);
}

void cpu_kv_save(struct dev *d, const struct kv *kv, int page, void *host)
{
    uint8_t *to = host;
    for (int layer = 0; layer < kv->shape.layers; layer++)
        for (int head = 0; head < kv->shape.kv_heads; head++, to += kv->block_bytes)
            memcpy(to, kv_block(kv, layer, page, head), kv->block_bytes);
}

void cpu_kv_load(struct dev *d, struct kv *kv, int page, const void *host)
{
    const uint8_t *from = host;
    reach(kv, page);
    for (int layer = 0; layer < kv->shape.layers; layer++)
        for (int head = 0; head < kv->shape.kv_heads; head++, from += kv->block_bytes)
            memcpy(kv_block(kv, layer, page, head), from, kv->block_bytes);
}

/* Stores one head's k and v of one token at index `place` of a page's block. */
static void kv_store(const struct isa *isa, const struct kv *kv, uint8_t *block, int place, const float *k,
                     const float *v)
{
    int dim = kv->shape.head_dim;
    void *to_k = block, *to_v = block + kv->v_at;
    size_t v_row = (size_t)place * kv->dim_pad;
    float *scales = (float *)(block + kv->scale_at);
    int8_t q[HEAD_DIM_MAX];
    uint16_t half[HEAD_DIM_MAX];
    switch (kv->shape.t) {
    case DT_F32:
        for (int i = 0; i < dim; i++) ((float *)to_k)[i * KV_PAGE + place] = k[i];
        memcpy((float *)to_v + v_row, v, (size_t)dim * sizeof *v);
        break;
    case DT_BF16:
        isa->halve(half, DT_BF16, k, dim);
        for (int i = 0; i < dim; i++) ((uint16_t *)to_k)[(i / 2 * KV_PAGE + place) * 2 + i % 2] = half[i];
        isa->halve(half, DT_BF16, v, dim);
        for (int i = 0; i < dim; i++)
            ((uint16_t *)to_v)[((size_t)(place / 2) * kv->dim_pad + i) * 2 + place % 2] = half[i];
        break;
    case DT_F16:
        isa->halve(half, DT_F16, k, dim);
        for (int i = 0; i < dim; i++) ((uint16_t *)to_k)[i * KV_PAGE + place] = half[i];
        isa->halve(half, DT_F16, v, dim);
        memcpy((uint16_t *)to_v + v_row, half, (size_t)dim * sizeof *half);
        break;
    default:
        isa->quantise(q, scales + place, k, dim);
        for (int i = 0; i < dim; i++) ((int8_t *)to_k)[i * KV_PAGE + place] = q[i];
        isa->quantise((int8_t *)to_v + v_row, scales + KV_PAGE + place, v, dim);
    }
}

/* Rounds x as storing it in a cache of type t and reading it there does. */
static void kv_round(const struct isa *isa, enum dtype t, float *x, int dim)
{
    int8_t q[HEAD_DIM_MAX];
    uint16_t half[HEAD_DIM_MAX];
    float step;
    if (t == DT_F32) return;
    if (t == DT_I8) {
        isa->quantise(q, &step, x, dim);
        for (int i = 0; i < dim; i++) x[i] = (float)q[i] * step;
        return;
    }
    isa->halve(half, t, x, dim);
    for (int i = 0; i < dim; i++) x[i] = t == DT_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
}

struct rope_run {
    const struct isa *isa;
    const struct rope_kv_args *a;
    int per_task;
};

static void rope_token(const struct rope_run *r, int t)
{
    const struct rope_kv_args *a = r->a;
    const struct kv *kv = a->kv;
    int dim = a->head_dim, place = a->slot[t] % KV_PAGE;
    float *q = mat_row(&a->qkv, t), *k = q + (size_t)a->heads * dim, *v = k + (size_t)a->kv_heads * dim;
    if (a->rot)
        for (int h = 0; h < a->heads + a->kv_heads; h++)
            r->isa->rope(q + (size_t)h * dim, a->rot, a->cos + (size_t)a->pos[t] * (a->rot / 2),
                         a->sin + (size_t)a->pos[t] * (a->rot / 2));
    for (int h = 0; h < a->kv_heads; h++) {
        uint8_t *block = kv_block(kv, a->layer, a->slot[t] / KV_PAGE, h);
        kv_store(r->isa, kv, block, place, k + h * dim, v + h * dim);
    }
    if (!a->rounds) return;
    for (int h = kv->shape.t == DT_BF16 ? 0 : a->heads; h < a->heads + 2 * a->kv_heads; h++)
        kv_round(r->isa, kv->shape.t, q + (size_t)h * dim, dim);
}

static void rope_task(void *ctx, int task, int worker)
{
    const struct rope_run *r = ctx;
    int end = (task + 1) * r->per_task;
    for (int t = task * r->per_task; t < end && t < r->a->qkv.rows; t++) rope_token(r, t);
}

void cpu_rope_kv(struct dev *head, const struct rope_kv_args *a)
{
    struct cpu_dev *d = cpu_of(head);
    int rows = a->qkv.rows, n_tasks = head->threads * 4 < rows ? head->threads * 4 : rows;
    if (rows == 0) return;
    int last = 0;
    for (int t = 0; t < rows; t++) last = a->slot[t] / KV_PAGE > last ? a->slot[t] / KV_PAGE : last;
    reach(a->kv, last);
    struct rope_run r = {d->isa, a, (rows + n_tasks - 1) / n_tasks};
    double ns = (double)rows * a->head_dim * (a->heads * 0.2 + a->kv_heads * 1.5);
    cpu_run(d, rope_task, &r, (rows + r.per_task - 1) / r.per_task, ns);
}
