#include "engine/serve/reserve.h"

#include "engine/base/mem.h"
#include "engine/model/ranks_agree.h"

#include <stdlib.h>

enum { MODERATE_LEN = 1024, PAGES_MAX = 1 << 24 };

static const double MIB = 1024.0 * 1024;

/* ---- the largest steps ------------------------------------------------------------------------------------------- */

struct steps {
    struct model *m;
    const struct reserve *r;
    int max_pages; /* of a sequence */
};

/* Dry run: the ops record the sizes of their scratch, nothing is launched, so any pointer will do. */
static void one_step(const struct steps *s, int tokens, int seqs, int rows)
{
    int32_t *any = s->m->x.p;
    struct step_batch b = {.n_tokens = tokens,
                           .n_seqs = seqs,
                           .n_rows = rows,
                           .pages_ld = s->max_pages,
                           .id = any,
                           .pos = any,
                           .slot = any,
                           .type = any,
                           .q_start = any,
                           .kv_len = any,
                           .pages = any,
                           .row = any};
    model_forward(s->m, &b);
}

/* Every small number of tokens, since each may select another kernel; larger ones at intervals of 1/16. */
static void all_steps(const struct steps *s)
{
    const struct reserve *r = s->r;
    int max = r->max_tokens;
    for (int t = 1; t <= max; t = t < 256 || t == max ? t + 1 : t + t / 16 < max ? t + t / 16 : max) {
        int rows = !s->m->w.head ? 0 : t < r->max_rows ? t : r->max_rows;
        one_step(s, t, 1, rows);
        if (t > 1) one_step(s, t, t < r->max_seqs ? t : r->max_seqs, rows);
    }
}

/* Once with one adapter for all tokens, once with an adapter for each sequence. */
static void all_adapters(const struct steps *s)
{
    const struct model *m = s->m;
    const struct model_config *c = &m->c;
    bool gated = model_gated(c);
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, up = gated ? 2 * c->inter : c->inter;
    int raw = gated ? m->raw.rows : s->r->max_tokens;
    const struct mat x[LAYER_GEMMS] = {m->h, m->att, m->h, m->ff};
    const int wide[LAYER_GEMMS] = {q + 2 * kv, c->hidden, up, c->hidden};
    const float *any = m->x.p;
    for (int p = 0; p < LAYER_GEMMS; p++) {
        if (!c->inter && (p == GEMM_UP || p == GEMM_DOWN)) continue; /* every feed-forward has experts alone */
        int T = p == GEMM_UP ? raw : s->r->max_tokens, n = T < s->r->max_seqs ? T : s->r->max_seqs;
        struct lora_part part[GEMM_PARTS_MAX];
        for (int i = 0; i < GEMM_PARTS_MAX; i++) {
            int first = wide[p] / GEMM_PARTS_MAX * i;
            int end = i + 1 < GEMM_PARTS_MAX ? wide[p] / GEMM_PARTS_MAX * (i + 1) : wide[p];
            part[i] = (struct lora_part){any, any, s->r->max_lora_rank, first, end - first, 1};
        }
        struct lora_group *group = mem_array((size_t)n, sizeof *group);
        struct mat from = x[p], y = mat_f32(m->x.p, T, wide[p]);
        from.rows = T;
        for (int k = 1; k <= n; k += n > 1 ? n - 1 : 1) {
            for (int i = 0; i < k; i++) {
                int row0 = (int)((int64_t)T * i / k), row1 = (int)((int64_t)T * (i + 1) / k);
                group[i] = (struct lora_group){row0, row1 - row0, GEMM_PARTS_MAX, part};
            }
            op_lora(m->d, (struct lora_args){y, from, group, k});
        }
        free(group);
    }
}

/* An adapter of the experts, for all rows of the largest step. */
static void expert_adapters(const struct steps *s)
{
    struct block_experts x = model_experts(&s->m->c);
    const float *any = s->m->x.p;
    struct lora_part part = {any, any, s->r->max_lora_rank, 0, 2 * x.inter, 1};
    struct lora_group group = {0, s->r->max_tokens * x.chosen, 1, &part};
    if (x.count)
        op_lora(s->m->d, (struct lora_args){mat_f32(s->m->x.p, group.rows, 2 * x.inter), s->m->experts.x, &group, 1});
}

/* Sampling, once greedy and once with every parameter set. */
static void all_samples(const struct steps *s)
{
    size_t rows = (size_t)s->r->max_rows, words = ((size_t)s->m->c.vocab + 31) / 32;
    struct sample_row *row = mem_array(rows, sizeof *row);
    struct sample_out *out = mem_array(rows, sizeof *out);
    uint32_t *allowed = mem_array(words, sizeof *allowed);
    for (int full = 0; full < 2; full++) {
        for (size_t i = 0; i < rows; i++)
            row[i] = full ? (struct sample_row){.temperature = 1,
                                                .top_p = 0.9f,
                                                .min_p = 0.1f,
                                                .typical_p = 0.9f,
                                                .top_k = 50,
                                                .repetition = 1.1f,
                                                .forced = -1,
                                                .top_n = SAMPLE_TOP_MAX,
                                                .allowed = i == 0 ? allowed : NULL}
                          : (struct sample_row){.top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1};
        struct mat logits = s->m->logits;
        op_sample(s->m->d, (struct sample_args){logits, row, out});
    }
    free(row);
    free(out);
    free(allowed);
}

static void largest_steps(void *arg)
{
    const struct steps *s = arg;
    all_steps(s);
    all_adapters(s);
    expert_adapters(s);
    if (s->m->w.head) all_samples(s);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static size_t room_of(struct dev *d)
{
    struct dev_memory m;
    d->ops->memory(d, &m);
    return m.budget - m.used;
}

/* Sets ERR_NOMEM with what uses the memory and how many pages would fit. */
static int too_little(struct model *m, const struct reserve *r, size_t wanted, size_t room, struct err *e)
{
    struct dev_memory mem;
    m->d->ops->memory(m->d, &mem);
    size_t fit = room / r->page_bytes;
    return err_set(e, ERR_NOMEM,
                   "%.0f MiB of the device's memory may be used: weights take %.0f MiB, a step's workspace %.0f MiB; "
                   "%zu KV pages of %.2f MiB would fit, %zu are wanted%s",
                   (double)mem.budget / MIB, (double)m->w.bytes / MIB, (double)(m->workspace_bytes + mem.scratch) / MIB,
                   fit, (double)r->page_bytes / MIB, wanted,
                   fit >= 2 ? ": lower --kv-cache-bytes"
                            : ": raise --gpu-memory-fraction, lower --max-batch-tokens or --max-seqs, or --quantize");
}

static size_t wanted_pages(const struct reserve *r, int len, size_t fit)
{
    int each = len < MODERATE_LEN ? len : MODERATE_LEN;
    size_t one = (size_t)(len + KV_PAGE - 1) / KV_PAGE;
    size_t want = (size_t)r->max_seqs * (size_t)((each + KV_PAGE - 1) / KV_PAGE);
    if (r->pages) return (size_t)r->pages;
    if (r->kv_bytes) return r->kv_bytes / r->page_bytes;
    if (want < one) want = one;
    if (want > fit / 2) want = fit / 2;
    return want < 2 ? 2 : want;
}

static void largest_texts(void *arg)
{
    all_steps(arg);
}

int reserve_encoder_device(struct model *m, const struct reserve *r, struct err *e)
{
    struct dev *d = m->d;
    struct model_reserve work = {0, r->max_len, r->max_tokens, 0, r->kv_type};
    struct steps s = {m, r, (r->max_len + KV_PAGE - 1) / KV_PAGE};
    int rc = model_reserve_work(m, &work, e);
    if (rc || d->ops->reserve(d, largest_texts, &s) == 0) return rc;
    rc = err_set(e, ERR_NOMEM, "device: %s: %s", d->error.op, d->error.msg);
    dev_clear_error(d);
    return rc;
}

/* All but the pages.  *spare: the padding pages among them. */
static int reserve_steps(struct model *m, const struct reserve *r, int *pages, int *spare, struct err *e)
{
    struct dev *d = m->d;
    size_t most = room_of(d) / r->page_bytes;
    int len = r->max_len && r->max_len < m->c.max_len ? r->max_len : m->c.max_len;
    if (most < 2) return too_little(m, r, 2, room_of(d), e);
    if (r->pages && (size_t)r->pages < most) most = (size_t)r->pages;
    if ((size_t)len > most * KV_PAGE) len = (int)most * KV_PAGE;
    struct model_reserve work = {0, len, r->max_tokens, r->max_rows, r->kv_type};
    struct steps s = {m, r, (len + KV_PAGE - 1) / KV_PAGE};
    int rc = model_reserve_work(m, &work, e);
    if (!rc) rc = model_reserve_adapters(m, e);
    if (!rc) rc = model_reserve_kv(m, 1, r->kv_type, e); /* ops read the cache's shape */
    if (rc) return rc;
    if (m->shard) m->shard->dry = true;
    bool failed = d->ops->reserve(d, largest_steps, &s) != 0;
    if (m->shard) m->shard->dry = false;
    d->ops->kv_close(d, m->kv);
    m->kv = NULL;
    if (failed) {
        rc = err_set(e, ERR_NOMEM, "device: %s: %s", d->error.op, d->error.msg);
        dev_clear_error(d);
        return rc;
    }
    size_t room = room_of(d), batch = step_batch_bytes(r->max_tokens, r->max_seqs, r->max_rows, s.max_pages);
    *spare = step_batch_pad_pages(r->max_seqs);
    batch += (size_t)*spare * r->page_bytes;
    room = room > batch ? room - batch : 0;
    size_t want = wanted_pages(r, len, room / r->page_bytes);
    if (want < 2 || want > room / r->page_bytes) return too_little(m, r, want < 2 ? 2 : want, room, e);
    *pages = want < PAGES_MAX ? (int)want : PAGES_MAX;
    return 0;
}

int reserve_device(struct model *m, const struct reserve *r, int *pages, struct err *e)
{
    int spare = 0, rc = reserve_steps(m, r, pages, &spare, e);
    if (m->shard) rc = shard_agree_least(m->shard->comm, rc, pages, e);
    if (!rc) rc = model_reserve_kv(m, *pages + spare, r->kv_type, e);
    return m->shard ? ranks_agree(m->shard->comm, rc, e) : rc;
}
