#include "engine/model/adapter_experts.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/adapter_tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LEN = 192, SUMMANDS = 2 };

struct matrices {
    const struct tensor *a, *b;
};

struct layer_tensors {
    struct matrices router;
    struct matrices outer, inner; /* of mlp.experts, of mlp.experts.base_layer */
    struct matrices *each;        /* [E][rows of the table that are of an expert] */
};

struct adapter_experts {
    const struct model_config *c;
    const struct tensor_row *row[3]; /* of an expert's gate, up and down */
    int count;
    struct layer_tensors *layer;
};

static const char *const fused = "mlp.experts", *const nested = "mlp.experts.base_layer", *const gate = "mlp.gate";

/* ---- the tensors ----------------------------------------------------------------------------------------------- */

static const struct tensor_row *row_of(const struct model_config *c, enum tensor_part part)
{
    const struct tensor_row *r = c->family->tensors->row;
    while (r->module && r->part != part) r++;
    return r->module ? r : NULL;
}

struct adapter_experts *adapter_experts_new(const struct model_config *c)
{
    static const enum tensor_part part[3] = {PART_EXPERT_GATE, PART_EXPERT_UP, PART_EXPERT_DOWN};
    int count = model_experts(c).count;
    const struct tensor_row *router = row_of(c, PART_ROUTER);
    if (!count || !router || !router->target) return NULL;
    struct adapter_experts *x = mem_zalloc(sizeof *x);
    x->c = c;
    x->count = count;
    for (int i = 0; i < 3; i++) x->row[i] = row_of(c, part[i]);
    x->layer = mem_array((size_t)c->layers, sizeof *x->layer);
    for (int l = 0; l < c->layers; l++)
        if (model_block(c, l)->experts.count) x->layer[l].each = mem_array((size_t)count * 3, sizeof *x->layer[l].each);
    return x;
}

void adapter_experts_free(struct adapter_experts *x)
{
    if (!x) return;
    for (int l = 0; l < x->c->layers; l++) free(x->layer[l].each);
    free(x->layer);
    free(x);
}

/* The number in the place of %d, or -1. */
static int number_in(const char *name, size_t n, const char *pattern)
{
    const char *mark = strstr(pattern, "%d");
    size_t before = mark ? (size_t)(mark - pattern) : 0, digits;
    if (!mark || n <= before || strncmp(name, pattern, before) != 0) return -1;
    digits = strspn(name + before, "0123456789");
    if (digits == 0 || digits > 4 || (digits > 1 && name[before] == '0')) return -1;
    size_t rest = n - before - digits;
    if (strlen(mark + 2) != rest || strncmp(name + before + digits, mark + 2, rest) != 0) return -1;
    return (int)strtol(name + before, NULL, 10);
}

static bool same(const char *name, size_t n, const char *other)
{
    return strlen(other) == n && strncmp(name, other, n) == 0;
}

static struct matrices *place_of(struct adapter_experts *x, int layer, const char *name, size_t n)
{
    struct layer_tensors *l = &x->layer[layer];
    const struct tensor_row *router = row_of(x->c, PART_ROUTER);
    if (!l->each) return NULL;
    if (same(name, n, gate) || same(name, n, router->module)) return &l->router;
    if (same(name, n, fused)) return &l->outer;
    if (same(name, n, nested)) return &l->inner;
    for (int i = 0; i < 3; i++) {
        int e = number_in(name, n, x->row[i]->module);
        if (e >= 0 && e < x->count) return &l->each[e * 3 + i];
    }
    return NULL;
}

int adapter_experts_place(struct adapter_experts *x, int layer, const char *rest, const struct tensor *t, struct err *e)
{
    const char *end = strstr(rest, ".lora_");
    if (!x || !end || (end[6] != 'A' && end[6] != 'B')) return 0;
    const char *tail = end + 7;
    if (strcmp(tail, ".weight") != 0 && strcmp(tail, ".default.weight") != 0) return 0;
    struct matrices *m = place_of(x, layer, rest, (size_t)(end - rest));
    if (!m) return 0;
    const struct tensor **slot = end[6] == 'A' ? &m->a : &m->b;
    if (*slot) return err_set(e, ERR_INVALID, "tensors %.100s and %.100s are the same", (*slot)->name, t->name);
    *slot = t;
    return 1;
}

/* ---- the configuration ----------------------------------------------------------------------------------------- */

static void full_name(const struct model_config *c, int layer, const char *path, char out[NAME_MAX_LEN])
{
    char prefix[64];
    lora_layer_prefix(c, layer, prefix);
    snprintf(out, NAME_MAX_LEN, "%s%.*s", prefix, NAME_MAX_LEN - (int)sizeof prefix, path);
}

/* The name of an expert's module before transformers 5. */
static void expert_name(const struct model_config *c, int layer, const struct tensor_row *row, int expert,
                        char out[NAME_MAX_LEN])
{
    char path[NAME_MAX_LEN];
    const char *mark = strstr(row->module, "%d");
    snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - row->module), row->module, expert, mark + 2);
    full_name(c, layer, path, out);
}

static bool parameter_named(const struct model_config *c, const struct peft_config *p, const char *path, int layer)
{
    char name[NAME_MAX_LEN];
    full_name(c, layer, path, name);
    return peft_config_parameter(p, name);
}

/* Whether target_modules names the router by one of its modules' names, which is written to name. */
static int router_named(const struct model_config *c, const struct peft_config *p, int layer, char name[NAME_MAX_LEN],
                        struct err *e)
{
    const char *const paths[] = {gate, row_of(c, PART_ROUTER)->module};
    int rc = 0;
    for (int i = 0; i < 2 && !rc; i++) {
        full_name(c, layer, paths[i], name);
        rc = peft_config_targets(p, layer, name, e);
    }
    return rc;
}

int adapter_experts_named(const struct model_config *c, const struct peft_config *p, const struct lora_module *m,
                          int layer, struct err *e)
{
    char name[NAME_MAX_LEN];
    if (!tensors_row_present(c, layer, m->row)) return 0;
    if (parameter_named(c, p, m->path, layer)) return 1;
    if (m->gemm == GEMM_ROUTER) return router_named(c, p, layer, name, e);
    int rc = 0;
    bool up = m->gemm == GEMM_EXPERT_UP;
    for (int i = up ? 0 : 2; i < (up ? 2 : 3) && !rc; i++) {
        static const enum tensor_part part[3] = {PART_EXPERT_GATE, PART_EXPERT_UP, PART_EXPERT_DOWN};
        expert_name(c, layer, row_of(c, part[i]), 0, name);
        rc = peft_config_targets(p, layer, name, e);
    }
    return rc;
}

int adapter_experts_check_names(const struct model_config *c, const struct peft_config *p, const struct lora_module *m,
                                int n_modules, struct err *e)
{
    for (const cJSON *v = p->parameters ? p->parameters->child : NULL; v; v = v->next) {
        struct peft_config one = {.parameters = NULL};
        cJSON *list = cJSON_CreateArray();
        bool found = false;
        cJSON_AddItemToArray(list, cJSON_CreateString(v->valuestring));
        one.parameters = list;
        for (int i = 0; i < n_modules * c->layers && !found; i++) {
            const struct lora_module *of = &m[i % n_modules];
            int layer = i / n_modules;
            found =
                of->parameter && tensors_row_present(c, layer, of->row) && parameter_named(c, &one, of->path, layer);
        }
        cJSON_Delete(list);
        if (!found)
            return err_set(e, ERR_UNSUPPORTED,
                           "target_parameters: \"%.80s\" is no parameter of this model that can have an adapter",
                           v->valuestring);
    }
    return 0;
}

/* ---- pairs ----------------------------------------------------------------------------------------------------- */

/* A pair's source: parameters, or the modules of each expert, of which gate and up add their ranks. */
struct source {
    const struct matrices *whole; /* NULL: the modules of each expert */
    char name[NAME_MAX_LEN];      /* of the parameter */
    int n;                        /* summands */
    struct summand {
        int row, at, n, rank; /* row of the table; first output and their number */
        double alpha;
    } part[SUMMANDS];
};

static double scale_of(const struct peft_config *p, double alpha, int rank)
{
    return p->rslora ? alpha / sqrt(rank) : alpha / rank;
}

static bool any_of(const struct matrices *m)
{
    return m->a || m->b;
}

static int refuse_unnamed(const struct matrices *m, struct err *e)
{
    return err_set(e, ERR_INVALID, "tensor %.160s is there, but target_modules does not name its module",
                   (m->a ? m->a : m->b)->name);
}

/* The modules of one matrix of all experts: all or none are there, with one rank and one alpha. */
static int find_each(const struct adapter_experts *x, const struct peft_config *p, const struct lora_module *m,
                     int layer, int row, struct source *s, struct err *e)
{
    const struct layer_tensors *l = &x->layer[layer];
    const struct matrices *some = NULL;
    for (int i = 0; i < x->count && !some; i++)
        if (any_of(&l->each[i * 3 + row])) some = &l->each[i * 3 + row];
    if (!some) return 0;
    struct summand *t = &s->part[s->n++];
    int half = m->gemm == GEMM_EXPERT_UP ? m->n / 2 : m->n;
    *t = (struct summand){.row = row, .at = row == 1 ? half : 0, .n = half};
    for (int i = 0; i < x->count; i++) {
        const struct matrices *of = &l->each[i * 3 + row];
        char name[NAME_MAX_LEN];
        int rank = 0;
        double alpha;
        expert_name(x->c, layer, x->row[row], i, name);
        int rc = peft_config_targets(p, layer, name, e);
        if (!rc && any_of(of)) return refuse_unnamed(of, e);
        if (!rc) return err_set(e, ERR_UNSUPPORTED, "%s: not all experts of its layer have an adapter", name);
        if (rc > 0) rc = peft_config_rank(p, name, &rank, &alpha, e);
        if (rc < 0) return rc;
        if (i && (rank != t->rank || (rank && alpha != t->alpha)))
            return err_set(e, ERR_UNSUPPORTED, "%s: a rank or alpha that not all experts of its layer have", name);
        t->rank = rank;
        t->alpha = rank ? alpha : 0;
        rc = adapter_tensor_check(of->a, name, "lora_A", rank, m->k, e);
        if (!rc) rc = adapter_tensor_check(of->b, name, "lora_B", half, rank, e);
        if (rc) return rc;
    }
    return 0;
}

/* Where the pair's matrices are.  s->n 0 and whole NULL: the layer has no such pair. */
static int find(const struct adapter_experts *x, const struct peft_config *p, const struct lora_module *m, int layer,
                struct source *s, struct err *e)
{
    const struct layer_tensors *l = &x->layer[layer];
    bool up = parameter_named(x->c, p, "mlp.experts.gate_up_proj", layer);
    bool down = parameter_named(x->c, p, "mlp.experts.down_proj", layer);
    *s = (struct source){0};
    if (m->gemm == GEMM_ROUTER) {
        full_name(x->c, layer, m->path, s->name);
        bool parameter = peft_config_parameter(p, s->name);
        int rc = parameter ? 1 : router_named(x->c, p, layer, s->name, e);
        if (rc < 0) return rc;
        if (!rc && any_of(&l->router)) return refuse_unnamed(&l->router, e);
        if (parameter || any_of(&l->router)) s->whole = &l->router;
        return 0;
    }
    if (any_of(&l->inner) && !(up && down)) return refuse_unnamed(&l->inner, e);
    if (any_of(&l->outer) && !up && !down) return refuse_unnamed(&l->outer, e);
    int rc = 0;
    if (m->gemm == GEMM_EXPERT_UP) {
        if (up) s->whole = down ? &l->inner : &l->outer;
        rc = find_each(x, p, m, layer, 0, s, e);
        if (!rc) rc = find_each(x, p, m, layer, 1, s, e);
    } else {
        if (down) s->whole = &l->outer;
        rc = find_each(x, p, m, layer, 2, s, e);
    }
    full_name(x->c, layer, m->path, s->name);
    if (!rc && s->whole && s->n) rc = err_set(e, ERR_INVALID, "%s is adapted as a parameter and by expert", s->name);
    return rc;
}

int adapter_experts_shape(const struct adapter_experts *x, const struct peft_config *p, const struct lora_module *m,
                          int layer, int *rank, float *scale, struct err *e)
{
    struct source s;
    double alpha;
    *rank = 0;
    if (!tensors_row_present(x->c, layer, m->row)) return 0;
    int rc = find(x, p, m, layer, &s, e);
    if (rc) return rc;
    if (s.whole) {
        rc = peft_config_rank(p, s.name, rank, &alpha, e);
        if (rc) return rc;
        *scale = (float)scale_of(p, alpha, *rank);
        rc = adapter_tensor_check(s.whole->a, s.name, "lora_A", *rank * lora_copies(m), m->k, e);
        return rc ? rc : adapter_tensor_check(s.whole->b, s.name, "lora_B", m->n, *rank * lora_copies(m), e);
    }
    for (int i = 0; i < s.n; i++) *rank += s.part[i].rank;
    if (s.n) *scale = (float)scale_of(p, s.part[0].alpha, s.part[0].rank);
    if (s.n && *scale == 0) *scale = 1; /* the summands' b are multiplied by what theirs is of it */
    if (*rank <= LORA_RANK_MAX) return 0;
    return err_set(e, ERR_UNSUPPORTED, "%s: the ranks of gate and up add to more than %d", s.name, LORA_RANK_MAX);
}

/* b as PEFT stores it, (n, r E) with the experts of a rank beside each other, to (E, n, r) */
static void by_expert(const float *stored, int n, int r, int experts, float *out)
{
    for (int o = 0; o < n; o++)
        for (int i = 0; i < r; i++)
            for (int x = 0; x < experts; x++) {
                size_t to = ((size_t)x * (size_t)n + (size_t)o) * (size_t)r + (size_t)i;
                out[to] = stored[((size_t)o * (size_t)r + (size_t)i) * (size_t)experts + (size_t)x];
            }
}

static int read_whole(const struct source *s, const struct tensor_source *f, const struct lora_module *m,
                      const struct lora_pair *pair, struct err *e)
{
    size_t n = (size_t)m->n * (size_t)pair->r * (size_t)lora_copies(m);
    int rc = adapter_tensor_read(f, s->whole->a, pair->a, e);
    if (rc) return rc;
    if (!m->experts) return adapter_tensor_read(f, s->whole->b, pair->b, e);
    float *b = mem_array(n, sizeof *b);
    rc = adapter_tensor_read(f, s->whole->b, b, e);
    if (!rc) by_expert(b, m->n, pair->r, m->experts, pair->b);
    free(b);
    return rc;
}

/* One expert's matrix: rows [first, first + rank) of its a, and those columns of the summand's rows of its b. */
static int read_one(const struct matrices *of, const struct tensor_source *f, const struct lora_module *m,
                    const struct summand *t, int expert, int first, float by, const struct lora_pair *pair,
                    struct err *e)
{
    size_t r = (size_t)pair->r, rows = (size_t)expert * r + (size_t)first;
    float *to = pair->b + ((size_t)expert * (size_t)m->n + (size_t)t->at) * r + first;
    float *b = mem_array((size_t)t->n * (size_t)t->rank, sizeof *b);
    int rc = adapter_tensor_read(f, of->a, pair->a + rows * (size_t)m->k, e);
    bool finite = true; /* by comes from the file's alphas */
    if (!rc) rc = adapter_tensor_read(f, of->b, b, e);
    for (int o = 0; o < t->n && !rc; o++)
        for (int i = 0; i < t->rank; i++) {
            float v = by * b[(size_t)o * (size_t)t->rank + (size_t)i];
            finite &= isfinite(v) != 0;
            to[(size_t)o * r + (size_t)i] = v;
        }
    free(b);
    if (!finite) rc = err_set(e, ERR_INVALID, "tensor %.160s: times its alpha it is too large", of->b->name);
    return rc;
}

int adapter_experts_read(const struct adapter_experts *x, const struct peft_config *p, const struct tensor_source *f,
                         const struct lora_module *m, int layer, const struct lora_pair *pair, struct err *e)
{
    struct source s;
    const struct matrices *each = x->layer[layer].each;
    int rc = find(x, p, m, layer, &s, e), first = 0;
    CHECK(each);
    if (rc || s.whole) return rc ? rc : read_whole(&s, f, m, pair, e);
    for (int i = 0; i < s.n && !rc; first += s.part[i++].rank) {
        const struct summand *t = &s.part[i];
        float own = (float)scale_of(p, t->alpha, t->rank), by = own == pair->scale ? 1 : own / pair->scale;
        for (int n = 0; n < x->count && !rc; n++) rc = read_one(&each[n * 3 + t->row], f, m, t, n, first, by, pair, e);
    }
    return rc;
}
