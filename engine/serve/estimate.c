/* What engine_open takes of memory, from the headers of the model's files (engine.h). */
#include "engine/model/config.h"
#include "engine/model/gguf_source.h"
#include "engine/model/model.h"
#include "engine/model/open.h"
#include "engine/model/tensors.h"
#include "engine/serve/draft.h"
#include "engine/serve/engine.h"
#include "engine/serve/setup.h"

#include <string.h>

/* Bytes of an element once it is packed, scales included; 0: as the file has it. */
static double packed_bytes(const char *quantize)
{
    if (!quantize || strncmp(quantize, "int8", 4) == 0) return quantize ? 1.1 : 0;
    return strcmp(quantize, "none") == 0 ? 0 : 0.65; /* int4, nf4: groups of 32 and more */
}

/* A matrix of quantised blocks becomes int8 at most; a table of them floats. */
static double blocks_bytes(const struct tensor *t)
{
    return strstr(t->name, "embed") ? 4 : 1.1;
}

/* By how much padding to whole tiles makes a side of a matrix longer. */
static double padding(int64_t n)
{
    enum { TILE = 64 };
    return n > 1 ? (double)(n + TILE - 1 - (n - 1) % TILE) / (double)n : 1;
}

static size_t weight_bytes(const struct tensor_source *source, const struct model_config *mc, const char *quantize)
{
    double all = 0, packed = packed_bytes(quantize);
    for (size_t i = 0; i < tensor_source_count(source); i++) {
        const struct tensor *t = tensor_source_at(source, i);
        bool blocks = t->form && t->form->blocks >= 0;
        double n = 1, bytes = (double)t->bytes;
        for (int k = 0; k < t->n_dims; k++) n *= (double)t->dims[k];
        if (blocks && blocks_bytes(t) * n > bytes) bytes = blocks_bytes(t) * n;
        /* a table stays in the file's type; when it is the head as well, the head is packed beside it */
        bool table = t->n_dims == 2 && t->dims[0] == mc->vocab;
        bool quantised = packed > 0 && t->n_dims >= 2 && tensor_type_bytes(t->type) > 1;
        if (table && mc->tied) all += packed > 0 ? packed * n : bytes;
        if (quantised && !table && packed * n < bytes) bytes = packed * n;
        if (t->n_dims >= 2) bytes *= padding(t->dims[t->n_dims - 2]) * padding(t->dims[t->n_dims - 1]);
        all += t->n_dims == 1 ? 4 * n : bytes;
    }
    return (size_t)(all * 1.02) + 65536;
}

static size_t work_bytes(const struct model_config *c, int tokens, int max_rows)
{
    const struct block_experts x = model_experts(c);
    size_t t = (size_t)tokens, q = (size_t)c->heads * (size_t)c->head_dim,
           kv = (size_t)c->kv_heads * (size_t)c->head_dim, hidden = (size_t)c->hidden;
    size_t row = 3 * hidden + 2 * q + 2 * kv + 3 * (size_t)c->inter;
    if (c->encoder) row += (size_t)c->heads;
    if (x.count) row += (size_t)(x.count + x.gate + x.chosen) + (size_t)x.chosen * (hidden + 3 * (size_t)x.inter + 3);
    size_t logits = tensors_have_head(c) ? (size_t)max_rows * (hidden + (size_t)c->vocab) : 0;
    return (t * row + logits + (size_t)x.count + 1) * sizeof(float);
}

/* What is estimated of one model.  kv_type DT_NONE: the device's. */
struct sizes {
    const char *dir, *quantize;
    enum dtype kv_type;
    int tokens, rows; /* of a step */
    size_t pages;     /* of the KV cache; 0: kv_bytes, */
    size_t kv_bytes;  /* and where that is 0 as well, */
    size_t texts;     /* those of so many texts of moderate length, at least one of full length, */
    int longest;      /* which this bounds, if it is not 0 */
};

/* @return 0, or *e.  *longest: the positions of the model. */
static int add(struct engine_memory *out, const struct sizes *z, struct dev *d, int *longest, struct err *e)
{
    struct model_config mc;
    size_t bytes;
    if (model_config_read(z->dir, &mc, e)) return e->code;
    *longest = mc.max_len;
    struct tensor_source *source = model_source_open(z->dir, &mc, e);
    if (!source) return e->code;
    out->weight_bytes += weight_bytes(source, &mc, z->quantize);
    tensor_source_close(source);
    /* an encoder computes a text in one step */
    int tokens = mc.encoder && z->tokens < mc.max_len ? mc.max_len : z->tokens;
    out->workspace_bytes += work_bytes(&mc, tokens, z->rows);
    if (mc.encoder) return 0;
    struct kv_shape one = {mc.layers, 1, mc.kv_heads, mc.head_dim,
                           z->kv_type == DT_NONE ? d->ops->kv_type : z->kv_type};
    size_t page = d->ops->kv_page_bytes(&one);
    int most = z->longest && z->longest < mc.max_len ? z->longest : mc.max_len;
    size_t pages = z->pages      ? z->pages
                   : z->kv_bytes ? page ? z->kv_bytes / page : 0
                                 : setup_usual_pages(&(struct engine_info){.max_seqs = (int)z->texts}, most);
    if (__builtin_mul_overflow(pages, page, &bytes)) return err_set(e, ERR_NOMEM, "%zu KV pages", pages);
    out->kv_bytes += bytes;
    return 0;
}

int engine_estimate(const struct engine_config *c, struct engine_memory *out, struct err *e)
{
    struct engine_info limits = {0};
    struct dev_config dc = {.name = c->device, .threads = 1};
    enum dtype kv_type = DT_NONE;
    char why[160] = "";
    *out = (struct engine_memory){0};
    if (c->gpu_memory_bytes) { /* of a device with its own memory, which takes no more than that */
        out->weight_bytes = c->gpu_memory_bytes;
        return 0;
    }
    if (kv_type_parse(c->kv_type, &kv_type, e)) return e->code;
    struct dev *d = dev_open(&dc, why);
    if (!d) return err_set(e, ERR_UNSUPPORTED, "device %s: %s", c->device ? c->device : "cpu", why);
    setup_limits(&limits, c);
    const struct sizes model = {.dir = c->model,
                                .quantize = c->quantize,
                                .kv_type = kv_type,
                                .tokens = limits.max_batch_tokens,
                                .rows = limits.max_seqs + ENGINE_MORE_ROWS,
                                .pages = (size_t)c->kv_pages,
                                .kv_bytes = c->kv_cache_bytes,
                                .texts = (size_t)limits.max_seqs};
    struct sizes draft = {.dir = c->draft_model, /* its weights may be quantised as well, and are less then */
                          .kv_type = kv_type,
                          .tokens = DRAFT_BATCH,
                          .rows = SPECULATE_SEQS,
                          .kv_bytes = c->draft_kv_bytes,
                          .texts = SPECULATE_SEQS};
    int ignored, rc = add(out, &model, d, &draft.longest, e);
    bool drafts = c->draft_model && c->speculate && strcmp(c->speculate, "off") != 0;
    if (!rc && drafts) rc = add(out, &draft, d, &ignored, e);
    dev_close(d);
    return rc;
}
