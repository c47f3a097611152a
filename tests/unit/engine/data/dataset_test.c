/* Data sets: what each format becomes (shown as text, what is trained in brackets), files of all kinds, and where
 * prompts end.  The cache has its own test, cache_test.c; bad rows are in bad_test.c. */
#include "tests/unit/engine/data/rows.h"

#include "engine/base/err.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define EOT "<|endoftext|>"

static struct dataset_options usual(void)
{
    return (struct dataset_options){.max_length = 512};
}

static struct dataset *open_source(const struct dataset_source *s, const struct dataset_options *o,
                                   const struct tokenizer *t, struct dataset_report *r)
{
    struct dataset *d = NULL;
    struct err e = {0};
    int32_t eos = tokenizer_find(t, EOT);
    if (eos < 0) eos = tokenizer_find(t, "<|end_story|>");
    if (dataset_open(&d, s, o, t, NULL, eos, r, &e)) fail_msg("%s", e.msg);
    assert_int_equal(r->seen, r->kept + r->skipped + r->duplicates);
    assert_int_equal(r->kept, dataset_rows(d));
    return d;
}

static void check_source(const struct dataset_source *s, const struct dataset_options *o, enum dataset_format format,
                         const char *expected)
{
    struct tokenizer *t = byte_level();
    struct dataset_report r;
    struct buf shown = {0};
    struct dataset *d = open_source(s, o, t, &r);
    show(d, t, &shown);
    assert_string_equal(shown.data, expected);
    assert_int_equal(r.format, format);
    assert_int_equal(r.skipped, 0);
    buf_free(&shown);
    dataset_free(d);
    tokenizer_close(t);
}

static void check_rows(const char *json, enum dataset_format format, const char *expected)
{
    struct dataset_source s = inline_rows(json);
    struct dataset_options o = usual();
    check_source(&s, &o, format, expected);
}

/* ---- formats ----------------------------------------------------------------------------------------------------- */

static void test_text(void **state)
{
    check_rows("[{\"text\": \"a day.\"}, {\"text\": \"\\u00e9t\\u00e9\", \"id\": 7}, \"a string\"]", DATASET_TEXT,
               "a[ day." EOT "]\n[\xc3\xa9t\xc3\xa9" EOT "]\na[ string" EOT "]\n");
}

static void test_completion(void **state)
{
    check_rows("[{\"prompt\": \"2+2=\", \"completion\": \"4\"},"
               " {\"prompt\": \"\", \"completion\": \"alone\"},"
               " {\"prompt\": \"ends\", \"completion\": \" with it" EOT "\"}]",
               DATASET_COMPLETION, "2+2=[4" EOT "]\na[lone" EOT "]\nends[ with it" EOT "]\n");
}

static void test_completion_of_messages(void **state)
{
    check_rows(
        "[{\"prompt\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": \"yes?\"}, "
        "{\"role\": \"user\", \"content\": \"more\"}],"
        " \"completion\": [{\"role\": \"assistant\", \"content\": \"ok\"}]}]",
        DATASET_COMPLETION, "user: hi\\nassistant: yes?\\nuser: more\\nassistant:[ ok\\n" EOT "]\n");
}

static void check_as(enum dataset_format format, const char *json, const char *expected)
{
    struct dataset_source s = inline_rows(json);
    struct dataset_options o = usual();
    o.format = format;
    check_source(&s, &o, format, expected);
}

/* A prompt that is not given is what both answers begin with, as in TRL; a text beside messages repeats them. */
static void test_preference(void **state)
{
    check_as(DATASET_PREFERENCE,
             "[{\"prompt\": \"2+2=\", \"chosen\": \"4\", \"rejected\": \"55\"},"
             " {\"chosen\": \"a red cat\", \"rejected\": \"a blue cat\"},"
             " {\"chosen\": \"\\u00e9\", \"rejected\": \"\\u00e8\"}]",
             "2+2=[4" EOT "] / 2+2=[55" EOT "]\n"
             "a[ red cat" EOT "] / a[ blue cat" EOT "]\n"
             "[\xc3\xa9" EOT "] / [\xc3\xa8" EOT "]\n");
#define USER "{\"role\": \"user\", \"content\": \"hi\"}"
#define SAYS(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
    static const char expected[] = "user: hi\\nassistant:[ yes\\n" EOT "] / user: hi\\nassistant:[ no\\n" EOT "]\n";
    check_as(DATASET_PREFERENCE,
             "[{\"prompt\": [" USER "], \"chosen\": [" SAYS("yes") "], \"rejected\": [" SAYS("no") "]}]", expected);
    check_as(DATASET_PREFERENCE,
             "[{\"prompt\": \"hi\", \"chosen\": [" USER "," SAYS("yes") "], \"rejected\": [" USER "," SAYS("no") "]}]",
             expected);
}

static void test_unpaired(void **state)
{
    /* the same answer with another label is another row */
    check_as(DATASET_UNPAIRED,
             "[{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true},"
             " {\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}]",
             "a[b" EOT "] yes\na[b" EOT "] no\n");
}

/* Ids of prompt and answer: what they are is trained, no end of the text is added, and texts beside them do not
 * count. */
static void test_ids(void **state)
{
    check_as(DATASET_UNPAIRED,
             "[{\"prompt_ids\": [67, 68], \"completion_ids\": [69], \"logprobs\": [-0.5], \"label\": true,"
             "  \"prompt\": \"x\", \"completion\": \"y\"},"
             " {\"prompt_ids\": [67, 68], \"completion_ids\": [69], \"label\": false},"
             " {\"prompt_ids\": [67], \"prompt\": \"a\", \"completion\": \"b\", \"label\": true}]",
             "ab[c] yes\nab[c] no\na[b" EOT "] yes\n");
    check_as(DATASET_PREFERENCE,
             "[{\"prompt_ids\": [67, 68], \"chosen_ids\": [69, 70], \"rejected_ids\": [71], \"chosen\": \"x\"},"
             " {\"prompt_ids\": [67], \"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}]",
             "ab[cd] / ab[e]\na[b" EOT "] / a[c" EOT "]\n");
    check_rows("[{\"prompt_ids\": [67], \"completion_ids\": [68, 69]}, {\"prompt\": \"a\", \"completion\": \"b\"}]",
               DATASET_COMPLETION, "a[bc]\na[b" EOT "]\n");
}

/* An answer's ids are those that a row of its text has, where the prompt's are a text's own. */
static void test_encode_answer(void **state)
{
    static const char *const models[] = {"qwen2/tokenizer.json", "tinystories-656k/tokenizer.json"};
    static const char answer[] = " is a b c.";
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct tokenizer *t = load(models[i]);
        struct dataset_source s = inline_rows("[{\"prompt\": \"The sky\", \"completion\": \" is a b c.\"}]");
        struct dataset_options o = usual();
        struct dataset_report r;
        struct tokens ids = {0};
        o.no_eos = true;
        struct dataset *d = open_source(&s, &o, t, &r);
        struct dataset_row row = dataset_row(d, 0);
        assert_int_equal(dataset_encode_answer(t, answer, strlen(answer), &ids, NULL), 0);
        assert_int_equal(ids.n, row.n_trained);
        for (size_t k = 0; k < ids.n; k++) assert_int_equal(ids.v[k].id, row.id[(size_t)row.n - ids.n + k]);
        tokens_free(&ids);
        dataset_free(d);
        tokenizer_close(t);
    }
}

static void test_bad_preferences(void **state)
{
    static const struct {
        const char *row, *what;
    } bad[] = {
        {"{\"prompt\": \"a\", \"chosen\": \"b\"}", "no \"rejected\""},
        {"{\"prompt\": \"a\", \"rejected\": \"b\"}", "no \"chosen\""},
        {"{\"prompt\": 1, \"chosen\": \"b\", \"rejected\": \"c\"}", "\"prompt\" must be a string, is a number"},
        {"{\"chosen\": \"b\", \"rejected\": \"b\"}", "\"chosen\" and \"rejected\" are the same"},
        {"{\"chosen\": \"b\", \"rejected\": \"bc\"}", "\"chosen\" is empty after what both begin with"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [" SAYS("x") "]}",
         "\"chosen\" is a string and \"rejected\" a list: both must be texts, or lists of messages"},
        {"{\"chosen\": [" USER "," SAYS("x") "], \"rejected\": [" USER ", 5]}",
         "\"rejected\": messages[1] must be an object, is a number"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"  \"}", "\"rejected\" is empty"},
        {"{\"prompt_ids\": 1, \"chosen_ids\": [2], \"rejected_ids\": [3]}",
         "\"prompt_ids\" must be a list, is a number"},
        {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [2]}",
         "\"chosen_ids\" and \"rejected_ids\" are the same"},
        {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": []}", "\"rejected_ids\" is empty"},
        {"{\"prompt_ids\": [-1], \"chosen_ids\": [2], \"rejected_ids\": [3]}",
         "prompt_ids[0] is not a token id below 288"},
        {"{\"prompt_ids\": [1], \"chosen_ids\": [2], \"rejected_ids\": [3, 1e9]}",
         "rejected_ids[1] is not a token id below 288"},
    };
    struct tokenizer *t = byte_level();
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct buf json = {0};
        buf_printf(&json, "[{\"prompt\": \"2+2=\", \"chosen\": \"4\", \"rejected\": \"5\"}, %s]", bad[i].row);
        struct dataset_source s = inline_rows(json.data);
        struct dataset_options o = usual();
        struct dataset_report r;
        o.format = DATASET_PREFERENCE;
        struct dataset *d = open_source(&s, &o, t, &r);
        assert_int_equal(r.kept, 1);
        assert_int_equal(r.n_problems, 1);
        assert_int_equal(r.problem[0].line, 2);
        assert_string_equal(r.problem[0].what, bad[i].what);
        dataset_free(d);
        buf_free(&json);
    }
    tokenizer_close(t);
}

#define BELOW "Below is an instruction that describes a task"
#define WRITE "Write a response that appropriately completes the request."

static void test_alpaca(void **state)
{
    check_rows("[{\"instruction\": \"Add.\", \"input\": \"2, 2\", \"output\": \"4\"},"
               " {\"instruction\": \"Greet.\", \"input\": \"\", \"output\": \"Hello!\"},"
               " {\"instruction\": \"Who?\", \"output\": \"Me.\", \"system\": \"Be brief.\","
               "  \"history\": [[\"hi\", \"hello\"]]}]",
               DATASET_ALPACA,
               BELOW ", paired with an input that provides further context. " WRITE
                     "\\n\\n### Instruction:\\nAdd.\\n\\n### Input:\\n2, 2\\n\\n### Response:\\n[4" EOT "]\n" BELOW
                     ". " WRITE "\\n\\n### Instruction:\\nGreet.\\n\\n### Response:\\n[Hello!" EOT "]\n"
                     "Be brief.\\n\\n### Instruction:\\nhi\\n\\n### Response:\\n[hello]\\n\\n"
                     "### Instruction:\\nWho?\\n\\n### Response:\\n[Me." EOT "]\n");
}

static void test_messages(void **state)
{
    check_rows(
        "[{\"messages\": [{\"role\": \"system\", \"content\": \"Be nice.\"}, {\"role\": \"user\", \"content\": \"a\"},"
        " {\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"},"
        " {\"role\": \"assistant\", \"content\": \"d\"}]}]",
        DATASET_MESSAGES, "system: Be nice.\\nuser: a\\nassistant:[ b\\n]user: c\\nassistant:[ d\\n" EOT "]\n");
}

static void test_weights(void **state)
{
    /* what follows the last trained turn changes nothing and is dropped */
    check_rows(
        "[{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", "
        "\"weight\": 0}, {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", \"content\": \"d\", "
        "\"weight\": 1}]},"
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"value\": \"a\"}], "
        "\"loss_weight\": 0.0}, {\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}, "
        "{\"type\": \"text\", \"text\": \"b\"}], \"loss_weight\": 1.0}, {\"role\": \"user\", \"content\": \"c\"}, "
        "{\"role\": \"assistant\", \"content\": \"d\", \"loss_weight\": 0}]}]",
        DATASET_MESSAGES,
        "user: a\\nassistant: b\\nuser: c\\nassistant:[ d\\n" EOT "]\nuser: a\\nassistant:[ bb\\n]\n");
}

static void test_sharegpt(void **state)
{
    check_rows(
        "[{\"system\": \"S\", \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": "
        "\"function_call\", \"value\": \"f()\"}, {\"from\": \"observation\", \"value\": \"1\"}, {\"from\": \"gpt\", "
        "\"value\": \"b\"}]}]",
        DATASET_SHAREGPT, "system: S\\nuser: a\\nassistant:[ f()\\n]tool: 1\\nassistant:[ b\\n" EOT "]\n");
    check_rows("[{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": "
               "\"b\"}]}]",
               DATASET_MESSAGES, "user: a\\nassistant:[ b\\n" EOT "]\n");
}

static void test_tokens(void **state)
{
    struct tokenizer *t = byte_level();
    int32_t a = tokenizer_find(t, "a"), b = tokenizer_find(t, "b"), c = tokenizer_find(t, "c");
    char json[256];
    snprintf(json, sizeof json,
             "[{\"input_ids\": [%d, %d, %d, %d], \"labels\": [-100, -100, %d, -100], \"attention_mask\": [1, 1, 1, 1]},"
             " {\"input_ids\": [%d, %d, %d]}]",
             a, b, c, a, c, c, b, a);
    check_rows(json, DATASET_TOKENS, "ab[c]\nc[ba]\n");
    tokenizer_close(t);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void test_train_on_prompt(void **state)
{
    struct dataset_source s = inline_rows("[{\"prompt\": \"abc\", \"completion\": \"d\"}]");
    struct dataset_options o = usual();
    o.train_on_prompt = true;
    check_source(&s, &o, DATASET_COMPLETION, "a[bcd" EOT "]\n");
    o.no_eos = true;
    check_source(&s, &o, DATASET_COMPLETION, "a[bcd]\n");
}

static void test_truncation(void **state)
{
    struct tokenizer *t = byte_level();
    struct dataset_source s =
        inline_rows("[{\"prompt\": \"ab\", \"completion\": \"cdefgh\"}, {\"prompt\": \"abcdefgh\", "
                    "\"completion\": \"i\"}, {\"prompt\": \"ab\", \"completion\": \"qz\"}]");
    struct dataset_options o = usual();
    struct dataset_report r;
    struct buf shown = {0};
    o.max_length = 5;
    struct dataset *d = open_source(&s, &o, t, &r);
    show(d, t, &shown);
    assert_string_equal(shown.data, "ab[cde]\nab[qz" EOT "]\n");
    assert_int_equal(r.truncated, 1);
    assert_int_equal(r.skipped, 1);
    assert_int_equal(r.longest, 5);
    assert_int_equal(r.tokens, 10);
    assert_int_equal(r.trained_tokens, 6);
    assert_int_equal(r.n_problems, 1);
    assert_int_equal(r.problem[0].line, 2);
    assert_string_equal(r.problem[0].what, "no trained token within the first 5 of 10 (max_length)");
    buf_free(&shown);
    dataset_free(d);
    tokenizer_close(t);
}

static void test_duplicates(void **state)
{
    struct tokenizer *t = byte_level();
    /* the same tokens with another mask are another row */
    struct dataset_source s = inline_rows(
        "[{\"prompt\": \"ab\", \"completion\": \"c\"}, {\"prompt\": \"ab\", \"completion\": \"c\", \"x\": 1}, "
        "{\"prompt\": \"a\", \"completion\": \"bc\"}, {\"prompt\": \"ab\", \"completion\": \"c\"}]");
    struct dataset_options o = usual();
    struct dataset_report r;
    struct dataset *d = open_source(&s, &o, t, &r);
    assert_int_equal(r.kept, 2);
    assert_int_equal(r.duplicates, 2);
    dataset_free(d);
    o.keep_duplicates = true;
    d = open_source(&s, &o, t, &r);
    assert_int_equal(r.kept, 4);
    assert_int_equal(r.duplicates, 0);
    dataset_free(d);
    tokenizer_close(t);
}

static void check_mapped(const char *json, const struct dataset_field *map, int n, enum dataset_format format,
                         const char *expected)
{
    struct dataset_source s = inline_rows(json);
    struct dataset_options o = usual();
    o.map = map;
    o.n_map = n;
    check_source(&s, &o, format, expected);
}

static void test_mapped_fields(void **state)
{
    static const struct dataset_field qa[] = {{"prompt", "question"}, {"completion", "answer"}},
                                      swap[] = {{"prompt", "completion"}, {"completion", "prompt"}},
                                      both[] = {{"prompt", "a"}, {"completion", "a"}}, bad[] = {{"promt", "a"}};
    struct err e = {0};
    (void)state;
    /* a field that is there under its own name, too, is replaced; one that is not under the other stays */
    check_mapped(
        "[{\"question\": \"a\", \"answer\": \"b\", \"prompt\": \"no\"}, {\"prompt\": \"c\", \"completion\": \"d\"}]",
        qa, 2, DATASET_COMPLETION, "a[b" EOT "]\nc[d" EOT "]\n");
    check_mapped("[{\"prompt\": \"a\", \"completion\": \"b\"}]", swap, 2, DATASET_COMPLETION, "b[a" EOT "]\n");
    check_mapped("[{\"a\": \"x\"}]", both, 2, DATASET_COMPLETION, "x[x" EOT "]\n");
    check_mapped("[{\"text\": \"ab\"}, \"cd\"]", qa, 2, DATASET_TEXT, "a[b" EOT "]\nc[d" EOT "]\n");
    assert_int_equal(dataset_map_check(bad, 1, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "promt is not a field of a row"));
}

/* ---- kinds of files ---------------------------------------------------------------------------------------------- */

static void check_file(const char *name, const char *text, enum dataset_format format, const char *expected)
{
    char *path = file_of(name, text, strlen(text));
    struct dataset_source s = {.path = path};
    struct dataset_options o = usual();
    check_source(&s, &o, format, expected);
    unlink(path);
    free(path);
}

#define AB "a[b" EOT "]\n"
#define CD "c[d" EOT "]\n"

static void test_json_files(void **state)
{
    static const char *const names[] = {"a.jsonl", "a.json", "a", "a.txt.upload"};
    for (int i = 0; i < 4; i++) {
        check_file(names[i], "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n", DATASET_TEXT, AB CD);
        check_file(names[i], "{\"text\": \"ab\"}\r\n\r\n \n{\"text\": \"cd\"}", DATASET_TEXT, AB CD);
        check_file(names[i], "\xef\xbb\xbf{\"text\": \"ab\"}", DATASET_TEXT, AB);
        check_file(names[i], " [\n{\"text\": \"ab\"},\n{\"text\"\n: \"cd\"} ]\n", DATASET_TEXT, AB CD);
        check_file(names[i], "\xef\xbb\xbf[\"ab\",\"cd\"]", DATASET_TEXT, AB CD);
        check_file(names[i],
                   "{\"version\": \"data\", \"x\": {\"data\": [1, \"]\"]}, \"y\": [[\"data\"]],"
                   "\n \"data\" : [{\"text\": \"ab\"}, {\"text\": \"cd\"}], \"data2\": []}",
                   DATASET_TEXT, AB CD);
    }
    check_file("a.json", "{\"text\": \"ab\", \"data\": [{\"text\": \"no\"}]}", DATASET_TEXT, AB);
    check_file("a.txt", "[not JSON]\n\n{nor this}", DATASET_TEXT, "[[not JSON]" EOT "]\n{[nor this}" EOT "]\n");
}

static void test_text_files(void **state)
{
    check_file("a.txt", "ab\n\ncd", DATASET_TEXT, AB CD);
    check_file("a.md", "\n\nab\n \t\n\n\ncd\n", DATASET_TEXT, AB CD);
    check_file("a", "ab\r\n\r\ncd\r\n", DATASET_TEXT, AB CD);
    check_file("a.txt", "a\nb\n\nc", DATASET_TEXT, "a[\\nb" EOT "]\nc[" EOT "]\n");
    check_file("a.txt", EOT "ab" EOT "\ncd\n\nef\n" EOT "\n" EOT, DATASET_TEXT, AB "c[d\\n\\nef" EOT "]\n");
}

/* Each token of a long text but its first is a target exactly once. */
static void test_long_text(void **state)
{
    struct tokenizer *t = byte_level();
    struct buf text = {0}, got = {0};
    enum { BYTES = 600 << 10 };
    while (text.len < BYTES) buf_printf(&text, "%zu words and\n", text.len);
    text.data[--text.len] = 0; /* the last line break */
    char *path = file_of("long.txt", text.data, text.len);
    struct dataset_source s = {.path = path};
    struct dataset_options o = usual();
    struct dataset_report r;
    struct tokens whole = {0};
    o.max_length = 100;
    o.keep_duplicates = true;
    struct dataset *d = open_source(&s, &o, t, &r);
    for (uint64_t i = 0; i < dataset_rows(d); i++) {
        struct dataset_row row = dataset_row(d, i);
        assert_true(row.n <= 100);
        assert_int_equal(row.n_trained, row.n - 1);
        for (int k = 0; k < row.n; k++) {
            if (k == 0 && i > 0) continue; /* said by the row before, but for the two places where the file was cut */
            tokenizer_decode(t, &row.id[k], 1, false, &got);
        }
    }
    assert_int_equal(tokenizer_encode(t, text.data, text.len, 0, &whole, NULL), 0);
    /* two cuts, whose next tokens are no targets; and the end */
    assert_int_equal(r.trained_tokens, whole.n - 1 - 2 + 1);
    tokens_free(&whole);
    buf_free(&text);
    buf_free(&got);
    dataset_free(d);
    unlink(path);
    free(path);
    tokenizer_close(t);
}

/* The same rows as lines, as an array, inside an object and inline, on one thread and three: the same data. */
static void test_same_data(void **state)
{
    struct tokenizer *t = byte_level();
    uint64_t x = 1;
    struct buf lines = {0}, array = {0}, object = {0};
    buf_str(&array, "[");
    for (int i = 0; i < 4000; i++) {
        struct buf row = {0};
        buf_printf(&row, "{\"prompt\": \"%d ", i);
        x = x * 6364136223846793005u + 1442695040888963407u;
        for (unsigned k = 0; k < (x >> 33) % 160; k++)
            buf_str(&row, k % 7 == 3 ? "]},{[\\\"" : k % 7 == 5 ? "\\u00e9\\\\" : "abc ");
        buf_str(&row, i % 50 == 7 ? "\"}" : "\", \"completion\": \"yes\\n\"}");
        buf_printf(&lines, "%s\n", row.data);
        buf_printf(&array, "%s%s", i ? (i % 3 ? "," : " ,\n\t") : "", row.data);
        buf_free(&row);
    }
    buf_str(&array, "]");
    buf_printf(&object, "{\"name\": \"x\", \"data\": %s}", array.data);
    char *path[3] = {file_of("a.jsonl", lines.data, lines.len), file_of("b.json", array.data, array.len),
                     file_of("c.json", object.data, object.len)};
    uint64_t hash = 0;
    for (int i = 0; i < 8; i++) {
        struct dataset_source s = i % 4 < 3 ? (struct dataset_source){.path = path[i % 4]} : inline_rows(array.data);
        struct dataset_options o = usual();
        struct dataset_report r;
        o.max_length = 4096;
        o.threads = i < 4 ? 1 : 3;
        struct dataset *d = open_source(&s, &o, t, &r);
        if (i == 0) hash = dataset_hash(d);
        assert_true(dataset_hash(d) == hash);
        assert_int_equal(r.kept, 4000 - 80);
        assert_int_equal(r.skipped, 80);
        assert_int_equal(r.n_problems, DATASET_PROBLEMS_MAX);
        assert_int_equal(r.problem[19].line, 8 + 19 * 50);
        assert_string_equal(r.problem[19].what, "no \"completion\"");
        dataset_free(d);
    }
    for (int i = 0; i < 3; i++) {
        unlink(path[i]);
        free(path[i]);
    }
    buf_free(&lines);
    buf_free(&array);
    buf_free(&object);
    tokenizer_close(t);
}

/* ---- where prompts end ------------------------------------------------------------------------------------------- */

static void check_boundary(const char *tokenizer, const char *prompt, const char *completion, const char *expected)
{
    struct tokenizer *t = load(tokenizer);
    struct buf json = {0}, shown = {0};
    struct dataset_options o = usual();
    struct dataset_report r;
    buf_printf(&json, "[{\"prompt\": \"%s\", \"completion\": \"%s\"}]", prompt, completion);
    struct dataset_source s = inline_rows(json.data);
    struct dataset *d = open_source(&s, &o, t, &r);
    show_tokens(d, t, &shown);
    assert_string_equal(shown.data, expected);
    buf_free(&json);
    buf_free(&shown);
    dataset_free(d);
    tokenizer_close(t);
}

#define STORIES "tinystories-656k/tokenizer.json"
#define DEMO "../../../models/demo/tokenizer.json"
#define U "\xe2\x96\x81"
#define G "\xc4\xa0"

static void test_boundaries(void **state)
{
    /* as one text where that leaves the prompt as it is */
    check_boundary(DEMO, "Once upon", " a time", "|Once||" G "upon|[" G "a][" G "time][" EOT "]\n");
    /* a space before the boundary is the prompt's own */
    check_boundary(DEMO, "Once upon ", "a time", "|Once||" G "upon||" G "|[a][" G "time][" EOT "]\n");
    /* inside a word: "Once" would be one token */
    check_boundary(DEMO, "On", "ce upon", "|On|[ce][" G "upon][" EOT "]\n");
    /* SentencePiece: bos before the prompt, and no space that was not there */
    check_boundary(STORIES, "on up", " a tim",
                   "|<|start_story|>||" U "||on" U "||up|[" U "a" U "][tim][<|end_story|>]\n");
    check_boundary(STORIES, "on u", "p", "|<|start_story|>||" U "||on" U "||u|[p][<|end_story|>]\n");
}

/* Random pairs: the prompt's tokens are those of the prompt alone, the rest says the completion. */
static void test_any_boundary(void **state)
{
    static const char *const tokenizers[] = {STORIES,
                                             DEMO,
                                             "qwen2/tokenizer.json",
                                             "../tokenizers/small-llama3.json",
                                             "../tokenizers/small-metaspace-always.json",
                                             "../tokenizers/small-metaspace-first.json",
                                             "../tokenizers/small-metaspace-never.json",
                                             "../tokenizers/small-falcon.json"};
    static const char *const bits[] = {"a",     "the", " ",  " ", "once", " upon", ".", "\\n", "\\n\\n",
                                       "don't", "1",   "12", "e", "s",    "  ",    ",", "Time"};
    uint64_t x = 7;
    for (int k = 0; k < 8; k++) {
        struct tokenizer *t = load(tokenizers[k]);
        for (int i = 0; i < 60; i++) {
            struct buf text[2] = {0}, json = {0};
            for (int part = 0; part < 2; part++) {
                buf_str(&text[part], part ? "o" : ""); /* an answer that is not blank */
                for (int n = 0; n < 6; n++) {
                    x = x * 6364136223846793005u + 1442695040888963407u;
                    buf_str(&text[part], bits[(x >> 33) % (sizeof bits / sizeof *bits)]);
                }
            }
            buf_printf(&json, "[{\"prompt\": \"%s\", \"completion\": \"%s\"}]", text[0].data, text[1].data);
            for (int part = 0; part < 2; part++) { /* "\\n" is a line break now */
                char *to = text[part].data;
                for (const char *from = to; *from; from++) *to++ = *from == '\\' ? (from++, '\n') : *from;
                text[part].len = (size_t)(to - text[part].data);
                *to = 0;
            }
            struct dataset_source s = inline_rows(json.data);
            struct dataset_options o = usual();
            struct dataset_report r;
            struct tokens alone = {0};
            struct buf said = {0};
            struct detok detok = {.started = true, .mid_context = true};
            o.no_eos = true;
            struct dataset *d = open_source(&s, &o, t, &r);
            struct dataset_row row = dataset_row(d, 0);
            assert_int_equal(tokenizer_encode(t, text[0].data, text[0].len, TOKENIZE_SPECIAL, &alone, NULL), 0);
            assert_int_equal(row.n - row.n_trained, alone.n);
            for (int at = 0; at < row.n; at++) {
                assert_int_equal(row.trained[at], (size_t)at >= alone.n);
                if ((size_t)at < alone.n)
                    assert_int_equal(row.id[at], alone.v[at].id);
                else
                    detok_push(&detok, t, row.id[at], &said);
            }
            detok_flush(&detok, t, &said);
            assert_string_equal(said.data, text[1].data);
            tokens_free(&alone);
            buf_free(&said);
            buf_free(&json);
            buf_free(&text[0]);
            buf_free(&text[1]);
            dataset_free(d);
        }
        tokenizer_close(t);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_preference),
        cmocka_unit_test(test_unpaired),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_encode_answer),
        cmocka_unit_test(test_bad_preferences),
        cmocka_unit_test(test_completion_of_messages),
        cmocka_unit_test(test_alpaca),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_sharegpt),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_train_on_prompt),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_mapped_fields),
        cmocka_unit_test(test_json_files),
        cmocka_unit_test(test_text_files),
        cmocka_unit_test(test_long_text),
        cmocka_unit_test(test_same_data),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_any_boundary),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
