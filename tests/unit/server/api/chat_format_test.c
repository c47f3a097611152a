/* server/api/chat_format.c: what of a conversation's JSON reaches the page, for templates that take calls in different
 * forms, and with numbers that doubles do not hold. */
#include "server/api/chat_format.h"
#include "server/api/openai_params.h"
#include "server/json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Prints what the conversation {"messages", "tools", "chat_template_kwargs"} becomes; a refusal with "!" before it. */
static char *page_of(struct chat_template *t, const char *body)
{
    struct chat_format format = {.template = t};
    struct err e = {0};
    struct buf out = {0};
    cJSON *tree = json_parse(body, strlen(body), &e);
    assert_non_null(tree);
    struct openai_params p = {.messages = cJSON_GetObjectItem(tree, "messages"),
                              .tools = cJSON_GetObjectItem(tree, "tools"),
                              .template_kwargs = cJSON_GetObjectItem(tree, "chat_template_kwargs")};
    buf_str(&out, "");
    if (chat_messages_check(p.messages, &e) || chat_render(&format, &p, strlen(body), &out, &e)) {
        buf_clear(&out);
        buf_printf(&out, "!%s", e.msg);
    }
    cJSON_Delete(tree);
    return out.data;
}

static void check(const char *source, const char *body, const char *expected)
{
    struct err e = {0};
    struct chat_template *t = chat_template_parse(source, strlen(source), &e);
    if (!t) fail_msg("%s: %s", source, e.msg);
    char *page = page_of(t, body);
    assert_string_equal(page, expected);
    free(page);
    chat_template_free(t);
}

#define EACH(print) "{% for m in messages %}{% if m.role == 'assistant' %}" print "{% endif %}{% endfor %}"

/* The templates' ways: calls where content is none, arguments appended (DeepSeek R1); content and arguments appended;
 * all of it guarded (Qwen); arguments member by member (Qwen3-Coder); an else between content and calls. */
#define NONE_TESTED                                                                                                    \
    EACH("{% if m['content'] is none %}{% for c in m['tool_calls'] %}{{ '<' + c['function']['name'] + ' ' +"           \
         " c['function']['arguments'] + '>' }}{% endfor %}{% else %}{{ '[' + m['content'] + ']' }}{% endif %}")
#define APPENDED                                                                                                       \
    EACH("{{ '[' + m.content + ']' }}{% for c in m.tool_calls or [] %}{{ '<' + c.function.name + ' ' +"                \
         " c.function.arguments + '>' }}{% endfor %}")
#define PRINTED                                                                                                        \
    EACH("[{{ m.content }}]{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson "  \
         "}}>"                                                                                                         \
         "{% endfor %}")
#define GUARDED                                                                                                        \
    EACH("{% if m.content %}[{{ m.content }}]{% endif %}{% for c in m.tool_calls or [] %}<{{ c.function.name }} "      \
         "{{ c.function.arguments | tojson }}>{% endfor %}")
#define MEMBERS                                                                                                        \
    EACH("[{{ m.content or '' }}]{% for c in m.tool_calls or [] %}<{{ c.function.name }}"                              \
         "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}>{% endfor %}")
#define EITHER                                                                                                         \
    EACH("{% if m.content is not none %}[{{ m.content }}]{% else %}{% for c in m.tool_calls %}<{{ c.function.name }} " \
         "{{ c.function.arguments | tojson }}>{% endfor %}{% endif %}")

#define ASSISTANT(members) "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\"" members "}]}"
#define CALLS(arguments)                                                                                               \
    ",\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\"" arguments "}}]"
#define GIVEN CALLS(",\"arguments\":\"{\\\"x\\\": 1}\"")

static void forms_of_calls(void **state)
{
    (void)state;
    static const char *const sources[] = {NONE_TESTED, APPENDED, PRINTED, GUARDED, MEMBERS, EITHER};
    static const char *const shown[] = {"<f {\"x\": 1}>", "[]<f {\"x\": 1}>", "[]<f {\"x\": 1}>",
                                        "<f {\"x\": 1}>", "[]<f x=1>",        "<f {\"x\": 1}>"};
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        check(sources[i], ASSISTANT(",\"content\":null" GIVEN), shown[i]);
        check(sources[i], ASSISTANT(GIVEN), shown[i]);
        check(sources[i], ASSISTANT(",\"content\":\"\"" GIVEN), shown[i]);
        check(sources[i], ASSISTANT(",\"content\":null" CALLS(",\"arguments\":{\"x\":1}")), shown[i]);
    }
    /* without calls null is nothing said; with a text the template has its way */
    check(NONE_TESTED, ASSISTANT(",\"content\":null"), "[]");
    check(EITHER, ASSISTANT(""), "[]");
    check(PRINTED, ASSISTANT(",\"content\":null"), "[]");
    check(PRINTED, ASSISTANT(",\"content\":\"t\"" GIVEN), "[t]<f {\"x\": 1}>");
}

static void arguments_as_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *given, *object, *text; /* how a template of each kind shows them */
    } cases[] = {
        {CALLS(""), "{}", "{}"},
        {CALLS(",\"arguments\":\"\""), "{}", ""},
        {CALLS(",\"arguments\":null"), "{}", "{}"},
        {CALLS(",\"arguments\":\" {\\\"b\\\":1.0,\\\"a\\\":\\\"\xc3\xa9\\\"} \""), "{\"b\": 1.0, \"a\": \"\xc3\xa9\"}",
         " {\"b\":1.0,\"a\":\"\xc3\xa9\"} "},
        {CALLS(",\"arguments\":\"{bad\""), "\"{bad\"", "{bad"},
        {CALLS(",\"arguments\":\"[1]\""), "\"[1]\"", "[1]"},
        {CALLS(",\"arguments\":\"{} {}\""), "\"{} {}\"", "{} {}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[400], expected[200];
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"assistant\"%s}]}", cases[i].given);
        snprintf(expected, sizeof expected, "<f %s>", cases[i].object);
        check(GUARDED, body, expected);
        snprintf(expected, sizeof expected, "<f %s>", cases[i].text);
        check(NONE_TESTED, body, expected);
    }
}

/* As Python reads and writes them. */
#define NUMBERS                                                                                                        \
    "[123456789012345678, 9007199254740993, -123456789012345678901234567890, 18446744073709551616, 1.0, -0.0, 0.5, "   \
    "1e+16, 1e-05, 100.0, 0]"
#define WRITTEN                                                                                                        \
    "[123456789012345678,9007199254740993,-123456789012345678901234567890,18446744073709551616,1.0,-0.0,5e-1,1E16,"    \
    "0.00001,100.00,-0]"

static void numbers(void **state)
{
    (void)state;
    static const char arguments[] =
        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":" WRITTEN "}\"}}]}]}";
    check(GUARDED, arguments, "<f {\"x\": " NUMBERS "}>");
    check("{{ tools[0].function.parameters.enum | tojson }}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
          "\"name\":\"f\",\"parameters\":{\"enum\":" WRITTEN "}}}]}",
          NUMBERS);
    check("{{ messages[0].extra }} {{ given }} {{ given[0] + 1 }}",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"u\",\"extra\":" WRITTEN
          "}],\"chat_template_kwargs\":{\"given\":" WRITTEN "}}",
          NUMBERS " " NUMBERS " 123456789012345679");
}

static void needs_tools(void **state)
{
    (void)state;
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}]}";
    check("{{ tools | length }}", body,
          "!the chat template needs tools, and there are none: chat template, line 1: object of type 'NoneType' has no "
          "len()");
    check("{{ raise_exception('never') }}", body, "!chat template: never");
}

static void put_file(const char *dir, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void check_directory(const char *dir, const char *without, const char *with)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}]}";
    static const char tools[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"u\"}],\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\"}}]}";
    struct err e = {0};
    struct chat_template *t = chat_template_load(dir, &e);
    assert_non_null(t);
    char *page = page_of(t, body);
    assert_string_equal(page, without);
    free(page);
    page = page_of(t, tools);
    assert_string_equal(page, with);
    free(page);
    chat_template_free(t);
}

/* transformers' layout of several templates. */
static void directories(void **state)
{
    (void)state;
    char dir[] = "/tmp/chat-test-XXXXXX", path[300];
    assert_non_null(mkdtemp(dir));
    put_file(dir, "tokenizer_config.json", "{\"chat_template\":\"config\"}");
    check_directory(dir, "config", "config");
    snprintf(path, sizeof path, "%s/additional_chat_templates", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file(path, "tool_use.jinja", "with {{ tools[0].function.name }}");
    put_file(path, "rag.jinja", "{% is no template");
    check_directory(dir, "!the model has a chat template for conversations with tools only, and there are no tools",
                    "with f");
    put_file(dir, "chat_template.jinja", "without");
    check_directory(dir, "without", "with f");
    static const char *const files[] = {"additional_chat_templates/tool_use.jinja",
                                        "additional_chat_templates/rag.jinja",
                                        "additional_chat_templates",
                                        "chat_template.jinja",
                                        "tokenizer_config.json",
                                        ""};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(remove(path), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_of_calls), cmocka_unit_test(arguments_as_they_are), cmocka_unit_test(numbers),
        cmocka_unit_test(needs_tools),    cmocka_unit_test(directories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
