#include "engine/train/job_order.h"

#include "engine/base/fnv.h"
#include "engine/base/mem.h"
#include "engine/data/dataset.h"
#include "kernels/comm.h"

#include <stdlib.h>
#include <string.h>

/* The strings of a job, in this order; of `dir` and `out` the others only see that there is something to write. */
struct head {
    int32_t end, kv_type, has_eval, padding;
    uint32_t text[JOB_ORDER_TEXTS]; /* bytes with their end; 0: NULL */
    struct train_params p;
};

uint64_t job_order_version(void)
{
    uint64_t bytes = sizeof(struct head);
    return fnv1a(fnv1a(FNV1A_START, TANDEM_VERSION, sizeof TANDEM_VERSION), &bytes, sizeof bytes);
}

static void put(void *comm, const void *p, size_t n)
{
    comm_broadcast(comm, (void *)p, n, 0); /* of the root it is only read */
}

static void get(void *comm, void *p, size_t n)
{
    comm_broadcast(comm, p, n, 0);
}

void job_order_send(struct comm *c, const struct train_job *job, int32_t kv_type)
{
    const char *const text[JOB_ORDER_TEXTS] = {job->from,      job->teacher, job->answers, job->base_name,
                                               job->model_dir, job->dir,     job->out};
    struct head h = {.kv_type = kv_type, .has_eval = job->eval != NULL, .p = job->p};
    for (int i = 0; i < JOB_ORDER_TEXTS; i++) h.text[i] = text[i] ? (uint32_t)strlen(text[i]) + 1 : 0;
    put(c, &h, sizeof h);
    for (int i = 0; i < JOB_ORDER_TEXTS; i++)
        if (h.text[i]) put(c, text[i], h.text[i]);
    dataset_send(job->data, put, c);
    if (job->eval) dataset_send(job->eval, put, c);
}

void job_order_end(struct comm *c)
{
    put(c, &(struct head){.end = 1}, sizeof(struct head));
}

int job_order_receive(struct comm *c, struct job_order *o, struct err *e)
{
    struct head h = {0};
    struct err more = {0};
    *o = (struct job_order){0};
    e->code = 0;
    get(c, &h, sizeof h);
    o->end = h.end;
    if (comm_error(c)) return err_set(e, ERR_IO, "%s", comm_error(c));
    if (o->end) return 0;
    for (int i = 0; i < JOB_ORDER_TEXTS; i++) {
        if (!h.text[i]) continue;
        o->text[i] = mem_zalloc((size_t)h.text[i] + 1);
        get(c, o->text[i], h.text[i]);
    }
    dataset_receive(&o->data, get, c, e);
    if (h.has_eval) dataset_receive(&o->eval, get, c, e->code ? &more : e);
    o->kv_type = h.kv_type;
    o->job = (struct train_job){.p = h.p,
                                .data = o->data,
                                .eval = o->eval,
                                .from = o->text[0],
                                .teacher = o->text[1],
                                .answers = o->text[2],
                                .base_name = o->text[3],
                                .model_dir = o->text[4],
                                .dir = o->text[5],
                                .out = o->text[6],
                                .comm = c};
    return e->code;
}

void job_order_free(struct job_order *o)
{
    if (o->data) dataset_free(o->data);
    if (o->eval) dataset_free(o->eval);
    for (int i = 0; i < JOB_ORDER_TEXTS; i++) free(o->text[i]);
    *o = (struct job_order){0};
}
