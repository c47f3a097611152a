#include "engine/train/split.h"

#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/gguf_source.h"
#include "engine/train/grad_slots.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/params.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const size_t PARAMETERS_MAX = (size_t)1 << 48; /* more would overflow sizes in bytes */

/* A tensor of the model's files that has values. */
struct counted {
    const struct tensor *t;
    size_t n;
    int layer; /* -1: none */
    bool vector;
};

/* What the files of a model say, and the question about it. */
struct shape {
    const struct train_split_question *q;
    struct train_params p; /* checked */
    struct model_config c;
    struct tensor_source *file;
    struct counted *tensor; /* (tensors) in the trainer's order: by layer, matrices before vectors */
    size_t tensors;
    double matrices, tables, vectors; /* parameters: that are multiplied; of embeddings that are read; others */
    double layers, layer, stack;      /* of the matrices: in layers, in the largest one, in a GEMM of one at most */
    double chosen;                    /* of the matrices, for one token: of experts those that it goes to */
    double trainable;
};

/* The layer that a tensor is of, by the first number in its name; -1: none. */
static int layer_of(const struct tensor *t)
{
    for (const char *dot = t->name; (dot = strchr(dot, '.')); dot++) {
        char *end;
        long layer = strtol(dot + 1, &end, 10);
        if (end != dot + 1 && *end == '.') return layer < 0 || layer > INT_MAX ? INT_MAX : (int)layer;
    }
    return -1;
}

/* Embeddings that the model reads in place, also where they are the head. */
static bool is_table(const struct model_config *c, const struct counted *v)
{
    static const char *const heads[] = {"lm_head", "embed_out", "output.weight"};
    bool head = false;
    if (v->vector || v->layer >= 0) return false;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) head |= strstr(v->t->name, heads[i]) != NULL;
    return !head || c->tied;
}

/* Whether it is the head, too. */
static bool is_tied(const struct model_config *c, const struct counted *v)
{
    return c->tied && is_table(c, v) && v->t->dims[0] == c->vocab;
}

/* Of an expert's matrix, the share of the tokens that go to it. */
static double share_of(const struct model_config *c, const struct counted *v)
{
    const char *name = v->t->name;
    if (v->layer < 0 || v->layer >= c->layers || !strstr(name, "exp")) return 1;
    const struct block *b = model_block(c, v->layer);
    bool shared = strstr(name, "shared") != NULL || strstr(name, "shexp") != NULL;
    return b->experts.count && !shared ? (double)b->experts.chosen / b->experts.count : 1;
}

/* The values of a tensor, by its shape, which a file may invent where it does not know the type. */
static int count_values(const struct tensor *t, size_t *n, struct err *e)
{
    bool fits = true;
    *n = 1;
    for (int i = 0; i < t->n_dims; i++) fits &= !__builtin_mul_overflow(*n, (size_t)t->dims[i], n);
    if (t->n_dims > 1 && *n)
        fits &= t->dims[t->n_dims - 1] <= INT_MAX && *n / (size_t)t->dims[t->n_dims - 1] <= INT_MAX;
    return fits ? 0 : err_set(e, ERR_INVALID, "tensor %.100s: its shape is too large", t->name);
}

static int trainers_order(const void *a, const void *b)
{
    const struct counted *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->vector != y->vector) return x->vector ? 1 : -1;
    return strcmp(x->t->name, y->t->name);
}

static int list_tensors(struct shape *s, struct err *e)
{
    size_t all = 0, most = tensor_source_count(s->file);
    s->tensor = mem_array(most ? most : 1, sizeof *s->tensor);
    for (size_t i = 0; i < most; i++) {
        struct counted v = {.t = tensor_source_at(s->file, i)};
        if (count_values(v.t, &v.n, e)) return e->code;
        if (!v.n) continue;
        if (__builtin_add_overflow(all, v.n, &all) || all > PARAMETERS_MAX)
            return err_set(e, ERR_INVALID, "tensor %.100s: with it the model has more than %lld parameters", v.t->name,
                           (long long)PARAMETERS_MAX);
        v.layer = layer_of(v.t);
        v.vector = v.t->n_dims < 2;
        s->tensor[s->tensors++] = v;
    }
    if (s->tensors) qsort(s->tensor, s->tensors, sizeof *s->tensor, trainers_order);
    return 0;
}

/* The largest matrix of a GEMM of layer l, whose parts may be tensors of their own. */
static double stack_of(const struct model_config *c, int l)
{
    const struct block *b = model_block(c, l);
    double wide = b->gated ? 2 : 1, qkv = (c->heads + 2.0 * c->kv_heads) * c->head_dim;
    return c->hidden * fmax(qkv, wide * fmax(b->inter, b->experts.inter));
}

/* What is gathered by layer at stage 3. */
static void count_layers(struct shape *s)
{
    double layer = 0;
    for (const struct counted *v = s->tensor; v < s->tensor + s->tensors; v++) {
        bool first = v == s->tensor || v->layer != v[-1].layer;
        layer = first ? 0 : layer;
        if (v->layer < 0 || v->layer >= s->c.layers || v->vector) continue;
        layer += (double)v->n;
        s->layers += (double)v->n;
        s->layer = fmax(s->layer, layer);
    }
    for (int l = 0; l < s->c.layers; l++) s->stack = fmax(s->stack, stack_of(&s->c, l));
}

static void count(struct shape *s)
{
    for (const struct counted *v = s->tensor; v < s->tensor + s->tensors; v++) {
        double n = (double)v->n;
        if (v->vector) {
            s->vectors += n;
        } else if (is_table(&s->c, v)) {
            s->tables += n;
            if (is_tied(&s->c, v)) s->chosen += n;
        } else {
            s->matrices += n;
            s->chosen += n * share_of(&s->c, v);
        }
    }
}

/* ---- states ------------------------------------------------------------------------------------------------------ */

/* The parameters of method full as the trainer adds them; tables in place. */
static void add_all(const struct shape *s, int tensor, struct optim *o)
{
    for (const struct counted *v = s->tensor; v < s->tensor + s->tensors && v->layer < s->c.layers; v++) {
        bool muon = s->p.optimizer == OPTIMIZER_MUON && v->layer >= 0 && !v->vector;
        size_t share = v->vector ? v->n : (v->n + (size_t)tensor - 1) / (size_t)tensor;
        if (v->layer >= 0)
            optim_group_layer(o, v->layer);
        else
            optim_group(o, "other");
        optim_read_in_place(o, v->vector || is_table(&s->c, v));
        size_t at = muon ? optim_add_muon(o, share) : optim_add(o, share, !v->vector);
        size_t cols = v->vector ? 1 : (size_t)v->t->dims[v->t->n_dims - 1];
        if (muon) optim_add_matrix(o, at, (int)(share / cols), (int)cols);
    }
}

static int open_states(const struct shape *s, int tensor, struct optim *o, struct train_lora *l, struct err *e)
{
    optim_init(o, NULL, NULL);
    o->states_8bit = s->p.optimizer == OPTIMIZER_ADAMW_8BIT;
    if (s->p.method != TRAIN_FULL) return train_lora_open(l, &s->c, &s->p, NULL, o, e);
    add_all(s, tensor, o);
    return 0;
}

static void close_states(struct optim *o, struct train_lora *l)
{
    if (l->adapter) train_lora_close(l);
    shards_free(&o->s);
    free(o->muon.matrix);
    free(o->segment);
    free(o->group);
    free(o->range);
}

static double state_bytes(const struct shape *s, struct optim *o, const struct train_split *x)
{
    struct grad_slots slots;
    struct err e = {0};
    optim_divide_for(o, x->zero, s->p.grad_slots, x->data, 0);
    grad_slots_init(&slots, s->p.grad_slots, 0, x->data, x->data > 1 ? x->zero : 0, &e);
    double bytes = (double)optim_bytes(o, s->p.ema_decay > 0) + (double)grad_slots_bytes(&slots, o) +
                   2.0 * (double)optim_moment_floats(o) * sizeof(float) + (double)muon_bytes(&o->muon);
    return bytes / (s->p.method != TRAIN_FULL ? x->tensor : 1);
}

/* ---- weights and activations ------------------------------------------------------------------------------------- */

/* Of a float of the file. */
static double bytes_per_float(const struct shape *s)
{
    for (size_t i = 0; i < tensor_source_count(s->file); i++)
        if (tensor_float_type(tensor_source_at(s->file, i)->type) == DT_F32) return 4;
    return 2;
}

/* Of a matrix; the scales of quantised ones included. */
static double bytes_per_weight(const struct shape *s)
{
    const char *name = s->c.quant.name[0] ? s->c.quant.name : s->q->quantize;
    if (s->p.method == TRAIN_FULL) return s->p.f32 ? 4 : bytes_per_float(s);
    if (strstr(name, "nf4") || strstr(name, "int4") || strstr(name, "q4")) return 0.5625;
    return strcmp(name, "none") == 0 ? bytes_per_float(s) : 1.0625;
}

static double weight_bytes(const struct shape *s, const struct train_split *x)
{
    bool full = s->p.method == TRAIN_FULL, by_layer = x->zero > 2;
    double each = bytes_per_weight(s), packed = s->matrices + (s->c.tied ? (double)s->c.vocab * s->c.hidden : 0);
    double whole = full ? 0 : bytes_per_float(s) * (s->tables + s->vectors); /* else among the states */
    double unpacked = full && by_layer && each < 4 ? 4 * s->stack : 0;
    if (by_layer) packed += 2 * s->layer - s->layers + (full ? 0 : s->layers / x->data);
    return (packed * each + whole + unpacked) / x->tensor;
}

/* Inputs of the layers are on each card; what is inside them is shared. */
static double activation_bytes(const struct shape *s, const struct train_lora *l, bool recompute, int tensor)
{
    static const struct model_grads all;
    size_t largest;
    struct train_model m = {.c = &s->c,
                            .site = l->site,
                            .grads = s->p.method == TRAIN_FULL ? &all : NULL,
                            .dropout = (float)s->p.lora_dropout,
                            .residual_dropout = (float)s->p.dropout,
                            .recompute = recompute,
                            .max_tokens = train_unit_tokens(&s->p)};
    double inputs = (s->c.layers + 1.0) * m.max_tokens * s->c.hidden * sizeof(float);
    double bytes =
        (double)train_model_bytes(&m, &largest) + (double)train_model_scratch(&s->c, m.max_tokens, s->p.max_length);
    return inputs + (bytes - inputs) / tensor;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static double macs_per_token(const struct shape *s)
{
    return s->p.method == TRAIN_FULL ? 3 * s->chosen : 2 * s->chosen + 3 * s->trainable;
}

/* What a card sends in a step of the layers' weights; forward, or back. */
static double gathered(const struct shape *s, const struct train_split *x)
{
    double L = s->c.layers, N = x->data, slots = s->p.grad_slots / N, layer = s->layers / L * bytes_per_weight(s);
    double first = s->p.method == TRAIN_FULL ? 0.5 : 0; /* after an update the first layer is not there */
    return x->zero > 2 ? layer / x->tensor * (N - 1) / N * ((L - 1) * slots + first) : 0;
}

static void set_time(const struct shape *s, struct train_split *x)
{
    double N = x->data, T = x->tensor, slots = s->p.grad_slots / N, each = (N - 1) / N / T;
    double part = 4 * s->trainable * each, layers = gathered(s, x);
    double reduce = x->zero > 1 ? part * slots : part;
    if (x->zero > 2 && s->p.method == TRAIN_FULL) part = 4 * (s->trainable - s->layers) * each;
    double shared = 8.0 * s->p.batch_tokens / N * s->c.hidden * s->c.layers * (T - 1) / T;
    double again = x->recompute ? s->chosen : 0, macs = macs_per_token(s) + again;
    double back = 1 - (s->chosen + again) / macs; /* the share of the backward pass */
    x->sent_bytes = reduce + part + 2 * layers + shared;
    x->compute_s = s->q->flops > 0 ? 2 * macs * s->p.batch_tokens / (s->q->flops * N * T) : NAN;
    x->link_s = s->q->link > 0 ? x->sent_bytes / s->q->link : x->sent_bytes > 0 ? NAN : 0;
    double hidden = x->zero > 1 && N > 1 ? fmin((reduce + layers) / s->q->link, back * x->compute_s) : 0;
    if (layers > 0) hidden += fmin(layers / s->q->link, (1 - back) * x->compute_s);
    x->step_s = x->compute_s + x->link_s - hidden;
    x->tokens_per_s = s->p.batch_tokens / x->step_s;
}

/* ---- the ways ---------------------------------------------------------------------------------------------------- */

static double all_bytes(const struct train_split *x)
{
    return x->weight_bytes + x->state_bytes + x->activation_bytes;
}

static int add_split(struct shape *s, int zero, int tensor, struct train_split_answer *a, struct err *e)
{
    struct optim o;
    struct train_lora l = {0};
    struct train_split *x = &a->v[a->n];
    *x = (struct train_split){.zero = zero, .data = s->q->gpus / tensor, .tensor = tensor};
    x->supported = tensor == 1 && (zero < 3 || s->p.method == TRAIN_FULL);
    int rc = open_states(s, tensor, &o, &l, e);
    if (!rc) {
        if (tensor == 1) s->trainable = (double)o.trained;
        x->weight_bytes = weight_bytes(s, x);
        x->state_bytes = state_bytes(s, &o, x);
        double most = TRAIN_SPLIT_FILLED * s->q->memory;
        for (int again = s->p.recompute == RECOMPUTE_ON; again <= (s->p.recompute != RECOMPUTE_OFF); again++) {
            x->recompute = again;
            x->activation_bytes = activation_bytes(s, &l, again, tensor);
            x->fits = all_bytes(x) <= most;
            if (x->fits) break;
        }
        set_time(s, x);
        a->n++;
    }
    close_states(&o, &l);
    return rc;
}

static void choose(struct train_split_answer *a)
{
    a->best = -1;
    for (int i = 0; i < a->n; i++) {
        const struct train_split *x = &a->v[i], *best = a->best >= 0 ? &a->v[a->best] : NULL;
        if (!x->fits || !x->supported) continue;
        bool timed = best && !isnan(x->step_s) && !isnan(best->step_s);
        if (!best || (timed ? x->step_s < best->step_s : all_bytes(x) < all_bytes(best))) a->best = i;
    }
}

static bool divides(const struct shape *s, int tensor)
{
    return s->q->gpus % tensor == 0 && s->c.kv_heads % tensor == 0 && s->p.grad_slots % (s->q->gpus / tensor) == 0;
}

static int all_splits(struct shape *s, struct train_split_answer *a, struct err *e)
{
    int rc = 0;
    for (int tensor = 1; tensor <= s->q->gpus && !rc; tensor *= 2) {
        if (!divides(s, tensor)) continue;
        int stages = s->q->gpus / tensor > 1 ? 4 : 1;
        for (int zero = 0; zero < stages && !rc && a->n < TRAIN_SPLITS_MAX; zero++)
            rc = add_split(s, zero, tensor, a, e);
    }
    if (!rc && !a->n)
        return err_set(e, ERR_INVALID, "grad_slots: %d slots cannot be divided over %d cards", s->p.grad_slots,
                       s->q->gpus);
    return rc;
}

static int prepare(struct shape *s, struct err *e)
{
    const struct train_split_question *q = s->q;
    if (q->gpus < 1 || q->gpus > TRAIN_SPLIT_GPUS)
        return err_set(e, ERR_INVALID, "gpus must be at least 1 and at most %d, not %d", TRAIN_SPLIT_GPUS, q->gpus);
    if (q->gpus & (q->gpus - 1))
        return err_set(e, ERR_INVALID, "gpus: the number of cards must be a power of two (up to %d), not %d",
                       TRAIN_SPLIT_GPUS, q->gpus);
    if (!(q->memory > 0)) return err_set(e, ERR_INVALID, "gpus: the memory of a card must be above 0");
    if (model_config_read(q->model, &s->c, e) || model_config_generates(&s->c, e)) return e->code;
    if (s->p.method == TRAIN_GRPO) return err_set(e, ERR_UNSUPPORTED, "method grpo does not train on several ranks");
    if (!s->p.grad_slots) s->p.grad_slots = q->gpus > 1 ? GRAD_SLOTS_OF_RANKS : 1;
    while (s->p.grad_slots < q->gpus && q->p.grad_slots == 0) s->p.grad_slots *= 2;
    if (!s->p.micro_tokens) { /* a slot is a micro-batch, as zero 2 wants it */
        int slot = (s->p.batch_tokens + s->p.grad_slots - 1) / s->p.grad_slots;
        s->p.micro_tokens = slot > s->p.max_length ? slot : s->p.max_length;
    }
    if (train_params_check(&s->p, &s->c, e)) return e->code;
    s->file = model_source_open(q->model, &s->c, e);
    return s->file ? list_tensors(s, e) : e->code;
}

int train_splits(const struct train_split_question *q, struct train_split_answer *a, struct err *e)
{
    struct shape s = {.q = q, .p = q->p};
    *a = (struct train_split_answer){.best = -1};
    int rc = prepare(&s, e);
    if (!rc) {
        count(&s);
        count_layers(&s);
        rc = all_splits(&s, a, e);
    }
    a->parameters = s.matrices + s.tables + s.vectors;
    a->trainable = s.trainable;
    a->macs_per_token = macs_per_token(&s);
    a->grad_slots = s.p.grad_slots;
    a->micro_tokens = s.p.micro_tokens;
    choose(a);
    free(s.tensor);
    if (s.file) tensor_source_close(s.file);
    return rc;
}
