/* Converts the JSON of a request or a row to the values that a template renders (chat_input.h), and prepares them as
 * transformers does: documents is defined and none, reasoning is present under all its names. */
#include "engine/template/chat_input.h"
#include "engine/template/jinja_int.h"

#include "engine/tokenizer/text.h"

#include <math.h>
#include <string.h>

bool chat_attempt(struct jinja *j, void (*fn)(void *arg), void *arg, struct err *e)
{
    j->e = e;
    j->depth = 0;
    j->column = 0;
    j->steps = JINJA_STEPS;
    if (setjmp(j->failed)) return false;
    fn(arg);
    return true;
}

/* --- JSON to values */

static struct jstr valid_text(struct jinja *j, const char *s)
{
    size_t n = strlen(s), i = 0;
    if (n > JINJA_TEXT_MAX) jinja_fail(j, "a text is longer than %d bytes", JINJA_TEXT_MAX);
    for (int len; i < n && (len = utf8_step(s + i, n - i)) > 0;) i += (size_t)len;
    if (i == n) return (struct jstr){.s = s, .n = n};
    struct jtext t = {0};
    for (i = 0; i < n;) {
        int len = utf8_step(s + i, n - i);
        if (len > 0) {
            jtext_bytes(j, &t, s + i, (size_t)len);
        } else {
            jtext_char(j, &t, 0xfffd);
        }
        i += len > 0 ? (size_t)len : len < 0 ? (size_t)-len : n - i;
    }
    return jtext_str(&t);
}

static struct jv text_value(struct jinja *j, const char *s, int origin)
{
    struct jstr str = valid_text(j, s);
    if (origin != JINJA_ORIGIN_NONE) {
        struct jrun *run = jinja_alloc(j, sizeof *run);
        *run = (struct jrun){0, str.n, origin};
        str.runs = run;
        str.n_runs = 1;
    }
    return jv_str(j, str);
}

/* As Python reads it: "3" is an int of any size, "3.0" a float (json_literal.h). */
static struct jv number_value(struct jinja *j, const cJSON *item)
{
    double d = item->valuedouble;
    const char *literal = item->valuestring;
    if (!literal) return d == floor(d) && fabs(d) < 0x1p53 ? jv_int((int64_t)d) : jv_float(d);
    if (strpbrk(literal, ".eE")) return jv_float(d);
    bool negative = *literal == '-';
    return jint_parse(j, literal + negative, strlen(literal + negative), 10, negative);
}

/* Names and ids of calls are repeated by other messages (the tool's answer), so they do not identify the message. */
static int origin_within(const cJSON *pair, bool calls, int origin)
{
    return calls && (strcmp(pair->string, "name") == 0 || strcmp(pair->string, "id") == 0) ? JINJA_ORIGIN_NONE : origin;
}

/* calls: item is, or is directly below, a message's tool_calls (but not a call's arguments). */
static struct jv json_value(struct jinja *j, const cJSON *item, int origin, bool calls)
{
    jinja_work(j, 1);
    switch (item->type & 0xff) {
    case cJSON_True: return jv_bool(true);
    case cJSON_False: return jv_bool(false);
    case cJSON_Number: return number_value(j, item);
    case cJSON_String: return text_value(j, item->valuestring, origin);
    case cJSON_Array:
    case cJSON_Object: break;
    default: return jv_none();
    }
    jinja_enter(j);
    struct jv v = cJSON_IsArray(item) ? jv_list(j, JL_LIST, 0) : jv_dict(j);
    for (const cJSON *c = item->child; c; c = c->next) {
        if (v.type == J_LIST) {
            jlist_add(j, v.list, json_value(j, c, origin, calls));
        } else {
            bool within = calls && strcmp(c->string, "arguments") != 0;
            jdict_set(j, v.dict, text_value(j, c->string, origin),
                      json_value(j, c, origin_within(c, calls, origin), within));
        }
    }
    jinja_leave(j);
    return v;
}

struct jv chat_json_value(struct jinja *j, const cJSON *item, int origin)
{
    return json_value(j, item, origin, false);
}

/* transformers gives a message's reasoning all its names: "thinking" in front if new, "reasoning_content" last. */
static const cJSON *reasoning_of(const cJSON *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *found = NULL; /* the last of several with the same name is used */
        for (const cJSON *c = message->child; c; c = c->next)
            if (strcmp(c->string, names[i]) == 0) found = c;
        if (found && !cJSON_IsNull(found)) return found;
    }
    return NULL;
}

/* The content of the message to be continued: its text, or its last part's, with a mark behind it. */
static struct jv marked_content(struct jinja *j, struct jv content)
{
    struct jtext t = {0};
    if (content.type == J_STR) {
        jtext_add(j, &t, *content.str);
        jtext_cstr(j, &t, CHAT_CONTINUE_MARK);
        return jtext_value(j, &t);
    }
    struct jv parts = jv_list(j, JL_LIST, 0);
    bool done = false;
    for (size_t i = content.type == J_LIST ? content.list->n : 0; i-- > 0;) {
        struct jv part = content.list->v[i], copy = jv_dict(j);
        struct jv *text = part.type == J_DICT && !done ? jdict_find_text(j, part.dict, "text", 4) : NULL;
        if (text && text->type == J_STR) {
            for (size_t k = 0; k < part.dict->n; k++)
                jdict_set(j, copy.dict, part.dict->v[k].key, part.dict->v[k].value);
            jdict_set(j, copy.dict, jv_cstr(j, "text"), marked_content(j, *text));
            part = copy;
            done = true;
        }
        jlist_add(j, parts.list, part);
    }
    if (!done) jinja_fail(j, "continue_final_message is set but the final message has no text to continue");
    struct jv content_again = jv_list(j, JL_LIST, parts.list->n);
    for (size_t i = parts.list->n; i-- > 0;) jlist_add(j, content_again.list, parts.list->v[i]);
    return content_again;
}

static void mark_last(struct jinja *j, struct jv messages)
{
    struct jv *last = messages.list->n ? &messages.list->v[messages.list->n - 1] : NULL;
    if (!last) jinja_fail(j, "continue_final_message is set but the conversation is empty");
    struct jv *content = jdict_find_text(j, last->dict, "content", 7);
    if (!content) jinja_fail(j, "continue_final_message is set but the final message has no content");
    *content = marked_content(j, *content);
}

static bool by_assistant(const cJSON *message)
{
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(message, "role");
    return cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0;
}

static struct jv message_value(struct chat_view *view, const cJSON *message, int index)
{
    struct jinja *j = &view->j;
    struct jv v = jv_dict(j);
    const cJSON *reasoning = reasoning_of(message);
    struct jv r = reasoning ? json_value(j, reasoning, index, false) : jv_none();
    if (reasoning) jdict_set(j, v.dict, jv_cstr(j, "thinking"), r);
    for (const cJSON *c = message->child; c; c = c->next) {
        bool role = strcmp(c->string, "role") == 0; /* the role is not part of the message's text */
        jdict_set(j, v.dict, text_value(j, c->string, JINJA_ORIGIN_NONE),
                  json_value(j, c, role ? JINJA_ORIGIN_NONE : index, strcmp(c->string, "tool_calls") == 0));
    }
    if (reasoning) jdict_set(j, v.dict, jv_cstr(j, "reasoning_content"), r);
    if (view->in->adapt && by_assistant(message)) chat_adapt_message(view, v.dict, index);
    return v;
}

/* --- the view */

static void set_json(struct jinja *j, struct jdict *d, const char *name, const cJSON *item)
{
    struct jv v = item ? json_value(j, item, JINJA_ORIGIN_NONE, false) : jv_none();
    jdict_set(j, d, text_value(j, name, JINJA_ORIGIN_NONE), v);
}

static void make_values(void *arg)
{
    struct chat_view *v = arg;
    struct jinja *j = &v->j;
    int index = 0;
    v->variables = jv_dict(j);
    v->messages = jv_list(j, JL_LIST, 0);
    struct jdict *d = v->variables.dict;
    for (int i = 0; i < v->t->n_tokens; i++)
        jdict_set(j, d, jv_cstr(j, v->t->tokens[i].name), text_value(j, v->t->tokens[i].text, JINJA_ORIGIN_NONE));
    set_json(j, d, "documents", NULL);
    for (const cJSON *c = v->in->extra ? v->in->extra->child : NULL; c; c = c->next) set_json(j, d, c->string, c);
    set_json(j, d, "tools", v->in->tools);
    v->assistant = jinja_array(j, (size_t)cJSON_GetArraySize(v->in->messages) + 1, sizeof *v->assistant);
    for (const cJSON *c = v->in->messages->child; c; c = c->next, index++) {
        v->assistant[index] = by_assistant(c);
        jlist_add(j, v->messages.list, message_value(v, c, index));
    }
    if (v->in->continue_final_message) mark_last(j, v->messages);
}

static int check(const struct chat_input *in, struct err *e)
{
    if (!cJSON_IsArray(in->messages)) return err_set(e, ERR_INVALID, "messages: expected an array");
    int i = 0;
    for (const cJSON *c = in->messages->child; c; c = c->next, i++)
        if (!cJSON_IsObject(c)) return err_set(e, ERR_INVALID, "messages[%d]: expected an object", i);
    if (in->tools && !cJSON_IsNull(in->tools) && !cJSON_IsArray(in->tools))
        return err_set(e, ERR_INVALID, "tools: expected an array");
    if (in->extra && !cJSON_IsObject(in->extra))
        return err_set(e, ERR_INVALID, "the template's variables: expected an object");
    return ERR_OK;
}

int chat_view_init(struct chat_view *v, const struct chat_template *t, const struct chat_input *in, struct err *e)
{
    struct err own = {0};
    v->t = t;
    v->in = in;
    v->trees = NULL;
    jinja_begin(&v->j, &own);
    if (in->memory && in->memory < v->j.memory_max) v->j.memory_max = in->memory;
    int r = check(in, e);
    if (r) return r;
    if (!chat_attempt(&v->j, make_values, v, &own)) return err_set(e, own.code, "%s", own.msg);
    return ERR_OK;
}

void chat_view_free(struct chat_view *v)
{
    for (struct chat_tree *t = v->trees; t; t = t->older) cJSON_Delete(t->json);
    v->trees = NULL;
    jinja_end(&v->j);
}

struct render_call {
    struct chat_view *v;
    size_t n;
    bool prompt;
    struct chat_page *page;
};

static void render(void *arg)
{
    struct render_call *c = arg;
    struct chat_view *v = c->v;
    struct jinja *j = &v->j;
    struct jinja_run run;
    struct jtext page;
    const struct jdict *d = v->variables.dict;
    bool tools = v->t->tools.names && cJSON_IsArray(v->in->tools); /* the same condition as in transformers */
    struct jv all = jv_dict(j), messages = jv_list(j, JL_LIST, 0);
    for (size_t i = 0; i < d->n; i++) jdict_set(j, all.dict, d->v[i].key, d->v[i].value);
    for (size_t i = 0; i < c->n; i++) jlist_add(j, messages.list, v->messages.list->v[i]);
    jdict_set(j, all.dict, jv_cstr(j, "messages"), messages);
    jdict_set(j, all.dict, jv_cstr(j, "add_generation_prompt"), jv_bool(c->prompt));
    jinja_render(j, tools ? &v->t->tools : &v->t->normal, all.dict, &run, &page);
    *c->page = (struct chat_page){jtext_str(&page), run.marks, run.n_marks};
}

int chat_view_render(struct chat_view *v, size_t n, bool prompt, struct chat_page *page, struct err *e)
{
    struct err own = {0};
    struct render_call call = {v, n, prompt, page};
    if (chat_attempt(&v->j, render, &call, &own)) return ERR_OK;
    return err_set(e, own.code, "%s", own.msg);
}
