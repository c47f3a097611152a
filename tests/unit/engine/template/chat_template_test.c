/* Chat templates: where they are found, what their errors say, and that nothing a template or a conversation does
 * takes unbounded time, memory or stack.  Equality with jinja2 is tests/template's business. */
#include "engine/template/chat_template.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define HELLO "[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define CHATML                                                                                                         \
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<end>{% endfor %}"                                          \
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"

static struct chat_template *parse(const char *source)
{
    struct err e = {0};
    struct chat_template *t = chat_template_parse(source, strlen(source), &e);
    if (!t) fail_msg("%.60s: %s", source, e.msg);
    return t;
}

static int render(const struct chat_template *t, const char *messages, const char *extra, struct buf *out,
                  struct err *e)
{
    struct chat_input in = {.messages = cJSON_Parse(messages), .extra = extra ? cJSON_Parse(extra) : NULL};
    buf_append(out, "", 0);
    int r = chat_template_render(t, &in, out, NULL, e);
    cJSON_Delete((cJSON *)in.messages);
    cJSON_Delete((cJSON *)in.extra);
    return r;
}

static void prints(const struct chat_template *t, const char *messages, const char *extra, const char *expected)
{
    struct err e = {0};
    struct buf out = {0};
    if (render(t, messages, extra, &out, &e)) fail_msg("%s", e.msg);
    assert_string_equal(out.data, expected);
    buf_free(&out);
}

/* The message when rendering fails; the output must be untouched. */
static void fails(const char *source, const char *messages, const char *says)
{
    struct chat_template *t = parse(source);
    struct err e = {0};
    struct buf out = {0};
    if (!render(t, messages, NULL, &out, &e) || !strstr(e.msg, says))
        fail_msg("%.80s: expected \"%s\", got \"%s\"", source, says, e.msg);
    assert_int_equal(out.len, 0);
    buf_free(&out);
    chat_template_free(t);
}

static void refused(const char *source, size_t n, const char *says)
{
    struct err e = {0};
    struct chat_template *t = chat_template_parse(source, n, &e);
    if (t || !strstr(e.msg, says)) fail_msg("%.80s: expected \"%s\", got \"%s\"", source, says, e.msg);
}

static void test_errors_name_the_place(void **state)
{
    const char *bad = "line one\n  {% if x %}\n {{ 1 + }}";
    refused(bad, strlen(bad), "line 3, column 9: unexpected 'end of print statement'");
    refused("{% if x %}", 10, "'elif' is missing");
    refused("{{ \xff }}", 7, "byte 3 is not UTF-8");
    refused("a\n{{ x | nothing }}", 19, "line 2, column 8: No filter named 'nothing'.");
    refused("{% for m in messages %}\n {{ m is nothing }}{% endfor %}", 55,
            "line 2, column 10: No test named 'nothing'.");
    fails("{% if messages %}\n{{ 1 | nothing }}{% endif %}", HELLO, "line 2: no filter named 'nothing'");
    fails("a\nb\n{{ x.y }}", "[]", "line 3: 'x' is undefined");
    fails("\n\n{% for m in messages %}\n{{ m.content + 1 }}\n{% endfor %}", HELLO, "line 4: can only concatenate str");
    fails("{{ messages[0].role.nothing.more }}", HELLO, "'str object' has no attribute 'nothing'");
    fails("{{ raise_exception('Only ' ~ 'one\n system') }}", HELLO, "chat template: Only one? system");
}

static void test_bad_conversations(void **state)
{
    struct chat_template *t = parse(CHATML);
    struct err e = {0};
    struct buf out = {0};
    assert_int_equal(render(t, "{}", NULL, &out, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "messages: expected an array"));
    assert_int_equal(render(t, "[{},3]", NULL, &out, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "messages[1]: expected an object"));
    assert_int_equal(render(t, "[]", "[1]", &out, &e), ERR_INVALID);
    buf_free(&out);
    chat_template_free(t);
}

/* Each stops with one of the bounds' errors. */
static void test_bombs(void **state)
{
    static const char *const bombs[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ 'x' * 100000000 }}",
        "{{ 'x' * 9223372036854775807 }}",
        "{{ ('x' * 8000000) * 8000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% for a in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set n = namespace(s='x') %}{% for a in range(100) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s=[1]) %}{% for a in range(100) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
        ("{% set n = namespace(s=[1], t=[1]) %}{% for a in range(99) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, "
         "n.t] %}{% endfor %}{{ n.s == n.t }}"),
        ("{% set n = namespace(s=[1]) %}{% for a in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson "
         "| "
         "length }}"),
        "{% set n = namespace(s=[1]) %}{% for a in range(90000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s=(1,)) %}{% for a in range(90000) %}{% set n.s = (n.s,) %}{% endfor %}{{ {n.s: 1} }}",
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
        "{{ 2 ** 100000 }}",
        "{{ 2 ** (10 ** 1000) }}",
        "{{ 10 ** 4300 }}",
        "{{ (2 ** 60000) * (2 ** 60000) }}",
        "{% set n = namespace(n=3) %}{% for i in range(100) %}{% set n.n = n.n * n.n %}{% endfor %}",
        "{% for i in range(100000) %}{% set n = (3 ** 40000) // (7 ** 10000) %}{% endfor %}",
        "{{ ('9' * 5000) | int }}",
        "{{ 'a' * 10 ** 30 }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ '%.99999999999f' % 1 }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'.zfill(1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ [[1]] | tojson(indent=1000000000) }}",
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
        "{{ ('a' * 1000000).replace('', 'b' * 1000) }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [1] | slice(1000000000, 0) | list }}",
        "{{ range(1000000) }}",
        "{{ range(-9223372036854775807, 9223372036854775807) }}",
        "{% for a in range(10000) %}{% for c in 'x' * 1000000 %}{% endfor %}{% endfor %}",
        "{% set l = range(100000) | list %}{% for a in range(100000) %}{% set l = l + l %}{{ -1 in l }}{% endfor %}",
        "{% for a in range(100000) %}{% set _ = (('a' * 4000000) ~ 'b').rfind('a' * 2000000 ~ 'c') %}{% endfor %}",
        "{% for a in range(100000) %}{% set _ = ('x' * 1000000).split('x') | sort %}{% endfor %}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        struct chat_template *t = parse(bombs[i]);
        struct err e = {0};
        struct buf out = {0};
        if (!render(t, HELLO, NULL, &out, &e)) fail_msg("%s: printed %zu bytes", bombs[i], out.len);
        static const char *const bounds[] = {"steps",     "nested",  "more than", "memory",
                                             "too large", "too big", "Range",     "index-sized"};
        bool known = false;
        for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++) known |= strstr(e.msg, bounds[k]) != NULL;
        if (!known) fail_msg("%s: \"%s\" is none of the bounds' errors", bombs[i], e.msg);
        buf_free(&out);
        chat_template_free(t);
    }
}

static char *repeated(const char *before, const char *what, size_t n, const char *after)
{
    struct buf b = {0};
    buf_str(&b, before);
    for (size_t i = 0; i < n; i++) buf_str(&b, what);
    buf_str(&b, after);
    return b.data;
}

static void test_deep_sources(void **state)
{
    static const struct {
        const char *before, *what, *after;
        bool parses;
    } deep[] = {{"{{ ", "(", "", false},
                {"{{ ", "[", "", false},
                {"{{ ", "-", "1 }}", false},
                {"{{ ", "not ", "x }}", false},
                {"", "{% if x %}", "", false},
                {"{{ 1", " + 1", " }}", true},
                {"{{ x", ".a", " }}", true},
                {"{{ x", "|trim", " }}", true},
                {"{{ x", "[0]", " }}", true},
                {"{{ 1", " if 1 else 1", " }}", false},
                {"", "{% for a in b %}", "", false}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        char *source = repeated(deep[i].before, deep[i].what, 20000, deep[i].after);
        struct err e = {0};
        struct buf out = {0};
        struct chat_template *t = chat_template_parse(source, strlen(source), &e);
        if (!t != !deep[i].parses) fail_msg("%s: %s", deep[i].what, e.msg);
        if (t) assert_int_not_equal(render(t, HELLO, NULL, &out, &e), 0);
        if (!strstr(e.msg, "nested too deeply")) fail_msg("%s: %s", deep[i].what, e.msg);
        chat_template_free(t);
        buf_free(&out);
        free(source);
    }
    char *long_source = repeated("", "x", (1 << 20) + 1, "");
    refused(long_source, strlen(long_source), "longer than");
    free(long_source);
    char *chain = repeated("{% if no %}a", "{% elif no %}b", 5000, "{% else %}c{% endif %}");
    struct chat_template *t = parse(chain);
    prints(t, HELLO, NULL, "c");
    chat_template_free(t);
    free(chain);
}

static void test_deep_data(void **state)
{
    char *open = repeated("[{\"role\":\"user\",\"content\":", "[", 900, "");
    char *json = repeated(open, "]", 900, "}]");
    struct chat_template *t = parse("{{ messages[0].content }}");
    struct err e = {0};
    struct buf out = {0};
    assert_int_not_equal(render(t, json, NULL, &out, &e), 0);
    assert_non_null(strstr(e.msg, "nested too deeply"));
    buf_free(&out);
    free(open);
    free(json);
    chat_template_free(t);
}

/* A large object is found in by name, and does not take quadratic time. */
static void test_large_dict(void **state)
{
    struct buf json = {0};
    buf_str(&json, "{\"big\":{");
    for (int i = 0; i < 20000; i++) buf_printf(&json, "%s\"key%d\":%d", i ? "," : "", i % 19999, i);
    buf_str(&json, "}}");
    struct chat_template *t = parse("{{ big | length }} {{ big.key7 }} {{ big.key0 }} {{ big['key19998'] }}");
    prints(t, "[]", json.data, "19999 7 19999 19998");
    chat_template_free(t);
    buf_free(&json);
}

static void test_numbers(void **state)
{
    struct chat_template *t = parse("{{ a }} {{ b }} {{ c }} {{ d }} {{ e }}");
    prints(t, "[]", "{\"a\":3,\"b\":3.5,\"c\":-0.25,\"d\":9007199254740993,\"e\":1e300}",
           "3 3.5 -0.25 9007199254740992.0 1e+300");
    /* where the reader keeps the literal, "3.0" is a float */
    cJSON *extra = cJSON_CreateObject(), *number = cJSON_AddNumberToObject(extra, "a", 3);
    for (const char *name = "bcde"; *name; name++) cJSON_AddNullToObject(extra, (char[]){*name, 0});
    number->valuestring = strdup("3.0");
    struct chat_input in = {.messages = cJSON_CreateArray(), .extra = extra};
    struct buf out = {0};
    assert_int_equal(chat_template_render(t, &in, &out, NULL, NULL), 0);
    assert_string_equal(out.data, "3.0 None None None None");
    buf_free(&out);
    cJSON_Delete((cJSON *)in.messages);
    cJSON_Delete(extra);
    chat_template_free(t);
}

static void test_bad_utf8(void **state)
{
    struct chat_template *t = parse("{{ messages[0].content }}|{{ messages[0].content | length }}");
    prints(t,
           "[{\"role\":\"user\",\"content\":\"a\xff\xc3"
           "b\xe2\x82\"}]",
           NULL,
           "a\xef\xbf\xbd\xef\xbf\xbd"
           "b\xef\xbf\xbd|5");
    chat_template_free(t);
}

/* --- a model's directory */

static void write_file(const char *dir, const char *name, const char *text)
{
    char *path = file_join(dir, name);
    if (text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    } else {
        unlink(path);
    }
    free(path);
}

static struct chat_template *load(const char *dir, const char *config, const char *jinja, struct err *e)
{
    write_file(dir, "tokenizer_config.json", config);
    write_file(dir, "chat_template.jinja", jinja);
    *e = (struct err){0};
    return chat_template_load(dir, e);
}

static void test_load(void **state)
{
    char dir[] = "/tmp/chat_template_XXXXXX";
    struct err e;
    assert_non_null(mkdtemp(dir));
    assert_null(load(dir, NULL, NULL, &e));
    assert_int_equal(e.code, 0);
    assert_null(load(dir, "{\"bos_token\":\"<s>\"}", NULL, &e));
    assert_int_equal(e.code, 0);

    struct chat_template *t =
        load(dir,
             "{\"chat_template\":\"{{ bos_token }}{{ eos_token }}{{ pad_token }}\",\"bos_token\":\"<s>\","
             "\"eos_token\":{\"content\":\"</s>\"},\"pad_token\":null,\"add_bos_token\":true}",
             NULL, &e);
    assert_non_null(t);
    prints(t, "[]", NULL, "<s></s>");
    prints(t, "[]", "{\"bos_token\":\"<other>\"}", "<other></s>");
    chat_template_free(t);

    t = load(dir, "{\"chat_template\":\"no\"}", "{{ 'file' }}\n", &e);
    prints(t, "[]", NULL, "file");
    chat_template_free(t);

    write_file(dir, "special_tokens_map.json", "{\"bos_token\":\"<map>\",\"eos_token\":\"<map>\"}");
    t = load(dir, "{\"eos_token\":\"<config>\"}", "{{ bos_token }}{{ eos_token }}", &e);
    prints(t, "[]", NULL, "<map><config>");
    chat_template_free(t);

    t = load(dir,
             "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"tools: {{ tools | length }}\"},"
             "{\"name\":\"default\",\"template\":\"default\"},{\"name\":\"rag\",\"template\":\"{{ broken\"}]}",
             NULL, &e);
    assert_non_null(t);
    prints(t, "[]", NULL, "default");
    struct chat_input in = {.messages = cJSON_Parse("[]"), .tools = cJSON_Parse("[{}]")};
    struct buf out = {0};
    assert_int_equal(chat_template_render(t, &in, &out, NULL, &e), 0);
    assert_string_equal(out.data, "tools: 1");
    buf_free(&out);
    cJSON_Delete((cJSON *)in.messages);
    cJSON_Delete((cJSON *)in.tools);
    chat_template_free(t);

    assert_null(load(dir, "{\"chat_template\":3}", NULL, &e));
    assert_non_null(strstr(e.msg, "expected a string or a list"));
    assert_null(load(dir, "{\"chat_template\":\"a\\n{{ 1 1 }}\"}", NULL, &e));
    assert_non_null(strstr(e.msg, "line 2, column 6"));
    assert_null(load(dir, "[", NULL, &e));
    assert_non_null(strstr(e.msg, "not a JSON object"));
    static const char *const names[] = {"tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"};
    for (size_t i = 0; i < 3; i++) write_file(dir, names[i], NULL);
    rmdir(dir);
}

/* --- threads */

static void *render_often(void *arg)
{
    const struct chat_template *t = arg;
    for (int i = 0; i < 200; i++) {
        struct chat_input in = {.messages =
                                    cJSON_Parse("[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\","
                                                "\"content\":\"Ho\"},{\"role\":\"user\",\"content\":\"?\"}]")};
        struct buf out = {0};
        struct chat_spans spans;
        if (chat_template_render(t, &in, &out, &spans, NULL)) return "failed";
        bool good = spans.n == 1 && spans.v[0].message == 1 && spans.v[0].end - spans.v[0].start == 7 &&
                    strncmp(out.data + spans.v[0].start, "Ho<end>", 7) == 0;
        free(spans.v);
        buf_free(&out);
        cJSON_Delete((cJSON *)in.messages);
        if (!good) return "wrong";
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct chat_template *t = parse(CHATML);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, render_often, t), 0);
    for (int i = 0; i < 4; i++) {
        void *r;
        pthread_join(threads[i], &r);
        if (r) fail_msg("%s", (char *)r);
    }
    chat_template_free(t);
}

/* More turns than anyone has: the spans take two more renders, not two more a turn. */
static void test_long_conversation(void **state)
{
    struct buf json = {0};
    enum { TURNS = 2000 };
    for (int i = 0; i < TURNS; i++)
        buf_printf(&json, "%c{\"role\":\"user\",\"content\":\"q%d\"},{\"role\":\"assistant\",\"content\":\"a%d\"}",
                   i ? ',' : '[', i, i);
    buf_char(&json, ']');
    struct chat_template *t = parse(CHATML);
    struct chat_input in = {.messages = cJSON_Parse(json.data)};
    struct buf out = {0};
    struct chat_spans spans;
    assert_int_equal(chat_template_render(t, &in, &out, &spans, NULL), 0);
    assert_int_equal(spans.n, TURNS);
    for (int i = 0; i < TURNS; i++) {
        char expected[20];
        int n = snprintf(expected, sizeof expected, "a%d<end>", i);
        assert_int_equal(spans.v[i].message, 2 * i + 1);
        assert_int_equal(spans.v[i].end - spans.v[i].start, n);
        assert_memory_equal(out.data + spans.v[i].start, expected, (size_t)n);
    }
    free(spans.v);
    buf_free(&out);
    buf_free(&json);
    cJSON_Delete((cJSON *)in.messages);
    chat_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_name_the_place),
        cmocka_unit_test(test_bad_conversations),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_deep_sources),
        cmocka_unit_test(test_deep_data),
        cmocka_unit_test(test_large_dict),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_bad_utf8),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_long_conversation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
