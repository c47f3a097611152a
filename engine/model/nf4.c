#include "engine/model/nf4.h"

#include "engine/base/mem.h"
#include "kernels/ops.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

/* lower limit of a scale used as a divisor: below it 1 / x would overflow */
static const float ABSMAX_MIN = 1e-38f;

static float max_abs(const float *x, size_t n)
{
    float m = 0;
    for (size_t i = 0; i < n; i++) m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    return m;
}

/* the code of each x: the number of thresholds below it; x within -1 .. 1 */
static void codes_of(const float x[NF4_GROUP], int32_t q[NF4_GROUP])
{
    memset(q, 0, NF4_GROUP * sizeof *q);
    for (int t = 0; t < 15; t++) {
        float threshold = (nf4_code[t] + nf4_code[t + 1]) / 2;
        for (int i = 0; i < NF4_GROUP; i++) q[i] += threshold < x[i];
    }
}

void nf4_quantize(const float *w, size_t n, uint8_t *codes, float *absmax)
{
    float x[NF4_GROUP] = {0};
    int32_t q[NF4_GROUP];
    for (size_t at = 0; at < n; at += NF4_GROUP, w += NF4_GROUP, codes += NF4_GROUP / 2) {
        size_t len = n - at < NF4_GROUP ? n - at : NF4_GROUP;
        float m = max_abs(w, len), divisor = m > ABSMAX_MIN ? m : ABSMAX_MIN, inv = 1.0f / divisor;
        if (len == NF4_GROUP) {
            for (int i = 0; i < NF4_GROUP; i++) x[i] = w[i] * inv;
        } else {
            m = divisor;
            memset(x, 0, sizeof x); /* an odd array's last byte has a second nibble that means 0 */
            for (size_t i = 0; i < len; i++) x[i] = w[i] / divisor;
        }
        codes_of(x, q);
        *absmax++ = m;
        for (size_t i = 0; i < len; i += 2) codes[i / 2] = (uint8_t)(q[i] << 4 | q[i + 1]);
    }
}

void nf4_dequantize(const uint8_t *codes, const float *absmax, size_t block, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) out[i] = nf4_code[i & 1 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * absmax[i / block];
}

/* ---- their scales ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Seven decades of 1, 2, 4 ... 64 values each, of either sign, and 0 and 1.  The values are the midpoints of evenly
 * spaced boundaries from 0.1 to 1, computed from the nearer end with one rounding, as torch.linspace does. */
void nf4_dynamic_map(float map[NF4_MAP])
{
    static const float decade[7] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
    int n = 0;
    map[n++] = 0;
    map[n++] = 1;
    for (int d = 0; d < 7; d++) {
        int steps = 1 << d;
        float step = (1.0f - 0.1f) / (float)steps, low = 0.1f;
        for (int i = 1; i <= steps; i++) {
            float high = i < (steps + 1) / 2 ? fmaf(step, (float)i, 0.1f) : fmaf(-step, (float)(steps - i), 1.0f);
            float v = decade[d] * ((low + high) / 2);
            map[n++] = v;
            map[n++] = -v;
            low = high;
        }
    }
    qsort(map, NF4_MAP, sizeof *map, by_value);
}

/* the index of the nearest value of the map; a tie goes to the lower */
static uint8_t nearest(const float map[NF4_MAP], float x)
{
    int low = 0, high = NF4_MAP - 1; /* the result is in [low, high] */
    while (low < high) {
        int mid = (low + high) / 2;
        if ((map[mid] + map[mid + 1]) / 2 < x)
            low = mid + 1;
        else
            high = mid;
    }
    return (uint8_t)low;
}

float nf4_nest(const float *absmax, size_t n, uint8_t *q, float *nested)
{
    float map[NF4_MAP], y[NF4_NEST];
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += absmax[i];
    float offset = (float)(sum / (double)n);
    nf4_dynamic_map(map);
    for (size_t at = 0; at < n; at += NF4_NEST) {
        size_t len = n - at < NF4_NEST ? n - at : NF4_NEST;
        for (size_t i = 0; i < len; i++) y[i] = absmax[at + i] - offset;
        float m = max_abs(y, len), inv = 1.0f / (m > ABSMAX_MIN ? m : ABSMAX_MIN);
        *nested++ = m;
        for (size_t i = 0; i < len; i++) q[at + i] = nearest(map, y[i] * inv);
    }
    return offset;
}

void nf4_unnest(const uint8_t *q, size_t n, const float map[NF4_MAP], const float *nested, size_t block, float offset,
                float *absmax)
{
    for (size_t i = 0; i < n; i++) absmax[i] = map[q[i]] * nested[i / block] + offset;
}

/* ---- a matrix, on several threads ---- */

enum { CHUNK = 1024 * NF4_GROUP }; /* weights per task of a thread */

struct job {
    const struct weight_src *src;
    size_t n;
    uint8_t *codes;
    float *absmax;
    _Atomic size_t next;
    _Atomic size_t bad; /* index + 1 of a weight that is not finite; 0: none */
};

static void *work(void *arg)
{
    struct job *j = arg;
    const char *data = j->src->data;
    float *w = mem_array(CHUNK, sizeof *w);
    size_t at;
    while ((at = atomic_fetch_add(&j->next, CHUNK)) < j->n) {
        size_t len = j->n - at < CHUNK ? j->n - at : CHUNK, finite = 0;
        for (size_t i = 0; i < len; i++) {
            uint16_t h = 0;
            if (j->src->t == DT_F32)
                memcpy(&w[i], data + (at + i) * 4, 4);
            else
                memcpy(&h, data + (at + i) * 2, 2), w[i] = j->src->t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
        }
        while (finite < len && isfinite(w[finite])) finite++;
        if (finite < len) {
            atomic_store(&j->bad, at + finite + 1);
            break;
        }
        nf4_quantize(w, len, j->codes + at / 2, j->absmax + at / NF4_GROUP);
    }
    free(w);
    return NULL;
}

static int quantize_all(struct job *j, int threads, struct err *e)
{
    pthread_t helper[64];
    int n = 0;
    if (j->n < 4 * CHUNK) threads = 1;
    for (; n < threads - 1 && n < 64; n++)
        if (pthread_create(&helper[n], NULL, work, j)) break;
    work(j);
    for (int i = 0; i < n; i++) pthread_join(helper[i], NULL);
    if (!j->bad) return 0;
    size_t bad = j->bad - 1, cols = (size_t)j->src->cols;
    return err_set(e, ERR_INVALID, "weight [%zu, %zu] is not finite", bad / cols, bad % cols);
}

int nf4_matrix_make(const struct weight_src *src, int threads, struct nf4_matrix *out, struct err *e)
{
    size_t n = (size_t)src->rows * (size_t)src->cols, blocks = nf4_blocks(n, NF4_GROUP);
    *out = (struct nf4_matrix){.rows = src->rows, .cols = src->cols, .blocks = blocks};
    float *absmax = mem_try_alloc(blocks * sizeof *absmax);
    out->codes = mem_try_alloc((n + 1) / 2);
    out->q = mem_try_alloc(blocks);
    out->nested = mem_try_alloc(nf4_blocks(blocks, NF4_NEST) * sizeof *out->nested);
    struct job j = {.src = src, .n = n, .codes = out->codes, .absmax = absmax};
    int rc = 0;
    if (!absmax || !out->codes || !out->q || !out->nested)
        rc = err_set(e, ERR_NOMEM, "no memory to quantise a matrix of %d x %d", src->rows, src->cols);
    if (!rc) rc = quantize_all(&j, threads, e);
    if (!rc) out->offset = nf4_nest(absmax, blocks, out->q, out->nested);
    free(absmax);
    if (rc) nf4_matrix_free(out);
    return rc;
}

void nf4_matrix_free(struct nf4_matrix *m)
{
    free(m->codes);
    free(m->q);
    free(m->nested);
    *m = (struct nf4_matrix){0};
}

int nf4_quantize_matrix(const struct weight_src *src, int threads, struct weight_src *out, struct err *e)
{
    struct nf4_matrix m;
    float map[NF4_MAP];
    size_t n = (size_t)src->rows * (size_t)src->cols;
    int rc = nf4_matrix_make(src, threads, &m, e);
    if (rc) return rc;
    bool packed = src->cols % NF4_GROUP == 0;
    float *absmax = mem_try_alloc(m.blocks * sizeof *absmax), *w = packed ? NULL : mem_try_alloc(n * sizeof *w);
    if (!absmax || (!packed && !w)) {
        rc = err_set(e, ERR_NOMEM, "no memory to quantise a matrix of %d x %d", src->rows, src->cols);
        free(absmax);
        free(w);
    } else {
        nf4_dynamic_map(map);
        nf4_unnest(m.q, m.blocks, map, m.nested, NF4_NEST, m.offset, absmax);
        *out = (struct weight_src){.t = DT_NF4, .rows = src->rows, .cols = src->cols, .group = NF4_GROUP};
        if (packed) {
            out->data = m.codes, out->scale = absmax;
            m.codes = NULL;
        } else {
            nf4_dequantize(m.codes, absmax, NF4_GROUP, n, w);
            free(absmax);
            out->t = DT_F32, out->group = 0, out->data = w;
        }
    }
    nf4_matrix_free(&m);
    return rc;
}

/* ---- quant_state ---- */

enum { STATE_LIMIT = 4096 };

static const struct {
    const char *name;
    enum dtype t;
} torch_types[] = {{"float32", DT_F32}, {"bfloat16", DT_BF16}, {"float16", DT_F16}};

static bool block_size(const cJSON *v, int *out)
{
    static const int sizes[] = {32, 64, 128, 256, 512, 1024, 2048, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (cJSON_IsNumber(v) && v->valuedouble == sizes[i]) return *out = sizes[i], true;
    return false;
}

static bool size_of(const cJSON *v, int64_t *out)
{
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 1 && v->valuedouble <= INT32_MAX)) return false;
    *out = (int64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

static int read_nested(const cJSON *j, struct nf4_state *s, struct err *e)
{
    const cJSON *block = cJSON_GetObjectItemCaseSensitive(j, "nested_blocksize");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(j, "nested_dtype");
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(j, "nested_offset");
    if (!block && !type && !offset) return 0;
    if (!block_size(block, &s->nested_block))
        return err_set(e, ERR_INVALID, "nested_blocksize is not a power of two from 32 to 4096");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "float32"))
        return err_set(e, ERR_INVALID, "nested_dtype is not \"float32\"");
    if (!cJSON_IsNumber(offset) || !isfinite((float)offset->valuedouble))
        return err_set(e, ERR_INVALID, "nested_offset is not a number of float32's range");
    s->offset = (float)offset->valuedouble;
    return 0;
}

static int read_state(const cJSON *j, struct nf4_state *s, struct err *e)
{
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(j, "quant_type");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(j, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(j, "shape");
    if (!cJSON_IsObject(j)) return err_set(e, ERR_INVALID, "it is not a JSON object");
    if (!cJSON_IsString(kind)) return err_set(e, ERR_INVALID, "quant_type is missing");
    if (strcmp(kind->valuestring, "nf4"))
        return err_set(e, ERR_UNSUPPORTED, "quant_type \"%.16s\" is not nf4", kind->valuestring);
    if (!block_size(cJSON_GetObjectItemCaseSensitive(j, "blocksize"), &s->block))
        return err_set(e, ERR_INVALID, "blocksize is not a power of two from 32 to 4096");
    for (size_t i = 0; i < sizeof torch_types / sizeof *torch_types && cJSON_IsString(type); i++)
        if (strcmp(type->valuestring, torch_types[i].name) == 0) s->dtype = torch_types[i].t;
    if (s->dtype == DT_NONE) return err_set(e, ERR_INVALID, "dtype is not float32, bfloat16 or float16");
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != 2 || !size_of(shape->child, &s->rows) ||
        !size_of(shape->child->next, &s->cols))
        return err_set(e, ERR_INVALID, "shape is not two sizes");
    return read_nested(j, s, e);
}

int nf4_state_parse(const char *text, size_t n, struct nf4_state *s, struct err *e)
{
    *s = (struct nf4_state){0};
    if (n > STATE_LIMIT || memchr(text, 0, n))
        return err_set(e, ERR_INVALID, "it is not a JSON text of at most %d bytes", STATE_LIMIT);
    char *copy = mem_strndup(text, n);
    cJSON *j = cJSON_ParseWithOpts(copy, NULL, 1);
    int rc = read_state(j, s, e);
    cJSON_Delete(j);
    free(copy);
    return rc;
}

/* the shortest decimal that reads back as v, formatted as by Python's repr */
static void print_real(double v, struct buf *out)
{
    char s[40];
    double size =
        fabs(v); /* repr writes no exponent from 1e-4 to 1e16, %g only with digits enough for the integer part */
    for (int digits = size >= 1 && size < 1e16 ? (int)log10(size) + 1 : 1; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (strtod(s, NULL) == v) break;
    }
    buf_str(out, s);
    if (!strpbrk(s, ".en")) buf_str(out, ".0");
}

void nf4_state_print(const struct nf4_state *s, struct buf *out)
{
    const char *type = "float32";
    for (size_t i = 0; i < sizeof torch_types / sizeof *torch_types; i++)
        if (torch_types[i].t == s->dtype) type = torch_types[i].name;
    buf_printf(out, "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%lld, %lld]", s->block,
               type, (long long)s->rows, (long long)s->cols);
    if (s->nested_block) {
        buf_printf(out,
                   ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": ", s->nested_block);
        print_real((double)s->offset, out);
    }
    buf_str(out, "}");
}
