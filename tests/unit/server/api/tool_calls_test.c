/* server/api/tool_calls.c: which texts are calls, that no cut of the text changes the result, how long text is held
 * back, limits, and the JSON.  The argument is the directory of the template fixtures. */
#include "tests/unit/server/api/parser_rig.h"

#include "engine/base/file.h"
#include "engine/template/chat_template.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *template_dir;

static void hermes_calls(void **state)
{
    static const struct example v[] = {
        {"", "", SAME},
        {"Hello there.", "Hello there.", SAME},
        {CALL(F1), "[0 f {\"x\": 1}]", SAME},
        {CALL(F1) "\n", "[0 f {\"x\": 1}]", SAME},
        {"I look.\n" CALL(F1), "I look.[0 f {\"x\": 1}]", SAME},
        {CALL(F1) "\n" CALL(F1), "[0 f {\"x\": 1}][1 f {\"x\": 1}]", SAME},
        {CALL(F1) CALL(F1) " \n ", "[0 f {\"x\": 1}][1 f {\"x\": 1}]", SAME},
        {"a " CALL(F1) " b " CALL(F1) " c", "a[0 f {\"x\": 1}] b[1 f {\"x\": 1}] c", SAME},
        /* any name: the mark says that it is a call; any order; what Llama's calls have */
        {"<tool_call>{\"arguments\":{},\"name\":\"unknown\"}</tool_call>", "[0 unknown {}]", SAME},
        {CALL("{\"type\": \"function\", \"id\": \"7\", \"name\": \"f\", \"parameters\": {}}"), "[0 f {}]", SAME},
        {CALL("{\"name\": \"f\"}"), "[0 f {}]", SAME},
        {CALL("{\"name\": \"f\", \"arguments\": null}"), "[0 f {}]", SAME},
        {CALL("{\"name\": \"na\\\"me\", \"arguments\": {}}"), "[0 na\"me {}]", SAME},
        {CALL("{ \"name\" : \"f\" , \"arguments\" : { \"a\" : [ 1 , {\"}\": \"</tool_call>\"} ] } }"),
         "[0 f { \"a\" : [ 1 , {\"}\": \"</tool_call>\"} ] }]", SAME},
        {CALL("{\"name\": \"f\", \"arguments\": {\"s\": \"\\u00e9\xc3\xa9\\\"\\\\\"}}"),
         "[0 f {\"s\": \"\\u00e9\xc3\xa9\\\"\\\\\"}]", SAME},
        /* the closing mark is missing */
        {"<tool_call>" F1, "[0 f {\"x\": 1}]", SAME},
        {"<tool_call>" F1 "<tool_call>" F1, "[0 f {\"x\": 1}][1 f {\"x\": 1}]", SAME},
        {"<tool_call>" F1 " then", "[0 f {\"x\": 1}] then", SAME},
        {"<tool_call>" F1 "</tool", "[0 f {\"x\": 1}]</tool", SAME},
        {CALL(F1) "</tool_call>", "[0 f {\"x\": 1}]</tool_call>", SAME},
    };
    (void)state;
    check_all(TOOL_FORMAT_HERMES, v, sizeof v / sizeof *v);
}

static void hermes_content(void **state)
{
    static const struct example v[] = {
        UNCHANGED(" \n "),
        UNCHANGED("a < b, a <tool b, <tool_call"),
        UNCHANGED("<tool_call"),
        UNCHANGED("<<tool_calls>"),
        UNCHANGED("</tool_call> a"),
        UNCHANGED("<tool_call>"),
        UNCHANGED("<tool_call>\n f </tool_call>"),
        UNCHANGED("<tool_call>\n[" F1 "]\n</tool_call>"),
        UNCHANGED("<tool_call>\n\"f\"\n</tool_call>"),
        UNCHANGED(CALL("{\"name\": \"f\", \"args\": {}}")),
        UNCHANGED(CALL("{\"arguments\": {}}")),
        UNCHANGED(CALL("{}")),
        UNCHANGED(CALL("{\"name\": \"\", \"arguments\": {}}")),
        UNCHANGED(CALL("{\"name\": 1, \"arguments\": {}}")),
        UNCHANGED(CALL("{\"name\": \"f\", \"arguments\": \"{}\"}")),
        UNCHANGED(CALL("{\"name\": \"f\", \"arguments\": []}")),
        UNCHANGED(CALL("{\"name\": \"f\", \"name\": \"f\", \"arguments\": {}}")),
        UNCHANGED(CALL("{\"type\": \"tool\", \"name\": \"f\", \"arguments\": {}}")),
        UNCHANGED(CALL("{\"a_name_of_more_bytes\": 1}")),
        UNCHANGED(CALL("{'name': 'f', 'arguments': {}}")),
        UNCHANGED("{\"name\": \"f\", \"arguments\": {}}"),
        UNCHANGED("<|python_tag|>" F1),
        {"<tool_call>\n<tool_call>\n" F1, "<tool_call>\n[0 f {\"x\": 1}]", SAME},
        {"<tool_c<tool_call>" F1, "<tool_c[0 f {\"x\": 1}]", SAME},
        /* what breaks after the arguments have begun was handed out in a stream */
        {CALL("{\"name\": \"f\", \"arguments\": {\"x\": 1,}}"), CALL("{\"name\": \"f\", \"arguments\": {\"x\": 1,}}"),
         "[0 f {\"x\": 1,!}}\n</tool_call>"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"a",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"a", "[0 f {\"x\": \"a!"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\": 1} " CALL(F1),
         "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"x\": 1}[0 f {\"x\": 1}]", "[0 f {}!1}[1 f {\"x\": 1}]"},
        {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\"}}",
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\"}}", "[0 f {\"s\": \"a!\nb\"}}"},
        {"<tool_call>{\"arguments\": {}", "<tool_call>{\"arguments\": {}", SAME},
        {"<tool_call>{\"name\": \"f\", \"arguments\": nil}", "<tool_call>{\"name\": \"f\", \"arguments\": nil}", SAME},
    };
    (void)state;
    check_all(TOOL_FORMAT_HERMES, v, sizeof v / sizeof *v);
}

static void llama_calls(void **state)
{
    static const struct example v[] = {
        {L1, W(0), SAME},
        {"\n\n" L1 "\n", W(0), SAME},
        {L1 "; " L1, W(0) W(1), SAME},
        {L1 ";" L1 "\n" L1 ";\n", W(0) W(1) W(2), SAME},
        {"<|python_tag|>" L1, W(0), SAME},
        {"<|python_tag|>" L1 "; " L1, W(0) W(1), SAME},
        {"Let me see. <|python_tag|>" L1, "Let me see." W(0), SAME},
        {"<|python_tag|>{\"name\": \"other\"}; {\"name\": \"more\"}", "[0 other {}][1 more {}]", SAME},
        {"{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "[0 f {}]", SAME},
        {"{\"name\": \"f\", \"arguments\": {}}", "[0 f {}]", SAME},
        {L1 " and so on", W(0) " and so on", SAME},
        {L1 "; and so on " L1, W(0) "; and so on " L1, SAME},
        {L1 L1, W(0) W(1), SAME},
    };
    static const struct example content[] = {
        UNCHANGED("Paris: " L1),
        UNCHANGED("{\"name\": \"Ada\", \"parameters\": {\"born\": 1815}}"),
        UNCHANGED("{\"name\": \"f\"}"),
        UNCHANGED("{\"name\": \"f\", \"parameters\": null}"),
        UNCHANGED("{\"parameters\": {\"a\": 1}, \"name\": \"Ada\"}"),
        UNCHANGED("{\"temperature\": 3, \"list\": [1, 2]}"),
        UNCHANGED("<|python_tag|>print(\"{}\")"),
        UNCHANGED("<|python_tag|>"),
        UNCHANGED("<|python|>" L1),
        UNCHANGED("[" L1 "]"),
        UNCHANGED("; " L1),
        UNCHANGED(CALL(F1)),
        {L1 "; {\"name\": \"Ada\", \"parameters\": {}}", W(0) "; {\"name\": \"Ada\", \"parameters\": {}}", SAME},
        {"{\"name\": \"f\", \"parameters\": {\"a\": True}}", "{\"name\": \"f\", \"parameters\": {\"a\": True}}",
         "[0 f {\"a\": !True}}"},
    };
    (void)state;
    check_all(TOOL_FORMAT_LLAMA3, v, sizeof v / sizeof *v);
    check_all(TOOL_FORMAT_LLAMA3, content, sizeof content / sizeof *content);
}

static void no_format(void **state)
{
    (void)state;
    check(TOOL_FORMAT_NONE, true, CALL(F1) L1 " \n", CALL(F1) L1 " \n");
}

static void without_tools_an_object_is_content(void **state)
{
    (void)state;
    struct tool_parser *p = tool_parser_new(&(struct tool_parser_config){.format = TOOL_FORMAT_LLAMA3});
    struct buf log = {0};
    note(&log, tool_parser_feed(p, L1, strlen(L1)));
    note(&log, tool_parser_finish(p));
    assert_string_equal(log.data, L1);
    assert_int_equal(tool_parser_calls(p), 0);
    tool_parser_free(p);
    buf_free(&log);
}

/* What each piece gives at once. */
static void check_pieces(enum tool_format format, const char *const pieces[][2], size_t n)
{
    struct tool_parser *p = new_parser(format, true);
    struct buf log = {0};
    for (size_t i = 0; i < n; i++) {
        buf_clear(&log);
        buf_str(&log, "");
        note(&log, pieces[i][0] ? tool_parser_feed(p, pieces[i][0], strlen(pieces[i][0])) : tool_parser_finish(p));
        assert_string_equal(log.data, pieces[i][1]);
    }
    tool_parser_free(p);
    buf_free(&log);
}

static void nothing_waits_longer_than_it_must(void **state)
{
    static const char *const hermes[][2] = {
        {"Hello", "Hello"},
        {" ", ""},
        {"world <", " world"},
        {"b", " <b"},
        {"<tool", ""},
        {"_call", ""},
        {"s>", "<tool_calls>"},
        {"\n<tool_call>\n{", ""},
        {"\"name\": \"f\", \"arguments\":", ""},
        {" {", "[0 f {"},
        {"\"x\"", "\"x\""},
        {": [1, ", ": [1, "},
        {"2]}", "2]}"},
        {"}", "]"},
        {"\n</tool_call>\n", ""},
        {"<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"", "[1 f {\"a\": 1}"},
        {" }", "]"},
        {" ", ""},
        {NULL, ""},
    };
    static const char *const llama[][2] = {
        {" ", ""},  {"{\"name\": \"f", ""}, {"oo\"", " {\"name\": \"foo\""}, {", \"parameters\"", ", \"parameters\""},
        {NULL, ""},
    };
    (void)state;
    check_pieces(TOOL_FORMAT_HERMES, hermes, sizeof hermes / sizeof *hermes);
    check_pieces(TOOL_FORMAT_LLAMA3, llama, sizeof llama / sizeof *llama);
}

/* Arguments {"a":[[...]]} so deep, and a text so long: a call when `good`. */
static void check_limit(int depth, size_t length, bool good)
{
    struct buf text = {0}, log = {0};
    buf_str(&text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":");
    for (int i = 0; i < depth; i++) buf_char(&text, '[');
    buf_char(&text, '"');
    for (size_t i = 0; i < length; i++) buf_char(&text, 'x');
    buf_char(&text, '"');
    for (int i = 0; i < depth; i++) buf_char(&text, ']');
    buf_str(&text, "}}");
    run(&log, TOOL_FORMAT_HERMES, false, text.data, text.len, NULL, 0);
    assert_int_equal(log.data[0] == '[', good);
    if (!good) assert_string_equal(log.data, text.data);
    run(&log, TOOL_FORMAT_HERMES, true, text.data, text.len, NULL, 0);
    assert_int_equal(log.data[log.len - 1] == ']', good);
    buf_free(&text);
    buf_free(&log);
}

static void limits(void **state)
{
    (void)state;
    check_limit(62, 1, true);
    check_limit(63, 1, false);
    check_limit(0, TOOL_CALL_MAX - 33, true);
    check_limit(0, TOOL_CALL_MAX - 32, false);
    check_limit(1, 2 * TOOL_CALL_MAX, false);
    for (size_t n = TOOL_NAME_MAX; n <= TOOL_NAME_MAX + 1; n++) {
        struct buf text = {0}, log = {0};
        buf_str(&text, "<tool_call>{\"name\":\"");
        for (size_t i = 0; i < n; i++) buf_str(&text, "\\u0041");
        buf_str(&text, "\",\"arguments\":{}}");
        run(&log, TOOL_FORMAT_HERMES, false, text.data, text.len, NULL, 0);
        assert_int_equal(log.data[0] == '[', n == TOOL_NAME_MAX);
        buf_free(&text);
        buf_free(&log);
    }
}

static void many_calls(void **state)
{
    (void)state;
    struct buf text = {0}, log = {0};
    for (int i = 0; i < TOOL_CALLS_MAX + 1; i++) buf_str(&text, CALL("{\"name\": \"f\"}") "\n");
    run(&log, TOOL_FORMAT_HERMES, false, text.data, text.len, NULL, 0);
    const char *last = strstr(log.data, "[127 f {}]");
    assert_non_null(last);
    assert_string_equal(last + 10, "\n" CALL("{\"name\": \"f\"}") "\n");
    buf_free(&text);
    buf_free(&log);
}

static void as_json(void **state)
{
    (void)state;
    struct tool_parser *p = new_parser(TOOL_FORMAT_HERMES, false);
    struct tool_answer a = {0};
    struct buf out = {0};
    const char *text = "Hi\n" CALL("{\"name\": \"f\", \"arguments\": {\"s\": \"\xc3\xa9\\n\"}}") CALL(F1);
    struct tool_events events = tool_parser_feed(p, text, strlen(text));
    assert_int_equal(events.n, 7);
    char expected[512];
    assert_string_not_equal(events.v[1].id, events.v[4].id);
    tool_answer_add(&a, events);
    tool_answer_add(&a, tool_parser_finish(p));
    assert_string_equal(a.content.data, "Hi");
    assert_int_equal(a.n, 2);
    snprintf(
        expected, sizeof expected,
        "[{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": "
        "\\\"\xc3\xa9\\\\n\\\"}\"}},{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"x\\\": 1}\"}}]",
        a.calls[0].id, a.calls[1].id);
    buf_clear(&out);
    tool_answer_put(&out, &a);
    assert_string_equal(out.data, expected);
    buf_free(&out);
    tool_answer_free(&a);
    tool_parser_free(p);
}

/* A stream's deltas: one entry per call and chunk, which has the name, the id and the first arguments together. */
static void as_deltas(void **state)
{
    (void)state;
    static const struct {
        const char *text, *deltas[2]; /* the deltas to be sent then, %s for an id */
    } pieces[] = {
        {"Hi\n<tool_call>{\"name\": \"f\", \"arguments\": ", {NULL}},
        {"{\"s\": \"\xc3\xa9\\n",
         {"{\"index\":0,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
          "\"{\\\"s\\\": \\\"\xc3\xa9\\\\n\"}}"}},
        {"\"", {"{\"index\":0,\"function\":{\"arguments\":\"\\\"\"}}"}},
        {"}}</tool_call>" CALL("{\"name\": \"g\", \"arguments\": {}}"),
         {"{\"index\":0,\"function\":{\"arguments\":\"}\"}}",
          "{\"index\":1,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}"}},
    };
    struct tool_parser *p = new_parser(TOOL_FORMAT_HERMES, true);
    struct tool_answer a = {0};
    struct buf out = {0};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        /* byte by byte, so that several events tell of what is sent at once */
        for (const char *s = pieces[i].text; *s; s++) tool_answer_add(&a, tool_parser_feed(p, s, 1));
        for (size_t k = 0; k < 2 && pieces[i].deltas[k]; k++) {
            char expected[256];
            assert_int_not_equal(a.n, 0);
            snprintf(expected, sizeof expected, pieces[i].deltas[k], a.calls[0].id);
            buf_clear(&out);
            tool_put_delta(&out, &a);
            assert_string_equal(out.data, expected);
            tool_answer_drop(&a);
        }
        assert_int_equal(a.n, 0);
    }
    assert_string_equal(a.content.data, "Hi");
    buf_free(&out);
    tool_answer_free(&a);
    tool_parser_free(p);
    buf_free(&out);
}

static enum reasoning_format reasoning_found; /* by detect */

static enum tool_format detect(const char *name)
{
    char *path = file_join(template_dir, name), *text = NULL;
    size_t n;
    struct err e = {0};
    assert_int_equal(file_read(path, 1 << 20, &text, &n, &e), 0);
    struct chat_template *t = chat_template_parse(text, n, &e);
    assert_non_null(t);
    size_t m;
    const char *source = chat_template_source(t, &m);
    assert_int_equal(m, n);
    assert_memory_equal(source, text, n);
    enum tool_format found = tool_format_detect(source, m);
    reasoning_found = reasoning_detect(source, m);
    chat_template_free(t);
    free(text);
    free(path);
    return found;
}

static void formats(void **state)
{
    (void)state;
    assert_int_equal(detect("Qwen-Qwen2.5-7B-Instruct.jinja"), TOOL_FORMAT_HERMES);
    assert_int_equal(detect("Qwen-Qwen3-0.6B.jinja"), TOOL_FORMAT_HERMES);
    assert_int_equal(detect("meta-llama-Llama-3.1-8B-Instruct.jinja"), TOOL_FORMAT_LLAMA3);
    assert_int_equal(detect("google-gemma-2-2b-it.jinja"), TOOL_FORMAT_NONE);
    assert_int_equal(detect("../output_formats/Qwen3-Coder.jinja"), TOOL_FORMAT_QWEN3_CODER);
    assert_int_equal(detect("../output_formats/openai-gpt-oss-120b.jinja"), TOOL_FORMAT_HARMONY);
    assert_int_equal(detect("../output_formats/mistralai-Mistral-Nemo-Instruct-2407.jinja"), TOOL_FORMAT_MISTRAL);
    assert_int_equal(detect("../output_formats/mistralai-Ministral-3-14B-Reasoning-2512.jinja"),
                     TOOL_FORMAT_MISTRAL_ARGS);
    assert_int_equal(detect("../output_formats/deepseek-v3.jinja"), TOOL_FORMAT_DEEPSEEK_V3);
    assert_int_equal(detect("../output_formats/deepseek-ai-DeepSeek-V3.1.jinja"), TOOL_FORMAT_DEEPSEEK_V31);
    assert_int_equal(detect("../output_formats/ibm-granite-granite-3.3-2B-Instruct.jinja"), TOOL_FORMAT_GRANITE);
    assert_int_equal(detect("../output_formats/phi-4-mini.jinja"), TOOL_FORMAT_PHI4);
    assert_int_equal(detect("../output_formats/llama-4-pythonic.jinja"), TOOL_FORMAT_LLAMA4);
    assert_int_equal(detect("../output_formats/gemma-3-pythonic.jinja"), TOOL_FORMAT_PYTHONIC);
    assert_int_equal(detect("../output_formats/google-gemma-4-31B-it.jinja"), TOOL_FORMAT_GEMMA4);
    assert_int_equal(detect("../output_formats/functiongemma.jinja"), TOOL_FORMAT_FUNCTION_GEMMA);
    size_t n;
    assert_int_equal(tool_format_detect(chat_template_source(NULL, &n), n), TOOL_FORMAT_NONE);
    const char *coder = "<tool_call>\n<function=f>";
    assert_int_equal(tool_format_detect(coder, strlen(coder)), TOOL_FORMAT_NONE); /* GLM and others */
    assert_int_equal(tool_format_choose("auto", TOOL_FORMAT_LLAMA3), TOOL_FORMAT_LLAMA3);
    assert_int_equal(tool_format_choose("none", TOOL_FORMAT_LLAMA3), TOOL_FORMAT_NONE);
    assert_int_equal(tool_format_choose("hermes", TOOL_FORMAT_NONE), TOOL_FORMAT_HERMES);
    assert_int_equal(tool_format_choose("llama3_json", TOOL_FORMAT_NONE), TOOL_FORMAT_LLAMA3);
    assert_int_equal(tool_format_choose("mistral", TOOL_FORMAT_NONE), TOOL_FORMAT_MISTRAL);
    assert_int_equal(tool_format_choose("mistral", TOOL_FORMAT_MISTRAL_ARGS), TOOL_FORMAT_MISTRAL_ARGS);
    assert_int_equal(tool_format_choose("harmony", TOOL_FORMAT_HERMES), TOOL_FORMAT_HARMONY);
    assert_int_equal(reasoning_choose("qwen3", REASONING_HARMONY), REASONING_THINK);
    assert_int_equal(reasoning_choose("auto", REASONING_HARMONY), REASONING_HARMONY);
    assert_int_equal(reasoning_choose("none", REASONING_HARMONY), REASONING_NONE);
    assert_true(tool_format_is_mark(TOOL_FORMAT_LLAMA3, "<|python_tag|>", 14));
    assert_false(tool_format_is_mark(TOOL_FORMAT_LLAMA3, "<|python_tag|", 13));
    assert_false(tool_format_is_mark(TOOL_FORMAT_LLAMA3, "<tool_call>", 11));
    assert_true(tool_format_is_mark(TOOL_FORMAT_HERMES, "</tool_call>", 12));
    assert_false(tool_format_is_mark(TOOL_FORMAT_HERMES, "<|im_end|>", 10));
}

static void thoughts_of_templates(void **state)
{
    static const struct {
        const char *name;
        enum reasoning_format format;
    } v[] = {{"Qwen-Qwen3-0.6B.jinja", REASONING_THINK},
             {"google-gemma-2-2b-it.jinja", REASONING_THINK},
             {"../output_formats/openai-gpt-oss-120b.jinja", REASONING_HARMONY},
             {"../output_formats/mistralai-Ministral-3-14B-Reasoning-2512.jinja", REASONING_MISTRAL},
             {"../output_formats/google-gemma-4-31B-it.jinja", REASONING_GEMMA4}};
    (void)state;
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) {
        detect(v[i].name);
        assert_int_equal(reasoning_found, v[i].format);
    }
}

/* The marks are what the parsers take them for: no first byte comes a second time, but at the end. */
static void the_registry(void **state)
{
    (void)state;
    for (int f = 0; f < TOOL_FORMATS; f++) {
        const struct output_format *row = output_format((enum tool_format)f);
        const char *const *lists[] = {row->group, row->open, row->close};
        assert_true(tool_format_known(row->name));
        for (size_t l = 0; l < 3; l++) {
            for (size_t i = 0; i < FORMAT_MARKS && lists[l][i]; i++) {
                const char *mark = lists[l][i];
                bool fence = *mark == '`'; /* three of them, which nothing but more of them resembles */
                assert_true(fence || !memchr(mark + 1, *mark, strlen(mark) - 1));
                assert_true(tool_format_is_mark((enum tool_format)f, mark, strlen(mark)));
            }
        }
        if (f != TOOL_FORMAT_NONE) assert_true(row->shape.before && row->shape.between && row->shape.after);
    }
    assert_false(tool_format_known("unknown"));
    for (int f = 0; f < REASONING_FORMATS; f++) assert_true(reasoning_known(reasoning_marks(f)->name));
    assert_false(reasoning_known("unknown"));
}

int main(int argc, char **argv)
{
    template_dir = argc > 1 ? argv[1] : "tests/fixtures/templates";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hermes_calls),
        cmocka_unit_test(hermes_content),
        cmocka_unit_test(llama_calls),
        cmocka_unit_test(no_format),
        cmocka_unit_test(without_tools_an_object_is_content),
        cmocka_unit_test(nothing_waits_longer_than_it_must),
        cmocka_unit_test(limits),
        cmocka_unit_test(many_calls),
        cmocka_unit_test(as_json),
        cmocka_unit_test(as_deltas),
        cmocka_unit_test(formats),
        cmocka_unit_test(thoughts_of_templates),
        cmocka_unit_test(the_registry),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_free();
    return failed;
}
