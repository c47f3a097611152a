/* Bad training data: bad rows are skipped and said why, with their line; bad files are errors that say what was seen.
 */
#include "tests/unit/engine/data/rows.h"

#include "engine/base/err.h"

#include <sys/stat.h>
#include <unistd.h>

#define EOT "<|endoftext|>"

static struct tokenizer *tokenizer;

static int try_open(const struct dataset_source *s, enum dataset_format format, int max_length,
                    struct dataset_report *r, struct err *e)
{
    struct dataset *d = NULL;
    struct dataset_options o = {.format = format, .max_length = max_length, .max_row_bytes = 4000, .threads = 2};
    int rc = dataset_open(&d, s, &o, tokenizer, NULL, tokenizer_find(tokenizer, EOT), r, e);
    assert_true((rc == 0) == (d != NULL));
    dataset_free(d);
    return rc;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

#define TEXT "{\"text\": \"good\"}"
#define PAIR "{\"prompt\": \"good\", \"completion\": \"good\"}"
#define ALPACA "{\"instruction\": \"good\", \"output\": \"good\"}"
#define CHAT                                                                                                           \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"good\"}, {\"role\": \"assistant\", \"content\": \"good\"}]}"
#define SHARE                                                                                                          \
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"good\"}, {\"from\": \"gpt\", \"value\": \"good\"}]}"
#define IDS "{\"input_ids\": [1, 2, 3]}"
#define USER "{\"role\": \"user\", \"content\": \"a\"}"

/* Line 1 is the good one, line 2 the bad one. */
static const struct {
    const char *good, *bad, *what;
} bad_rows[] = {
    /* not a row */
    {TEXT, "{\"text\": \"a\"", "malformed JSON near byte"},
    {TEXT, "{\"text\": \"a\"} {\"text\": \"b\"}", "malformed JSON: more text behind the value at byte 15"},
    {TEXT, "{\"text\": \"a\\ud800\"}", "malformed JSON near byte"},
    {TEXT, "{text: a}", "malformed JSON near byte"},
    {TEXT, "{\"text\": \"a\xff\"}", "not UTF-8 at byte 12"},
    {TEXT, "{\"text\": \"\xed\xa0\x80\"}", "not UTF-8 at byte 11"},
    {TEXT, "{\"text\": \"a\\u0000b\"}", "a NUL character in a string at byte 12"},
    {TEXT, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", "nested deeper than 32"},
    {TEXT, "17", "a row must be an object, this is a number"},
    {TEXT, "[\"text\"]", "a row must be an object, this is a list"},
    {TEXT, "null", "a row must be an object, this is null"},
    {CHAT, "\"text\"", "a row must be an object, this is a string"},
    {TEXT, "LONG", "longer than 4000 bytes"},
    /* text */
    {TEXT, "{\"txt\": \"a\"}", "no \"text\""},
    {TEXT, "{\"text\": null}", "no \"text\""},
    {TEXT, "{\"text\": 5}", "\"text\" must be a string, is a number"},
    {TEXT, "{\"text\": [\"a\"]}", "\"text\" must be a string, is a list"},
    {TEXT, "{\"text\": \"\"}", "\"text\" is empty"},
    {TEXT, "{\"text\": \" \\n\\t \"}", "\"text\" is empty"},
    /* prompt, completion */
    {PAIR, "{\"prompt\": \"a\"}", "no \"completion\""},
    {PAIR, "{\"completion\": \"a\"}", "no \"prompt\""},
    {PAIR, "{\"prompt\": \"a\", \"completion\": \" \"}", "\"completion\" is empty"},
    {PAIR, "{\"prompt\": {}, \"completion\": \"a\"}", "\"prompt\" must be a string, is an object"},
    {PAIR, "{\"prompt\": [" USER "], \"completion\": \"a\"}", "\"prompt\" must be a string, is a list"},
    {PAIR, "{\"prompt\": [" USER "], \"completion\": []}", "\"completion\" is empty"},
    {PAIR, "{\"prompt\": [" USER "], \"completion\": [" USER "]}", "no answer: no message of the assistant"},
    {PAIR, "{\"prompt\": \"MUCH\", \"completion\": \"a\"}",
     "no trained token within the first 256 of 302 (max_length)"},
    /* instruction, output */
    {ALPACA, "{\"instruction\": \"a\"}", "no \"output\""},
    {ALPACA, "{\"instruction\": \"a\", \"output\": \"\"}", "\"output\" is empty"},
    {ALPACA, "{\"instruction\": \"a\", \"output\": true}", "\"output\" must be a string, is a boolean"},
    {ALPACA, "{\"instruction\": 1, \"output\": \"a\"}", "\"instruction\" must be a string, is a number"},
    {ALPACA, "{\"instruction\": \"\", \"input\": \" \", \"output\": \"a\"}", "\"instruction\" and \"input\" are empty"},
    {ALPACA, "{\"instruction\": \"a\", \"input\": [], \"output\": \"a\"}", "\"input\" must be a string, is a list"},
    {ALPACA, "{\"instruction\": \"a\", \"output\": \"a\", \"history\": {}}",
     "\"history\" must be a list, is an object"},
    {ALPACA, "{\"instruction\": \"a\", \"output\": \"a\", \"history\": [[\"a\"]]}",
     "history[0] must be two strings: a question and its answer"},
    {ALPACA, "{\"instruction\": \"a\", \"output\": \"a\", \"system\": 3}", "\"system\" must be a string, is a number"},
    /* messages */
    {CHAT, "{\"messages\": []}", "\"messages\" is empty"},
    {CHAT, "{\"messages\": \"hi\"}", "\"messages\" must be a list, is a string"},
    {CHAT, "{\"messages\": [\"hi\"]}", "messages[0] must be an object, is a string"},
    {CHAT, "{\"messages\": [{\"content\": \"a\"}]}", "messages[0].role must be a string, is missing"},
    {CHAT, "{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}",
     "messages[0].role is \"robot\", not system, user, assistant or tool"},
    {CHAT, "{\"messages\": [" USER "]}", "no answer: no message of the assistant"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\"}]}", "messages[1] has no \"content\""},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"\"}]}",
     "messages[1] is an empty answer"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": 1}]}",
     "messages[1].content must be a string, is a number"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "messages[1].content[0] is of type \"image_url\"; only text can be trained"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": [{\"type\": \"text\"}]}]}",
     "messages[1].content[0] has no \"text\""},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}]}",
     "no answer with a weight of 1"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0.5}]}",
     "messages[1].weight is 0.5; only 0 and 1 are supported"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\", \"loss_weight\": \"1\"}]}",
     "messages[1].loss_weight must be a number, is a string"},
    {CHAT, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"weight\": 1}]}",
     "messages[0].weight is 1, but only what the assistant says can be trained"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": \"x\"}",
     "\"tools\" is a string that is no JSON list"},
    {CHAT, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"a\"}], \"tools\": {}}",
     "\"tools\" must be a list"},
    /* conversations */
    {SHARE, "{\"conversations\": []}", "\"conversations\" is empty"},
    {SHARE, "{\"conversations\": 1}", "\"conversations\" must be a list, is a number"},
    {SHARE, "{\"conversations\": [{\"from\": \"human\"}]}", "conversations[0]: no \"value\""},
    {SHARE, "{\"conversations\": [{\"from\": \"alien\", \"value\": \"a\"}]}",
     "conversations[0].from is \"alien\", not human, gpt, system, function_call or observation"},
    {SHARE, "{\"conversations\": [{\"from\": \"gpt\", \"value\": \" \"}]}", "conversations[0] is an empty answer"},
    {SHARE, "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}", "no answer: no message of the assistant"},
    /* input_ids */
    {IDS, "{\"input_ids\": []}", "nothing to train on in 0 tokens"},
    {IDS, "{\"input_ids\": [1]}", "nothing to train on in 1 token"},
    {IDS, "{\"input_ids\": [1, 2], \"labels\": [-100, -100]}", "nothing to train on in 2 tokens"},
    {IDS, "{\"input_ids\": [1, 99999]}", "input_ids[1] is not a token id below 288"},
    {IDS, "{\"input_ids\": [-1, 2]}", "input_ids[0] is not a token id below 288"},
    {IDS, "{\"input_ids\": [1, 1.5]}", "input_ids[1] is not a token id below 288"},
    {IDS, "{\"input_ids\": [1, 1e300]}", "input_ids[1] is not a token id below 288"},
    {IDS, "{\"input_ids\": [1, \"2\"]}", "input_ids[1] is not a token id below 288"},
    {IDS, "{\"input_ids\": \"1 2\"}", "\"input_ids\" must be a list, is a string"},
    {IDS, "{\"input_ids\": [1, 2], \"labels\": [1]}", "1 \"labels\" for 2 \"input_ids\""},
    {IDS, "{\"input_ids\": [1, 2], \"labels\": [1, 3]}", "labels[1] is neither input_ids[1] nor -100"},
};

/* MUCH and LONG stand for 300 and 5000 letters. */
static void put_row(struct buf *out, const char *row)
{
    const char *much = strstr(row, "MUCH");
    if (much) {
        buf_append(out, row, (size_t)(much - row));
        for (int i = 0; i < 150; i++) buf_str(out, "z.");
        buf_str(out, much + 4);
    } else if (!strcmp(row, "LONG")) {
        buf_str(out, "{\"text\": \"");
        for (int i = 0; i < 500; i++) buf_str(out, "0123456789");
        buf_str(out, "\"}");
    } else {
        buf_str(out, row);
    }
}

/* Where cJSON stumbles is its own business: what ends with "byte" is compared so far. */
static bool is_said(const char *got, const char *expected)
{
    size_t n = strlen(expected);
    bool open = n > 5 && !strcmp(expected + n - 5, " byte");
    return open ? !strncmp(got, expected, n) : !strcmp(got, expected);
}

static void test_bad_rows(void **state)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof bad_rows / sizeof *bad_rows; i++) {
        struct dataset_report r;
        struct buf text = {0};
        struct err e = {0};
        put_row(&text, bad_rows[i].good);
        buf_char(&text, '\n');
        put_row(&text, bad_rows[i].bad);
        buf_char(&text, '\n');
        char *path = file_of("rows.jsonl", text.data, text.len);
        struct dataset_source s = {.path = path};
        int rc = try_open(&s, DATASET_AUTO, 256, &r, &e);
        if (rc || r.kept != 1 || r.skipped != 1 || r.n_problems != 1 || r.problem[0].line != 2 ||
            !is_said(r.problem[0].what, bad_rows[i].what)) {
            print_error("%s\n  should be: %s\n  is: %s\n", bad_rows[i].bad, bad_rows[i].what,
                        rc ? e.msg : r.problem[0].what);
            wrong++;
        }
        unlink(path);
        free(path);
        buf_free(&text);
    }
    assert_int_equal(wrong, 0);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

#define KNOWN                                                                                                          \
    "known are rows with \"text\", \"prompt\" and \"completion\", \"instruction\" and \"output\", \"messages\", "      \
    "\"conversations\" or \"input_ids\", as JSONL or a JSON array, and plain text"
#define B(s) s, sizeof(s) - 1

/* The line that converts a file; it was run with pandas 2 and pyarrow. */
#define PANDAS(imports, read)                                                                                          \
    "convert it: python3 -c \"import sys, " imports "; " read                                                          \
    ".to_json(sys.argv[2], orient='records', lines=True, force_ascii=False)\" FILE OUT.jsonl (needs: pip install "     \
    "pandas "                                                                                                          \
    "pyarrow)"

static const struct {
    const char *name, *bytes;
    size_t n;
    const char *what;
} bad_files[] = {
    {"a.jsonl", B(""), "is empty"},
    {"a.jsonl", B("\n \n\n"), "not in a known format: there are no rows; " KNOWN},
    {"a.txt", B("\n \n\n"), "there are no rows"},
    {"a.json", B("[]"), "not in a known format: there are no rows; " KNOWN},
    {"a.json", B("[1, 2]"), "not in a known format: row 1 is a number; " KNOWN},
    {"a.json", B("{\"data\": []}"), "not in a known format: there are no rows; " KNOWN},
    {"a.json", B("{\"data\": [{\"paragraphs\": [], \"title\": \"x\"}], \"version\": \"1.1\"}"),
     "not in a known format: row 1 is an object with the fields paragraphs, title; " KNOWN},
    {"a.jsonl", B("{\"question\": \"a\", \"answer\": \"b\"}\n"),
     "not in a known format: line 1 is an object with the fields question, answer; " KNOWN},
    {"a.jsonl", B("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"),
     "not in a known format: line 1 is a pair of preferences (chosen, rejected), which methods dpo, orpo, simpo "
     "and reward train on; " KNOWN},
    {"a.jsonl", B("{}"), "not in a known format: line 1 is an object without fields; " KNOWN},
    {"a.json", B("{\n  \"text\": \"a\"\n}\n"),
     "not in a known format: line 1 is malformed JSON near byte 1 (each row has a line of its own); " KNOWN},
    {"a.jsonl", B("just words\n"),
     "not in a known format: line 1 is malformed JSON near byte 1 (each row has a line of its own); " KNOWN},
    {"a.json", B("[{\"text\": \"a\"}, {\"text\": \"b\"}"), "the array does not end: is the file cut off?"},
    {"a.json", B("[{\"text\": \"a\"}, {\"te"), "the array does not end: is the file cut off?"},
    {"a.json", B("[{\"text\": \"a\"}]\n\nmore"), "line 3: text behind the array"},
    {"a.txt", B("a\0b"), "not in a known format: it has NUL bytes; " KNOWN},
    {"a.txt",
     B("\xff\xfe"
       "a\0"),
     "is text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE > OUT"},
    {"a.parquet", B("PAR1...."), "is a Parquet file; " PANDAS("pandas", "pandas.read_parquet(sys.argv[1])")},
    {"a", B("ARROW1\0\0"), "is an Arrow file; " PANDAS("pandas", "pandas.read_feather(sys.argv[1])")},
    {"a.arrow", B("\xff\xff\xff\xff\x10\0\0\0"),
     "is an Arrow stream; " PANDAS("pyarrow", "pyarrow.ipc.open_stream(sys.argv[1]).read_pandas()")},
    {"a.jsonl.gz", B("\x1f\x8b\x08"), "byte 3: the gzip data are damaged: they are cut off"},
    {"a.zip", B("PK\x03\x04"), "is a zip file; unpack it: unzip FILE"},
    {"a.xz", B("\xfd\x37zXZ\0"), "is compressed with xz; decompress it: xz -d FILE"},
    {"a.csv", B("prompt,completion\na,b\n"), "is a table; " PANDAS("pandas", "pandas.read_csv(sys.argv[1])")},
    {"a.TSV", B("prompt\tb\n"), "is a table; " PANDAS("pandas", "pandas.read_csv(sys.argv[1], sep=chr(9))")},
    {"a.jsonl", B("{\"text\": \"\"}\n{\"text\": 5}\n"), "none of 2 text rows is usable; row 1: \"text\" is empty"},
    {"a.txt", B("\xc3\x28\n"), "none of 1 text rows is usable; row 1: not UTF-8 at byte 1"},
};

static void check_error(const struct dataset_source *s, const char *name, const char *what, int *wrong)
{
    struct dataset_report r;
    struct err e = {0};
    struct buf expected = {0};
    buf_printf(&expected, "%s: %s", name, what);
    int rc = try_open(s, DATASET_AUTO, 64, &r, &e);
    if (!rc || strcmp(e.msg, expected.data) != 0) {
        print_error("should be: %s\n  is: %s\n", expected.data, rc ? e.msg : "no error");
        ++*wrong;
    }
    buf_free(&expected);
}

static void test_bad_files(void **state)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof bad_files / sizeof *bad_files; i++) {
        char *path = file_of(bad_files[i].name, bad_files[i].bytes, bad_files[i].n);
        struct dataset_source s = {.path = path, .name = bad_files[i].name};
        check_error(&s, bad_files[i].name, bad_files[i].what, &wrong);
        unlink(path);
        free(path);
    }
    struct dataset_source none = {.path = "/nowhere/a.jsonl", .name = "a.jsonl"},
                          folder = {.path = scratch, .name = "a"};
    check_error(&none, "a.jsonl", "no such file", &wrong);
    check_error(&folder, "a", "not a regular file", &wrong);
    struct dataset_source object = inline_rows("{\"text\": \"a\"}"), cut = inline_rows("[{\"text\": \"a\"");
    check_error(&object, "rows", "not a JSON array", &wrong);
    check_error(&cut, "rows", "the array does not end: is the file cut off?", &wrong);
    assert_int_equal(wrong, 0);
}

static void check_limit(struct dataset_options o, const char *json, const char *what)
{
    struct dataset *d;
    struct dataset_source s = inline_rows(json);
    struct err e = {0};
    assert_int_not_equal(dataset_open(&d, &s, &o, tokenizer, NULL, -1, NULL, &e), 0);
    assert_null(d);
    assert_string_equal(e.msg, what);
}

static bool yes(void *arg)
{
    return true;
}

static void test_limits(void **state)
{
    const char *two = "[\"ab\", \"cd\"]";
    check_limit((struct dataset_options){.max_length = 1}, two, "max_length must be at least 2");
    check_limit((struct dataset_options){.max_length = 8, .max_rows = 1}, two, "rows: more than the limit of 1 rows");
    check_limit((struct dataset_options){.max_length = 8, .max_bytes = 11}, two,
                "rows: 0.0 MB are more than the limit of 0.0 MB");
    check_limit((struct dataset_options){.max_length = 8, .max_bytes = 4100}, two,
                "the prepared data set takes more than the limit of 0.0 MB");
    check_limit((struct dataset_options){.max_length = 8, .cancelled = yes}, two, "cancelled");
    check_limit((struct dataset_options){.max_length = 8, .format = DATASET_ALPACA}, two,
                "rows: none of 2 alpaca rows is usable; row 1: a row must be an object, this is a string");
    check_limit((struct dataset_options){.max_length = 8, .cache_dir = "/proc/nothing"}, two,
                "/proc/nothing: No such file or directory");
}

static int start(void **state)
{
    tokenizer = byte_level();
    return scratch_make(state);
}

static int end(void **state)
{
    tokenizer_close(tokenizer);
    return scratch_remove(state);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_rows),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_limits),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    return cmocka_run_group_tests(tests, start, end);
}
