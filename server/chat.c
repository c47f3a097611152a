#include "server/chat.h"

#include "engine/base/log.h"
#include "server/conf.h"
#include "server/json.h"
#include "server/openai_params.h"

#include <stdio.h>
#include <string.h>

/* ---- opening --------------------------------------------------------------------------------------------------- */

#define WHAT_TO_DO                                                                                                     \
    "start the server with --chat-template FILE (a Jinja file), or --chat-template plain, the lines of \"role: "       \
    "content\" that such models are fine-tuned with; /v1/completions needs no template"

static void find_tools(struct chat_format *c, const struct settings *set)
{
    size_t n;
    const char *source = chat_template_source(c->template, &n);
    c->tools = tool_format_choose(set->tool_call_parser, tool_format_detect(source, n));
}

int chat_open(struct chat_format *c, const struct settings *set, struct err *e)
{
    struct err own = {0};
    const char *file = set->chat_template;
    if (strcmp(file, "plain") == 0) {
        c->plain = true;
    } else if (*file) {
        c->template = chat_template_load_file(set->model, file, &own);
        if (!c->template) return err_set(e, own.code, "--chat-template %s: %s", file, own.msg);
    } else {
        c->template = chat_template_load(set->model, &own);
        c->broken = !c->template && own.code;
        if (c->broken)
            snprintf(c->reason, sizeof c->reason, "the model's chat template cannot be used: %.250s", own.msg);
        else if (!c->template)
            snprintf(c->reason, sizeof c->reason, "the model has no chat template: " WHAT_TO_DO);
        if (c->broken) log_warn("%s", c->reason);
    }
    find_tools(c, set);
    return 0;
}

void chat_close(struct chat_format *c)
{
    chat_template_free(c->template);
    *c = (struct chat_format){0};
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

static void set_string(cJSON *object, const char *name, const char *value)
{
    cJSON *item = cJSON_CreateString(value);
    if (cJSON_GetObjectItemCaseSensitive(object, name))
        cJSON_ReplaceItemInObjectCaseSensitive(object, name, item);
    else
        cJSON_AddItemToObject(object, name, item);
}

static const char *string_of(const cJSON *object, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
}

/* A part's text goes to *out. */
static int take_part(const cJSON *part, int i, int k, struct buf *out, struct err *e)
{
    const char *type = string_of(part, "type");
    const char *name = type && strcmp(type, "refusal") == 0 ? type : "text";
    const char *text = cJSON_IsString(part) ? part->valuestring : string_of(part, name);
    bool texts = !type || !strcmp(type, "text") || !strcmp(type, "input_text") || !strcmp(type, "output_text") ||
                 !strcmp(type, "refusal");
    if (!texts)
        return err_set(e, ERR_UNSUPPORTED, "messages[%d].content[%d]: \"%.40s\" is not supported, only text is", i, k,
                       type);
    if (!text) return err_set(e, ERR_INVALID, "messages[%d].content[%d].%s: expected a string", i, k, name);
    if (k) buf_char(out, '\n');
    buf_str(out, text);
    return 0;
}

static int check_content(cJSON *m, int i, struct err *e)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(m, "content");
    struct buf text = {0};
    int k = 0, rc = 0;
    if (cJSON_IsString(content)) return 0;
    if (content && !cJSON_IsNull(content) && !cJSON_IsArray(content))
        return err_set(e, ERR_INVALID, "messages[%d].content: expected a string or a list of parts", i);
    buf_str(&text, "");
    for (const cJSON *part = content ? content->child : NULL; part && !rc; part = part->next)
        rc = take_part(part, i, k++, &text, e);
    if (!rc) set_string(m, "content", text.data);
    buf_free(&text);
    return rc;
}

/* Clients send the arguments as the text they were given.  What is no object (a model's bad JSON that comes back in the
 * history) stays a text. */
static int check_calls(cJSON *m, int i, struct err *e)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls");
    if (!calls) return 0;
    if (cJSON_IsNull(calls) || (cJSON_IsArray(calls) && !calls->child)) {
        cJSON_DeleteItemFromObjectCaseSensitive(m, "tool_calls"); /* templates ask whether the key is there */
        return 0;
    }
    if (!cJSON_IsArray(calls)) return err_set(e, ERR_INVALID, "messages[%d].tool_calls: expected a list", i);
    int k = 0;
    for (const cJSON *call = calls->child; call; call = call->next, k++) {
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        if (!string_of(function, "name"))
            return err_set(e, ERR_INVALID, "messages[%d].tool_calls[%d].function.name: expected a string", i, k);
        const char *text = string_of(function, "arguments");
        struct err bad = {0};
        cJSON *parsed = !text ? NULL : *text ? json_parse(text, strlen(text), &bad) : cJSON_CreateObject();
        if (cJSON_IsObject(parsed))
            cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", parsed);
        else
            cJSON_Delete(parsed);
    }
    return 0;
}

int chat_messages_check(cJSON *messages, struct err *e)
{
    int i = 0, rc = 0;
    for (cJSON *m = messages->child; m && !rc; m = m->next, i++) {
        if (!cJSON_IsObject(m)) return err_set(e, ERR_INVALID, "messages[%d]: expected an object", i);
        const char *role = string_of(m, "role");
        if (!role || !*role) return err_set(e, ERR_INVALID, "messages[%d].role: expected a string", i);
        if (strcmp(role, "developer") == 0) set_string(m, "role", "system");
        rc = check_content(m, i, e);
        if (!rc) rc = check_calls(m, i, e);
    }
    return rc;
}

int chat_render(const struct chat_format *c, const struct openai_params *p, struct buf *out, struct err *e)
{
    struct chat_input in = {
        .messages = p->messages,
        .tools = p->tools,
        .extra = p->template_kwargs,
        .add_generation_prompt = p->add_generation_prompt,
        .continue_final_message = p->continue_final,
    };
    return chat_template_render(c->template, &in, out, NULL, e);
}

/* ---- tools ----------------------------------------------------------------------------------------------------- */

static bool demanded(const struct openai_params *p)
{
    return p->tool_choice == TOOL_CHOICE_REQUIRED || p->tool_choice == TOOL_CHOICE_NAMED;
}

enum tool_format chat_tool_format(const struct chat_format *c, const struct openai_params *p)
{
    if (p->tool_choice == TOOL_CHOICE_NONE) return TOOL_FORMAT_NONE;
    return c->tools == TOOL_FORMAT_NONE && demanded(p) ? TOOL_FORMAT_HERMES : c->tools;
}

/* A tool's definitions move to the top of the schema that its own becomes a part of: references begin there. */
static int hoist(cJSON *schema, cJSON *parameters, const char *name, struct err *e)
{
    cJSON *from = cJSON_DetachItemFromObjectCaseSensitive(parameters, name);
    cJSON *to = cJSON_GetObjectItemCaseSensitive(schema, name);
    if (from && !to) {
        cJSON_AddItemToObject(schema, name, from);
        return 0;
    }
    int rc = 0;
    for (cJSON *d = from ? from->child : NULL; d && !rc; d = from->child) {
        const cJSON *known = cJSON_GetObjectItemCaseSensitive(to, d->string);
        if (known && !cJSON_Compare(known, d, true))
            rc = err_set(e, ERR_UNSUPPORTED, "tools: two tools define %s/%.60s differently", name, d->string);
        cJSON_DetachItemViaPointer(from, d);
        if (rc || known)
            cJSON_Delete(d);
        else
            cJSON_AddItemToObject(to, d->string, d);
    }
    cJSON_Delete(from);
    return rc;
}

/* {"name": ..., "arguments": {...}} of one tool, which a call of it must be */
static cJSON *call_schema(const cJSON *function, const char *arguments, cJSON *top, struct err *e)
{
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    cJSON *parameters = cJSON_IsObject(given) ? cJSON_Duplicate(given, true) : cJSON_CreateObject();
    cJSON *schema = cJSON_CreateObject(), *properties = cJSON_AddObjectToObject(schema, "properties");
    cJSON *name = cJSON_AddObjectToObject(properties, "name"), *required = cJSON_CreateArray();
    if (!cJSON_GetObjectItemCaseSensitive(parameters, "type")) cJSON_AddStringToObject(parameters, "type", "object");
    if (!cJSON_IsObject(given)) cJSON_AddFalseToObject(parameters, "additionalProperties"); /* it takes none */
    hoist(top, parameters, "$defs", e);
    if (!e->code) hoist(top, parameters, "definitions", e);
    cJSON_AddStringToObject(schema, "type", "object");
    cJSON_AddStringToObject(name, "const", string_of(function, "name"));
    cJSON_AddItemToObject(properties, arguments, parameters);
    cJSON_AddItemToArray(required, cJSON_CreateString("name"));
    cJSON_AddItemToArray(required, cJSON_CreateString(arguments));
    cJSON_AddItemToObject(schema, "required", required);
    cJSON_AddFalseToObject(schema, "additionalProperties");
    return schema;
}

int chat_tool_ask(const struct chat_format *c, const struct openai_params *p, struct constraint_ask *ask, struct err *e)
{
    if (!demanded(p)) return 0;
    if (ask->kind != CONSTRAINT_NONE)
        return err_set(e, ERR_INVALID, "tool_choice: a call is demanded, and %s asks for something else", ask->field);
    bool hermes = chat_tool_format(c, p) == TOOL_FORMAT_HERMES;
    cJSON *top = cJSON_CreateObject(), *any = cJSON_AddArrayToObject(top, "anyOf");
    e->code = 0;
    for (const cJSON *t = p->tools->child; t && !e->code; t = t->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(t, "function");
        if (p->tool_name && strcmp(string_of(function, "name"), p->tool_name) != 0) continue;
        cJSON_AddItemToArray(any, call_schema(function, hermes ? "arguments" : "parameters", top, e));
    }
    if (!e->code)
        constraint_set_schema(ask, "tools", hermes ? "<tool_call>\n" : NULL, top, hermes ? "\n</tool_call>" : NULL, e);
    cJSON_Delete(top);
    return e->code;
}
