#include "engine/model/shard_follow.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/model/shard_lead.h"

#include <stdlib.h>

/* An adapter, under rank 0's name for it. */
struct named {
    struct named *next;
    uint64_t name;
    struct lora_weights lora;
};

struct follower {
    struct model *m;
    struct step_batch batch; /* as large as rank 0's; id NULL: not open yet */
    struct named *adapters;
    void (*reserve_device)(struct model *);
};

static struct named **find(struct follower *f, uint64_t name)
{
    struct named **at = &f->adapters;
    while (*at && (*at)->name != name) at = &(*at)->next;
    return at;
}

static void receive(struct follower *f, void *v, size_t bytes)
{
    comm_broadcast(f->m->shard->comm, v, bytes, 0);
}

/* Rank 0 learns whether it worked, and says what is next. */
static void reserve(struct follower *f, const struct shard_order *o)
{
    struct err all = {0};
    struct model_reserve r = {o->pages, o->max_len, o->max_tokens, o->max_rows, (enum dtype)o->kv_type};
    model_reserve(f->m, &r, &all);
}

static int open_batch(struct follower *f, const struct shard_order *o, struct err *e)
{
    struct step_batch *b = &f->batch;
    if (step_batch_sized(b, f->m->d, o->max_tokens, o->max_seqs, o->max_rows, o->max_pages) == 0) return 0;
    return err_set(e, ERR_NOMEM, "no memory for batches of %d tokens", o->max_tokens);
}

static int step(struct follower *f, const struct shard_order *o, struct err *e)
{
    struct step_batch *b = &f->batch;
    struct dev *d = f->m->d;
    if (open_batch(f, o, e)) return e->code;
    b->n_tokens = o->n_tokens;
    b->n_seqs = o->n_seqs;
    b->n_rows = o->n_rows;
    b->pages_ld = o->pages_ld;
    b->most_rows = o->most_rows;
    b->n_groups = o->n_groups;
    CHECK(step_batch_ints(b) == (size_t)o->ints);
    receive(f, b->host, (size_t)o->ints * sizeof *b->host);
    if (o->n_groups) {
        struct shard_group *v = mem_array((size_t)o->n_groups, sizeof *v);
        receive(f, v, (size_t)o->n_groups * sizeof *v);
        for (int i = 0; i < o->n_groups && !comm_error(f->m->shard->comm); i++) {
            struct named *a = *find(f, v[i].adapter);
            CHECK(a);
            b->group[i] = (struct step_batch_group){v[i].row0, v[i].rows, &a->lora, v[i].out0, v[i].outs};
        }
        free(v);
    }
    if (comm_error(f->m->shard->comm)) return 0;
    step_batch_send(b, d);
    f->m->shard->replays = o->replays;
    model_forward(f->m, b);
    if (d->ops->finish(d) == 0) return 0;
    return err_set(e, ERR_IO, "the device failed in the step: %s: %s", d->error.op, d->error.msg);
}

/* The values of the adapter's pairs, as rank 0 has them.  NULL: out of memory */
static struct adapter *receive_adapter(struct follower *f, int pairs)
{
    struct shard_pair *v = mem_array((size_t)pairs, sizeof *v);
    int *rank = mem_array((size_t)pairs, sizeof *rank);
    receive(f, v, (size_t)pairs * sizeof *v);
    for (int i = 0; i < pairs; i++) rank[i] = v[i].r;
    struct adapter *a = adapter_of_ranks(&f->m->c, rank);
    for (int i = 0; i < pairs && a; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t r = (size_t)v[i].r * (size_t)lora_copies(m) * sizeof(float);
        a->pair[i].scale = v[i].scale;
        if (!r) continue;
        receive(f, a->pair[i].a, r * (size_t)m->k);
        receive(f, a->pair[i].b, r * (size_t)m->n);
    }
    free(rank);
    free(v);
    return a;
}

static int add_adapter(struct follower *f, const struct shard_order *o, struct err *e)
{
    struct err own = {0};
    struct adapter *a = receive_adapter(f, o->pairs);
    if (!a) return err_set(e, ERR_NOMEM, "no memory for an adapter"); /* the others wait for its values: the end */
    struct named *to = mem_zalloc(sizeof *to);
    to->name = o->adapter;
    bool there = model_upload_adapter(f->m, &to->lora, a, &own) == 0;
    adapter_free(a);
    if (there) {
        to->next = f->adapters;
        f->adapters = to;
    } else {
        free(to);
    }
    return 0; /* rank 0 says why not */
}

static void free_adapter(struct follower *f, uint64_t name)
{
    struct named **at = find(f, name), *a = *at;
    CHECK(a);
    *at = a->next;
    model_free_adapter(f->m, &a->lora);
    free(a);
}

/* @return whether another order follows. */
static bool obey(struct follower *f, const struct shard_order *o, struct err *e)
{
    switch ((enum shard_order_kind)o->kind) {
    case SHARD_RESERVE: reserve(f, o); break;
    case SHARD_RESERVE_DEVICE: f->reserve_device(f->m); break;
    case SHARD_STEP: step(f, o, e); break;
    case SHARD_ADAPTER: add_adapter(f, o, e); break;
    case SHARD_FREE: free_adapter(f, o->adapter); break;
    case SHARD_END: return false;
    }
    return !e->code;
}

int shard_follow(struct model *m, void (*reserve_device)(struct model *), struct err *e)
{
    struct follower f = {.m = m, .reserve_device = reserve_device};
    struct comm *c = m->shard->comm;
    struct shard_order o;
    e->code = 0;
    do {
        comm_wait_long(c, true); /* rank 0 may have nothing to do for days */
        receive(&f, &o, sizeof o);
        comm_wait_long(c, false);
    } while (!comm_error(c) && obey(&f, &o, e) && !comm_error(c));
    if (comm_error(c)) err_set(e, ERR_IO, "%s", comm_error(c));
    while (f.adapters) free_adapter(&f, f.adapters->name);
    if (f.batch.id) step_batch_close(&f.batch, m->d);
    return e->code;
}
