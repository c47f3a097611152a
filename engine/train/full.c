#include "engine/train/full.h"

#include "engine/base/check.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/files.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensors.h"
#include "engine/model/weights_read.h"
#include "engine/train/exchange.h"
#include "engine/train/full_layers.h"
#include "engine/train/op_chunks.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INIT_STD 0.02 /* transformers' default initializer_range */

/* A tensor of the file and its values in the optimizer's arrays, (rows, cols) = (outputs, inputs). */
struct master {
    char name[TENSOR_NAME_MAX], written[TENSOR_NAME_MAX]; /* in the base's source; in the result */
    size_t at;
    int rows, cols;
    bool transposed;            /* stored as [inputs][outputs] in the file */
    int by_head;                /* as matrix_slot's */
    bool ones, zeros, residual; /* how random initialisation fills it */
};

/* ---- the parts --------------------------------------------------------------------------------------------------- */

/* The fields for the weights and gradients of each layer's experts. */
static void open_experts(struct train_full *f)
{
    const struct model_config *c = &f->base->c;
    for (int l = 0; l < c->layers; l++) {
        size_t n = (size_t)model_block(c, l)->experts.count;
        if (!n) continue;
        f->w.layer[l].expert_up = mem_array(n, sizeof *f->w.layer->expert_up);
        f->w.layer[l].expert_down = mem_array(n, sizeof *f->w.layer->expert_down);
        f->g.layer[l].expert_up = mem_array(n, sizeof *f->g.layer->expert_up);
        f->g.layer[l].expert_down = mem_array(n, sizeof *f->g.layer->expert_down);
    }
}

static void close_experts(struct train_full *f)
{
    for (int l = 0; f->w.layer && l < f->base->c.layers; l++) {
        free(f->w.layer[l].expert_up), free(f->w.layer[l].expert_down);
        free(f->g.layer[l].expert_up), free(f->g.layer[l].expert_down);
    }
}

/* The field for the gradient of stack i; *table: the stack is also the embedding table. */
static float **stack_grad(struct train_full *f, int i, bool *table)
{
    const struct model_config *c = &f->base->c;
    struct expert_stack x = tensors_expert_stack(c, i);
    int layer = i / LAYER_GEMMS;
    *table = false;
    if (x.layer >= 0) {
        struct layer_grads *g = &f->g.layer[x.layer];
        return x.gemm == EXPERT_ROUTER ? &g->router
               : x.gemm == EXPERT_UP   ? &g->expert_up[x.expert]
                                       : &g->expert_down[x.expert];
    }
    if (layer < c->layers) {
        struct layer_grads *g = &f->g.layer[layer];
        float **grads[LAYER_GEMMS] = {
            [GEMM_QKV] = &g->qkv, [GEMM_O] = &g->o, [GEMM_UP] = &g->up, [GEMM_DOWN] = &g->down};
        return grads[i % LAYER_GEMMS];
    }
    bool head = i == c->layers * LAYER_GEMMS;
    *table = !head || c->tied;
    return head ? &f->g.head : &f->g.embed;
}

/* The field for the gradient of a vector. */
static float **vector_grad(struct train_full *f, const struct vector_slot *v)
{
    static const struct {
        size_t weight, grad;
    } of_layer[] =
        {
#define BOTH(name) {offsetof(struct layer_weights, name), offsetof(struct layer_grads, name)}
            BOTH(norm1_w), BOTH(norm1_b), BOTH(norm2_w),  BOTH(norm2_b),  BOTH(post1_w), BOTH(post1_b),
            BOTH(post2_w), BOTH(post2_b), BOTH(qkv_b),    BOTH(o_b),      BOTH(q_norm),  BOTH(k_norm),
            BOTH(up_b),    BOTH(down_b),  BOTH(q_norm_b), BOTH(k_norm_b),
#undef BOTH
        },
      of_model[] = {
#define BOTH(name) {offsetof(struct weights, name), offsetof(struct model_grads, name)}
          BOTH(norm_w),
          BOTH(norm_b),
          BOTH(head_b),
          BOTH(pos),
#undef BOTH
      };
    for (size_t i = 0; v->layer >= 0 && i < sizeof of_layer / sizeof *of_layer; i++)
        if (of_layer[i].weight == v->field) return (float **)((char *)&f->g.layer[v->layer] + of_layer[i].grad);
    for (size_t i = 0; v->layer < 0 && i < sizeof of_model / sizeof *of_model; i++)
        if (of_model[i].weight == v->field) return (float **)((char *)&f->g + of_model[i].grad);
    CHECK(false);
    return NULL;
}

static struct master *next_master(struct train_full *f, size_t at, int rows, int cols)
{
    struct master *m = &f->master[f->n_masters++];
    *m = (struct master){.at = at, .rows = rows, .cols = cols};
    return m;
}

/* The parameters of stack i are added next. */
static void group_stack(const struct train_full *f, int i, struct optim *o)
{
    const struct model_config *c = &f->base->c;
    int experts = tensors_expert_stack(c, i).layer, head = c->layers * LAYER_GEMMS;
    if (experts >= 0)
        optim_group_layer(o, experts);
    else if (i < head)
        optim_group_layer(o, i / LAYER_GEMMS);
    else
        optim_group(o, i > head || c->tied ? "embeddings" : "head");
}

/* Stack i and its tensors in the optimizer's arrays.  Of the layers' matrices, each expert's among them, each tensor is
 * a matrix for Muon. */
static void add_stack(struct train_full *f, int i, enum train_optimizer optimizer, struct optim *o)
{
    struct stack s, written;
    const struct model_config *c = &f->base->c;
    bool of_layer = i < c->layers * LAYER_GEMMS || tensors_expert_stack(c, i).layer >= 0;
    bool muon = optimizer == OPTIMIZER_MUON && of_layer;
    tensors_stack(&f->tensors, i, &s);
    tensors_stack(&f->written, i, &written);
    if (!s.n) return; /* a layer without experts, or with experts alone */
    bool table;
    stack_grad(f, i, &table);
    group_stack(f, i, o);
    optim_read_in_place(o, table);
    size_t n = (size_t)s.rows * (size_t)s.cols, at = muon ? optim_add_muon(o, n) : optim_add(o, n, true);
    f->stack_at[i] = at;
    for (int k = 0; k < s.n; at += (size_t)s.part[k].rows * (size_t)s.cols, k++) {
        struct master *m = next_master(f, at, s.part[k].rows, s.cols);
        snprintf(m->name, sizeof m->name, "%s", s.part[k].name);
        snprintf(m->written, sizeof m->written, "%s", written.part[k].name);
        m->transposed = s.part[k].transposed;
        m->by_head = s.part[k].by_head;
        m->residual = s.part[k].residual;
        if (muon) optim_add_matrix(o, at, m->rows, m->cols);
    }
}

int train_full_open(struct train_full *f, const struct model *base, const struct train_params *p, struct optim *o,
                    struct err *e)
{
    const struct model_config *c = &base->c;
    if (!base->w.embed.p) return err_set(e, ERR_UNSUPPORTED, "method full wants a base of floats");
    *f = (struct train_full){.base = base, .tensors = tensors_of(c, base->w.file)};
    f->type = p->f32 ? DT_F32 : base->w.type;
    f->written = f->tensors;
    f->written.table = c->family->tensors;
    int stacks = tensors_stacks(c), vectors = tensors_vectors(&f->tensors, NULL);
    f->w.layer = mem_array((size_t)c->layers, sizeof *f->w.layer);
    f->w.float_type = f->base->w.float_type;
    f->g.layer = mem_array((size_t)c->layers, sizeof *f->g.layer);
    open_experts(f);
    f->master = mem_array((size_t)stacks * STACK_MAX + (size_t)vectors, sizeof *f->master);
    f->stack_at = mem_array((size_t)stacks, sizeof *f->stack_at);
    f->vector = mem_array((size_t)vectors, sizeof *f->vector);
    f->vector_at = mem_array((size_t)vectors, sizeof *f->vector_at);
    for (int i = 0; i < stacks; i++) add_stack(f, i, p->optimizer, o);
    f->n_stacks = stacks;
    full_layers_share(f);
    optim_read_in_place(o, true);
    f->n_vectors = tensors_vectors(&f->tensors, f->vector);
    for (int i = 0; i < vectors; i++) { /* parts of one array are contiguous */
        const struct vector_slot *v = &f->vector[i];
        size_t n = (size_t)v->rows * (size_t)v->cols;
        bool first = v->at == 0;
        if (first) {
            size_t whole = n;
            for (int k = i + 1; k < vectors && f->vector[k].at > 0; k++) whole += (size_t)f->vector[k].cols;
            if (v->layer >= 0)
                optim_group_layer(o, v->layer);
            else
                optim_group(o, v->table ? "embeddings" : "head");
            f->vector_at[i] = optim_add(o, whole, v->table);
        } else {
            f->vector_at[i] = f->vector_at[i - 1] + (size_t)f->vector[i - 1].cols;
        }
        struct master *m = next_master(f, f->vector_at[i], v->rows, v->cols);
        snprintf(m->name, sizeof m->name, "%s", v->name);
        snprintf(m->written, sizeof m->written, "%s", v->name);
        m->by_head = v->by_head;
        m->ones = v->norm && !v->minus_one;
        m->zeros = !m->ones && !v->table;
        if (!v->minus_one) continue;
        f->n_applied += n;
        f->n_ones = n > f->n_ones ? n : f->n_ones;
    }
    return 0;
}

size_t train_full_bytes(const struct train_full *f, const struct optim *o)
{
    size_t bytes = (f->n_ones + f->n_applied) * sizeof(float);
    for (int i = 0; i < f->n_stacks; i++) {
        struct stack s;
        tensors_stack(&f->tensors, i, &s);
        bool packed = s.gemm >= 0 || tensors_expert_stack(&f->base->c, i).layer >= 0; /* else a table */
        if (packed && full_layers_root(f, o, i)) bytes += dtype_bytes(f->type, (size_t)s.rows * (size_t)s.cols);
    }
    return bytes + full_layers_bytes(f, o);
}

/* ---- initial values ---------------------------------------------------------------------------------------------- */

static double normal(uint64_t seed, uint64_t i)
{
    double u = 1 - rng_uniform(seed, 2 * i), v = rng_uniform(seed, 2 * i + 1);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

/* As transformers' _init_weights. */
static void init_random(const struct master *m, const struct model_config *c, uint64_t seed, float *p)
{
    size_t n = (size_t)m->rows * (size_t)m->cols;
    double std = INIT_STD;
    if (m->residual) std /= sqrt(2.0 * c->layers);
    for (size_t i = 0; i < n; i++) p[i] = m->ones ? 1 : m->zeros ? 0 : (float)(std * normal(seed, i));
}

static size_t file_index(const struct master *m, size_t i)
{
    size_t row = i / (size_t)m->cols, col = i % (size_t)m->cols;
    if (m->by_head && m->rows == 1) col = (size_t)tensors_stored_row(m->by_head, m->cols, (int)col); /* a bias */
    if (m->by_head && m->rows > 1) row = (size_t)tensors_stored_row(m->by_head, m->rows, (int)row);
    return m->transposed ? col * (size_t)m->rows + row : row * (size_t)m->cols + col;
}

/* The model was loaded from this file, so every tensor exists with its shape. */
static int init_file(const struct master *m, const struct tensor_source *file, float *p, struct err *e)
{
    const struct tensor *t = tensor_source_find(file, m->name);
    if (!t) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", m->name);
    if (t->form)
        return err_set(e, ERR_UNSUPPORTED,
                       "tensor %s: full fine-tuning of a GGUF model whose tensors are quantised or permuted is not "
                       "supported; train an adapter, or the original model",
                       m->name);
    enum dtype type = tensor_float_type(t->type);
    size_t n = (size_t)m->rows * (size_t)m->cols;
    if (type == DT_NONE || t->bytes != dtype_bytes(type, n))
        return err_set(e, ERR_UNSUPPORTED, "tensor %s: not a matrix of floats", m->name);
    for (size_t i = 0; i < n; i++) p[i] = tensor_element(t, file_index(m, i));
    return 0;
}

/* The checksum continues with zeros up to float `at`, from the one after the last that it has. */
static void skip_padding(struct train_full *f, size_t *done, size_t at)
{
    static const float zeros[256];
    for (size_t n; *done < at; *done += n) {
        n = at - *done < sizeof zeros / sizeof *zeros ? at - *done : sizeof zeros / sizeof *zeros;
        f->crc = crc32c(f->crc, zeros, n * sizeof *zeros);
    }
}

static int first_values(struct train_full *f, const struct train_params *p, struct optim *o, struct err *e)
{
    int rc = 0;
    size_t done = 0;
    for (int i = 0; i < f->n_masters && !rc; i++) {
        const struct master *m = &f->master[i];
        size_t n = (size_t)m->rows * (size_t)m->cols;
        float *host = mem_try_alloc(n * sizeof *host);
        if (!host) return err_set(e, ERR_NOMEM, "no memory for tensor %s", m->name);
        scheduler_gate_leave(o->gate); /* while the file is read */
        if (p->random_init)
            init_random(m, &f->base->c, rng_at(p->seed, (uint64_t)i), host);
        else
            rc = init_file(m, f->base->w.file, host, e);
        scheduler_gate_pass(o->gate);
        skip_padding(f, &done, m->at);
        f->crc = crc32c(f->crc, host, n * sizeof *host);
        done = m->at + n;
        if (!rc) exchange_set(o, m->at, host, n);
        free(host);
    }
    skip_padding(f, &done, o->n);
    return rc;
}

/* ---- packed weights ---------------------------------------------------------------------------------------------- */

/* The values at p, of type t, as parts of the stack in the form a device packs. */
static int parts_of(const struct stack *s, const void *p, enum dtype t, struct halves *out)
{
    struct weight_src part[STACK_MAX];
    size_t at = 0;
    for (int k = 0; k < s->n; k++) {
        const char *data = (const char *)p + dtype_bytes(t, at);
        part[k] =
            (struct weight_src){.t = t, .rows = s->part[k].rows, .cols = s->cols, .data = data, .gate_up = s->gate_up};
        at += (size_t)s->part[k].rows * (size_t)s->cols;
    }
    return weights_halves(part, s->n, out);
}

/* Packs arbitrary values in the base's type, to allocate; train_full_use writes the right ones. */
static struct weight *pack(struct dev *d, const struct stack *s, enum dtype t)
{
    struct halves h;
    size_t bytes = dtype_bytes(t, (size_t)s->rows * (size_t)s->cols);
    CHECK(bytes > 0);
    void *zeros = calloc(1, bytes);
    if (!zeros) return NULL;
    int n = parts_of(s, zeros, t, &h);
    struct weight *w = d->ops->weight_pack(d, h.src, n);
    free(zeros);
    return w;
}

void train_full_pack(struct optim *o, const struct stack *s, struct weight *w, const float *from)
{
    const double CHUNK = 1 << 20; /* values per pass of the gate */
    struct halves h;
    int n = parts_of(s, from, DT_F32, &h), chunks = (int)((double)s->rows * s->cols / CHUNK) + 1;
    for (int k = 0; k < chunks; k++) {
        scheduler_gate_pass(o->gate);
        scheduler_gate_cost(o->gate, WORK_STATE, 2.0 * s->rows * s->cols / chunks);
        o->d->ops->weight_update(o->d, w, h.src, n, k, chunks);
    }
}

/* Memory for 1 + w of the vectors that are stored as w and applied as 1 + w. */
static int reserve_applied(struct train_full *f, struct optim *o, struct err *e)
{
    struct dev *d = o->d;
    if (!f->n_applied) return 0;
    f->ones = d->ops->alloc(d, f->n_ones * sizeof *f->ones);
    f->applied = d->ops->alloc(d, f->n_applied * sizeof *f->applied);
    if (!f->ones || !f->applied) return err_set(e, ERR_NOMEM, "no memory for norms");
    float *host = mem_array(f->n_ones, sizeof *host);
    for (size_t i = 0; i < f->n_ones; i++) host[i] = 1;
    chunked_upload((struct op_chunks){d, o->gate, NULL}, f->ones, host, f->n_ones);
    free(host);
    return 0;
}

int train_full_bind(struct train_full *f, const struct train_params *p, struct optim *o, struct err *e)
{
    f->d = o->d;
    f->o = o;
    int rc = first_values(f, p, o, e);
    if (!rc) rc = reserve_applied(f, o, e);
    if (!rc) rc = full_layers_reserve(f, e);
    for (int i = 0; i < f->n_stacks && !rc; i++) {
        struct stack s;
        bool table;
        struct weight **w = weights_stack_field(&f->w, &f->base->c, i);
        tensors_stack(&f->tensors, i, &s);
        if (!s.n) continue;
        *stack_grad(f, i, &table) = optim_grad(o, f->stack_at[i]);
        if (table) f->g.embed = optim_grad(o, f->stack_at[i]);
        scheduler_gate_pass(o->gate);
        if (w && !full_layers_root(f, o, i))
            *w = *weights_stack_field(&f->w, &f->base->c, f->root[i]);
        else if (w && !(*w = pack(o->d, &s, f->type)))
            rc = err_set(e, ERR_NOMEM, "no memory for packed weights");
    }
    for (int i = 0; i < f->n_vectors; i++)
        if (!f->vector[i].at) *vector_grad(f, &f->vector[i]) = optim_grad(o, f->vector_at[i]);
    if (!rc) train_full_use(f, o, o->p);
    return rc;
}

/* out = 1 + w */
static void apply(const struct train_full *f, struct op_chunks cut, float *w, int n, float *out)
{
    struct mat sum = mat_f32(out, 1, n);
    chunked_zero(cut, sum);
    chunked_add(cut, (struct add_args){sum, mat_f32(f->ones, 1, n)});
    chunked_add(cut, (struct add_args){sum, mat_f32(w, 1, n)});
}

static void use_vectors(struct train_full *f, struct optim *o, float *values)
{
    float *applied = f->applied;
    for (int i = 0; i < f->n_vectors; i++) {
        const struct vector_slot *v = &f->vector[i];
        float *at = optim_value(o, values, f->vector_at[i]);
        if (v->at) continue;
        if (v->table) {
            f->w.pos = mat_f32(at, v->rows, v->cols);
        } else if (v->minus_one) {
            apply(f, (struct op_chunks){o->d, o->gate, NULL}, at, v->cols, applied);
            *weights_vector_field(&f->w, v) = applied;
            applied += v->cols;
        } else {
            *weights_vector_field(&f->w, v) = at;
        }
    }
}

/* The units from *next on that begin below `end`, but those that are gathered by layer. */
static void gather_units(struct optim *o, const float *values, size_t *next, size_t end)
{
    for (; o->s.divided && *next < o->s.n_units && o->s.unit[*next].from < end; ++*next)
        if (!shards_by_layer(&o->s, &o->s.unit[*next])) exchange_gather(o, &o->s.unit[*next], values);
}

void train_full_use(struct train_full *f, struct optim *o, float *values)
{
    size_t next = 0;
    if (o->s.values) layer_gather_forget(&f->gather);
    f->values = values;
    for (int i = 0; i < f->n_stacks; i++) {
        struct stack s;
        bool table;
        struct weight **w = weights_stack_field(&f->w, &f->base->c, i);
        tensors_stack(&f->tensors, i, &s);
        if (!s.n || (o->s.values && full_layers_of(f, i) >= 0)) continue;
        size_t at = f->stack_at[i];
        gather_units(o, values, &next, at + (size_t)s.rows * (size_t)s.cols);
        stack_grad(f, i, &table);
        if (table) f->w.embed = mat_f32(optim_value(o, values, at), s.rows, s.cols);
        if (!w) continue;
        train_full_pack(o, &s, *w, table || !o->s.divided ? optim_value(o, values, at) : optim_grad(o, at));
    }
    gather_units(o, values, &next, o->n);
    use_vectors(f, o, values);
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static int name_order(const void *a, const void *b)
{
    return strcmp((*(const struct master *const *)a)->name, (*(const struct master *const *)b)->name);
}

/* Ordered by name; free() it. */
static const struct master **masters_by_name(const struct train_full *f)
{
    const struct master **list = mem_array((size_t)f->n_masters, sizeof *list);
    for (int i = 0; i < f->n_masters; i++) list[i] = &f->master[i];
    qsort(list, (size_t)f->n_masters, sizeof *list, name_order);
    return list;
}

static int to_name(const void *name, const void *master)
{
    return strcmp(name, (*(const struct master *const *)master)->name);
}

/* One tensor's values p (NULL: none) in the file's layout and type; the caller frees. */
static void *as_stored(const struct master *m, const float *p, enum dtype t)
{
    size_t n = (size_t)m->rows * (size_t)m->cols;
    char *out = p ? mem_try_alloc(dtype_bytes(t, n)) : NULL;
    for (size_t i = 0; out && i < n; i++) {
        size_t to = file_index(m, i);
        float v = p[i];
        uint16_t h = t == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        if (t == DT_F32)
            memcpy(out + 4 * to, &v, 4);
        else
            memcpy(out + 2 * to, &h, 2);
    }
    return out;
}

/* m: NULL for buffers, which are not parameters. */
static int add_tensor(const struct master *m, struct st_writer *w, const struct tensor *t, train_values_fn *read,
                      void *arg, struct err *e)
{
    if (!m) return st_writer_add(w, t, 1, e);
    struct tensor own = *t;
    size_t n = (size_t)m->rows * (size_t)m->cols;
    float *p = mem_try_alloc(n * sizeof *p);
    own.name = (char *)m->written;
    int rc = p ? read(arg, m->at, n, p, e) : 0;
    void *data = rc ? NULL : as_stored(m, p, tensor_float_type(t->type));
    free(p);
    if (rc) return rc;
    if (!data) return err_set(e, ERR_NOMEM, "no memory for tensor %s", t->name);
    own.data = data;
    rc = st_writer_add(w, &own, 1, e);
    free(data);
    return rc;
}

int train_full_write(struct train_full *f, train_values_fn *read, void *arg, const char *model_dir, const char *dir,
                     struct err *e)
{
    const struct tensor_source *file = f->base->w.file;
    size_t n = tensor_source_count(file), names = 0;
    int rc = dir_make(dir, e);
    if (!rc && model_dir) rc = model_files_copy(model_dir, dir, true, e);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) names += strlen(tensor_source_at(file, i)->name) + 1;
    for (int i = 0; i < f->n_masters; i++) names += strlen(f->master[i].written) + 1;
    char *path = file_join(dir, "model.safetensors");
    struct st_writer *w = st_writer_open(path, n, names, 64, e);
    free(path);
    if (!w) return e->code;
    st_writer_note(w, "format", "pt");
    const struct master **list = masters_by_name(f);
    for (size_t i = 0; i < n && !rc; i++) {
        const struct tensor *t = tensor_source_at(file, i);
        const struct master **m = bsearch(t->name, list, (size_t)f->n_masters, sizeof *list, to_name);
        rc = add_tensor(m ? *m : NULL, w, t, read, arg, e);
    }
    free(list);
    if (!rc) return st_writer_finish(w, e);
    st_writer_abort(w);
    return rc;
}

int train_full_host_values(void *p, size_t at, size_t n, float *out, struct err *e)
{
    (void)e;
    memcpy(out, (const float *)p + at, n * sizeof *out);
    return 0;
}

void train_full_close(struct train_full *f)
{
    struct dev *d = f->d; /* NULL: never opened */
    for (int i = 0; d && i < f->n_stacks; i++) {
        struct weight **w = weights_stack_field(&f->w, &f->base->c, i);
        if (w && *w && full_layers_root(f, f->o, i)) d->ops->weight_free(d, *w);
    }
    close_experts(f);
    full_layers_close(f);
    if (d && f->ones) d->ops->free(d, f->ones);
    if (d && f->applied) d->ops->free(d, f->applied);
    free(f->w.layer);
    free(f->g.layer);
    free(f->master);
    free(f->stack_at);
    free(f->vector);
    free(f->vector_at);
    *f = (struct train_full){0};
}
