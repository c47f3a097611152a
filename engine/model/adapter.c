/* The modules of each family, and the memory of an adapter.  Reading is in adapter_dir.c and adapter_read.c, writing in
 * adapter_write.c. */
#include "engine/model/adapter.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- modules ---- */

static const char *last_component(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Adds a module of one row of the table, unless it is listed. */
static int add_module(const struct model_config *c, const struct layer_matrix *m, struct lora_module *out, int n)
{
    const struct tensor_row *row = m->row;
    for (int i = 0; i < n; i++)
        if (out[i].row == row) return n;
    CHECK(n < LORA_MODULES_MAX);
    out[n] = (struct lora_module){.name = last_component(row->module),
                                  .path = row->module,
                                  .row = row,
                                  .target = row->target,
                                  .peft = row->flags & TENSOR_PEFT,
                                  .transposed = row->flags & TENSOR_TRANSPOSED,
                                  .by_head = row->flags & TENSOR_BY_HEAD ? c->heads : 0,
                                  .gemm = m->gemm,
                                  .col = m->at,
                                  .n = m->rows,
                                  .k = m->cols};
    return n + 1;
}

/* Adds the router, the gate of a shared expert, and the experts. */
static int add_experts(const struct model_config *c, struct lora_module *out, int n)
{
    struct block_experts x = model_experts(c);
    for (const struct tensor_row *row = c->family->tensors->row; row->module && x.count; row++) {
        struct lora_module m = {.row = row, .target = row->target, .parameter = true, .n = c->hidden, .k = c->hidden};
        if (!row->target || (row->part == PART_SHARED_GATE && !x.gate)) continue;
        if (row->part == PART_ROUTER) {
            m.path = "mlp.gate.weight";
            m.gemm = GEMM_ROUTER, m.n = x.count;
        } else if (row->part == PART_SHARED_GATE) {
            m.path = row->module, m.parameter = false;
            m.gemm = GEMM_ROUTER, m.col = x.count, m.n = 1;
        } else if (row->part == PART_EXPERT_GATE) {
            m.path = "mlp.experts.gate_up_proj", m.experts = x.count;
            m.gemm = GEMM_EXPERT_UP, m.n = 2 * x.inter;
        } else if (row->part == PART_EXPERT_DOWN) {
            m.path = "mlp.experts.down_proj", m.experts = x.count;
            m.gemm = GEMM_EXPERT_DOWN, m.k = x.inter;
        } else {
            continue;
        }
        m.name = m.parameter ? m.path + strlen("mlp.") : last_component(m.path);
        CHECK(n < LORA_MODULES_MAX);
        out[n++] = m;
    }
    return n;
}

/* Adds the embedding table and the LM head. */
static int add_ends(const struct model_config *c, struct lora_module *out, int n)
{
    if (!tensors_have_head(c)) return n;
    for (const struct tensor_row *row = c->family->tensors->row; row->module; row++) {
        bool head = row->part == PART_HEAD;
        if (!head && row->part != PART_EMBED) continue;
        CHECK(n < LORA_MODULES_MAX);
        struct lora_module m = {.name = last_component(row->module), .path = row->module, .row = row, .end = true};
        m.target = head ? TARGET_HEAD : TARGET_EMBEDDING;
        m.gemm = head ? GEMM_LM_HEAD : GEMM_EMBEDDING;
        m.n = head ? c->vocab : c->hidden;
        m.k = head ? c->hidden : c->vocab;
        out[n++] = m;
    }
    return n;
}

int lora_modules(const struct model_config *c, struct lora_module out[LORA_MODULES_MAX])
{
    struct layer_matrix m[LAYER_MATRICES_MAX];
    int n = 0;
    for (int layer = 0; layer < c->layers; layer++) {
        if (layer && c->kind[layer] == c->kind[layer - 1]) continue;
        int all = tensors_layer_matrices(c, layer, m);
        for (int i = 0; i < all; i++)
            if (m[i].row->target) n = add_module(c, &m[i], out, n);
    }
    return add_ends(c, out, add_experts(c, out, n));
}

bool lora_module_present(const struct model_config *c, int layer, const struct lora_module *m)
{
    return m->end ? layer == 0 : tensors_row_present(c, layer, m->row);
}

void lora_module_name(const struct model_config *c, int layer, const struct lora_module *m, char out[LORA_NAME_MAX])
{
    char prefix[64];
    if (m->end) {
        tensors_module(c, m->row->part, out);
        return;
    }
    lora_layer_prefix(c, layer, prefix);
    snprintf(out, LORA_NAME_MAX, "%s%s", prefix, m->path);
}

void lora_layer_prefix(const struct model_config *c, int layer, char out[64])
{
    const struct tensor_table *t = c->family->tensors;
    snprintf(out, 64, "%s%s.%d.", c->with_images ? IMAGES_PREFIX : t->prefix[0], t->layers, layer);
}

static size_t stored_row(const struct lora_module *m, int i)
{
    return (size_t)(m->by_head ? tensors_stored_row(m->by_head, m->n, i) : i);
}

void lora_b_to_outputs(const struct lora_module *m, int r, const float *stored, float *out)
{
    size_t n = (size_t)r;
    for (int i = 0; i < m->n * lora_copies(m); i++)
        memcpy(out + (size_t)i * n, stored + stored_row(m, i) * n, n * sizeof *out);
}

void lora_b_to_stored(const struct lora_module *m, int r, const float *outputs, float *out)
{
    size_t n = (size_t)r;
    for (int i = 0; i < m->n * lora_copies(m); i++)
        memcpy(out + stored_row(m, i) * n, outputs + (size_t)i * n, n * sizeof *out);
}

/* ---- memory ---- */

static size_t pair_floats(const struct lora_module *m, int r)
{
    return (size_t)r * ((size_t)m->k + (size_t)m->n) * (size_t)lora_copies(m);
}

struct adapter *adapter_of_ranks(const struct model_config *c, const int *rank)
{
    struct adapter *a = mem_zalloc(sizeof *a);
    a->layers = c->layers;
    a->n_modules = lora_modules(c, a->module);
    size_t n = (size_t)a->layers * (size_t)a->n_modules, floats = 0;
    for (size_t i = 0; i < n; i++) { /* no overflow: at most 2^14 pairs of at most 2^10 times 512 * 2^21 floats */
        CHECK(rank[i] >= 0 && rank[i] <= LORA_RANK_MAX);
        floats += pair_floats(&a->module[i % (size_t)a->n_modules], rank[i]);
    }
    CHECK(n > 0);
    a->memory = calloc(1, n * sizeof *a->pair + floats * sizeof(float)); /* calloc: no pass over a large block */
    if (!a->memory) {
        free(a);
        return NULL;
    }
    a->pair = a->memory;
    float *at = (float *)(a->pair + n);
    for (size_t i = 0; i < n; i++) {
        const struct lora_module *m = &a->module[i % (size_t)a->n_modules];
        if (!rank[i]) continue;
        a->pair[i] = (struct lora_pair){
            .r = rank[i], .a = at, .b = at + (size_t)rank[i] * (size_t)m->k * (size_t)lora_copies(m)};
        at += pair_floats(m, rank[i]);
        a->targets |= m->target;
    }
    return a;
}

struct adapter *adapter_new(const struct model_config *c, unsigned targets, int r, double alpha, bool rslora)
{
    CHECK(r >= 1 && r <= LORA_RANK_MAX);
    struct lora_module m[LORA_MODULES_MAX];
    int n_modules = lora_modules(c, m), n = c->layers * n_modules, *rank = mem_array((size_t)n, sizeof *rank);
    for (int i = 0; i < n; i++) {
        const struct lora_module *of = &m[i % n_modules];
        rank[i] = of->target & targets && lora_module_present(c, i / n_modules, of) ? r : 0;
    }
    struct adapter *a = adapter_of_ranks(c, rank);
    free(rank);
    if (!a) return NULL;
    a->r = r;
    a->alpha = alpha;
    a->rslora = rslora;
    for (int i = 0; i < n; i++)
        if (a->pair[i].r) a->pair[i].scale = (float)(rslora ? alpha / sqrt(r) : alpha / r);
    return a;
}

size_t adapter_bytes(const struct adapter *a)
{
    size_t floats = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++)
        floats += pair_floats(&a->module[i % a->n_modules], a->pair[i].r);
    return floats * sizeof(float);
}

void adapter_free(struct adapter *a)
{
    if (!a) return;
    free(a->memory);
    free(a->score);
    free(a);
}
