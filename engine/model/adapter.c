/* The modules that families have, and the memory of an adapter.  Reading is in adapter_read.c, writing in
 * adapter_write.c. */
#include "engine/model/adapter.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- modules ---- */

enum place { AT_QKV, AT_Q, AT_K, AT_V, AT_O, AT_GATE, AT_UP, AT_DOWN };

struct family_module {
    const char *name, *path;
    unsigned target;
    enum place at;
};

static const struct family_module llama_modules[] = {
    {"q_proj", "self_attn.q_proj", TARGET_Q, AT_Q},       {"k_proj", "self_attn.k_proj", TARGET_K, AT_K},
    {"v_proj", "self_attn.v_proj", TARGET_V, AT_V},       {"o_proj", "self_attn.o_proj", TARGET_O, AT_O},
    {"gate_proj", "mlp.gate_proj", TARGET_GATE, AT_GATE}, {"up_proj", "mlp.up_proj", TARGET_UP, AT_UP},
    {"down_proj", "mlp.down_proj", TARGET_DOWN, AT_DOWN}, {0},
};
static const struct family_module phi_modules[] = {
    {"q_proj", "self_attn.q_proj", TARGET_Q, AT_Q},
    {"k_proj", "self_attn.k_proj", TARGET_K, AT_K},
    {"v_proj", "self_attn.v_proj", TARGET_V, AT_V},
    {"dense", "self_attn.dense", TARGET_DENSE, AT_O},
    {"fc1", "mlp.fc1", TARGET_FC1, AT_UP},
    {"fc2", "mlp.fc2", TARGET_FC2, AT_DOWN},
    {0},
};
static const struct family_module gpt2_modules[] = {
    {"c_attn", "attn.c_attn", TARGET_C_ATTN, AT_QKV},
    {"c_proj", "attn.c_proj", TARGET_C_PROJ, AT_O},
    {"c_fc", "mlp.c_fc", TARGET_C_FC, AT_UP},
    {"c_proj", "mlp.c_proj", TARGET_C_PROJ, AT_DOWN},
    {0},
};

static void place(const struct model_config *c, enum place at, struct lora_module *m)
{
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    enum product product = PRODUCT_QKV;
    int col = 0, n = 0, k = c->hidden;
    switch (at) {
    case AT_QKV: n = q + 2 * kv; break;
    case AT_Q: n = q; break;
    case AT_K: col = q, n = kv; break;
    case AT_V: col = q + kv, n = kv; break;
    case AT_O: product = PRODUCT_O, n = c->hidden, k = q; break;
    case AT_GATE: product = PRODUCT_UP, n = c->inter; break;
    case AT_UP: product = PRODUCT_UP, n = c->inter, col = c->gated ? c->inter : 0; break;
    case AT_DOWN: product = PRODUCT_DOWN, n = c->hidden, k = c->inter; break;
    }
    m->product = product;
    m->col = col;
    m->n = n;
    m->k = k;
}

int lora_modules(const struct model_config *c, struct lora_module out[LORA_MODULES_MAX])
{
    const struct family_module *f = c->family->kind == FAMILY_GPT2  ? gpt2_modules
                                    : c->family->kind == FAMILY_PHI ? phi_modules
                                                              : llama_modules;
    int n = 0;
    for (; f[n].name; n++) {
        CHECK(n < LORA_MODULES_MAX);
        out[n] = (struct lora_module){.name = f[n].name, .path = f[n].path, .target = f[n].target};
        place(c, f[n].at, &out[n]);
    }
    return n;
}

void lora_layer_prefix(const struct model_config *c, int layer, char out[64])
{
    snprintf(out, 64, "%s.%d.", c->family->kind == FAMILY_GPT2 ? "transformer.h" : "model.layers", layer);
}

/* ---- memory ---- */

static size_t pair_floats(const struct lora_module *m, int r)
{
    return (size_t)r * ((size_t)m->k + (size_t)m->n);
}

struct adapter *adapter_of_ranks(const struct model_config *c, const int *rank)
{
    struct adapter *a = mem_zalloc(sizeof *a);
    a->layers = c->layers;
    a->n_modules = lora_modules(c, a->module);
    size_t n = (size_t)a->layers * (size_t)a->n_modules, floats = 0;
    for (size_t i = 0; i < n; i++) { /* no overflow: at most 8192 pairs of at most 512 * 2^21 floats */
        CHECK(rank[i] >= 0 && rank[i] <= LORA_RANK_MAX);
        floats += pair_floats(&a->module[i % (size_t)a->n_modules], rank[i]);
    }
    CHECK(n > 0);
    a->memory = calloc(1, n * sizeof *a->pair + floats * sizeof(float)); /* zeroed by the system where it is large */
    if (!a->memory) {
        free(a);
        return NULL;
    }
    a->pair = a->memory;
    float *at = (float *)(a->pair + n);
    for (size_t i = 0; i < n; i++) {
        const struct lora_module *m = &a->module[i % (size_t)a->n_modules];
        if (!rank[i]) continue;
        a->pair[i] = (struct lora_pair){.r = rank[i], .a = at, .b = at + (size_t)rank[i] * (size_t)m->k};
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
    for (int i = 0; i < n; i++) rank[i] = m[i % n_modules].target & targets ? r : 0;
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
    free(a);
}
