#include "engine/serve/draft.h"

#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/model/open.h"
#include "engine/serve/request.h"
#include "engine/serve/reserve.h"
#include "engine/serve/setup.h"

#include <stdlib.h>
#include <string.h>

enum { MODERATE_LEN = 1024 };

struct draft {
    struct model m;
    struct dev *d; /* the engine's */
    struct step_batch batch;
    struct kv_pool *pool;
    int max_len;                        /* of a text */
    int ids;                            /* of the vocabulary that both models have, */
    bool whole;                         /* which is all of the model's */
    struct draft_text *newest, *oldest; /* texts with pages */
    uint64_t turn;                      /* number of the last reading or proposal */
    struct sample_row rows[SPECULATE_SEQS];
    struct sample_out outs[SPECULATE_SEQS];
};

/* ---- opening ---------------------------------------------------------------------------------------------------- */

int draft_check_vocabulary(const struct tokenizer *model, const struct tokenizer *draft, struct err *e)
{
    int a = tokenizer_size(model), b = tokenizer_size(draft), n = a < b ? a : b;
    for (int i = 0; i < n; i++) {
        const char *s = tokenizer_spelling(model, i), *t = tokenizer_spelling(draft, i);
        if ((s && t && !strcmp(s, t)) || (!s && !t)) continue;
        return err_set(e, ERR_INVALID, "its vocabulary is another: token %d is \"%.40s\", and \"%.40s\" in the model",
                       i, t ? t : "(none)", s ? s : "(none)");
    }
    /* Models pad their tables; what one has beyond the other is never proposed. */
    if (n * 2 < a) return err_set(e, ERR_INVALID, "its vocabulary has %d tokens, the model's %d", b, a);
    return 0;
}

int draft_check_dir(const struct tokenizer *model, const char *dir, int *ids, struct err *e)
{
    struct tokenizer *t = tokenizer_open_dir(dir, e);
    struct model_config c = {0};
    if (!t) return e->code;
    int rc = draft_check_vocabulary(model, t, e);
    if (rc) err_prefix(e, "draft-model");
    if (!rc) rc = model_config_read(dir, &c, e);
    if (!rc) rc = model_config_generates(&c, e);
    if (!rc) *ids = c.vocab;
    tokenizer_close(t);
    return rc;
}

static int open_weights(struct draft *f, const struct setup *s, const struct engine_config *c, struct err *e)
{
    int ids, rc = draft_check_dir(s->tokenizer, c->draft_model, &ids, e);
    return rc ? rc : model_open_beside(&f->m, c->draft_model, c->quantize, f->d, e);
}

/* How many pages: as many as the budget holds, by default for SPECULATE_SEQS texts of moderate length, at least for one
 * of the full length. */
static int size_pages(const struct draft *f, const struct engine_config *c, size_t page_bytes, int *pages,
                      struct err *e)
{
    size_t one = ((size_t)f->max_len + KV_PAGE - 1) / KV_PAGE;
    size_t each = one < MODERATE_LEN / KV_PAGE ? one : MODERATE_LEN / KV_PAGE, want = each * SPECULATE_SEQS;
    if (want < one) want = one;
    if (c->draft_kv_bytes) want = c->draft_kv_bytes / page_bytes;
    if (want < 2 || want > 1 << 24)
        return err_set(e, ERR_NOMEM,
                       "draft-kv-cache-bytes: %zu bytes hold %zu pages of %zu bytes; 2 to 16777216 pages may be taken",
                       c->draft_kv_bytes, want, page_bytes);
    if (!f->d->ops->memory && want > memory_available() / page_bytes)
        return err_set(e, ERR_NOMEM, "draft-model: %zu KV pages of %zu bytes do not fit into the memory that is free",
                       want, page_bytes);
    *pages = (int)want;
    return 0;
}

struct dry {
    struct model *m;
    int max_pages;
};

/* Dry run: each number of rows may select another kernel. */
static void largest_steps(void *arg)
{
    struct dry *y = arg;
    int32_t *any = y->m->x.p;
    for (int t = 1; t <= DRAFT_BATCH; t++)
        for (int seqs = 1;; seqs = t < SPECULATE_SEQS ? t : SPECULATE_SEQS) {
            struct step_batch b = {.n_tokens = t,
                                   .n_seqs = seqs,
                                   .n_rows = seqs,
                                   .pages_ld = y->max_pages,
                                   .id = any,
                                   .pos = any,
                                   .slot = any,
                                   .type = any,
                                   .q_start = any,
                                   .kv_len = any,
                                   .pages = any,
                                   .row = any};
            model_forward(y->m, &b);
            if (seqs > 1 || t == 1) break;
        }
}

static int reserve(struct draft *f, struct setup *s, const struct engine_config *c, struct err *e)
{
    size_t page_bytes = model_page_bytes(&f->m, s->kv_type), kv_bytes = 0;
    int pages = 0, rc, max_pages = (f->max_len + KV_PAGE - 1) / KV_PAGE;
    if (!page_bytes)
        return err_set(e, ERR_UNSUPPORTED, "draft-model: the device has no attention for a head_dim of %d",
                       f->m.c.head_dim);
    if ((rc = size_pages(f, c, page_bytes, &pages, e))) return rc;
    struct model_reserve r = {pages, f->max_len, DRAFT_BATCH, SPECULATE_SEQS, s->kv_type};
    struct dry y = {&f->m, max_pages};
    if ((rc = model_reserve(&f->m, &r, e))) return rc;
    if (f->d->ops->reserve && f->d->ops->reserve(f->d, largest_steps, &y)) {
        rc = err_set(e, ERR_NOMEM, "draft-model: %s: %s", f->d->error.op, f->d->error.msg);
        dev_clear_error(f->d);
        return rc;
    }
    if (step_batch_open(&f->batch, f->d, DRAFT_BATCH, SPECULATE_SEQS, SPECULATE_SEQS, max_pages))
        return err_set(e, ERR_NOMEM, "draft-model: no memory for its batches");
    f->pool = kv_pool_new(pages, 0);
    kv_bytes = (size_t)pages * page_bytes;
    s->info.draft_kv_bytes = kv_bytes;
    s->info.draft_pages = pages;
    return 0;
}

int draft_open(struct draft **out, struct setup *s, const struct engine_config *c, struct err *e)
{
    struct draft *f = *out = mem_zalloc(sizeof *f);
    f->d = s->model.d;
    int rc = model_config_generates(&s->model.c, e);
    if (!rc && (rc = open_weights(f, s, c, e)) && strncmp(e->msg, "draft-model", 11)) err_prefix(e, "draft-model");
    if (rc) return rc;
    const struct model_config *m = &f->m.c, *of = &s->model.c;
    f->max_len = m->max_len < of->max_len ? m->max_len : of->max_len;
    if (c->max_total_tokens > 0 && c->max_total_tokens < f->max_len) f->max_len = c->max_total_tokens;
    if (m->near_len && m->near_len < f->max_len) f->max_len = m->near_len;
    f->ids = m->vocab < of->vocab ? m->vocab : of->vocab;
    f->whole = f->ids == of->vocab;
    if ((rc = reserve(f, s, c, e))) return rc;
    s->info.draft_model = c->draft_model_name ? c->draft_model_name : c->draft_model;
    s->info.draft_parameters = f->m.w.parameters;
    s->info.draft_weight_bytes = f->m.w.bytes;
    s->info.draft_workspace_bytes = f->m.workspace_bytes;
    s->info.draft_max_tokens = f->max_len;
    return 0;
}

void draft_close(struct draft *f)
{
    if (!f) return;
    if (f->batch.host) step_batch_close(&f->batch, f->d);
    if (f->pool) kv_pool_free(f->pool);
    model_close(&f->m);
    free(f);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

static void list_take(struct draft *f, struct draft_text *t)
{
    if (t->newer)
        t->newer->older = t->older;
    else
        f->newest = t->older;
    if (t->older)
        t->older->newer = t->newer;
    else
        f->oldest = t->newer;
    t->newer = t->older = NULL;
}

static void list_put(struct draft *f, struct draft_text *t)
{
    t->older = f->newest;
    *(f->newest ? &f->newest->newer : &f->oldest) = t;
    f->newest = t;
}

static void drop_pages(struct draft *f, struct draft_text *t)
{
    if (!t->n_pages) return;
    list_take(f, t);
    while (t->n_pages) kv_unref(f->pool, t->pages[--t->n_pages]);
    t->n_computed = t->known = t->right = 0;
}

void draft_release(struct draft *f, struct draft_text *t)
{
    if (f) drop_pages(f, t);
    free(t->pages);
    t->pages = NULL;
}

void draft_step(struct draft *f)
{
    f->turn++;
}

static void use(struct draft *f, struct draft_text *t)
{
    t->used = f->turn;
    if (t->n_pages) list_take(f, t), list_put(f, t);
}

void draft_keep(struct draft *f, struct request *r)
{
    use(f, &r->draft);
}

/* Takes pages for n tokens; those of texts that are not used in this step go.  @return false: there are too few. */
static bool grow(struct draft *f, struct draft_text *t, int n)
{
    while (t->n_pages * KV_PAGE < n) {
        int32_t page = kv_alloc(f->pool);
        if (page >= 0) {
            t->pages[t->n_pages++] = page;
            if (t->n_pages == 1) list_put(f, t);
            continue;
        }
        struct draft_text *victim = f->oldest;
        if (!victim || victim->used == f->turn) return false;
        drop_pages(f, victim);
    }
    return true;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* @return how many of the text's known tokens have keys and values, but for the last one, whose row is always wanted.
 */
static int valid(const struct request *r)
{
    const struct draft_text *t = &r->draft;
    int n = t->known && t->n_computed > t->known + t->right ? t->known + t->right : t->n_computed;
    return n < r->seq.n_known ? n : r->seq.n_known - 1;
}

int draft_lags(const struct draft *f, const struct request *r)
{
    const struct draft_text *t = &r->draft;
    if (t->closed || r->seq.n_known + 1 > f->max_len) return -1;
    return r->seq.n_known - valid(r);
}

/* Drops what was computed of wrong candidates, and looks at the tokens to come. */
static bool begin(struct draft *f, struct request *r)
{
    struct draft_text *t = &r->draft;
    int most = (r->n_prompt + r->max_new + KV_PAGE - 1) / KV_PAGE;
    t->n_computed = valid(r);
    t->known = t->right = 0;
    for (int i = t->n_computed; i < r->seq.n_known && !t->closed; i++) t->closed = r->tokens[i] >= f->m.c.vocab;
    if (!t->closed && !t->pages) t->closed = !(t->pages = calloc((size_t)most, sizeof *t->pages));
    return !t->closed;
}

static struct step_batch_seq part_of(const struct request *r, int n, int rows)
{
    return (struct step_batch_seq){.tokens = r->tokens,
                                   .pages = r->draft.pages,
                                   .n_pages = r->draft.n_pages,
                                   .start = r->draft.n_computed,
                                   .n = n,
                                   .rows = rows};
}

int draft_read(struct draft *f, struct request *r, int most)
{
    struct draft_text *t = &r->draft;
    use(f, t);
    if (!begin(f, r)) return 0;
    int n = r->seq.n_known - 1 - t->n_computed;
    if (n > most) n = most;
    if (n > DRAFT_BATCH) n = DRAFT_BATCH;
    if (n <= 0 || !grow(f, t, t->n_computed + n)) return 0;
    struct step_batch_seq q = part_of(r, n, 0);
    step_batch_build(&f->batch, f->d, &q, 1);
    model_forward(&f->m, &f->batch);
    if (f->d->ops->finish(f->d)) return -1;
    t->n_computed += n;
    return n;
}

/* One step of those that want more than `done` candidates: computes their tokens up to the last one, and chooses the
 * next.  @return 0, or -1: the device failed; *n_left: how many go on. */
static int one_step(struct draft *f, struct draft_ask *v, int n, int done, int *n_left)
{
    struct step_batch_seq q[SPECULATE_SEQS];
    struct draft_ask *of[SPECULATE_SEQS];
    int k = 0;
    *n_left = 0;
    for (int i = 0; i < n; i++) {
        if (v[i].want <= done) continue;
        struct request *r = v[i].r;
        q[k] = part_of(r, r->seq.n_known + done - r->draft.n_computed, 1);
        request_draft_row(r, done, f->whole, &f->rows[k]);
        of[k++] = &v[i];
    }
    if (!k) return 0;
    step_batch_build(&f->batch, f->d, q, k);
    model_forward(&f->m, &f->batch);
    struct mat logits = f->m.logits;
    logits.rows = k;
    logits.cols = f->ids;
    op_sample(f->d, (struct sample_args){logits, f->rows, f->outs});
    if (f->d->ops->finish(f->d)) return -1;
    for (int i = 0; i < k; i++) {
        struct request *r = of[i]->r;
        r->draft.n_computed += q[i].n;
        if (f->outs[i].id < 0) of[i]->want = done; /* nothing may follow here */
        if (of[i]->want <= done) continue;
        r->tokens[r->seq.n_known + done] = f->outs[i].id;
        of[i]->got = done + 1;
        *n_left += of[i]->want > done + 1;
    }
    return 0;
}

int draft_propose(struct draft *f, struct draft_ask *v, int n)
{
    int steps = 0, left = 0;
    for (int i = 0; i < n; i++) use(f, &v[i].r->draft);
    for (int i = 0; i < n; i++) {
        struct request *r = v[i].r;
        int room = f->max_len - r->seq.n_known;
        v[i].got = 0;
        if (v[i].want > room) v[i].want = room;
        if (v[i].want <= 0) continue;
        /* the sum of all parts fits into a batch */
        bool near = begin(f, r) && r->seq.n_known - r->draft.n_computed <= DRAFT_CATCH;
        if (!near || !grow(f, &r->draft, r->seq.n_known + v[i].want - 1)) v[i].want = 0;
        r->draft.known = r->seq.n_known;
        left += v[i].want > 0;
    }
    for (int done = 0; left; done++, steps++)
        if (one_step(f, v, n, done, &left)) return -1;
    return steps;
}
