/* Names of the hub, and which files of a repository are wanted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/hub/repo.h"

#include <stdlib.h>
#include <string.h>

#define ENDPOINT "http://hub.example:8000/path"

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *text, *id, *revision, *quant;
    } cases[] = {
        {"Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", ""},
        {"a/b", "a/b", "main", ""},
        {"a1_x/b.c-d_e", "a1_x/b.c-d_e", "main", ""},
        {"a/b@v1.0", "a/b", "v1.0", ""},
        {"a/b@refs/pr/1", "a/b", "refs/pr/1", ""},
        {"a/b@0123456789abcdef0123456789abcdef01234567", "a/b", "0123456789abcdef0123456789abcdef01234567", ""},
        {"a/b:Q4_K_M", "a/b", "main", "Q4_K_M"},
        {"a/b@dev:q8_0", "a/b", "dev", "q8_0"},
        {"a/b:sub/model-Q4_0.gguf", "a/b", "main", "sub/model-Q4_0.gguf"},
        {"https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main", ""},
        {"https://huggingface.co/Qwen/Qwen3-0.6B/", "Qwen/Qwen3-0.6B", "main", ""},
        {"https://hf.co/a/b?library=transformers#x", "a/b", "main", ""},
        {"HTTPS://HuggingFace.co/a/b", "a/b", "main", ""},
        {"https://huggingface.co/a/b/tree/refs/pr/3", "a/b", "refs/pr/3", ""},
        {"https://huggingface.co/a/b/discussions", "a/b", "main", ""},
        {"https://huggingface.co/a/b/blob/main/config.json", "a/b", "main", ""},
        {"https://huggingface.co/a/b/resolve/v2/x/m-Q4_0.gguf?download=true", "a/b", "v2", "x/m-Q4_0.gguf"},
        {ENDPOINT "/a/b/tree/dev", "a/b", "dev", ""},
        {"hf://a/b@dev", "a/b", "dev", ""},
        {"hf://models/a/b", "a/b", "main", ""},
        {"hf.co/a/b:Q4_K_M", "a/b", "main", "Q4_K_M"},
        {"huggingface.co/a/b", "a/b", "main", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct repo_name r;
        struct err e = {0};
        if (!repo_parse(&r, cases[i].text, ENDPOINT, &e)) fail_msg("%s: %s", cases[i].text, e.msg);
        assert_string_equal(r.id, cases[i].id);
        assert_string_equal(r.revision, cases[i].revision);
        assert_string_equal(r.quant, cases[i].quant);
    }
}

static void test_paths_and_mistakes(void **state)
{
    (void)state;
    static const char *const paths[] = {"",        "gpt2",   "/a/b", "./a/b", "../a",  "a/b/c", "~/a",
                                        ".a/b",    "a/",     "/",    "a//b",  "a b/c", "a/.b",  "-a/b",
                                        "a/b.c/d", "a\nb/c", "a/-",  "a",     "a:b",   "a@b/c"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct repo_name r;
        struct err e = {0};
        if (repo_parse(&r, paths[i], ENDPOINT, &e) || e.code) fail_msg("%s is a path: %s", paths[i], e.msg);
    }
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"a/b--c", "has --"},
        {"datasets/a", "is of data sets"},
        {"a/b..c", "has .."},
        {"a/b.git", "ends with .git"},
        {"a/b.", "ends with . or -"},
        {"a-/b", "ends with . or -"},
        {"a/bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
         "longer than 96"},
        {"a/b@", "the revision is not"},
        {"a/b@../x", "the revision is not"},
        {"a/b@x/../y", "the revision is not"},
        {"a/b@/etc", "the revision is not"},
        {"a/b@x y", "the revision is not"},
        {"a/b@x/.y", "the revision is not"},
        {"a/b:", "after the colon"},
        {"a/b:../x.gguf", "after the colon"},
        {"a/b:/x.gguf", "after the colon"},
        {"https://huggingface.co/", "names no model"},
        {"https://huggingface.co/a", "names no model"},
        {"https://huggingface.co/datasets/a/b/tree/main", "names no model"},
        {"https://huggingface.co.evil.example/a/b", "not one of the Hugging Face hub"},
        {"https://example.com/a/b", "not one of the Hugging Face hub"},
        {"file:///etc/passwd", "not one of the Hugging Face hub"},
        {"hf://", "names no model"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct repo_name r;
        struct err e = {0};
        if (repo_parse(&r, wrong[i].text, ENDPOINT, &e)) fail_msg("%s is taken", wrong[i].text);
        if (e.code >= 0 || !strstr(e.msg, wrong[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", wrong[i].text, e.msg, wrong[i].says);
    }
}

static void test_data_sets(void **state)
{
    static const struct {
        const char *text, *id, *revision, *file;
    } good[] = {
        {"hf:a/b", "datasets/a/b", "main", ""},
        {"hf:datasets/a/b@v1:x/y.jsonl", "datasets/a/b", "v1", "x/y.jsonl"},
        {"hf://datasets/a/b@v1/x/*.jsonl", "datasets/a/b", "v1", "x/*.jsonl"},
    };
    static const char *const bad[] = {"hf:",         "hf:a",      "hf:a/b:",         "hf:a/b:/x",
                                      "hf:a/b:../x", "hf:a/../b", "hf://datasets/a", "hf:a/b@..:x"};
    static const char *const names[] = {"README.md",        "dataset_info.json", "b/training.json",
                                        "a-train.jsonl.gz", "test.jsonl",        "restrain.json"};
    bool chosen[6];
    struct repo_name r;
    struct err e = {0};
    struct buf folder = {0};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (repo_parse_data(&r, good[i].text, &e)) fail_msg("%s", e.msg);
        assert_string_equal(r.id, good[i].id);
        assert_string_equal(r.revision, good[i].revision);
        assert_string_equal(r.quant, good[i].file);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!repo_parse_data(&r, bad[i], &e)) fail_msg("%s", bad[i]);
    repo_folder(&folder, "datasets/a/b");
    assert_string_equal(folder.data, "datasets--a--b");
    buf_free(&folder);
    assert_int_equal(repo_data(names, 6, "", chosen, &e), 2);
    assert_true(chosen[2] && chosen[3]);
    assert_int_equal(repo_data(names + 4, 2, "", chosen, &e), 1); /* none for training: what is not for testing */
    assert_true(chosen[1]);
    assert_int_equal(repo_data(names, 6, "b/*", chosen, &e), 1);
    assert_true(repo_data(names, 2, "", chosen, &e) < 0);
}

static void test_folders(void **state)
{
    (void)state;
    struct buf b = {0};
    char id[REPO_NAME_MAX + 1];
    repo_folder(&b, "Qwen/Qwen3-0.6B");
    assert_string_equal(b.data, "models--Qwen--Qwen3-0.6B");
    assert_true(repo_of_folder(b.data, id));
    assert_string_equal(id, "Qwen/Qwen3-0.6B");
    assert_true(repo_of_folder("models--gpt2", id));
    assert_string_equal(id, "gpt2");
    assert_false(repo_of_folder("datasets--a--b", id));
    assert_false(repo_of_folder("models--", id));
    assert_false(repo_of_folder("models--a--b--c", id));
    assert_false(repo_of_folder("models----b", id));
    assert_false(repo_of_folder(".locks", id));
    buf_free(&b);
    repo_url_encode(&b, "refs/pr/1 \xc3\xa9?#%", "");
    assert_string_equal(b.data, "refs%2Fpr%2F1%20%C3%A9%3F%23%25");
    buf_free(&b);
}

static void test_files(void **state)
{
    (void)state;
    static const char *const small[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "chat_template.jinja",
                                        "additional_chat_templates/tool_use.jinja",
                                        "model.safetensors.index.json",
                                        "adapter_config.json",
                                        "modules.json",
                                        "1_Pooling/config.json",
                                        "sentence_bert_config.json"};
    static const char *const neither[] = {"README.md",
                                          "pytorch_model.bin",
                                          "pytorch_model.bin.index.json",
                                          "onnx/model.onnx",
                                          "tf_model.h5",
                                          "flax_model.msgpack",
                                          "original/params.json",
                                          "training_args.bin",
                                          "consolidated.safetensors",
                                          "model.fp16.safetensors",
                                          "rust_model.ot",
                                          "onnx/config.json",
                                          "1_x/y/config.json",
                                          "LICENSE.txt",
                                          ".gitattributes",
                                          "model-00001-of-00002.safetensors",
                                          "runs/a.json",
                                          "trainer_state.json"};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++)
        if (!repo_small_file(small[i]) || repo_weights_file(small[i])) fail_msg("%s", small[i]);
    for (size_t i = 0; i < sizeof neither / sizeof *neither; i++)
        if (repo_small_file(neither[i]) || repo_weights_file(neither[i])) fail_msg("%s", neither[i]);
    assert_true(repo_weights_file("model.safetensors") && repo_weights_file("adapter_model.safetensors"));
    assert_true(repo_weights_file("2_Dense/model.safetensors"));
    static const char *const bad[] = {"",    "/etc/passwd", "../x", "a/../b", "a//b", "./a",
                                      "a/.", "a\\b",        "a\nb", "a/",     "\177"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (repo_file_good(bad[i])) fail_msg("\"%s\" is a good name", bad[i]);
    assert_true(repo_file_good("a/b.json") && repo_file_good("..a") && repo_file_good(".gitattributes"));
    assert_true(repo_commit_good("0123456789abcdef0123456789abcdef01234567"));
    assert_false(repo_commit_good("0123456789ABCDEF0123456789abcdef01234567") || repo_commit_good("../../../etc/x") ||
                 repo_commit_good("0123456789abcdef0123456789abcdef012345678") || repo_commit_good(""));
}

static void test_gguf(void **state)
{
    (void)state;
    static const char *const names[] = {"README.md",
                                        "m-Q4_K_M.gguf",
                                        "m-Q4_K_S.gguf",
                                        "m-UD-Q4_K_S.gguf",
                                        "m.Q8_0.gguf",
                                        "mmproj-F16.gguf",
                                        "imatrix.gguf",
                                        "F16/m-F16-00001-of-00003.gguf",
                                        "F16/m-F16-00002-of-00003.gguf",
                                        "F16/m-F16-00003-of-00003.gguf",
                                        "BF16/m-BF16-00002-of-00002.gguf"};
    enum { N = sizeof names / sizeof *names };
    static const struct {
        const char *quant;
        int n, first;
        const char *says;
    } cases[] = {
        {"Q4_K_M", 1, 1, NULL},
        {"q4_k_m", 1, 1, NULL},
        {"Q8_0", 1, 4, NULL},
        {"f16", 3, 7, NULL},
        {"UD-Q4_K_S", 1, 3, NULL},
        {"m-Q4_K_S.gguf", 1, 2, NULL},
        {"F16/m-F16-00002-of-00003.gguf", 3, 7, NULL},
        {"Q4_K_S", 0, 0, "m-Q4_K_S.gguf, m-UD-Q4_K_S.gguf"},
        {"Q4_K", 0, 0, "no GGUF file is of type Q4_K; there are m-Q4_K_M.gguf"},
        {"Q5_0", 0, 0, "no GGUF file is of type Q5_0"},
        {"", 0, 0, "which GGUF file?"},
        {"BF16", 0, 0, "its first part is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool chosen[N];
        int first;
        struct err e = {0};
        int n = repo_gguf(names, N, cases[i].quant, chosen, &first, &e);
        if (cases[i].says) {
            if (n >= 0 || !strstr(e.msg, cases[i].says)) fail_msg("%s: %d, \"%s\"", cases[i].quant, n, e.msg);
            continue;
        }
        if (n != cases[i].n || first != cases[i].first) fail_msg("%s: %d files, first %d", cases[i].quant, n, first);
        assert_true(chosen[first] && !chosen[0]);
    }
    assert_int_equal(repo_gguf_parts(names[7]), 3);
    assert_int_equal(repo_gguf_parts(names[1]), 1);
    bool chosen[1];
    int first;
    struct err e = {0};
    assert_int_equal(repo_gguf(names + 1, 1, "", chosen, &first, &e), 1);
    assert_true(repo_gguf(names, 1, "", chosen, &first, &e) < 0);
    assert_non_null(strstr(e.msg, "there is no GGUF file"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),   cmocka_unit_test(test_paths_and_mistakes),
        cmocka_unit_test(test_folders), cmocka_unit_test(test_data_sets),
        cmocka_unit_test(test_files),   cmocka_unit_test(test_gguf),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
