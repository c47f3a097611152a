/* Reading an adapter directory.  Both files are untrusted: the configuration decides which modules have which rank, and
 * the tensors have to be exactly those, in those shapes. */
#include "engine/model/adapter.h"

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter_match.h"
#include "engine/model/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_LIMIT = 4 << 20, NAME_MAX_LEN = 160 };

/* ---- the configuration ---- */

struct peft {
    cJSON *json;
    double r, alpha, dropout;
    bool rslora;
    const cJSON *targets, *exclude; /* lists, or NULL where the rule below is used */
    bool all_linear;
    struct rule target, excluded; /* text NULL: none */
    const cJSON *layers;          /* layers_to_transform; NULL: all */
    struct rule_table ranks, alphas;
};

static const cJSON *get(const struct peft *p, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(p->json, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static bool says_yes(const cJSON *v)
{
    bool empty = (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child;
    bool blank = cJSON_IsString(v) && !v->valuestring[0], zero = cJSON_IsNumber(v) && v->valuedouble == 0;
    return v && !cJSON_IsNull(v) && !cJSON_IsFalse(v) && !empty && !blank && !zero;
}

/* What changes the adapter's arithmetic, or the base model's, and is not implemented. */
static const struct {
    const char *key, *what;
} refused[] = {
    {"use_dora", "DoRA"},
    {"alora_invocation_tokens", "aLoRA (activated by tokens)"},
    {"lora_bias", "a bias in lora_B"},
    {"modules_to_save", "whole trained modules"},
    {"trainable_token_indices", "trained token embeddings"},
    {"target_parameters", "adapters of bare parameters"},
    {"layer_replication", "replicated layers"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "Arrow routing"},
    {"monteclora_config", "MonteCLoRA"},
    {"kasa_config", "KaSA"},
};

static int refuse_features(const struct peft *p, struct err *e)
{
    const cJSON *type = get(p, "peft_type"), *bias = get(p, "bias"), *init = get(p, "init_lora_weights");
    if (!cJSON_IsString(type)) return err_set(e, ERR_INVALID, "peft_type is missing");
    if (strcmp(type->valuestring, "LORA"))
        return err_set(e, ERR_UNSUPPORTED, "peft_type \"%.40s\": only LORA is supported", type->valuestring);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (says_yes(get(p, refused[i].key)))
            return err_set(e, ERR_UNSUPPORTED, "%s: %s is not supported", refused[i].key, refused[i].what);
    if (bias && (!cJSON_IsString(bias) || strcmp(bias->valuestring, "none")))
        return err_set(e, ERR_UNSUPPORTED, "bias: only \"none\" is supported, trained biases are not");
    /* the others (pissa, olora, corda, loftq...) replace the base's weights by what A and B leave of them */
    static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
    bool known = !cJSON_IsString(init);
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !known; i++) known = !strcmp(init->valuestring, plain[i]);
    if (known) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "init_lora_weights \"%.40s\" trains on changed base weights: convert the adapter with "
                   "save_pretrained(path_initial_model_for_weight_conversion=...)",
                   init->valuestring);
}

static int get_number(const struct peft *p, const char *key, double otherwise, double *out, struct err *e)
{
    const cJSON *v = get(p, key);
    *out = v ? v->valuedouble : otherwise;
    if (v && (!cJSON_IsNumber(v) || !isfinite(*out))) return err_set(e, ERR_INVALID, "%s must be a number", key);
    return 0;
}

/* a list of strings, or one string; NULL: neither is there */
static int get_names(const struct peft *p, const char *key, const cJSON **list, const char **text, struct err *e)
{
    const cJSON *v = get(p, key);
    *list = cJSON_IsArray(v) ? v : NULL;
    *text = cJSON_IsString(v) ? v->valuestring : NULL;
    bool ok = !v || *list || *text;
    for (const cJSON *i = *list ? v->child : NULL; i; i = i->next) ok &= cJSON_IsString(i);
    return ok ? 0 : err_set(e, ERR_INVALID, "%s must be a list of names, or a regular expression", key);
}

/* layers_pattern is only taken when it names what the layers are called here */
static int read_layers(struct peft *p, const struct model_config *c, struct err *e)
{
    const char *text, *ours = c->family->tensors->layers;
    const cJSON *list;
    p->layers = get(p, "layers_to_transform");
    if (cJSON_IsArray(p->layers) && !p->layers->child) p->layers = NULL;
    const cJSON *one = cJSON_IsArray(p->layers) ? p->layers->child : p->layers;
    for (; one; one = one == p->layers ? NULL : one->next)
        if (!cJSON_IsNumber(one) || one->valuedouble != floor(one->valuedouble))
            return err_set(e, ERR_INVALID, "layers_to_transform must be a layer's number or a list of them");
    int rc = get_names(p, "layers_pattern", &list, &text, e);
    if (rc || !p->layers) return rc;
    bool fits = (!list || !list->child) && (!text || !*text || strcmp(text, ours) == 0);
    for (const cJSON *i = list ? list->child : NULL; i; i = i->next) fits |= strcmp(i->valuestring, ours) == 0;
    return fits ? 0 : err_set(e, ERR_UNSUPPORTED, "layers_pattern: only \"%s\" is supported for this model", ours);
}

static bool is_all_linear(const char *s)
{
    const char *want = "all-linear";
    for (; *s && *want; s++, want++)
        if (*s != *want && (*s | 32) != *want) return false;
    return !*s && !*want;
}

/* what PEFT takes where the configuration names no modules */
static cJSON *default_targets(const struct model_config *c)
{
    struct lora_module m[LORA_MODULES_MAX];
    int n = lora_modules(c, m);
    cJSON *names = cJSON_CreateArray();
    for (int i = 0; i < n; i++)
        if (m[i].peft) cJSON_AddItemToArray(names, cJSON_CreateString(m[i].name));
    return names;
}

static int read_targets(struct peft *p, const struct model_config *c, struct err *e)
{
    const char *text, *without;
    if (!get(p, "target_modules")) {
        cJSON_DeleteItemFromObjectCaseSensitive(p->json, "target_modules");
        cJSON_AddItemToObject(p->json, "target_modules", default_targets(c));
    }
    int rc = get_names(p, "target_modules", &p->targets, &text, e);
    if (!rc) rc = get_names(p, "exclude_modules", &p->exclude, &without, e);
    if (!rc && text) {
        p->all_linear = is_all_linear(text);
        if (!p->all_linear) rc = rule_open(&p->target, text, RULE_WHOLE, "target_modules", e);
    }
    if (!rc && without && *without) rc = rule_open(&p->excluded, without, RULE_WHOLE, "exclude_modules", e);
    return rc ? rc : read_layers(p, c, e);
}

static void peft_close(struct peft *p)
{
    rule_close(&p->target);
    rule_close(&p->excluded);
    rule_table_close(&p->ranks);
    rule_table_close(&p->alphas);
    cJSON_Delete(p->json);
}

static int check_rank(double r, const char *what, struct err *e)
{
    if (r >= 1 && r <= LORA_RANK_MAX && r == floor(r)) return 0;
    return err_set(e, ERR_INVALID, "%s must be a whole number from 1 to %d", what, LORA_RANK_MAX);
}

static int peft_open(struct peft *p, const char *text, const struct model_config *c, struct err *e)
{
    *p = (struct peft){.json = cJSON_ParseWithOpts(text, NULL, 1)};
    int rc = cJSON_IsObject(p->json) ? 0 : err_set(e, ERR_INVALID, "not a JSON object");
    if (!rc) rc = refuse_features(p, e);
    if (!rc) rc = get_number(p, "r", 8, &p->r, e);
    if (!rc) rc = check_rank(p->r, "r", e);
    if (!rc) rc = get_number(p, "lora_alpha", 8, &p->alpha, e);
    if (!rc) rc = get_number(p, "lora_dropout", 0, &p->dropout, e);
    const cJSON *rslora = rc ? NULL : get(p, "use_rslora");
    if (rslora && !cJSON_IsBool(rslora)) rc = err_set(e, ERR_INVALID, "use_rslora must be true or false");
    p->rslora = cJSON_IsTrue(rslora);
    if (!rc) rc = read_targets(p, c, e);
    if (!rc) rc = rule_table_open(&p->ranks, get(p, "rank_pattern"), "rank_pattern", e);
    if (!rc) rc = rule_table_open(&p->alphas, get(p, "alpha_pattern"), "alpha_pattern", e);
    if (rc) peft_close(p);
    return rc;
}

static bool layer_chosen(const struct peft *p, int layer)
{
    if (!p->layers) return true;
    if (cJSON_IsNumber(p->layers)) return p->layers->valuedouble == layer;
    for (const cJSON *v = p->layers->child; v; v = v->next)
        if (v->valuedouble == layer) return true;
    return false;
}

/* 1, 0 or an error: has the module an adapter? */
static int targeted(const struct peft *p, int layer, const char *name, struct err *e)
{
    bool exact;
    if (p->exclude && list_matches(p->exclude, name, &exact)) return 0;
    int rc = p->excluded.text ? rule_matches(&p->excluded, name, e) : 0;
    if (rc) return rc < 0 ? rc : 0;
    if (p->all_linear) return 1;
    if (p->target.text) return rule_matches(&p->target, name, e);
    return list_matches(p->targets, name, &exact) && (exact || layer_chosen(p, layer));
}

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
        {"lora_embedding_", "adapters of the embedding table are not supported"},
        {"embed_tokens.lora_", "adapters of the embedding table are not supported"},
        {"wte.lora_", "adapters of the embedding table are not supported"},
        {"lm_head.lora_", "adapters of the output head are not supported"},
        {"base_layer.", "a saved base layer (a resized vocabulary?) is not supported"},
        {"modules_to_save", "whole trained modules (modules_to_save) are not supported"},
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

/* "3.self_attn..." of "layers.3.self_attn..."; NULL: it is another name. */
static const char *layer_number(const char *s, const char *layers)
{
    size_t n = strlen(layers);
    return strncmp(s, layers, n) == 0 && s[n] == '.' && s[n + 1] >= '0' && s[n + 1] <= '9' ? s + n + 1 : NULL;
}

/* "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"; the first part and "model." may be left out, and
 * ".default" may follow lora_A. */
static int place_tensor(const struct adapter *shape, const struct model_config *c, const struct tensor *t,
                        struct found *found, struct err *e)
{
    const struct tensor_table *table = c->family->tensors;
    const char *s = after(t->name, "base_model.model."), *number = NULL;
    for (int i = 0; i < TENSOR_PREFIXES && table->prefix[i] && !number; i++)
        number = layer_number(after(s, table->prefix[i]), table->layers);
    if (!number) return refuse_tensor(t->name, e);
    char *end;
    long layer = strtol(number, &end, 10);
    if (*end != '.' || (*number == '0' && end != number + 1)) return refuse_tensor(t->name, e);
    if (layer >= shape->layers)
        return err_set(e, ERR_INVALID, "tensor %.160s: the model has %d layers", t->name, shape->layers);
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

static int check_tensor(const struct tensor *t, const char *name, const char *which, int rows, int cols, struct err *e)
{
    if (!t) return err_set(e, ERR_INVALID, "tensor %s.%s.weight is missing", name, which);
    if (tensor_float_type(t->type) == DT_NONE)
        return err_set(e, ERR_UNSUPPORTED, "tensor %.160s: type %s is not F32, F16 or BF16", t->name,
                       tensor_type_name(t->type));
    if (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols) return 0;
    return err_set(e, ERR_INVALID, "tensor %.160s: shape is not [%d, %d], as the model and the rank %d make it",
                   t->name, rows, cols, which[5] == 'A' ? rows : cols);
}

static int fill(const struct tensor_source *f, const struct tensor *t, float *out, struct err *e)
{
    size_t width = dtype_bytes(tensor_float_type(t->type), 1);
    CHECK(width > 0); /* check_tensor was there before */
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
    struct peft p;
    const struct tensor_source *f;
    const struct model_config *c;
    const struct adapter *shape; /* layers and modules only */
    struct found *found;
    int *rank;
    double *alpha;
};

static void module_name(const struct reading *r, int i, char out[NAME_MAX_LEN])
{
    char prefix[64];
    lora_layer_prefix(r->c, i / r->shape->n_modules, prefix);
    snprintf(out, NAME_MAX_LEN, "%s%s", prefix, r->shape->module[i % r->shape->n_modules].path);
}

/* what the configuration makes of one module: r->rank, r->alpha */
static int decide(struct reading *r, int i, struct err *e)
{
    char name[NAME_MAX_LEN], what[NAME_MAX_LEN + 32];
    module_name(r, i, name);
    double rank = r->p.r;
    r->alpha[i] = r->p.alpha;
    int rc = targeted(&r->p, i / r->shape->n_modules, name, e);
    if (rc <= 0) return rc;
    rc = rule_table_find(&r->p.ranks, name, &rank, e);
    if (!rc) rc = rule_table_find(&r->p.alphas, name, &r->alpha[i], e);
    snprintf(what, sizeof what, "rank_pattern for %s", name);
    if (!rc) rc = check_rank(rank, what, e);
    if (!rc) r->rank[i] = (int)rank;
    return rc;
}

static int check_module(const struct reading *r, int i, struct err *e)
{
    const struct lora_module *m = &r->shape->module[i % r->shape->n_modules];
    const struct found *f = &r->found[i];
    char name[NAME_MAX_LEN];
    module_name(r, i, name);
    if (!r->rank[i] && (f->a || f->b))
        return err_set(e, ERR_INVALID, "tensor %.160s is there, but target_modules does not name its module",
                       (f->a ? f->a : f->b)->name);
    if (!r->rank[i]) return 0;
    int rc = check_tensor(f->a, name, "lora_A", r->rank[i], m->k, e);
    return rc ? rc : check_tensor(f->b, name, "lora_B", m->n, r->rank[i], e);
}

/* Modules outside the layers that PEFT would give an adapter. */
static int refuse_ends(const struct reading *r, struct err *e)
{
    char table[TENSOR_NAME_MAX];
    tensors_module(r->c, PART_EMBED, table);
    int head = r->p.all_linear ? 0 : targeted(&r->p, -1, "lm_head", e);
    if (head < 0) return head;
    if (head) return err_set(e, ERR_UNSUPPORTED, "target_modules: adapters of the output head are not supported");
    int embed = r->p.all_linear ? 0 : targeted(&r->p, -1, table, e);
    if (embed < 0) return embed;
    if (embed) return err_set(e, ERR_UNSUPPORTED, "target_modules: adapters of the embedding table are not supported");
    return 0;
}

static int read_config(struct reading *r, const char *config, struct err *e)
{
    int rc = peft_open(&r->p, config, r->c, e), any = 0;
    if (rc) return err_prefix(e, ADAPTER_CONFIG);
    int n = r->shape->layers * r->shape->n_modules;
    rc = refuse_ends(r, e);
    for (int i = 0; i < n && !rc; i++) {
        rc = decide(r, i, e);
        any |= r->rank[i];
    }
    if (!rc && !any) rc = err_set(e, ERR_INVALID, "target_modules names no module of this model");
    if (!rc) return 0;
    peft_close(&r->p);
    return err_prefix(e, ADAPTER_CONFIG);
}

static int read_tensors(struct reading *r, struct adapter **out, struct err *e)
{
    int rc = 0, n = r->shape->layers * r->shape->n_modules;
    for (size_t i = 0; i < tensor_source_count(r->f) && !rc; i++)
        rc = place_tensor(r->shape, r->c, tensor_source_at(r->f, i), r->found, e);
    for (int i = 0; i < n && !rc; i++) rc = check_module(r, i, e);
    if (rc) return rc;
    struct adapter *a = adapter_of_ranks(r->c, r->rank); /* what the file holds is as large */
    if (!a) return err_set(e, ERR_NOMEM, "no memory for the adapter");
    a->r = (int)r->p.r;
    a->alpha = r->p.alpha;
    a->dropout = r->p.dropout;
    a->rslora = r->p.rslora;
    for (int i = 0; i < n && !rc; i++) {
        struct lora_pair *p = &a->pair[i];
        if (!p->r) continue;
        p->scale = (float)(a->rslora ? r->alpha[i] / sqrt(p->r) : r->alpha[i] / p->r);
        if (!isfinite(p->scale)) rc = err_set(e, ERR_INVALID, "the alpha of a module is too large");
        if (!rc) rc = fill(r->f, r->found[i].a, p->a, e);
        if (!rc) rc = fill(r->f, r->found[i].b, p->b, e);
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
    if (!read_config(&r, config, e)) {
        if (read_tensors(&r, &out, e)) err_prefix(e, ADAPTER_WEIGHTS);
        peft_close(&r.p);
    }
    free(r.found);
    free(r.rank);
    free(r.alpha);
    return out;
}

/* ---- a directory ---- */

/* A trainer may put another directory in its place, or new files into it, while it is read; the configuration of one
 * adapter with the weights of another may fit and be wrong.  So the directory is opened, what it is called later does
 * not matter, and the files have to be the same after reading as before. */
struct place {
    const char *name; /* as the caller knows it */
    int fd;
    char path[64]; /* of what was opened */
    char *config, *weights;
};

struct look {
    struct stat config, weights;
};

static int place_open(struct place *p, const char *dir, struct err *e)
{
    *p = (struct place){.name = dir, .fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (p->fd < 0) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", dir, strerror(errno));
    snprintf(p->path, sizeof p->path, "/proc/self/fd/%d", p->fd);
    const char *base = access(p->path, F_OK) == 0 ? p->path : dir; /* a system without /proc */
    p->config = file_join(base, ADAPTER_CONFIG);
    p->weights = file_join(base, ADAPTER_WEIGHTS);
    return 0;
}

static void place_close(struct place *p)
{
    close(p->fd);
    free(p->config);
    free(p->weights);
}

/* Messages begin with the path that was opened; the caller's is put there. */
static void name_place(const struct place *p, struct err *e)
{
    size_t n = strlen(p->path);
    struct err rest = *e;
    if (strncmp(e->msg, p->path, n) == 0) err_set(e, rest.code, "%.200s%s", p->name, rest.msg + n);
}

static void look_at(const struct place *p, struct look *l)
{
    memset(l, 0, sizeof *l); /* what is not there stays 0 */
    stat(p->config, &l->config);
    stat(p->weights, &l->weights);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static struct adapter *read_once(const struct place *p, const struct model_config *c, struct err *e)
{
    char *config = NULL;
    size_t size;
    int rc = file_read(p->config, CONFIG_LIMIT, &config, &size, e);
    if (!rc && memchr(config, 0, size)) rc = err_set(e, ERR_INVALID, "%s: not a JSON object", p->config);
    struct tensor_source *f = rc ? NULL : safetensors_open(p->weights, e);
    struct adapter *a = f ? adapter_parse(config, f, c, e) : NULL;
    if (f && !a) err_prefix(e, "%.200s", p->name);
    if (!rc && !f && access(p->weights, F_OK)) {
        char *pickle = file_join(p->path, "adapter_model.bin");
        if (access(pickle, F_OK) == 0)
            err_set(e, ERR_UNSUPPORTED, "%.200s: only adapter_model.bin is there; tandem reads safetensors", p->name);
        free(pickle);
    }
    tensor_source_close(f);
    free(config);
    return a;
}

/* Reads what is there now.  *again: it changed meanwhile. */
static struct adapter *try_read(const char *dir, const struct model_config *c, bool *again, struct err *e)
{
    struct place p;
    struct look before, after;
    struct stat opened, now;
    *again = false;
    if (place_open(&p, dir, e)) return NULL;
    look_at(&p, &before);
    struct adapter *a = read_once(&p, c, e);
    look_at(&p, &after);
    *again = !same_file(&before.config, &after.config) || !same_file(&before.weights, &after.weights);
    /* replaced, and what it was is being removed: the error is not about what is there now */
    bool replaced = fstat(p.fd, &opened) == 0 && stat(dir, &now) == 0 && opened.st_ino != now.st_ino;
    if (!a) name_place(&p, e);
    if (!a && replaced) *again = true;
    place_close(&p);
    return a;
}

struct adapter *adapter_read(const char *dir, const struct model_config *c, struct err *e)
{
    bool again = true;
    struct adapter *a = NULL;
    for (int tries = 0; tries < 5 && again; tries++) {
        adapter_free(a);
        a = try_read(dir, c, &again, e);
    }
    if (!again) return a;
    adapter_free(a);
    err_set(e, ERR_IO, "%.200s changes while it is read", dir);
    return NULL;
}
