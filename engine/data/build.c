#include "engine/data/build.h"

#include "engine/base/json_literal.h"
#include "engine/base/mem.h"
#include "engine/data/encode.h"
#include "engine/data/json.h"
#include "engine/data/map.h"
#include "engine/data/render.h"
#include "engine/data/row.h"
#include "engine/data/scan.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH_BYTES = 256 << 10, BATCH_ROWS = 512, BATCHES_PER_THREAD = 3 };

/* The result of a row, or of a chunk of a long text. */
struct made {
    uint64_t line;
    size_t start, n; /* ids in the batch's out */
    bool bad, truncated;
    size_t second;
    enum dataset_label label;
    size_t fields, n_fields; /* of a prompt: bytes of the batch's fields */
};

enum batch_state { BATCH_FREE, BATCH_READY, BATCH_DONE };

struct batch {
    struct buf bytes;
    struct batch_row {
        size_t at, n;
        struct scan_row row;
    } * rows;
    size_t n_rows, cap_rows;
    struct encoded out;
    struct buf fields;
    struct made *made;
    size_t n_made, cap_made;
    struct dataset_problem problem[DATASET_PROBLEMS_MAX]; /* problems of the first bad rows */
    int n_problems;
    enum batch_state state; /* under builder's lock */
};

struct builder {
    const struct dataset_options *o;
    const struct detected *d;
    const struct chat_template *template;
    struct encoder encoder;
    int vocab;

    struct batch *ring; /* (n_ring) batch i of the file is ring[i % n_ring] */
    size_t n_ring;
    uint64_t filled, taken, written; /* batches; under lock */
    bool stop;                       /* under lock */
    atomic_bool leave;               /* what is being made is not wanted */
    pthread_mutex_t lock;
    pthread_cond_t ready, done;
    pthread_t *thread;
    int n_threads;
};

/* Buffers of a thread, reused for each row. */
struct scratch {
    struct rendered text;
    struct encoded ids;
};

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static void made_add(struct batch *b, uint64_t line, size_t start, size_t n, bool truncated)
{
    mem_grow(&b->made, &b->cap_made, b->n_made + 1, sizeof *b->made);
    b->made[b->n_made++] = (struct made){.line = line, .start = start, .n = n, .truncated = truncated};
}

/* Never splits a character. */
static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);
    if (n >= size) {
        n = size - 1;
        while (n > 0 && ((unsigned char)from[n] & 0xc0) == 0x80) n--;
    }
    memcpy(to, from, n);
    to[n] = 0;
}

static void made_bad(struct batch *b, uint64_t line, const char *why)
{
    made_add(b, line, 0, 0, false);
    b->made[b->n_made - 1].bad = true;
    if (b->n_problems == DATASET_PROBLEMS_MAX) return;
    struct dataset_problem *p = &b->problem[b->n_problems++];
    p->line = line;
    copy_text(p->what, sizeof p->what, why);
}

static size_t trained_end(const uint8_t *trained, size_t n)
{
    while (n > 0 && !trained[n - 1]) n--;
    return n;
}

/* Appends the sequence x, truncated to the maximum length.  Tokens after the last target do not affect the gradient and
 * are dropped. */
static int put_sequence(const struct builder *w, struct batch *b, struct encoded *x, bool *cut, struct err *e)
{
    size_t max = (size_t)w->o->max_length, n = x->n;
    if (n && !w->o->train_on_prompt) x->trained[0] = 0;
    for (size_t i = 0; i < n && w->o->train_on_prompt; i++) x->trained[i] = i > 0;
    size_t wanted = trained_end(x->trained, n);
    n = trained_end(x->trained, wanted > max ? max : wanted);
    *cut |= wanted > max;
    if (!wanted) return err_set(e, ERR_INVALID, "nothing to train on in %zu token%s", x->n, x->n == 1 ? "" : "s");
    if (!n) return err_set(e, ERR_INVALID, "no trained token within the first %zu of %zu (max_length)", max, wanted);
    const float *logprob = encoded_logprobs(x, 0, n);
    for (size_t i = 0; i < n; i++) {
        encoded_add(&b->out, x->id[i], x->trained[i]);
        if (logprob) encoded_sampled(&b->out, logprob[i]);
    }
    return 0;
}

static int take_row(const struct builder *w, struct batch *b, struct encoded *x, uint64_t line,
                    enum dataset_label label, struct err *e)
{
    size_t start = b->out.n;
    bool cut = false;
    if (put_sequence(w, b, x, &cut, e)) return e->code;
    made_add(b, line, start, b->out.n - start, cut);
    b->made[b->n_made - 1].label = label;
    return 0;
}

/* A prompt and the row that it is of. */
static int take_prompt(const struct builder *w, struct batch *b, const struct encoded *x, uint64_t line, cJSON *json,
                       struct err *e)
{
    size_t max = (size_t)w->o->max_length, start = b->out.n, at = b->fields.len;
    if (!x->n) return err_set(e, ERR_INVALID, "the prompt is empty");
    if (x->n >= max)
        return err_set(e, ERR_INVALID, "the prompt has %zu tokens: max_length %zu leaves none for an answer", x->n,
                       max);
    char *text = json_literal_print(json); /* the checks' numbers are those of the row */
    if (!text) return err_set(e, ERR_NOMEM, "no memory for the row's fields");
    buf_str(&b->fields, text);
    cJSON_free(text);
    for (size_t i = 0; i < x->n; i++) encoded_add(&b->out, x->id[i], false);
    made_add(b, line, start, x->n, false);
    b->made[b->n_made - 1].fields = at;
    b->made[b->n_made - 1].n_fields = b->fields.len - at;
    return 0;
}

/* Tokens of a long text: chunks that overlap by one token, so that each token but the first is a target once. */
static void take_pieces(const struct builder *w, struct batch *b, const struct encoded *x, uint64_t line)
{
    size_t max = (size_t)w->o->max_length;
    for (size_t at = 0; at + 1 < x->n; at += max - 1) {
        size_t n = x->n - at < max ? x->n - at : max, start = b->out.n;
        for (size_t i = 0; i < n; i++) encoded_add(&b->out, x->id[at + i], i > 0);
        made_add(b, line, start, n, false);
    }
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *row_bytes(const struct batch *b, const struct batch_row *r)
{
    return r->n ? b->bytes.data + r->at : ""; /* `data` is NULL when all rows of the batch are empty */
}

static int text_make(const struct builder *w, struct scratch *s, struct batch *b, const struct batch_row *r,
                     struct err *e)
{
    const char *text = row_bytes(b, r);
    size_t n = r->n;
    while (!r->row.goes_on && n && is_space(text[n - 1])) n--;
    if (!n) return 0; /* two adjacent marks */
    int rc = row_check_text(text, n, e);
    unsigned flags = ENCODE_SPECIAL;
    if (r->row.is_rest) flags |= ENCODE_GOES_ON;
    if (!r->row.goes_on && !w->o->no_eos) flags |= ENCODE_EOS;
    struct stretch all = {0, n};
    if (!rc) rc = encode_text(&w->encoder, text, n, &all, 1, flags, &s->ids, e);
    if (rc) return rc;
    if (s->ids.n < 2) return err_set(e, ERR_INVALID, "nothing to train on in %zu tokens", s->ids.n);
    take_pieces(w, b, &s->ids, r->row.line);
    return 0;
}

static int encode_row(const struct builder *w, struct scratch *s, const struct row *row, struct err *e)
{
    rendered_clear(&s->text);
    encoded_clear(&s->ids);
    for (int i = 0; i < row->n && row->kind == ROW_IDS; i++) {
        encoded_add(&s->ids, row->id[i], row->is_target[i]);
        if (row->logprob) encoded_sampled(&s->ids, row->logprob[i]);
    }
    if (row->kind == ROW_IDS) return 0;
    if (render_row(row, w->template, &s->text, e)) return e->code;
    unsigned flags = s->text.flags & ~(w->o->no_eos ? (unsigned)ENCODE_EOS : 0);
    return encode_text(&w->encoder, s->text.text.data, s->text.text.len, s->text.v, s->text.n, flags, &s->ids, e);
}

static int pair_make(const struct builder *w, struct scratch *s, struct batch *b, const cJSON *json, uint64_t line,
                     struct err *e)
{
    struct row row[2];
    size_t start = b->out.n, second = 0;
    bool cut = false;
    int rc = row_read_pair(&row[0], &row[1], json, w->vocab, e);
    for (int i = 0; i < 2 && !rc; i++) {
        second = b->out.n - start;
        if ((rc = encode_row(w, s, &row[i], e)) || (rc = put_sequence(w, b, &s->ids, &cut, e)))
            err_prefix(e, i ? "\"rejected\"" : "\"chosen\"");
    }
    if (!rc) {
        made_add(b, line, start, b->out.n - start, cut);
        b->made[b->n_made - 1].second = second;
    } else {
        b->out.n = start;
    }
    row_free(&row[0]);
    row_free(&row[1]);
    return rc;
}

static int json_make(const struct builder *w, struct scratch *s, struct batch *b, const struct batch_row *r,
                     struct err *e)
{
    struct row row = {0};
    cJSON *json = row_parse(row_bytes(b, r), r->n, e);
    map_row(json, w->o);
    if (json && w->d->format == DATASET_PREFERENCE) {
        int failed = pair_make(w, s, b, json, r->row.line, e);
        cJSON_Delete(json);
        return failed;
    }
    int rc = json ? row_read(&row, json, w->d->format, w->vocab, e) : e->code;
    if (!rc) rc = encode_row(w, s, &row, e);
    if (!rc && row.asks)
        rc = take_prompt(w, b, &s->ids, r->row.line, json, e);
    else if (!rc)
        rc = take_row(w, b, &s->ids, r->row.line, row.label, e);
    row_free(&row);
    cJSON_Delete(json);
    return rc;
}

static void batch_make(struct builder *w, struct scratch *s, struct batch *b)
{
    bool texts = w->d->kind == SCAN_MARKED || w->d->kind == SCAN_PARAGRAPHS;
    for (size_t i = 0; i < b->n_rows && !atomic_load(&w->leave); i++) {
        const struct batch_row *r = &b->rows[i];
        struct err why = {0};
        rendered_clear(&s->text);
        encoded_clear(&s->ids);
        if (r->row.too_large)
            err_set(&why, ERR_INVALID, "longer than %zu bytes", w->o->max_row_bytes);
        else if (texts)
            text_make(w, s, b, r, &why);
        else
            json_make(w, s, b, r, &why);
        if (why.code) made_bad(b, r->row.line, why.msg);
    }
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *worker(void *arg)
{
    struct builder *w = arg;
    struct scratch s = {0};
    /* where the system refuses, they compete with the others as threads do */
    if (w->o->background) pthread_setschedparam(pthread_self(), SCHED_IDLE, &(struct sched_param){0});
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (!w->stop && w->taken == w->filled) pthread_cond_wait(&w->ready, &w->lock);
        if (w->stop) break;
        struct batch *b = &w->ring[w->taken++ % w->n_ring];
        pthread_mutex_unlock(&w->lock);
        batch_make(w, &s, b);
        pthread_mutex_lock(&w->lock);
        b->state = BATCH_DONE;
        pthread_cond_signal(&w->done);
    }
    pthread_mutex_unlock(&w->lock);
    rendered_free(&s.text);
    encoded_free(&s.ids);
    return NULL;
}

static void threads_start(struct builder *w, int n)
{
    w->thread = mem_array((size_t)n, sizeof *w->thread);
    while (w->n_threads < n && !pthread_create(&w->thread[w->n_threads], NULL, worker, w)) w->n_threads++;
}

/* A thread ends after the row that it is at.  In the background that may be long: where the system lets it, it becomes
 * a thread as others are. */
static void threads_end(struct builder *w)
{
    atomic_store(&w->leave, true);
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->ready);
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; i < w->n_threads && w->o->background; i++)
        pthread_setschedparam(w->thread[i], SCHED_OTHER, &(struct sched_param){0});
    for (int i = 0; i < w->n_threads; i++) pthread_join(w->thread[i], NULL);
    free(w->thread);
}

/* ---- rows in, rows out ------------------------------------------------------------------------------------------- */

/* @return 1: filled; 0: no more rows; or an err code. */
static int batch_fill(struct scan *scan, struct batch *b, uint64_t *seen, uint64_t max_rows, struct err *e)
{
    int rc = 1;
    buf_clear(&b->bytes);
    b->n_rows = b->n_made = 0;
    encoded_clear(&b->out);
    buf_clear(&b->fields);
    b->n_problems = 0;
    while (rc == 1 && b->bytes.len < BATCH_BYTES && b->n_rows < BATCH_ROWS) {
        struct batch_row r = {.at = b->bytes.len};
        rc = scan_next(scan, &b->bytes, &r.row, e);
        if (rc != 1) break;
        if (++*seen > max_rows)
            return err_set(e, ERR_FULL, "%s: more than the limit of %llu rows", scan->source->name,
                           (unsigned long long)max_rows);
        r.n = b->bytes.len - r.at;
        mem_grow(&b->rows, &b->cap_rows, b->n_rows + 1, sizeof *b->rows);
        b->rows[b->n_rows++] = r;
    }
    return rc < 0 ? rc : b->n_rows > 0;
}

static int batch_write(const struct builder *w, struct batch *b, struct cache_writer *out, struct dataset_report *r,
                       struct err *e)
{
    int problem = 0;
    for (size_t i = 0; i < b->n_made; i++) {
        const struct made *m = &b->made[i];
        r->seen++;
        if (m->bad) {
            r->skipped++;
            if (problem < b->n_problems && r->n_problems < DATASET_PROBLEMS_MAX)
                r->problem[r->n_problems++] = b->problem[problem++];
            continue;
        }
        const uint8_t *trained = b->out.trained + m->start;
        const float *logprob = encoded_logprobs(&b->out, m->start, m->n);
        struct dataset_row row = {.id = b->out.id + m->start,
                                  .trained = trained,
                                  .logprob = logprob,
                                  .n = (int)m->n,
                                  .second = (int)m->second,
                                  .label = m->label,
                                  .fields = m->n_fields ? b->fields.data + m->fields : NULL,
                                  .n_fields = (int)m->n_fields,
                                  .line = m->line < UINT32_MAX ? (uint32_t)m->line : UINT32_MAX};
        int rc = cache_add(out, &row, !w->o->keep_duplicates, e);
        if (rc < 0) return rc;
        if (rc == 0) {
            r->duplicates++;
            continue;
        }
        r->kept++;
        r->truncated += m->truncated;
        r->tokens += m->n;
        for (size_t k = 0; k < m->n; k++) r->trained_tokens += trained[k];
        if (m->n > r->longest) r->longest = m->n;
    }
    return 0;
}

/* Under the lock: until a batch is done, for at most a fifth of a second.  Threads in the background may need minutes.
 */
static void wait_for_done(struct builder *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 200000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    pthread_cond_timedwait(&w->done, &w->lock, &until);
}

static bool is_cancelled(const struct builder *w)
{
    return w->o->cancelled && w->o->cancelled(w->o->arg);
}

/* Waits for the oldest batch and writes it; without `wait` only if it is done.  @return 1 when a batch was written. */
static int oldest_write(struct builder *w, bool wait, struct cache_writer *out, struct dataset_report *r, struct err *e)
{
    struct batch *b = &w->ring[w->written % w->n_ring];
    bool cancelled = false;
    pthread_mutex_lock(&w->lock);
    bool any = w->written < w->filled;
    while (any && wait && b->state != BATCH_DONE && !cancelled) {
        wait_for_done(w);
        cancelled = b->state != BATCH_DONE && is_cancelled(w);
    }
    any = any && b->state == BATCH_DONE;
    pthread_mutex_unlock(&w->lock);
    if (cancelled) return err_set(e, ERR_FULL, "cancelled");
    if (!any) return 0;
    int rc = batch_write(w, b, out, r, e);
    b->state = BATCH_FREE; /* owned by this thread again until it is filled */
    w->written++;
    return rc ? rc : 1;
}

static int run(struct builder *w, struct scan *scan, struct cache_writer *out, struct dataset_report *r, struct err *e)
{
    const struct dataset_options *o = w->o;
    struct scratch own = {0};
    uint64_t seen = 0;
    int rc = 1;
    while (rc > 0) {
        if (is_cancelled(w)) rc = err_set(e, ERR_FULL, "cancelled");
        if (rc > 0 && w->filled - w->written == w->n_ring) rc = oldest_write(w, true, out, r, e);
        if (rc <= 0) break;
        struct batch *b = &w->ring[w->filled % w->n_ring];
        rc = batch_fill(scan, b, &seen, o->max_rows, e);
        if (rc <= 0) break;
        if (!w->n_threads) batch_make(w, &own, b);
        pthread_mutex_lock(&w->lock);
        b->state = w->n_threads ? BATCH_READY : BATCH_DONE;
        w->filled++;
        pthread_cond_signal(&w->ready);
        pthread_mutex_unlock(&w->lock);
        int any;
        while ((any = oldest_write(w, false, out, r, e)) == 1)
            ;
        if (any < 0) rc = any;
        if (o->progress) o->progress(o->arg, source_progress(scan->source));
    }
    while (rc == 0 && w->written < w->filled) {
        int any = oldest_write(w, true, out, r, e);
        if (any < 0) rc = any;
    }
    rendered_free(&own.text);
    encoded_free(&own.ids);
    return rc;
}

int build(struct source *source, const struct dataset_options *o, const struct detected *d, const struct tokenizer *t,
          const struct chat_template *template, int32_t eos, struct cache_writer *out, struct dataset_report *r,
          struct err *e)
{
    struct builder w = {.o = o, .d = d, .template = template, .vocab = tokenizer_size(t)};
    struct scan scan;
    memset(r, 0, sizeof *r);
    r->format = d->format;
    int rc = encoder_open(&w.encoder, t, eos, e);
    if (rc) return rc;
    w.n_ring = o->threads > 1 ? (size_t)o->threads * BATCHES_PER_THREAD : 1;
    w.ring = mem_array(w.n_ring, sizeof *w.ring);
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.ready, NULL);
    pthread_condattr_t clock; /* one that nobody sets */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w.done, &clock);
    pthread_condattr_destroy(&clock);
    if (o->threads > 1) threads_start(&w, o->threads);
    scan_open(&scan, source, d->kind, o->max_row_bytes);
    memcpy(scan.mark, d->mark, sizeof scan.mark);
    rc = run(&w, &scan, out, r, e);
    scan_close(&scan);
    if (o->threads > 1) threads_end(&w);
    for (size_t i = 0; i < w.n_ring; i++) {
        buf_free(&w.ring[i].bytes);
        encoded_free(&w.ring[i].out);
        buf_free(&w.ring[i].fields);
        free(w.ring[i].rows);
        free(w.ring[i].made);
    }
    free(w.ring);
    pthread_cond_destroy(&w.ready);
    pthread_cond_destroy(&w.done);
    pthread_mutex_destroy(&w.lock);
    encoder_close(&w.encoder);
    return rc;
}
