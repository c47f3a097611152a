#include "engine/model/gguf_source.h"

#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"
#include "engine/files/model_file.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

enum row_flags {
    ROW_PAIRS = 1,     /* the heads' rows are permuted where the architecture's are: of q */
    ROW_PAIRS_KV = 2,  /* likewise, of k */
    ROW_PLUS_ONE = 4,  /* a norm stored as 1 + w */
    ROW_TRANSPOSED = 8 /* stored [outputs][inputs], by the family's own files [inputs][outputs] */
};

/* "blk.3.attn_q.weight" is "model.layers.3.self_attn.q_proj.weight". */
struct row {
    const char *gguf, *module;
    int flags;
};

/* Names: ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py and constants.py. */
static const struct row llama_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj", ROW_PAIRS},
    {"attn_k", "self_attn.k_proj", ROW_PAIRS_KV},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct row gemma_rows[] = {
    {"attn_norm", "input_layernorm", ROW_PLUS_ONE},
    {"post_attention_norm", "post_attention_layernorm", ROW_PLUS_ONE},
    {"ffn_norm", "pre_feedforward_layernorm", ROW_PLUS_ONE},
    {"post_ffw_norm", "post_feedforward_layernorm", ROW_PLUS_ONE},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm", ROW_PLUS_ONE},
    {"attn_k_norm", "self_attn.k_norm", ROW_PLUS_ONE},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct row phi_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.dense"},
    {"ffn_up", "mlp.fc1"},
    {"ffn_down", "mlp.fc2"},
    {0},
};
static const struct row phi3_rows[] = {
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_up", "mlp.gate_up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {0},
};
static const struct row gpt2_rows[] = {
    {"attn_norm", "ln_1"},
    {"ffn_norm", "ln_2"},
    {"attn_qkv", "attn.c_attn", ROW_TRANSPOSED},
    {"attn_output", "attn.c_proj", ROW_TRANSPOSED},
    {"ffn_up", "mlp.c_fc", ROW_TRANSPOSED},
    {"ffn_down", "mlp.c_proj", ROW_TRANSPOSED},
    {0},
};

static const struct row model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}, {0}};
static const struct row gemma_model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm", ROW_PLUS_ONE}, {"output", "lm_head"}, {0}};
static const struct row phi_model_rows[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.final_layernorm"}, {"output", "lm_head"}, {0}};
static const struct row gpt2_model_rows[] = {{"token_embd", "transformer.wte"},
                                             {"position_embd", "transformer.wpe"},
                                             {"output_norm", "transformer.ln_f"},
                                             {"output", "lm_head"},
                                             {0}};

/* By model_type; the first is for all others. */
static const struct names {
    const char *model_type, *layers;
    const struct row *layer, *model;
} tables[] = {
    {"llama", "model.layers", llama_rows, model_rows},
    {"gemma2", "model.layers", gemma_rows, gemma_model_rows},
    {"gemma3_text", "model.layers", gemma_rows, gemma_model_rows},
    {"phi", "model.layers", phi_rows, phi_model_rows},
    {"phi3", "model.layers", phi3_rows, model_rows},
    {"gpt2", "transformer.h", gpt2_rows, gpt2_model_rows},
};

static const struct names *names_of(const struct gguf_arch *arch)
{
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (strcmp(tables[i].model_type, arch->model_type) == 0) return &tables[i];
    return &tables[0];
}

/* The row of a module: name is "attn_q.weight", of which *suffix becomes ".weight". */
static const struct row *find_row(const struct row *r, const char *name, const char **suffix)
{
    *suffix = strrchr(name, '.');
    if (!*suffix || (strcmp(*suffix, ".weight") && strcmp(*suffix, ".bias"))) return NULL;
    size_t n = (size_t)(*suffix - name);
    for (; r->gguf; r++)
        if (strlen(r->gguf) == n && memcmp(r->gguf, name, n) == 0) return r;
    return NULL;
}

/* "3.attn_q.weight": the layer, and *rest "attn_q.weight".  @return -1: no number */
static int layer_of(const char *s, const char **rest)
{
    char *end;
    long n = *s >= '0' && *s <= '9' ? strtol(s, &end, 10) : -1;
    if (n < 0 || n > INT16_MAX || *end != '.') return -1;
    *rest = end + 1;
    return (int)n;
}

/* ---- the source -------------------------------------------------------------------------------------------------- */

struct source {
    struct tensor_source source;
    struct gguf *file;
    struct gguf_heads heads;
    const struct gguf_arch *arch;
    struct tensor *v; /* sorted by name */
    void **owned;     /* of each tensor: its data, where that is not in the file, and its form */
    size_t n, n_owned;
};

static size_t source_count(const struct tensor_source *source)
{
    return ((const struct source *)source)->n;
}

static const struct tensor *source_at(const struct tensor_source *source, size_t i)
{
    return &((const struct source *)source)->v[i];
}

static const struct tensor *source_find(const struct tensor_source *source, const char *name)
{
    const struct source *s = (const struct source *)source;
    return tensors_find(s->v, s->n, name);
}

static const char *source_metadata(const struct tensor_source *source, const char *key)
{
    (void)source;
    (void)key;
    return NULL;
}

static int source_verify(const struct tensor_source *source, struct err *e)
{
    (void)source;
    return err_set(e, ERR_UNSUPPORTED, "a GGUF file has no checksums");
}

static void source_release(const struct tensor_source *source, const struct tensor *t)
{
    const struct source *s = (const struct source *)source;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)t->data + page - 1) / page * page,
              to = ((uintptr_t)t->data + t->bytes) / page * page;
    for (size_t i = 0; i < s->n_owned; i++)
        if (s->owned[i] == t->data) return; /* a converted copy */
    if (gguf_is_mapped(s->file) && to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static void source_close(struct tensor_source *source)
{
    struct source *s = (struct source *)source;
    for (size_t i = 0; i < s->n; i++) free(s->v[i].name);
    for (size_t i = 0; i < s->n_owned; i++) free(s->owned[i]);
    free(s->v);
    free(s->owned);
    gguf_close(s->file);
    free(s);
}

static const struct tensor_source_ops source_ops = {
    .count = source_count,
    .at = source_at,
    .find = source_find,
    .metadata = source_metadata,
    .verify = source_verify,
    .release = source_release,
    .close = source_close,
};

static void *own(struct source *s, void *p)
{
    s->owned[s->n_owned++] = p;
    return p;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static enum tensor_type type_of(enum ggml_type t)
{
    return t == GGML_F32 ? TENSOR_F32 : t == GGML_F16 ? TENSOR_F16 : t == GGML_BF16 ? TENSOR_BF16 : TENSOR_OTHER;
}

static int heads_of(const struct source *s, const struct row *r)
{
    if (s->arch->rope != GGUF_ROPE_PAIRS) return 0;
    return r->flags & ROW_PAIRS ? s->heads.q : r->flags & ROW_PAIRS_KV ? s->heads.kv : 0;
}

static int check_heads(const struct source *s, const struct gguf_tensor *g, int heads, int64_t rows, struct err *e)
{
    if (!heads || rows == (int64_t)heads * s->heads.dim) return 0;
    return err_set(e, ERR_INVALID, "tensor %.100s: %lld rows are not %d heads of %d features", g->name, (long long)rows,
                   heads, s->heads.dim);
}

static int add_vector(struct source *s, const struct gguf_tensor *g, const struct row *r, struct tensor *t,
                      struct err *e)
{
    int heads = heads_of(s, r);
    int rc = check_heads(s, g, heads, t->dims[0], e);
    if (t->type == TENSOR_OTHER)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.100s: a vector of type %s", g->name, ggml_type_name(g->type));
    if (rc || (!heads && !(r->flags & ROW_PLUS_ONE))) return rc;
    float *p = mem_try_alloc((size_t)t->dims[0] * sizeof *p);
    if (!p) return err_set(e, ERR_NOMEM, "no memory for tensor %.100s", g->name);
    for (int64_t i = 0; i < t->dims[0]; i++)
        p[i] = tensor_element(t, (size_t)(heads ? gguf_stored_row(i, s->heads.dim) : i)) -
               (r->flags & ROW_PLUS_ONE ? 1 : 0);
    t->data = own(s, p);
    t->bytes = (size_t)t->dims[0] * sizeof *p;
    t->type = TENSOR_F32;
    return 0;
}

static int add_matrix(struct source *s, const struct gguf_tensor *g, const struct row *r, struct tensor *t,
                      struct err *e)
{
    bool blocks = t->type == TENSOR_OTHER, first = r->flags & ROW_TRANSPOSED;
    int heads = heads_of(s, r), rc = check_heads(s, g, heads, t->dims[0], e);
    if (rc || (!blocks && !heads && !first)) return rc;
    struct tensor_form *f = own(s, mem_zalloc(sizeof *f));
    *f = (struct tensor_form){blocks ? (int)g->type : -1, heads, first};
    t->form = f;
    return 0;
}

static int add_tensor(struct source *s, const struct gguf_tensor *g, const struct names *names, struct err *e)
{
    char name[256];
    const char *rest = g->name, *suffix;
    bool of_layer = strncmp(g->name, "blk.", 4) == 0;
    int layer = of_layer ? layer_of(g->name + 4, &rest) : -1;
    if (of_layer && layer < 0) return 0;
    const struct row *r = find_row(of_layer ? names->layer : names->model, rest, &suffix);
    if (!r) return 0; /* such as the table of rotations */
    if (of_layer)
        snprintf(name, sizeof name, "%s.%d.%s%s", names->layers, layer, r->module, suffix);
    else
        snprintf(name, sizeof name, "%s%s", r->module, suffix);
    if (g->n_dims > 2) return err_set(e, ERR_INVALID, "tensor %.100s: %d dimensions", g->name, g->n_dims);
    struct tensor *t = &s->v[s->n++];
    *t = (struct tensor){
        .name = mem_strdup(name), .type = type_of(g->type), .n_dims = g->n_dims, .data = g->data, .bytes = g->bytes};
    for (int i = 0; i < g->n_dims; i++) t->dims[i] = g->dims[g->n_dims - 1 - i];
    return g->n_dims == 1 ? add_vector(s, g, r, t, e) : add_matrix(s, g, r, t, e);
}

struct tensor_source *gguf_source(struct gguf *file, struct err *e)
{
    struct source *s = mem_zalloc(sizeof *s);
    size_t n = gguf_tensors(file);
    s->source.ops = &source_ops;
    s->file = file;
    s->arch = gguf_arch(file, e);
    s->v = mem_array(n + 1, sizeof *s->v);
    s->owned = mem_array(n + 1, sizeof *s->owned);
    int rc = s->arch ? gguf_heads(file, s->arch, &s->heads, e) : ERR_UNSUPPORTED; /* and *e is set */
    for (size_t i = 0; i < n && !rc; i++) rc = add_tensor(s, gguf_tensor_at(file, i), names_of(s->arch), e);
    if (!rc) tensors_sort(s->v, s->n);
    if (!rc) return &s->source;
    source_close(&s->source);
    return NULL;
}

struct tensor_source *model_source_open(const char *model, struct err *e)
{
    char *path = model_file_gguf(model);
    if (!path) return safetensors_open_dir(model, e);
    struct gguf *g = gguf_open(path, e);
    struct tensor_source *s = g ? gguf_source(g, e) : NULL;
    if (g && !s) err_prefix(e, "%.200s", path);
    free(path);
    return s;
}
