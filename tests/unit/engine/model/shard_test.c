/* A model that is divided over ranks has the bits of the whole one: every family, type of weights and adapter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/bench/eval.h"
#include "engine/serve/followers.h"
#include "kernels/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 37, LONG = 250, STAGES = 2 };

static const double PATIENCE = 60; /* seconds */

static const char *fixtures, *device;

/* ---- logits --------------------------------------------------------------------------------------------------------
 */

struct rows {
    float *v; /* (n, vocab) */
    size_t n, vocab;
};

static void keep(void *arg, int row, const float *logits)
{
    struct rows *r = arg;
    memcpy(r->v + (size_t)row * r->vocab, logits, r->vocab * sizeof *logits);
}

static void compute(struct eval *v, int n, struct rows *out)
{
    struct err e = {0};
    int32_t ids[LONG];
    *out = (struct rows){.vocab = (size_t)eval_vocab(v), .n = (size_t)n};
    out->v = mem_array((size_t)n * out->vocab, sizeof *out->v);
    for (int i = 0; i < n; i++) ids[i] = (i * 37 + 5) % eval_vocab(v);
    if (eval_logits(v, ids, n, keep, out, &e)) fail_msg("%s", e.msg);
}

/* The logits of so many tokens and of one alone, without and with the adapter (NULL: none). */
enum { TEXTS = 2, KINDS = 4 };
struct logits {
    struct rows of[KINDS];
    int n;
};

/* @return 0, or the code of the error on rank 0. */
static int logits_of(const char *model, const char *quantize, const char *adapter, int n, int ranks, int stages,
                     struct logits *out, struct err *e)
{
    const int length[TEXTS] = {n, 1};
    struct engine_config c = {
        .model = model, .device = device, .threads = 1, .quantize = quantize, .no_calibration = true, .stages = stages};
    struct followers *f = NULL;
    *out = (struct logits){0};
    if (ranks > 1 && !(f = followers_begin(&c, ranks, PATIENCE, e))) return e->code;
    struct eval *v = eval_open(&c, e);
    for (int with = 0; v && with < (adapter ? 2 : 1); with++) {
        if (with && eval_adapter(v, adapter, e)) fail_msg("%s: %s", adapter, e->msg);
        for (int i = 0; i < TEXTS; i++) compute(v, length[i], &out->of[out->n++]);
    }
    eval_close(v);
    followers_end(f, v != NULL);
    return v ? 0 : e->code;
}

static void logits_free(struct logits *l)
{
    for (int i = 0; i < l->n; i++) free(l->of[i].v);
}

static void same(const struct logits *whole, const struct logits *divided, const char *what, int ranks)
{
    assert_int_equal(whole->n, divided->n);
    for (int k = 0; k < whole->n; k++) {
        const struct rows *a = &whole->of[k], *b = &divided->of[k];
        for (size_t i = 0; i < a->n * a->vocab; i++)
            if (memcmp(&a->v[i], &b->v[i], sizeof *a->v))
                fail_msg("%s on %d ranks: logit %zu of token %zu of text %d is %g, not %g", what, ranks, i % a->vocab,
                         i / a->vocab, k, (double)b->v[i], (double)a->v[i]);
    }
    for (int k = 2; k < whole->n; k++) /* the adapter changes something */
        assert_memory_not_equal(whole->of[k].v, whole->of[k - 2].v, whole->of[k].vocab * sizeof(float));
}

static void compare(const char *name, const char *quantize, const char *adapter, int ranks)
{
    char what[200];
    struct err e = {0};
    struct logits whole, outputs, layers;
    char *models = file_join(fixtures, name), *adapters = file_join(fixtures, "../adapters");
    char *with = adapter ? file_join(adapters, adapter) : NULL;
    snprintf(what, sizeof what, "%s %s %s", name, quantize ? quantize : "", adapter ? adapter : "");
    if (logits_of(models, quantize, with, T, 1, 1, &whole, &e) ||
        logits_of(models, quantize, with, T, ranks, 1, &outputs, &e) ||
        logits_of(models, quantize, with, T, STAGES, STAGES, &layers, &e))
        fail_msg("%s on %d ranks: %s", what, ranks, e.msg);
    same(&whole, &outputs, what, ranks);
    same(&whole, &layers, what, STAGES);
    logits_free(&whole);
    logits_free(&outputs);
    logits_free(&layers);
    free(models);
    free(adapters);
    free(with);
}

static void test_families(void **state)
{
    (void)state;
    static const char *const names[] = {"distilgpt2-prefixed",
                                        "gemma2",
                                        "gemma3-bf16",
                                        "gpt-neox",
                                        "gpt-neox-sequential",
                                        "gpt-oss",
                                        "gpt-oss-mxfp4",
                                        "gpt2",
                                        "granite",
                                        "llama-f16",
                                        "llama-gqa",
                                        "llama-nf4",
                                        "llama-yarn",
                                        "ministral3",
                                        "mistral3-images",
                                        "mixtral",
                                        "olmo2",
                                        "olmo3",
                                        "olmoe",
                                        "phi",
                                        "phi-qk-norm",
                                        "phi-tied",
                                        "phi3",
                                        "phi4-mini",
                                        "qwen2-bf16",
                                        "qwen2-moe",
                                        "qwen3",
                                        "qwen3-moe",
                                        "smollm3-sliding",
                                        "stablelm",
                                        "stablelm-parallel",
                                        "stablelm-qk-norm",
                                        "tinystories-656k"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) compare(names[i], NULL, NULL, 2);
    compare("tinystories-656k", NULL, NULL, 4);
    compare("llama-f16", NULL, NULL, 4);
}

static void test_types(void **state)
{
    (void)state;
    static const char *const types[] = {"int8", "int4", "nf4"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        compare("tinystories-656k", types[i], NULL, 4);
        compare("mixtral", i == 2 ? "int4" : types[i], NULL, 2);
        compare("llama-gqa", i == 2 ? "int4" : types[i], NULL, 2); /* its head is no table of embeddings */
    }
}

static void test_adapters(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"gpt2", "gpt2--conv1d"},
                                           {"gpt2", "gpt2--embedding"},
                                           {"gpt-neox", "gpt-neox--all-linear"},
                                           {"llama-gqa", "llama-gqa--ends"},
                                           {"llama-gqa", "llama-gqa--qv"},
                                           {"mixtral", "mixtral--experts"},
                                           {"olmoe", "olmoe--experts"},
                                           {"phi3", "phi3--all-linear"},
                                           {"qwen2-moe", "qwen2-moe--all-linear"},
                                           {"qwen3-moe", "qwen3-moe--experts"},
                                           {"phi-tied", "phi-tied--ends"},
                                           {"gpt-oss", "gpt-oss--attention"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) compare(names[i][0], NULL, names[i][1], 2);
    compare("llama-gqa", "int8", "llama-gqa--all-linear-bf16", 2);
}

/* Micro-batches, of which the stages compute several at once, and which begin within a text. */
static void test_parts_of_a_step(void **state)
{
    (void)state;
    static const struct {
        const char *model, *adapter;
        int ranks, stages;
    } of[] = {{"gemma2", NULL, 2, 2},
              {"gemma2", NULL, 3, 3},
              {"gemma2", NULL, 4, 4},
              {"gemma2", NULL, 4, 2}, /* two ranks a stage */
              {"mixtral", "mixtral--experts", 4, 2},
              {"llama-gqa", "llama-gqa--ends", 2, 2},
              {"llama-gqa", "llama-gqa--ends", 4, 2}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct err e = {0};
        struct logits whole, layers;
        char *model = file_join(fixtures, of[i].model), *adapters = file_join(fixtures, "../adapters");
        char *with = of[i].adapter ? file_join(adapters, of[i].adapter) : NULL;
        if (logits_of(model, NULL, with, LONG, 1, 1, &whole, &e) ||
            logits_of(model, NULL, with, LONG, of[i].ranks, of[i].stages, &layers, &e))
            fail_msg("%s on %d ranks: %s", of[i].model, of[i].ranks, e.msg);
        same(&whole, &layers, of[i].model, of[i].ranks);
        logits_free(&layers);
        logits_free(&whole);
        free(model);
        free(adapters);
        free(with);
    }
}

/* On the CUDA kernels, which the CPU runs: what ranks that have devices do otherwise. */
static void test_devices(void **state)
{
    (void)state;
#ifdef TANDEM_SIMT
    device = "simt";
    for (int host = 0; host < 2; host++) { /* 1: they exchange through the host's memory */
        setenv("SIMT_NCCL", host ? "0" : "", 1);
        compare("tinystories-656k", NULL, NULL, 4);
        compare("tinystories-656k", "int8", NULL, 2); /* its table of embeddings is divided */
        compare("olmo2", NULL, NULL, 2);              /* norms of all heads together */
        compare("mixtral", "int8", NULL, 2);
        compare("llama-gqa", NULL, "llama-gqa--ends", 2);
    }
    unsetenv("SIMT_NCCL");
    device = NULL;
#else
    skip();
#endif
}

struct other {
    struct engine_config c;
    struct err e;
};

static void *follow(void *arg)
{
    struct other *o = arg;
    engine_follow(&o->c, &o->e);
    return NULL;
}

/* Two ranks that were told different things: both end with the same message. */
static void differ(const struct engine_config *first, const struct engine_config *second, const char *says)
{
    struct comm *comm[2];
    struct engine_config c = *first;
    struct other o = {.c = *second};
    struct err e = {0};
    pthread_t thread;
    assert_true(comm_open_local(2, PATIENCE, comm));
    c.comm = comm[0];
    o.c.comm = comm[1];
    assert_int_equal(pthread_create(&thread, NULL, follow, &o), 0);
    assert_null(eval_open(&c, &e));
    pthread_join(thread, NULL);
    if (!strstr(e.msg, says) || !strstr(o.e.msg, says)) fail_msg("%s; %s", e.msg, o.e.msg);
    for (int i = 0; i < 2; i++) comm_close(comm[i]);
}

static void test_ranks_that_differ(void **state)
{
    (void)state;
    char *model = file_join(fixtures, "llama-gqa"), *another = file_join(fixtures, "qwen2");
    struct engine_config c = {.model = model, .threads = 1, .device = "cpu:portable"}, other = c;
    other.device = "ref";
    differ(&c, &other, "rank 1 computes on ref ref and rank 0 on cpu portable");
    other = c;
    other.activations = "bf16";
    differ(&c, &other, "one --activations");
    other = c;
    other.quantize = "int8";
    differ(&c, &other, "other types of weights");
    other = c;
    other.model = another;
    differ(&c, &other, "another model than rank 0");
    other.model = "/nowhere";
    differ(&c, &other, "rank 1: ");
    free(model);
    free(another);
}

static void test_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct logits none;
    char *model = file_join(fixtures, "llama-gqa");
    assert_int_not_equal(logits_of(model, NULL, NULL, T, 9, 9, &none, &e), 0);
    assert_non_null(strstr(e.msg, "layers cannot be divided into 9 stages: each has at least one"));
    assert_int_not_equal(logits_of(model, NULL, NULL, T, 4, 1, &none, &e), 0);
    assert_string_equal(e.msg, "rank 0: 2 heads of keys and values cannot be divided over 4 ranks: the number of ranks "
                               "has to divide it");
    free(model);
}

int main(int argc, char **argv)
{
    assert_true(argc == 2);
    fixtures = argv[1];
    setenv("SIMT_DEVICES", "4", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families),         cmocka_unit_test(test_types),
                                       cmocka_unit_test(test_adapters),         cmocka_unit_test(test_parts_of_a_step),
                                       cmocka_unit_test(test_devices),          cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_ranks_that_differ)};
    return cmocka_run_group_tests_name("model_shard", tests, NULL, NULL);
}
