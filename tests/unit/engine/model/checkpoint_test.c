/* Matrices as other quantisers store them (tests/model/make_checkpoint_fixtures.py): the values are theirs, bit for
 * bit, and files that lie are refused with the tensor's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/model/safetensors.h"
#include "engine/model/stored_ints.h"
#include "engine/model/weights_read.h"
#include "engine/model/weights_unify.h"
#include "kernels/block.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fixture_path[1024];
static struct tensor_source *fixture;

static const struct quant_config gptq = {QUANT_GPTQ, "gptq", true, {0}}, gptq_v2 = {QUANT_GPTQ, "gptq", false, {0}},
                                 awq = {QUANT_AWQ, "awq", false, {0}},
                                 compressed = {QUANT_COMPRESSED, "compressed-tensors", false, {0}},
                                 bnb = {QUANT_BNB, "int8", false, {0}}, fp8 = {QUANT_FP8, "fp8", false, {16, 32}};

static const struct {
    const char *name;
    const struct quant_config *config;
    enum dtype type;
} cases[] = {
    {"gptq4", &gptq, DT_I4},
    {"gptq4-zeros", &gptq, DT_BLOCK},
    {"gptq4-v2", &gptq_v2, DT_BLOCK},
    {"gptq4-order", &gptq, DT_BLOCK},
    {"gptq8", &gptq, DT_BLOCK},
    {"gptq8-groups", &gptq, DT_BLOCK},
    {"gptq2", &gptq, DT_BLOCK},
    {"awq", &awq, DT_BLOCK},
    {"awq-128", &awq, DT_BLOCK},
    {"pack4", &compressed, DT_I4},
    {"pack4-zeros", &compressed, DT_BLOCK},
    {"pack4-order", &compressed, DT_BLOCK},
    {"pack3", &compressed, DT_BLOCK},
    {"pack8", &compressed, DT_BLOCK},
    {"int8", &compressed, DT_I8},
    {"int8-zeros", &compressed, DT_BLOCK},
    {"bnb8", &bnb, DT_I8},
    {"fp8", &fp8, DT_F8},
    {"fp8-channel", &fp8, DT_F8},
    {"fp8-block", &fp8, DT_F8},
};
enum { CASES = sizeof cases / sizeof *cases };

/* Weight [r][k] of a canonical matrix (kernels/ops.h). */
static float value(const struct weight_src *s, int r, int k)
{
    size_t i = (size_t)r * (size_t)s->cols + (size_t)k;
    if (s->t == DT_F32) return ((const float *)s->data)[i];
    if (s->t == DT_I8) return (float)((const int8_t *)s->data)[i] * ((const float *)s->scale)[r];
    if (s->t == DT_BLOCK) {
        float row[256];
        assert_true(s->cols <= 256 && !block_error(s) && block_codes_ok(s));
        return block_row(s, r, row), row[k];
    }
    size_t groups = s->group ? (size_t)(s->cols + s->group - 1) / (size_t)s->group : 1;
    if (s->t == DT_F8)
        return e4m3_to_f32(((const uint8_t *)s->data)[i]) *
               ((const float *)s->scale)[(size_t)r * groups + (size_t)(s->group ? k / s->group : 0)];
    if (s->t != DT_I4) return NAN;
    size_t at = (size_t)r * groups * (size_t)s->group + (size_t)k;
    int byte = ((const uint8_t *)s->data)[at / 2], nibble = at % 2 ? byte >> 4 : byte & 15;
    return (float)(nibble - 8) * f16_to_f32(((const uint16_t *)s->scale)[(size_t)r * groups + (size_t)(k / s->group)]);
}

static struct matrix_slot slot_of(const char *name, const struct tensor *values)
{
    struct matrix_slot slot = {.rows = (int)values->dims[0], .cols = (int)values->dims[1]};
    snprintf(slot.name, sizeof slot.name, "%s.weight", name);
    return slot;
}

static const struct tensor *values_of(const char *name)
{
    char full[64];
    snprintf(full, sizeof full, "%s.values", name);
    const struct tensor *t = tensor_source_find(fixture, full);
    if (!t) fail_msg("%s has no %s", fixture_path, full);
    return t;
}

static void test_values(void **state)
{
    for (int c = 0; c < CASES; c++) {
        const struct tensor *want = values_of(cases[c].name);
        struct matrix_slot slot = slot_of(cases[c].name, want);
        struct weight_src src;
        struct err e = {0};
        void *owned;
        if (weights_matrix(fixture, cases[c].config, &slot, &src, &owned, &e)) fail_msg("%s: %s", cases[c].name, e.msg);
        if (src.t != cases[c].type)
            fail_msg("%s: %s, not %s", cases[c].name, dtype_name(src.t), dtype_name(cases[c].type));
        assert_int_equal(src.rows, slot.rows);
        assert_int_equal(src.cols, slot.cols);
        for (int r = 0; r < slot.rows; r++)
            for (int k = 0; k < slot.cols; k++) {
                float got = value(&src, r, k), expected = tensor_element(want, (size_t)(r * slot.cols + k));
                if (!(got == expected))
                    fail_msg("%s [%d, %d] is %.9g, not %.9g", cases[c].name, r, k, (double)got, (double)expected);
            }
        free(owned);
    }
}

/* ---- a copy of one case with a tensor changed ----------------------------------------------------------------------
 */

struct change {
    const char *suffix; /* of the tensor that changes */
    const char *type;   /* its type from now on; NULL: as it is */
    const char *shape;  /* likewise; "": the tensor is gone */
    uint8_t fill;       /* every byte of it; 0: as it is */
};

static size_t elements(const char *shape)
{
    size_t n = 1;
    for (const char *p = strpbrk(shape, "0123456789"); p; p = strpbrk(p, "0123456789"))
        n *= strtoul(p, (char **)&p, 10);
    return n;
}

/* The case's file as bytes; the caller frees it. */
static char *changed(const char *name, const struct change *ch, size_t *size)
{
    struct buf head = {0}, data = {0};
    size_t prefix = strlen(name);
    for (size_t i = 0; i < tensor_source_count(fixture); i++) {
        const struct tensor *t = tensor_source_at(fixture, i);
        if (strncmp(t->name, name, prefix) || t->name[prefix] != '.' || strstr(t->name, ".values")) continue;
        bool this = strcmp(t->name + prefix, ch->suffix) == 0;
        if (this && ch->shape && !*ch->shape) continue;
        char shape[64];
        snprintf(shape, sizeof shape, t->n_dims == 2 ? "[%lld,%lld]" : "[%lld]", (long long)t->dims[0],
                 (long long)t->dims[1]);
        const char *type = this && ch->type ? ch->type : tensor_type_name(t->type),
                   *now = this && ch->shape ? ch->shape : shape;
        size_t width = strstr(type, "8")    ? 1
                       : strstr(type, "16") ? 2
                       : strstr(type, "32") ? 4
                                            : 8,
               bytes = elements(now) * width;
        buf_printf(&head, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", head.len ? ',' : '{',
                   t->name, type, now, data.len, data.len + bytes);
        for (size_t b = 0; b < bytes; b++) {
            char byte = this && ch->fill ? (char)ch->fill : b < t->bytes ? ((const char *)t->data)[b] : 0;
            buf_append(&data, &byte, 1);
        }
    }
    buf_append(&head, "}", 1);
    while (head.len % 8) buf_append(&head, " ", 1);
    *size = 8 + head.len + data.len;
    char *file = malloc(*size);
    for (int i = 0; i < 8; i++) file[i] = (char)(head.len >> 8 * i);
    memcpy(file + 8, head.data, head.len);
    memcpy(file + 8 + head.len, data.data, data.len);
    buf_free(&head);
    buf_free(&data);
    return file;
}

static void refuse(const char *name, const struct quant_config *config, struct change ch, int code, const char *says)
{
    struct matrix_slot slot = slot_of(name, values_of(name));
    struct weight_src src;
    struct err e = {0};
    void *owned = NULL;
    size_t size;
    char *file = changed(name, &ch, &size);
    struct tensor_source *f = safetensors_parse(file, size, &e);
    if (!f) fail_msg("%s%s: %s", name, ch.suffix, e.msg);
    int rc = weights_matrix(f, config, &slot, &src, &owned, &e);
    if (rc != code || !strstr(e.msg, says))
        fail_msg("%s%s: %d, \"%s\"; expected %d, \"%s\"", name, ch.suffix, rc, e.msg, code, says);
    free(owned);
    tensor_source_close(f);
    free(file);
}

static void test_refuses_gptq(void **state)
{
    refuse("gptq4", &compressed, (struct change){""}, ERR_INVALID, "which config.json does not name");
    refuse("gptq4", &gptq, (struct change){".qweight", NULL, "[11,24]"}, ERR_INVALID, "not codes of 2, 4 or 8 bits");
    refuse("gptq4", &gptq, (struct change){".qweight", NULL, "[9,24]"}, ERR_UNSUPPORTED, "not codes of 2, 4 or 8 bits");
    refuse("gptq4", &gptq, (struct change){".qweight", NULL, "[12,23]"}, ERR_INVALID,
           "gptq4.qweight: shape is not [12, 24]");
    refuse("gptq4", &gptq, (struct change){".qweight", "F32"}, ERR_INVALID, "gptq4.qweight: type F32, not I32");
    refuse("gptq4", &gptq, (struct change){".qweight", NULL, "[288]"}, ERR_INVALID, "not two dimensions");
    refuse("gptq4", &gptq, (struct change){".scales", NULL, ""}, ERR_NOT_FOUND, "needs floats X.scales");
    refuse("gptq4", &gptq, (struct change){".scales", NULL, "[3,25]"}, ERR_INVALID,
           "gptq4.scales: shape is not [3, 24]");
    refuse("gptq4", &gptq, (struct change){".scales", NULL, "[97,24]"}, ERR_INVALID, "needs floats X.scales");
    refuse("gptq4", &gptq, (struct change){".scales", "I16"}, ERR_INVALID, "needs floats X.scales");
    refuse("gptq4", &gptq, (struct change){".scales", .fill = 0x7f}, ERR_INVALID,
           "gptq4.scales: element 0 is not finite");
    refuse("gptq4", &gptq, (struct change){".qzeros", NULL, ""}, ERR_NOT_FOUND, "gptq4.qzeros is missing");
    refuse("gptq4", &gptq, (struct change){".qzeros", NULL, "[3,4]"}, ERR_INVALID, "gptq4.qzeros: shape is not [3, 3]");
    refuse("gptq4", &gptq, (struct change){".g_idx", NULL, "[95]"}, ERR_INVALID, "gptq4.g_idx: shape is not [96]");
    refuse("gptq4", &gptq, (struct change){".g_idx", .fill = 0xff}, ERR_INVALID,
           "element 0 is not a group from 0 to 2");
    refuse("awq", &gptq, (struct change){""}, ERR_INVALID, "not codes of 2, 4 or 8 bits");
    refuse("gptq4", &awq, (struct change){""}, ERR_INVALID, "shape is not [96, 3]");
}

static void test_refuses_compressed(void **state)
{
    refuse("pack4", &compressed, (struct change){".weight_packed", NULL, "[23,4]"}, ERR_INVALID,
           "not codes of 2 to 8 bits");
    refuse("pack4", &compressed, (struct change){".weight_packed", NULL, "[22,12]"}, ERR_INVALID,
           "shape is not [23, 12]");
    refuse("pack4", &compressed, (struct change){".weight_scale", NULL, ""}, ERR_NOT_FOUND, "needs a weight_scale");
    refuse("pack4", &compressed, (struct change){".weight_scale", NULL, "[22,3]"}, ERR_INVALID,
           "neither [1] nor [23, groups]");
    refuse("pack4", &compressed, (struct change){".weight_scale", .fill = 0x7f}, ERR_INVALID, "is not finite");
    refuse("pack4-zeros", &compressed, (struct change){".weight_zero_point", NULL, "[2,3]"}, ERR_INVALID,
           "shape is not [3, 3]");
    refuse("int8", &compressed, (struct change){".weight", NULL, "[23,49]"}, ERR_INVALID, "shape is not [23, 50]");
    refuse("int8-zeros", &compressed, (struct change){".weight_zero_point", NULL, "[22,1]"}, ERR_INVALID,
           "the scale's shape");
}

static void test_refuses_8_bit(void **state)
{
    refuse("bnb8", &bnb, (struct change){".SCB", NULL, "[22]"}, ERR_INVALID, "bnb8.SCB: shape is not [23]");
    refuse("bnb8", &bnb, (struct change){".SCB", .fill = 0xff}, ERR_INVALID, "bnb8.SCB: element 0 is not finite");
    refuse("bnb8", &bnb, (struct change){".weight", .fill = 0x80}, ERR_INVALID, "bnb8.weight: -128 is there");
    refuse("fp8", &fp8, (struct change){".weight_scale", NULL, ""}, ERR_NOT_FOUND, "needs a weight_scale");
    refuse("fp8", &fp8, (struct change){".weight_scale", NULL, "[3]"}, ERR_INVALID, "one scale for each block");
    refuse("fp8", &fp8, (struct change){".weight_scale", .fill = 0xff}, ERR_INVALID, "element 0 is not finite");
    refuse("fp8", &fp8, (struct change){".weight", .fill = 0xff}, ERR_INVALID, "fp8.weight: element 0 is NaN");
    refuse("fp8-block", &compressed, (struct change){""}, ERR_INVALID, "must have weight_block_size");
    refuse("fp8-block", &fp8, (struct change){".weight_scale_inv", NULL, "[3,3]"}, ERR_INVALID, "shape is not [3, 2]");
    refuse("fp8-block", &fp8, (struct change){".weight", NULL, "[40,49]"}, ERR_INVALID, "shape is not [40, 50]");
}

/* Of 2 rows and 40 columns in 3 groups, column k in group_of[k]: the values, and the type. */
static void order_case(const int32_t group_of[40], enum dtype type)
{
    enum { ROWS = 2, COLS = 40, GROUPS = 3 };
    struct stored_ints m;
    struct weight_src src;
    struct err e = {0};
    void *owned;
    float want[ROWS][COLS];
    assert_int_equal(stored_ints_make(&m, ROWS, COLS, 4, GROUPS, &e), 0);
    m.group = 16; /* and 8 columns in the last */
    m.group_of = group_of;
    for (int i = 0; i < ROWS * GROUPS; i++) m.zero[i] = (uint8_t)(i + 2), m.scale[i] = (float)(i + 1) / 8;
    for (int i = 0; i < ROWS * COLS; i++) {
        int at = i / COLS * GROUPS + group_of[i % COLS];
        m.code[i] = (uint8_t)(i * 7 % 16);
        want[i / COLS][i % COLS] = (float)(m.code[i] - m.zero[at]) * m.scale[at];
    }
    if (stored_ints_matrix(&m, &src, &owned, &e)) fail_msg("%s", e.msg);
    assert_int_equal(src.t, type);
    if (type == DT_BLOCK) assert_true(block_order_ok(&src, 1));
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLS; k++) assert_true(value(&src, r, k) == want[r][k]);
    free(owned);
}

/* Groups in any order of columns stay packed where they have their size; others become floats. */
static void test_orders(void **state)
{
    int32_t group_of[40];
    for (int k = 0; k < 40; k++) group_of[k] = k / 16;
    order_case(group_of, DT_BLOCK);
    for (int k = 0; k < 40; k++) group_of[k] = (39 - k) / 16;
    order_case(group_of, DT_BLOCK);
    for (int k = 0; k < 40; k++) group_of[k] = k * 23 % 40 / 16;
    order_case(group_of, DT_BLOCK);
    group_of[3] = (group_of[3] + 1) % 3;
    order_case(group_of, DT_F32);
    for (int k = 0; k < 40; k++) group_of[k] = 2;
    order_case(group_of, DT_F32);
}

static struct weight_src block_of(const struct weight_block *b, const uint8_t code[64])
{
    return (struct weight_src){.t = DT_BLOCK, .rows = 2, .cols = 32, .data = code, .block = b};
}

/* Parts with one order stay as they are; of two, both become floats by input. */
static void test_unify_orders(void **state)
{
    static const int8_t values[4] = {0, 1, 2, 3};
    static const float scale[4] = {0.5f, 2, 1, 4};
    uint8_t code[64];
    uint32_t order[3][32];
    for (int i = 0; i < 64; i++) code[i] = (uint8_t)(i % 4);
    for (uint32_t k = 0; k < 32; k++) order[0][k] = order[1][k] = 31 - k, order[2][k] = (k + 1) % 32;
    struct weight_block b[3];
    for (int i = 0; i < 3; i++) b[i] = (struct weight_block){2, values, 16, 16, NULL, scale, NULL, NULL, order[i]};
    struct weight_src same[2] = {block_of(&b[0], code), block_of(&b[1], code)},
                      apart[2] = {block_of(&b[0], code), block_of(&b[2], code)};
    void *owned[2] = {NULL};
    struct err e;
    assert_int_equal(weights_unify(same, 2, false, owned, &e), 0);
    assert_true(same[0].t == DT_BLOCK && same[1].t == DT_BLOCK && !owned[0] && !owned[1]);
    assert_int_equal(weights_unify(apart, 2, false, owned, &e), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(apart[i].t, DT_F32);
        for (int k = 0; k < 64; k++) {
            const float *row = (const float *)apart[i].data + k / 32 * 32;
            float want = (float)values[code[k]] * scale[k / 16];
            assert_true(row[order[i * 2][k % 32]] == want);
        }
        free(owned[i]);
    }
}

/* Blocks with columns that are no multiple of 16: the same values as floats. */
static void test_odd_blocks(void **state)
{
    static const struct quant_config odd = {QUANT_FP8, "fp8", false, {16, 40}};
    const struct tensor *codes = tensor_source_find(fixture, "fp8-block.weight"),
                        *scales = tensor_source_find(fixture, "fp8-block.weight_scale_inv");
    struct matrix_slot slot = slot_of("fp8-block", values_of("fp8-block"));
    struct weight_src src;
    struct err e = {0};
    void *owned;
    if (weights_matrix(fixture, &odd, &slot, &src, &owned, &e)) fail_msg("%s", e.msg);
    assert_int_equal(src.t, DT_F32);
    for (int r = 0; r < slot.rows; r++)
        for (int k = 0; k < slot.cols; k++) {
            uint8_t code = ((const uint8_t *)codes->data)[r * slot.cols + k];
            float want = e4m3_to_f32(code) * tensor_element(scales, (size_t)(r / 16 * 2 + k / 40));
            assert_true(value(&src, r, k) == want);
        }
    free(owned);
}

int main(int argc, char **argv)
{
    struct err e;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values),       cmocka_unit_test(test_odd_blocks),
                                       cmocka_unit_test(test_orders),       cmocka_unit_test(test_unify_orders),
                                       cmocka_unit_test(test_refuses_gptq), cmocka_unit_test(test_refuses_compressed),
                                       cmocka_unit_test(test_refuses_8_bit)};
    snprintf(fixture_path, sizeof fixture_path, "%s/../checkpoints.safetensors", argc > 1 ? argv[1] : ".");
    if (!(fixture = safetensors_open(fixture_path, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tensor_source_close(fixture);
    return failed;
}
