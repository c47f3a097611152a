/* Saves and loads a trainer's state as checkpoints (format: ckpt.h). */
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/train/ckpt.h"
#include "engine/train/train_state.h"

#include <stdlib.h>

enum {
    PARTS_MAX = ARRAYS + 2,
    SAVE_SECONDS = 120, /* between checkpoints when save_steps is 0 */
};

/* The parts of a checkpoint, and where those are that are divided over the ranks. */
struct parts {
    struct ckpt_part v[PARTS_MAX];
    struct scattered array[PARTS_MAX];
    int n;
};

struct op_chunks train_chunks(const struct train *t)
{
    return (struct op_chunks){t->d, t->gate, NULL};
}

float *train_device_array(const struct train *t, int i)
{
    return i == 0 ? t->o.p : i == 1 ? t->o.m : i == 2 ? t->o.v : t->o.avg;
}

size_t train_array_floats(const struct train *t, int i)
{
    return i == 1 || i == 2 ? optim_moment_floats(&t->o) : t->o.s.own;
}

bool train_array_on_host(const struct train *t, int i)
{
    return (i == 1 || i == 2) && optim_moments_on_host(&t->o);
}

static void add_part(struct parts *p, const char *name, struct train *t, int array, float *host, size_t floats)
{
    struct ckpt_part *v = &p->v[p->n];
    p->array[p->n] = (struct scattered){t, array};
    *v = (struct ckpt_part){name, host, floats * sizeof *host, {0}};
    if (t->o.s.divided) {
        v->data = NULL;
        v->remote = (struct ckpt_remote){train_scatter_get, train_scatter_put, &p->array[p->n]};
    }
    p->n++;
}

static void parts_of(struct train *t, struct parts *p)
{
    static const char *const names[ARRAYS] = {"parameters", "moment1", "moment2", "average"};
    size_t moments = optim_moment_floats_all(&t->o);
    *p = (struct parts){.n = 1};
    p->v[0] = (struct ckpt_part){"state", &t->st, sizeof t->st, {0}};
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i]) add_part(p, names[i], t, i, t->host[i], i == 1 || i == 2 ? moments : t->o.n);
    if (t->best) add_part(p, "best", t, SCATTER_BEST, t->best, t->o.n);
}

static void download(struct train *t)
{
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i))
            chunked_download(train_chunks(t), t->host[i], train_device_array(t, i), train_array_floats(t, i));
}

/* Rank 0 alone. */
static int write_checkpoint(struct train *t, struct err *e)
{
    struct parts p;
    parts_of(t, &p);
    train_emit(t, TRAIN_SAVING, NULL);
    int rc = ckpt_write(t->ckpt_dir, t->hash, t->st.step, t->st.good, p.v, p.n, e);
    if (rc) return err_prefix(e, "the checkpoint could not be written");
    t->saved_at = clock_now();
    char name[CKPT_NAME_MAX];
    ckpt_name(t->st.step, name);
    char *path = file_join(t->ckpt_dir, name);
    train_emit(t, TRAIN_CHECKPOINT, path);
    free(path);
    return 0;
}

bool train_save_late(const struct train *t)
{
    return clock_now() - t->saved_at >= SAVE_SECONDS * 1000000000ull;
}

int train_save(struct train *t, struct err *e)
{
    bool first = train_ranks_first(t->job.comm);
    int rc = 0;
    if (!first && !t->o.s.divided) return t->saved = t->st.step, 0;
    download(t);
    if (train_device_failed(t, e)) rc = e->code;
    scheduler_gate_leave(t->gate);
    if (t->o.s.divided) rc = ranks_agree(t->job.comm, rc, e);
    if (rc) return rc;
    if (first) rc = write_checkpoint(t, e);
    train_scatter_end(t);
    if (!rc) t->saved = t->st.step;
    return rc;
}

int train_load(struct train *t, int64_t most, struct err *e)
{
    struct parts p;
    if (optim_moments_on_host(&t->o)) { /* which are written here, not by the device */
        scheduler_gate_pass(t->gate);
        t->d->ops->finish(t->d);
        scheduler_gate_leave(t->gate); /* while the file is read */
    }
    parts_of(t, &p);
    int rc = ckpt_read(t->ckpt_dir, t->hash, most, p.v, p.n, &t->saved, &t->warnings, e);
    if (rc || t->saved < 0 || t->o.s.divided) return rc; /* the ranks do the rest together */
    for (int i = 0; i < ARRAYS; i++)
        if (t->host[i] != train_device_array(t, i))
            chunked_upload(train_chunks(t), train_device_array(t, i), t->host[i], train_array_floats(t, i));
    if (!t->lora_method) train_full_use(&t->full, &t->o, t->o.p);
    return 0;
}
