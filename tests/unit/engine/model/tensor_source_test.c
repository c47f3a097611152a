/* What is read from a tensor_source is read from any: here an adapter from arrays of this program. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/adapter.h"
#include "engine/model/tensor_source.h"

#include <string.h>

struct arrays {
    struct tensor_source source;
    const struct tensor *v;
    size_t n;
    int closed;
};

static size_t count(const struct tensor_source *s)
{
    return ((const struct arrays *)s)->n;
}

static const struct tensor *at(const struct tensor_source *s, size_t i)
{
    return &((const struct arrays *)s)->v[i];
}

static const struct tensor *find(const struct tensor_source *s, const char *name)
{
    for (size_t i = 0; i < count(s); i++)
        if (strcmp(at(s, i)->name, name) == 0) return at(s, i);
    return NULL;
}

static const char *metadata(const struct tensor_source *s, const char *key)
{
    return s && strcmp(key, "format") == 0 ? "arrays" : NULL;
}

static int verify(const struct tensor_source *s, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "%zu arrays have no checksums", count(s));
}

static void close_arrays(struct tensor_source *s)
{
    ((struct arrays *)s)->closed++;
}

/* populate and release left out, as an implementation may */
static const struct tensor_source_ops ops = {
    .count = count, .at = at, .find = find, .metadata = metadata, .verify = verify, .close = close_arrays};

#define LAYER "base_model.model.model.layers.0.self_attn.q_proj."

static void test_an_adapter_of_arrays(void **state)
{
    (void)state;
    const struct model_config c = {.family = model_family_find("llama"),
                                   .layers = 1,
                                   .hidden = 2,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 2,
                                   .inter = 4,
                                   .block = {{.inter = 4}}};
    const float a[2] = {1, 2};
    const uint16_t b[2] = {f32_to_bf16(3), f32_to_bf16(-4)};
    const struct tensor v[] = {
        {LAYER "lora_A.weight", TENSOR_F32, 2, {1, 2}, a, sizeof a},
        {LAYER "lora_B.weight", TENSOR_BF16, 2, {2, 1}, b, sizeof b},
    };
    struct arrays s = {{&ops}, v, 2, 0};
    struct err e = {0};
    struct adapter *x =
        adapter_parse("{\"peft_type\":\"LORA\",\"r\":1,\"target_modules\":[\"q_proj\"]}", &s.source, &c, &e);
    if (!x) fail_msg("%s", e.msg);
    assert_memory_equal(x->pair[0].a, a, sizeof a);
    assert_true(x->pair[0].b[0] == 3 && x->pair[0].b[1] == -4);
    adapter_free(x);

    assert_int_equal(tensor_source_count(&s.source), 2);
    assert_ptr_equal(tensor_source_find(&s.source, v[1].name), &v[1]);
    assert_null(tensor_source_find(&s.source, "no"));
    assert_string_equal(tensor_source_metadata(&s.source, "format"), "arrays");
    assert_int_equal(tensor_source_verify(&s.source, &e), ERR_UNSUPPORTED);
    assert_int_equal(tensor_source_populate(&s.source, &v[0], &e), 0);
    tensor_source_release(&s.source, &v[0]);
    tensor_source_close(&s.source);
    tensor_source_close(NULL);
    assert_int_equal(s.closed, 1);
}

static void test_types(void **state)
{
    (void)state;
    assert_string_equal(tensor_type_name(TENSOR_BF16), "BF16");
    assert_string_equal(tensor_type_name(TENSOR_OTHER), "?");
    assert_int_equal(tensor_type_bytes(TENSOR_F64), 8);
    assert_int_equal(tensor_type_bytes(TENSOR_OTHER), 0);
    assert_int_equal(tensor_float_type(TENSOR_F16), DT_F16);
    assert_int_equal(tensor_float_type(TENSOR_F64), DT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_adapter_of_arrays),
        cmocka_unit_test(test_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
