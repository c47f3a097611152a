/* An adapter from its configuration's text and its tensors.  Both are untrusted: the configuration decides each
 * module's rank, and the tensors must be exactly the resulting ones, with the resulting shapes. */
#include "engine/model/adapter.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/adapter_experts.h"
#include "engine/model/adapter_tensor.h"
#include "engine/model/peft_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = LORA_NAME_MAX };

/* ---- the tensors ---- */

struct found {
    const struct tensor *a, *b;
};

static const char *after(const char *s, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(s, prefix, n) == 0 ? s + n : s;
}

static int refuse_tensor(const char *name, struct err *e)
{
    static const struct {
        const char *part, *what;
    } known[] = {
        {"lora_magnitude_vector", "DoRA is not supported"},
        {"base_layer.", "a saved base layer (a resized vocabulary?) is not supported"},
        {"modules_to_save", "whole trained modules (modules_to_save) are not supported, but a head of one score"},
        {"lora_B.bias", "lora_bias is not supported"},
        {"lora_B.default.bias", "lora_bias is not supported"},
        {"lm_head.weight", "a whole output head (modules_to_save, or a resized vocabulary) is not supported"},
        {"embed_tokens.weight", "a whole embedding table (modules_to_save, or a resized vocabulary) is not supported"},
        {"wte.weight", "a whole embedding table (modules_to_save, or a resized vocabulary) is not supported"},
        {".bias", "trained biases are not supported"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(name, known[i].part)) return err_set(e, ERR_UNSUPPORTED, "tensor %.160s: %s", name, known[i].what);
    return err_set(e, ERR_INVALID, "tensor %.160s belongs to no module of this model that can have an adapter", name);
}

/* "3.self_attn..." of "layers.3.self_attn..."; NULL: the name has another form. */
static const char *layer_number(const char *s, const char *layers)
{
    size_t n = strlen(layers);
    return strncmp(s, layers, n) == 0 && s[n] == '.' && s[n + 1] >= '0' && s[n + 1] <= '9' ? s + n + 1 : NULL;
}

/* The end of a tensor's name after its module's: 'A' or 'B' of ".lora_A.weight" (of the embedding table
 * ".lora_embedding_A"), where ".default" may follow the A; 'W' of ".base_layer.weight" and ".bias", else 0. */
static char matrix_of(const struct lora_module *m, const char *rest)
{
    bool embedding = m->gemm == GEMM_EMBEDDING;
    const char *at = after(rest, embedding ? ".lora_embedding_" : ".lora_");
    if (strcmp(rest, ".base_layer.weight") == 0 || strcmp(rest, ".base_layer.bias") == 0) return 'W';
    if (at == rest || (*at != 'A' && *at != 'B')) return 0;
    const char *end = after(at + 1, ".default");
    return strcmp(end, embedding ? "" : ".weight") == 0 ? *at : 0;
}

/* A tensor of the embedding table or the head.  PEFT writes their weights beside the adapter; those of a vocabulary of
 * the model's size are taken to be the model's own.  @return 1: placed; 0: it is none; or an error code */
static int place_end(const struct adapter *shape, const struct model_config *c, const struct tensor *t,
                     struct found *found, struct err *e)
{
    const struct tensor_table *table = c->family->tensors;
    const char *s = after(t->name, "base_model.model.");
    for (int m = 0; m < shape->n_modules; m++) {
        const struct lora_module *module = &shape->module[m];
        char which = 0;
        for (int i = 0; i < TENSOR_PREFIXES && table->prefix[i] && module->end && !which; i++) {
            const char *name = after(s, table->prefix[i]), *rest = after(name, module->path);
            if (rest == name && module->gemm == GEMM_LM_HEAD) rest = after(name, HEAD_NAME);
            if (rest != name) which = matrix_of(module, rest);
        }
        if (!which) continue;
        if (which == 'W')
            return t->dims[0] == c->vocab && (t->n_dims == 1 || (t->n_dims == 2 && t->dims[1] == c->hidden));
        const struct tensor **slot = which == 'A' ? &found[m].a : &found[m].b;
        if (*slot) return err_set(e, ERR_INVALID, "tensors %.100s and %.100s are the same", (*slot)->name, t->name);
        *slot = t;
        return 1;
    }
    return 0;
}

/* Whether a name is of the part for images: an adapter of all linear layers has it, and texts do not use it. */
static bool of_images(const struct model_config *c, const char *s)
{
    static const char *const parts[] = {"vision_tower.", "multi_modal_projector."};
    bool found = false;
    s = after(s, "model.");
    for (size_t i = 0; c->with_images && i < sizeof parts / sizeof *parts; i++) found |= after(s, parts[i]) != s;
    return found;
}

/* The head of scores.  @return 1: placed; 0: it is none; or an error code */
static int place_score(const struct tensor *t, const struct model_config *c, const struct tensor **score, struct err *e)
{
    if (strcmp(after(t->name, "base_model.model."), SCORE_WEIGHT) != 0) return 0;
    if (t->n_dims != 2 || t->dims[0] != 1 || t->dims[1] != c->hidden)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.160s: shape is not [1, %d]: only a head of one score is supported",
                       t->name, c->hidden);
    if (tensor_float_type(t->type) == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.160s: type %s is not F32, F16 or BF16", t->name,
                       tensor_type_name(t->type));
    if (*score) return err_set(e, ERR_INVALID, "tensors %.100s and %.100s are the same", (*score)->name, t->name);
    *score = t;
    return 1;
}

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; the first part and "model." may be left out, and
 * ".default" may follow lora_A. */
static int place_tensor(const struct adapter *shape, const struct model_config *c, const struct tensor *t,
                        struct found *found, struct adapter_experts *experts, struct err *e)
{
    const struct tensor_table *table = c->family->tensors;
    const char *s = after(t->name, "base_model.model."), *number = NULL;
    if (of_images(c, s)) return 0;
    for (int i = 0; i < TENSOR_PREFIXES && table->prefix[i] && !number; i++)
        number = layer_number(after(s, table->prefix[i]), table->layers);
    int placed = number ? 0 : place_end(shape, c, t, found, e);
    if (placed) return placed < 0 ? placed : 0;
    if (!number) return refuse_tensor(t->name, e);
    char *end;
    long layer = strtol(number, &end, 10);
    if (*end != '.' || (*number == '0' && end != number + 1)) return refuse_tensor(t->name, e);
    if (layer >= shape->layers)
        return err_set(e, ERR_INVALID, "tensor %.160s: the model has %d layers", t->name, shape->layers);
    int rc = adapter_experts_place(experts, (int)layer, end + 1, t, e);
    if (rc) return rc < 0 ? rc : 0;
    for (int m = 0; m < shape->n_modules; m++) {
        const char *rest = after(end + 1, shape->module[m].path);
        bool a = strncmp(rest, ".lora_A.", 8) == 0, b = strncmp(rest, ".lora_B.", 8) == 0;
        if (rest == end + 1 || (!a && !b) || strcmp(after(rest + 8, "default."), "weight")) continue;
        struct found *f = &found[layer * shape->n_modules + m];
        const struct tensor **slot = a ? &f->a : &f->b;
        if (*slot) return err_set(e, ERR_INVALID, "tensors %.100s and %.100s are the same", (*slot)->name, t->name);
        *slot = t;
        return 0;
    }
    return refuse_tensor(t->name, e);
}

int adapter_tensor_check(const struct tensor *t, const char *name, const char *which, int rows, int cols, struct err *e)
{
    if (!t) return err_set(e, ERR_INVALID, "tensor %s.%s%s is missing", name, which, which[5] == 'e' ? "" : ".weight");
    if (tensor_float_type(t->type) == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.160s: type %s is not F32, F16 or BF16", t->name,
                       tensor_type_name(t->type));
    if (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols) return 0;
    return err_set(e, ERR_INVALID, "tensor %.160s: shape is not [%d, %d], as the model and the rank %d make it",
                   t->name, rows, cols, which[strlen(which) - 1] == 'A' ? rows : cols);
}

int adapter_tensor_read(const struct tensor_source *f, const struct tensor *t, float *out, struct err *e)
{
    size_t width = dtype_bytes(tensor_float_type(t->type), 1);
    CHECK(width > 0); /* checked by adapter_tensor_check */
    size_t n = t->bytes / width;
    int rc = tensor_source_populate(f, t, e);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        out[i] = tensor_element(t, i);
        if (!isfinite(out[i])) return err_set(e, ERR_INVALID, "tensor %.160s: value %zu is not finite", t->name, i);
    }
    tensor_source_release(f, t);
    return 0;
}

/* ---- both ---- */

struct reading {
    struct peft_config p;
    const struct tensor_source *f;
    const struct model_config *c;
    const struct adapter *shape; /* layers and modules only */
    struct found *found;
    const struct tensor *score;
    struct adapter_experts *experts; /* NULL: the model has none */
    int *rank;
    double *alpha;
    float *scale; /* of parameters */
};

static const struct lora_module *module_of(const struct reading *r, int i)
{
    return &r->shape->module[i % r->shape->n_modules];
}

static void module_name(const struct reading *r, int i, char out[NAME_MAX_LEN])
{
    lora_module_name(r->c, i / r->shape->n_modules, module_of(r, i), out);
}

/* The rank and alpha that the configuration gives one module, to r->rank and r->alpha; those of parameters are decided
 * by the tensors too, later. */
static int decide(struct reading *r, int i, int *any, struct err *e)
{
    char name[NAME_MAX_LEN];
    const struct lora_module *m = module_of(r, i);
    int layer = i / r->shape->n_modules;
    module_name(r, i, name);
    if (!lora_module_present(r->c, layer, m) || (m->end && r->p.all_linear)) return 0;
    int rc = m->parameter ? adapter_experts_named(r->c, &r->p, m, layer, e)
                          : peft_config_targets(&r->p, m->end ? -1 : layer, name, e);
    if (!rc && m->gemm == GEMM_LM_HEAD) {
        snprintf(name, sizeof name, HEAD_NAME);
        rc = peft_config_targets(&r->p, -1, name, e);
    }
    *any |= rc > 0;
    if (m->parameter && rc > 0) return 0;
    return rc <= 0 ? rc : peft_config_rank(&r->p, name, &r->rank[i], &r->alpha[i], e);
}

static int check_module(const struct reading *r, int i, struct err *e)
{
    const struct lora_module *m = module_of(r, i);
    const struct found *f = &r->found[i];
    char name[NAME_MAX_LEN];
    if (m->parameter)
        return adapter_experts_shape(r->experts, &r->p, m, i / r->shape->n_modules, &r->rank[i], &r->scale[i], e);
    module_name(r, i, name);
    if (!r->rank[i] && (f->a || f->b))
        return err_set(e, ERR_INVALID, "tensor %.160s is there, but target_modules does not name its module",
                       (f->a ? f->a : f->b)->name);
    if (!r->rank[i]) return 0;
    bool embedding = m->gemm == GEMM_EMBEDDING;
    int rc = adapter_tensor_check(f->a, name, embedding ? "lora_embedding_A" : "lora_A", r->rank[i], m->k, e);
    if (rc) return rc;
    return adapter_tensor_check(f->b, name, embedding ? "lora_embedding_B" : "lora_B", m->n, r->rank[i], e);
}

static int read_config(struct reading *r, const char *config, struct err *e)
{
    int rc = peft_config_open(&r->p, config, r->c, e), any = 0;
    if (rc) return err_prefix(e, ADAPTER_CONFIG);
    int n = r->shape->layers * r->shape->n_modules;
    for (int i = 0; i < n && !rc; i++) rc = decide(r, i, &any, e);
    if (!rc) rc = adapter_experts_check_names(r->c, &r->p, r->shape->module, r->shape->n_modules, e);
    if (!rc && !any) rc = err_set(e, ERR_INVALID, "target_modules names no module of this model");
    if (!rc) return 0;
    peft_config_close(&r->p);
    return err_prefix(e, ADAPTER_CONFIG);
}

static int read_pair(const struct reading *r, int i, struct lora_pair *p, struct err *e)
{
    const struct lora_module *m = module_of(r, i);
    p->scale = m->parameter  ? r->scale[i]
               : r->p.rslora ? (float)(r->alpha[i] / sqrt(p->r))
                             : (float)(r->alpha[i] / p->r);
    if (!isfinite(p->scale)) return err_set(e, ERR_INVALID, "the alpha of a module is too large");
    if (m->parameter) return adapter_experts_read(r->experts, &r->p, r->f, m, i / r->shape->n_modules, p, e);
    int rc = adapter_tensor_read(r->f, r->found[i].a, p->a, e);
    return rc ? rc : adapter_tensor_read(r->f, r->found[i].b, p->b, e);
}

static int read_tensors(struct reading *r, struct adapter **out, struct err *e)
{
    int rc = 0, n = r->shape->layers * r->shape->n_modules, any = 0;
    for (size_t i = 0; i < tensor_source_count(r->f) && !rc; i++) {
        const struct tensor *t = tensor_source_at(r->f, i);
        int placed = r->p.scores ? place_score(t, r->c, &r->score, e) : 0;
        rc = placed < 0 ? placed : placed ? 0 : place_tensor(r->shape, r->c, t, r->found, r->experts, e);
    }
    if (!rc && r->p.scores && !r->score) rc = err_set(e, ERR_INVALID, "tensor " SCORE_WEIGHT " is missing");
    for (int i = 0; i < n && !rc; i++) {
        rc = check_module(r, i, e);
        any |= r->rank[i];
    }
    if (!rc && !any) rc = err_set(e, ERR_INVALID, "there is no tensor of the modules that target_modules names");
    if (rc) return rc;
    struct adapter *a = adapter_of_ranks(r->c, r->rank); /* bounded: the file holds as many bytes */
    if (!a) return err_set(e, ERR_NOMEM, "no memory for the adapter");
    a->r = (int)r->p.r;
    a->alpha = r->p.alpha;
    a->dropout = r->p.dropout;
    a->rslora = r->p.rslora;
    for (int i = 0; i < n && !rc; i++)
        if (a->pair[i].r) rc = read_pair(r, i, &a->pair[i], e);
    if (!rc && r->score) {
        a->score = mem_array((size_t)r->c->hidden, sizeof *a->score);
        rc = adapter_tensor_read(r->f, r->score, a->score, e);
    }
    if (rc)
        adapter_free(a);
    else
        *out = a;
    return rc;
}

struct adapter *adapter_parse(const char *config, const struct tensor_source *f, const struct model_config *c,
                              struct err *e)
{
    struct adapter shape = {.layers = c->layers}, *out = NULL;
    shape.n_modules = lora_modules(c, shape.module);
    size_t n = (size_t)shape.layers * (size_t)shape.n_modules;
    struct reading r = {.f = f, .c = c, .shape = &shape};
    r.found = mem_array(n, sizeof *r.found);
    r.rank = mem_array(n, sizeof *r.rank);
    r.alpha = mem_array(n, sizeof *r.alpha);
    r.scale = mem_array(n, sizeof *r.scale);
    r.experts = adapter_experts_new(c);
    if (!read_config(&r, config, e)) {
        if (read_tensors(&r, &out, e)) err_prefix(e, ADAPTER_WEIGHTS);
        peft_config_close(&r.p);
    }
    free(r.found);
    free(r.rank);
    free(r.alpha);
    free(r.scale);
    adapter_experts_free(r.experts);
    return out;
}
