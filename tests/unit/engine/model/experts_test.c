/* Models with experts (tests/model/make_fixtures.py): what their configurations say, that a row's logits have the same
 * bits in every batch, and what calibration sees of each expert. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/calibrate.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/tokenizer/tokenizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *models;

/* ---- configurations ------------------------------------------------------------------------------------------ */

#define SIZES                                                                                                          \
    "\"hidden_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"vocab_size\":64,"                          \
    "\"num_key_value_heads\":2,\"intermediate_size\":40"
#define QWEN3 "\"model_type\":\"qwen3_moe\"," SIZES
#define MIXTRAL "\"model_type\":\"mixtral\"," SIZES
#define GPT_OSS                                                                                                        \
    "\"model_type\":\"gpt_oss\",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32,\"truncate\":false,"            \
    "\"original_max_position_embeddings\":4096}," SIZES

static void test_config(void **state)
{
    (void)state;
    struct err e;
    struct model_config c;
    assert_int_equal(model_config_parse("{" QWEN3 ",\"mlp_only_layers\":[3],\"decoder_sparse_step\":2}", NULL, &c, &e),
                     0);
    for (int l = 0; l < 4; l++) {
        const struct block *b = model_block(&c, l);
        assert_int_equal(b->experts.count, l == 1 ? 128 : 0);
        assert_int_equal(b->inter, l == 1 ? 0 : 40);
    }
    struct block_experts x = model_experts(&c);
    assert_true(x.chosen == 8 && x.inter == 768 && !x.normalise && !x.gate && c.inter == 40);
    assert_int_equal(model_config_parse("{" QWEN3 ",\"num_experts\":0}", NULL, &c, &e), 0);
    assert_int_equal(model_experts(&c).count, 0);
    assert_int_equal(model_config_parse("{" QWEN3 ",\"num_local_experts\":16,\"norm_topk_prob\":true,"
                                        "\"use_sliding_window\":true,\"sliding_window\":9}",
                                        NULL, &c, &e),
                     0);
    x = model_experts(&c);
    assert_true(x.count == 16 && x.normalise && c.inter == 0 && model_block(&c, 0)->window == 9);
    assert_int_equal(model_config_parse("{" MIXTRAL "}", NULL, &c, &e), 0);
    x = model_experts(&c);
    assert_true(x.count == 8 && x.chosen == 2 && x.inter == 40 && x.normalise && c.inter == 0);
    assert_int_equal(
        model_config_parse("{\"model_type\":\"qwen2_moe\"," SIZES ",\"norm_topk_prob\":false}", NULL, &c, &e), 0);
    x = model_experts(&c);
    assert_true(x.count == 60 && x.inter == 1408 && x.gate && model_block(&c, 0)->inter == 5632 && c.inter == 5632);
}

static void test_gpt_oss(void **state)
{
    (void)state;
    struct err e;
    struct model_config c;
    if (model_config_parse("{" GPT_OSS ",\"hidden_act\":\"silu\",\"swiglu_limit\":7.0,\"swiglu_alpha\":1.702,"
                           "\"experts_per_token\":3,\"num_local_experts\":32,\"sliding_window\":100}",
                           NULL, &c, &e))
        fail_msg("%s", e.msg);
    struct block_experts x = model_experts(&c);
    assert_true(x.count == 32 && x.chosen == 3 && x.inter == 40 && x.normalise && c.inter == 0);
    assert_true(c.head_dim == 64 && c.qkv_bias && c.o_bias && c.max_len == 131072 && !c.rope[0].truncate);
    for (int l = 0; l < 4; l++) {
        const struct block *b = model_block(&c, l);
        assert_true(b->window == (l % 2 ? 0 : 100) && b->act == ACT_SWIGLU_CLAMPED && b->gated);
    }
    assert_int_equal(model_config_parse("{" GPT_OSS "}", NULL, &c, &e), 0);
    x = model_experts(&c);
    assert_true(x.count == 128 && x.chosen == 4 && model_block(&c, 0)->window == 128);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{" MIXTRAL ",\"num_local_experts\":0}", "num_local_experts must be at least 1"},
        {"{" MIXTRAL ",\"num_local_experts\":1025}", "num_local_experts must be a whole number from 0 to 1024"},
        {"{" MIXTRAL ",\"num_local_experts\":2,\"num_experts_per_tok\":3}",
         "num_experts_per_tok 3 is above num_local_experts 2"},
        {"{" MIXTRAL ",\"num_experts_per_tok\":65}", "num_experts_per_tok must be a whole number from 1 to 64"},
        {"{" QWEN3 ",\"num_experts_per_tok\":0}", "num_experts_per_tok"},
        {"{" QWEN3 ",\"moe_intermediate_size\":1e9}", "moe_intermediate_size must be a whole number"},
        {"{" QWEN3 ",\"mlp_only_layers\":3}", "mlp_only_layers must be a list"},
        {"{" QWEN3 ",\"decoder_sparse_step\":0}", "decoder_sparse_step"},
        {"{" QWEN3 ",\"norm_topk_prob\":1}", "norm_topk_prob must be true or false"},
        {"{\"model_type\":\"olmoe\"," SIZES ",\"clip_qkv\":8}", "clip_qkv is not supported"},
        {"{\"model_type\":\"qwen2_moe\"," SIZES ",\"use_sliding_window\":true}", "use_sliding_window is not supported"},
        {"{\"model_type\":\"llama\"," SIZES ",\"num_experts\":4}", "num_experts is not supported"},
        {"{" GPT_OSS ",\"swiglu_limit\":6}", "swiglu_limit 6 is not supported, only 7"},
        {"{" GPT_OSS ",\"swiglu_alpha\":1.7}", "swiglu_alpha 1.7 is not supported, only 1.702"},
        {"{" GPT_OSS ",\"num_local_experts\":2,\"experts_per_token\":3}",
         "num_experts_per_tok 3 is above num_local_experts 2"},
        {"{\"model_type\":\"gpt_oss\"," SIZES "}", "rope_parameters is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct model_config c;
        assert_int_not_equal(model_config_parse(cases[i].config, NULL, &c, &e), 0);
        if (!strstr(e.msg, cases[i].says)) fail_msg("\"%s\" does not say \"%s\"", e.msg, cases[i].says);
    }
}

/* A copy of a model in which one tensor is BF16. */
static void copy_with_bf16(const char *from, const char *to, const char *name)
{
    struct err e;
    struct tensor_source *f = safetensors_open_dir(from, &e);
    assert_non_null(f);
    char *path = file_join(to, "model.safetensors"), *config = file_join(from, "config.json"), *text = NULL;
    size_t n = tensor_source_count(f), bytes;
    struct st_writer *w = st_writer_open(path, n, n * TENSOR_NAME_MAX, 0, &e);
    assert_non_null(w);
    for (size_t i = 0; i < n; i++) {
        struct tensor t = *tensor_source_at(f, i);
        uint16_t *half = mem_array(t.bytes / 4 + 1, sizeof *half);
        if (strcmp(t.name, name) == 0) {
            for (size_t k = 0; k < t.bytes / 4; k++) half[k] = f32_to_bf16(tensor_element(&t, k));
            t.type = TENSOR_BF16, t.data = half, t.bytes /= 2;
        }
        assert_int_equal(st_writer_add(w, &t, 1, &e), 0);
        free(half);
    }
    assert_int_equal(st_writer_finish(w, &e), 0);
    assert_int_equal(file_read(config, 1 << 20, &text, &bytes, &e), 0);
    free(path);
    path = file_join(to, "config.json");
    assert_int_equal(file_write_sync(path, text, bytes, &e), 0);
    free(path), free(config), free(text);
    tensor_source_close(f);
}

static void test_models_refused(void **state)
{
    (void)state;
    char from[1200], dir[] = "/tmp/tandem-experts-XXXXXX",
                     changed[] = "model.layers.1.block_sparse_moe.experts.2.w2.weight";
    struct model m;
    struct err e = {0};
    snprintf(from, sizeof from, "%s/mixtral", models);
    assert_non_null(mkdtemp(dir));
    copy_with_bf16(from, dir, changed);
    assert_int_not_equal(model_load(&m, dir, "cpu", 1, NULL, false, &e), 0);
    if (!strstr(e.msg, "experts.2.w2.weight: not of the type of the layer's other experts")) fail_msg("%s", e.msg);
    dir_remove(dir);
}

/* ---- batch-invariance ------------------------------------------------------------------------------------------ */

enum { T = 40, TEXTS = 3, EACH = (T + KV_PAGE - 1) / KV_PAGE };

/* The logits of text 0, computed in chunks, with `others` other texts in every step.  lora: the texts' adapters. */
static float *logits_of(struct model *m, int chunk, int others, const struct lora_weights *const lora[TEXTS])
{
    struct step_batch b;
    int vocab = m->c.vocab;
    int32_t tokens[TEXTS][T], pages[TEXTS][EACH];
    struct step_batch_seq seq[TEXTS] = {{0}};
    float *out = mem_array((size_t)T * (size_t)vocab, sizeof *out);
    assert_int_equal(step_batch_open(&b, m->d, TEXTS * T, TEXTS, TEXTS * T, EACH), 0);
    for (int i = 0; i < TEXTS; i++) {
        for (int t = 0; t < T; t++) tokens[i][t] = (t * 37 + i * 101 + t * t * i) % vocab;
        for (int k = 0; k < EACH; k++) pages[i][k] = i * EACH + k;
        seq[i] = (struct step_batch_seq){.tokens = tokens[i], .pages = pages[i], .n_pages = EACH, .lora = lora[i]};
    }
    for (int at = 0; at < T; at += chunk) {
        int n = T - at < chunk ? T - at : chunk;
        for (int i = 0; i <= others; i++) seq[i].start = at, seq[i].n = seq[i].rows = n;
        b.n_tokens = b.n_rows = n * (others + 1);
        b.n_seqs = others + 1;
        b.pages_ld = EACH;
        step_batch_build(&b, m->d, seq, others + 1);
        model_forward(m, &b);
        assert_int_equal(m->d->ops->finish(m->d), 0);
        m->d->ops->download(m->d, out + (size_t)(at * vocab), m->logits.p, (size_t)(n * vocab) * sizeof *out);
    }
    step_batch_close(&b, m->d);
    return out;
}

static void compare_company(const char *name, int quantize)
{
    static const int chunks[] = {1, 7, T, T, 7, 1}, others[] = {0, 0, 1, 2, 2, 2};
    struct model m;
    struct err e = {0};
    char dir[1200];
    snprintf(dir, sizeof dir, "%s/%s", models, name);
    struct quantize_how how = {.type = quantize};
    if (model_load(&m, dir, "cpu", 2, quantize == DT_NONE ? NULL : &how, false, &e)) fail_msg("%s", e.msg);
    struct model_reserve r = {TEXTS * EACH, T, TEXTS * T, TEXTS * T, DT_F32};
    assert_int_equal(model_reserve(&m, &r, &e), 0);
    const struct lora_weights *const none[TEXTS] = {NULL};
    float *whole = logits_of(&m, T, 0, none);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        float *got = logits_of(&m, chunks[i], others[i], none);
        if (memcmp(got, whole, (size_t)(T * m.c.vocab) * sizeof *got))
            fail_msg("%s of %s: chunks of %d beside %d texts give other bits", name, dtype_name((enum dtype)quantize),
                     chunks[i], others[i]);
        free(got);
    }
    free(whole);
    model_close(&m);
}

static void test_company(void **state)
{
    (void)state;
    static const int types[] = {DT_NONE, DT_I8, DT_I4};
    for (int i = 0; i < 3; i++) {
        compare_company("mixtral", types[i]);
        compare_company("qwen2-moe", types[i]);
        compare_company("qwen3-moe", types[i]);
        compare_company("olmoe", types[i]);
        compare_company("gpt-oss", types[i]);
    }
    compare_company("gpt-oss-mxfp4", DT_NONE);
}

/* ---- adapters --------------------------------------------------------------------------------------------------- */

/* An adapter of everything, or without the parameters of experts and routers. */
static struct lora_weights made_adapter(struct model *m, unsigned targets, int r, float by)
{
    struct lora_weights w;
    struct err e;
    struct adapter *a = adapter_new(&m->c, targets, r, 4, false);
    assert_non_null(a);
    size_t floats = 0;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *mod = &a->module[i % a->n_modules];
        size_t n = (size_t)a->pair[i].r * (size_t)lora_copies(mod);
        for (size_t k = 0; k < n * (size_t)mod->k; k++) a->pair[i].a[k] = by * (float)((int)(k * 7 % 11) - 5);
        for (size_t k = 0; k < n * (size_t)mod->n; k++) a->pair[i].b[k] = by * (float)((int)(k * 5 % 13) - 6);
        floats += n * (size_t)(mod->k + mod->n);
    }
    assert_int_equal(adapter_bytes(a), floats * sizeof(float));
    assert_int_equal(lora_weights_upload(&w, m->d, a, NULL, &e), 0);
    assert_true(w.bytes >= floats * sizeof(float)); /* the experts' are counted */
    adapter_free(a);
    return w;
}

/* A text with or without an adapter of the experts has the same bits alone and beside texts with others. */
static void adapted_company(const char *name)
{
    struct model m;
    struct err e = {0};
    char dir[1200];
    snprintf(dir, sizeof dir, "%s/%s", models, name);
    if (model_load(&m, dir, "cpu", 2, NULL, false, &e)) fail_msg("%s", e.msg);
    struct model_reserve r = {TEXTS * EACH, T, TEXTS * T, TEXTS * T, DT_F32};
    assert_int_equal(model_reserve(&m, &r, &e), 0);
    size_t before = m.workspace_bytes;
    assert_int_equal(model_reserve_adapters(&m, &e), 0);
    assert_true(m.workspace_bytes > before);
    struct lora_weights all = made_adapter(&m, TARGET_ALL | TARGET_PARAMETERS, 3, 0.02f);
    struct lora_weights down = made_adapter(&m, TARGET_EXPERTS_DOWN, 2, 0.05f);
    const struct lora_weights *const mixed[][TEXTS] = {
        {NULL, &all, &down}, {&all, NULL, &down}, {&down, &all, NULL}, {&all, &all, &all}};
    float *bare = NULL;
    for (size_t i = 0; i < sizeof mixed / sizeof *mixed; i++) {
        float *alone = logits_of(&m, T, 0, mixed[i]), *beside = logits_of(&m, 7, TEXTS - 1, mixed[i]);
        size_t bytes = (size_t)(T * m.c.vocab) * sizeof *alone;
        if (memcmp(alone, beside, bytes)) fail_msg("%s, mix %zu: other bits beside other adapters", name, i);
        if (!bare)
            bare = alone;
        else if (!memcmp(alone, bare, bytes))
            fail_msg("%s, mix %zu: the adapter changes nothing", name, i);
        if (alone != bare) free(alone);
        free(beside);
    }
    free(bare);
    lora_weights_free(&all, m.d);
    lora_weights_free(&down, m.d);
    model_close(&m);
}

static void test_adapted_company(void **state)
{
    (void)state;
    adapted_company("mixtral");
    adapted_company("qwen2-moe");
    adapted_company("olmoe");
}

/* ---- calibration ------------------------------------------------------------------------------------------------ */

static const char story[] = "Once upon a time there was a little dog named Max. He liked to play in the park with his "
                            "friends. One day Max saw a big red ball, and the ball rolled down the hill.";

static struct calibration calibrated(const char *name, const char *device, const char *text)
{
    struct calibration c;
    struct err e = {0};
    char *dir = file_join(models, name);
    if (calibration_from_text(&c, dir, device, 2, text, strlen(text), &e)) fail_msg("%s: %s", name, e.msg);
    free(dir);
    return c;
}

/* Of a layer with k of E experts and one that every token goes through all have rows of the same input: each row was
 * counted for k experts. */
static void test_calibration_rows(void **state)
{
    (void)state;
    static const char *const devices[] = {"cpu", "ref"}; /* one with fused ops, one without */
    enum { C = 32, E = 6, K = 2 };
    for (int i = 0; i < 2; i++) {
        struct model_config c;
        struct err e;
        char *dir = file_join(models, "qwen2-moe");
        assert_int_equal(model_config_read(dir, &c, &e), 0);
        assert_true(c.hidden == C && model_experts(&c).count == E && model_experts(&c).chosen == K);
        free(dir);
        struct calibration got = calibrated("qwen2-moe", devices[i], story);
        assert_true(got.n == tensors_gemms(&c) && got.experts == c.layers * E && got.unseen == 0);
        for (int l = 0; l < c.layers; l++) {
            const struct feedback *shared = calibration_feedback(&got, l * LAYER_GEMMS + GEMM_UP), *one[E];
            size_t alike = 0;
            for (int k = 0; k < E; k++) {
                one[k] = calibration_feedback(&got, tensors_expert_gemm(&c, l, k, false));
                assert_true(one[k] && one[k]->cols == C);
                assert_int_equal(calibration_feedback(&got, tensors_expert_gemm(&c, l, k, true))->cols,
                                 model_experts(&c).inter);
            }
            for (int x = 0; x < C; x++)
                for (int y = x + 1; y < C; y++) { /* the diagonal is damped */
                    double sum = 0, want = K * (double)shared->h[x * C + y];
                    double size = (double)shared->h[x * C + x] + (double)shared->h[y * C + y];
                    for (int k = 0; k < E; k++) sum += (double)one[k]->h[x * C + y];
                    if (!(fabs(sum - want) < 1e-5 * size)) fail_msg("h[%d, %d] is %g, not %g", x, y, sum, want);
                    alike += one[0]->h[x * C + y] == one[1]->h[x * C + y];
                }
            assert_true(alike < C);
        }
        calibration_close(&got);
    }
}

/* The logits of a text; free() them. */
static float *text_logits(const char *name, const struct quantize_how *how, const struct tokens *t, size_t *floats)
{
    struct model m;
    struct step_batch b;
    struct err e = {0};
    char *dir = file_join(models, name);
    int n = (int)t->n, pages_n = (n + KV_PAGE - 1) / KV_PAGE;
    if (model_load(&m, dir, "cpu", 1, how, false, &e)) fail_msg("%s: %s", name, e.msg);
    assert_int_equal(model_reserve(&m, &(struct model_reserve){pages_n, n, n, n, DT_F32}, &e), 0);
    assert_int_equal(step_batch_open(&b, m.d, n, 1, n, pages_n), 0);
    int32_t *ids = mem_array(t->n, sizeof *ids), *pages = mem_array((size_t)pages_n, sizeof *pages);
    for (int i = 0; i < n; i++) ids[i] = t->v[i].id;
    for (int i = 0; i < pages_n; i++) pages[i] = i;
    struct step_batch_seq seq = {.tokens = ids, .pages = pages, .n_pages = pages_n, .n = n, .rows = n};
    step_batch_build(&b, m.d, &seq, 1);
    model_forward(&m, &b);
    assert_int_equal(m.d->ops->finish(m.d), 0);
    *floats = t->n * (size_t)m.c.vocab;
    float *out = mem_array(*floats, sizeof *out);
    m.d->ops->download(m.d, out, m.logits.p, *floats * sizeof *out);
    step_batch_close(&b, m.d);
    model_close(&m);
    free(dir), free(ids), free(pages);
    return out;
}

/* Sum of squares of the logits' errors. */
static double error_of(const char *name, const struct quantize_how *how, const struct tokens *t, const float *exact)
{
    size_t n;
    double sum = 0;
    float *got = text_logits(name, how, t, &n);
    for (size_t i = 0; i < n; i++) sum += pow((double)got[i] - (double)exact[i], 2);
    free(got);
    return sum;
}

/* On the text it was calibrated with, a model's logits are nearer to those of the floats. */
static void test_calibrated_experts(void **state)
{
    (void)state;
    static const char *const names[] = {"mixtral", "qwen2-moe", "qwen3-moe", "olmoe"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct err e;
        struct tokens t = {0};
        size_t n;
        char *dir = file_join(models, names[i]);
        struct tokenizer *tk = tokenizer_open_dir(dir, &e);
        assert_non_null(tk);
        assert_int_equal(tokenizer_encode(tk, story, sizeof story - 1, TOKENIZE_SPECIAL, &t, &e), 0);
        struct model_config config;
        assert_int_equal(model_config_read(dir, &config, &e), 0);
        struct calibration c = calibrated(names[i], "cpu", story), dense = c;
        dense.n = tensors_expert_gemm(&config, 0, 0, false); /* the experts' are the last */
        float *exact = text_logits(names[i], NULL, &t, &n);
        double plain = error_of(names[i], &(struct quantize_how){.type = DT_I4}, &t, exact);
        double some = error_of(names[i], &(struct quantize_how){.type = DT_I4, .calibration = &dense}, &t, exact);
        double all = error_of(names[i], &(struct quantize_how){.type = DT_I4, .calibration = &c}, &t, exact);
        print_message("%s: squared errors of the logits %.4g, without the experts' calibration %.4g, with it %.4g\n",
                      names[i], plain, some, all);
        assert_true(all < some && all < plain);
        calibration_close(&c);
        tokens_free(&t);
        tokenizer_close(tk);
        free(dir);
        free(exact);
    }
}

/* Two tokens cannot choose all of eight experts: the others are rounded as without calibration. */
static void test_unseen_experts(void **state)
{
    (void)state;
    struct calibration c = calibrated("olmoe", "cpu", "ab");
    struct model_config config;
    struct err e;
    struct tokens t = {0};
    size_t n;
    char *dir = file_join(models, "olmoe");
    assert_int_equal(model_config_read(dir, &config, &e), 0);
    int none = 0;
    for (int l = 0; l < config.layers; l++)
        for (int k = 0; k < model_experts(&config).count; k++) {
            const struct feedback *up = calibration_feedback(&c, tensors_expert_gemm(&config, l, k, false));
            const struct feedback *down = calibration_feedback(&c, tensors_expert_gemm(&config, l, k, true));
            assert_true(!up == !down);
            none += !up;
        }
    assert_true(c.experts == 16 && none >= 4 && none <= 10 && none == c.unseen);
    struct tokenizer *tk = tokenizer_open_dir(dir, &e);
    assert_non_null(tk);
    assert_int_equal(tokenizer_encode(tk, story, sizeof story - 1, TOKENIZE_SPECIAL, &t, &e), 0);
    float *logits = text_logits("olmoe", &(struct quantize_how){.type = DT_I4, .calibration = &c}, &t, &n);
    for (size_t i = 0; i < n; i++) assert_true(isfinite(logits[i]));
    free(logits);
    free(dir);
    tokens_free(&t);
    tokenizer_close(tk);
    calibration_close(&c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),           cmocka_unit_test(test_gpt_oss),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_models_refused),
        cmocka_unit_test(test_company),          cmocka_unit_test(test_adapted_company),
        cmocka_unit_test(test_calibration_rows), cmocka_unit_test(test_calibrated_experts),
        cmocka_unit_test(test_unseen_experts),
    };
    models = argc > 1 ? argv[1] : "tests/fixtures/models";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
