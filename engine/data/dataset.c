/* Opening a data set: detected, then found in the cache or built into it, then mapped.  Contract in dataset.h.
 *
 *   source  bytes, in blocks                                               source.c
 *        -> kind of file, format, hash of the content                      detect.c
 *        -> rows, as bytes                                                 scan.c
 *        -> JSON, checked                                                  json.c
 *        -> a text, a conversation or ids                                  row.c
 *        -> text with trained stretches                                    render.c
 *        -> ids and mask                                                   encode.c
 *        -> a mapped file                                                  cache.c
 * build.c drives the part from rows to ids on several threads. */
#include "engine/data/dataset.h"

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/data/build.h"
#include "engine/data/cache.h"
#include "engine/data/detect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dataset {
    struct cache cache;
};

static const char *const format_names[] = {"auto", "text", "completion", "alpaca", "messages", "sharegpt", "tokens"};

const char *dataset_format_name(enum dataset_format f)
{
    return format_names[f];
}

int dataset_format_parse(const char *name)
{
    for (int i = 0; i < (int)(sizeof format_names / sizeof *format_names); i++)
        if (!strcmp(name, format_names[i])) return i;
    return -1;
}

static struct dataset_options with_defaults(const struct dataset_options *given)
{
    struct dataset_options o = *given;
    if (!o.cache_bytes) o.cache_bytes = (uint64_t)64 << 30;
    if (!o.max_row_bytes) o.max_row_bytes = 4 << 20;
    if (!o.max_rows) o.max_rows = 50 * 1000 * 1000;
    if (!o.max_bytes) o.max_bytes = (uint64_t)16 << 30;
    return o;
}

/* The cache key: everything that a row's ids and mask depend on. */
static void key_of(const struct detected *d, const struct dataset_options *o, const struct tokenizer *tk,
                   const struct chat_template *t, int32_t eos, unsigned char key[SHA256_BYTES])
{
    struct sha256 h;
    uint64_t more[] = {
        CACHE_VERSION,    tokenizer_identity(tk),  chat_template_identity(t), (uint64_t)(uint32_t)eos, d->kind,
        d->format,        (uint64_t)o->max_length, o->train_on_prompt,        o->keep_duplicates,      o->no_eos,
        o->max_row_bytes, d->mark[0] != NULL,      d->mark[1] != NULL,
    };
    sha256_start(&h);
    sha256_add(&h, d->content, sizeof d->content);
    sha256_add(&h, more, sizeof more);
    sha256_end(&h, key);
}

static int none_usable(const struct source *s, const struct dataset_report *r, struct err *e)
{
    if (!r->seen) return err_set(e, ERR_INVALID, "%s: there are no rows", s->name);
    return err_set(e, ERR_INVALID, "%s: none of %llu %s rows is usable; row %llu: %s", s->name,
                   (unsigned long long)r->seen, dataset_format_name(r->format), (unsigned long long)r->problem[0].line,
                   r->problem[0].what);
}

static int prepare(struct source *s, const struct dataset_options *o, const struct detected *d,
                   const struct tokenizer *tk, const struct chat_template *t, int32_t eos, struct cache *cache,
                   struct dataset_report *report, struct err *e)
{
    struct cache_writer w;
    unsigned char key[SHA256_BYTES];
    struct err why = {0};
    key_of(d, o, tk, t, eos, key);
    if (o->cache_dir && !cache_open(cache, o->cache_dir, key, &why)) return 0;
    if (why.code && why.code != ERR_NOT_FOUND) log_warn("prepared data set is made anew reason=\"%s\"", why.msg);
    int rc = cache_start(&w, o->cache_dir, key, o, e);
    if (rc) return rc;
    /* another writer may have finished the same set while this one waited */
    if (o->cache_dir && !cache_open(cache, o->cache_dir, key, NULL)) {
        cache_abandon(&w);
        return 0;
    }
    rc = build(s, o, d, tk, t, eos, &w, report, e);
    if (!rc && !report->kept) rc = none_usable(s, report, e);
    if (!rc) rc = cache_finish(&w, report, cache, e);
    cache_abandon(&w);
    if (!rc && o->cache_dir) cache_sweep(o->cache_dir, o->cache_bytes);
    report->from_cache = false;
    return rc ? rc : 1;
}

int dataset_open(struct dataset **out, const struct dataset_source *from, const struct dataset_options *given,
                 const struct tokenizer *tk, const struct chat_template *t, int32_t eos, struct dataset_report *report,
                 struct err *e)
{
    struct dataset_options o = with_defaults(given);
    struct dataset_report own;
    struct cache cache = {0};
    struct source source;
    struct detected d;
    if (!report) report = &own;
    *out = NULL;
    memset(report, 0, sizeof *report);
    if (o.max_length < 2) return err_set(e, ERR_INVALID, "max_length must be at least 2");
    int rc = source_open(&source, from, o.max_bytes, e);
    if (rc) return rc;
    rc = detect(&source, &o, eos >= 0 ? tokenizer_spelling(tk, eos) : NULL, &d, e);
    if (!rc) rc = prepare(&source, &o, &d, tk, t, eos, &cache, report, e);
    source_close(&source);
    if (rc < 0) return rc;
    if (rc == 0) {
        memcpy(report, &cache.header->report, sizeof *report);
        report->from_cache = true;
    }
    *out = mem_zalloc(sizeof **out);
    (*out)->cache = cache;
    return 0;
}

void dataset_free(struct dataset *d)
{
    if (!d) return;
    cache_close(&d->cache);
    free(d);
}

uint64_t dataset_rows(const struct dataset *d)
{
    return d->cache.header->rows;
}

struct dataset_row dataset_row(const struct dataset *d, uint64_t i)
{
    const unsigned char *p = d->cache.data + d->cache.offset[i];
    uint32_t head[3];
    memcpy(head, p, sizeof head);
    return (struct dataset_row){
        .id = (const int32_t *)(p + sizeof head),
        .trained = p + sizeof head + head[0] * sizeof(int32_t),
        .n = (int)head[0],
        .n_trained = (int)head[1],
        .line = head[2],
    };
}

uint64_t dataset_hash(const struct dataset *d)
{
    return d->cache.header->hash;
}
