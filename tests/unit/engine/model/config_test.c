/* config.json: both spellings of transformers are read; what no model can be is refused with the field's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/model/config.h"
#include "engine/model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LLAMA                                                                                                          \
    "\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":"  \
    "4,"                                                                                                               \
    "\"intermediate_size\":96"

static struct model_config good(const char *config, const char *generation)
{
    struct model_config c;
    struct err e = {0};
    if (model_config_parse(config, generation, &c, &e)) fail_msg("%s: %s", config, e.msg);
    return c;
}

static void bad(const char *config, const char *says)
{
    struct model_config c;
    struct err e = {0};
    if (!model_config_parse(config, NULL, &c, &e) || !strstr(e.msg, says))
        fail_msg("%s: expected \"%s\", got \"%s\"", config, says, e.msg);
}

/* Field by field: what lies between fields may differ. */
static void assert_same_layers(const struct model_config *a, const struct model_config *b)
{
#define SAME(field) assert_true(a->field == b->field)
    SAME(layers);
    SAME(n_ropes);
    for (int i = 0; i < a->layers; i++) SAME(kind[i]);
    for (int i = 0; i < BLOCKS_MAX; i++) {
        SAME(block[i].norms);
        SAME(block[i].both_sides);
        SAME(block[i].window);
        SAME(block[i].scale);
        SAME(block[i].softcap);
        SAME(block[i].rope);
        SAME(block[i].qk_norm);
        SAME(block[i].inter);
        SAME(block[i].gated);
        SAME(block[i].act);
    }
    for (int i = 0; i < a->n_ropes; i++) {
        SAME(rope[i].rot);
        SAME(rope[i].theta);
        SAME(rope[i].scaling);
        SAME(rope[i].factor);
        SAME(rope[i].low);
        SAME(rope[i].high);
        SAME(rope[i].old_len);
        SAME(rope[i].max_len);
        SAME(rope[i].attention);
    }
#undef SAME
}

/* the window of each layer, as text: "0 16 16" */
static const char *windows(struct model_config c)
{
    static char text[256];
    size_t n = 0;
    text[0] = 0;
    for (int l = 0; l < c.layers && n < sizeof text - 16; l++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", l ? " " : "", model_block(&c, l)->window);
    return text;
}

static void test_llama(void **state)
{
    struct model_config c = good("{" LLAMA ",\"num_key_value_heads\":2,\"rope_theta\":500000.0,\"rms_norm_eps\":1e-5,"
                                 "\"eos_token_id\":[7,8],\"bos_token_id\":1}",
                                 NULL);
    assert_string_equal(c.family->model_type, "llama");
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope[0].rot, 16);
    assert_int_equal(c.kv_heads, 2);
    assert_true(c.block[0].gated && !c.qkv_bias && !c.tied && c.norm == NORM_RMS);
    assert_true(c.rope[0].theta == 500000 && c.eps == 1e-5f);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[1], 8);
    assert_true(isnan(c.temperature) && c.top_k == -1 && c.do_sample == -1);
}

static void test_both_spellings_of_rope(void **state)
{
    struct model_config a =
        good("{" LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,"
             "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
             NULL);
    struct model_config b =
        good("{" LLAMA ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"llama3\",\"factor\":8.0,"
             "\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":8192}}",
             NULL);
    assert_int_equal(a.rope[0].scaling, ROPE_LLAMA3);
    assert_same_layers(&a, &b);
    assert_int_equal(good("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL).rope[0].scaling,
                     ROPE_LINEAR);
    assert_int_equal(good("{" LLAMA ",\"rope_scaling\":null}", NULL).rope[0].scaling, ROPE_PLAIN);
    bad("{" LLAMA ",\"rope_scaling\":{\"type\":\"ntk\",\"factor\":2}}", "rope type \"ntk\"");
    bad("{" LLAMA ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":2}}", "low_freq_factor");
    bad("{" LLAMA ",\"rope_scaling\":3}", "rope_scaling");
}

#define POSITIONS ",\"max_position_embeddings\":64"
#define SCALED(type) "{" LLAMA POSITIONS ",\"rope_scaling\":{\"type\":\"" type "\",\"factor\":4"

static void test_scaled_rope(void **state)
{
    (void)state;
    struct model_config c = good(SCALED("yarn") "}}", NULL);
    assert_true(c.rope[0].scaling == ROPE_YARN && c.rope[0].old_len == 64 && c.max_len == 256 && c.near_len == 0);
    assert_true(c.rope[0].low == 1 && c.rope[0].high == 32 && c.rope[0].truncate);
    assert_float_equal(c.rope[0].attention, 0.1 * log(4) + 1, 1e-12);
    c = good(SCALED("yarn") ",\"mscale\":2,\"mscale_all_dim\":0.5,\"truncate\":false,\"beta_slow\":3}}", NULL);
    assert_true(c.rope[0].low == 3 && !c.rope[0].truncate);
    assert_float_equal(c.rope[0].attention, (0.2 * log(4) + 1) / (0.05 * log(4) + 1), 1e-12);
    c = good(SCALED("yarn") ",\"attention_factor\":0.7,\"original_max_position_embeddings\":8}}", NULL);
    assert_true(c.rope[0].attention == 0.7 && c.max_len == 64);
    c = good(SCALED("dynamic") "}}", NULL);
    assert_true(c.rope[0].old_len == 64 && c.rope[0].max_len == 256 && c.max_len == 256 && c.near_len == 64);
    bad("{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\"}}", "factor is missing");
    bad(SCALED("yarn") ",\"rope_theta\":1}}", "rope_theta must be above 1");
    bad(SCALED("yarn") ",\"truncate\":3}}", "truncate must be true or false");
#define EIGHT "1,1,1,1,1,1,1,2"
#define LONG(short_factor, long_factor)                                                                                \
    SCALED("longrope")                                                                                                 \
    ",\"original_max_position_embeddings\":32,\"short_factor\":[" short_factor "],\"long_factor\":[" long_factor "]}}"
    c = good(LONG(EIGHT, EIGHT), NULL);
    assert_true(c.near_len == 32 && c.max_len == 64 && c.rope[0].divide[1][7] == 2);
    assert_float_equal(c.rope[0].attention, sqrt(1 + log(4) / log(32)), 1e-12);
    bad(LONG("1,2", EIGHT), "short_factor must be a list of 8 numbers");
    bad(LONG(EIGHT, EIGHT ",3"), "long_factor must be a list of 8 numbers");
    bad(LONG(EIGHT, "1,1,1,0,1,1,1,2"), "long_factor: number 3 must be from");
    bad(LONG(EIGHT, "1,1,\"1\""), "long_factor: number 2 must be from");
    bad(SCALED("longrope") "}}", "short_factor is missing");
}

#define PHI3                                                                                                           \
    "\"model_type\":\"phi3\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,"                           \
    "\"num_attention_heads\":4,\"intermediate_size\":96"

/* The field beside the rule counts, with a default of its own; su and yarn are longrope. */
static void test_phi3(void **state)
{
    (void)state;
    struct model_config c =
        good("{" PHI3 ",\"max_position_embeddings\":8192,\"rope_scaling\":{\"type\":\"su\","
             "\"original_max_position_embeddings\":7,\"short_factor\":[" EIGHT "],\"long_factor\":[" EIGHT "]}}",
             NULL);
    assert_true(c.rope[0].scaling == ROPE_LONGROPE && c.near_len == 4096 && c.rope[0].factor == 2);
    assert_string_equal(windows(c), "0 0");
    c = good("{" PHI3 ",\"partial_rotary_factor\":0.75,\"sliding_window\":9}", NULL);
    assert_int_equal(c.rope[0].rot, 12);
    assert_string_equal(windows(c), "9 9");
    bad("{" PHI3 ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", "rope type \"linear\"");
    bad("{" PHI3 ",\"attention_bias\":true}", "attention_bias is not supported");
}

#define SMALL(type)                                                                                                    \
    "{\"model_type\":\"" type "\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":4,"                      \
    "\"num_attention_heads\":4,\"intermediate_size\":96"

static void test_layers_without_rotation(void **state)
{
    (void)state;
    struct model_config c = good(SMALL("smollm3") "}", NULL);
    assert_true(c.tied && c.kv_heads == 4 && c.rope[0].theta == 2e6 && c.near_len == 0);
    for (int l = 0; l < 4; l++) assert_int_equal(c.rope[model_block(&c, l)->rope].rot, l == 3 ? 0 : 16);
    c = good(SMALL("smollm3") ",\"no_rope_layer_interval\":2}", NULL);
    for (int l = 0; l < 4; l++) assert_int_equal(c.rope[model_block(&c, l)->rope].rot, l % 2 ? 0 : 16);
    c = good(SMALL("smollm3") ",\"no_rope_layers\":[0,1,1,0,0],\"use_sliding_window\":true,\"sliding_window\":9}",
             NULL);
    for (int l = 0; l < 4; l++) assert_int_equal(c.rope[model_block(&c, l)->rope].rot, l % 3 ? 16 : 0);
    assert_string_equal(windows(c), "9 0 0 9");
    c = good(SMALL("smollm3") ",\"use_sliding_window\":true,\"sliding_window\":9,"
                              "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"full_"
                              "attention\"]}",
             NULL);
    assert_string_equal(windows(c), "9 0 0 0");
    assert_int_equal(c.rope[model_block(&c, 3)->rope].rot, 0);
    bad(SMALL("smollm3") ",\"no_rope_layers\":[1,1,0]}", "no_rope_layers must have a number for each of the 4 layers");
    bad(SMALL("smollm3") ",\"no_rope_layers\":3}", "no_rope_layers must have a number");
    bad(SMALL("smollm3") ",\"no_rope_layers\":[1,2,1,1]}", "no_rope_layers must be a list of 0 and 1");
    bad(SMALL("smollm3") ",\"no_rope_layer_interval\":0}", "no_rope_layer_interval");
    bad(SMALL("llama") ",\"no_rope_layers\":[1,1,1,0]}", "no_rope_layers is not supported: llama models have none");
}

static void test_dense_families(void **state)
{
    (void)state;
    struct model_config c = good(SMALL("granite") ",\"embedding_multiplier\":12,\"residual_multiplier\":0.22,"
                                                  "\"logits_scaling\":8}",
                                 NULL);
    assert_true(c.embed_scale == 12 && c.block[0].residual_scale == 0.22f && c.logit_scale == 0.125f);
    assert_true(c.block[0].scale == 1 && !c.embed_scale_rounded); /* transformers' default of attention_multiplier */
    c = good(SMALL("olmo2") "}", NULL);
    assert_true(c.block[0].norms == NORMS_AFTER && c.block[0].qk_norm == QK_NORM_WHOLE && c.eps == 1e-5f);
    c = good(SMALL("gpt_neox") ",\"rotary_pct\":0.5,\"rotary_emb_base\":7000,\"rope_theta\":5}", NULL);
    assert_true(c.rope[0].rot == 8 && c.rope[0].theta == 7000 && c.block[0].norms == NORMS_PARALLEL_TWO);
    assert_true(c.qkv_bias && c.o_bias && c.mlp_bias && c.block[0].act == ACT_GELU_ERF && !c.tied);
    c = good(SMALL("gpt_neox") ",\"use_parallel_residual\":false,\"attention_bias\":false}", NULL);
    assert_true(c.rope[0].rot == 4 && c.block[0].norms == NORMS_BEFORE && !c.qkv_bias && !c.o_bias && c.mlp_bias);
    c = good(SMALL("stablelm") ",\"num_key_value_heads\":2,\"use_qkv_bias\":true}", NULL);
    assert_true(c.block[0].norms == NORMS_BEFORE && c.qkv_bias && !c.o_bias && c.rope[0].rot == 4);
    c = good(SMALL("stablelm") ",\"num_key_value_heads\":4,\"use_parallel_residual\":true}", NULL);
    assert_true(c.block[0].norms == NORMS_PARALLEL && !c.qkv_bias && c.block[0].gated);
    assert_int_equal(c.block[0].qk_norm, QK_NORM_NONE);
    c = good(SMALL("stablelm") ",\"num_key_value_heads\":4,\"qk_layernorm\":true}", NULL);
    assert_int_equal(c.block[0].qk_norm, QK_NORM_APART);
    c = good(
        SMALL("ministral") ",\"num_key_value_heads\":4,\"sliding_window\":9,\"layer_types\":[\"sliding_attention\","
                           "\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
        NULL);
    assert_string_equal(windows(c), "9 0 0 9");
}

static void test_families(void **state)
{
    struct model_config c =
        good("{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":6,\"n_head\":12}", NULL);
    assert_true(c.tied && c.qkv_bias && !c.block[0].gated && c.rope[0].rot == 0 && c.norm == NORM_LAYER);
    assert_int_equal(c.inter, 3072);
    assert_int_equal(c.max_len, 1024);
    c = good("{\"model_type\":\"phi\",\"vocab_size\":100,\"hidden_size\":80,\"num_hidden_layers\":2,\"num_attention_"
             "heads\":2,"
             "\"intermediate_size\":96,\"partial_rotary_factor\":0.4}",
             NULL);
    assert_true(c.rope[0].rot == 16);
    assert_true(c.block[0].norms == NORMS_PARALLEL && c.block[0].act == ACT_GELU_TANH && !c.block[0].qk_norm);
    c = good("{\"model_type\":\"phi\",\"vocab_size\":100,\"hidden_size\":80,\"num_hidden_layers\":2,\"num_attention_"
             "heads\":2,\"intermediate_size\":96,\"qk_layernorm\":true}",
             NULL);
    assert_int_equal(c.block[0].qk_norm, QK_NORM_HEADS);
    c = good("{\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_"
             "heads\":4,"
             "\"intermediate_size\":96,\"num_key_value_heads\":4,\"head_dim\":20}",
             NULL);
    assert_true(c.block[0].qk_norm && !c.qkv_bias && c.head_dim == 20);
    c = good("{\"model_type\":\"mistral\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_"
             "attention_heads\":4,"
             "\"intermediate_size\":96,\"num_key_value_heads\":4,\"sliding_window\":16}",
             NULL);
    assert_string_equal(windows(c), "16 16");
    c = good("{\"model_type\":\"qwen2\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_"
             "heads\":4,"
             "\"intermediate_size\":96,\"num_key_value_heads\":4,\"sliding_window\":16,\"use_sliding_window\":false}",
             NULL);
    assert_string_equal(windows(c), "0 0");
    assert_true(c.qkv_bias);
}

static void test_generation_config(void **state)
{
    struct model_config c =
        good("{" LLAMA ",\"eos_token_id\":7}",
             "{\"eos_token_id\":[9,7],\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95,\"do_sample\":true}");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos[0], 9);
    assert_true(c.temperature == 0.6f && c.top_k == 20 && c.top_p == 0.95f && c.do_sample == 1);
    struct err e = {0};
    assert_true(model_config_parse("{" LLAMA "}", "[1]", &c, &e) && strstr(e.msg, "generation_config.json"));
    assert_true(model_config_parse("{" LLAMA "}", "{\"top_p\":7}", &c, &e) && strstr(e.msg, "generation_config.json"));
}

#define MISTRAL                                                                                                        \
    "\"model_type\":\"mistral\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":3,"                        \
    "\"num_attention_heads\":8,\"intermediate_size\":96"
#define QWEN3                                                                                                          \
    "\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":3,"                          \
    "\"num_attention_heads\":32,\"intermediate_size\":96"
#define PHI                                                                                                            \
    "\"model_type\":\"phi\",\"vocab_size\":100,\"hidden_size\":80,\"num_hidden_layers\":2,"                            \
    "\"num_attention_heads\":2,\"intermediate_size\":96"
#define GPT2 "\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":1,\"n_head\":2"
#define SLIDES ",\"use_sliding_window\":true,\"sliding_window\":16"

/* What transformers 5.23 takes for a field that is not there, and which field counts where two speak. */
static void test_as_transformers(void **state)
{
    (void)state;
    struct model_config c = good("{" MISTRAL "}", NULL);
    assert_string_equal(windows(c), "4096 4096 4096");
    assert_true(c.kv_heads == 8 && c.max_len == 131072);
    assert_string_equal(windows(good("{" MISTRAL ",\"sliding_window\":null}", NULL)), "0 0 0");
    assert_string_equal(windows(good("{" MISTRAL ",\"sliding_window\":16,\"use_sliding_window\":false}", NULL)),
                        "16 16 16");
    assert_int_equal(good("{" MISTRAL ",\"num_attention_heads\":8,\"num_key_value_heads\":null}", NULL).kv_heads, 8);
    c = good("{" QWEN3 "}", NULL);
    assert_true(c.kv_heads == 32 && c.max_len == 32768);
    assert_string_equal(windows(c), "0 0 0");
    assert_string_equal(windows(good("{" QWEN3 ",\"use_sliding_window\":true}", NULL)), "0 0 0");
    c = good("{\"num_hidden_layers\":30," QWEN3 ",\"use_sliding_window\":true}", NULL);
    assert_true(model_block(&c, 27)->window == 0 && model_block(&c, 28)->window == 4096);
    c = good(
        "{" QWEN3 SLIDES
        ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"],\"max_window_layers\":2}",
        NULL);
    assert_string_equal(windows(c), "0 16 16"); /* layer_types is what counts */
    c = good("{" QWEN3 SLIDES ",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
             NULL);
    assert_string_equal(windows(c), "16 0 16");
    c = good("{" QWEN3 SLIDES ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\"]}", NULL);
    assert_string_equal(windows(c), "0 0 0");
    c = good("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},"
             "\"rope_parameters\":{\"rope_type\":\"default\"}}",
             NULL);
    assert_int_equal(c.rope[0].scaling, ROPE_LINEAR);
    assert_int_equal(good("{" LLAMA ",\"rope_scaling\":{},\"rope_parameters\":{\"rope_theta\":7}}", NULL).rope[0].theta,
                     7);
#define LLAMA3 "\"rope_type\":\"llama3\",\"factor\":2,\"low_freq_factor\":1,\"high_freq_factor\":4"
    c = good("{" LLAMA ",\"max_position_embeddings\":512,\"rope_scaling\":{" LLAMA3 "}}", NULL);
    assert_int_equal(c.rope[0].old_len, 512);
    c = good("{" LLAMA ",\"original_max_position_embeddings\":64,"
             "\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":128}}",
             NULL);
    assert_int_equal(c.rope[0].old_len, 64);
    c = good("{" PHI ",\"tie_word_embeddings\":true}", NULL);
    assert_true(c.tied && c.rope[0].rot == 20);
    /* ignored by transformers where a family does not read it */
    assert_int_equal(good("{" LLAMA ",\"partial_rotary_factor\":0.5}", NULL).rope[0].rot, 16);
    assert_int_equal(good("{" LLAMA ",\"rope_parameters\":{\"partial_rotary_factor\":0.5}}", NULL).rope[0].rot, 16);
}

#define GEMMA(type)                                                                                                    \
    "\"model_type\":\"" type "\",\"vocab_size\":100,\"hidden_size\":48,\"num_hidden_layers\":7,"                       \
    "\"num_attention_heads\":8,\"intermediate_size\":96"

static void test_gemma(void **state)
{
    struct model_config c = good("{" GEMMA("gemma2") "}", NULL);
    assert_string_equal(windows(c), "4096 0 4096 0 4096 0 4096");
    assert_true(c.tied && c.kv_heads == 4 && c.head_dim == 256 && c.max_len == 8192 && !c.qkv_bias && !c.o_bias);
    for (int k = 0; k < 2; k++) {
        const struct block *b = &c.block[k];
        assert_true(b->norms == NORMS_BOTH && b->gated && b->act == ACT_GELU_TANH && !b->qk_norm && b->rope == 0);
        assert_true(b->softcap == 50 && b->scale == 1.0f / 16 && b->residual_scale == 1);
    }
    assert_true(c.logit_softcap == 30 && c.logit_scale == 1 && c.embed_scale == sqrtf(48) && c.embed_scale_rounded);
    assert_true(c.n_ropes == 1 && c.rope[0].theta == 10000 && c.rope[0].rot == 256);
    c = good("{" GEMMA("gemma2") ",\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
                                 "\"query_pre_attn_scalar\":144,\"sliding_window\":8,\"attention_bias\":true,\"torch_"
                                 "dtype\":\"bfloat16\"}",
             NULL);
    assert_true(c.block[0].softcap == 0 && c.logit_softcap == 0 && c.block[1].scale == 1.0f / 12);
    assert_true(c.qkv_bias && c.o_bias && c.dtype == DT_BF16 && c.block[1].window == 8);

    c = good("{" GEMMA("gemma3_text") "}", NULL);
    assert_string_equal(windows(c), "4096 4096 4096 4096 4096 0 4096");
    assert_true(c.max_len == 131072 && c.logit_softcap == 0 && c.block[0].qk_norm && c.block[1].softcap == 0);
    assert_true(c.n_ropes == 2 && c.block[0].rope == 0 && c.block[1].rope == 1);
    assert_true(c.rope[0].theta == 1e6 && c.rope[1].theta == 1e4 && c.rope[1].rot == 256);
    c = good("{" GEMMA("gemma3_text") ",\"sliding_window_pattern\":3,\"rope_theta\":5e5,\"rope_local_base_freq\":7e3,"
                                      "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}}",
             NULL);
    assert_string_equal(windows(c), "4096 4096 0 4096 4096 0 4096");
    assert_true(c.rope[0].theta == 5e5 && c.rope[0].scaling == ROPE_LINEAR && c.rope[0].factor == 8);
    assert_true(c.rope[1].theta == 7e3 && c.rope[1].scaling == ROPE_PLAIN);
    struct model_config v5 =
        good("{" GEMMA("gemma3_text") ",\"sliding_window_pattern\":3,\"rope_parameters\":{"
                                      "\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":5e5},"
                                      "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":7e3}}}",
             NULL);
    assert_same_layers(&c, &v5);
    bad("{" GEMMA("gemma3_text") ",\"attn_logit_softcapping\":50}", "attn_logit_softcapping is not supported");
    bad("{" GEMMA("gemma3_text") ",\"use_bidirectional_attention\":true}", "use_bidirectional_attention");
    bad("{" GEMMA("gemma3_text") ",\"rope_parameters\":{\"rope_theta\":5}}", "\"rope_theta\" is not full_attention");
    bad("{" GEMMA("gemma3_text") ",\"rope_parameters\":7}", "rope_parameters must be an object");
    bad("{" GEMMA("gemma3_text") ",\"query_pre_attn_scalar\":null}", "query_pre_attn_scalar must be a number");
    c = good("{" GEMMA("gemma3_text") ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8},"
                                      "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5}}}",
             NULL);
    assert_true(c.rope[0].theta == 5e5 && c.rope[0].factor == 8 && c.rope[1].factor == 1);
    bad("{" GEMMA("gemma3_text") ",\"rope_parameters\":{\"sliding_attention\":7}}",
        "sliding_attention must be an object");
    bad("{" GEMMA("gemma3_text") ",\"sliding_window_pattern\":0}", "sliding_window_pattern");
    bad("{" GEMMA("gemma3_text") ",\"sliding_window\":null}", "sliding_window null is not supported in a gemma3_text");
    bad("{" GEMMA("gemma2") ",\"rope_parameters\":{\"full_attention\":{}}}", "(full_attention) is not supported");
    bad("{" GEMMA("gemma2") ",\"query_pre_attn_scalar\":0}", "query_pre_attn_scalar");
    bad("{" GEMMA("gemma2") ",\"final_logit_softcapping\":-1}", "final_logit_softcapping");
}

/* Fields that would change the result, which no family here computes: refused by name, never ignored. */
static void test_refuses_what_it_does_not_compute(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {SCALED("linear") ",\"partial_rotary_factor\":0.5}}",
         "partial_rotary_factor 0.5 with scaled positions: llama models rotate whole heads"},
        {"{" PHI ",\"partial_rotary_factor\":0.33}", "an odd number of rotated features (13 of 40)"},
        {"{" QWEN3 ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5}}}",
         "(full_attention) is not supported"},
        {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}", "short_factor is missing"},
        {"{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"proportional\"}}", "rope type \"proportional\""},
        {"{" LLAMA ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types"},
        {"{" QWEN3 SLIDES ",\"layer_types\":[\"full_attention\"]}", "a list of num_hidden_layers (3)"},
        {"{" MISTRAL SLIDES ",\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}",
         "does not go with sliding_window in a mistral model"},
        {"{" QWEN3 ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
         "does not go with sliding_window"},
        {"{" QWEN3 SLIDES ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\"]}",
         "\"linear_attention\" is not supported"},
        {"{" QWEN3 SLIDES ",\"layer_types\":7}", "layer_types must be a list"},
        {"{" QWEN3 SLIDES ",\"layer_types\":[1,2,3]}", "layer_types"},
        {"{" MISTRAL ",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]}",
         "does not go with sliding_window in a mistral model"},
        {"{" MISTRAL ",\"attention_bias\":true}", "attention_bias is not supported"},
        {"{" QWEN3 ",\"mlp_bias\":true}", "mlp_bias is not supported"},
        {"{" GPT2 ",\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse_layer_idx is not supported"},
        {"{" GPT2 ",\"add_cross_attention\":true}", "add_cross_attention is not supported"},
        {"{" LLAMA ",\"is_causal\":false}", "is_causal false"},
        {"{" LLAMA ",\"final_logit_softcapping\":30.0}", "final_logit_softcapping is not supported: llama models"},
        {"{" LLAMA ",\"attn_logit_softcapping\":50}", "attn_logit_softcapping"},
        {"{" LLAMA ",\"query_pre_attn_scalar\":256}", "query_pre_attn_scalar"},
        {"{" LLAMA ",\"residual_multiplier\":0.22}", "residual_multiplier"},
        {"{" LLAMA ",\"embedding_multiplier\":12}", "embedding_multiplier"},
        {"{" LLAMA ",\"logits_scaling\":8}", "logits_scaling"},
        {"{" LLAMA ",\"num_experts\":8}", "num_experts"},
        {"{" LLAMA ",\"hidden_act\":\"quick_gelu\"}", "\"quick_gelu\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) bad(cases[i].config, cases[i].says);
    good("{" LLAMA
         ",\"logits_scaling\":1.0,\"num_experts\":0,\"clip_qkv\":null,\"no_rope_layers\":[],\"is_causal\":true,"
         "\"layer_types\":[\"full_attention\",\"full_attention\"],\"mlp_bias\":true,\"attention_bias\":true}",
         NULL);
}

#define BNB(rest) "{" LLAMA ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\"" rest "}}"

static void test_bitsandbytes(void **state)
{
    assert_string_equal(good(BNB(",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\""), NULL).quant.name, "nf4");
    assert_string_equal(good("{" LLAMA ",\"quantization_config\":null}", NULL).quant.name, "");
    assert_string_equal(
        good("{" LLAMA ",\"quantization_config\":{\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"nf4\"}}", NULL)
            .quant.name,
        "nf4");
    bad(BNB(""), "neither load_in_4bit nor load_in_8bit is true");
    assert_string_equal(good(BNB(",\"load_in_8bit\":true"), NULL).quant.name, "int8");
    bad(BNB(",\"load_in_4bit\":true"), "\"fp4\" is not supported"); /* transformers' default */
    bad(BNB(",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":\"fp4\""), "\"fp4\" is not supported");
    bad(BNB(",\"load_in_4bit\":true,\"bnb_4bit_quant_type\":4"), "bnb_4bit_quant_type must be a string");
    bad(BNB(",\"load_in_4bit\":\"yes\""), "load_in_4bit must be true or false");
}

#define QUANT(method, rest) "{" LLAMA ",\"quantization_config\":{\"quant_method\":\"" method "\"" rest "}}"

static void test_quantised_by_others(void **state)
{
    assert_true(good(QUANT("gptq", ",\"bits\":4"), NULL).quant.zero_less_one);
    assert_true(!good(QUANT("gptq", ",\"checkpoint_format\":\"gptq_v2\""), NULL).quant.zero_less_one);
    assert_int_equal(good(QUANT("awq", ",\"bits\":4,\"version\":\"GEMM\""), NULL).quant.method, QUANT_AWQ);
    assert_int_equal(good(QUANT("auto-round", ",\"packing_format\":\"auto_round:auto_awq\""), NULL).quant.method,
                     QUANT_AWQ);
    assert_int_equal(good(QUANT("compressed-tensors", ",\"format\":\"pack-quantized\""), NULL).quant.method,
                     QUANT_COMPRESSED);
    assert_int_equal(good(QUANT("fp8", ",\"weight_block_size\":[128,64]"), NULL).quant.block[1], 64);
    assert_int_equal(good(QUANT("modelopt", ",\"quant_algo\":\"FP8\""), NULL).quant.method, QUANT_FP8);
    bad(QUANT("gptq", ",\"checkpoint_format\":\"marlin\""), "checkpoint_format \"marlin\"");
    bad(QUANT("awq", ",\"bits\":8"), "bits of AWQ");
    bad(QUANT("awq", ",\"version\":\"gemv\""), "version \"gemv\"");
    bad(QUANT("auto-round", ""), "packing_format");
    bad(QUANT("compressed-tensors", ",\"format\":\"marlin-24\""), "format \"marlin-24\"");
    bad(QUANT("compressed-tensors", ",\"format\":\"dense\",\"sparsity_config\":{\"format\":\"sparse-bitmask\"}"),
        "sparsity_config.format");
    bad(QUANT("compressed-tensors", ",\"format\":\"dense\",\"transform_config\":{\"config_groups\":{\"u\":{}}}"),
        "transform_config");
    bad(QUANT("fp8", ",\"weight_block_size\":[128]"), "weight_block_size must be two whole numbers");
    bad(QUANT("fp8", ",\"weight_block_size\":[128,0]"), "weight_block_size must be two whole numbers");
    bad(QUANT("fp8", ",\"weight_block_size\":[128,64,2]"), "weight_block_size must be two whole numbers");
    bad(QUANT("fp8", ",\"fmt\":\"e5m2\""), "fmt \"e5m2\"");
    bad(QUANT("modelopt", ",\"quant_algo\":\"NVFP4\""), "quant_algo \"NVFP4\"");
    bad("{" LLAMA ",\"quantization_config\":{\"bits\":4}}", "quant_method is missing");
    bad("{" LLAMA ",\"quantization_config\":4}", "must be an object");
    bad("{" LLAMA ",\"quantization\":{\"group_size\":64,\"bits\":4}}", "quantised by MLX");
    bad("{" LLAMA ",\"quantization_config\":{\"group_size\":64,\"bits\":4}}", "quantised by MLX");
}

static void test_refuses_nonsense(void **state)
{
    bad("", "not a JSON object");
    bad("{" LLAMA "} and more", "not a JSON object");
    bad("{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":65536,\"num_hidden_layers\":2,\"num_attention_"
        "heads\":2,"
        "\"intermediate_size\":96}",
        "heads of 32768 features");
    bad("{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":64,\"n_layer\":1,\"n_head\":2,\"scale_attn_weights\":"
        "false}",
        "scale_attn_weights");
    bad("[]", "not a JSON object");
    bad("{}", "model_type is missing");
    bad("{\"model_type\":7}", "model_type must be a string");
    bad("{\"model_type\":\"mamba\"}", "\"mamba\" is not one of");
    bad("{\"model_type\":\"llama\"}", "vocab_size is missing");
    bad("{\"model_type\":\"llama\",\"vocab_size\":100}", "hidden_size is missing");
    bad("{\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":65,\"n_layer\":1,\"n_head\":2}",
        "not a multiple of n_head");
    bad("{" LLAMA ",\"num_key_value_heads\":3}", "num_key_value_heads 3");
    bad("{" LLAMA ",\"num_key_value_heads\":0}", "num_key_value_heads must be");
    bad("{" LLAMA ",\"max_position_embeddings\":-5}", "max_position_embeddings");
    bad("{" LLAMA ",\"max_position_embeddings\":1e300}", "max_position_embeddings");
    bad("{" LLAMA ",\"head_dim\":1.5}", "head_dim");
    bad("{" LLAMA ",\"rope_theta\":0}", "rope_theta");
    bad("{" LLAMA ",\"hidden_act\":\"cube\"}", "\"cube\"");
    bad("{" LLAMA ",\"eos_token_id\":\"</s>\"}", "eos_token_id");
    bad("{" LLAMA ",\"tie_word_embeddings\":1}", "tie_word_embeddings");
    bad("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"hqq\"}}", "quantization_config");
    bad("{" LLAMA ",\"quantization_config\":7}", "quantization_config");
    bad("{\"model_type\":\"llama\",\"vocab_size\":1000000000,\"hidden_size\":64}", "vocab_size must be");
}

/* Every number that changes what a layer, the embeddings or the logits are multiplied by. */
static void test_numbers(void **state)
{
    struct model_family f = *model_family_find("llama");
    f.model_type = "numbers";
    memcpy(f.number,
           (struct family_number[FAMILY_NUMBERS]){{"attention_multiplier", NUMBER_ATTN_SCALE, 0},
                                                  {"embedding_multiplier", NUMBER_EMBED_SCALE, 0},
                                                  {"residual_multiplier", NUMBER_RESIDUAL_SCALE, 0},
                                                  {"logits_scaling", NUMBER_LOGIT_DIVISOR, 2}},
           sizeof f.number);
    model_family_add(&f);
#define NUMBERS                                                                                                        \
    "\"model_type\":\"numbers\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,"                        \
    "\"num_attention_heads\":4,\"intermediate_size\":96"
    struct model_config c = good("{" NUMBERS ",\"attention_multiplier\":0.5,\"embedding_multiplier\":12,"
                                 "\"residual_multiplier\":0.25,\"logits_scaling\":8}",
                                 NULL);
    assert_true(c.block[0].scale == 0.5f && c.embed_scale == 12 && c.block[0].residual_scale == 0.25f);
    assert_true(c.logit_scale == 0.125f && !c.embed_scale_rounded);
    c = good("{" NUMBERS "}", NULL);
    assert_true(c.block[0].scale == 0.25f && c.embed_scale == 1 && c.block[0].residual_scale == 1);
    assert_true(c.logit_scale == 0.5f);
    bad("{" NUMBERS ",\"residual_multiplier\":\"1\"}", "residual_multiplier must be a number");
    model_family_add(NULL);
}

#define TEXT                                                                                                           \
    "\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                  \
    "\"intermediate_size\":96,\"vocab_size\":100,\"head_dim\":16"

/* Models that also take images: what text_config lacks stands beside it, or is the family's. */
static void test_with_images(void **state)
{
    (void)state;
    /* Gemma 3 of 4B as Google published it */
    struct model_config c = good(
        "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"eos_token_id\":[1,106],\"model_type\":\"gemma3\","
        "\"text_config\":{\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
        "\"torch_dtype\":\"bfloat16\",\"vision_config\":{\"hidden_size\":1152,\"model_type\":\"siglip_vision_model\"}}",
        NULL);
    assert_true(c.with_images && c.tied && !c.classifier && c.dtype == DT_BF16);
    assert_string_equal(c.family->model_type, "gemma3_text");
    assert_true(c.vocab == 262208 && c.heads == 8 && c.kv_heads == 4 && c.head_dim == 256 && c.max_len == 131072);
    assert_true(c.n_eos == 2 && c.eos[1] == 106 && c.rope[0].factor == 8 && c.block[1].window == 1024);
    c = good("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"dtype\":null,\"text_config\":{" TEXT "}}",
             NULL);
    assert_string_equal(c.family->model_type, "mistral");
    assert_true(c.with_images && c.tied && c.dtype == DT_NONE);
    c = good("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{" TEXT
             ",\"tie_word_embeddings\":false,\"model_type\":null},\"quantization_config\":{\"quant_method\":\"fp8\"}}",
             NULL);
    assert_true(!c.tied && c.quant.method == QUANT_FP8);
    assert_false(good("{" LLAMA "}", NULL).with_images);
    bad("{\"model_type\":\"gemma3\"}", "text_config is missing");
    bad("{\"model_type\":\"gemma3\",\"text_config\":{}}", "text_config is empty");
    bad("{\"model_type\":\"gemma3\",\"text_config\":[]}", "text_config must be an object");
    bad("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"mistral4\"}}", "\"mistral4\" is not one of");
    bad("{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":7}}", "model_type must be a string");
}

#define MINISTRAL3(beta)                                                                                               \
    "{\"model_type\":\"ministral3\"," TEXT                                                                             \
    ",\"max_position_embeddings\":4096,\"rope_parameters\":{\"rope_type\":\"yarn\","                                   \
    "\"rope_theta\":1e6,\"factor\":16,\"mscale\":1,\"mscale_all_dim\":1,\"beta_fast\":32" beta "}}"

/* Texts end where queries would be scaled. */
static void test_ministral3(void **state)
{
    (void)state;
#define OLD ",\"original_max_position_embeddings\":256"
    struct model_config c = good(MINISTRAL3(OLD ",\"llama_4_scaling_beta\":0.1"), NULL);
    assert_true(c.rope[0].scaling == ROPE_YARN && c.rope[0].attention == 1 && c.rope[0].factor == 16);
    assert_true(c.max_len == 256 && c.rope[0].old_len == 256 && c.kv_heads == 2);
    assert_int_equal(good(MINISTRAL3(OLD ",\"llama_4_scaling_beta\":0"), NULL).max_len, 4096);
    bad(MINISTRAL3(OLD), "llama_4_scaling_beta is missing");
    bad(MINISTRAL3(",\"llama_4_scaling_beta\":0.1"), "original_max_position_embeddings is missing");
    bad(MINISTRAL3(OLD ",\"llama_4_scaling_beta\":-1"), "llama_4_scaling_beta must be a number");
    bad("{\"model_type\":\"ministral3\"," TEXT "}", "rope_parameters is missing");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_with_images),
                                       cmocka_unit_test(test_ministral3),
                                       cmocka_unit_test(test_llama),
                                       cmocka_unit_test(test_both_spellings_of_rope),
                                       cmocka_unit_test(test_scaled_rope),
                                       cmocka_unit_test(test_phi3),
                                       cmocka_unit_test(test_layers_without_rotation),
                                       cmocka_unit_test(test_dense_families),
                                       cmocka_unit_test(test_families),
                                       cmocka_unit_test(test_generation_config),
                                       cmocka_unit_test(test_bitsandbytes),
                                       cmocka_unit_test(test_quantised_by_others),
                                       cmocka_unit_test(test_refuses_nonsense),
                                       cmocka_unit_test(test_as_transformers),
                                       cmocka_unit_test(test_gemma),
                                       cmocka_unit_test(test_refuses_what_it_does_not_compute)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
