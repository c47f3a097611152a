/* The grammars of answers that may call (chat_format.c, schema/answer.c): for each output format, a tool with a pattern
 * is called with such texts only, the others with anything, and the rest of the answer is free. */
#include "server/api/chat_format.h"
#include "server/api/openai_params.h"

#include "engine/tokenizer/tokenizer.h"
#include "server/schema/marks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *list; /* the tools */

static struct tokenizer *tokenizer_of(const char *added)
{
    struct buf text = {0};
    struct err e = {0};
    buf_printf(&text,
               "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0},\"unk_token\":\"a\"},\"added_tokens\":[%s]}",
               added);
    struct tokenizer *t = tokenizer_parse(text.data, text.len, &e);
    if (!t) print_error("%s\n", e.msg);
    assert_non_null(t);
    buf_free(&text);
    return t;
}

static struct grammar *grammar_of(const struct chat_format *chat, const struct tokenizer *t)
{
    struct openai_params p = {.tools = list, .tool_choice = TOOL_CHOICE_AUTO, .parallel_tool_calls = true};
    struct constraint_request request = {0};
    struct err e = {0};
    assert_int_equal(chat_calls_constraint(chat, &p, t, &request, &e), 0);
    assert_int_equal(request.kind, CONSTRAINT_MAY_CALL);
    struct grammar *g = constraint_build(&request, &e);
    if (!g) print_error("%s\n", e.msg);
    assert_non_null(g);
    constraint_request_free(&request);
    return g;
}

static void check_text(struct grammar *g, enum tool_format format, const char *text, bool allowed)
{
    struct err e = {0};
    int rc = grammar_matches(g, text, strlen(text), &e);
    if (rc != allowed) print_error("format %d, %s: %d\n", format, text, rc);
    assert_int_equal(rc, allowed);
}

#define O(name, arguments) "{\"name\": \"" name "\", \"arguments\": " arguments "}"
#define T(name, arguments) "<tool_call>\n" O(name, arguments) "\n</tool_call>"
#define P(name, arguments) "{\"name\": \"" name "\", \"parameters\": " arguments "}"
#define IN(text) "{\"input\": \"" text "\"}"
#define ANY "{\"x\": [1, {\"y\": null}]}"
#define DS(words) "<\xef\xbd\x9ctool\xe2\x96\x81" words "\xef\xbd\x9c>"
/* clang-format off */
#define DS_ALL DS("calls\xe2\x96\x81" "begin")
#define DS_ALL_END DS("calls\xe2\x96\x81" "end")
#define DS_ONE DS("call\xe2\x96\x81" "begin")
#define DS_ONE_END DS("call\xe2\x96\x81" "end")
/* clang-format on */
#define V3(name, arguments) DS_ONE "function" DS("sep") name "\n```json\n" arguments "\n```" DS_ONE_END
#define V31(name, arguments) DS_ONE name DS("sep") arguments DS_ONE_END
#define Q "<|\"|>"
#define X(body) "<tool_call>\n<function=" body "</function>\n</tool_call>"
#define XP(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"
#define H(channel, text) "<|channel|>" channel "<|message|>" text
#define H_MORE "<|end|><|start|>assistant"
#define H_CALL(name) "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>"

static const struct {
    enum tool_format format;
    enum reasoning_format reasoning;
    const char *good[6], *bad[6];
} rows[] = {
    {TOOL_FORMAT_HERMES,
     REASONING_THINK,
     {"a < b <tool <<tool_cal", "So.\n" T("patch", IN("ab")) "\n" T("f", ANY), "<think>a <tool_call> b</think>\n" T("f", "{}"),
      "\n<think>a", T("patch", IN("cd")) " So. " T("patch", IN("ab")) " <"},
     {T("patch", IN("abc")), T("h", "{}"), "<tool_call>a", "<think>a</think><tool_call>", T("patch", "{}")}},
    {TOOL_FORMAT_QWEN3_CODER,
     REASONING_THINK,
     {"a <function <functio", X("patch>\n" XP("input", "ab")), "So. " X("f>\n" XP("x", "any <p> text") XP("y", "2")) " <"},
     {X("patch>\n" XP("input", "abc")), X("patch>\n"), "<function=patch>\n" XP("input", "zz") "</function>", "<tool_call>"}},
    {TOOL_FORMAT_LLAMA3,
     REASONING_THINK,
     {"", "So {a}.", " \n" P("patch", IN("ab")) "; " P("f", ANY), P("f", "{}"), "<think>{</think>" P("patch", IN("cd"))},
     {P("patch", IN("abc")), " {}", "<|python_tag|>" P("f", "{}"), "<think>{</think> {\"a\": 1}",
      P("f", "{}") " " P("patch", IN("abc")), P("f", "{}") "; " P("patch", IN("abc"))}},
    {TOOL_FORMAT_LLAMA4,
     REASONING_THINK,
     {"So [a].", "[patch(input=\"ab\"), f(x=[1, 'it\\'s', {\"y\": None}], z=True)]", "[f()]"},
     {"[patch(input=\"abc\")]", "[1]", "{}", "\n[patch()]"}},
    {TOOL_FORMAT_PYTHONIC,
     REASONING_NONE,
     {"So [a]. ``` code", "[patch(input=\"ab\")]", "{}", "<think>[", "```tool\n"},
     {"[patch(input=\"abc\")]", "```tool_code\n[f()]", "So: ````tool_code"}},
    {TOOL_FORMAT_MISTRAL,
     REASONING_MISTRAL,
     {"a [TOOL", "So.[TOOL_CALLS][" O("patch", IN("ab")) ", " O("f", ANY) "]", "[THINK]a [TOOL_CALLS] b[/THINK]So."},
     {"[TOOL_CALLS][" O("patch", IN("abc")) "]", "[TOOL_CALLS]", "[THINK]a[/THINK][TOOL_CALLS]a"}},
    {TOOL_FORMAT_MISTRAL_ARGS,
     REASONING_MISTRAL,
     {"a [TOOL", "So.[TOOL_CALLS]patch[ARGS]" IN("ab") "[TOOL_CALLS]f[ARGS]" ANY},
     {"[TOOL_CALLS]patch[ARGS]" IN("abc"), "[TOOL_CALLS]patch"}},
    {TOOL_FORMAT_DEEPSEEK_V3,
     REASONING_THINK,
     {"a <\xef\xbd\x9ctool", "So." DS_ALL V3("patch", IN("ab")) "\n" V3("f", ANY) DS_ALL_END},
     {DS_ALL V3("patch", IN("abc")) DS_ALL_END, DS_ALL, V3("f", "{}")}},
    {TOOL_FORMAT_DEEPSEEK_V31,
     REASONING_THINK,
     {"a <\xef\xbd\x9ctool", "So." DS_ALL V31("patch", IN("ab")) V31("f", ANY) DS_ALL_END},
     {DS_ALL V31("patch", IN("abc")) DS_ALL_END, DS_ALL, V31("f", "{}")}},
    {TOOL_FORMAT_GRANITE,
     REASONING_THINK,
     {"a <|tool_call [1]", "So. <|tool_call|>[" O("patch", IN("ab")) ", " O("f", ANY) "] a"},
     {"<|tool_call|>[" O("patch", IN("abc")) "]", "[" O("patch", IN("abc")) "]", "<tool_call>", "a <|tool_call|>"}},
    {TOOL_FORMAT_PHI4,
     REASONING_THINK,
     {"a function of functools import", "So. functools[" O("patch", IN("ab")) ", " O("f", ANY) "]"},
     {"functools[" O("patch", IN("abc")) "]", "functools[", "<|tool_call|>[" O("patch", IN("abc")) "]"}},
    {TOOL_FORMAT_GEMMA4,
     REASONING_GEMMA4,
     {"a <|tool", "<|tool_call>call:patch{input:" Q "ab" Q "}<tool_call|>",
      "<|channel>thought\nHm.<channel|>So.<|tool_call>call:f{x:" Q "it's \"so\"" Q ",y:[1,{z:null}]}<tool_call|>"},
     {"<|tool_call>call:patch{input:" Q "abc" Q "}<tool_call|>", "<|tool_call>"}},
    {TOOL_FORMAT_FUNCTION_GEMMA,
     REASONING_THINK,
     {"a <start_", "<start_function_call>call:patch{input:<escape>ab<escape>}<end_function_call>",
      "<start_function_call>call:f{x:<escape>any<escape>}<end_function_call>"},
     {"<start_function_call>call:patch{input:<escape>abc<escape>}<end_function_call>", "<start_function_call>"}},
    {TOOL_FORMAT_HARMONY,
     REASONING_HARMONY,
     {H("final", "So."), H("analysis", "Hm.") H_MORE H("commentary", "I look.") H_MORE H_CALL("patch") IN("ab"),
      H_CALL("f") ANY, H("analysis", "<|") H_MORE H("final", "")},
     {"So.", H_CALL("patch") IN("abc"), H("analysis", "Hm."), H("final", "So.") H_MORE H_CALL("f") "{}",
      H("final", "<|call|>")}},
};

static void each_format(void **state)
{
    (void)state;
    struct tokenizer *t = tokenizer_of("");
    assert_int_equal(sizeof rows / sizeof *rows, TOOL_FORMATS - 1); /* but for none */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat_format chat = {.tools = rows[i].format, .reasoning = rows[i].reasoning};
        struct grammar *g = grammar_of(&chat, t);
        for (int k = 0; k < 6 && rows[i].good[k]; k++) check_text(g, rows[i].format, rows[i].good[k], true);
        for (int k = 0; k < 6 && rows[i].bad[k]; k++) check_text(g, rows[i].format, rows[i].bad[k], false);
        grammar_unref(g);
    }
    tokenizer_close(t);
}

#define TOKEN(id, text)                                                                                                \
    "{\"id\":" id ",\"content\":\"" text "\",\"special\":true,\"single_word\":false,\"lstrip\":false,"                 \
    "\"rstrip\":false,\"normalized\":false}"
#define S(text) "\xff" text "\xff" /* GRAM_SPECIAL */

/* Marks that are special tokens are these tokens, and their letters begin nothing. */
static void special_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool good;
    } cases[] = {
        {S("[TOOL_CALLS]") "patch" S("[ARGS]") IN("ab"), true},
        {"So." S("[TOOL_CALLS]") "patch" S("[ARGS]") IN("ab") S("[TOOL_CALLS]") "f" S("[ARGS]") "{}", true},
        {S("[THINK]") "a" S("[/THINK]") "b" S("[TOOL_CALLS]") "f" S("[ARGS]") "{}", true},
        {S("[TOOL_CALLS]") "patch" S("[ARGS]") IN("zz"), false},
        {S("[TOOL_CALLS]") "patch[ARGS]" IN("ab"), false},
        {"[TOOL_CALLS]patch" S("[ARGS]") IN("ab"), false},
        {"[TOOL_CALLS]", false},
        {"a" S("[THINK]"), false},
        {S("[OTHER]"), false},
    };
    struct tokenizer *t = tokenizer_of(TOKEN("1", "[TOOL_CALLS]") "," TOKEN("2", "[ARGS]") "," TOKEN(
        "3", "[THINK]") "," TOKEN("4", "[/THINK]") "," TOKEN("5", "[OTHER]"));
    struct chat_format chat = {.tools = TOOL_FORMAT_MISTRAL_ARGS, .reasoning = REASONING_MISTRAL};
    struct grammar *g = grammar_of(&chat, t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_text(g, TOOL_FORMAT_MISTRAL_ARGS, cases[i].text, cases[i].good);
    grammar_unref(g);
    tokenizer_close(t);
}

/* Marks that share their beginning, and of several bytes a character; against a search for the marks. */
static void texts_without_marks(void **state)
{
    (void)state;
    static const char *const marks[] = {"<ab>", "<ac", "f\xc3\xa9", "``x"};
    static const char *const parts[] = {"<", "a", "b", ">", "c", "f", "\xc3\xa9", "`", "x", " "};
    enum { N_MARKS = 4, N_PARTS = 10 };
    struct jpool *p = jpool_new();
    struct err e = {0};
    struct grammar *free = jexpr_grammar(p, text_without_marks(p, marks, N_MARKS, ""), &e);
    struct grammar *starts = jexpr_grammar(p, text_without_marks(p, marks, N_MARKS, "a"), &e);
    uint32_t seed = 1;
    int seen[2] = {0};
    assert_non_null(free);
    assert_non_null(starts);
    for (int i = 0; i < 20000; i++) {
        char text[64] = "";
        for (int k = 0; k < i % 9; k++) {
            seed = seed * 1664525 + 1013904223;
            strcat(text, parts[(seed >> 16) % N_PARTS]);
        }
        bool good = true;
        for (int m = 0; m < N_MARKS; m++) good = good && !strstr(text, m == 3 ? "`x" : marks[m]);
        seen[good]++;
        check_text(free, TOOL_FORMAT_NONE, text, good);
        check_text(starts, TOOL_FORMAT_NONE, text, good && text[strspn(text, " ")] != 'a');
    }
    assert_true(seen[0] > 1000 && seen[1] > 1000);
    grammar_unref(free);
    grammar_unref(starts);
    jpool_free(p);
}

int main(void)
{
    static const char tools_text[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"patch\",\"parameters\":{\"type\":\"object\",\"properties\":{"
        "\"input\":{\"type\":\"string\",\"pattern\":\"^(ab|cd)$\"}},\"required\":[\"input\"],"
        "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
        "\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"nothing\"}}}}}]";
    list = cJSON_Parse(tools_text);
    if (!list) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(texts_without_marks),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cJSON_Delete(list);
    return failed;
}
