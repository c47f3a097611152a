#include "engine/serve/warmup.h"

#include "engine/base/clock.h"
#include "engine/model/shard.h"

static int device_failed(struct dev *d, struct err *e)
{
    int rc = d->error.op ? err_set(e, ERR_IO, "device: %s: %s", d->error.op, d->error.msg)
                         : err_set(e, ERR_IO, "the device was lost while it was warmed up");
    if (d->ops->lost && d->ops->lost(d)) rc = e->code = ERR_LOST;
    dev_clear_error(d);
    return rc;
}

int warmup_device(struct step_batch *b, struct setup *s, struct err *e)
{
    const struct engine_info *m = &s->info;
    struct dev *d = s->model.d;
    int max_pages = (m->max_total_tokens + KV_PAGE - 1) / KV_PAGE;
    if (step_batch_open(b, d, m->max_batch_tokens, m->max_seqs, s->max_rows, max_pages))
        return err_set(e, ERR_NOMEM, "no memory for batches of %d tokens", m->max_batch_tokens);
    if (d->ops->finish(d)) return device_failed(d, e); /* waits for the uploads of weights and KV cache */
    if (d->ops->replay && embedder_generates(m->embedder)) {
        b->pad_page = m->pages;
        if (s->record_steps && d->ops->replay_ms > 0 && shard_may_replay(s->model.shard))
            warmup_steps(b, &s->model, d->ops->replay_ms);
    }
    if (d->ops->lost && d->ops->lost(d)) return device_failed(d, e);
    if (d->ops->hold) d->ops->hold(d);
    return 0;
}

/* The first run of a size is an ordinary one, the second is captured. */
static bool one_size(struct step_batch *b, struct model *m, int n, int pages_ld)
{
    step_batch_blank(b, m->d, n, pages_ld);
    for (int k = 0; k < 2; k++) model_forward(m, b);
    return m->d->ops->finish(m->d) == 0;
}

void warmup_steps(struct step_batch *b, struct model *m, int ms)
{
    uint64_t end = clock_now() + (uint64_t)ms * 1000 * 1000;
    int slots = b->pad_page * KV_PAGE, left = m->d->ops->replay_most;
    for (int ld = 0; ld < b->max_pages;) {
        ld = ld ? 2 * ld : PAGES_LD_MIN;
        if (ld > b->max_pages) ld = b->max_pages;
        for (int n = 1, size; n <= b->max_seqs; n = size + 1) {
            size = step_batch_padded(n, b->max_seqs);
            if (size > slots) break;
            if (!left-- || clock_now() > end) return; /* another graph would evict the first */
            if (one_size(b, m, size, ld)) continue;
            dev_clear_error(m->d);
            return;
        }
    }
}
