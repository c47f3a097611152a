#include "engine/bench/eval.h"

#include "engine/base/mem.h"
#include "engine/model/step_batch.h"
#include "engine/serve/setup.h"

#include <stdlib.h>

enum { CHUNK = 64, CONTEXT_MAX = 8192 }; /* rows per step; tokens kept in the KV cache */

struct eval {
    struct setup s;
    struct step_batch batch;
    int32_t *pages; /* 0, 1, 2...: the single text owns all pages */
    float *host;    /* (CHUNK, V) */
    int context;
    struct lora_weights lora;
    bool adapted;
};

struct eval *eval_open(const struct engine_config *config, struct err *e)
{
    struct engine_config c = *config;
    c.max_seqs = 1;
    c.max_batch_tokens = CHUNK;
    if (c.max_total_tokens <= 0 || c.max_total_tokens > CONTEXT_MAX) c.max_total_tokens = CONTEXT_MAX;
    struct eval *v = mem_zalloc(sizeof *v);
    int rc = setup_open(&v->s, &c, CHUNK, e);
    if (!rc) {
        rc = model_config_generates(&v->s.model.c, e);
        if (!rc) rc = setup_pin(&v->s, e);
        if (rc) setup_close(&v->s);
    }
    if (rc) {
        free(v);
        return NULL;
    }
    v->context = v->s.info.max_total_tokens;
    int pages = (v->context + KV_PAGE - 1) / KV_PAGE;
    if (step_batch_open(&v->batch, v->s.model.d, CHUNK, 1, CHUNK, pages)) {
        err_set(e, ERR_NOMEM, "no memory for the batch");
        setup_close(&v->s);
        free(v);
        return NULL;
    }
    v->pages = mem_array((size_t)pages, sizeof *v->pages);
    for (int i = 0; i < pages; i++) v->pages[i] = i;
    v->host = mem_array((size_t)CHUNK * (size_t)v->s.info.vocab, sizeof *v->host);
    return v;
}

void eval_close(struct eval *v)
{
    if (!v) return;
    model_free_adapter(&v->s.model, &v->lora);
    step_batch_close(&v->batch, v->s.model.d);
    setup_close(&v->s);
    free(v->pages);
    free(v->host);
    free(v);
}

const struct engine_info *eval_info(const struct eval *v)
{
    return &v->s.info;
}

const struct tokenizer *eval_tokenizer(const struct eval *v)
{
    return v->s.tokenizer;
}

int eval_vocab(const struct eval *v)
{
    return v->s.info.vocab;
}

int eval_context(const struct eval *v)
{
    return v->context;
}

int eval_adapter(struct eval *v, const char *dir, struct err *e)
{
    model_free_adapter(&v->s.model, &v->lora);
    v->adapted = false;
    if (!dir) return 0;
    struct adapter *a = adapter_read(dir, &v->s.model.c, e);
    int rc = a ? model_reserve_adapters(&v->s.model, e) : e->code;
    if (!rc && a && a->score) rc = err_set(e, ERR_UNSUPPORTED, "%s gives scores of texts, not texts", dir);
    if (!rc) rc = model_upload_adapter(&v->s.model, &v->lora, a, e);
    adapter_free(a);
    v->adapted = !rc;
    return rc;
}

static int failed(struct dev *d, struct err *e)
{
    int rc = err_set(e, d->error.lost ? ERR_LOST : ERR_IO, "%s: %s", d->error.op, d->error.msg);
    dev_clear_error(d);
    return rc;
}

int eval_logits(struct eval *v, const int32_t *ids, int n, void (*row)(void *, int, const float *), void *arg,
                struct err *e)
{
    size_t vocab = (size_t)v->s.info.vocab;
    struct dev *d = v->s.model.d;
    if (n < 1 || n > v->context)
        return err_set(e, ERR_INVALID, "a text of %d tokens; 1 to %d can be evaluated", n, v->context);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= vocab) return err_set(e, ERR_INVALID, "the model has no token %d", ids[i]);
    struct step_batch_seq seq = {.tokens = ids,
                                 .pages = v->pages,
                                 .n_pages = (n + KV_PAGE - 1) / KV_PAGE,
                                 .rope_row = rope_first_row(v->s.model.c.near_len, n)};
    if (v->adapted) seq.lora = &v->lora;
    for (int start = 0; start < n; start += CHUNK) {
        int len = n - start < CHUNK ? n - start : CHUNK;
        seq.start = start;
        seq.n = seq.rows = len;
        step_batch_build(&v->batch, d, &seq, 1);
        model_forward(&v->s.model, &v->batch);
        if (d->ops->finish(d)) return failed(d, e);
        d->ops->download(d, v->host, v->s.model.logits.p, (size_t)len * vocab * sizeof(float));
        if (d->error.op) return failed(d, e);
        for (int k = 0; k < len; k++) row(arg, start + k, v->host + (size_t)k * vocab);
    }
    return 0;
}
