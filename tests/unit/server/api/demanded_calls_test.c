/* The grammars of demanded calls (chat_format.c, schema/calls.c): for each output format, what is allowed and what is
 * not, and that the parser finds in an allowed text the calls that it has. */
#include "server/api/chat_format.h"
#include "server/api/openai_params.h"
#include "tests/unit/server/api/parser_rig.h"

#include "engine/tokenizer/tokenizer.h"

static struct tokenizer *tokenizer;
static cJSON *list; /* the tools */

static struct grammar *grammar_of(enum tool_format format, bool many, const char *name)
{
    struct chat_format chat = {.tools = format};
    struct openai_params p = {.tools = list,
                              .tool_choice = name ? TOOL_CHOICE_NAMED : TOOL_CHOICE_REQUIRED,
                              .tool_name = name,
                              .parallel_tool_calls = many};
    struct constraint_request request = {0};
    struct err e = {0};
    assert_int_equal(chat_tool_constraint(&chat, &p, tokenizer, &request, &e), 0);
    struct grammar *g = constraint_build(&request, &e);
    if (!g) print_error("%s\n", e.msg);
    assert_non_null(g);
    constraint_request_free(&request);
    return g;
}

static void check_text(struct grammar *g, const char *text, bool allowed)
{
    struct err e = {0};
    int rc = grammar_matches(g, text, strlen(text), &e);
    if (rc != allowed) print_error("%s: %d\n", text, rc);
    assert_int_equal(rc, allowed);
}

/* one: a call of f; two: calls of f and G; both with their calls as run() notes them. */
struct row {
    enum tool_format format;
    const char *one, *two, *bad[6];
};

#define G "get_weather"
#define O(name, arguments) "{\"name\": \"" name "\", \"arguments\": " arguments "}"
#define T(name, arguments) "<tool_call>\n" O(name, arguments) "\n</tool_call>"
#define P(name, arguments) "{\"name\": \"" name "\", \"parameters\": " arguments "}"
#define ARGS "{\"n\": 1, \"s\": \"a b\"}"
#define DS(words) "<\xef\xbd\x9ctool\xe2\x96\x81" words "\xef\xbd\x9c>"
#define DS_ALL                                                                                                         \
    DS("calls\xe2\x96\x81"                                                                                             \
       "begin")
#define DS_ALL_END                                                                                                     \
    DS("calls\xe2\x96\x81"                                                                                             \
       "end")
#define DS_ONE                                                                                                         \
    DS("call\xe2\x96\x81"                                                                                              \
       "begin")
#define DS_ONE_END                                                                                                     \
    DS("call\xe2\x96\x81"                                                                                              \
       "end")
#define V3(name, arguments) DS_ONE "function" DS("sep") name "\n```json\n" arguments "\n```" DS_ONE_END
#define V31(name, arguments) DS_ONE name DS("sep") arguments DS_ONE_END
#define Q "<|\"|>"
#define X(body) "<tool_call>\n<function=" body "</function>\n</tool_call>"
#define XP(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"

static const struct row rows[] = {
    {TOOL_FORMAT_HERMES, T("f", ARGS), T("f", ARGS) "\n" T(G, "{}"), {O("f", ARGS), T("h", "{}"), T("f", "{}"), ""}},
    {TOOL_FORMAT_LLAMA3, P("f", ARGS), P("f", ARGS) "; " P(G, "{}"), {O("f", ARGS), P("f", "{}")}},
    {TOOL_FORMAT_QWEN3_CODER,
     X("f>\n" XP("n", "1") XP("s", "a b")),
     X("f>\n" XP("n", "1") XP("s", "a b")) "\n" X(G ">\n"),
     {X("f>\n"), X("f>\n" XP("n", "3") XP("s", "a b")), X("f>\n" XP("n", "1") XP("s", "x")),
      X("f>\n" XP("n", "1") XP("s", "a b") XP("t", "</parameter>")), X(G ">\n" XP("n", "1"))}},
    {TOOL_FORMAT_LLAMA4,
     "[f(n=1, s=\"a b\")]",
     "[f(n=1, s=\"a b\"), " G "()]",
     {"[f()]", "f(n=1, s=\"a b\")", "[f(n=3, s=\"c\")]", "[]"}},
    {TOOL_FORMAT_PYTHONIC, "[f(n=1, s=\"a b\")]", "[f(n=1, s=\"a b\"), " G "()]", {"[h()]"}},
    {TOOL_FORMAT_MISTRAL,
     "[TOOL_CALLS][" O("f", ARGS) "]",
     "[TOOL_CALLS][" O("f", ARGS) ", " O(G, "{}") "]",
     {"[TOOL_CALLS][]"}},
    {TOOL_FORMAT_MISTRAL_ARGS,
     "[TOOL_CALLS]f[ARGS]" ARGS,
     "[TOOL_CALLS]f[ARGS]" ARGS "[TOOL_CALLS]" G "[ARGS]{}",
     {"[TOOL_CALLS]f" ARGS}},
    {TOOL_FORMAT_DEEPSEEK_V3,
     DS_ALL V3("f", ARGS) DS_ALL_END,
     DS_ALL V3("f", ARGS) "\n" V3(G, "{}") DS_ALL_END,
     {DS_ALL DS_ALL_END}},
    {TOOL_FORMAT_DEEPSEEK_V31,
     DS_ALL V31("f", ARGS) DS_ALL_END,
     DS_ALL V31("f", ARGS) V31(G, "{}") DS_ALL_END,
     {V31("f", ARGS)}},
    {TOOL_FORMAT_GRANITE,
     "<|tool_call|>[" O("f", ARGS) "]",
     "<|tool_call|>[" O("f", ARGS) ", " O(G, "{}") "]",
     {"[" O("f", ARGS) "]"}},
    {TOOL_FORMAT_PHI4, "functools[" O("f", ARGS) "]", "functools[" O("f", ARGS) ", " O(G, "{}") "]", {O("f", ARGS)}},
    {TOOL_FORMAT_GEMMA4,
     "<|tool_call>call:f{n:1,s:" Q "a b" Q "}<tool_call|>",
     "<|tool_call>call:f{n:1,s:" Q "a b" Q "}<tool_call|><|tool_call>call:" G "{}<tool_call|>",
     {"<|tool_call>call:f{n:1}<tool_call|>", "<|tool_call>call:f{n:1,s:" Q "x" Q "}<tool_call|>"}},
    {TOOL_FORMAT_FUNCTION_GEMMA,
     "<start_function_call>call:f{n:1,s:<escape>a b<escape>}<end_function_call>",
     "<start_function_call>call:f{n:1,s:<escape>a "
     "b<escape>}<end_function_call><start_function_call>call:" G "{}<end_function_call>",
     {"<start_function_call>call:h{}<end_function_call>"}},
    {TOOL_FORMAT_HARMONY, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" ARGS, NULL, {ARGS}},
};

static void each_format(void **state)
{
    (void)state;
    assert_int_equal(sizeof rows / sizeof *rows, TOOL_FORMATS - 1); /* but for none */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct grammar *many = grammar_of(r->format, true, NULL), *one = grammar_of(r->format, false, NULL);
        struct grammar *named = grammar_of(r->format, true, "f"), *other = grammar_of(r->format, true, G);
        check_text(many, r->one, true);
        check_text(one, r->one, true);
        check_text(named, r->one, true);
        check_text(other, r->one, false);
        if (r->two) check_text(many, r->two, true);
        if (r->two) check_text(one, r->two, false);
        if (r->two) check_text(named, r->two, false);
        for (int k = 0; k < 6 && r->bad[k]; k++) check_text(many, r->bad[k], false);
        check(r->format, true, r->one, "[0 f " ARGS "]");
        if (r->two) check(r->format, false, r->two, "[0 f " ARGS "][1 " G " {}]");
        grammar_unref(many);
        grammar_unref(one);
        grammar_unref(named);
        grammar_unref(other);
    }
}

/* Texts as they are, lists and objects, and what is optional. */
static void values(void **state)
{
    (void)state;
    struct grammar *xml = grammar_of(TOOL_FORMAT_QWEN3_CODER, false, "f"),
                   *gemma = grammar_of(TOOL_FORMAT_GEMMA4, false, "f");
    struct grammar *python = grammar_of(TOOL_FORMAT_PYTHONIC, false, "f");
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c")), true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("t", "ab")), true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("t", "<b>\"x\"</b>")), true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("t", "a\n</param <<<")), true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("l", "[1, 2]")), true);
    check_text(xml,
               X("f>\n" XP("n", "1") XP("s", "c") XP("t", "<b>\"x\"</b>\n</param <<<") XP("l", "[1, 2]")
                     XP("o", "{\"k\": \"v\"}")),
               true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("o", "{\"k\": \"v\"}")), true);
    check_text(xml, X("f>\n" XP("n", "1") XP("s", "c") XP("l", "[\"a\"]")), false);
    check_text(xml, X("f>\n" XP("s", "c") XP("n", "1")), false); /* the order is the schema's */
    check_text(gemma,
               "<|tool_call>call:f{n:1,s:" Q "c" Q ",t:" Q "a < b, {c}" Q ",l:[1,2],o:{\"k\": \"v\"}}<tool_call|>",
               true);
    check_text(gemma, "<|tool_call>call:f{n:1,s:" Q "c" Q ",l:[]}<tool_call|>", true);
    check_text(gemma, "<|tool_call>call:f{n:1,s:" Q "c" Q ",o:{}}<tool_call|>", false);
    check_text(python, "[f(n=1, s=\"c\", t=\"a\\\"b\", on=True)]", true);
    check_text(python, "[f(n=1, s=\"c\", on=true)]", false);
    grammar_unref(xml);
    grammar_unref(gemma);
    grammar_unref(python);
}

static void failures_name_the_tool(void **state)
{
    (void)state;
    cJSON *odd =
        cJSON_Parse("[{\"type\":\"function\",\"function\":{\"name\":\"odd\",\"parameters\":{\"type\":\"object\","
                    "\"properties\":{\"x\":{\"type\":\"nothing\"}}}}}]");
    struct chat_format chat = {.tools = TOOL_FORMAT_HERMES};
    struct openai_params p = {.tools = odd, .tool_choice = TOOL_CHOICE_REQUIRED};
    struct constraint_request request = {0};
    struct err e = {0};
    assert_int_equal(chat_tool_constraint(&chat, &p, tokenizer, &request, &e), 0);
    assert_null(constraint_build(&request, &e));
    assert_memory_equal(e.msg, "odd: ", 5);
    assert_non_null(strstr(e.msg, "/properties/x"));
    constraint_request_free(&request);
    cJSON_Delete(odd);
}

int main(void)
{
    static const char vocabulary[] =
        "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0},\"unk_token\":\"a\"},\"added_tokens\":[]}";
    static const char tools_text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"n\":{\"enum\":[1,22]},\"s\":{\"enum\":[\"a b\",\"c\"]},\"t\":{\"type\":\"string\"},"
        "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},\"o\":{\"$ref\":\"#/$defs/"
        "o\"},\"on\":{\"type\":\"boolean\"}},"
        "\"required\":[\"n\",\"s\"],\"additionalProperties\":false,\"$defs\":{\"o\":{\"type\":\"object\","
        "\"properties\":{\"k\":"
        "{\"type\":\"string\"}},\"required\":[\"k\"],\"additionalProperties\":false}}}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"get_weather\"}}]";
    struct err e = {0};
    tokenizer = tokenizer_parse(vocabulary, sizeof vocabulary - 1, &e);
    list = cJSON_Parse(tools_text);
    if (!tokenizer || !list) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format),
        cmocka_unit_test(values),
        cmocka_unit_test(failures_name_the_tool),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_free();
    cJSON_Delete(list);
    tokenizer_close(tokenizer);
    return failed;
}
