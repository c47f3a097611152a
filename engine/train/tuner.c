#include "engine/train/tuner.h"

#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "engine/train/exact.h"
#include "engine/train/lora.h"
#include "engine/train/model.h"
#include "engine/train/op_chunks.h"
#include "engine/train/optim.h"
#include "engine/train/params.h"
#include "engine/train/rows.h"
#include "engine/train/tuner_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 512 /* of a micro-batch, unless a row is longer */ };
static const double MOST = 0.9; /* of the free memory that a tuner may take */

struct tuner {
    struct train_params p;
    struct model *model;
    struct dev *d;
    struct scheduler_gate *gate;
    struct optim o;
    struct train_lora lora;
    struct train_model tm; /* max_tokens 0: it is not open */
    struct micro micro;
    float *host; /* (o.n) a copy of the parameters */
    int64_t steps;
    bool lost; /* gradients were lost by an error */
};

static bool device_failed(const struct tuner *t, struct err *e)
{
    return scheduler_gate_failed(t->gate, t->d, e);
}

static struct op_chunks chunks_of(const struct tuner *t)
{
    return (struct op_chunks){t->d, t->gate, NULL};
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

static int check_memory(const struct tuner *t, size_t bytes, struct err *e)
{
    if (!t->d->ops->host_memory || (double)bytes <= MOST * (double)memory_available()) return 0;
    return err_set(e, ERR_NOMEM, "training %zu parameters needs %.2f GiB, and %.2f GiB are free", t->o.trained,
                   (double)bytes / (1 << 30), (double)memory_available() / (1 << 30));
}

static int take_memory(struct tuner *t, struct err *e)
{
    if (check_memory(t, (4 * t->o.n + t->o.n) * sizeof(float), e)) return e->code;
    if (!(t->host = mem_try_alloc(t->o.n * sizeof *t->host)))
        return err_set(e, ERR_NOMEM, "no memory for a copy of %zu parameters", t->o.trained);
    if (optim_alloc(&t->o, false, e)) return e->code;
    train_lora_bind(&t->lora, &t->o);
    optim_zero_grad(&t->o);
    t->d->ops->finish(t->d);
    return device_failed(t, e) ? e->code : 0;
}

/* from: the directory of its initial values; NULL: random ones. */
static struct tuner *open_from(const struct tuner_params *p, const char *from, struct model *m,
                               struct scheduler_gate *gate, struct err *e)
{
    struct tuner *t = mem_zalloc(sizeof *t);
    *t = (struct tuner){.model = m, .d = m->d, .gate = gate};
    train_params_default(&t->p, TRAIN_LORA);
    t->p.lora_r = p->r;
    t->p.lora_alpha = p->alpha;
    t->p.targets = p->targets;
    t->p.seed = p->seed;
    t->p.max_length = m->c.max_len < 8 ? 8 : m->c.max_len;
    optim_init(&t->o, t->d, gate);
    int rc = train_params_check(&t->p, &m->c, e);
    if (!rc) rc = train_lora_open(&t->lora, &m->c, &t->p, from, &t->o, e);
    scheduler_gate_pass(gate);
    if (!rc) rc = take_memory(t, e);
    if (rc) {
        tuner_free(t);
        return NULL;
    }
    scheduler_gate_leave(gate);
    return t;
}

struct tuner *tuner_open(const struct tuner_params *p, struct model *m, struct scheduler_gate *gate, struct err *e)
{
    return open_from(p, NULL, m, gate, e);
}

static void close_activations(struct tuner *t)
{
    if (!t->tm.max_tokens) return;
    train_model_close(&t->tm);
    micro_close(&t->micro);
    scheduler_gate_drop_scratch(t->gate, t->d);
    t->tm = (struct train_model){0};
}

void tuner_free(struct tuner *t)
{
    if (!t) return;
    scheduler_gate_pass(t->gate); /* freeing device memory needs the device */
    close_activations(t);
    train_lora_close(&t->lora);
    optim_free(&t->o);
    scheduler_gate_leave(t->gate);
    free(t->host);
    free(t);
}

/* ---- rows ----------------------------------------------------------------------------------------------------------
 */

static void clear_micro(struct micro *b)
{
    b->n_tokens = b->n_seqs = b->n_targets = b->n_sampled = 0;
    b->q_start[0] = 0;
}

static void add_row(struct micro *b, const struct tuner_row *r)
{
    int first = rope_first_row(b->near_len, r->n);
    for (int i = 0; i < r->n; i++, b->n_tokens++, b->n_targets++) {
        b->id[b->n_tokens] = r->id[i];
        b->pos[b->n_tokens] = first + i;
        b->row[b->n_targets] = b->n_tokens;
        b->target[b->n_targets] = r->target[i];
        b->weight[b->n_targets] = r->weight ? r->weight[i] : 0;
        b->sampled[b->n_targets] = r->sampled ? r->sampled[i] : NAN;
        b->n_sampled += !isnan(b->sampled[b->n_targets]);
    }
    b->q_start[++b->n_seqs] = b->n_tokens;
}

static void end_micro(struct micro *b)
{
    b->n_units = 1;
    b->unit[0] = b->unit_target[0] = 0;
    b->unit[1] = b->n_tokens;
    b->unit_target[1] = b->n_targets;
}

/* Dry run of the largest micro-batch and step, for the scratch memory of a device that has its own. */
static void largest_run(void *arg)
{
    struct tuner *t = arg;
    int n = t->tm.max_tokens, lengths[] = {n, 8};
    for (int k = 0; k < 2; k++) {
        micro_uniform(&t->micro, n, lengths[k]);
        train_model_run(&t->tm, &t->micro, true, 1);
    }
    optim_grad_norm(&t->o);
    optim_step(&t->o, &t->p, 0, 1, 1);
}

static int reserve_scratch(struct tuner *t, struct err *e)
{
    if (!t->d->ops->reserve) return 0;
    t->tm.gate = t->o.gate = NULL;
    int failed = t->d->ops->reserve(t->d, largest_run, t);
    t->tm.gate = t->o.gate = t->gate;
    if (!failed) return 0;
    if (!device_failed(t, e)) err_set(e, ERR_NOMEM, "no memory for what the ops of training take for themselves");
    return e->code;
}

/* Activations for micro-batches of so many tokens. */
static int open_activations(struct tuner *t, int tokens, struct err *e)
{
    size_t largest;
    if (tokens <= t->tm.max_tokens) return 0;
    close_activations(t);
    struct train_model tm = {.c = &t->model->c,
                             .w = &t->model->w,
                             .d = t->d,
                             .gate = t->gate,
                             .site = t->lora.site,
                             .half = true,
                             .recompute = true,
                             .exact = {.kv_type = train_exact_kv_type(t->model)},
                             .max_tokens = tokens};
    if (check_memory(t, train_model_bytes(&tm, &largest), e)) return e->code;
    t->tm = tm;
    scheduler_gate_keep_scratch(t->gate);
    micro_open(&t->micro, tokens, t->model->c.near_len);
    t->micro.weight = mem_array((size_t)tokens, sizeof *t->micro.weight);
    int rc = train_model_open(&t->tm, t->p.max_length, e);
    if (!rc) rc = reserve_scratch(t, e);
    if (rc) close_activations(t);
    return rc;
}

/* The rows from `from` on that fit.  @return the next row. */
static int run_some(struct tuner *t, const struct tuner_row *row, int from, int n_rows, bool back)
{
    struct micro *b = &t->micro;
    int end = from, at = 0;
    clear_micro(b);
    while (end < n_rows && (end == from || b->n_tokens + row[end].n <= t->tm.max_tokens)) add_row(b, &row[end++]);
    end_micro(b);
    train_model_run(&t->tm, b, back, 1);
    for (int i = from; i < end; i++)
        for (int k = 0; k < row[i].n; k++) row[i].logprob[k] = -t->tm.host_loss[at++];
    return end;
}

int tuner_run(struct tuner *t, const struct tuner_row *row, int n_rows, bool back, struct err *e)
{
    int longest = TOKENS < t->p.max_length ? TOKENS : t->p.max_length;
    for (int i = 0; i < n_rows; i++)
        if (row[i].n > longest) longest = row[i].n;
    scheduler_gate_pass(t->gate);
    int rc = open_activations(t, longest, e);
    for (int i = 0; i < n_rows && !rc;) {
        i = run_some(t, row, i, n_rows, back);
        if (device_failed(t, e)) rc = e->code;
    }
    scheduler_gate_leave(t->gate);
    if (rc && back) t->lost = true;
    return rc;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------
 */

int tuner_step(struct tuner *t, const struct tuner_step *s, double *norm, struct err *e)
{
    double scale = 1;
    scheduler_gate_pass(t->gate);
    *norm = optim_grad_norm(&t->o);
    if (t->lost)
        err_set(e, ERR_INVALID, "gradients of this step were lost by an error before: it is not made");
    else if (!isfinite(*norm))
        err_set(e, ERR_INVALID, "the gradient is not finite: the step is not made");
    if (s->max_norm > 0) scale = fmin(1, s->max_norm / (*norm + 1e-6));
    t->p.beta1 = s->beta1;
    t->p.beta2 = s->beta2;
    t->p.epsilon = s->epsilon;
    t->p.weight_decay = s->weight_decay;
    if (!e->code) optim_step(&t->o, &t->p, s->learning_rate, scale, ++t->steps);
    optim_zero_grad(&t->o);
    t->d->ops->finish(t->d);
    t->lost = false;
    struct err failed = {0};
    if (device_failed(t, &failed)) *e = failed;
    scheduler_gate_leave(t->gate);
    return e->code;
}

struct adapter *tuner_adapter(struct tuner *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    chunked_download(chunks_of(t), t->host, t->o.p, t->o.n);
    bool failed = device_failed(t, e);
    scheduler_gate_leave(t->gate);
    return failed ? NULL : train_lora_adapter(&t->lora, t->host);
}

/* ---- on the disk ---------------------------------------------------------------------------------------------------
 */

static const char *const moments[] = {"moment1.bin", "moment2.bin"};

static float *moment(const struct tuner *t, int i)
{
    return i ? t->o.v : t->o.m;
}

int tuner_save(struct tuner *t, const char *dir, bool optimizer, const char *model_dir, const char *note, size_t n_note,
               struct err *e)
{
    size_t n = optim_moment_floats(&t->o);
    struct tuner_file file[3] = {{"checkpoint.json", note, n_note}};
    float *copy[2] = {0};
    const struct adapter *a = tuner_adapter(t, e);
    int files = 1;
    for (int i = 0; i < 2 && a && optimizer && !e->code; i++) {
        if (!(copy[i] = mem_try_alloc(n * sizeof *copy[i])))
            err_set(e, ERR_NOMEM, "no memory for a copy of %zu moments", n);
        else
            chunked_download(chunks_of(t), copy[i], moment(t, i), n);
        file[files++] = (struct tuner_file){moments[i], copy[i], n * sizeof *copy[i]};
    }
    bool failed = e->code || device_failed(t, e);
    scheduler_gate_leave(t->gate);
    char *base_name = adapter_base_name(model_dir);
    if (!failed) tuner_files_write(dir, a, &t->model->c, base_name, t->steps, file, files, e);
    free(base_name);
    for (int i = 0; i < 2; i++) free(copy[i]);
    return e->code;
}

static int load_moments(struct tuner *t, const char *dir, struct err *e)
{
    size_t n = optim_moment_floats(&t->o), bytes;
    for (int i = 0; i < 2; i++) {
        char *data = NULL;
        if (tuner_files_read(dir, moments[i], &data, &bytes, NULL, e)) return e->code;
        if (bytes == n * sizeof(float))
            chunked_upload(chunks_of(t), moment(t, i), (const float *)(const void *)data, n);
        else
            err_set(e, ERR_INVALID, "%s: %s is of another adapter", dir, moments[i]);
        t->d->ops->finish(t->d);
        bool failed = e->code || device_failed(t, e);
        scheduler_gate_leave(t->gate);
        free(data);
        if (failed) return e->code;
    }
    return 0;
}

struct tuner *tuner_load(const char *dir, bool optimizer, struct model *m, struct scheduler_gate *gate, struct err *e)
{
    static const struct tuner_params defaults = {.r = 1, .alpha = 1, .targets = TUNER_ATTENTION};
    int64_t steps;
    if (tuner_files_check(dir, &steps, e)) return NULL;
    struct tuner *t = open_from(&defaults, dir, m, gate, e);
    if (!t || !optimizer) return t;
    t->steps = steps;
    if (!load_moments(t, dir, e)) return t;
    tuner_free(t);
    return NULL;
}
