#include "engine/serve/job_ranks.h"

#include "engine/base/fnv.h"
#include "engine/base/log.h"
#include "engine/model/open.h"
#include "engine/model/ranks_agree.h"
#include "engine/serve/setup.h"
#include "engine/train/job_order.h"
#include "engine/train/scheduler_gate.h"
#include "kernels/comm.h"

/* Of the number of parameters, and of one matrix as it is multiplied by, where the device tells it. */
static uint64_t hash_of(const struct model *m)
{
    const struct weight *w = m->w.layer ? m->w.layer[0].o : NULL;
    size_t bytes = 0;
    const void *packed = w && m->d->ops->weight_packed ? m->d->ops->weight_packed(w, &bytes) : NULL;
    uint64_t h = fnv1a(FNV1A_START, &m->w.parameters, sizeof m->w.parameters);
    return packed ? fnv1a(h, packed, bytes) : h;
}

int job_ranks_check(struct comm *c, const struct model *m, struct err *e)
{
    static const char other[] = "has another version of tandem than rank 0",
                      model[] = "has read another model than rank 0, or quantised it otherwise";
    struct rank_kind own = rank_kind_of(m->d);
    own.work[0] = job_order_version();
    own.work[1] = hash_of(m);
    return ranks_compare(c, &own, (const char *const[]){other, model}, e);
}

bool job_ranks_take(const struct train_job *job, int ranks)
{
    return job->p.method != TRAIN_GRPO && !job->start && (!job->p.grad_slots || job->p.grad_slots % ranks == 0);
}

struct follower {
    struct comm *comm;
    struct model m;
    struct scheduler_gate *gate; /* open: as on rank 0 there is one, and nobody else uses the device */
};

static void told(void *arg, const struct train_event *ev)
{
    (void)arg;
    bool failed = ev->kind == TRAIN_FAILED || ev->kind == TRAIN_LOST;
    if (failed) log_write(LOG_WARN, "the job has ended on this rank: %s", ev->text ? ev->text : "");
}

/* rc: whether this rank has all that the job needs. */
static void train_job(struct follower *f, const struct train_job *job, int rc, struct err *e)
{
    if (ranks_agree(f->comm, rc, e)) return;
    struct train *t = train_open(job, &f->m, f->gate, e);
    if (!t) return; /* rank 0 says why */
    train_run(t, told, NULL);
    train_free(t);
}

static int follow(struct follower *f, struct err *e)
{
    struct job_order o;
    bool end = false;
    comm_wait_long(f->comm, true); /* rank 0 may have no job for days, and in one it waits for serving */
    do {
        struct err own = {0};
        int rc = job_order_receive(f->comm, &o, &own);
        f->m.kv_type = (enum dtype)o.kv_type; /* `exact` reads it */
        end = o.end;
        if (!comm_error(f->comm) && !end) train_job(f, &o.job, rc, &own);
        job_order_free(&o);
    } while (!comm_error(f->comm) && !end);
    return comm_error(f->comm) ? err_set(e, ERR_IO, "%s", comm_error(f->comm)) : 0;
}

int engine_follow_jobs(const struct engine_config *c, struct err *e)
{
    struct follower f = {.comm = c->trains};
    struct cpus cpus;
    struct model_options o = setup_options(c);
    int rc = cpus_parse(&cpus, c->cpus, e);
    if (!rc) rc = model_open_as(&f.m, &o, &cpus, e);
    bool opened = !rc;
    if (!(rc = ranks_agree(f.comm, rc, e))) rc = job_ranks_check(f.comm, &f.m, e);
    if (!rc && model_pin(&f.m, &cpus, e)) log_write(LOG_WARN, "%s", e->msg); /* as rank 0's engine */
    if (!rc) {
        f.gate = scheduler_gate_new(f.m.d, NULL, NULL);
        scheduler_gate_open(f.gate);
        rc = follow(&f, e);
        scheduler_gate_free(f.gate);
    }
    if (opened) model_close(&f.m);
    return rc;
}
