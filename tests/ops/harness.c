/* See harness.h. */
#include "tests/ops/harness.h"

#include "kernels/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int n_checks, n_failures;

void fail(const char *fmt, ...)
{
    if (++n_failures > 40) return;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
}

static uint64_t stream, place;

void random_seed(uint64_t seed)
{
    stream = seed;
    place = 0;
}

uint32_t random_u32(void)
{
    return (uint32_t)(rng_at(stream, place++) >> 32);
}

int random_below(int n)
{
    return (int)(random_u32() % (uint32_t)n);
}

float random_float(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)random_u32() * 0x1p-32f - 0.5f;
    return sum * 1.7f;
}

float *random_floats(size_t n, float scale)
{
    float *p = malloc((n ? n : 1) * sizeof *p);
    if (!p) abort();
    for (size_t i = 0; i < n; i++) p[i] = random_float() * scale;
    return p;
}

void *put(struct dev *d, const void *host, size_t bytes)
{
    void *p = d->ops->alloc(d, bytes);
    if (!p) abort();
    if (host) d->ops->upload(d, p, host, bytes);
    return p;
}

float *get(struct dev *d, const void *device, size_t n)
{
    float *host = malloc((n ? n : 1) * sizeof *host);
    if (!host) abort();
    d->ops->finish(d);
    d->ops->download(d, host, device, n * sizeof *host);
    return host;
}

void compare(const char *label, const float *got, const float *want, size_t n, struct tolerance tol)
{
    double error = 0, power = 0;
    n_checks++;
    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - (double)want[i]);
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (!(e <= tol.atol + tol.rtol * fabs((double)want[i]))) {
            fail("%s: [%zu] is %.9g, wanted %.9g", label, i, (double)got[i], (double)want[i]);
            return;
        }
        error += e * e;
        power += (double)want[i] * (double)want[i];
    }
    if (error > tol.nmse * power + 1e-12) fail("%s: nmse %.3g, limit %.3g", label, error / power, tol.nmse);
}

void compare_bits(const char *label, const float *got, const float *want, size_t n)
{
    n_checks++;
    for (size_t i = 0; i < n; i++)
        if (f32_bits(got[i]) != f32_bits(want[i])) {
            fail("%s: [%zu] is %.9g (%08x), wanted the bits of %.9g (%08x)", label, i, (double)got[i], f32_bits(got[i]),
                 (double)want[i], f32_bits(want[i]));
            return;
        }
}

void check_device(const char *label, struct dev *d)
{
    CHECK(d->ops->finish(d) == 0, "%s: the device failed in %s: %s", label, d->error.op, d->error.msg);
    dev_clear_error(d);
}

struct weight_case weight_random(enum dtype t, int rows, int cols, int group)
{
    int n_groups = t == DT_I4 ? (cols + group - 1) / group : t == DT_NF4 ? cols / 64 : 1;
    size_t n = (size_t)rows * cols, int4_bytes = t == DT_I4 ? (size_t)rows * n_groups * group / 2 : 0;
    bool scaled = t == DT_I8 || t == DT_I4 || t == DT_NF4;
    struct weight_case c = {.src = {.t = t,
                                    .rows = rows,
                                    .cols = cols,
                                    .group = t == DT_I4    ? group
                                             : t == DT_NF4 ? 64
                                                           : 0}};
    c.data = malloc(t == DT_I4 ? int4_bytes : n * 4);
    c.scale = malloc((size_t)rows * n_groups * 4);
    if (!c.data || !c.scale) abort();
    for (size_t i = 0; i < n && t != DT_I4; i++) {
        float x = random_float();
        if (t == DT_F32) ((float *)c.data)[i] = x;
        if (t == DT_BF16) ((uint16_t *)c.data)[i] = f32_to_bf16(x);
        if (t == DT_F16) ((uint16_t *)c.data)[i] = f32_to_f16(x);
        if (t == DT_I8) ((int8_t *)c.data)[i] = (int8_t)(random_below(8) ? random_below(255) - 127 : 127);
        if (t == DT_NF4) ((uint8_t *)c.data)[i / 2] = (uint8_t)random_below(256);
    }
    for (int r = 0; r < rows && t == DT_I4; r++)
        for (int k = 0; k < n_groups * group; k++) {
            uint8_t *byte = (uint8_t *)c.data + ((size_t)r * n_groups * group + (size_t)k) / 2;
            uint8_t v = (uint8_t)(k < cols ? random_below(16) : 8);
            *byte = (uint8_t)(k & 1 ? (*byte & 15) | v << 4 : v);
        }
    for (int i = 0; i < rows * n_groups; i++) {
        float s = 0.01f * (1 + (float)random_below(100));
        if (t == DT_I4)
            ((uint16_t *)c.scale)[i] = f32_to_f16(s);
        else
            ((float *)c.scale)[i] = s;
    }
    c.src.data = c.data;
    c.src.scale = scaled ? c.scale : NULL;
    return c;
}

void weight_case_free(struct weight_case *c)
{
    free(c->data);
    free(c->scale);
}

struct weight *weight_put(struct dev *d, const struct weight_case *c)
{
    struct weight *w = d->ops->weight_pack(d, &c->src, 1);
    if (!w) {
        printf("FAIL weight_pack gave NULL for %s %d x %d\n", dtype_name(c->src.t), c->src.rows, c->src.cols);
        exit(1);
    }
    return w;
}

const char *const *wanted_ops;

bool op_wanted(const char *op)
{
    const char *const *some = wanted_ops;
    if (!some || !*some) return true;
    while (*some && strcmp(*some, op)) some++;
    return *some;
}

int thin = 1, thin_from;

bool case_left_out(void)
{
    static int cases;
    return (cases++ + thin_from) % thin != 0;
}

bool with_bf16_x;

struct dev *open_checked(const char *name, int threads)
{
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = name, .threads = threads, .bf16_x = with_bf16_x}, why);
    if (!d) {
        printf("FAIL %s does not open: %s\n", name, why);
        exit(1);
    }
    return dev_checked(d);
}
