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
#include "engine/data/map.h"
#include "engine/data/mix.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct dataset {
    struct cache *part; /* (n_parts) of each source, owned */
    char **name;        /* (n_parts) owned */
    int n_parts;
    struct mix mix; /* which of their rows; no places: those of the only part */
    uint64_t rows, hash;
};

static const char *const format_names[] = {"auto",     "text",   "completion", "alpaca",   "messages",
                                           "sharegpt", "tokens", "preference", "unpaired", "prompts"};

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
    map_hash(&h, o);
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

/* One source as a mapped file. */
static int part_open(struct cache *cache, const struct dataset_source *from, const struct dataset_options *o,
                     const struct tokenizer *tk, const struct chat_template *t, int32_t eos, uint64_t *bytes,
                     struct dataset_report *report, struct err *e)
{
    struct source source;
    struct detected d;
    memset(report, 0, sizeof *report);
    int rc = source_open(&source, from, o->max_bytes, e);
    if (rc) return rc;
    rc = detect(&source, o, eos >= 0 ? tokenizer_spelling(tk, eos) : NULL, &d, e);
    bool pairs = !rc && (d.format == DATASET_PREFERENCE || d.format == DATASET_UNPAIRED || d.format == DATASET_PROMPTS);
    if (pairs && o->train_on_prompt)
        rc = err_set(e, ERR_INVALID, "train_on_prompt: %s rows are trained on their answers",
                     dataset_format_name(d.format));
    if (!rc) *bytes += d.bytes;
    if (!rc && *bytes > o->max_bytes)
        rc = err_set(e, ERR_INVALID, "%s: the files together have more than the limit of %.1f MB", source.name,
                     (double)o->max_bytes / 1e6);
    if (!rc) rc = prepare(&source, o, &d, tk, t, eos, cache, report, e);
    source_close(&source);
    if (rc < 0) return rc;
    if (rc == 0) {
        memcpy(report, &cache->header->report, sizeof *report);
        report->from_cache = true;
    }
    return 0;
}

/* ---- several sources --------------------------------------------------------------------------------------------- */

static void report_add(struct dataset_report *to, const struct dataset_report *part, int source)
{
    if (source == 0) {
        *to = *part;
        return;
    }
    to->seen += part->seen;
    to->kept += part->kept;
    to->skipped += part->skipped;
    to->duplicates += part->duplicates;
    to->truncated += part->truncated;
    to->tokens += part->tokens;
    to->trained_tokens += part->trained_tokens;
    if (part->longest > to->longest) to->longest = part->longest;
    to->from_cache = to->from_cache && part->from_cache;
    for (int i = 0; i < part->n_problems && to->n_problems < DATASET_PROBLEMS_MAX; i++) {
        to->problem[to->n_problems] = part->problem[i];
        to->problem[to->n_problems++].source = (uint32_t)source;
    }
}

struct share {
    const struct dataset_options *o;
    int i, n;
};

static void share_progress(void *arg, double fraction)
{
    const struct share *s = arg;
    s->o->progress(s->o->arg, (s->i + fraction) / s->n);
}

static bool share_cancelled(void *arg)
{
    const struct share *s = arg;
    return s->o->cancelled && s->o->cancelled(s->o->arg);
}

static int open_parts(struct dataset *d, const struct dataset_source *v, int n, const struct dataset_options *o,
                      const struct tokenizer *tk, const struct chat_template *t, int32_t eos,
                      struct dataset_report *report, struct err *e)
{
    struct share share = {.o = o, .n = n};
    struct dataset_options own = *o;
    uint64_t bytes = 0;
    own.progress = o->progress ? share_progress : NULL;
    own.cancelled = share_cancelled;
    own.arg = &share;
    for (int rc; share.i < n; share.i++) {
        struct dataset_report part;
        if ((rc = part_open(&d->part[share.i], &v[share.i], &own, tk, t, eos, &bytes, &part, e))) return rc;
        d->name[d->n_parts++] = mem_strdup(v[share.i].name ? v[share.i].name : "the data");
        report_add(report, &part, share.i);
        if (report->seen > o->max_rows)
            return err_set(e, ERR_FULL, "more than the limit of %llu rows", (unsigned long long)o->max_rows);
    }
    return 0;
}

static int put_together(struct dataset *d, const struct dataset_source *v, const struct dataset_options *o,
                        struct dataset_report *report, struct err *e)
{
    struct mix_options m = {.seed = o->seed, .keep_duplicates = o->keep_duplicates};
    d->rows = d->part[0].header->rows;
    d->hash = d->part[0].header->hash;
    if (d->n_parts == 1) return 0;
    int rc = mix_make(&d->mix, d->part, v, d->n_parts, &m, report, e);
    d->rows = d->mix.rows;
    d->hash = d->mix.hash;
    return rc;
}

int dataset_open_all(struct dataset **out, const struct dataset_source *v, int n, const struct dataset_options *given,
                     const struct tokenizer *tk, const struct chat_template *t, int32_t eos,
                     struct dataset_report *report, struct err *e)
{
    struct dataset_options o = with_defaults(given);
    struct dataset_report own;
    if (!report) report = &own;
    *out = NULL;
    memset(report, 0, sizeof *report);
    if (o.max_length < 2) return err_set(e, ERR_INVALID, "max_length must be at least 2");
    if (n < 1 || n > DATASET_SOURCES_MAX)
        return err_set(e, ERR_INVALID, n < 1 ? "no data set is given: neither a file nor rows" : "more than %d files",
                       DATASET_SOURCES_MAX);
    if (dataset_map_check(o.map, o.n_map, e)) return err_prefix(e, "map");
    struct dataset *d = mem_zalloc(sizeof *d);
    d->part = mem_array((size_t)n, sizeof *d->part);
    d->name = mem_array((size_t)n, sizeof *d->name);
    int rc = open_parts(d, v, n, &o, tk, t, eos, report, e);
    if (!rc) rc = put_together(d, v, &o, report, e);
    if (rc)
        dataset_free(d);
    else
        *out = d;
    return rc;
}

int dataset_open(struct dataset **out, const struct dataset_source *from, const struct dataset_options *o,
                 const struct tokenizer *tk, const struct chat_template *t, int32_t eos, struct dataset_report *report,
                 struct err *e)
{
    return dataset_open_all(out, from, 1, o, tk, t, eos, report, e);
}

void dataset_free(struct dataset *d)
{
    if (!d) return;
    for (int i = 0; i < d->n_parts; i++) cache_close(&d->part[i]), free(d->name[i]);
    free(d->part);
    free(d->name);
    mix_free(&d->mix);
    free(d);
}

/* ---- for other processes ----------------------------------------------------------------------------------------- */

enum { NAME_MOST = 4096, PIECE = 1 << 20 };

struct sent {
    uint64_t parts, places, rows, hash;
};
struct sent_part {
    uint64_t bytes, name; /* name: its bytes; 0: none */
};

typedef void put_fn(void *arg, const void *, size_t);
typedef void get_fn(void *arg, void *, size_t);

static void put_all(const void *p, size_t n, put_fn *put, void *arg)
{
    for (size_t i = 0; i < n; i += PIECE) put(arg, (const char *)p + i, n - i < PIECE ? n - i : PIECE);
}

/* to NULL: it is thrown away. */
static void get_all(void *to, size_t n, get_fn *get, void *arg)
{
    char *away = to ? NULL : mem_alloc(PIECE);
    for (size_t i = 0; i < n; i += PIECE) get(arg, to ? (char *)to + i : away, n - i < PIECE ? n - i : PIECE);
    free(away);
}

void dataset_send(const struct dataset *d, put_fn *put, void *arg)
{
    struct sent head = {(uint64_t)d->n_parts, d->mix.place ? d->mix.rows : 0, d->rows, d->hash};
    put(arg, &head, sizeof head);
    for (int i = 0; i < d->n_parts; i++) {
        size_t name = d->name[i] ? strnlen(d->name[i], NAME_MOST) : 0;
        struct sent_part part = {d->part[i].size, name};
        put(arg, &part, sizeof part);
        put_all(d->name[i], name, put, arg);
        put_all(d->part[i].data, d->part[i].size, put, arg);
    }
    put_all(d->mix.place, head.places * sizeof *d->mix.place, put, arg);
}

static int damaged(struct err *e)
{
    return err_set(e, ERR_INVALID, "the data set of another rank is damaged");
}

/* @return false: what came is no data set. */
static bool receive_part(struct dataset *d, get_fn *get, void *arg, struct err *e)
{
    struct sent_part part = {0};
    int i = d->n_parts;
    get(arg, &part, sizeof part);
    if (part.name > NAME_MOST) return damaged(e) == 0;
    if (part.name) {
        d->name[i] = mem_zalloc(part.name + 1);
        get_all(d->name[i], part.name, get, arg);
    }
    void *to = cache_begin_copy(&d->part[i], part.bytes, e);
    get_all(to, part.bytes, get, arg);
    d->n_parts++;
    if (to) cache_end_copy(&d->part[i], e);
    return true;
}

/* Places have to be of rows that there are. */
static void receive_places(struct dataset *d, uint64_t n, get_fn *get, void *arg, struct err *e)
{
    d->mix.rows = n;
    d->mix.place = mem_try_alloc(n * sizeof *d->mix.place);
    get_all(d->mix.place, n * sizeof *d->mix.place, get, arg);
    if (!d->mix.place) {
        err_set(e, ERR_NOMEM, "no memory for a data set of %llu rows", (unsigned long long)n);
        return;
    }
    for (uint64_t i = 0; i < n && !e->code; i++) {
        int part = mix_part(d->mix.place[i]);
        if (part >= d->n_parts || !d->part[part].header || mix_row(d->mix.place[i]) >= d->part[part].header->rows)
            damaged(e);
    }
}

static int receive_all(struct dataset *d, const struct sent *head, get_fn *get, void *arg, struct err *e)
{
    e->code = 0;
    for (uint64_t i = 0; i < head->parts; i++) {
        struct err one = {0};
        bool known = receive_part(d, get, arg, &one);
        if (one.code && !e->code) *e = one;
        if (!known) return e->code;
    }
    struct err places = {0};
    if (head->places) receive_places(d, head->places, get, arg, e->code ? &places : e);
    if (!e->code && !head->places && (head->parts != 1 || head->rows != d->part[0].header->rows)) damaged(e);
    return e->code;
}

int dataset_receive(struct dataset **out, get_fn *get, void *arg, struct err *e)
{
    struct sent head = {0};
    get(arg, &head, sizeof head);
    *out = NULL;
    if (!head.parts || head.parts > DATASET_SOURCES_MAX || head.places >> MIX_ROW_BITS ||
        (head.places && head.places != head.rows))
        return damaged(e);
    struct dataset *d = mem_zalloc(sizeof *d);
    d->part = mem_array(head.parts, sizeof *d->part);
    d->name = mem_array(head.parts, sizeof *d->name);
    d->rows = head.rows;
    d->hash = head.hash;
    if (receive_all(d, &head, get, arg, e))
        dataset_free(d);
    else
        *out = d;
    return e->code;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

uint64_t dataset_rows(const struct dataset *d)
{
    return d->rows;
}

struct dataset_row dataset_row(const struct dataset *d, uint64_t i)
{
    const struct cache *part = &d->part[d->mix.place ? mix_part(d->mix.place[i]) : 0];
    return cache_row(part, d->mix.place ? mix_row(d->mix.place[i]) : i);
}

const char *dataset_row_source(const struct dataset *d, uint64_t i)
{
    return d->mix.place ? d->name[mix_part(d->mix.place[i])] : NULL;
}

uint64_t dataset_row_origin(const struct dataset *d, uint64_t i)
{
    return d->mix.place ? d->mix.place[i] : i;
}

uint64_t dataset_hash(const struct dataset *d)
{
    return d->hash;
}
