/* nf4: what bitsandbytes computed (tests/model/make_nf4_fixtures.py) is what we compute, and files that lie are refused
 * with the tensor's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/model/nf4.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_bnb.h"
#include "engine/model/weights_read.h"
#include "engine/model/weights_unify.h"
#include "kernels/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- against bitsandbytes ---- */

static struct tensor_source *fixture;
static char fixture_path[1024];

static const struct tensor *get(const char *name, const char *part)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s", name, part);
    const struct tensor *t = tensor_source_find(fixture, full);
    if (!t) fail_msg("%s has no %s", fixture_path, full);
    return t;
}

static float f32(const struct tensor *t, size_t i)
{
    float v;
    assert_int_equal(t->type, TENSOR_F32);
    assert_true((i + 1) * 4 <= t->bytes);
    memcpy(&v, (const char *)t->data + i * 4, 4);
    return v;
}

/* n floats, bit for bit; -0 is 0 (a zero block's scale is multiplied by a code of either sign) */
static void same_floats(const char *label, const float *got, const struct tensor *want, size_t n)
{
    assert_int_equal(want->bytes, n * 4);
    for (size_t i = 0; i < n; i++)
        if (f32_bits(got[i]) != f32_bits(f32(want, i)) && !(got[i] == 0 && f32(want, i) == 0))
            fail_msg("%s[%zu] is %.9g, bitsandbytes has %.9g", label, i, (double)got[i], (double)f32(want, i));
}

static struct weight_src source(const char *name)
{
    const struct tensor *t = get(name, ".w");
    return (struct weight_src){
        .t = tensor_float_type(t->type), .rows = (int)t->dims[0], .cols = (int)t->dims[1], .data = t->data};
}

static float *widened(const struct weight_src *s)
{
    size_t n = (size_t)s->rows * (size_t)s->cols;
    float *w = malloc(n * sizeof *w);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)s->data + i * (s->t == DT_F32 ? 4 : 2), 2);
        if (s->t == DT_F32)
            memcpy(&w[i], (const char *)s->data + i * 4, 4);
        else
            w[i] = s->t == DT_BF16 ? bf16_to_f32(h) : f16_to_f32(h);
    }
    return w;
}

static const char *const matrices[] = {"f32", "bf16", "odd", "edge"};
enum { MATRICES = sizeof matrices / sizeof *matrices };

static void test_codes_and_scales(void **state)
{
    for (size_t m = 0; m < MATRICES; m++) {
        struct weight_src s = source(matrices[m]);
        size_t n = (size_t)s.rows * (size_t)s.cols, blocks = nf4_blocks(n, NF4_GROUP);
        const struct tensor *codes = get(matrices[m], ".codes");
        float *w = widened(&s), *absmax = malloc(blocks * 4), *values = malloc(n * 4);
        uint8_t *q = malloc((n + 1) / 2);
        nf4_quantize(w, n, q, absmax);
        assert_int_equal(codes->bytes, (n + 1) / 2);
        assert_memory_equal(q, codes->data, codes->bytes);
        same_floats("absmax", absmax, get(matrices[m], ".absmax"), blocks);
        nf4_dequantize(q, absmax, NF4_GROUP, n, values);
        same_floats("values", values, get(matrices[m], ".values"), n);
        free(w), free(absmax), free(values), free(q);
    }
}

static void test_map(void **state)
{
    float map[NF4_MAP];
    nf4_dynamic_map(map);
    same_floats("map", map, get("map", ""), NF4_MAP);
}

static void test_nested(void **state)
{
    enum { N = 700 };
    const struct tensor *absmax = get("nest", ".absmax"), *want = get("nest", ".q"), *cpu = get("nest", ".q_cpu");
    const struct tensor *offset = get("nest", ".offset");
    float a[N], nested[3], map[NF4_MAP], restored[N];
    uint8_t q[N];
    assert_int_equal(absmax->bytes, sizeof a);
    memcpy(a, absmax->data, sizeof a);
    float got = nf4_nest(a, N, q, nested);
    same_floats("offset", &got, offset, 1);
    same_floats("nested absmax", nested, get("nest", ".nested_absmax"), 3);
    assert_memory_equal(q, want->data, N);
    nf4_dynamic_map(map);
    nf4_unnest(q, N, map, nested, NF4_NEST, got, restored);
    same_floats("restored", restored, get("nest", ".restored"), N);
    /* its CPU kernel rounds to one of 65536 places before it looks the nearest entry up */
    int differ = 0;
    for (int i = 0; i < N; i++) {
        int theirs = ((const uint8_t *)cpu->data)[i];
        if (theirs == q[i]) continue;
        int low = theirs < q[i] ? theirs : q[i];
        float x = (a[i] - got) / nested[i / NF4_NEST];
        assert_int_equal(abs(theirs - q[i]), 1);
        assert_true(fabsf(x - (map[low] + map[low + 1]) / 2) < 2.0f / 65536);
        differ++;
    }
    assert_true(differ < N / 50);
}

/* halfway between two entries it is the lower; symmetric, so that the offset is 0 */
static void test_nested_ties(void **state)
{
    float map[NF4_MAP], y[NF4_NEST] = {0}, nested;
    uint8_t q[NF4_NEST];
    nf4_dynamic_map(map);
    for (int i = 129; i < 250; i++) {
        float tie = (map[i] + map[i + 1]) / 2, above = nextafterf(tie, 2);
        y[0] = 1, y[1] = -1, y[2] = tie, y[3] = -tie, y[4] = above, y[5] = -above;
        assert_true(nf4_nest(y, NF4_NEST, q, &nested) == 0 && nested == 1);
        assert_int_equal(q[2], i);
        assert_int_equal(q[4], i + 1);
        assert_int_equal(q[0], 255);
        assert_int_equal(q[1], 0); /* there is no -1 */
        int low = 0;
        while (low < 255 && (map[low] + map[low + 1]) / 2 < -tie) low++;
        assert_int_equal(q[3], low);
    }
}

/* nested_offset of the file: the mean in f32, in an order of torch's; ours is rounded once */
static void test_whole_matrices(void **state)
{
    for (size_t m = 0; m < MATRICES; m++) {
        struct weight_src s = source(matrices[m]);
        struct nf4_matrix made;
        struct nf4_state want;
        struct err e = {0};
        const struct tensor *text = get(matrices[m], ".state"), *nested = get(matrices[m], ".nested_absmax");
        assert_int_equal(nf4_matrix_make(&s, 2, &made, &e), 0);
        assert_int_equal(nf4_state_parse(text->data, text->bytes, &want, &e), 0);
        assert_int_equal(want.block, NF4_GROUP);
        assert_int_equal(want.nested_block, NF4_NEST);
        assert_int_equal(want.dtype, s.t);
        assert_true(want.rows == s.rows && want.cols == s.cols);
        float ulp = nextafterf(want.offset, INFINITY) - want.offset;
        assert_true(fabsf(made.offset - want.offset) <= 2 * ulp);
        assert_true(fabsf(made.nested[0] - f32(nested, 0)) <= 4 * ulp);
        /* with the offset of the file, its text byte for byte */
        struct buf out = {0};
        nf4_state_print(&want, &out);
        assert_int_equal(out.len, text->bytes);
        assert_memory_equal(out.data, text->data, out.len);
        buf_free(&out);
        nf4_matrix_free(&made);
    }
}

static void check_text(float offset, const char *says)
{
    struct buf out = {0};
    struct nf4_state back;
    struct err e = {0};
    nf4_state_print(&(struct nf4_state){64, 256, offset, DT_F16, 3, 5}, &out);
    if (!strstr(out.data, says)) fail_msg("%s has no %s", out.data, says);
    assert_int_equal(nf4_state_parse(out.data, out.len, &back, &e), 0);
    assert_true(back.offset == offset && back.dtype == DT_F16 && back.rows == 3 && back.cols == 5);
    buf_free(&out);
}

static void test_state_text(void **state)
{
    check_text(0.5f, "\"nested_offset\": 0.5}");
    check_text(2.0f, "\"nested_offset\": 2.0}");
    check_text(20.0f, "\"nested_offset\": 20.0}");
    check_text(0.1f, "\"nested_offset\": 0.10000000149011612}");
    check_text(0x1p-20f, "\"nested_offset\": 9.5367431640625e-07}");
    check_text(0, "\"nested_offset\": 0.0}");
}

/* ---- files that are not right ---- */

/* a file of one matrix "m.weight" of 2 x 64 (two blocks), one tensor a row; text is written instead of bytes if given
 */
enum { T_WEIGHT, T_ABSMAX, T_NESTED, T_NESTED_MAP, T_MAP, T_STATE, T_COUNT };
struct part {
    const char *name, *type, *shape;
    size_t bytes;
    const char *text;
};

#define STATE(kind, block, dtype, shape)                                                                               \
    "{\"quant_type\": " kind ", \"blocksize\": " block ", \"dtype\": " dtype ", \"shape\": " shape
#define NESTED(block, type, offset)                                                                                    \
    ", \"nested_blocksize\": " block ", \"nested_dtype\": " type ", \"nested_offset\": " offset "}"
#define PLAIN STATE("\"nf4\"", "64", "\"bfloat16\"", "[2, 64]")
#define GOOD PLAIN NESTED("256", "\"float32\"", "0.25")

static const struct part good_parts[T_COUNT] = {
    {"m.weight", "U8", "[64,1]", 64, NULL},
    {"m.weight.absmax", "U8", "[2]", 2, NULL},
    {"m.weight.nested_absmax", "F32", "[1]", 4, NULL},
    {"m.weight.nested_quant_map", "F32", "[256]", 1024, NULL},
    {"m.weight.quant_map", "F32", "[16]", 64, NULL},
    {"m.weight.quant_state.bitsandbytes__nf4", "U8", NULL, 0, GOOD},
};

static void fill(int which, char *p, size_t n)
{
    float map[NF4_MAP], one = 0.5f;
    nf4_dynamic_map(map);
    for (size_t i = 0; i < n; i++) p[i] = (char)(i * 37);
    if (which == T_MAP) memcpy(p, nf4_code, n < sizeof nf4_code ? n : sizeof nf4_code);
    if (which == T_NESTED_MAP) memcpy(p, map, n < sizeof map ? n : sizeof map);
    if (which == T_NESTED) memcpy(p, &one, n < sizeof one ? n : sizeof one);
}

/* the file; the caller frees it */
static char *make(const struct part parts[T_COUNT], size_t *size)
{
    struct buf header = {0}, data = {0};
    buf_str(&header, "{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
    for (int i = 0; i < T_COUNT; i++) {
        const struct part *p = &parts[i];
        if (!p->name) continue;
        size_t at = data.len, n = p->text ? strlen(p->text) : p->bytes;
        char *bytes = malloc(n + 1);
        fill(i, bytes, n);
        if (p->text) memcpy(bytes, p->text, n);
        buf_append(&data, bytes, n);
        free(bytes);
        buf_printf(&header, ",\"%s\":{\"dtype\":\"%s\",\"shape\":", p->name, p->type);
        if (p->shape)
            buf_str(&header, p->shape);
        else
            buf_printf(&header, "[%zu]", n);
        buf_printf(&header, ",\"data_offsets\":[%zu,%zu]}", at, data.len);
    }
    buf_str(&header, "}");
    char *file = malloc(8 + header.len + data.len);
    for (int i = 0; i < 8; i++) file[i] = (char)(header.len >> (8 * i));
    memcpy(file + 8, header.data, header.len);
    memcpy(file + 8 + header.len, data.data, data.len);
    *size = 8 + header.len + data.len;
    buf_free(&header), buf_free(&data);
    return file;
}

/* Reads m.weight of the file; 0 and src, or the error.  The file and *owned are the caller's to free. */
static int read_parts(const struct part parts[T_COUNT], char **file, struct tensor_source **f, struct weight_src *src,
                      void **owned, struct err *e)
{
    size_t size;
    *file = make(parts, &size);
    *f = safetensors_parse(*file, size, e);
    if (!*f) fail_msg("the test's file: %s", e->msg);
    assert_true(bnb_is_quantized(*f, "m.weight"));
    return weights_matrix(*f, &(struct quant_config){0},
                          &(struct matrix_slot){.name = "m.weight", .rows = 2, .cols = 64}, src, owned, e);
}

static void refuse(int which, struct part part, int code, const char *says)
{
    struct part parts[T_COUNT];
    struct tensor_source *f;
    struct weight_src src;
    struct err e = {0};
    void *owned = NULL;
    char *file;
    memcpy(parts, good_parts, sizeof parts);
    parts[which] = part;
    int rc = read_parts(parts, &file, &f, &src, &owned, &e);
    if (rc != code || !strstr(e.msg, says) || !strstr(e.msg, "m.weight"))
        fail_msg("expected error %d naming m.weight with \"%s\", got %d \"%s\"", code, says, rc, e.msg);
    assert_null(owned);
    tensor_source_close(f);
    free(file);
}

static void refuse_text(const char *text, int code, const char *says)
{
    refuse(T_STATE, (struct part){good_parts[T_STATE].name, "U8", NULL, 0, text}, code, says);
}

static void test_refuses_states(void **state)
{
    static const char *const sizes[] = {
        "[2, 65]",          "[64, 2]",    "[2]",       "[2, 64, 1]", "[]", "{}",          "\"2\"",    "null",
        "[2, 1e9]",         "[0, 0]",     "[-2, -64]", "[2.5, 64]",  "7",  "[2, \"64\"]", "[1, 128]", "[2, 1e300]",
        "[4294967298, 64]", "[[2], [64]]"};
    static const char *const blocks[] = {"0", "-64", "63", "65", "64.5", "8192", "1e300", "\"64\"", "null", "[64]"};
    char text[512];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(text, sizeof text, STATE("\"nf4\"", "64", "\"bfloat16\"", "%s") "}", sizes[i]);
        refuse_text(text, ERR_INVALID, "shape is not");
    }
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        snprintf(text, sizeof text, STATE("\"nf4\"", "%s", "\"bfloat16\"", "[2, 64]") "}", blocks[i]);
        refuse_text(text, ERR_INVALID, "blocksize is not");
        snprintf(text, sizeof text, PLAIN NESTED("%s", "\"float32\"", "0.25"), blocks[i]);
        refuse_text(text, ERR_INVALID, "nested_blocksize is not");
    }
    refuse_text("", ERR_INVALID, "not a JSON object");
    refuse_text("[]", ERR_INVALID, "not a JSON object");
    refuse_text("{}", ERR_INVALID, "quant_type is missing");
    refuse_text(PLAIN, ERR_INVALID, "not a JSON object"); /* unfinished */
    refuse_text(GOOD " {}", ERR_INVALID, "not a JSON object");
    refuse_text(STATE("\"fp4\"", "64", "\"float16\"", "[2, 64]") "}", ERR_UNSUPPORTED, "is not nf4");
    refuse_text(STATE("4", "64", "\"float16\"", "[2, 64]") "}", ERR_INVALID, "quant_type is missing");
    refuse_text(STATE("\"nf4\"", "64", "\"int8\"", "[2, 64]") "}", ERR_INVALID, "dtype is not");
    refuse_text(STATE("\"nf4\"", "64", "null", "[2, 64]") "}", ERR_INVALID, "dtype is not");
    refuse_text(PLAIN NESTED("256", "\"float16\"", "0.25"), ERR_INVALID, "nested_dtype");
    refuse_text(PLAIN NESTED("256", "\"float32\"", "\"0.25\""), ERR_INVALID, "nested_offset");
    refuse_text(PLAIN NESTED("256", "\"float32\"", "1e300"), ERR_INVALID, "nested_offset");
    refuse_text(PLAIN NESTED("256", "\"float32\"", "NaN"), ERR_INVALID, "not a JSON object");
    refuse_text(PLAIN NESTED("256", "\"float32\"", "null"), ERR_INVALID, "nested_offset");
    /* it says that nothing is nested, but the scales are U8 */
    refuse_text(PLAIN "}", ERR_INVALID, "m.weight.absmax is not F32 [2]");
    /* other block sizes need other numbers of scales */
    refuse_text(STATE("\"nf4\"", "32", "\"float32\"", "[2, 64]") NESTED("256", "\"float32\"", "0"), ERR_INVALID,
                "absmax is not U8 [4]");
    char *deep = malloc(4001);
    memset(deep, '[', 4000), deep[4000] = 0;
    refuse_text(deep, ERR_INVALID, "not a JSON object");
    free(deep);
    char *endless = malloc(10001);
    memset(endless, ' ', 10000), endless[10000] = 0;
    refuse_text(endless, ERR_INVALID, "at most 4096 bytes");
    free(endless);
}

static void test_refuses_tensors(void **state)
{
    const struct part *g = good_parts, none = {0};
    refuse(T_WEIGHT, none, ERR_NOT_FOUND, "missing");
    refuse(T_WEIGHT, (struct part){g[0].name, "U8", "[63,1]", 63, NULL}, ERR_INVALID, "63 bytes");
    refuse(T_WEIGHT, (struct part){g[0].name, "U8", "[65,1]", 65, NULL}, ERR_INVALID, "65 bytes");
    refuse(T_WEIGHT, (struct part){g[0].name, "F32", "[64,1]", 256, NULL}, ERR_INVALID, "256 bytes");
    refuse(T_WEIGHT, (struct part){g[0].name, "U8", "[0,1]", 0, NULL}, ERR_INVALID, "0 bytes");
    refuse(T_ABSMAX, none, ERR_NOT_FOUND, "absmax is missing");
    refuse(T_ABSMAX, (struct part){g[1].name, "U8", "[1]", 1, NULL}, ERR_INVALID, "absmax is not U8 [2]");
    refuse(T_ABSMAX, (struct part){g[1].name, "U8", "[3]", 3, NULL}, ERR_INVALID, "absmax is not U8 [2]");
    refuse(T_ABSMAX, (struct part){g[1].name, "F32", "[2]", 8, NULL}, ERR_INVALID, "absmax is not U8 [2]");
    refuse(T_ABSMAX, (struct part){g[1].name, "U8", "[2,1]", 2, NULL}, ERR_INVALID, "absmax is not U8 [2]");
    refuse(T_NESTED, none, ERR_NOT_FOUND, "nested_absmax is missing");
    refuse(T_NESTED, (struct part){g[2].name, "F32", "[0]", 0, NULL}, ERR_INVALID, "nested_absmax is not F32 [1]");
    refuse(T_NESTED, (struct part){g[2].name, "F16", "[1]", 2, NULL}, ERR_INVALID, "nested_absmax is not F32 [1]");
    refuse(T_NESTED, (struct part){g[2].name, "F32", "[1]", 4, "\xff\xff\xff\x7f"}, ERR_INVALID, "not finite");
    refuse(T_NESTED_MAP, none, ERR_NOT_FOUND, "nested_quant_map is missing");
    refuse(T_NESTED_MAP, (struct part){g[3].name, "F32", "[255]", 1020, NULL}, ERR_INVALID, "nested_quant_map");
    refuse(T_MAP, none, ERR_NOT_FOUND, "quant_map is missing");
    refuse(T_MAP, (struct part){g[4].name, "F32", "[8]", 32, NULL}, ERR_INVALID, "quant_map is not F32 [16]");
    refuse(T_MAP, (struct part){g[4].name, "U8", "[64]", 64, NULL}, ERR_INVALID, "quant_map is not F32 [16]");
    char map[65];
    memset(map, 0x3f, 64), map[64] = 0;
    refuse(T_MAP, (struct part){g[4].name, "F32", "[16]", 64, map}, ERR_UNSUPPORTED, "element 0 is not nf4's");
    refuse(T_STATE, none, ERR_NOT_FOUND, "bitsandbytes__nf4 is missing");
    refuse(T_STATE, (struct part){g[5].name, "I8", NULL, 0, GOOD}, ERR_INVALID, "is not U8");
    refuse(T_STATE, (struct part){"m.weight.quant_state.bitsandbytes__fp4", "U8", NULL, 0, GOOD}, ERR_UNSUPPORTED,
           "fp4 is not supported");
}

/* ---- what is right in other ways ---- */

static void accept(const struct part parts[T_COUNT], enum dtype type, const float *first_scales)
{
    struct tensor_source *f;
    struct weight_src src;
    struct err e = {0};
    void *owned;
    char *file;
    if (read_parts(parts, &file, &f, &src, &owned, &e)) fail_msg("%s", e.msg);
    assert_int_equal(src.t, type);
    assert_true(src.rows == 2 && src.cols == 64 && src.group == (type == DT_NF4 ? 64 : 0));
    const uint8_t *codes = tensor_source_find(f, "m.weight")->data;
    for (int i = 0; i < 2 && type == DT_NF4; i++) assert_true(((const float *)src.scale)[i] == first_scales[i]);
    for (int i = 0; i < 128 && type == DT_F32; i++) {
        float want = nf4_code[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * first_scales[i / 64];
        assert_true(((const float *)src.data)[i] == want);
    }
    tensor_source_close(f);
    free(owned);
    free(file);
}

static void test_other_forms(void **state)
{
    struct part parts[T_COUNT];
    float map[NF4_MAP], scale[2];
    nf4_dynamic_map(map);
    /* absmax bytes are 0 and 37 (see fill) */
    for (int i = 0; i < 2; i++) {
        float product = map[i * 37] * 0.5f;
        scale[i] = product + 0.25f;
    }
    memcpy(parts, good_parts, sizeof parts);
    accept(parts, DT_NF4, scale);
    /* the bytes seen as another type (bnb_4bit_quant_storage) */
    parts[T_WEIGHT] = (struct part){"m.weight", "BF16", "[32,1]", 64, NULL};
    accept(parts, DT_NF4, scale);
    /* one block of 128 over both rows */
    parts[T_STATE].text = STATE("\"nf4\"", "128", "\"float16\"", "[2, 64]") NESTED("256", "\"float32\"", "0.25");
    parts[T_ABSMAX] = (struct part){"m.weight.absmax", "U8", "[1]", 1, NULL};
    accept(parts, DT_NF4, (float[]){scale[0], scale[0]});
    /* blocks of 32: no packed form, so values; the same scale twice for a row */
    parts[T_STATE].text = STATE("\"nf4\"", "32", "\"float16\"", "[2, 64]") NESTED("256", "\"float32\"", "0.25");
    parts[T_ABSMAX] = (struct part){"m.weight.absmax", "U8", "[4]", 4, "\x25\x25\x4a\x4a"};
    float rows[2] = {map[0x25] * 0.5f, map[0x4a] * 0.5f};
    accept(parts, DT_F32, (float[]){rows[0] + 0.25f, rows[1] + 0.25f});
    /* scales in f32, at an address that is no multiple of four */
    memcpy(parts, good_parts, sizeof parts);
    parts[T_STATE].text = PLAIN "}";
    parts[T_NESTED] = parts[T_NESTED_MAP] = (struct part){0};
    parts[T_ABSMAX] = (struct part){"m.weight.absmax", "F32", "[2]", 8, "aaaaBBBB"};
    memcpy(scale, "aaaaBBBB", 8);
    accept(parts, DT_NF4, scale);
}

/* Bytes of a good file changed at random: read or refused, never anything else (the sanitizers watch). */
static void test_changed_bytes(void **state)
{
    enum { ROUNDS = 20000 };
    size_t size;
    char *file = make(good_parts, &size), *bad = malloc(size);
    uint32_t seed = 12345;
    int read = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct err e = {0};
        void *owned = NULL;
        struct weight_src src;
        memcpy(bad, file, size);
        for (int k = 0; k <= i % 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            bad[(seed >> 8) % size] = seed & 1 ? (char)(seed >> 24) : "0123456789-.,:[]{}\"e"[(seed >> 24) % 19];
        }
        struct tensor_source *f = safetensors_parse(bad, size, &e);
        struct matrix_slot slot = {.name = "m.weight", .rows = 2, .cols = 64};
        int rc = f ? weights_matrix(f, &(struct quant_config){0}, &slot, &src, &owned, &e) : e.code;
        read += rc == 0;
        if (rc && !e.msg[0]) fail_msg("an error without a message");
        free(owned);
        tensor_source_close(f);
    }
    assert_true(read > ROUNDS / 10 && read < ROUNDS);
    free(bad);
    free(file);
}

static void test_not_finite(void **state)
{
    float w[3 * 64] = {0};
    struct weight_src src = {.t = DT_F32, .rows = 3, .cols = 64, .data = w}, out;
    struct err e = {0};
    w[2 * 64 + 5] = INFINITY;
    assert_int_equal(nf4_quantize_matrix(&src, 1, &out, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "[2, 5] is not finite"));
}

/* parts of different kinds that will be stacked */
static void test_unify(void **state)
{
    float w[128], scale[2] = {0.5f, 2};
    uint16_t half[64];
    uint8_t codes[64];
    for (int i = 0; i < 64; i++) half[i] = f32_to_bf16((float)i), codes[i] = (uint8_t)(i * 5);
    struct weight_src part[2] = {
        {.t = DT_NF4, .rows = 2, .cols = 64, .group = 64, .data = codes, .scale = scale},
        {.t = DT_BF16, .rows = 1, .cols = 64, .data = half},
    };
    void *owned[2] = {NULL, NULL};
    struct err e = {0};
    nf4_dequantize(codes, scale, 64, 128, w);
    assert_int_equal(weights_unify(part, 1, false, owned, &e), 0);
    assert_int_equal(part[0].t, DT_NF4);
    assert_int_equal(weights_unify(part, 2, false, owned, &e), 0);
    assert_true(part[0].t == DT_F32 && part[1].t == DT_F32 && part[0].group == 0 && !part[0].scale);
    assert_memory_equal(part[0].data, w, sizeof w);
    for (int i = 0; i < 64; i++) assert_true(((const float *)part[1].data)[i] == (float)i);
    free(owned[0]), free(owned[1]);
}

int main(int argc, char **argv)
{
    struct err e;
    snprintf(fixture_path, sizeof fixture_path, "%s/../nf4/matrices.safetensors", argc > 1 ? argv[1] : ".");
    if (!(fixture = safetensors_open(fixture_path, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes_and_scales), cmocka_unit_test(test_map),
                                       cmocka_unit_test(test_nested),           cmocka_unit_test(test_nested_ties),
                                       cmocka_unit_test(test_whole_matrices),   cmocka_unit_test(test_state_text),
                                       cmocka_unit_test(test_refuses_states),   cmocka_unit_test(test_refuses_tensors),
                                       cmocka_unit_test(test_other_forms),      cmocka_unit_test(test_changed_bytes),
                                       cmocka_unit_test(test_not_finite),       cmocka_unit_test(test_unify)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tensor_source_close(fixture);
    return failed;
}
