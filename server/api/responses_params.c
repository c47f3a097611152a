#include "server/api/responses_params.h"

#include "engine/base/mem.h"
#include "server/api/chat_body.h"
#include "server/api/request_fields.h"
#include "server/json/json.h"
#include "server/schema/lark.h"
#include "server/schema/regex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOOLS_MAX = 512, FORMATS_MAX = 16 /* of custom tools, that are kept to; of others, the description tells */ };

/* The chat is at most about 2.5 times the body, besides what each tool adds; what is gathered exists twice, and a
 * buffer that grows, too. */
enum { MEMORY_PER_BYTE = 8, MEMORY_LEAST = 4096, MEMORY_PER_TOOL = 4 * 512, FLAT_MAX = 128 };
/* of what is kept for the answer */
enum { KEPT_PER_BYTE = 3, KEPT_LEAST = 4096, KEPT_PER_TOOL = 256 };

struct conversion {
    struct request_fields f;
    struct buf *out;
    struct chat_body chat;
    struct responses_request *r;
    const cJSON *allowed; /* tool_choice allowed_tools; NULL: all */
    int n_formats;
};

static const char *text_of(const cJSON *object, const char *name)
{
    return chat_body_text_of(object, name);
}

static void put_text(struct buf *out, const char *s)
{
    json_put_string(out, s, strlen(s));
}

static void put_value(struct buf *out, const cJSON *v)
{
    json_put_value(out, v, ",", ":");
}

static bool is(const char *type, const char *name)
{
    return type && strcmp(type, name) == 0;
}

static bool has_word(const char *list, const char *word, size_t n)
{
    while (list) {
        if (strcspn(list, ",") == n && strncmp(list, word, n) == 0) return true;
        const char *comma = strchr(list, ',');
        list = comma ? comma + 1 : NULL;
    }
    return false;
}

/* Notes a type that is left out, once. */
static void skip(struct conversion *c, const char *type)
{
    struct buf *list = &c->r->skipped;
    size_t n = strspn(type, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");
    if (n > 40) n = 40;
    if (list->len > 400 || has_word(list->data, type, n)) return;
    buf_printf(list, "%s%.*s", list->len ? "," : "", (int)n, type);
}

/* ---- items of the input ---------------------------------------------------------------------------------------- */

static bool refuse_item(struct conversion *c, int i, const char *field, const char *what)
{
    return fields_refuse(&c->f, "input", "input[%d]%s%s: expected %s", i, *field ? "." : "", field, what);
}

/* The text of a part of a content; NULL and an error: it has none. */
static const char *part_text(struct conversion *c, const cJSON *part, int i, const char *field)
{
    const char *type = text_of(part, "type"), *text = text_of(part, "text");
    if (is(type, "refusal")) text = text_of(part, "refusal");
    bool known = is(type, "input_text") || is(type, "output_text") || is(type, "text") || is(type, "refusal") ||
                 is(type, "summary_text") || is(type, "reasoning_text");
    if (type && !known)
        fields_refuse(&c->f, "input", "input[%d].%s: \"%.40s\" is not supported, only text is", i, field, type);
    else if (!type || !text)
        fields_refuse(&c->f, "input", "input[%d].%s: expected parts with a type and a text", i, field);
    return known ? text : NULL;
}

/* What a part of a tool's output is that has no text.  Were it refused, so would be every later request of the
 * conversation, and the user has not chosen what a tool gives. */
static void add_note(struct conversion *c, const char *type)
{
    char note[96];
    size_t n = strspn(type, "abcdefghijklmnopqrstuvwxyz_");
    snprintf(note, sizeof note, "[%.*s: not shown, since this model reads only text]", (int)(n < 40 ? n : 40), type);
    chat_body_text(&c->chat, note);
}

/* A text, or a list of parts that are texts, those of a tool's output also of other types. */
static bool add_content(struct conversion *c, const cJSON *content, int i, const char *field)
{
    bool output = strcmp(field, "output") == 0;
    if (cJSON_IsString(content)) {
        chat_body_text(&c->chat, content->valuestring);
        return true;
    }
    if (!cJSON_IsArray(content)) return refuse_item(c, i, field, "a string or a list of parts");
    for (const cJSON *part = content->child; part; part = part->next) {
        const char *type = text_of(part, "type");
        if (output && (is(type, "input_image") || is(type, "input_file") || is(type, "input_audio"))) {
            add_note(c, type);
            continue;
        }
        const char *text = part_text(c, part, i, field);
        if (!text) return false;
        chat_body_text(&c->chat, text);
    }
    return true;
}

/* @return the role that the template gets; NULL: unknown. */
static const char *role_of(const char *given, bool begun)
{
    if (is(given, "assistant")) return "assistant";
    if (is(given, "system") || is(given, "developer")) return begun ? "user" : "system";
    return is(given, "user") ? "user" : NULL;
}

static bool add_message(struct conversion *c, const cJSON *item, int i)
{
    bool begun = c->chat.n_messages || (c->chat.role && strcmp(c->chat.role, "system") != 0);
    const char *role = role_of(text_of(item, "role"), begun);
    if (!role) return refuse_item(c, i, "role", "\"user\", \"assistant\", \"system\" or \"developer\"");
    chat_body_begin(&c->chat, role);
    return add_content(c, cJSON_GetObjectItemCaseSensitive(item, "content"), i, "content");
}

/* Its text is in `content`, or, where the client dropped that, in our encrypted_content; else what the summary says. */
static bool add_reasoning(struct conversion *c, const cJSON *item, int i)
{
    static const char *const lists[] = {"content", "summary"};
    const char *kept = text_of(item, "encrypted_content");
    size_t lead = strlen(RESPONSES_THOUGHTS), before = c->chat.thoughts.len;
    chat_body_begin(&c->chat, "assistant");
    if (kept && strncmp(kept, RESPONSES_THOUGHTS, lead) == 0) {
        chat_body_thought(&c->chat, kept + lead);
        return true;
    }
    for (int k = 0; k < 2 && c->chat.thoughts.len == before; k++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(item, lists[k]);
        for (const cJSON *part = cJSON_IsArray(list) ? list->child : NULL; part; part = part->next) {
            const char *text = part_text(c, part, i, lists[k]);
            if (!text) return false;
            chat_body_thought(&c->chat, text);
        }
    }
    return true;
}

/* The function's name in the chat, of at most FLAT_MAX bytes, in flat (FLAT_MAX + 1).  @return false: too long. */
static bool flatten(const char *space, const char *name, char *flat)
{
    size_t n = space ? strlen(space) : 0, m = strlen(name);
    if (!m || n + m + 2 > FLAT_MAX) return false;
    if (space) memcpy(flat, space, n), memcpy(flat + n, "__", 2), n += 2;
    memcpy(flat + n, name, m + 1);
    return true;
}

static bool add_call(struct conversion *c, const cJSON *item, bool custom, int i)
{
    const char *id = text_of(item, "call_id"), *name = text_of(item, "name"), *space = text_of(item, "namespace");
    const char *input = text_of(item, custom ? "input" : "arguments");
    char flat[FLAT_MAX + 1];
    if (!id) return refuse_item(c, i, "call_id", "a string");
    if (!name || !flatten(space && *space ? space : NULL, name, flat))
        return refuse_item(c, i, "name", "a name, with its namespace of at most 126 bytes");
    if (!input) return refuse_item(c, i, custom ? "input" : "arguments", "a string");
    chat_body_begin(&c->chat, "assistant");
    struct buf *arguments = chat_body_call(&c->chat, id, flat);
    if (custom) buf_str(arguments, "{\"input\":");
    put_text(arguments, input);
    if (custom) buf_char(arguments, '}');
    chat_body_call_end(&c->chat);
    return true;
}

static bool add_output(struct conversion *c, const cJSON *item, int i)
{
    const char *id = text_of(item, "call_id");
    if (!id) return refuse_item(c, i, "call_id", "a string");
    chat_body_end(&c->chat);
    if (!add_content(c, cJSON_GetObjectItemCaseSensitive(item, "output"), i, "output")) return false;
    chat_body_result(&c->chat, id, false);
    return true;
}

static bool add_item(struct conversion *c, const cJSON *item, int i)
{
    const char *type = text_of(item, "type");
    if (!cJSON_IsObject(item)) return refuse_item(c, i, "", "an object");
    if (is(type, "message") || (!type && text_of(item, "role"))) return add_message(c, item, i);
    if (is(type, "reasoning")) return add_reasoning(c, item, i);
    if (is(type, "function_call") || is(type, "custom_tool_call"))
        return add_call(c, item, is(type, "custom_tool_call"), i);
    if (is(type, "function_call_output") || is(type, "custom_tool_call_output")) return add_output(c, item, i);
    if (!type) return refuse_item(c, i, "type", "a string");
    if (is(type, "item_reference"))
        return fields_refuse(&c->f, "input",
                             "input[%d]: an item_reference names an item of an earlier answer, and none are kept: send "
                             "the item itself",
                             i);
    skip(c, type);
    return true;
}

static bool read_input(struct conversion *c)
{
    const cJSON *input = fields_find(&c->f, "input");
    const char *instructions = NULL;
    int i = 0;
    if (!fields_string(&c->f, "instructions", &instructions)) return false;
    if (!input) return fields_refuse(&c->f, "input", "input: the field is missing");
    buf_str(c->out, ",\"messages\":[");
    if (instructions && *instructions) {
        chat_body_begin(&c->chat, "system");
        chat_body_text(&c->chat, instructions);
    }
    if (cJSON_IsString(input)) {
        chat_body_begin(&c->chat, "user");
        chat_body_text(&c->chat, input->valuestring);
    } else if (!cJSON_IsArray(input)) {
        return fields_refuse(&c->f, "input", "input: expected a string or a list of items");
    } else {
        for (const cJSON *item = input->child; item; item = item->next, i++)
            if (!add_item(c, item, i)) return false;
    }
    chat_body_end(&c->chat);
    if (!c->chat.n_messages) return fields_refuse(&c->f, "input", "input: there is no message in it");
    buf_char(c->out, ']');
    return true;
}

/* ---- tools ----------------------------------------------------------------------------------------------------- */

static bool is_allowed(const struct conversion *c, const char *name, const char *flat)
{
    bool found = !c->allowed;
    for (const cJSON *t = c->allowed ? c->allowed->child : NULL; t && !found; t = t->next) {
        const char *wanted = text_of(t, "name");
        found = is(wanted, name) || is(wanted, flat);
    }
    return found;
}

/* A custom tool's parameters, up to the end of the tool.  Its description has the format; a format that can be kept to
 * while generating is in the schema too. */
static void put_custom(struct conversion *c, const cJSON *tool, const char *flat, bool first)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(tool, "format");
    const char *about = text_of(tool, "description"), *syntax = text_of(format, "syntax");
    const char *definition = text_of(format, "definition");
    struct buf text = {0}, pattern = {0};
    struct err e = {0};
    if (definition && c->n_formats++ >= FORMATS_MAX) syntax = "grammar";
    if (definition && is(syntax, "regex")) buf_printf(&pattern, "^(?:%s)$", definition);
    bool regex = pattern.len && json_regex_supported(pattern.data);
    bool lark = definition && is(syntax, "lark") && lark_supported(definition, &e);
    buf_str(&text, about ? about : "");
    if (definition)
        buf_printf(&text, "\n\nThe format of `input` (%.20s):\n%s", syntax ? syntax : "grammar", definition);
    chat_body_put_tool(c->out, first, flat, text.data);
    buf_str(c->out, "{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"");
    if (lark || regex) {
        buf_str(c->out, regex ? ",\"pattern\":" : ",\"lark\":");
        put_text(c->out, regex ? pattern.data : definition);
    }
    buf_str(c->out, "}},\"required\":[\"input\"],\"additionalProperties\":false}");
    buf_free(&text);
    buf_free(&pattern);
}

static bool add_tool(struct conversion *c, const cJSON *tool, const char *space, int i)
{
    const char *type = text_of(tool, "type"), *name = text_of(tool, "name");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(tool, "parameters");
    struct responses_request *r = c->r;
    char flat[FLAT_MAX + 1];
    bool custom = is(type, "custom");
    if (!cJSON_IsObject(tool) || !type) return fields_refuse(&c->f, "tools", "tools[%d].type: expected a string", i);
    if (!custom && !is(type, "function")) {
        skip(c, type);
        return true;
    }
    if (!name || !flatten(space, name, flat))
        return fields_refuse(&c->f, "tools", "tools[%d].name: expected a name, with its namespace of at most 126 bytes",
                             i);
    if (schema && !cJSON_IsObject(schema) && !cJSON_IsNull(schema))
        return fields_refuse(&c->f, "tools", "tools[%d].parameters: expected a JSON schema", i);
    if (responses_tool_find(r, flat)) return fields_refuse(&c->f, "tools", "tools[%d]: two are named %s", i, flat);
    if (!is_allowed(c, name, flat)) return true;
    if (r->n_tools == TOOLS_MAX) return fields_refuse(&c->f, "tools", "tools: there are more than %d", TOOLS_MAX);
    if (!r->n_tools) buf_str(c->out, ",\"tools\":[");
    r->tools = mem_resize(r->tools, r->n_tools + 1, sizeof *r->tools);
    r->tools[r->n_tools] =
        (struct responses_tool){.flat = mem_strdup(flat), .space = space ? strlen(space) : 0, .custom = custom};
    if (custom) {
        put_custom(c, tool, flat, r->n_tools == 0);
    } else {
        chat_body_put_tool(c->out, r->n_tools == 0, flat, text_of(tool, "description"));
        if (cJSON_IsObject(schema))
            put_value(c->out, schema);
        else
            buf_str(c->out, "{\"type\":\"object\",\"properties\":{}}");
    }
    r->n_tools++;
    buf_str(c->out, "}}");
    return true;
}

static bool add_space(struct conversion *c, const cJSON *space, int i)
{
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(space, "tools");
    const char *name = text_of(space, "name");
    if (!name || !*name) return fields_refuse(&c->f, "tools", "tools[%d].name: expected the namespace's name", i);
    if (!cJSON_IsArray(tools)) return fields_refuse(&c->f, "tools", "tools[%d].tools: expected a list of tools", i);
    for (const cJSON *t = tools->child; t; t = t->next)
        if (!add_tool(c, t, name, i)) return false;
    return true;
}

/* {"type":"function","name":...} and its like; false: an error, *required is set by mode "required" of allowed_tools.
 */
static bool put_choice(struct conversion *c, const cJSON *choice)
{
    const char *type = text_of(choice, "type"), *name = text_of(choice, "name"), *mode = text_of(choice, "mode");
    const char *space = text_of(choice, "namespace");
    char flat[FLAT_MAX + 1];
    if (cJSON_IsString(choice)) {
        buf_str(c->out, ",\"tool_choice\":");
        put_text(c->out, choice->valuestring);
        return true;
    }
    if (is(type, "allowed_tools")) {
        buf_printf(c->out, ",\"tool_choice\":\"%s\"", is(mode, "required") ? "required" : "auto");
        return true;
    }
    if ((!is(type, "function") && !is(type, "custom")) || !name || !flatten(space && *space ? space : NULL, name, flat))
        return fields_refuse(
            &c->f, "tool_choice",
            "tool_choice: expected \"auto\", \"none\", \"required\", a function or custom tool by name, "
            "or allowed_tools");
    buf_str(c->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    put_text(c->out, flat);
    buf_str(c->out, "}}");
    return true;
}

static bool read_tools(struct conversion *c)
{
    const cJSON *tools = fields_find(&c->f, "tools"), *choice = fields_find(&c->f, "tool_choice");
    bool parallel = true;
    int i = 0;
    if (tools && !cJSON_IsArray(tools)) return fields_refuse(&c->f, "tools", "tools: expected an array");
    if (is(text_of(choice, "type"), "allowed_tools")) {
        c->allowed = cJSON_GetObjectItemCaseSensitive(choice, "tools");
        if (!cJSON_IsArray(c->allowed) || cJSON_GetArraySize(c->allowed) > TOOLS_MAX)
            return fields_refuse(&c->f, "tool_choice", "tool_choice.tools: expected a list of at most 512 tools");
    }
    for (const cJSON *t = tools ? tools->child : NULL; t; t = t->next, i++)
        if (!(is(text_of(t, "type"), "namespace") ? add_space(c, t, i) : add_tool(c, t, NULL, i))) return false;
    if (c->r->n_tools) buf_char(c->out, ']');
    if (!fields_bool(&c->f, "parallel_tool_calls", &parallel)) return false;
    if (!parallel) buf_str(c->out, ",\"parallel_tool_calls\":false");
    bool open = cJSON_IsString(choice) && strcmp(choice->valuestring, "required") != 0;
    return !choice || (!c->r->n_tools && open) || put_choice(c, choice);
}

/* ---- the other fields ------------------------------------------------------------------------------------------ */

static bool read_format(struct conversion *c)
{
    const cJSON *text = NULL;
    if (!fields_object(&c->f, "text", &text)) return false;
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(text, "format");
    const char *type = text_of(format, "type");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(format, "schema");
    if (!format || cJSON_IsNull(format) || is(type, "text")) return true;
    if (is(type, "json_object")) {
        buf_str(c->out, ",\"response_format\":{\"type\":\"json_object\"}");
        return true;
    }
    if (!is(type, "json_schema") || !schema)
        return fields_refuse(&c->f, "text",
                             "text.format: expected the type \"text\", \"json_object\", or \"json_schema\" with a "
                             "`schema`");
    buf_str(c->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"schema\":");
    put_value(c->out, schema);
    buf_str(c->out, "}}");
    return true;
}

/* reasoning.effort is a variable of templates: reasoning_effort, and enable_thinking, which "none" makes false. */
static bool read_template(struct conversion *c)
{
    const cJSON *given = NULL, *reasoning = NULL;
    if (!fields_object(&c->f, "chat_template_kwargs", &given) || !fields_object(&c->f, "reasoning", &reasoning))
        return false;
    const char *effort = text_of(reasoning, "effort");
    bool off = is(effort, "none");
    if (!effort && !given) return true;
    buf_str(c->out, ",\"chat_template_kwargs\":{");
    const char *comma = "";
    for (const cJSON *v = given ? given->child : NULL; v; v = v->next, comma = ",") {
        buf_str(c->out, comma);
        put_text(c->out, v->string);
        buf_char(c->out, ':');
        put_value(c->out, v);
    }
    if (off && !cJSON_GetObjectItemCaseSensitive(given, "enable_thinking")) {
        buf_printf(c->out, "%s\"enable_thinking\":false", comma);
    } else if (effort && !off && !cJSON_GetObjectItemCaseSensitive(given, "reasoning_effort")) {
        buf_printf(c->out, "%s\"reasoning_effort\":", comma);
        put_text(c->out, effort);
    }
    buf_char(c->out, '}');
    return true;
}

/* Fields that refer to what a server with a memory would have kept, or would have to keep. */
static bool refuse_state(struct conversion *c)
{
    static const char *const names[] = {"previous_response_id", "conversation", "prompt"};
    bool background = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (fields_find(&c->f, names[i]))
            return fields_refuse(&c->f, names[i],
                                 "%s: answers are not kept, so each request has the whole conversation in "
                                 "`input`",
                                 names[i]);
    if (!fields_bool(&c->f, "background", &background)) return false;
    if (background)
        return fields_refuse(&c->f, "background", "background: answers are not kept, so they cannot be fetched later");
    const char *truncation = NULL;
    if (!fields_string(&c->f, "truncation", &truncation)) return false;
    if (truncation && strcmp(truncation, "disabled") != 0)
        return fields_refuse(&c->f, "truncation", "truncation: only \"disabled\" is supported");
    return true;
}

static bool read_include(struct conversion *c)
{
    const cJSON *list = fields_find(&c->f, "include");
    if (list && !cJSON_IsArray(list)) return fields_refuse(&c->f, "include", "include: expected an array");
    for (const cJSON *v = list ? list->child : NULL; v; v = v->next) {
        if (!cJSON_IsString(v)) return fields_refuse(&c->f, "include", "include: expected strings");
        if (is(v->valuestring, "message.output_text.logprobs"))
            return fields_refuse(
                &c->f, "include",
                "include: message.output_text.logprobs is not supported here: /v1/chat/completions has "
                "log-probabilities");
        if (is(v->valuestring, "reasoning.encrypted_content")) c->r->thoughts = true;
    }
    return true;
}

static void read_fields(struct conversion *c)
{
    static const char *const copied[][2] = {{"model", "model"},
                                            {"max_output_tokens", "max_tokens"},
                                            {"stream", "stream"},
                                            {"temperature", "temperature"},
                                            {"top_p", "top_p"},
                                            {"top_k", "top_k"},
                                            {"min_p", "min_p"},
                                            {"seed", "seed"},
                                            {"priority", "priority"},
                                            {"timeout_ms", "timeout_ms"},
                                            {"ignore_eos", "ignore_eos"},
                                            {"repetition_penalty", "repetition_penalty"},
                                            {"cache_salt", "cache_salt"},
                                            {"structured_outputs", "structured_outputs"},
                                            {"thinking_token_budget", "thinking_token_budget"}};
    buf_str(c->out, "{\"n\":1");
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        const cJSON *v = fields_find(&c->f, copied[i][0]);
        if (!v) continue;
        buf_printf(c->out, ",\"%s\":", copied[i][1]);
        put_value(c->out, v);
    }
}

/* The members of the answer that repeat the request; where it says nothing, OpenAI's defaults. */
static bool keep_echo(struct conversion *c)
{
    static const char *const repeated[][2] = {{"instructions", "null"},
                                              {"max_output_tokens", "null"},
                                              {"max_tool_calls", "null"},
                                              {"tools", "[]"},
                                              {"tool_choice", "\"auto\""},
                                              {"parallel_tool_calls", "true"},
                                              {"temperature", "1"},
                                              {"top_p", "1"},
                                              {"text", "{\"format\":{\"type\":\"text\"}}"},
                                              {"prompt_cache_key", "null"},
                                              {"safety_identifier", "null"},
                                              {"user", "null"},
                                              {"reasoning", "{\"effort\":null,\"summary\":null}"}};
    const cJSON *metadata = NULL;
    struct buf *out = &c->r->echo;
    if (!fields_object(&c->f, "metadata", &metadata)) return false;
    for (size_t i = 0; i < sizeof repeated / sizeof *repeated; i++) {
        const cJSON *v = fields_find(&c->f, repeated[i][0]);
        buf_printf(out, ",\"%s\":", repeated[i][0]);
        if (v)
            put_value(out, v);
        else
            buf_str(out, repeated[i][1]);
    }
    buf_str(out, ",\"metadata\":{");
    const char *comma = "";
    for (const cJSON *v = metadata ? metadata->child : NULL; v; v = v->next, comma = ",") {
        buf_str(out, comma);
        put_text(out, v->string);
        buf_char(out, ':');
        put_value(out, v);
    }
    if (c->r->skipped.len) {
        buf_printf(out, "%s\"skipped\":", comma);
        put_text(out, c->r->skipped.data);
    }
    buf_str(out, "},\"background\":false,\"previous_response_id\":null,\"service_tier\":\"default\",\"store\":false,"
                 "\"top_logprobs\":0,\"truncation\":\"disabled\"");
    return true;
}

static bool convert(struct conversion *c)
{
    if (!cJSON_IsObject(c->f.at.obj)) return fields_refuse(&c->f, NULL, "expected a JSON object");
    if (!fields_few(c->f.at.obj, c->f.e) || !refuse_state(c) || !read_include(c)) return false;
    read_fields(c);
    if (!read_input(c) || !read_tools(c) || !read_format(c) || !read_template(c) || !keep_echo(c)) return false;
    buf_char(c->out, '}');
    return true;
}

static size_t count_tools(const cJSON *tree)
{
    const cJSON *tools = cJSON_GetObjectItemCaseSensitive(tree, "tools");
    size_t n = 0;
    for (const cJSON *t = cJSON_IsArray(tools) ? tools->child : NULL; t; t = t->next, n++) {
        const cJSON *inside = cJSON_GetObjectItemCaseSensitive(t, "tools");
        if (cJSON_IsArray(inside)) n += (size_t)cJSON_GetArraySize(inside);
    }
    return n;
}

bool responses_to_chat(const char *body, size_t len, struct buf *text, struct reservation *held,
                       struct responses_request *r, struct err *e, const char **param)
{
    *text = (struct buf){0};
    *held = (struct reservation){0};
    *r = (struct responses_request){0};
    *param = NULL;
    e->code = 0;
    cJSON *tree = json_parse_body(body, len, e);
    if (!tree) return false;
    size_t n_tools = count_tools(tree);
    struct conversion c = {
        .f = {.at = {.obj = tree, .path = "", .e = e}, .e = e}, .out = text, .chat = {.out = text}, .r = r};
    bool good =
        reserve(held, MEMORY_LEAST + MEMORY_PER_BYTE * len + MEMORY_PER_TOOL * n_tools, "the conversation", e) &&
        reserve(&r->held, KEPT_LEAST + KEPT_PER_BYTE * len + KEPT_PER_TOOL * n_tools, "the conversation", e) &&
        convert(&c);
    *param = good ? NULL : c.f.param;
    chat_body_free(&c.chat);
    json_free(tree);
    return good;
}

const struct responses_tool *responses_tool_find(const struct responses_request *r, const char *flat)
{
    for (size_t i = 0; i < r->n_tools; i++)
        if (strcmp(r->tools[i].flat, flat) == 0) return &r->tools[i];
    return NULL;
}

void responses_request_free(struct responses_request *r)
{
    for (size_t i = 0; i < r->n_tools; i++) free(r->tools[i].flat);
    free(r->tools);
    buf_free(&r->echo);
    buf_free(&r->skipped);
    reservation_free(&r->held);
}
