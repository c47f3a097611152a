/* Opening and closing a trainer; the training loop is in loop.c. */
#include "engine/train/train.h"

#include "engine/base/cpus.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/family.h"
#include "engine/train/base_layers.h"
#include "engine/train/train_state.h"
#include "kernels/rng.h"
#include "kernels/trace.h"

#include <stdlib.h>

const struct train_plan *train_plan(const struct train *t)
{
    return &t->plan;
}

/* Dry run of the largest micro-batch and step, for the device's reserve: ops record sizes, nothing is launched. */
static void largest_step(void *arg)
{
    struct train *t = arg;
    int T = t->tm.max_tokens, len = t->p.max_length < T ? t->p.max_length : T, lengths[] = {len, 8};
    for (int k = 0; k < 2; k++) {
        micro_uniform(&t->micro, T, lengths[k]);
        if (t->teacher.tm.c) train_teacher_run(t, &t->micro, false);
        train_model_run(&t->tm, &t->micro, true, 1);
    }
    optim_grad_norm(&t->o);
    optim_step(&t->o, &t->p, 0, 1, 1);
    train_use(t, t->o.p);
}

/* Runs within one time slice, without a gate, so that the dry run sees every op unsplit. */
static int reserve_scratch(struct train *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    struct comm *comm = t->o.comm;
    t->tm.gate = t->teacher.tm.gate = t->o.gate = NULL;
    t->teacher.distill.dry = true;
    t->o.comm = NULL;
    int failed = t->d->ops->reserve(t->d, largest_step, t);
    t->tm.gate = t->teacher.tm.gate = t->o.gate = t->gate;
    t->teacher.distill.dry = false;
    t->o.comm = comm;
    if (!failed) return 0;
    if (!train_device_failed(t, e)) err_set(e, ERR_NOMEM, "no memory for what the ops of training take for themselves");
    return e->code;
}

static int take_memory(struct train *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    t->took = true;
    scheduler_gate_keep_scratch(t->gate);
    int rc = optim_alloc(&t->o, t->p.ema_decay > 0, e);
    if (!rc && t->job.base) rc = base_layers_use(t->job.base, t->model, t->o.exchanger, e);
    if (rc) return rc;
    for (int i = 0; i < ARRAYS; i++) {
        t->host[i] = train_device_array(t, i);
        if (!t->host[i] || t->d->ops->host_memory || train_array_on_host(t, i)) continue;
        if (!(t->host[i] = mem_try_alloc(train_array_floats(t, i) * sizeof(float)))) rc = ERR_NOMEM;
    }
    if (t->eval.n && !(t->best = calloc(t->o.s.own + 1, sizeof *t->best))) rc = ERR_NOMEM;
    if (!rc && grad_slots_alloc(&t->slots, &t->o, e)) return e->code;
    if (rc) return err_set(e, rc, "no memory for copies of %zu parameters", t->o.trained);
    if (t->lora_method) {
        train_lora_bind(&t->lora, &t->o);
        train_lora_bind_score(&t->lora, &t->o, &t->tm);
    } else {
        rc = train_full_bind(&t->full, &t->p, &t->o, e);
    }
    if (!rc) optim_start(&t->o);
    scheduler_gate_pass(t->gate); /* binding may have exchanged values */
    if (!rc && (rc = train_model_open(&t->tm, t->p.max_length, e)) && train_fit_less(t, e)) rc = 0;
    if (!rc && t->distills) rc = train_teacher_open(t, e);
    if (!t->micro.id) micro_open(&t->micro, t->tm.max_tokens, t->tm.c->near_len);
    while (!rc && t->d->ops->reserve && (rc = reserve_scratch(t, e)) && train_fit_less(t, e)) rc = 0;
    scheduler_gate_leave(t->gate);
    return rc;
}

/* Of the initial values, which each rank has. */
static uint32_t adapter_crc(struct train *t)
{
    enum { SOME = 1 << 19 };
    float *host = dev_host_memory(t->d) ? NULL : mem_array(SOME, sizeof *host);
    uint32_t crc = 0;
    for (size_t i = 0, n; i < t->o.n; i += n) {
        n = t->o.n - i < SOME ? t->o.n - i : SOME;
        if (host) chunked_download(train_chunks(t), host, t->o.whole + i, n);
        crc = crc32c(crc, host ? host : t->o.whole + i, n * sizeof *host);
    }
    if (host) scheduler_gate_leave(t->gate);
    free(host);
    return crc;
}

static void hash_job(struct train *t)
{
    size_t bytes = t->o.n * sizeof(float);
    uint32_t first = t->lora_method ? adapter_crc(t) : t->full.crc;
    t->hash = train_job_hash(&t->p, dataset_hash(t->job.data), t->job.eval ? dataset_hash(t->job.eval) : 0,
                             t->model->w.file, first, bytes);
    /* the type in which the base's weights are used is not in its file */
    t->hash = rng_mix(t->hash ^ rng_mix((uint64_t)t->model->w.type << 1 | t->d->bf16_x));
    if (t->distills) t->hash = rng_mix(t->hash ^ rng_mix(t->teacher.hash));
    if (t->samples) t->hash = rng_mix(t->hash ^ rng_mix(t->job.rewards_hash));
    if (t->p.exact) t->hash = rng_mix(t->hash ^ rng_mix((uint64_t)t->tm.exact.kv_type));
}

/* What cannot be trained is refused by name. */
static int check_model(const struct train *t, struct err *e)
{
    const struct model_config *c = &t->model->c;
    for (const struct tensor_row *r = c->family->tensors->row; r->module && !t->lora_method; r++)
        if (r->part == PART_SINKS)
            return err_set(e, ERR_UNSUPPORTED,
                           "full fine-tuning of %s models is not supported, since the sinks of their attention have no "
                           "gradient here; lora and qlora train adapters of attention",
                           c->family->model_type);
    return 0;
}

static int open_parts(struct train *t, struct err *e)
{
    scheduler_gate_leave(t->gate); /* the device is not needed until the job runs */
    int rc = check_model(t, e);
    if (!rc) rc = train_make_plan(t, e);
    if (!rc) rc = take_memory(t, e);
    if (rc) return rc;
    hash_job(t);
    t->st = (struct train_state){.good = -1, .evaluated = -1, .best_step = -1, .rate_scale = 1};
    if (train_device_failed(t, e))
        return e->code; /* an error while downloading the parameters makes the hash meaningless */
    return 0;
}

static int open_all(struct train *t, struct err *e)
{
    int rc = ranks_agree(t->job.comm, open_parts(t, e), e);
    if (!rc) rc = train_same_job(t, e);
    if (rc) return rc;
    if (t->ckpt_dir && train_ranks_first(t->job.comm)) rc = train_load(t, INT64_MAX, e);
    rc = train_share_state(t, rc, e);
    scheduler_gate_leave(t->gate);
    t->resumed = t->saved >= 0;
    return rc;
}

static char *copy_text(const char *s)
{
    return s ? mem_strdup(s) : NULL;
}

static struct train *train_new(const struct train_job *job, struct model *m, struct scheduler_gate *gate)
{
    struct train *t = mem_zalloc(sizeof *t);
    *t = (struct train){.job = *job, .p = job->p, .model = m, .d = m->d, .gate = gate, .saved = -1, .where_step = -1};
    t->lora_method = job->p.method != TRAIN_FULL;
    t->preferences = train_on_preferences(job->p.method);
    t->samples = job->p.method == TRAIN_GRPO;
    t->distills = job->p.method == TRAIN_DISTILL;
    t->job.from = copy_text(job->from);
    t->job.teacher = copy_text(job->teacher);
    t->job.answers = copy_text(job->answers);
    t->job.base_name = copy_text(job->base_name);
    t->job.model_dir = copy_text(job->model_dir);
    t->job.dir = copy_text(job->dir);
    t->job.out = copy_text(job->out);
    t->cores = cpus_available();
    t->clock = (struct step_clock){.d = m->d, .gate = gate};
    t->ckpt_dir = job->dir ? file_join(job->dir, "checkpoints") : NULL;
    t->bf16_x = m->d->bf16_x;
    if (job->comm) t->before = train_memory_used(t);
    return t;
}

int train_plan_job(const struct train_job *job, struct model *m, struct scheduler_gate *gate, struct train_plan *plan,
                   struct err *e)
{
    struct train *t = train_new(job, m, gate);
    int rc = check_model(t, e);
    if (!rc) rc = train_make_plan(t, e);
    *plan = t->plan;
    train_free(t);
    return rc;
}

struct train *train_open(const struct train_job *job, struct model *m, struct scheduler_gate *gate, struct err *e)
{
    struct train *t = train_new(job, m, gate);
    /* no engine serves from this device; exact: one may later, as it is */
    if (t->p.f32 && !gate && !t->p.exact) m->d->bf16_x = false;
    if (open_all(t, e)) {
        struct err lost = {0};
        if (train_device_failed(t, &lost) && lost.code == ERR_LOST)
            *e = lost;                             /* takes precedence over errors that followed from it */
        if (t->took) scheduler_gate_pass(t->gate); /* freeing device memory needs the device */
        train_free(t);
        return NULL;
    }
    return t;
}

void train_free(struct train *t)
{
    if (!t) return;
    if (!t->gate) t->d->bf16_x = t->bf16_x;
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i)) free(t->host[i]);
    train_model_close(&t->tm);
    train_lora_close(&t->lora);
    train_teacher_close(t);
    train_full_close(&t->full);
    if (t->job.base) base_layers_end(t->job.base);
    grad_slots_free(&t->slots, t->d);
    optim_free(&t->o);
    train_rows_close(&t->rows);
    train_rows_close(&t->eval);
    micro_close(&t->micro);
    rollout_free(&t->rollout);
    if (t->took) scheduler_gate_drop_scratch(t->gate, t->d);
    free(t->best);
    free(t->reference.v);
    free(t->eval_reference.v);
    free(t->ckpt_dir);
    free(t->rank_memory);
    const char *texts[] = {t->job.from,      t->job.teacher, t->job.answers, t->job.base_name,
                           t->job.model_dir, t->job.dir,     t->job.out};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) free((char *)texts[i]);
    buf_free(&t->warnings);
    buf_free(&t->where);
    free(t);
}
