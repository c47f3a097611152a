#include "engine/model/gguf_source.h"

#include "engine/base/mem.h"
#include "engine/files/gguf_model.h"
#include "engine/files/model_file.h"
#include "engine/model/fused_experts.h"
#include "engine/model/gguf_names.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"
#include "engine/model/weights_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- names ---------------------------------------------------------------------------------------------------------
 */

/* The row of a module: name is "attn_q.weight", of which *suffix becomes ".weight". */
static const struct gguf_name *find_row(const struct gguf_name *r, const char *name, const char **suffix)
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
    struct tensor_list list;
    struct gguf *file;
    struct gguf_heads heads;
    const struct gguf_arch *arch;
    void **owned; /* data that is not in the file, and forms */
    size_t n_owned, cap_owned;
};

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
    for (size_t i = 0; i < s->list.n; i++) free(s->list.v[i].name);
    for (size_t i = 0; i < s->n_owned; i++) free(s->owned[i]);
    free(s->list.v);
    free(s->owned);
    gguf_close(s->file);
    free(s);
}

static const struct tensor_source_ops source_ops = {
    .count = tensor_list_count,
    .at = tensor_list_at,
    .find = tensor_list_find,
    .metadata = source_metadata,
    .verify = source_verify,
    .release = source_release,
    .close = source_close,
};

static void *own(struct source *s, void *p)
{
    mem_grow(&s->owned, &s->cap_owned, s->n_owned + 1, sizeof *s->owned);
    s->owned[s->n_owned++] = p;
    return p;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static enum tensor_type type_of(enum ggml_type t)
{
    return t == GGML_F32 ? TENSOR_F32 : t == GGML_F16 ? TENSOR_F16 : t == GGML_BF16 ? TENSOR_BF16 : TENSOR_OTHER;
}

/* The form of a tensor but for its blocks; its heads' rows must be as many as the keys say. */
static int form_of(const struct source *s, const struct gguf_tensor *g, const struct gguf_name *r, int64_t rows,
                   struct tensor_form *f, struct err *e)
{
    bool pairs = s->arch->rope == GGUF_ROPE_PAIRS;
    *f = (struct tensor_form){.blocks = -1, .outputs_first = r->flags & GGUF_TRANSPOSED};
    if (pairs && r->flags & GGUF_PAIRS) f->pairs = s->heads.q;
    if (pairs && r->flags & GGUF_PAIRS_KV) f->pairs = s->heads.kv;
    if (r->flags & GGUF_THIRDS) f->thirds = s->heads.q;
    int heads = f->thirds ? 3 * f->thirds : f->pairs;
    if (!heads || rows == (int64_t)heads * s->heads.dim) return 0;
    return err_set(e, ERR_INVALID, "tensor %.100s: %lld rows are not %d heads of %d features", g->name, (long long)rows,
                   heads, s->heads.dim);
}

static int add_vector(struct source *s, const struct gguf_tensor *g, const struct gguf_name *r, struct tensor *t,
                      struct err *e)
{
    struct tensor_form f;
    int rc = form_of(s, g, r, t->dims[0], &f, e);
    if (rc) return rc;
    if (t->type == TENSOR_OTHER)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.100s: a vector of type %s", g->name, ggml_type_name(g->type));
    if (!f.pairs && !f.thirds && !(r->flags & GGUF_PLUS_ONE)) return 0;
    float *p = mem_try_alloc((size_t)t->dims[0] * sizeof *p);
    if (!p) return err_set(e, ERR_NOMEM, "no memory for tensor %.100s", g->name);
    for (int64_t i = 0; i < t->dims[0]; i++)
        p[i] = tensor_element(t, (size_t)gguf_stored_row(&f, t->dims[0], i)) - (r->flags & GGUF_PLUS_ONE ? 1 : 0);
    t->data = own(s, p);
    t->bytes = (size_t)t->dims[0] * sizeof *p;
    t->type = TENSOR_F32;
    return 0;
}

/* *form: that of the tensor's other experts, or NULL, and then made here. */
static int add_matrix(struct source *s, const struct gguf_tensor *g, const struct gguf_name *r, struct tensor *t,
                      const struct tensor_form **form, struct err *e)
{
    struct tensor_form f;
    int rc = form_of(s, g, r, t->dims[0], &f, e);
    if (t->type == TENSOR_OTHER) f.blocks = (int)g->type;
    if (rc || (f.blocks < 0 && !f.pairs && !f.thirds && !f.outputs_first)) return rc;
    if (!*form) {
        struct tensor_form *own_form = own(s, mem_alloc(sizeof f));
        *own_form = f;
        *form = own_form;
    }
    t->form = *form;
    return 0;
}

/* The tensors of all experts, or the only one, from a tensor of the file. */
static int add_experts(struct source *s, const struct gguf_tensor *g, const struct gguf_name *r, const char *prefix,
                       const char *suffix, struct err *e)
{
    bool stacked = r->flags & GGUF_STACKED;
    int n_dims = g->n_dims - stacked, rc = 0;
    int64_t experts = stacked && n_dims > 0 ? g->dims[n_dims] : 1;
    const struct tensor_form *form = NULL;
    if (n_dims < 1 || n_dims > 2) return err_set(e, ERR_INVALID, "tensor %.100s: %d dimensions", g->name, g->n_dims);
    if (experts > EXPERTS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.100s: %lld experts; at most %d are supported", g->name,
                       (long long)experts, EXPERTS_MAX);
    for (int x = 0; x < experts && !rc; x++) {
        char module[TENSOR_MODULE_MAX], name[256];
        size_t bytes = g->bytes / (size_t)experts;
        tensors_expert_module(r->module, x, module);
        snprintf(name, sizeof name, "%s%s%s", prefix, module, suffix);
        mem_grow(&s->list.v, &s->list.cap, s->list.n + 1, sizeof *s->list.v);
        struct tensor *t = &s->list.v[s->list.n++];
        *t = (struct tensor){.name = mem_strdup(name),
                             .type = type_of(g->type),
                             .n_dims = n_dims,
                             .data = (const char *)g->data + (size_t)x * bytes,
                             .bytes = bytes};
        for (int i = 0; i < n_dims; i++) t->dims[i] = g->dims[n_dims - 1 - i];
        if (n_dims == 1 && r->flags & GGUF_ONE_ROW) t->n_dims = 2, t->dims[1] = t->dims[0], t->dims[0] = 1;
        rc = t->n_dims == 1 ? add_vector(s, g, r, t, e) : add_matrix(s, g, r, t, &form, e);
    }
    return rc;
}

static int add_tensor(struct source *s, const struct gguf_tensor *g, const struct gguf_names *names, struct err *e)
{
    char prefix[64] = "";
    const char *rest = g->name, *suffix;
    bool of_layer = strncmp(g->name, "blk.", 4) == 0;
    int layer = of_layer ? layer_of(g->name + 4, &rest) : -1;
    if (of_layer && layer < 0) return 0;
    const struct gguf_name *r = find_row(of_layer ? names->layer : names->model, rest, &suffix);
    if (!r) return 0; /* such as the table of rotations */
    if (of_layer) snprintf(prefix, sizeof prefix, "%s.%d.", names->layers, layer);
    return add_experts(s, g, r, prefix, r->flags & GGUF_BARE_END ? "" : suffix, e);
}

struct tensor_source *gguf_source(struct gguf *file, struct err *e)
{
    struct source *s = mem_zalloc(sizeof *s);
    size_t n = gguf_tensors(file);
    s->list.source.ops = &source_ops;
    s->file = file;
    s->arch = gguf_arch(file, e);
    int rc = s->arch ? gguf_heads(file, s->arch, &s->heads, e) : ERR_UNSUPPORTED; /* and *e is set */
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_tensor(s, gguf_tensor_at(file, i), gguf_names_of(s->arch->model_type), e);
    if (!rc) tensors_sort(s->list.v, s->list.n);
    if (!rc) return &s->list.source;
    source_close(&s->list.source);
    return NULL;
}

static struct tensor_source *open_dir(const char *model, const struct model_config *c, struct err *e)
{
    struct tensor_source *s = safetensors_open_dir(model, e);
    return s ? fused_experts_source(s, c, e) : NULL;
}

struct tensor_source *model_source_open(const char *model, const struct model_config *c, struct err *e)
{
    char *path = model_file_gguf(model);
    if (!path) return open_dir(model, c, e);
    struct gguf *g = gguf_open(path, e);
    struct tensor_source *s = g ? gguf_source(g, e) : NULL;
    if (g && !s) err_prefix(e, "%.200s", path);
    free(path);
    return s;
}
