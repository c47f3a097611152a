#include "engine/model/calibrate.h"

#include "engine/base/check.h"
#include "engine/base/cpus.h"
#include "engine/base/levels.h"
#include "engine/base/mem.h"
#include "engine/base/meminfo.h"
#include "engine/model/tensors.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/rng.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- moments and their factor ---- */

static int block_of(int cols, int at)
{
    return cols - at < FEEDBACK_BLOCK ? cols - at : FEEDBACK_BLOCK;
}

static size_t block_floats(int cols)
{
    size_t n = 0;
    for (int at = 0; at < cols; at += FEEDBACK_BLOCK) n += (size_t)block_of(cols, at) * (size_t)block_of(cols, at);
    return n;
}

void moments_open(struct moments *m, int cols)
{
    *m = (struct moments){.cols = cols, .h = mem_array(block_floats(cols), sizeof *m->h)};
}

void moments_close(struct moments *m)
{
    free(m->h);
    *m = (struct moments){0};
}

/* Runs fn(ctx) on several threads at once; each call takes its tasks from a counter in ctx. */
static void on_threads(int threads, void *(*fn)(void *), void *ctx)
{
    pthread_t helper[64];
    int n = 0;
    for (; n < threads - 1 && n < 64; n++)
        if (pthread_create(&helper[n], NULL, fn, ctx)) break;
    fn(ctx);
    for (int i = 0; i < n; i++) pthread_join(helper[i], NULL);
}

/* Rows [from, to) of one block, four rows of x at a time, so that h is read and written once for them. */
FOR_EACH_LEVEL static void add_four(float *h, int n, int from, int to, const float *const x[4])
{
    const float *a = x[0], *b = x[1], *c = x[2], *d = x[3];
    h += (size_t)from * (size_t)n;
    for (int i = from; i < to; i++, h += n) {
        float p = a[i], q = b[i], r = c[i], s = d[i];
        for (int j = i; j < n; j++) h[j] += p * a[j] + q * b[j] + r * c[j] + s * d[j];
    }
}

enum { CHUNK_ROWS = 64 }; /* rows of a block per task: they stay in a core's cache while all of x is read */

struct add_job {
    struct moments *m;
    const float *x, *zero;
    int rows, ld;
    _Atomic int next;
};

static void *add_work(void *arg)
{
    struct add_job *j = arg;
    int chunk, cols = j->m->cols;
    while ((chunk = atomic_fetch_add(&j->next, CHUNK_ROWS)) < cols) { /* block sizes are multiples of CHUNK_ROWS */
        int at = chunk / FEEDBACK_BLOCK * FEEDBACK_BLOCK, n = block_of(cols, at), from = chunk - at;
        float *h = j->m->h + (size_t)at * FEEDBACK_BLOCK;
        for (int t = 0; t < j->rows; t += 4) {
            const float *x[4];
            for (int i = 0; i < 4; i++) x[i] = t + i < j->rows ? j->x + (size_t)(t + i) * (size_t)j->ld + at : j->zero;
            add_four(h, n, from, from + CHUNK_ROWS < n ? from + CHUNK_ROWS : n, x);
        }
    }
    return NULL;
}

void moments_add(struct moments *m, const float *x, int rows, int ld, int threads)
{
    float *zero = mem_array(FEEDBACK_BLOCK, sizeof *zero);
    struct add_job j = {.m = m, .x = x, .zero = zero, .rows = rows, .ld = ld};
    double work = (double)rows * m->cols * block_of(m->cols, 0);
    on_threads(work < 1 << 24 ? 1 : threads, add_work, &j);
    m->rows += rows;
    free(zero);
}

/* y[from, to) += a x[from, to) */
FOR_EACH_LEVEL static void axpy(double *y, const double *x, double a, int from, int to)
{
    for (int j = from; j < to; j++) y[j] += a * x[j];
}

/* U, upper, with (H + damp)^-1 = U^T U.  J reverses the order of rows and columns: R^T R = J (H + damp) J is an
 * ordinary Cholesky factorisation, and U = J R^-T J. */
static void factor_block(float *u, const float *h, int n, double damp)
{
    double *r = mem_array((size_t)n * (size_t)n, sizeof *r), *x = mem_array((size_t)n * (size_t)n, sizeof *x);
    size_t N = (size_t)n;
    for (size_t i = 0; i < N; i++)
        for (size_t j = i; j < N; j++) r[i * N + j] = (double)h[(N - 1 - j) * N + (N - 1 - i)] + (i == j ? damp : 0);
    for (int k = 0; k < n; k++) {
        double *row = r + (size_t)k * N, pivot = row[k] > damp * 1e-6 ? row[k] : damp; /* rounding can cancel a pivot */
        double inv = 1 / sqrt(pivot);
        row[k] = pivot;
        for (int j = k; j < n; j++) row[j] *= inv;
        for (int i = k + 1; i < n; i++) axpy(r + (size_t)i * N, row, -row[i], i, n);
    }
    for (int i = n - 1; i >= 0; i--) { /* x = r^-1, upper */
        double *to = x + (size_t)i * N, inv = 1 / r[(size_t)i * N + (size_t)i];
        for (int k = i + 1; k < n; k++) axpy(to, x + (size_t)k * N, r[(size_t)i * N + (size_t)k], k, n);
        for (int j = i + 1; j < n; j++) to[j] *= -inv;
        to[i] = inv;
    }
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < N; j++) u[i * N + j] = j < i ? 0 : (float)x[(N - 1 - j) * N + (N - 1 - i)];
    free(r);
    free(x);
}

void feedback_open(struct feedback *out, const struct moments *m, double damp)
{
    *out = (struct feedback){.cols = m->cols};
    out->u = mem_array(block_floats(m->cols), sizeof *out->u);
    out->h = mem_array(block_floats(m->cols), sizeof *out->h);
    size_t offset = 0;
    for (int at = 0; at < m->cols; at += FEEDBACK_BLOCK) {
        size_t n = (size_t)block_of(m->cols, at);
        double mean = 0;
        for (size_t i = 0; i < n; i++) mean += (double)m->h[offset + i * n + i] / (double)n;
        double add = mean > 0 ? damp * mean : 1;
        factor_block(out->u + offset, m->h + offset, (int)n, add);
        for (size_t i = 0; i < n; i++)
            for (size_t j = i; j < n; j++) {
                float h = (float)((double)m->h[offset + i * n + j] + (i == j ? add : 0));
                out->h[offset + i * n + j] = out->h[offset + j * n + i] = h;
            }
        offset += n * n;
    }
}

void feedback_close(struct feedback *f)
{
    free(f->u);
    free(f->h);
    *f = (struct feedback){0};
}

/* ---- recording the inputs of a model's GEMMs ---- */

/* The device's table of ops with its GEMMs intercepted. */
struct tap {
    struct dev_ops ops; /* first: the device's ops pointer points to this struct */
    const struct dev_ops *inner;
    const struct model *m;
    struct moments *v; /* by number of the GEMM; h NULL: it has seen no row */
    float *host;       /* rows of one input */
    size_t host_cap;
    int32_t start[EXPERTS_MAX + 1];
};

static void add(struct tap *t, int gemm, const float *x, const struct mat *shape, int rows, int threads)
{
    struct moments *m = &t->v[gemm];
    if (!rows) return;
    if (!m->h) moments_open(m, shape->cols);
    moments_add(m, x, rows, shape->ld, threads);
}

/* -1: not one whose weight is quantised, as a router. */
static int gemm_of(const struct model *m, const struct weight *w)
{
    for (int l = 0; l < m->c.layers; l++) {
        const struct layer_weights *lw = &m->w.layer[l];
        const struct weight *all[LAYER_GEMMS] = {
            [GEMM_QKV] = lw->qkv, [GEMM_O] = lw->o, [GEMM_UP] = lw->up, [GEMM_DOWN] = lw->down};
        for (int i = 0; i < LAYER_GEMMS; i++)
            if (all[i] == w) return LAYER_GEMMS * l + i;
    }
    return w == m->w.head ? LAYER_GEMMS * m->c.layers : -1;
}

/* That of the first expert; those of the others follow, each two further. */
static int experts_gemm_of(const struct model *m, const struct weight *const *w)
{
    for (int l = 0; l < m->c.layers; l++) {
        const struct layer_weights *lw = &m->w.layer[l];
        if ((const struct weight *const *)lw->expert_up == w) return tensors_expert_gemm(&m->c, l, 0, false);
        if ((const struct weight *const *)lw->expert_down == w) return tensors_expert_gemm(&m->c, l, 0, true);
    }
    CHECK(false);
    return -1;
}

static struct tap *tap_of(struct dev *d)
{
    return (struct tap *)(void *)d->ops; /* not const: calibrate made it */
}

/* Copies the rows to t->host.  @return false: the device has failed, and run_step's finish reports the error. */
static bool fetch(struct tap *t, struct dev *d, const struct mat *x)
{
    size_t floats = x->rows ? (size_t)(x->rows - 1) * (size_t)x->ld + (size_t)x->cols : 0;
    mem_grow(&t->host, &t->host_cap, floats, sizeof *t->host);
    if (t->inner->finish(d)) return false;
    t->inner->download(d, t->host, x->p, floats * sizeof *t->host);
    return !d->error.op;
}

static const struct dev_ops *listen(struct dev *d, const struct mat *x, const struct weight *w)
{
    struct tap *t = tap_of(d);
    int gemm = gemm_of(t->m, w);
    if (gemm >= 0 && fetch(t, d, x)) add(t, gemm, t->host, x, x->rows, d->threads);
    return t->inner;
}

/* Each expert's rows: start (n + 1) is on the device. */
static const struct dev_ops *listen_experts(struct dev *d, const struct mat *x, const struct weight *const *w,
                                            const int32_t *start, int n)
{
    struct tap *t = tap_of(d);
    int first = experts_gemm_of(t->m, w);
    if (!fetch(t, d, x)) return t->inner;
    t->inner->download(d, t->start, start, ((size_t)n + 1) * sizeof *t->start);
    for (int e = 0; e < n && !d->error.op; e++)
        add(t, first + 2 * e, t->host + (size_t)t->start[e] * (size_t)x->ld, x, t->start[e + 1] - t->start[e],
            d->threads);
    return t->inner;
}

static void tap_linear(struct dev *d, const struct linear_args *a)
{
    listen(d, &a->x, a->w)->linear(d, a);
}

static void tap_gate_up(struct dev *d, const struct gate_up_args *a)
{
    listen(d, &a->x, a->w)->gate_up(d, a);
}

static void tap_experts_linear(struct dev *d, const struct experts_linear_args *a)
{
    listen_experts(d, &a->x, a->w, a->start, a->n)->experts_linear(d, a);
}

static void tap_experts_gate_up(struct dev *d, const struct experts_gate_up_args *a)
{
    listen_experts(d, &a->x, a->w, a->start, a->n)->experts_gate_up(d, a);
}

/* ---- running it ---- */

#ifdef TANDEM_SANITIZED
enum { TEXTS = 16 }; /* sums of products, and minutes of them: a quarter */
#else
enum { TEXTS = 64 };
#endif
enum { TEXT_LEN = 128, WINDOW = 512, STEP = 64, TEXT_BYTES = 32 * CALIBRATE_TOKENS };

struct run {
    struct model m;
    struct step_batch batch;
    struct tap tap;
    struct step_batch_seq seq[TEXTS];
    int32_t *tokens, *pages; /* (TEXTS, len), (TEXTS, len / KV_PAGE rounded up) */
    float *logits;           /* (STEP, V) */
    int len;
};

static void run_close(struct run *r)
{
    for (int i = 0; r->tap.v && i < tensors_gemms(&r->m.c); i++) moments_close(&r->tap.v[i]);
    free(r->tap.v);
    free(r->tap.host);
    if (r->m.d) {
        if (r->tap.inner) r->m.d->ops = r->tap.inner;
        step_batch_close(&r->batch, r->m.d);
    }
    model_close(&r->m);
    free(r->tokens);
    free(r->pages);
    free(r->logits);
}

/* Moments and feedback of all GEMMs fit in memory, and what each thread factors a block in. */
static int check_memory(const struct model_config *c, int threads, struct err *e)
{
    const double GIB = 1024.0 * 1024 * 1024;
    struct tensors t = tensors_of(c, NULL);
    double floats = 0, room = (double)memory_available();
    size_t largest = 0;
    for (int i = 0; i < tensors_stacks(c); i++) {
        struct stack s;
        tensors_stack(&t, i, &s);
        if (!s.n || s.gemm < 0) continue;
        size_t n = (size_t)block_of(s.cols, 0);
        if (n * n > largest) largest = n * n;
        floats += 2.0 * (double)block_floats(s.cols); /* moments are closed one by one */
    }
    double bytes = floats * sizeof(float) + 2.0 * threads * (double)largest * sizeof(double);
    if (bytes < 0.95 * room) return 0;
    return err_set(e, ERR_NOMEM, "calibrating needs %.2f GiB for the statistics of %d matrices, %.2f GiB are available",
                   bytes / GIB, tensors_gemms(c), room / GIB);
}

/* n texts of up to `len` tokens, each with its own pages */
static int run_open(struct run *r, const char *dir, const char *device, int threads, int n, int len, struct err *e)
{
    *r = (struct run){0};
    int rc = model_load(&r->m, dir, device, threads ? threads : cpus_available(), NULL, false, e);
    if (rc) return rc;
    if (r->m.c.quant.name[0]) return err_set(e, ERR_INVALID, "%s is quantised to %s already", dir, r->m.c.quant.name);
    rc = check_memory(&r->m.c, r->m.d->threads, e);
    if (rc) return rc;
    r->len = len < r->m.c.max_len ? len : r->m.c.max_len;
    int each = (r->len + KV_PAGE - 1) / KV_PAGE;
    struct model_reserve reserve = {n * each, r->len, STEP, STEP, DT_F32};
    rc = model_reserve(&r->m, &reserve, e);
    if (rc) return rc;
    if (step_batch_open(&r->batch, r->m.d, STEP, n, STEP, each))
        return err_set(e, ERR_NOMEM, "no memory for the batch");
    r->tokens = mem_array((size_t)n * (size_t)r->len, sizeof *r->tokens);
    r->pages = mem_array((size_t)n * (size_t)each, sizeof *r->pages);
    r->logits = mem_array((size_t)STEP * (size_t)r->m.c.vocab, sizeof *r->logits);
    for (int i = 0; i < n * each; i++) r->pages[i] = i;
    for (int i = 0; i < n; i++)
        r->seq[i] = (struct step_batch_seq){.tokens = r->tokens + (size_t)i * (size_t)r->len,
                                            .pages = r->pages + (size_t)i * each,
                                            .n_pages = each,
                                            .rope_row = rope_first_row(r->m.c.near_len, r->len)};
    r->tap = (struct tap){.ops = *r->m.d->ops, .inner = r->m.d->ops, .m = &r->m};
    r->tap.v = mem_array((size_t)tensors_gemms(&r->m.c), sizeof *r->tap.v);
    r->tap.ops.replay = NULL; /* every GEMM must be intercepted, so no step is replayed */
    r->tap.ops.linear = tap_linear;
    r->tap.ops.experts_linear = tap_experts_linear;
    if (r->tap.ops.fused_gate_up) { /* else gate and up use these */
        r->tap.ops.gate_up = tap_gate_up;
        r->tap.ops.experts_gate_up = tap_experts_gate_up;
    }
    r->m.d->ops = &r->tap.ops;
    return 0;
}

/* One step over the first n texts, with the ranges in r->seq. */
static int run_step(struct run *r, int n, struct err *e)
{
    struct dev *d = r->m.d;
    step_batch_build(&r->batch, d, r->seq, n);
    size_t logits = (size_t)r->batch.n_rows * (size_t)r->m.c.vocab;
    model_forward(&r->m, &r->batch);
    if (d->ops->finish(d)) return err_set(e, ERR_IO, "%s: %s", d->error.op, d->error.msg);
    d->ops->download(d, r->logits, r->m.logits.p, logits * sizeof(float));
    if (d->error.op) return err_set(e, ERR_IO, "%s: %s", d->error.op, d->error.msg);
    for (size_t i = 0; i < logits; i++)
        if (!isfinite(r->logits[i])) return err_set(e, ERR_INVALID, "the model's logits are not finite");
    return 0;
}

static double damp_of(const struct model_config *c, int gemm)
{
    return gemm == LAYER_GEMMS * c->layers && c->tied ? DAMP_TIED : DAMP;
}

struct factor_job {
    struct run *r;
    struct calibration *out;
    _Atomic int next;
};

static void *factor_work(void *arg)
{
    struct factor_job *j = arg;
    int i;
    while ((i = atomic_fetch_add(&j->next, 1)) < j->out->n) {
        if (j->r->tap.v[i].h) feedback_open(&j->out->v[i], &j->r->tap.v[i], damp_of(&j->r->m.c, i));
        moments_close(&j->r->tap.v[i]); /* large */
    }
    return NULL;
}

static void run_result(struct run *r, struct calibration *out)
{
    const struct model_config *c = &r->m.c;
    *out = (struct calibration){.n = tensors_gemms(c), .tokens = r->tap.v[0].rows};
    for (int l = 0; l < c->layers; l++)
        for (int e = 0; e < model_block(c, l)->experts.count; e++) {
            out->experts++;
            out->unseen += !r->tap.v[tensors_expert_gemm(c, l, e, false)].h;
        }
    out->v = mem_array((size_t)out->n, sizeof *out->v);
    on_threads(r->m.d->threads, factor_work, &(struct factor_job){.r = r, .out = out});
}

/* samples from softmax(logits) */
static int32_t sample(const float *logits, int vocab, double uniform)
{
    float top = logits[0];
    double sum = 0, at = 0;
    for (int i = 1; i < vocab; i++) top = logits[i] > top ? logits[i] : top;
    for (int i = 0; i < vocab; i++) sum += (double)expf(logits[i] - top);
    for (int i = 0; i < vocab; i++) {
        at += (double)expf(logits[i] - top);
        if (at > uniform * sum) return i;
    }
    return vocab - 1;
}

static int write_and_listen(struct run *r, struct err *e)
{
    int vocab = r->m.c.vocab, rc = 0;
    for (int i = 0; i < TEXTS; i++)
        r->tokens[(size_t)i * (size_t)r->len] = (int32_t)(rng_uniform(0, (uint64_t)i) * vocab);
    for (int pos = 0; pos < r->len && !rc; pos++) {
        for (int i = 0; i < TEXTS; i++) {
            r->seq[i].start = pos;
            r->seq[i].n = r->seq[i].rows = 1;
        }
        rc = run_step(r, TEXTS, e);
        for (int i = 0; i < TEXTS && pos + 1 < r->len && !rc; i++)
            r->tokens[(size_t)i * (size_t)r->len + (size_t)pos + 1] =
                sample(r->logits + (size_t)i * (size_t)vocab, vocab, rng_uniform((uint64_t)i + 1, (uint64_t)pos));
    }
    return rc;
}

int calibration_from_itself(struct calibration *out, const char *dir, const char *device, int threads, struct err *e)
{
    struct run r;
    *out = (struct calibration){0};
    int rc = run_open(&r, dir, device, threads, TEXTS, TEXT_LEN, e);
    if (!rc) rc = write_and_listen(&r, e);
    if (!rc) run_result(&r, out);
    run_close(&r);
    return rc;
}

/* windows of the text, each an independent sequence that begins with the tokenizer's first token (bos) */
static int read_and_listen(struct run *r, const struct tokens *t, struct err *e)
{
    size_t n = t->n < CALIBRATE_TOKENS ? t->n : CALIBRATE_TOKENS;
    int rc = 0;
    for (size_t at = 0; at < n && !rc; at += (size_t)r->len) {
        int len = n - at < (size_t)r->len ? (int)(n - at) : r->len;
        for (int i = 0; i < len; i++) {
            r->tokens[i] = t->v[at + (size_t)i].id;
            if (r->tokens[i] < 0 || r->tokens[i] >= r->m.c.vocab)
                return err_set(e, ERR_INVALID, "the model has no token %d", r->tokens[i]);
        }
        if (at) r->tokens[0] = t->v[0].id;
        for (int start = 0; start < len && !rc; start += STEP) {
            r->seq[0].start = start;
            r->seq[0].n = r->seq[0].rows = len - start < STEP ? len - start : STEP;
            rc = run_step(r, 1, e);
        }
    }
    return rc;
}

int calibration_from_text(struct calibration *out, const char *dir, const char *device, int threads, const char *text,
                          size_t n, struct err *e)
{
    struct run r = {0};
    struct tokens tokens = {0};
    *out = (struct calibration){0};
    struct tokenizer *tk = tokenizer_open_dir(dir, e);
    if (!tk) return e->code;
    if (n > TEXT_BYTES) n = TEXT_BYTES;
    int rc = tokenizer_encode(tk, text, n, TOKENIZE_SPECIAL, &tokens, e);
    if (!rc && tokens.n < 2) rc = err_set(e, ERR_INVALID, "the text to calibrate with has %zu tokens", tokens.n);
    if (!rc) rc = run_open(&r, dir, device, threads, 1, WINDOW, e);
    if (!rc) rc = read_and_listen(&r, &tokens, e);
    if (!rc) run_result(&r, out);
    run_close(&r);
    tokens_free(&tokens);
    tokenizer_close(tk);
    return rc;
}

int calibration_default(struct calibration *out, const char *dir, const struct model_config *c, int type, int threads,
                        struct err *e)
{
    double q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
    double layer = c->hidden * (2 * q + 2 * kv + (model_gated(c) ? 3.0 : 2.0) * c->inter);
    double weights = c->layers * layer + (double)c->vocab * c->hidden;
    *out = (struct calibration){0};
    bool writes = tensors_have_head(c); /* it calibrates on text that it writes */
    if (type == DT_NONE || type == DT_NF4 || c->quant.name[0] || model_experts(c).count || !writes) return 0;
    if (weights > CALIBRATE_SELF_MAX) return 0;
    return calibration_from_itself(out, dir, NULL, threads, e);
}

void calibration_close(struct calibration *c)
{
    for (int i = 0; i < c->n; i++) feedback_close(&c->v[i]);
    free(c->v);
    *c = (struct calibration){0};
}

const struct feedback *calibration_feedback(const struct calibration *c, int gemm)
{
    return c && gemm >= 0 && gemm < c->n && c->v[gemm].h ? &c->v[gemm] : NULL;
}
