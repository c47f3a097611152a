#include "engine/model/shard_lead.h"

#include "engine/base/mem.h"
#include "engine/model/model.h"

#include <stdlib.h>

static void send(struct shard *s, struct shard_order o)
{
    comm_broadcast(s->comm, &o, sizeof o, 0);
}

static uint64_t name_of(const struct lora_weights *w)
{
    return (uint64_t)(uintptr_t)w;
}

void shard_lead_reserve(struct shard *s, const struct model_reserve *r)
{
    send(s, (struct shard_order){.kind = SHARD_RESERVE,
                                 .pages = r->pages,
                                 .max_len = r->max_len,
                                 .max_tokens = r->max_tokens,
                                 .max_rows = r->max_rows,
                                 .kv_type = (int32_t)r->kv_type});
}

void shard_lead_reserve_device(struct shard *s)
{
    send(s, (struct shard_order){.kind = SHARD_RESERVE_DEVICE});
}

void shard_lead_step(struct shard *s, const struct step_batch *b)
{
    size_t ints = step_batch_ints(b);
    send(s, (struct shard_order){.kind = SHARD_STEP,
                                 .replays = s->replays,
                                 .n_tokens = b->n_tokens,
                                 .n_seqs = b->n_seqs,
                                 .n_rows = b->n_rows,
                                 .pages_ld = b->pages_ld,
                                 .most_rows = b->most_rows,
                                 .n_groups = b->n_groups,
                                 .ints = (int32_t)ints,
                                 .max_tokens = b->max_tokens,
                                 .max_seqs = b->max_seqs,
                                 .max_rows = b->max_rows,
                                 .max_pages = b->max_pages});
    comm_broadcast(s->comm, b->host, ints * sizeof *b->host, 0);
    if (!b->n_groups) return;
    struct shard_group *v = mem_array((size_t)b->n_groups, sizeof *v);
    for (int i = 0; i < b->n_groups; i++) {
        const struct step_batch_group *g = &b->group[i];
        v[i] = (struct shard_group){name_of(g->lora), g->row0, g->rows, g->out0, g->outs};
    }
    comm_broadcast(s->comm, v, (size_t)b->n_groups * sizeof *v, 0);
    free(v);
}

void shard_lead_adapter(struct shard *s, const struct lora_weights *w, const struct adapter *a)
{
    int n = a->layers * a->n_modules;
    struct shard_pair *v = mem_array((size_t)n, sizeof *v);
    for (int i = 0; i < n; i++) v[i] = (struct shard_pair){a->pair[i].r, a->pair[i].scale};
    send(s, (struct shard_order){.kind = SHARD_ADAPTER, .adapter = name_of(w), .pairs = n});
    comm_broadcast(s->comm, v, (size_t)n * sizeof *v, 0);
    for (int i = 0; i < n; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t r = (size_t)a->pair[i].r * (size_t)lora_copies(m) * sizeof(float);
        if (!r) continue;
        comm_broadcast(s->comm, a->pair[i].a, r * (size_t)m->k, 0);
        comm_broadcast(s->comm, a->pair[i].b, r * (size_t)m->n, 0);
    }
    free(v);
}

void shard_lead_free(struct shard *s, const struct lora_weights *w)
{
    send(s, (struct shard_order){.kind = SHARD_FREE, .adapter = name_of(w)});
}

void shard_lead_end(struct shard *s)
{
    send(s, (struct shard_order){.kind = SHARD_END});
}
