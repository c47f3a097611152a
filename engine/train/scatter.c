/* The arrays of a checkpoint where they are divided over the ranks (shards.h): rank 0 reads and writes stretches of
 * them, in any order, and the others serve what it asks for.  Rank 0 has no more than a stretch of others' values. */
#include "engine/base/mem.h"
#include "engine/train/train_state.h"
#include "kernels/comm.h"

#include <string.h>

enum { END, GET, PUT };

/* What rank 0 asks for, in bytes of an array of the checkpoint. */
struct request {
    int64_t what, array;
    uint64_t at, n;
};

static char *own_of(const struct train *t, int array)
{
    return (char *)(array == SCATTER_BEST ? t->best : t->host[array]);
}

static int broken(const struct train *t, struct err *e)
{
    const char *why = comm_error(t->job.comm);
    return why ? err_set(e, ERR_IO, "%s", why) : 0;
}

/* On rank 0 `all` has the stretch; on the others it is NULL. */
static void move(struct train *t, const struct request *r, char *all)
{
    const struct shard_extents *x = &t->o.s.extents[r->array == 1 || r->array == 2 ? SHARD_MOMENTS : SHARD_VALUES];
    struct comm *c = t->job.comm;
    uint64_t end = r->at + r->n;
    for (size_t i = shards_extent(x, r->at); i < x->n && x->v[i].at < end; i++) {
        const struct shard_extent *v = &x->v[i];
        uint64_t from = v->at > r->at ? v->at : r->at, to = v->at + v->bytes < end ? v->at + v->bytes : end;
        char *own = v->owner == t->o.s.part ? own_of(t, (int)r->array) + v->own + (from - v->at) : NULL;
        char *here = all ? all + (from - r->at) : NULL;
        bool get = r->what == GET;
        if (own && here)
            memcpy(get ? here : own, get ? own : here, to - from);
        else if (here)
            (get ? comm_receive(c, here, to - from, v->owner) : comm_send(c, here, to - from, v->owner));
        else if (own)
            (get ? comm_send(c, own, to - from, 0) : comm_receive(c, own, to - from, 0));
    }
}

static int ask(struct train *t, int what, int array, size_t at, size_t n, char *all, struct err *e)
{
    struct request r = {what, array, at, n};
    comm_broadcast(t->job.comm, &r, sizeof r, 0);
    move(t, &r, all);
    return broken(t, e);
}

int train_scatter_get(void *arg, size_t at, size_t n, void *out, struct err *e)
{
    const struct scattered *s = arg;
    return ask(s->t, GET, s->array, at, n, out, e);
}

int train_scatter_put(void *arg, size_t at, size_t n, const void *data, struct err *e)
{
    const struct scattered *s = arg;
    return ask(s->t, PUT, s->array, at, n, (char *)data, e); /* which is only read */
}

int train_scatter_values(void *arg, size_t at, size_t n, float *out, struct err *e)
{
    return train_scatter_get(arg, at * sizeof *out, n * sizeof *out, out, e);
}

void train_scatter_end(struct train *t)
{
    struct request r = {.what = END};
    bool first = train_ranks_first(t->job.comm);
    if (!t->o.s.divided) return;
    if (first) comm_broadcast(t->job.comm, &r, sizeof r, 0);
    while (!first && !comm_error(t->job.comm)) {
        comm_wait_long(t->job.comm, true); /* rank 0 syncs files meanwhile, deletes and copies them */
        comm_broadcast(t->job.comm, &r, sizeof r, 0);
        comm_wait_long(t->job.comm, false);
        if (r.what == END) return;
        move(t, &r, NULL);
    }
}
