/* Messages of OpenAI's API for templates that were written for transformers.
 *
 * The API says that a message with tool calls has no content (null, or none at all) and that a call's arguments are a
 * text.  Templates differ: most print the arguments with tojson, so that they must be an object, others append them
 * as text; some print the calls only where the content is none, others fail on none, or print "None".  transformers
 * hands over what it is given, for its callers write for one template.  Here the template is asked: when it is loaded,
 * it renders one conversation in each form, and the first whose page shows the call is how messages are handed to it.
 */
#include "engine/base/json_literal.h"
#include "engine/template/chat_input.h"
#include "engine/template/jinja_builtins.h"

#include <string.h>

/* ---- messages to what the template takes ------------------------------------------------------------------------ */

/* A text that is an object's JSON as a value; J_MISSING: it is no such text. */
static struct jv parse_arguments(struct chat_view *v, struct jstr text, int origin)
{
    size_t n = 0;
    while (n < text.n && memchr(" \t\r\n", text.s[n], 4)) n++;
    if (n == text.n) return jv_dict(&v->j);
    struct chat_tree *tree = jinja_alloc(&v->j, sizeof *tree); /* before there is something to lose */
    const char *end = NULL;
    jinja_work(&v->j, text.n);
    tree->json = json_literal_parse(text.s, text.n, &end);
    tree->older = v->trees;
    v->trees = tree;
    while (end && end < text.s + text.n && memchr(" \t\r\n", *end, 4)) end++;
    if (!cJSON_IsObject(tree->json) || end != text.s + text.n) return (struct jv){.type = J_MISSING};
    return chat_json_value(&v->j, tree->json, origin);
}

static void adapt_arguments(struct chat_view *v, struct jdict *function, int origin)
{
    static const struct jjson how = {.item_separator = {.s = ", ", .n = 2}, .key_separator = {.s = ": ", .n = 2}};
    struct jinja *j = &v->j;
    struct jv *there = jdict_find_text(j, function, "arguments", 9), given = there ? *there : jv_none(), made = given;
    if (v->t->text_arguments && given.type == J_DICT) {
        struct jtext text = {0};
        jinja_json(j, &text, given, &how);
        made = jtext_value(j, &text);
    } else if (v->t->text_arguments && given.type == J_NONE) {
        made = jv_cstr(j, "{}");
    } else if (!v->t->text_arguments && given.type == J_STR) {
        made = parse_arguments(v, *given.str, origin); /* a model's bad JSON that comes back stays a text */
    } else if (!v->t->text_arguments && given.type == J_NONE) {
        made = jv_dict(j);
    }
    if (made.type != J_MISSING) jdict_set(j, function, jv_cstr(j, "arguments"), made);
}

void chat_adapt_message(struct chat_view *v, struct jdict *message, int origin)
{
    struct jinja *j = &v->j;
    struct jv *content = jdict_find_text(j, message, "content", 7),
              *calls = jdict_find_text(j, message, "tool_calls", 10);
    bool any = calls && calls->type == J_LIST && calls->list->n;
    bool absent = !content || content->type == J_NONE, empty = content && content->type == J_STR && !content->str->n;
    if (absent && !(any && v->t->null_content))
        jdict_set(j, message, jv_cstr(j, "content"), jv_cstr(j, ""));
    else if (absent || (any && empty && v->t->empty_is_null))
        jdict_set(j, message, jv_cstr(j, "content"), jv_none());
    for (size_t i = 0; any && i < calls->list->n; i++) {
        struct jv call = calls->list->v[i];
        struct jv *function = call.type == J_DICT ? jdict_find_text(j, call.dict, "function", 8) : NULL;
        if (function && function->type == J_DICT) adapt_arguments(v, function->dict, origin);
    }
}

/* ---- which form that is ----------------------------------------------------------------------------------------- */

#define CALL(arguments)                                                                                                \
    "\"tool_calls\":[{\"id\":\"probecall\",\"type\":\"function\",\"function\":{\"name\":\"probe_name\","               \
    "\"arguments\":" arguments "}}]"
#define OBJECT "{\"probe_key\":\"probe_value\"}"
#define TEXT "\"{\\\"probe_key\\\": \\\"probe_value\\\"}\""

struct form {
    const char *message;
    bool null_content, text_arguments;
};

/* In the order in which they are preferred: as transformers' documentation has it first. */
static const struct form forms[] = {
    {"\"content\":null," CALL(OBJECT), true, false},
    {"\"content\":\"\"," CALL(OBJECT), false, false},
    {"\"content\":null," CALL(TEXT), true, true},
    {"\"content\":\"\"," CALL(TEXT), false, true},
};

enum { N_FORMS = sizeof forms / sizeof *forms };

static size_t count(const struct buf *page, const char *what)
{
    size_t n = 0;
    for (const char *p = page->data; p && (p = strstr(p, what)); p++) n++;
    return n;
}

/* The page has the call, and its arguments as JSON or in a form of the template's own, not as Python's repr and not as
 * JSON within a string. */
static bool shows_call(const struct buf *page)
{
    return count(page, "probe_name") && count(page, "probe_key") && count(page, "probe_value") &&
           !count(page, "'probe_key'") && !count(page, "\\\"probe_key");
}

/* *nones: how often "None" stands on the page */
static bool try_form(const struct chat_template *t, const struct form *f, bool answered, size_t *nones)
{
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"tool\",\"description\":\"text\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    static const char answer[] =
        ",{\"role\":\"tool\",\"tool_call_id\":\"probecall\",\"name\":\"probe_name\",\"content\":\"x\"}";
    struct buf text = {0}, page = {0};
    struct err e = {0};
    buf_printf(&text, "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",%s}%s]", f->message,
               answered ? answer : "");
    struct chat_input in = {.messages = cJSON_Parse(text.data), .tools = cJSON_Parse(tools)};
    bool good = in.messages && in.tools && chat_template_render(t, &in, &page, NULL, &e) == ERR_OK && shows_call(&page);
    *nones = count(&page, "None");
    cJSON_Delete((cJSON *)(uintptr_t)in.messages);
    cJSON_Delete((cJSON *)(uintptr_t)in.tools);
    buf_free(&text);
    buf_free(&page);
    return good;
}

void chat_adapt_probe(struct chat_template *t)
{
    bool good[N_FORMS];
    size_t nones[N_FORMS];
    for (int answered = 1; answered >= 0; answered--) { /* some know no role "tool" */
        for (int i = 0; i < N_FORMS; i++) good[i] = try_form(t, &forms[i], answered, &nones[i]);
        for (int i = 0; i + 1 < N_FORMS; i += 2) good[i] = good[i] && !(good[i + 1] && nones[i] > nones[i + 1]);
        for (int i = 0; i < N_FORMS; i++) {
            if (!good[i]) continue;
            t->null_content = forms[i].null_content;
            t->text_arguments = forms[i].text_arguments;
            t->empty_is_null = t->null_content && !good[i + 1];
            return;
        }
    }
}
