/* Quantised blocks of GGUF files against what the gguf package makes of them, bit for bit (make_gguf_blocks.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/gguf_blocks.h"
#include "engine/model/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *fixtures; /* the directory of golden models, beside which is gguf/ */

static bool same(float a, float b)
{
    return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0;
}

static const struct tensor *find(const struct tensor_source *f, const char *type, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "%s.%s", type, what);
    return tensor_source_find(f, name);
}

static void check_type(const struct tensor_source *f, enum ggml_type type)
{
    const char *name = ggml_type_name((uint32_t)type);
    const struct tensor *blocks = find(f, name, "blocks"), *values = find(f, name, "values");
    const struct block_layout *l = gguf_block_layout(type);
    int elements, bytes;
    assert_non_null(blocks);
    assert_true(ggml_type_block(type, &elements, &bytes));
    assert_int_equal(elements, l->elements);
    assert_int_equal(bytes, l->bytes);
    int n = (int)values->dims[1] / elements;
    for (int r = 0; r < blocks->dims[0]; r++) {
        const uint8_t *row = (const uint8_t *)blocks->data + (size_t)r * (size_t)blocks->dims[1];
        float got[256];
        gguf_dequantise_row(type, row, n, got);
        for (int k = 0; k < 256; k++) {
            float want = tensor_element(values, (size_t)r * 256 + (size_t)k);
            if (!same(got[k], want)) fail_msg("%s: row %d, element %d: %a is not %a", name, r, k, got[k], want);
        }
    }
}

static void test_values(void **state)
{
    (void)state;
    char path[1024];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/../gguf/blocks.safetensors", fixtures);
    struct tensor_source *f = safetensors_open(path, &e);
    if (!f) fail_msg("%s", e.msg);
    int types = 0;
    for (int t = 0; t < GGML_TYPES; t++) {
        if (!gguf_block_layout((enum ggml_type)t)) continue;
        check_type(f, (enum ggml_type)t);
        types++;
    }
    assert_int_equal(types, tensor_source_count(f) / 2);
    tensor_source_close(f);
}

/* A row's parts, put together as DT_BLOCK has them, are the same floats. */
static void test_parts(void **state)
{
    (void)state;
    for (int t = 0; t < GGML_TYPES; t++) {
        const struct block_layout *l = gguf_block_layout((enum ggml_type)t);
        if (!l) continue;
        enum { BLOCKS = 3 };
        uint8_t blocks[BLOCKS * 256], code[BLOCKS * 256], sub_min[BLOCKS * 16];
        int8_t sub_scale[BLOCKS * 16];
        float super_scale[BLOCKS], super_min[BLOCKS], want[BLOCKS * 256];
        for (size_t i = 0; i < sizeof blocks; i++) blocks[i] = (uint8_t)(i * 151 + i / 7);
        gguf_decode_row((enum ggml_type)t, blocks, BLOCKS,
                        (struct block_row){code, super_scale, super_min, sub_scale, sub_min});
        gguf_dequantise_row((enum ggml_type)t, blocks, BLOCKS, want);
        for (int k = 0; k < BLOCKS * l->elements; k++) {
            int b = k / l->elements, g = k / l->group;
            assert_true(code[k] >> l->bits == 0);
            float scale = l->sub_scale ? super_scale[b] * (float)sub_scale[g] : super_scale[b];
            float minimum = !l->super_min ? 0 : l->sub_min ? super_min[b] * (float)sub_min[g] : super_min[b];
            float product = (float)l->value[code[k]] * scale, got = l->super_min ? product - minimum : product;
            if (!same(got, want[k])) fail_msg("%s: element %d", ggml_type_name((uint32_t)t), k);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 2) return 1;
    fixtures = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_parts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
