/* Conversations rendered by models' own templates: what is trained, and that what is before a turn are the tokens that
 * the server computes for the conversation so far. */
#include "tests/unit/engine/data/rows.h"

#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/template/chat_template.h"

#define QWEN "Qwen-Qwen2.5-7B-Instruct"

static struct chat_template *template_of(const char *name)
{
    struct buf path = {0};
    struct err e = {0};
    char *text;
    size_t n;
    buf_printf(&path, "%s/../templates/%s.jinja", fixtures, name);
    if (file_read(path.data, 1 << 20, &text, &n, &e)) fail_msg("%s", e.msg);
    struct chat_template *t = chat_template_parse(text, n, &e);
    if (!t) fail_msg("%s", e.msg);
    free(text);
    buf_free(&path);
    return t;
}

static struct dataset *open_chat(const char *json, const struct tokenizer *tk, const struct chat_template *t,
                                 struct dataset_report *r)
{
    struct dataset *d = NULL;
    struct dataset_options o = {.max_length = 4096};
    struct dataset_source s = inline_rows(json);
    struct err e = {0};
    int32_t eos = tokenizer_find(tk, "<|endoftext|>");
    if (eos < 0) eos = tokenizer_find(tk, "<|end_story|>");
    if (dataset_open(&d, &s, &o, tk, t, eos, r, &e)) fail_msg("%s", e.msg);
    return d;
}

static void check_chat(const char *template, const char *json, const char *expected)
{
    struct tokenizer *tk = byte_level();
    struct chat_template *t = template_of(template);
    struct dataset_report r;
    struct buf shown = {0};
    struct dataset *d = open_chat(json, tk, t, &r);
    show(d, tk, &shown);
    assert_string_equal(shown.data, expected);
    buf_free(&shown);
    dataset_free(d);
    chat_template_free(t);
    tokenizer_close(tk);
}

#define SAYS(who, what) "{\"role\": \"" who "\", \"content\": \"" what "\"}"

static void test_qwen(void **state)
{
    check_chat(QWEN,
               "[{\"messages\": [" SAYS("system", "Be nice.") "," SAYS("user", "a") "," SAYS("assistant", "b") "," SAYS(
                   "user", "c") "," SAYS("assistant", "d") "]}]",
               "<|im_start|>system\\nBe nice.<|im_end|>\\n<|im_start|>user\\na<|im_end|>\\n<|im_start|>assistant\\n"
               "[b<|im_end|>]\\n<|im_start|>user\\nc<|im_end|>\\n<|im_start|>assistant\\n[d<|im_end|>]\n");
}

static void test_alpaca_in_a_template(void **state)
{
    check_chat(
        QWEN,
        "[{\"instruction\": \"Add.\", \"input\": \"2, 2\", \"output\": \"4\", \"system\": \"Be brief.\","
        " \"history\": [[\"hi\", \"hello\"]]}]",
        "<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n"
        "[hello<|im_end|>]\\n<|im_start|>user\\nAdd.\\n2, 2<|im_end|>\\n<|im_start|>assistant\\n[4<|im_end|>]\n");
}

static void test_weights(void **state)
{
    check_chat(
        QWEN,
        "[{\"messages\": [" SAYS("system", "s") "," SAYS(
            "user", "a") ",{\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0}," SAYS("user",
                                                                                               "c") "," SAYS("assis"
                                                                                                             "tant",
                                                                                                             "d") "]}]",
        "<|im_start|>system\\ns<|im_end|>\\n<|im_start|>user\\na<|im_end|>\\n<|im_start|>assistant\\n"
        "b<|im_end|>\\n<|im_start|>user\\nc<|im_end|>\\n<|im_start|>assistant\\n[d<|im_end|>]\n");
}

/* What a template refuses is a bad row, and the reason is the template's. */
static void test_refused(void **state)
{
    struct tokenizer *tk = byte_level();
    struct chat_template *t = template_of("google-gemma-2-2b-it");
    struct dataset_report r;
    struct dataset *d = open_chat("[{\"messages\": [" SAYS("user", "a") "," SAYS(
                                      "assistant", "b") "]},"
                                                        "{\"messages\": [" SAYS("system", "s") "," SAYS(
                                                            "user", "a") "," SAYS("assistant", "b") "]}]",
                                  tk, t, &r);
    assert_int_equal(r.kept, 1);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.problem[0].line, 2);
    assert_non_null(strstr(r.problem[0].what, "System role not supported"));
    dataset_free(d);
    chat_template_free(t);
    tokenizer_close(tk);
}

/* ---- as serving has it ------------------------------------------------------------------------------------------- */

/* Tokens of the first n messages and the generation prompt, as the server computes them. */
static void prompt_of(const struct tokenizer *tk, const struct chat_template *t, const cJSON *messages, int n,
                      struct tokens *out)
{
    cJSON *some = cJSON_CreateArray();
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(some, cJSON_Duplicate(cJSON_GetArrayItem(messages, i), true));
    struct chat_input in = {.messages = some, .add_generation_prompt = true};
    struct buf text = {0};
    struct err e = {0};
    if (chat_template_render(t, &in, &text, NULL, &e)) fail_msg("%s", e.msg);
    assert_int_equal(tokenizer_encode(tk, text.data, text.len, t ? 0 : TOKENIZE_SPECIAL, out, NULL), 0);
    buf_free(&text);
    cJSON_Delete(some);
}

/* Random conversations: each trained turn begins where the server's prompt ends, behind the same tokens. */
static void check_served(const char *tokenizer, const char *template, int turns_max)
{
    static const char *const bits[] = {"a", "the", " ", " upon",   ".", "\\n", "\\n\\n",   "don't",
                                       "1", "12",  "e", "\\u00e9", ",", "T",   "<|im_end", "assistant:"};
    struct tokenizer *tk = load(tokenizer);
    struct chat_template *t = template ? template_of(template) : NULL;
    uint64_t x = 11;
    for (int k = 0; k < 40; k++) {
        struct buf json = {0}, rows = {0};
        int turns = 2 + 2 * (k % (turns_max / 2));
        for (int i = 0; i < turns; i++) {
            buf_printf(&json, "%s{\"role\": \"%s\", \"content\": \"x", i ? "," : "", i % 2 ? "assistant" : "user");
            for (int n = 0; n < 5; n++) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                buf_str(&json, bits[(x >> 33) % (sizeof bits / sizeof *bits)]);
            }
            buf_str(&json, "\"}");
        }
        buf_printf(&rows, "[{\"messages\": [%s]}]", json.data);
        cJSON *tree = cJSON_Parse(rows.data);
        const cJSON *messages = cJSON_GetObjectItem(cJSON_GetArrayItem(tree, 0), "messages");
        struct dataset_report r;
        struct dataset *d = open_chat(rows.data, tk, t, &r);
        struct dataset_row row = dataset_row(d, 0);
        int at = 0;
        for (int i = 1; i < turns; i += 2) {
            struct tokens prompt = {0};
            prompt_of(tk, t, messages, i, &prompt);
            while (at < row.n && !row.trained[at]) at++;
            assert_int_equal(at, prompt.n);
            for (int j = 0; j < at; j++) assert_int_equal(row.id[j], prompt.v[j].id);
            while (at < row.n && row.trained[at]) at++;
            /* it ends with a token that ends a turn */
            if (t || i == turns - 1) assert_true(tokenizer_is_special(tk, row.id[at - 1]));
            tokens_free(&prompt);
        }
        assert_int_equal(at, row.n);
        dataset_free(d);
        cJSON_Delete(tree);
        buf_free(&json);
        buf_free(&rows);
    }
    chat_template_free(t);
    tokenizer_close(tk);
}

static void test_served(void **state)
{
    check_served("qwen2/tokenizer.json", QWEN, 8);
    check_served("qwen2/tokenizer.json", NULL, 8);
    check_served("../../../models/demo/tokenizer.json", NULL, 8);
    /* its tokens reach over words, also over the end of a prompt: then only the first turn can be as it is served */
    check_served("tinystories-656k/tokenizer.json", NULL, 2);
    check_served("../tokenizers/small-llama3.json", "meta-llama-Llama-3.1-8B-Instruct", 8);
}

/* Two templates, or none, make different sets of the same rows. */
static void test_identity(void **state)
{
    struct chat_template *a = template_of(QWEN), *b = template_of(QWEN), *c = template_of("Qwen-Qwen3-0.6B");
    assert_true(chat_template_identity(a) == chat_template_identity(b));
    assert_true(chat_template_identity(a) != chat_template_identity(c));
    assert_true(chat_template_identity(a) != 0);
    assert_true(chat_template_identity(NULL) == 0);
    chat_template_free(a);
    chat_template_free(b);
    chat_template_free(c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen),    cmocka_unit_test(test_alpaca_in_a_template),
        cmocka_unit_test(test_weights), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_served),  cmocka_unit_test(test_identity),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
