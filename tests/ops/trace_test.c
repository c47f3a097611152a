/* What a trace counts, that it changes nothing, and that the ceilings are measured on every device. */
#include "tests/ops/harness.h"

#include "kernels/ceilings.h"
#include "kernels/trace.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct dev *open_plain(const char *name, int threads)
{
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = name, .threads = threads}, why);
    CHECK(d, "%s: %s", name, why);
    if (!d) abort();
    return d;
}

static void trace_linear(const char *name)
{
    enum { T = 3, N = 32, K = 64 };
    struct dev *d = open_plain(name, 2);
    struct weight_case wc = weight_random(DT_I8, N, K, 0);
    struct weight *w = weight_put(d, &wc), *head = weight_put(d, &wc);
    float *host = random_floats(T * K, 1), *x = put(d, host, T * K * 4), *y = put(d, NULL, T * N * 4);
    struct linear_args a = {mat_f32(y, T, N), mat_f32(x, T, K), w, NULL};
    op_linear(d, a);
    float *want = get(d, y, T * N);

    const struct dev_ops *own = d->ops;
    struct dev_trace *t = dev_trace_open(d, head, 0);
    const struct trace_count *c = dev_trace_counts(t);
    memset(y, 0, T * N * 4);
    op_linear(d, a);
    op_linear(d, a);
    a.w = head;
    op_linear(d, a);
    float *got = get(d, y, T * N);
    compare_bits("a traced linear", got, want, T * N);
    CHECK(c[OP_linear].calls == 2 && c[TRACE_HEAD].calls == 1, "%s: %d linear, %d head", name, (int)c[OP_linear].calls,
          (int)c[TRACE_HEAD].calls);
    CHECK(c[OP_linear].macs == 2.0 * T * N * K && c[TRACE_HEAD].macs == 1.0 * T * N * K, "%s: macs %g, %g", name,
          c[OP_linear].macs, c[TRACE_HEAD].macs);
    CHECK(c[OP_linear].bytes == 2.0 * (double)own->weight_bytes(w), "%s: bytes %g", name, c[OP_linear].bytes);
    CHECK(c[OP_linear].ns > 0, "%s: no time", name);
    dev_trace_clear(t);
    CHECK(c[OP_linear].calls == 0 && c[OP_linear].macs == 0 && c[OP_linear].ns == 0, "%s: not cleared", name);

    /* composed ops call others through the table: one op was asked for, one is counted */
    float *ones = put(d, host, K * 4), *z = put(d, host, T * K * 4), *add = put(d, host, T * K * 4);
    op_add_norm(
        d, (struct add_norm_args){mat_f32(z, T, K), mat_f32(x, T, K), mat_f32(add, T, K), ones, NULL, 1e-5f, NORM_RMS});
    CHECK(c[OP_add_norm].calls == 1 && c[OP_add].calls == 0 && c[OP_norm].calls == 0, "%s: composed ops counted twice",
          name);
    op_linear_back(d, (struct linear_back_args){mat_f32(x, T, K), mat_f32(y, T, N), w, false});
    op_gemm(d, (struct gemm_args){.c = mat_f32(y, T, T), .a = mat_f32(x, T, K), .b = mat_f32(z, T, K), .tb = true});
    CHECK(c[OP_linear_back].macs == 1.0 * T * N * K && c[OP_gemm].macs == 1.0 * T * T * K, "%s: backwards %g, gemm %g",
          name, c[OP_linear_back].macs, c[OP_gemm].macs);
    dev_fail(d, "test", "sticks");
    CHECK(d->ops->finish(d) == -1, "%s: the error got lost", name);
    dev_clear_error(d);
    dev_trace_close(t);
    CHECK(d->ops == own, "%s: the table did not come back", name);
    d->ops->weight_free(d, w);
    d->ops->weight_free(d, head);
    weight_case_free(&wc);
    free(host), free(want), free(got);
    void *all[] = {x, y, ones, z, add};
    for (size_t i = 0; i < 5; i++) d->ops->free(d, all[i]);
    dev_close(d);
}

/* The counts of an attention over two sequences, against counting position by position. */
static void trace_attn(int rows, int len, int window)
{
    enum { H = 4, G = 2, D = 16, W = (H + 2 * G) * D, PAGES = 8 };
    struct dev *d = open_plain("cpu", 1);
    struct kv *kv = d->ops->kv_open(d, &(struct kv_shape){1, 2 * PAGES, G, D, DT_F16});
    int32_t start[3] = {0, rows, rows + 1}, lens[2] = {len, 5}, pages[2 * PAGES];
    for (int i = 0; i < 2 * PAGES; i++) pages[i] = i;
    int T = rows + 1;
    float *x = put(d, NULL, (size_t)T * W * 4), *out = put(d, NULL, (size_t)T * H * D * 4);
    struct dev_trace *t = dev_trace_open(d, NULL, 10);
    op_attn(d, (struct attn_args){mat_f32(out, T, H * D), mat_f32(x, T, W), H, G, D, window, 1, 2, start, lens, pages,
                                  PAGES, kv, 0});
    double seen = 0, first_seen[2] = {1e9, 1e9};
    for (int s = 0; s < 2; s++)
        for (int p = lens[s] - (start[s + 1] - start[s]); p < lens[s]; p++)
            for (int k = 0; k <= p; k++) {
                if (window && k < p - window + 1) continue;
                seen++;
                if (k < first_seen[s]) first_seen[s] = k;
            }
    const struct trace_count *c = dev_trace_counts(t);
    CHECK(c[OP_attn].macs == seen * H * D * 2, "rows %d len %d window %d: macs %g, not %g", rows, len, window,
          c[OP_attn].macs, seen * H * D * 2);
    double bytes = 10 * (len - first_seen[0] + 5 - first_seen[1]);
    CHECK(c[OP_attn].bytes == bytes, "rows %d len %d window %d: bytes %g, not %g", rows, len, window, c[OP_attn].bytes,
          bytes);
    dev_trace_close(t);
    d->ops->kv_close(d, kv);
    d->ops->free(d, x), d->ops->free(d, out);
    dev_close(d);
}

/* A thread that only asks for host_memory sees it whole, while another switches a trace; the thread sanitizer looks on.
 */
static void *ask(void *arg)
{
    struct dev *d = arg;
    for (int i = 0; i < 10000; i++)
        if (!dev_host_memory(d)) return d;
    return NULL;
}

static void test_asked_while_it_is_switched(void)
{
    struct dev *d = open_plain("ref", 1);
    const struct dev_ops *own = d->ops;
    pthread_t thread;
    void *wrong;
    pthread_create(&thread, NULL, ask, d);
    struct dev_trace *t = dev_trace_open(d, NULL, 0);
    for (int i = 0; i < 10000; i++) dev_trace_switch(t, i & 1);
    pthread_join(thread, &wrong);
    CHECK(!wrong, "the memory was not the host's once");
    dev_trace_close(t);
    CHECK(d->ops == own, "the device has not its own table back");
    dev_close(d);
}

/* ---- ceilings ---------------------------------------------------------------------------------------------------- */

struct together {
    pthread_barrier_t barrier;
    int count[8]; /* plain: each thread has its own */
};

static void meet_others(void *ctx, int thread)
{
    struct together *t = ctx;
    pthread_barrier_wait(&t->barrier); /* hangs unless all run at once */
    t->count[thread]++;
}

static void ceilings_of(const char *name, int threads)
{
    struct dev *d = open_plain(name, threads);
    struct ceilings c;
    if (d->ops->on_threads) {
        struct together t = {.count = {0}};
        pthread_barrier_init(&t.barrier, NULL, (unsigned)threads);
        for (int i = 0; i < 50; i++) d->ops->on_threads(d, meet_others, &t);
        for (int i = 0; i < threads; i++) CHECK(t.count[i] == 50, "%s: thread %d ran %d times", name, i, t.count[i]);
        pthread_barrier_destroy(&t.barrier);
    }
    CHECK(dev_ceilings(d, 16 << 20, &c) == 0, "%s: no ceilings", name);
    CHECK(c.read_bytes_per_s > 1e6 && c.int8_macs_per_s > 1e6 && c.int4_macs_per_s > 1e6 && c.f32_macs_per_s > 1e6,
          "%s: %g %g %g %g", name, c.read_bytes_per_s, c.int8_macs_per_s, c.int4_macs_per_s, c.f32_macs_per_s);
    CHECK(c.read_bytes > 0 && c.read_bytes <= 16 << 20, "%s: buffer of %zu", name, c.read_bytes);
    struct ceilings mean = ceilings_mean((const struct ceilings[]){c, {.read_bytes_per_s = 1e18}}, 2);
    CHECK(fabs(mean.read_bytes_per_s / 5e17 - 1) < 1e-3 && mean.f32_macs_per_s == c.f32_macs_per_s / 2, "mean");
    dev_close(d);
}

void test_trace(void)
{
    trace_linear("cpu");
    trace_linear("ref");
    for (int window = 0; window < 70; window += window ? 7 : 1)
        for (int len = 1; len < 80; len += 11)
            for (int rows = 1; rows <= len; rows += 5) trace_attn(rows, len, window);
    test_asked_while_it_is_switched();
    ceilings_of("cpu", 1);
    ceilings_of("cpu", 3);
    ceilings_of("cpu:portable", 2);
    ceilings_of("ref", 1);
}
