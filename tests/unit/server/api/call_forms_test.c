/* server/api/tool_calls.c: the calls and thoughts of each model family, and what only resembles them, however the text
 * is cut. */
#include "tests/unit/server/api/parser_rig.h"

/* Thoughts come before the mark "|" in what is expected. */
static void think_marks(void **state)
{
    static const struct example v[] = {
        {"<think>\n" CALL(F1) "</think>\n\n" CALL(F1), CALL(F1) "|[0 f {\"x\": 1}]", SAME},
        {" <think>a", "a|", SAME},
        {"a<think>" CALL(F1), "a<think>[0 f {\"x\": 1}]", SAME},
        {"<think>a</think>b", "a|b", SAME},
        {"<think>a</think>" CALL(F1) "</think>b", "a|[0 f {\"x\": 1}]</think>b", SAME},
        UNCHANGED("  a "),
    };
    static const struct example begun[] = {
        {"I may " CALL(F1) "</think>" CALL(F1), "I may " CALL(F1) "|[0 f {\"x\": 1}]", SAME},
        {"a\n</think>\n\nb", "a|b", SAME},
        {"", "", SAME},
    };
    static const struct example mistral[] = {{"[THINK]a [b][/THINK]c", "a [b]|c", SAME},
                                             UNCHANGED("<think>a</think>b")};
    static const struct example gemma[] = {
        {"<|channel>thought\na\n<channel|>b", "a|b", SAME},
        {"<|channel>thought\na\n<channel|><|tool_call>call:f{s:<|\"|>x<|\"|>}<tool_call|>", "a|[0 f {\"s\": \"x\"}]",
         SAME},
    };
    (void)state;
    reasoning = REASONING_THINK;
    check_all(TOOL_FORMAT_HERMES, v, sizeof v / sizeof *v);
    inside = true;
    check_all(TOOL_FORMAT_HERMES, begun, sizeof begun / sizeof *begun);
    inside = false;
    reasoning = REASONING_MISTRAL;
    check_all(TOOL_FORMAT_MISTRAL, mistral, sizeof mistral / sizeof *mistral);
    reasoning = REASONING_GEMMA4;
    check_all(TOOL_FORMAT_GEMMA4, gemma, sizeof gemma / sizeof *gemma);
    reasoning = REASONING_NONE;
    assert_true(reasoning_prompt_thinks(REASONING_THINK, "assistant\n<think>\n", 18));
    assert_true(reasoning_prompt_thinks(REASONING_THINK, "<think>", 7));
    assert_false(reasoning_prompt_thinks(REASONING_THINK, "<think>\n</think>\n\n", 19));
    assert_false(reasoning_prompt_thinks(REASONING_THINK, "think>", 6));
    assert_false(reasoning_prompt_thinks(REASONING_THINK, NULL, 0));
    assert_false(reasoning_prompt_thinks(REASONING_NONE, "<think>", 7));
    assert_true(reasoning_prompt_thinks(REASONING_MISTRAL, "[THINK]", 7));
}

#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define TO(name) "<|channel|>commentary to=functions." name " <|constrain|>json<|message|>"
#define NEXT "<|end|><|start|>assistant"

static void harmony(void **state)
{
    static const struct example v[] = {
        {ANALYSIS "I think." NEXT FINAL "Text <b>.", "I think.|Text <b>.", SAME},
        {FINAL "Text.<|return|>", "Text.", SAME},
        {ANALYSIS "a" NEXT TO("f") "{\"x\": 1}<|call|>", "a|[0 f {\"x\": 1}]", SAME},
        {TO("f") "{\"x\": 1}", "[0 f {\"x\": 1}]", SAME},
        {" to=functions.get_weather<|channel|>commentary json<|message|>{}", "[0 get_weather {}]", SAME},
        {ANALYSIS "a" NEXT "<|channel|>commentary<|message|>I look." NEXT TO("f") " {\"x\": 1}\n<|call|>",
         "a|I look.[0 f {\"x\": 1}]", SAME},
        {ANALYSIS "a" NEXT ANALYSIS "b" NEXT FINAL "c" NEXT FINAL "d", "a\nb|c\nd", SAME},
        {TO("f") "{}<|call|><|start|>assistant" TO("f") "{\"x\":2}<|call|>", "[0 f {}][1 f {\"x\":2}]", SAME},
        {"<|channel|>analysis to=python code<|message|>print(1)" NEXT FINAL "b", "print(1)|b", SAME},
        {ANALYSIS "a < b <| c <|en", "a < b <| c <|en|", SAME},
        {ANALYSIS "a" NEXT, "a|", SAME},
        {TO("f") "nothing" NEXT FINAL "b", "nothing\nb", SAME},
        {TO("f") "{\"x\": 1,}" NEXT FINAL "b", "{\"x\": 1,}\nb", "[0 f {\"x\": 1,!}\nb"},
        {TO("f") "{\"x\": \"a", "{\"x\": \"a", "[0 f {\"x\": \"a!"},
        UNCHANGED("No channel <|x|> at all."),
        UNCHANGED(""),
    };
    (void)state;
    reasoning = REASONING_HARMONY;
    check_all(TOOL_FORMAT_HARMONY, v, sizeof v / sizeof *v);
    check(TOOL_FORMAT_NONE, true, ANALYSIS "a" NEXT TO("f") "{}", "a|{}"); /* no tools: nothing is a call */
    reasoning = REASONING_NONE;
    check(TOOL_FORMAT_HARMONY, true, ANALYSIS "a" NEXT FINAL "b", "a\nb");
}

#define PARAM(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"

static void coder_calls(void **state)
{
    static const struct example v[] = {
        {"<tool_call>\n<function=f>\n" PARAM("s", "a\n b") "</function>\n</tool_call>", "[0 f {\"s\": \"a\\n b\"}]",
         SAME},
        {"I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n" PARAM(
             "q", "1") "</function>\n</tool_call>",
         "I look.[0 f {}][1 g {\"q\": \"1\"}]", SAME},
        {"<function=f>" PARAM("n", "3") PARAM("x", "3") PARAM("on", "True") PARAM("s", "3") "</function></tool_call> b",
         "[0 f {\"n\": 3, \"x\": 3, \"on\": true, \"s\": \"3\"}] b", SAME},
        {"<function=f>" PARAM("n", "three") PARAM("maybe", "null") PARAM("list", "[1, \"a\"]")
             PARAM("map", "{'a': None}") PARAM("c", "1") "</function>",
         "[0 f {\"n\": \"three\", \"maybe\": null, \"list\": [1, \"a\"], \"map\": {\"a\": null}, \"c\": 1}]", SAME},
        {"<function=f>" PARAM("s", "<b>\"\\</b> < </param") PARAM("c", "1x") "</function>",
         "[0 f {\"s\": \"<b>\\\"\\\\</b> < </param\", \"c\": \"1x\"}]", SAME},
        UNCHANGED("<function=f>" PARAM("s", "a") PARAM("s", "b") "</function>"),
        UNCHANGED("<function=f>x</function>"),
        UNCHANGED("<function=f f></function>"),
        UNCHANGED("<function=f><parameter=s>a</function>"),
        UNCHANGED("<function=f><parameter=s>a"),
        UNCHANGED("<tool_call> a"),
        UNCHANGED("<tool_call>" F1),
    };
    (void)state;
    check_all(TOOL_FORMAT_QWEN3_CODER, v, sizeof v / sizeof *v);
}

static void python_calls(void **state)
{
    static const struct example v[] = {
        {"[f(x=1)]", "[0 f {\"x\": 1}]", SAME},
        {" [ f ( x = 1 , s = 'a\\'b' ), get_weather(city=\"Z\\u00fcrich]\", l=[1, (2.5, None),], m={'a': True}) ]\n",
         "[0 f {\"x\": 1, \"s\": \"a'b\"}][1 get_weather {\"city\": \"Z\xc3\xbcrich]\", \"l\": [1, [2.5, null]], "
         "\"m\": "
         "{\"a\": true}}]",
         SAME},
        {"[f()] and", "[0 f {}] and", SAME},
        UNCHANGED("[g(x=1)]"),
        UNCHANGED("[f(x=1), g()]"),
        UNCHANGED("[f(1)]"),
        UNCHANGED("[f(x=y)]"),
        UNCHANGED("[f(x=1, x=2)]"),
        UNCHANGED("[f(x=1)"),
        UNCHANGED("[f(x='a"),
        UNCHANGED("[1, 2]"),
        UNCHANGED("[text](f)"),
        UNCHANGED("See [f(x=1)]"),
        UNCHANGED("[]"),
    };
    static const struct example llama4[] = {
        {"<|python_start|>[f(x=1)]<|python_end|>", "[0 f {\"x\": 1}]", SAME},
        {L1 "; " L1, W(0) W(1), SAME},
        UNCHANGED("<|python_start|>x"),
    };
    static const struct example gemma3[] = {
        {"```tool_code\n[f(x=1)]\n```", "[0 f {\"x\": 1}]", SAME},
        UNCHANGED("```python\n[f(x=1)]\n```"),
    };
    (void)state;
    check_all(TOOL_FORMAT_PYTHONIC, v, sizeof v / sizeof *v);
    check_all(TOOL_FORMAT_LLAMA4, v, sizeof v / sizeof *v);
    check_all(TOOL_FORMAT_LLAMA4, llama4, sizeof llama4 / sizeof *llama4);
    check_all(TOOL_FORMAT_PYTHONIC, gemma3, sizeof gemma3 / sizeof *gemma3);
}

#define L2 "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"9\"}"

static void mistral_calls(void **state)
{
    static const struct example v[] = {
        {"[TOOL_CALLS][" L2 "]", W(0), SAME},
        {"[TOOL_CALLS] [" L2 ", " L2 " ]", W(0) W(1), SAME},
        {"Yes.[TOOL_CALLS][{\"name\": \"other\", \"arguments\": {}}]", "Yes.[0 other {}]", SAME},
        {"[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}", W(0), SAME},
        {"[TOOL_CALLS]get_weather{\"city\": \"Paris\"}[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}", W(0) "[1 f {}]", SAME},
        {"[TOOL_CALLS][" L2 "] and", W(0) " and", SAME},
        {"[TOOL_CALLS][" L2 ", and", W(0) ", and", SAME},
        {"[TOOL_CALLS][" L2, W(0), SAME},
        {"[TOOL_CALLS]f[ARGS]{\"x\": 1", "[TOOL_CALLS]f[ARGS]{\"x\": 1", "[0 f {\"x\": 1!"},
        UNCHANGED("[TOOL_CALLS][]"),
        UNCHANGED("[TOOL_CALLS][1]"),
        UNCHANGED("[TOOL_CALLS]"),
        UNCHANGED("[TOOL_CALLS]a b{\"x\": 1}"),
        UNCHANGED("[1, 2] [TOOL"),
    };
    (void)state;
    check_all(TOOL_FORMAT_MISTRAL, v, sizeof v / sizeof *v);
    check_all(TOOL_FORMAT_MISTRAL_ARGS, v, sizeof v / sizeof *v);
}

#define DS(words) "<\xef\xbd\x9ctool\xe2\x96\x81" words "\xef\xbd\x9c>"
#define BEGIN_ALL                                                                                                      \
    DS("calls\xe2\x96\x81"                                                                                             \
       "begin")
#define END_ALL                                                                                                        \
    DS("calls\xe2\x96\x81"                                                                                             \
       "end")
#define BEGIN_ONE                                                                                                      \
    DS("call\xe2\x96\x81"                                                                                              \
       "begin")
#define END_ONE                                                                                                        \
    DS("call\xe2\x96\x81"                                                                                              \
       "end")

static void deepseek_calls(void **state)
{
    static const struct example v3[] = {
        {BEGIN_ALL BEGIN_ONE "function" DS("sep") "f\n```json\n{\"x\": 1}\n```" END_ONE END_ALL, "[0 f {\"x\": 1}]",
         SAME},
        {"Yes." BEGIN_ALL BEGIN_ONE
         "function" DS("sep") "f\n```json\n{\"s\": \"```\"}\n```" END_ONE "\n" BEGIN_ONE
                              "function" DS("sep") "get_weather\n```json\n{}\n```" END_ONE END_ALL,
         "Yes.[0 f {\"s\": \"```\"}][1 get_weather {}]", SAME},
        {BEGIN_ONE "function" DS("sep") "f\n```json\n{}", "[0 f {}]", SAME},
        UNCHANGED(BEGIN_ALL "a"),
        UNCHANGED(BEGIN_ALL BEGIN_ONE "function" DS("sep") "a b\n```json\n{}"),
        UNCHANGED("```json\n{}\n```"),
    };
    static const struct example v31[] = {
        {BEGIN_ALL BEGIN_ONE "f" DS("sep") "{\"x\": 1}" END_ONE BEGIN_ONE "f" DS("sep") "{}" END_ONE END_ALL,
         "[0 f {\"x\": 1}][1 f {}]", SAME},
        UNCHANGED(BEGIN_ALL BEGIN_ONE DS("sep") "{}"),
    };
    (void)state;
    check_all(TOOL_FORMAT_DEEPSEEK_V3, v3, sizeof v3 / sizeof *v3);
    check_all(TOOL_FORMAT_DEEPSEEK_V31, v31, sizeof v31 / sizeof *v31);
}

static void granite_and_phi_calls(void **state)
{
    static const struct example granite[] = {
        {"<|tool_call|>[" L2 "]", W(0), SAME},
        {"<tool_call>[" L2 "]", W(0), SAME},
        {"[" L2 "," L2 "]", W(0) W(1), SAME},
        {"<|tool_call|>" L2, W(0), SAME},
        UNCHANGED("[{\"name\": \"other\", \"arguments\": {}}]"),
        UNCHANGED("[1]"),
    };
    static const struct example phi[] = {
        {"functools[" L2 "]", W(0), SAME},
        {"<|tool_call|>[" L2 ", " L2 "]<|/tool_call|>", W(0) W(1), SAME},
        UNCHANGED("functools are fun[1]"),
        UNCHANGED("functools[1]"),
    };
    (void)state;
    check_all(TOOL_FORMAT_GRANITE, granite, sizeof granite / sizeof *granite);
    check_all(TOOL_FORMAT_PHI4, phi, sizeof phi / sizeof *phi);
}

#define Q "<|\"|>"

static void gemma_calls(void **state)
{
    static const struct example gemma[] = {
        {"<|tool_call>call:f{s:" Q "a, {b}" Q ",x:1.5,on:true}<tool_call|>",
         "[0 f {\"s\": \"a, {b}\", \"x\": 1.5, \"on\": true}]", SAME},
        {"<|tool_call>call:f{}<tool_call|><|tool_call>call:g{l:[" Q "a" Q ",2],m:{" Q "k" Q ":{n:null}}}<tool_call|>",
         "[0 f {}][1 g {\"l\": [\"a\", 2], \"m\": {\"k\": {\"n\": null}}}]", SAME},
        {"<|tool_call>call:f{s:Paris}<tool_call|>", "[0 f {\"s\": \"Paris\"}]", SAME},
        {"<|tool_call>call:f{o:{\"k\": \"v\\\"}\", \"l\": [\"a\"]}}<tool_call|>",
         "[0 f {\"o\": {\"k\": \"v\\\"}\", \"l\": [\"a\"]}}]", SAME},
        UNCHANGED("<|tool_call>f{}<tool_call|>"),
        UNCHANGED("<|tool_call>call:f{s:" Q "a}<tool_call|>"),
        UNCHANGED("<|tool_call>call:f{s:1,s:2}<tool_call|>"),
        UNCHANGED("<|tool_call>call:f{s:1"),
    };
    static const struct example function[] = {
        {"<start_function_call>call:f{s:<escape>a<escape>,x:1}<end_function_call>", "[0 f {\"s\": \"a\", \"x\": 1}]",
         SAME},
    };
    (void)state;
    check_all(TOOL_FORMAT_GEMMA4, gemma, sizeof gemma / sizeof *gemma);
    check_all(TOOL_FORMAT_FUNCTION_GEMMA, function, sizeof function / sizeof *function);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(think_marks),           cmocka_unit_test(harmony),       cmocka_unit_test(coder_calls),
        cmocka_unit_test(python_calls),          cmocka_unit_test(mistral_calls), cmocka_unit_test(deepseek_calls),
        cmocka_unit_test(granite_and_phi_calls), cmocka_unit_test(gemma_calls),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_free();
    return failed;
}
