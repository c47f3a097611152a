/* Adapters: what is written is read back bit for bit, is the same bytes each time, and what does not fit the model or
 * asks for more than LoRA is refused by name.  Files made by PEFT itself are in tests/model/adapter_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/model/adapter.h"
#include "engine/model/adapter_match.h"
#include "engine/model/safetensors.h"
#include "engine/train/train.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct model_config llama = {.family = &(const struct model_family){.tensors = &llama_tensors},
                                          .layers = 2,
                                          .hidden = 8,
                                          .heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 6,
                                          .inter = 10,
                                          .block = {{.inter = 10}}};
static const struct model_config gpt2 = {.family = &(const struct model_family){.tensors = &gpt2_tensors},
                                         .layers = 3,
                                         .hidden = 8,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .head_dim = 4,
                                         .inter = 32,
                                         .block = {{.inter = 32}}};
static const struct model_config phi = {.family = &(const struct model_family){.tensors = &phi_tensors},
                                        .layers = 1,
                                        .hidden = 8,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 4,
                                        .inter = 20,
                                        .block = {{.inter = 20}}};

static const struct lora_module *module(const struct adapter *a, const char *path)
{
    for (int i = 0; i < a->n_modules; i++)
        if (strcmp(a->module[i].path, path) == 0) return &a->module[i];
    fail_msg("no module %s", path);
    return NULL;
}

static void expect_module(const struct adapter *a, const char *path, enum layer_gemm gemm, int col, int n, int k)
{
    const struct lora_module *m = module(a, path);
    if (m->gemm != gemm || m->col != col || m->n != n || m->k != k)
        fail_msg("%s: gemm %d col %d n %d k %d", path, m->gemm, m->col, m->n, m->k);
}

static void test_modules_of_families(void **state)
{
    struct adapter *a = adapter_new(&llama, TARGET_ALL, 2, 4, false);
    assert_int_equal(a->n_modules, 9);
    expect_module(a, "self_attn.q_proj", GEMM_QKV, 0, 12, 8);
    expect_module(a, "self_attn.k_proj", GEMM_QKV, 12, 6, 8);
    expect_module(a, "self_attn.v_proj", GEMM_QKV, 18, 6, 8);
    expect_module(a, "self_attn.o_proj", GEMM_O, 0, 8, 12);
    expect_module(a, "mlp.gate_proj", GEMM_UP, 0, 10, 8);
    expect_module(a, "mlp.up_proj", GEMM_UP, 10, 10, 8);
    expect_module(a, "mlp.down_proj", GEMM_DOWN, 0, 8, 10);
    assert_int_equal(adapter_bytes(a), 2 * 2 * 4 * (20 + 14 + 14 + 20 + 18 + 18 + 18));
    adapter_free(a);
    a = adapter_new(&gpt2, TARGET_C_ATTN | TARGET_C_PROJ, 2, 4, true);
    assert_int_equal(a->n_modules, 6);
    expect_module(a, "attn.c_attn", GEMM_QKV, 0, 24, 8);
    expect_module(a, "attn.c_proj", GEMM_O, 0, 8, 8);
    expect_module(a, "mlp.c_fc", GEMM_UP, 0, 32, 8);
    expect_module(a, "mlp.c_proj", GEMM_DOWN, 0, 8, 32);
    for (int l = 0; l < 3; l++)
        for (int m = 0; m < 4; m++) assert_int_equal(a->pair[l * 6 + m].r, a->module[m].target == TARGET_C_FC ? 0 : 2);
    assert_true(a->pair[0].scale == (float)(4 / sqrt(2)));
    assert_int_equal(a->targets, TARGET_C_ATTN | TARGET_C_PROJ);
    adapter_free(a);
    a = adapter_new(&phi, TARGET_ALL, 3, 4, false);
    assert_int_equal(a->n_modules, 8);
    expect_module(a, "mlp.fc1", GEMM_UP, 0, 20, 8);
    expect_module(a, "self_attn.dense", GEMM_O, 0, 8, 8);
    adapter_free(a);
    char prefix[64];
    lora_layer_prefix(&llama, 3, prefix);
    assert_string_equal(prefix, "model.layers.3.");
    lora_layer_prefix(&gpt2, 12, prefix);
    assert_string_equal(prefix, "transformer.h.12.");
}

/* ---- writing and reading ---- */

static void fill(struct adapter *a)
{
    uint32_t x = 12345;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        for (int half = 0; half < 2; half++) {
            float *p = half ? a->pair[i].b : a->pair[i].a;
            for (int k = 0; k < a->pair[i].r * (half ? m->n : m->k); k++) {
                x = x * 1664525 + 1013904223;
                p[k] = (float)(int32_t)x * 0x1p-33f;
            }
        }
    }
}

static void expect_same(const struct adapter *a, const struct adapter *b)
{
    assert_int_equal(a->r, b->r);
    assert_int_equal(a->targets, b->targets);
    assert_int_equal(a->rslora, b->rslora);
    assert_true(a->alpha == b->alpha && a->dropout == b->dropout);
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        const struct lora_pair *p = &a->pair[i], *q = &b->pair[i];
        assert_int_equal(p->r, q->r);
        assert_true(p->scale == q->scale);
        if (!p->r) continue;
        assert_memory_equal(p->a, q->a, (size_t)p->r * (size_t)m->k * 4);
        assert_memory_equal(p->b, q->b, (size_t)p->r * (size_t)m->n * 4);
    }
}

static char *contents(const char *dir, const char *name, size_t *n)
{
    struct err e;
    char *path = file_join(dir, name), *data = NULL;
    if (file_read(path, 1 << 24, &data, n, &e)) fail_msg("%s", e.msg);
    free(path);
    return data;
}

static void expect_same_file(const char *a, const char *b, const char *name)
{
    size_t n, m;
    char *p = contents(a, name, &n), *q = contents(b, name, &m);
    assert_int_equal(n, m);
    assert_memory_equal(p, q, n);
    free(p);
    free(q);
}

static void remove_dir(const char *dir)
{
    static const char *const names[] = {ADAPTER_CONFIG, ADAPTER_WEIGHTS, "adapter_model.bin"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = file_join(dir, names[i]);
        unlink(path);
        free(path);
    }
    rmdir(dir);
}

/* writes twice, into directories that are made; reads back */
static void round_trip(struct adapter *a, const struct model_config *c)
{
    char root[] = "/tmp/tandem-test-XXXXXX", one[64], two[64], parent[64];
    struct err e = {0};
    assert_non_null(mkdtemp(root));
    snprintf(one, sizeof one, "%s/a", root);
    snprintf(parent, sizeof parent, "%s/b", root);
    snprintf(two, sizeof two, "%s/b/c", root);
    if (adapter_write(a, c, "some/base", one, &e) || adapter_write(a, c, "some/base", two, &e)) fail_msg("%s", e.msg);
    struct adapter *b = adapter_read(one, c, &e);
    if (!b) fail_msg("%s", e.msg);
    if (b) expect_same(a, b);
    adapter_free(b);
    expect_same_file(one, two, ADAPTER_CONFIG);
    expect_same_file(one, two, ADAPTER_WEIGHTS);
    if (adapter_write(a, c, "some/base", one, &e)) fail_msg("%s", e.msg); /* over what is there */
    expect_same_file(one, two, ADAPTER_WEIGHTS);
    remove_dir(one);
    remove_dir(two);
    rmdir(parent);
    assert_int_equal(rmdir(root), 0); /* nothing else was left */
}

static void test_write_then_read(void **state)
{
    const struct model_config *c[] = {&llama, &gpt2, &phi};
    for (int i = 0; i < 3; i++)
        for (int rs = 0; rs < 2; rs++) {
            struct adapter *a = adapter_new(c[i], i == 0 ? TARGET_Q | TARGET_V | TARGET_DOWN : TARGET_ALL, 3, 16, rs);
            a->dropout = 0.05;
            fill(a);
            round_trip(a, c[i]);
            adapter_free(a);
        }
}

static struct adapter *odd_ranks(void)
{
    int rank[2 * 9] = {1, 0, 2, 0, 0, 0, 3, 0, 0, /* layer 1 */ 2, 0, 2, 5, 0, 0, 2};
    struct adapter *a = adapter_of_ranks(&llama, rank);
    a->r = 2;
    a->alpha = 8;
    for (int i = 0; i < 18; i++)
        if (rank[i]) a->pair[i].scale = i == 3 ? 0 : (float)(8.0 / rank[i]);
    a->pair[6].scale = 0.3f; /* an alpha of its own */
    fill(a);
    return a;
}

static void test_patterns_survive(void **state)
{
    struct adapter *a = odd_ranks();
    round_trip(a, &llama);
    a->rslora = true;
    for (int i = 0; i < 14; i++)
        if (a->pair[i].r) a->pair[i].scale = (float)(8.0 / sqrt(a->pair[i].r));
    a->pair[6].scale = 0.3f;
    round_trip(a, &llama);
    adapter_free(a);
    int rank[3 * 6] = {0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}; /* attn.c_proj everywhere, mlp.c_proj nowhere */
    a = adapter_of_ranks(&gpt2, rank);
    a->r = 1;
    a->alpha = 1;
    for (int i = 1; i < 18; i += 6) a->pair[i].scale = 1;
    fill(a);
    round_trip(a, &gpt2);
    adapter_free(a);
}

static void test_configuration_says(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX";
    struct err e;
    size_t n;
    assert_non_null(mkdtemp(dir));
    struct adapter *a = adapter_new(&gpt2, TARGET_C_ATTN | TARGET_C_PROJ, 4, 8, false);
    assert_int_equal(adapter_write(a, &gpt2, "a \"base\"", dir, &e), 0);
    char *text = contents(dir, ADAPTER_CONFIG, &n);
    static const char *const want[] = {"\"fan_in_fan_out\": true",
                                       "\"base_model_name_or_path\": \"a \\\"base\\\"\"",
                                       "\"target_modules\": [\n    \"c_attn\",\n    \"c_proj\"\n  ]",
                                       "\"modules_to_save\": null",
                                       "\"peft_type\": \"LORA\"",
                                       "\"r\": 4,",
                                       "\"lora_alpha\": 8,",
                                       "\"rank_pattern\": {},"};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        if (!strstr(text, want[i])) fail_msg("%s is not in %s", want[i], text);
    free(text);
    adapter_free(a);
    remove_dir(dir);
}

static void test_write_fails_clearly(void **state)
{
    struct err e = {0};
    struct adapter *a = adapter_new(&llama, TARGET_Q, 1, 1, false);
    assert_int_equal(adapter_write(a, &llama, "b", "/proc/no/such", &e), ERR_IO);
    assert_non_null(strstr(e.msg, "/proc/no"));
    adapter_free(a);
}

/* ---- reading what others wrote ---- */

/* tensors "name|dtype|rows|cols", ... as a file's bytes, data 0 (or all ones, bits) */
struct tensor_spec {
    const char *name, *dtype;
    int rows, cols;
};

static struct tensor_source *file_of(const struct tensor_spec *t, int n, int byte, char **bytes)
{
    char *head = calloc(1, 1 << 16);
    size_t at = 0, len = (size_t)sprintf(head, "{");
    for (int i = 0; i < n; i++) {
        size_t size = (size_t)t[i].rows * (size_t)t[i].cols * (strcmp(t[i].dtype, "F32") ? 2 : 4);
        len += (size_t)sprintf(head + len, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]}",
                               i ? "," : "", t[i].name, t[i].dtype, t[i].rows, t[i].cols, at, at + size);
        at += size;
    }
    len += (size_t)sprintf(head + len, "}");
    *bytes = malloc(8 + len + at);
    for (int i = 0; i < 8; i++) (*bytes)[i] = (char)(len >> (8 * i));
    memcpy(*bytes + 8, head, len);
    memset(*bytes + 8 + len, byte, at);
    free(head);
    struct err e;
    struct tensor_source *f = safetensors_parse(*bytes, 8 + len + at, &e);
    if (!f) fail_msg("%s", e.msg);
    return f;
}

static struct adapter *parse(const char *config, const struct model_config *c, const struct tensor_spec *t, int n,
                             int byte, struct err *e)
{
    char *bytes;
    struct tensor_source *f = file_of(t, n, byte, &bytes);
    struct adapter *a = adapter_parse(config, f, c, e);
    tensor_source_close(f);
    free(bytes);
    return a;
}

#define L0 "base_model.model.model.layers.0.self_attn."
#define L1 "base_model.model.model.layers.1.self_attn."
#define Q_PAIRS                                                                                                        \
    {L0 "q_proj.lora_A.weight", "F32", 2, 8}, {L0 "q_proj.lora_B.weight", "F32", 12, 2},                               \
        {L1 "q_proj.lora_A.weight", "F32", 2, 8},                                                                      \
    {                                                                                                                  \
        L1 "q_proj.lora_B.weight", "F32", 12, 2                                                                        \
    }

static const struct tensor_spec q_pairs[] = {Q_PAIRS};

static void refuse_config(const char *config, const char *says)
{
    struct err e = {0};
    struct adapter *a = parse(config, &llama, q_pairs, 4, 0, &e);
    if (a || !strstr(e.msg, says) || !strstr(e.msg, ADAPTER_CONFIG))
        fail_msg("%s: expected \"%s\", got \"%s\"", config, says, a ? "(accepted)" : e.msg);
}

static void test_refuses_configurations(void **state)
{
    static const char *const features[][2] = {
        {"\"use_dora\":true", "use_dora: DoRA"},
        {"\"alora_invocation_tokens\":[1]", "aLoRA"},
        {"\"lora_bias\":true", "lora_bias"},
        {"\"modules_to_save\":[\"lm_head\"]", "modules_to_save"},
        {"\"trainable_token_indices\":[1]", "trainable_token_indices"},
        {"\"target_parameters\":[\"x\"]", "target_parameters"},
        {"\"layer_replication\":[[0,1]]", "layer_replication"},
        {"\"use_qalora\":true", "QALoRA"},
        {"\"arrow_config\":{\"top_k\":1}", "arrow_config"},
        {"\"bias\":\"all\"", "bias"},
        {"\"bias\":7", "bias"},
        {"\"init_lora_weights\":\"pissa\"", "pissa"},
        {"\"r\":0", "r must be"},
        {"\"r\":513", "r must be"},
        {"\"r\":1.5", "r must be"},
        {"\"r\":\"8\"", "r must be"},
        {"\"lora_alpha\":\"x\"", "lora_alpha must be"},
        {"\"use_rslora\":1", "use_rslora"},
        {"\"target_modules\":[1]", "target_modules must be"},
        {"\"target_modules\":\"(\"", "target_modules: \"(\""},
        {"\"target_modules\":\"(q|q|q)*(q|(q)*)*[^x]*[^x]*[^x]*[^x]*[^x]*[^x]*1$\"", "takes too long"},
        {"\"target_modules\":[\"nothing\"]", "names no module"},
        {"\"exclude_modules\":3", "exclude_modules"},
        {"\"rank_pattern\":[]", "rank_pattern must be an object"},
        {"\"rank_pattern\":{\"q_proj\":\"2\"}", "rank_pattern: q_proj"},
        {"\"rank_pattern\":{\"q_proj\":1000}", "rank_pattern for model.layers.0.self_attn.q_proj"},
        {"\"alpha_pattern\":7", "alpha_pattern must be"},
        {"\"layers_to_transform\":\"x\"", "layers_to_transform"},
        {"\"layers_to_transform\":[0],\"layers_pattern\":\"blocks\"", "layers_pattern"},
    };
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        char config[400];
        /* the first of two equal keys counts */
        snprintf(config, sizeof config, "{%s,\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q_proj\"]}",
                 features[i][0]);
        refuse_config(config, features[i][1]);
    }
    refuse_config("{\"peft_type\":\"IA3\"}", "peft_type \"IA3\"");
    refuse_config("{\"r\":2}", "peft_type is missing");
    refuse_config("", "not a JSON object");
    refuse_config("[]", "not a JSON object");
    refuse_config("{\"peft_type\":\"LORA\"} x", "not a JSON object");
}

static const char q_config[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":6,\"target_modules\":[\"q_proj\"]}";

static void refuse_tensors(const struct tensor_spec *t, int n, const char *says)
{
    struct err e = {0};
    struct adapter *a = parse(q_config, &llama, t, n, 0, &e);
    if (a || !strstr(e.msg, says)) fail_msg("expected \"%s\", got \"%s\"", says, a ? "(accepted)" : e.msg);
}

static void test_refuses_tensors(void **state)
{
    static const struct {
        struct tensor_spec more;
        const char *says;
    } extra[] = {
        {{L0 "q_proj.lora_magnitude_vector", "F32", 12, 1}, "DoRA"},
        {{"base_model.model.model.embed_tokens.lora_embedding_A", "F32", 2, 0}, "target_modules does not name"},
        {{"base_model.model.lm_head.lora_A.weight", "F32", 2, 8}, "target_modules does not name"},
        {{"base_model.model.lm_head.weight", "F32", 2, 8}, "whole output head"},
        {{"base_model.model.lm_head.base_layer.weight", "F32", 2, 8}, "resized vocabulary"},
        {{"base_model.model.model.embed_tokens.weight", "F32", 2, 8}, "whole embedding table"},
        {{L0 "q_proj.lora_B.bias", "F32", 12, 1}, "lora_bias"},
        {{L0 "q_proj.bias", "F32", 12, 1}, "trained biases"},
        {{"base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight", "F32", 2, 8}, "the model has 2 layers"},
        {{"base_model.model.model.layers.99999999999999999999.self_attn.q_proj.lora_A.weight", "F32", 2, 8},
         "2 layers"},
        {{"base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight", "F32", 2, 8}, "no module"},
        {{"base_model.model.model.layers.-1.self_attn.q_proj.lora_A.weight", "F32", 2, 8}, "no module"},
        {{"model.layers.0.self_attn.q_proj.lora_A.weight", "F32", 2, 8}, "are the same"},
        {{L0 "q_proj.lora_A.other.weight", "F32", 2, 8}, "no module"},
        {{L0 "q_proj.lora_C.weight", "F32", 2, 8}, "no module"},
        {{L0 "c_attn.lora_A.weight", "F32", 2, 8}, "no module"},
        {{L0 "k_proj.lora_A.weight", "F32", 2, 8}, "target_modules does not name"},
        {{"", "F32", 1, 1}, "no module"},
    };
    for (size_t i = 0; i < sizeof extra / sizeof *extra; i++) {
        struct tensor_spec t[] = {Q_PAIRS, extra[i].more};
        refuse_tensors(t, 5, extra[i].says);
        assert_int_equal(sizeof t / sizeof *t, 5);
    }
    refuse_tensors(q_pairs, 3, "tensor model.layers.1.self_attn.q_proj.lora_B.weight is missing");
    struct tensor_spec bad[] = {Q_PAIRS};
    bad[1].rows = 2, bad[1].cols = 12; /* the other way round */
    refuse_tensors(bad, 4, "shape is not [12, 2]");
    bad[1] = q_pairs[1];
    bad[2].rows = 4; /* another rank than r */
    refuse_tensors(bad, 4, "shape is not [2, 8]");
    bad[2] = q_pairs[2];
    bad[3].dtype = "I16";
    refuse_tensors(bad, 4, "type I16");
    struct err e;
    assert_null(parse(q_config, &llama, q_pairs, 4, 0xff, &e)); /* NaN */
    assert_non_null(strstr(e.msg, "value 0 is not finite"));
}

static void accept(const char *config, const struct tensor_spec *t, int n, int ranks_q0, int ranks_q1)
{
    struct err e = {0};
    struct adapter *a = parse(config, &llama, t, n, 0, &e);
    if (!a) {
        fail_msg("%s: %s", config, e.msg);
        return;
    }
    assert_int_equal(a->pair[0].r, ranks_q0);
    assert_int_equal(a->pair[9].r, ranks_q1);
    adapter_free(a);
}

static void test_accepts_other_spellings(void **state)
{
    static const struct tensor_spec short_names[] = {
        {"model.layers.0.self_attn.q_proj.lora_A.default.weight", "BF16", 2, 8},
        {"layers.0.self_attn.q_proj.lora_B.weight", "F16", 12, 2},
        {L1 "q_proj.lora_A.default.weight", "F32", 2, 8},
        {"base_model.model.layers.1.self_attn.q_proj.lora_B.default.weight", "F32", 12, 2}};
    accept(q_config, short_names, 4, 2, 2);
    accept("{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":\".*\\\\.(q)_proj\",\"lora_alpha\":6}", q_pairs, 4, 2,
           2);
    accept(
        "{\"peft_type\":\"LORA\",\"r\":8,\"target_modules\":[\"self_attn.q_proj\"],\"rank_pattern\":{\"(.*[01].*)\":2,"
        "\"q_proj\":4}}",
        q_pairs, 4, 2, 2);
    accept(
        "{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":\"All-Linear\",\"exclude_modules\":[\"k_proj\",\"v_proj\","
        "\"o_proj\",\"gate_proj\",\"up_proj\",\"down_proj\"]}",
        q_pairs, 4, 2, 2);
    accept("{\"peft_type\":\"LORA\",\"r\":2,\"exclude_modules\":\".*v_proj\"}", q_pairs, 4, 2, 2); /* PEFT's default */
    accept("{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q_proj\"],\"layers_to_transform\":1,"
           "\"layers_pattern\":[\"layers\"]}",
           q_pairs + 2, 2, 0, 2);
    accept("{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q_proj\"],\"layers_to_transform\":[0]}", q_pairs, 2,
           2, 0);
    accept("{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"model.layers.1.self_attn.q_proj\"],"
           "\"modules_to_save\":[],\"use_dora\":false,\"eva_config\":{},\"unknown\":{\"x\":[1]},\"lora_bias\":null}",
           q_pairs + 2, 2, 0, 2);
}

/* The head of GPT-NeoX by its own name, and by that of transformers 5. */
static void test_names_of_a_head(void **state)
{
    static const struct tensor_spec named[][2] = {
        {{"base_model.model.embed_out.lora_A.weight", "F32", 2, 8}, {"embed_out.lora_B.weight", "F32", 16, 2}},
        {{"base_model.model.lm_head.lora_A.weight", "F32", 2, 8}, {"lm_head.lora_B.default.weight", "F32", 16, 2}}};
    static const char *const target[] = {"embed_out", "lm_head"};
    struct model_config neox = phi;
    neox.family = &(const struct model_family){.tensors = &gpt_neox_tensors};
    neox.vocab = 16;
    for (int i = 0; i < 2; i++) {
        char config[160];
        struct err e = {0};
        snprintf(config, sizeof config,
                 "{\"peft_type\":\"LORA\",\"r\":4,\"target_modules\":[\"%s\"],\"rank_pattern\":{\"%s\":2}}", target[i],
                 target[i]);
        struct adapter *a = parse(config, &neox, named[i], 2, 0, &e);
        if (!a) {
            fail_msg("%s: %s", config, e.msg);
            return;
        }
        int head = (int)(module(a, "embed_out") - a->module);
        assert_int_equal(a->pair[head].r, 2);
        assert_int_equal(a->targets, TARGET_HEAD);
        adapter_free(a);
    }
}

static void test_scale(void **state)
{
    struct err e;
    struct adapter *a = parse("{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":6,\"target_modules\":[\"q_proj\"],"
                              "\"use_rslora\":true,\"alpha_pattern\":{\"layers.1.self_attn.q_proj\":3}}",
                              &llama, q_pairs, 4, 0, &e);
    assert_non_null(a);
    assert_true(a->pair[0].scale == (float)(6 / sqrt(2)) && a->pair[9].scale == (float)(3 / sqrt(2)));
    adapter_free(a);
}

static void test_rules(void **state)
{
    static const struct {
        const char *text;
        enum rule_kind kind;
        const char *name;
        bool matches;
    } cases[] = {
        {"q_proj", RULE_TAIL, "a.q_proj", true},
        {"q_proj", RULE_TAIL, "q_proj", true},
        {"q_proj", RULE_TAIL, "a.xq_proj", false},
        {"q_proj", RULE_WHOLE, "a.q_proj", false},
        {"a.q_proj", RULE_WHOLE, "a.q_proj", true},
        {"layers.1.q", RULE_TAIL, "model.layers.11.q", false},
        {"layers.1.q", RULE_TAIL, "model.layers.1.q", true},
        {"layers\\.[12]\\.q", RULE_TAIL, "model.layers.2.q", true},
        {"q|k", RULE_TAIL, "a.k", true},
        {"q|k", RULE_TAIL, "a.kk", false},
        {".*q", RULE_WHOLE, "a.q", true},
        {".*q", RULE_WHOLE, "a.qk", false},
        {"(?P<n>q)", RULE_TAIL, "x.q", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rule r;
        struct err e;
        assert_int_equal(rule_open(&r, cases[i].text, cases[i].kind, "k", &e), 0);
        if (rule_matches(&r, cases[i].name, &e) != cases[i].matches) fail_msg("%s on %s", cases[i].text, cases[i].name);
        rule_close(&r);
    }
}

/* ---- experts ---- */

static const struct model_config moe = {.family = &(const struct model_family){.tensors = &mixtral_tensors},
                                        .layers = 1,
                                        .hidden = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_dim = 4,
                                        .block = {{.experts = {.count = 2, .chosen = 1, .inter = 4}, .gated = true}}};

#define MOE(rest) "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":6," rest "}"
#define E0 "base_model.model.model.layers.0.mlp.experts."
#define OLD0 "base_model.model.model.layers.0.block_sparse_moe."
static const struct tensor_spec both_params[] = {{E0 "base_layer.lora_A.weight", "F32", 4, 8},
                                                 {E0 "base_layer.lora_B.weight", "F32", 8, 4},
                                                 {E0 "lora_A.weight", "F32", 4, 4},
                                                 {E0 "lora_B.weight", "F32", 8, 4}};
static const struct tensor_spec by_expert[] = {{OLD0 "experts.0.w2.lora_A.weight", "F32", 2, 4},
                                               {OLD0 "experts.0.w2.lora_B.weight", "F32", 8, 2},
                                               {OLD0 "experts.1.w2.lora_A.weight", "F32", 2, 4},
                                               {OLD0 "experts.1.w2.lora_B.weight", "F32", 8, 2}};
static const struct tensor_spec not_an_expert[] = {{OLD0 "experts.2.w2.lora_A.weight", "F32", 2, 4}};

static void test_experts(void **state)
{
    static const struct {
        const char *config;
        const struct tensor_spec *t;
        int n;
        const char *says; /* NULL: accepted */
    } cases[] = {
        {MOE("\"target_parameters\":[\"gate_up_proj\",\"down_proj\"]"), both_params, 4, NULL},
        {MOE("\"target_parameters\":[\"experts.down_proj\"],\"target_modules\":[]"), both_params + 2, 2, NULL},
        {MOE("\"target_modules\":[\"w2\"]"), by_expert, 4, NULL},
        {MOE("\"target_modules\":\"all-linear\""), by_expert, 4, "q_proj.lora_A.weight is missing"},
        {MOE("\"target_parameters\":[\"down_proj\"]"), both_params, 4, "target_modules does not name its module"},
        {MOE("\"target_parameters\":[\"down_proj\"],\"r\":1,\"rank_pattern\":{\"down_proj\":3}"), both_params + 2, 2,
         "shape is not [6, 4]"},
        {MOE("\"target_parameters\":[\"gate_up_proj\",\"down_proj\"]"), both_params, 3, "lora_B.weight is missing"},
        {MOE("\"target_parameters\":[\"up_proj\"]"), both_params, 4, "\"up_proj\" is no parameter of this model"},
        {MOE("\"target_parameters\":\"down_proj\""), both_params + 2, 2, "must be a list of names"},
        {MOE("\"target_modules\":[\"w2\"]"), by_expert, 3, "experts.1.w2.lora_B.weight is missing"},
        {MOE("\"target_modules\":[\"w2\"]"), by_expert + 2, 2, "experts.0.w2.lora_A.weight is missing"},
        {MOE("\"target_modules\":[\"w1\"]"), by_expert, 4, "target_modules does not name its module"},
        {MOE("\"target_modules\":[\"w2\"],\"alpha_pattern\":{\"experts.1.w2\":3}"), by_expert, 4,
         "a rank or alpha that not all experts"},
        {MOE("\"target_modules\":[\"w2\"]"), not_an_expert, 1, "belongs to no module"},
        {MOE("\"target_modules\":[\"w2\"]"), NULL, 0, "no tensor of the modules"},
        {MOE("\"target_modules\":[\"w4\"]"), NULL, 0, "names no module"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct adapter *a = parse(cases[i].config, &moe, cases[i].t, cases[i].n, 0, &e);
        bool fits = cases[i].says ? !a && strstr(e.msg, cases[i].says) : a && a->targets & TARGET_PARAMETERS;
        if (!fits) fail_msg("case %zu: expected \"%s\", got \"%s\"", i, cases[i].says, a ? "(accepted)" : e.msg);
        adapter_free(a);
    }
}

static void test_directory_errors(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX";
    struct err e = {0};
    assert_null(adapter_read("/no/such/adapter", &llama, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "/no/such/adapter: "));
    assert_non_null(mkdtemp(dir));
    char *config = file_join(dir, ADAPTER_CONFIG), *pickle = file_join(dir, "adapter_model.bin");
    FILE *f = fopen(config, "w");
    fputs(q_config, f);
    fclose(f);
    assert_null(adapter_read(dir, &llama, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_memory_equal(e.msg, dir, strlen(dir)); /* not the name it was opened by */
    assert_non_null(strstr(e.msg, "/" ADAPTER_WEIGHTS ": "));
    fclose(fopen(pickle, "w"));
    assert_null(adapter_read(dir, &llama, &e));
    assert_non_null(strstr(e.msg, "only adapter_model.bin"));
    free(config);
    free(pickle);
    remove_dir(dir);
}

/* A directory that is exchanged again and again while it is read: one adapter or the other, never half of each. */
struct exchange {
    char one[64], two[64];
    atomic_bool stop;
};

static void *exchange_often(void *arg)
{
    struct exchange *x = arg;
    while (!atomic_load(&x->stop)) {
        renameat2(AT_FDCWD, x->one, AT_FDCWD, x->two, RENAME_EXCHANGE);
        usleep(200);
    }
    return NULL;
}

static void test_exchanged_while_read(void **state)
{
    char root[] = "/tmp/tandem-test-XXXXXX";
    struct exchange x = {0};
    struct err e;
    assert_non_null(mkdtemp(root));
    snprintf(x.one, sizeof x.one, "%s/a", root);
    snprintf(x.two, sizeof x.two, "%s/b", root);
    for (int i = 0; i < 2; i++) { /* the same shapes; alpha says whose weights they are */
        struct adapter *a = adapter_new(&llama, TARGET_ALL, 2, i ? 64 : 2, false);
        for (int p = 0; p < 18; p++)
            if (a->pair[p].r) a->pair[p].a[0] = i ? 64 : 2;
        assert_int_equal(adapter_write(a, &llama, "b", i ? x.two : x.one, &e), 0);
        adapter_free(a);
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, exchange_often, &x), 0);
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        struct adapter *a = adapter_read(x.one, &llama, &e);
        wrong += !a || a->alpha != (double)a->pair[0].a[0];
        adapter_free(a);
    }
    atomic_store(&x.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    remove_dir(x.one);
    remove_dir(x.two);
    rmdir(root);
}

/* Bytes of a real adapter changed, cut and repeated at random: refused or read, never worse (sanitizers watch). */
static void test_mutations(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX";
    struct err e;
    size_t n_config, n_weights;
    uint32_t x = 99;
    assert_non_null(mkdtemp(dir));
    struct adapter *a = odd_ranks();
    assert_int_equal(adapter_write(a, &llama, "b", dir, &e), 0);
    adapter_free(a);
    char *config = contents(dir, ADAPTER_CONFIG, &n_config), *weights = contents(dir, ADAPTER_WEIGHTS, &n_weights);
    int refused = 0, taken = 0;
    for (int i = 0; i < 4000; i++) {
        char *c = strdup(config), *w = malloc(n_weights);
        memcpy(w, weights, n_weights);
        size_t cut = n_weights;
        for (int k = 0; k < 1 + i % 3; k++) {
            x = x * 1664525 + 1013904223;
            uint32_t at = x >> 8;
            if (i % 2)
                c[at % n_config] = (char)(32 + x % 95);
            else if (i % 16 == 0)
                cut = at % n_weights;
            else
                w[8 + at % 4088] ^= (char)(1 << x % 8); /* the header */
        }
        struct tensor_source *f = safetensors_parse(w, cut, &e);
        a = f ? adapter_parse(c, f, &llama, &e) : NULL;
        if (a)
            taken++;
        else
            refused++;
        assert_true(a || e.msg[0]);
        adapter_free(a);
        tensor_source_close(f);
        free(w);
        free(c);
    }
    assert_true(refused > 1000 && taken > 100);
    free(config);
    free(weights);
    remove_dir(dir);
}

/* A snapshot of the Hub's cache is known by its name there, whatever link leads to it; all else by its absolute path.
 */
static void test_names_of_bases(void **state)
{
    static const struct {
        const char *path, *name; /* NULL: the absolute path */
    } cases[] = {
        {"models--acme--tiny/snapshots/0123abcd", "acme/tiny"},
        {"models--acme--tiny/snapshots/0123abcd/", "acme/tiny"},
        {"snapshots/models--acme--tiny/snapshots/main", "acme/tiny"},
        {"models--gpt2/snapshots/0123abcd", "gpt2"},
        {"models--a-b--c-d.e_f/snapshots/x", "a-b/c-d.e_f"},
        {"models--acme--tiny/snapshots/0123abcd/int4", NULL},
        {"models--acme--tiny/snapshots/0123abcd/tiny-Q4_0.gguf", "acme/tiny"},
        {"models--acme--tiny/snapshots/0123abcd/Q4_0/tiny-Q4_0-00001-of-00002.GGUF", "acme/tiny"},
        {"models--acme--tiny/blobs/0123abcd", NULL},
        {"models--acme--tiny--more/snapshots/x", NULL},
        {"models--acme--/snapshots/x", NULL},
        {"models----tiny/snapshots/x", NULL},
        {"models--/snapshots/x", NULL},
        {"datasets--acme--tiny/snapshots/x", NULL},
        {"acme/tiny", NULL},
    };
    char root[] = "/tmp/tandem-bases-XXXXXX", was[4096];
    (void)state;
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        char *dir = file_join(root, cases[i].path), *link = file_join(root, "link");
        assert_int_equal(dir_make(dir, &e), 0);
        char *real = realpath(dir, NULL), *name = adapter_base_name(dir);
        assert_string_equal(name, cases[i].name ? cases[i].name : real);
        free(name);
        unlink(link);
        assert_int_equal(symlink(dir, link), 0);
        name = adapter_base_name(link);
        assert_string_equal(name, cases[i].name ? cases[i].name : real);
        free(name);
        free(real);
        free(dir);
        free(link);
    }
    char *name = adapter_base_name("/no/such/model");
    assert_string_equal(name, "/no/such/model");
    free(name);
    assert_non_null(getcwd(was, sizeof was));
    assert_int_equal(chdir(root), 0);
    name = adapter_base_name("acme/tiny");
    assert_true(name[0] == '/' && strstr(name, "/acme/tiny"));
    free(name);
    assert_int_equal(chdir(was), 0);
    dir_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modules_of_families),
        cmocka_unit_test(test_write_then_read),
        cmocka_unit_test(test_patterns_survive),
        cmocka_unit_test(test_configuration_says),
        cmocka_unit_test(test_write_fails_clearly),
        cmocka_unit_test(test_refuses_configurations),
        cmocka_unit_test(test_refuses_tensors),
        cmocka_unit_test(test_accepts_other_spellings),
        cmocka_unit_test(test_names_of_a_head),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_directory_errors),
        cmocka_unit_test(test_exchanged_while_read),
        cmocka_unit_test(test_mutations),
        cmocka_unit_test(test_names_of_bases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
