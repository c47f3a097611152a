#include "engine/serve/setup.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/model/adapter.h"
#include "engine/model/open.h"
#include "engine/model/ranks_agree.h"
#include "engine/model/shard_follow.h"
#include "engine/model/shard_lead.h"
#include "engine/serve/job_ranks.h"
#include "engine/serve/reserve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* The ranks of the model, perhaps all on this machine. */
static size_t ranks_here(const struct setup *s)
{
    return s->model.shard ? (size_t)comm_ranks(s->model.shard->comm) : 1;
}

/* `n` pages, if they and the logits fit in memory. */
static int exact_pool(const struct setup *s, int n, int *pages, struct err *e)
{
    size_t kv = 0, logits = (size_t)s->max_rows * (size_t)s->model.c.vocab * sizeof(float), room = memory_available();
    room /= ranks_here(s);
    if (__builtin_mul_overflow((size_t)n, s->info.page_bytes, &kv) || kv > room || logits > room - kv)
        return err_set(e, ERR_NOMEM,
                       "%d KV pages of %zu bytes and %d rows of logits need %.1f GiB; %.1f GiB are available", n,
                       s->info.page_bytes, s->max_rows,
                       ((double)n * (double)s->info.page_bytes + (double)logits) / 0x1p30, (double)room / 0x1p30);
    *pages = n;
    return 0;
}

static int no_attention(const struct setup *s, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "config.json: device %s has no attention for a head_dim of %d",
                   s->model.d->ops->name, s->model.c.head_dim);
}

size_t setup_usual_pages(const struct engine_info *m, int max_len)
{
    size_t each = (size_t)(min_int(max_len, 1024) + KV_PAGE - 1) / KV_PAGE,
           one = ((size_t)max_len + KV_PAGE - 1) / KV_PAGE, want = (size_t)m->max_seqs * each;
    return want > one ? want : one;
}

/* The number of pages: as many as the budget holds, or by default enough for max_seqs requests of 1024 tokens, using at
 * most a quarter of the free memory. */
static int size_pool(struct setup *s, const struct engine_config *c, enum dtype kv_type, int *pages, struct err *e)
{
    struct engine_info *m = &s->info;
    m->page_bytes = model_page_bytes(&s->model, kv_type);
    if (!m->page_bytes) return no_attention(s, e);
    if (c->kv_pages) return exact_pool(s, c->kv_pages, pages, e);
    size_t want = setup_usual_pages(m, s->model.c.max_len);
    size_t room = memory_available() / 4 / m->page_bytes / ranks_here(s);
    if (c->kv_cache_bytes)
        want = c->kv_cache_bytes / m->page_bytes;
    else if (want > room)
        want = room;
    if (want < 2)
        return err_set(e, ERR_NOMEM,
                       "a KV cache of %zu bytes holds %zu pages; a page of %d tokens takes %zu bytes and at least 2 "
                       "are needed: set --kv-cache-bytes",
                       c->kv_cache_bytes ? c->kv_cache_bytes : room * m->page_bytes, want, KV_PAGE, m->page_bytes);
    if (want > 1 << 24) want = 1 << 24;
    *pages = (int)want;
    return 0;
}

static void fill_info(struct setup *s, const struct engine_config *c, enum dtype kv_type, int pages)
{
    const struct model_config *mc = &s->model.c;
    struct engine_info *m = &s->info;
    char *real = realpath(c->model, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL, *last = slash && slash[1] ? slash + 1 : c->model;
    snprintf(s->model_id, sizeof s->model_id, "%s", c->model_name ? c->model_name : last);
    free(real);
    snprintf(s->device_name, sizeof s->device_name, "%s%s%s", s->model.d->ops->name,
             strcmp(s->model.d->ops->name, s->model.d->level) ? " " : "",
             strcmp(s->model.d->ops->name, s->model.d->level) ? s->model.d->level : "");
    m->model_id = s->model_id;
    m->base_name = s->base_name = adapter_base_name(c->model);
    m->family = mc->family->model_type;
    m->device = s->device_name;
    m->device_note = s->model.note;
    m->weight_type = dtype_name(s->model.w.type);
    m->kv_type = dtype_name(kv_type);
    m->parameters = s->model.w.parameters;
    m->weight_bytes = s->model.w.bytes;
    m->layers = mc->layers;
    m->hidden = mc->hidden;
    m->vocab = mc->vocab;
    m->max_model_len = mc->max_len;
    m->max_total_tokens = pages > mc->max_len / KV_PAGE ? mc->max_len : pages * KV_PAGE;
    if (c->max_total_tokens > 0) m->max_total_tokens = min_int(m->max_total_tokens, c->max_total_tokens);
    m->pages = pages;
    m->page_tokens = KV_PAGE;
    m->kv_bytes = (size_t)pages * m->page_bytes;
    m->threads = s->model.d->threads;
    m->ranks = c->comm ? comm_ranks(c->comm) : 1;
    m->train_ranks = c->trains ? comm_ranks(c->trains) : 1;
    m->exchange = s->model.shard ? s->model.shard->how : "";
    m->eos = mc->eos;
    m->n_eos = mc->n_eos;
    m->pad = mc->pad;
    m->temperature = mc->temperature;
    m->top_p = mc->top_p;
    m->repetition_penalty = mc->repetition_penalty;
    m->top_k = mc->top_k;
    m->do_sample = mc->do_sample;
    m->embedder = &s->embedder;
    m->token_types = mc->types;
}

/* An encoder keeps nothing between steps.  The scheduler counts pages all the same: as many as can ever be in use, so
 * that none is waited for.  A text is computed in one step, which bounds its length. */
static int reserve_encoder(struct setup *s, const struct engine_config *c, struct err *e)
{
    struct engine_info *i = &s->info;
    int len = s->model.c.max_len;
    if (c->max_total_tokens > 0) len = min_int(len, c->max_total_tokens);
    if (s->embedder.max_tokens) len = min_int(len, s->embedder.max_tokens);
    if (c->max_batch_tokens > 0) len = min_int(len, i->max_batch_tokens);
    if (i->max_batch_tokens < len) i->max_batch_tokens = len;
    i->max_prefill_tokens = i->max_batch_tokens;
    int pages = min_int(i->max_seqs, 1 << 16) * ((len + KV_PAGE - 1) / KV_PAGE);
    fill_info(s, c, DT_F32, pages);
    i->max_total_tokens = len;
    struct reserve r = {.max_tokens = i->max_batch_tokens, .max_seqs = i->max_seqs, .max_len = len};
    struct model_reserve work = {0, len, i->max_batch_tokens, 0, DT_F32};
    return s->model.d->ops->reserve ? reserve_encoder_device(&s->model, &r, e) : model_reserve(&s->model, &work, e);
}

/* KV cache, activations and limits on a device that uses host memory... */
static int reserve_host(struct setup *s, const struct engine_config *c, enum dtype kv_type, int *pages, struct err *e)
{
    int rc = size_pool(s, c, kv_type, pages, e);
    if (rc) return rc;
    fill_info(s, c, kv_type, *pages);
    struct model_reserve r = {*pages, s->info.max_total_tokens, s->info.max_batch_tokens, s->max_rows, kv_type};
    return model_reserve(&s->model, &r, e);
}

/* ... and on a device with its own memory. */
static int reserve_own(struct setup *s, const struct engine_config *c, enum dtype kv_type, int *pages, struct err *e)
{
    const struct engine_info *i = &s->info;
    struct model *m = &s->model;
    struct dev_memory mem;
    struct reserve r = {.max_tokens = i->max_batch_tokens,
                        .max_seqs = i->max_seqs,
                        .max_rows = s->max_rows,
                        .max_len = c->max_total_tokens > 0 ? c->max_total_tokens : 0,
                        .max_lora_rank = i->max_lora_rank,
                        .kv_type = kv_type,
                        .pages = *pages,
                        .kv_bytes = c->kv_cache_bytes,
                        .page_bytes = model_page_bytes(m, kv_type)};
    if (!r.page_bytes) return no_attention(s, e);
    if (m->shard) {
        shard_lead_reserve_device(m->shard);
        comm_broadcast(m->shard->comm, &r, sizeof r, 0);
    }
    int rc = reserve_device(m, &r, pages, e);
    m->d->ops->memory(m->d, &mem);
    m->workspace_bytes += mem.scratch;
    return rc;
}

static int reserve_all(struct setup *s, const struct engine_config *c, struct err *e)
{
    struct dev *d = s->model.d;
    struct dev_memory mem = {0};
    int pages = c->kv_pages, rc;
    if (s->model.c.encoder) return reserve_encoder(s, c, e);
    if (!d->ops->memory) return reserve_host(s, c, s->kv_type, &pages, e);
    if ((rc = reserve_own(s, c, s->kv_type, &pages, e))) return rc;
    d->ops->memory(d, &mem);
    s->info.page_bytes = model_page_bytes(&s->model, s->kv_type);
    s->info.device_bytes = mem.total;
    s->info.device_budget = mem.budget;
    fill_info(s, c, s->kv_type, pages);
    return 0;
}

/* What works on one rank alone. */
static int check_ranks(const struct engine_config *c, const struct model *m, struct err *e)
{
    const struct comm *any = c->comm ? c->comm : c->trains;
    if (any && !comm_any_thread(any)) /* opened by the main thread, used by the engine's */
        return err_set(e, ERR_UNSUPPORTED,
                       "the ranks' transport can be used by one thread alone: an MPI is needed that "
                       "was built for several threads");
    if (!c->comm) return 0;
    if (m->c.encoder && !m->d->ops->host_memory)
        return err_set(e, ERR_UNSUPPORTED, "an encoder is divided over ranks on the cpu alone; the device is %s",
                       m->d->ops->name);
    if (c->kv_disk && *c->kv_disk)
        return err_set(e, ERR_UNSUPPORTED, "--kv-disk: not with a model that is divided over ranks");
    return 0;
}

struct model_options setup_options(const struct engine_config *c)
{
    return (struct model_options){.dir = c->model,
                                  .device = c->device,
                                  .threads = c->threads,
                                  .quantize = c->quantize,
                                  .activations = c->activations,
                                  .gpu_memory_bytes = c->gpu_memory_bytes,
                                  .gpu_memory_fraction = c->gpu_memory_fraction,
                                  .comm = c->comm,
                                  .stages = c->stages,
                                  .verify_weights = c->verify_weights,
                                  .no_calibration = c->no_calibration};
}

void setup_limits(struct engine_info *i, const struct engine_config *c)
{
    i->max_seqs = c->max_seqs > 0 ? c->max_seqs : 64;
    i->max_batch_tokens = c->max_batch_tokens > 0 ? c->max_batch_tokens : 512;
    i->max_adapters = c->max_adapters > 0 ? c->max_adapters : 64;
    i->max_lora_rank = c->max_lora_rank > 0 ? c->max_lora_rank : 256;
    if (i->max_batch_tokens < i->max_seqs) i->max_batch_tokens = i->max_seqs;
    int prefill = c->max_prefill_tokens > 0 ? c->max_prefill_tokens : i->max_batch_tokens / 16;
    if (prefill < 16) prefill = 16;
    i->max_prefill_tokens = prefill < i->max_batch_tokens ? prefill : i->max_batch_tokens;
    i->max_queue = c->max_queue > 0 ? c->max_queue : 256;
}

int setup_open(struct setup *s, const struct engine_config *c, int more_rows, struct err *e)
{
    *s = (struct setup){0};
    uint64_t start = clock_now(), weights = 0, vocabulary = 0;
    enum dtype kv_type = DT_NONE;
    int rc = kv_type_parse(c->kv_type, &kv_type, e);
    if (!rc) rc = cpus_parse(&s->cpus, c->cpus, e);
    if (rc) return rc;
    setup_limits(&s->info, c);
    s->max_rows = s->info.max_seqs + more_rows;

    const struct model_options o = setup_options(c);
    rc = model_open_as(&s->model, &o, &s->cpus, e);
    weights = clock_now();
    if (c->trains && !(rc = ranks_agree(c->trains, rc, e))) rc = job_ranks_check(c->trains, &s->model, e);
    if (!rc) rc = check_ranks(c, &s->model, e);
    if (!rc && !(s->tokenizer = tokenizer_open_dir(c->model, e))) rc = e->code;
    vocabulary = clock_now();
    if (!rc) rc = embedder_open(&s->embedder, c->model, &s->model.c, e);
    if (!rc) {
        s->kv_type = kv_type == DT_NONE ? s->model.d->ops->kv_type : kv_type;
        if (c->draft_model && c->speculate && strcmp(c->speculate, "off")) rc = draft_open(&s->draft, s, c, e);
    }
    /* a draft's steps are rank 0's alone, so the ranks would keep other graphs */
    if (!rc && s->draft && s->model.shard) s->model.shard->no_replay = true;
    if (!rc) rc = reserve_all(s, c, e);
    s->record_steps = c->record_steps;
    uint64_t end = clock_now();
    s->info.workspace_bytes = s->model.workspace_bytes;
    s->info.weights_seconds = (double)(weights - start) * 1e-9;
    s->info.tokenizer_seconds = (double)(vocabulary - weights) * 1e-9;
    s->info.memory_seconds = (double)(end - vocabulary) * 1e-9;
    s->info.load_seconds = (double)(end - start) * 1e-9;
    if (rc) setup_close(s);
    return rc;
}

/* Rank 0 learns whether it worked. */
static void follow_reserve(struct model *m)
{
    struct err all = {0};
    struct reserve r;
    int pages = 0;
    comm_broadcast(m->shard->comm, &r, sizeof r, 0);
    if (!comm_error(m->shard->comm)) reserve_device(m, &r, &pages, &all);
}

int engine_follow(const struct engine_config *c, struct err *e)
{
    struct model m;
    struct cpus cpus;
    const struct model_options o = setup_options(c);
    int rc = cpus_parse(&cpus, c->cpus, e);
    if (rc) rc = ranks_agree(c->comm, rc, e);
    if (!rc) rc = model_open_as(&m, &o, &cpus, e);
    if (rc) return rc;
    if (model_pin(&m, &cpus, e)) log_write(LOG_WARN, "%s", e->msg); /* as rank 0's engine */
    rc = shard_follow(&m, follow_reserve, e);
    if (rc) comm_fail(c->comm, e->msg); /* the others may wait for this rank */
    model_close(&m);
    return rc;
}

int setup_pin(struct setup *s, struct err *e)
{
    return model_pin(&s->model, &s->cpus, e);
}

void setup_close(struct setup *s)
{
    free(s->base_name);
    s->base_name = NULL;
    embedder_free(&s->embedder);
    draft_close(s->draft);
    s->draft = NULL;
    model_close(&s->model);
    tokenizer_close(s->tokenizer);
    s->tokenizer = NULL;
}
