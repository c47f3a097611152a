#include "server/api/chat_format.h"

#include "engine/base/log.h"
#include "server/api/openai_params.h"
#include "server/config/settings.h"
#include "server/json/json.h"

#include <stdio.h>
#include <string.h>

enum {
    RENDER_LEAST = 16 << 20, /* bytes that rendering may use for any conversation */
    RENDER_PER_BYTE = 32,    /* and additionally for each byte of the body */
    CALLS_PER_BYTE = 48,     /* calls' arguments are JSON within strings: "0," is a node */
};

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
        c->template = chat_template_load_file(settings_model_dir(set), file, &own);
        if (!c->template) return err_set(e, own.code, "--chat-template %s: %s", file, own.msg);
    } else {
        c->template = chat_template_load(settings_model_dir(set), &own);
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

/* Appends a part's text to *out. */
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
    bool assistant = strcmp(string_of(m, "role"), "assistant") == 0;
    bool absent = !content || cJSON_IsNull(content);
    if (cJSON_IsString(content) || (absent && assistant)) return 0; /* the template handles null */
    if (!absent && !cJSON_IsArray(content))
        return err_set(e, ERR_INVALID, "messages[%d].content: expected a string or a list of parts", i);
    buf_str(&text, "");
    for (const cJSON *part = content ? content->child : NULL; part && !rc; part = part->next)
        rc = take_part(part, i, k++, &text, e);
    if (!rc) set_string(m, "content", text.data);
    buf_free(&text);
    return rc;
}

static int check_calls(cJSON *m, int i, struct err *e)
{
    cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls");
    if (!calls) return 0;
    if (cJSON_IsNull(calls) || (cJSON_IsArray(calls) && !calls->child)) {
        cJSON_DeleteItemFromObjectCaseSensitive(m, "tool_calls"); /* templates test whether the key exists */
        return 0;
    }
    if (!cJSON_IsArray(calls)) return err_set(e, ERR_INVALID, "messages[%d].tool_calls: expected a list", i);
    int k = 0;
    for (const cJSON *call = calls->child; call; call = call->next, k++) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(call, "function");
        if (!string_of(function, "name"))
            return err_set(e, ERR_INVALID, "messages[%d].tool_calls[%d].function.name: expected a string", i, k);
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

int chat_render_input(const struct chat_format *c, struct chat_input *in, size_t body_len, struct buf *out,
                      struct err *e)
{
    struct reservation held = {0};
    size_t limit = reservation_tree_limit();
    in->memory = RENDER_LEAST + RENDER_PER_BYTE * body_len;
    if (in->memory > limit) in->memory = limit;
    size_t bytes = in->memory + in->memory / 2 + CALLS_PER_BYTE * body_len; /* the rendered text is copied */
    if (!reserve(&held, bytes, "rendering the chat template", e)) return e->code;
    int rc = chat_template_render(c->template, in, out, NULL, e);
    reservation_free(&held);
    return rc;
}

static bool is_deferred(const cJSON *tool)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(tool, "defer_loading"));
}

/* The tools that the prompt shows: those of defer_loading are told of where a search found them (messages_params.c).
 * @return NULL: all; else a list that refers to them. */
static cJSON *shown_tools(const cJSON *tools)
{
    const cJSON *t = tools ? tools->child : NULL;
    while (t && !is_deferred(t)) t = t->next;
    if (!t) return NULL;
    cJSON *shown = cJSON_CreateArray();
    for (cJSON *i = tools->child; i; i = i->next)
        if (!is_deferred(i)) cJSON_AddItemReferenceToArray(shown, i);
    return shown;
}

int chat_render(const struct chat_format *c, const struct openai_params *p, size_t body_len, struct buf *out,
                struct err *e)
{
    cJSON *shown = shown_tools(p->tools);
    struct chat_input in = {
        .messages = p->messages,
        .tools = !shown         ? p->tools
                 : shown->child ? shown
                                : NULL,
        .extra = p->template_kwargs,
        .add_generation_prompt = p->add_generation_prompt,
        .continue_final_message = p->continue_final,
        .adapt = true,
    };
    int rc = chat_render_input(c, &in, body_len, out, e);
    cJSON_Delete(shown);
    return rc;
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

static bool is_one_of(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return true;
    return false;
}

/* Rewrites references within a tool's schema, which becomes a definition of a larger one: "#/x" -> "#/$defs/0/x".
 * named: a map of schemas, whose keys are names, not keywords. */
static void move_references(cJSON *schema, const char *to, bool named)
{
    static const char *const values[] = {"const", "default", "enum", "example", "examples", NULL};
    static const char *const maps[] = {"$defs",      "definitions",       "dependentSchemas",
                                       "properties", "patternProperties", NULL};
    bool keywords = cJSON_IsObject(schema) && !named;
    for (cJSON *i = schema->child; i; i = i->next) { /* depth is bounded by json_check */
        bool ref = keywords && strcmp(i->string, "$ref") == 0 && cJSON_IsString(i);
        if (ref && i->valuestring[0] == '#' && (!i->valuestring[1] || i->valuestring[1] == '/')) {
            struct buf moved = {0};
            buf_printf(&moved, "%s%s", to, i->valuestring + 1);
            cJSON_SetValuestring(i, moved.data);
            buf_free(&moved);
        } else if (!keywords || !is_one_of(i->string, values)) {
            move_references(i, to, keywords && cJSON_IsObject(i) && is_one_of(i->string, maps));
        }
    }
}

/* {"name": ..., "arguments": {...}} the schema of a call of one tool; adds the tool's parameters to definitions */
static cJSON *call_schema(const cJSON *function, const char *arguments, cJSON *definitions, int index)
{
    char key[16], place[32];
    snprintf(key, sizeof key, "%d", index);
    snprintf(place, sizeof place, "#/$defs/%s", key);
    const cJSON *given = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    cJSON *parameters = cJSON_IsObject(given) ? cJSON_Duplicate(given, true) : cJSON_CreateObject();
    cJSON *schema = cJSON_CreateObject(), *properties = cJSON_AddObjectToObject(schema, "properties");
    cJSON *name = cJSON_AddObjectToObject(properties, "name"), *required = cJSON_CreateArray();
    if (!cJSON_GetObjectItemCaseSensitive(parameters, "type")) cJSON_AddStringToObject(parameters, "type", "object");
    if (!cJSON_IsObject(given)) cJSON_AddFalseToObject(parameters, "additionalProperties"); /* no parameters */
    move_references(parameters, place, false);
    cJSON_AddItemToObject(definitions, key, parameters);
    cJSON_AddStringToObject(schema, "type", "object");
    cJSON_AddStringToObject(name, "const", string_of(function, "name"));
    cJSON_AddStringToObject(cJSON_AddObjectToObject(properties, arguments), "$ref", place);
    cJSON_AddItemToArray(required, cJSON_CreateString("name"));
    cJSON_AddItemToArray(required, cJSON_CreateString(arguments));
    cJSON_AddItemToObject(schema, "required", required);
    cJSON_AddFalseToObject(schema, "additionalProperties");
    return schema;
}

int chat_tool_constraint(const struct chat_format *c, const struct openai_params *p, struct constraint_request *request,
                         struct err *e)
{
    if (!demanded(p)) return 0;
    if (request->kind != CONSTRAINT_NONE)
        return err_set(e, ERR_INVALID, "tool_choice: a call is demanded, and %s asks for something else",
                       request->field);
    bool hermes = chat_tool_format(c, p) == TOOL_FORMAT_HERMES;
    cJSON *top = cJSON_CreateObject(), *any = cJSON_AddArrayToObject(top, "anyOf");
    cJSON *definitions = cJSON_AddObjectToObject(top, "$defs");
    int i = 0;
    e->code = 0;
    for (const cJSON *t = p->tools->child; t; t = t->next, i++) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(t, "function");
        if (p->tool_name ? strcmp(string_of(function, "name"), p->tool_name) != 0 : is_deferred(t)) continue;
        cJSON_AddItemToArray(any, call_schema(function, hermes ? "arguments" : "parameters", definitions, i));
    }
    constraint_set_schema(request, "tools", hermes ? "<tool_call>\n" : NULL, top, hermes ? "\n</tool_call>" : NULL, e);
    cJSON_Delete(top);
    return e->code;
}
