/* What is said of a --model that cannot be loaded: what it is, what is missing, what to do next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/model_dir.h"
#include "engine/model/config.h"
#include "engine/model/safetensors.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POINTER                                                                                                        \
    "version https://git-lfs.github.com/spec/v1\noid "                                                                 \
    "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d1"                                                \
    "7e2393\nsize 3087467144\n"

static char root[] = "/tmp/tandem-model-dir-XXXXXX";

/* How the loader opens a model: configuration, weights, tokenizer. */
static int load(const char *dir, struct err *e)
{
    struct model_config c;
    int rc = model_config_read(dir, &c, e);
    if (rc) return rc;
    struct tensor_source *s = safetensors_open_dir(dir, e);
    if (!s) return e->code;
    tensor_source_close(s);
    struct tokenizer *t = tokenizer_open_dir(dir, e);
    if (!t) return e->code;
    tokenizer_close(t);
    return 0;
}

static void put(const char *dir, const char *name, const char *text)
{
    struct err e = {0};
    char *path = file_join(dir, name);
    if (file_write_sync(path, text, strlen(text), &e)) fail_msg("%s", e.msg);
    free(path);
}

#define CONFIG                                                                                                         \
    "{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":" \
    "4,\"intermediate_size\":96}"
/* a header of two bytes, {} */
#define NO_TENSORS "\2"

/* Files with their contents, and three things that the message has. */
static void test_directories(void **state)
{
    (void)state;
    static const struct {
        const char *file[3], *text[3], *says[3];
    } cases[] = {
        {{"a.txt"}, {"a"}, {"config.json is missing", "--model takes a directory with config.json"}},
        {{"model-q4.GGUF"}, {"GGUF"}, {"model-q4.GGUF: byte 4: the file ends in the header"}},
        {{"a.gguf", "b.gguf"}, {"GGUF", "GGUF"}, {"a directory of 2 GGUF models: name one of its files"}},
        {{"adapter_config.json"}, {"{}"}, {"a LoRA adapter, not a model", "--adapters NAME="}},
        {{"config.json"}, {POINTER}, {"config.json: a git-lfs pointer", "git lfs pull"}},
        {{"config.json", "model.safetensors"},
         {CONFIG, POINTER},
         {"model.safetensors: a git-lfs pointer", "git lfs pull"}},
        {{"config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"},
         {CONFIG, POINTER, "{\"weight_map\":{\"a\":\"model-00001-of-00001.safetensors\"}}"},
         {"a git-lfs pointer"}},
        {{"config.json", "pytorch_model.bin"}, {CONFIG, "PK"}, {"pytorch_model.bin only", "save_pretrained("}},
        {{"config.json", "pytorch_model.bin.index.json"},
         {CONFIG, "{}"},
         {"pytorch_model.bin only", "save_pretrained("}},
        {{"config.json", "model.gguf"}, {CONFIG, "GGUX"}, {"model.gguf: byte 0: not a GGUF file"}},
        {{"config.json"}, {CONFIG}, {"neither model.safetensors nor model.safetensors.index.json", "download"}},
        {{"config.json", "model.safetensors", "tokenizer.model"},
         {CONFIG, NO_TENSORS, "x"},
         {"tokenizer.json is missing", "tokenizer.model is not read", "AutoTokenizer"}},
        {{"config.json", "model.safetensors", "vocab.json"},
         {CONFIG, NO_TENSORS, "{}"},
         {"tokenizer.json is missing", "vocab.json is not read", "save_pretrained("}},
        {{"config.json", "model.safetensors", "tekken.json"},
         {CONFIG, NO_TENSORS, "{}"},
         {"tokenizer.json is missing", "tekken.json is not read", "take the tokenizer.json"}},
        {{"config.json", "model.safetensors"}, {CONFIG, NO_TENSORS}, {"tokenizer.json is missing", "--model takes"}},
        {{"config.json", "model.safetensors", "tokenizer.json"},
         {CONFIG, NO_TENSORS, POINTER},
         {"tokenizer.json: a git-lfs pointer", "git lfs pull"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *dir = file_join(root, "m");
        struct err e = {0};
        assert_int_equal(dir_make(dir, &e), 0);
        for (int k = 0; k < 3 && cases[i].file[k]; k++)
            if (strcmp(cases[i].text[k], NO_TENSORS)) {
                put(dir, cases[i].file[k], cases[i].text[k]);
            } else {
                char *path = file_join(dir, cases[i].file[k]);
                assert_int_equal(file_write_sync(path, "\2\0\0\0\0\0\0\0{}", 10, &e), 0);
                free(path);
            }
        int rc = load(dir, &e);
        assert_true(rc < 0 && rc == e.code);
        for (int k = 0; k < 3 && cases[i].says[k]; k++)
            if (!strstr(e.msg, cases[i].says[k]))
                fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].file[0], e.msg, cases[i].says[k]);
        dir_remove(dir);
        free(dir);
    }
}

static void test_no_directories(void **state)
{
    (void)state;
    static const struct {
        const char *model, *says[2];
    } cases[] = {
        {"no/such/model", {"no/such/model: no such directory", "--model takes a directory"}},
        {"/no/such", {"/no/such: no such directory"}},
        {"./Qwen", {"./Qwen: no such directory"}},
        {"Qwen/Qwen2.5-0.5B-Instruct", {"no such directory", "or ORG/NAME on the Hugging Face hub"}},
        {"gpt2", {"no such directory", "or ORG/NAME on the Hugging Face hub"}},
        {"https://huggingface.co/Qwen/Qwen2.5-0.5B", {"a URL; --model takes", "ORG/NAME"}},
        {"https://huggingface.co/Qwen/Qwen3-4B/tree/main?x=1", {"a URL", "ORG/NAME"}},
        {"hf://", {"a URL", "ORG/NAME"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_true(load(cases[i].model, &e) < 0);
        for (int k = 0; k < 2 && cases[i].says[k]; k++)
            if (!strstr(e.msg, cases[i].says[k])) fail_msg("\"%s\" does not say \"%s\"", e.msg, cases[i].says[k]);
        assert_true(model_dir_no_tokenizer(cases[i].model, &e) < 0); /* of commands that only want that */
        assert_non_null(strstr(e.msg, cases[i].says[0]));
    }
    struct err e = {0};
    put(root, "model.gguf", "GGUF");
    put(root, "model.safetensors", "x");
    char *gguf = file_join(root, "model.gguf"), *weights = file_join(root, "model.safetensors");
    assert_true(load(gguf, &e) < 0);
    assert_non_null(strstr(e.msg, "model.gguf: byte 4: the file ends"));
    assert_true(load(weights, &e) < 0);
    assert_non_null(strstr(e.msg, "a file, not a directory"));
    free(gguf);
    free(weights);
    char *cache = file_join(root, "models--a--b"), *inside = file_join(cache, "snapshots");
    assert_int_equal(dir_make(inside, &e), 0);
    assert_true(load(cache, &e) < 0);
    assert_non_null(strstr(e.msg, "--model ORG/NAME finds the model in it"));
    rmdir(inside);
    rmdir(cache);
    free(cache);
    free(inside);
}

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    dir_remove(root);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_directories), cmocka_unit_test(test_no_directories)};
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
