/* See harness.h. */
#include "tests/ops/harness.h"

#include "kernels/block.h"
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

static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t odd3[8] = {-128, 127, 0, 5, -7, 100, 3, -1};
static const int8_t odd5[32] = {5, -128, 127, 9, -3, 77, 1};

const struct block_kind block_kinds[BLOCK_ALL] = {
    {"q8_0", 8, 32, 32, NULL, -128, 0, 0, 0, false, true},
    {"q4_k", 4, 32, 256, NULL, 0, 0, 63, 63, true, true},
    {"q6_k", 6, 16, 256, NULL, -32, -128, 127, 0, false, true},
    {"q5_k", 5, 32, 256, NULL, 0, 0, 63, 63, true, true},
    {"q5_0", 5, 32, 32, NULL, -16, 0, 0, 0, false, true},
    {"q4_1", 4, 32, 32, NULL, 0, 0, 0, 0, true, true},
    {"q3_k", 3, 16, 256, NULL, -4, -32, 31, 0, false, true},
    {"q2_k", 2, 16, 256, NULL, 0, 0, 15, 15, true, true},
    {"iq4_xs", 4, 32, 256, iq4, 0, -32, 31, 0, false, true},
    {"mxfp4", 4, 32, 32, e2m1, 0, 0, 0, 0, false, false},
    {"awq", 4, 128, 128, NULL, 0, 0, 0, 15, true, true},
    {"gptq 8", 8, 64, 64, NULL, -128, 0, 0, 0, true, false},
    {"odd 3", 3, 64, 192, odd3, 0, -9, 9, 255, true, false},
    {"odd 5", 5, 128, 1024, odd5, 0, 0, 0, 7, true, false},
    {"gptq order", 4, 32, 32, NULL, 0, 0, 0, 15, true, true, true},
    {"order 8", 8, 128, 128, NULL, -128, 0, 0, 0, false, false, true},
};

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

static void fill_order(uint32_t *order, int cols)
{
    int step = cols * 5 / 8 + 1;
    while (common_divisor(step, cols) != 1) step++;
    for (int k = 0; k < cols; k++) order[k] = (uint32_t)(((int64_t)k * step + cols / 3) % cols);
}

static struct weight_case block_random(int rows, int cols, const struct block_kind *kind)
{
    int codes = 1 << kind->bits;
    size_t n = (size_t)rows * (size_t)cols, groups = (size_t)rows * (size_t)((cols + kind->group - 1) / kind->group);
    size_t supers = (size_t)rows * (size_t)((cols + kind->super - 1) / kind->super);
    bool sub = kind->sub_from || kind->sub_to;
    struct weight_case c = {.data = malloc(n), .block = malloc(sizeof *c.block)};
    float *super_scale = malloc((supers * 2 + (size_t)cols) * sizeof *super_scale + groups * 2 + (size_t)codes);
    if (!c.data || !c.block || !super_scale) abort();
    float *super_min = super_scale + supers;
    uint32_t *order = (uint32_t *)(super_min + supers);
    int8_t *sub_scale = (int8_t *)(order + cols), *value = sub_scale + groups;
    uint8_t *sub_min = (uint8_t *)value + codes;
    c.scale = super_scale;
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)c.data)[i] = (uint8_t)(random_below(9) ? random_below(codes) : codes - 1);
    for (int i = 0; i < codes; i++) value[i] = (int8_t)(kind->value ? kind->value[i] : i + kind->zero);
    for (size_t i = 0; i < groups; i++) {
        sub_scale[i] = (int8_t)(kind->sub_from + random_below(kind->sub_to - kind->sub_from + 1));
        sub_min[i] = (uint8_t)random_below(kind->min_most + 1);
    }
    for (size_t i = 0; i < 2 * supers; i++) {
        float x = 0.01f * random_float();
        if (!kind->min && !kind->half) x = ldexpf(1, random_below(12) - 9);
        super_scale[i] = kind->half ? f16_to_f32(f32_to_f16(x)) : x;
    }
    fill_order(order, cols);
    *c.block = (struct weight_block){.bits = kind->bits,
                                     .value = value,
                                     .group = kind->group,
                                     .super = kind->super,
                                     .sub_scale = sub ? sub_scale : NULL,
                                     .super_scale = super_scale,
                                     .sub_min = kind->min_most ? sub_min : NULL,
                                     .super_min = kind->min ? super_min : NULL,
                                     .order = kind->ordered ? order : NULL};
    c.src = (struct weight_src){.t = DT_BLOCK, .rows = rows, .cols = cols, .data = c.data, .block = c.block};
    return c;
}

struct weight_case weight_random(enum dtype t, int rows, int cols, int group)
{
    if (t == DT_BLOCK) return block_random(rows, cols, &block_kinds[group]);
    int n_groups = t == DT_I4 || (t == DT_F8 && group) ? (cols + group - 1) / group : t == DT_NF4 ? cols / 64 : 1;
    size_t n = (size_t)rows * cols, int4_bytes = t == DT_I4 ? (size_t)rows * n_groups * group / 2 : 0;
    bool scaled = t == DT_I8 || t == DT_I4 || t == DT_NF4 || t == DT_F8;
    struct weight_case c = {.src = {.t = t,
                                    .rows = rows,
                                    .cols = cols,
                                    .group = t == DT_I4 || t == DT_F8 ? group
                                             : t == DT_NF4            ? 64
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
        if (t == DT_F8) {
            int code = random_below(127); /* no NaN */
            ((uint8_t *)c.data)[i] = (uint8_t)(random_below(2) ? code | 0x80 : code);
        }
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
            ((float *)c.scale)[i] = t == DT_F8 ? s / 64 : s;
    }
    c.src.data = c.data;
    c.src.scale = scaled ? c.scale : NULL;
    return c;
}

void weight_case_free(struct weight_case *c)
{
    free(c->data);
    free(c->scale);
    free(c->block);
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

double block_largest(const struct weight_src *s)
{
    float *row = random_floats((size_t)s->cols, 0);
    double most = 0;
    for (int r = 0; r < s->rows; r++) {
        block_row(s, r, row);
        for (int k = 0; k < s->cols; k++) most = fmax(most, fabs((double)row[k]));
    }
    free(row);
    return most;
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

bool own_bf16_sums(const char *level)
{
    return with_bf16_x && strcmp(level, "cpu:amx") == 0;
}

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
