#include "server/api/messages_params.h"

#include "server/api/chat_body.h"
#include "server/api/request_fields.h"
#include "server/json/json.h"

#include <stdio.h>
#include <string.h>

/* The text is at most about 2.5 times the body (short contents become lists of parts, deferred tools texts); what is
 * gathered exists twice, and a buffer that grows, too. */
enum { MEMORY_PER_BYTE = 12, MEMORY_LEAST = 4096 };

enum { REFERENCES_MAX = 1024 }; /* tool_references that are looked up; the work is their number times that of tools */

static const char BILLING[] = "x-anthropic-billing-header:";

struct conversion {
    struct request_fields f;
    struct buf *out;
    struct chat_body chat;
    int n_references;
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

/* ---- system ---------------------------------------------------------------------------------------------------- */

static void add_system(struct conversion *c, const char *text)
{
    if (strncmp(text, BILLING, sizeof BILLING - 1) == 0) {
        text += strcspn(text, "\n");
        text += strspn(text, "\n");
    }
    if (!*text) return;
    chat_body_begin(&c->chat, "system");
    chat_body_text(&c->chat, text);
}

static bool read_system(struct conversion *c)
{
    const cJSON *system = fields_find(&c->f, "system");
    int k = 0;
    if (!system) return true;
    if (cJSON_IsString(system)) {
        add_system(c, system->valuestring);
        return true;
    }
    if (!cJSON_IsArray(system)) return fields_refuse(&c->f, "system", "system: expected a string or a list of blocks");
    for (const cJSON *block = system->child; block; block = block->next, k++) {
        const char *type = text_of(block, "type"), *text = text_of(block, "text");
        if (type && strcmp(type, "text") != 0)
            return fields_refuse(&c->f, "system", "system[%d]: \"%.40s\" is not supported, only text is", k, type);
        if (!text) return fields_refuse(&c->f, "system", "system[%d].text: expected a string", k);
        add_system(c, text);
    }
    return true;
}

/* ---- blocks ---------------------------------------------------------------------------------------------------- */

/* Where a block is, for messages: "messages[3].content[0]" */
struct place {
    int message, block;
};

static bool refuse_block(struct conversion *c, struct place at, const char *field, const char *what)
{
    return fields_refuse(&c->f, "messages", "messages[%d].content[%d]%s%s: expected %s", at.message, at.block,
                         *field ? "." : "", field, what);
}

static bool refuse_type(struct conversion *c, struct place at, const char *type)
{
    return fields_refuse(&c->f, "messages", "messages[%d].content[%d]: \"%.40s\" is not supported, only text is",
                         at.message, at.block, type);
}

/* A tool that the prompt does not show before a tool_reference names it. */
/* What a tool is, as the templates show those at the front. */
static void add_definition(struct conversion *c, const cJSON *tool, const cJSON *schema)
{
    const char *about = text_of(tool, "description");
    struct buf text = {0};
    buf_str(&text, "<function>{\"name\": ");
    put_text(&text, text_of(tool, "name"));
    buf_str(&text, ", \"description\": ");
    put_text(&text, about ? about : "");
    buf_str(&text, ", \"parameters\": ");
    put_value(&text, schema);
    buf_str(&text, "}</function>");
    chat_body_text(&c->chat, text.data);
    buf_free(&text);
}

/* A tool found by a search, or added: what it is, where it is first named, so that the page before stays as it was. */
static void add_reference(struct conversion *c, const char *name)
{
    const cJSON *tools = fields_find(&c->f, "tools");
    bool looked_up = c->n_references++ < REFERENCES_MAX;
    for (cJSON *t = looked_up && cJSON_IsArray(tools) ? tools->child : NULL; t; t = t->next) {
        const char *known = text_of(t, "name");
        if (!known || strcmp(known, name) != 0) continue;
        const cJSON *schema = cJSON_GetObjectItemCaseSensitive(t, "input_schema");
        if (!chat_tool_deferred(t) || !cJSON_IsObject(schema) || cJSON_GetObjectItemCaseSensitive(t, "told")) break;
        add_definition(c, t, schema);
        cJSON_AddTrueToObject(t, "told");
        return;
    }
    chat_body_text(&c->chat, name);
}

/* The tools have changed: tool_addition, with a reference or a definition, and tool_removal. */
static bool add_change(struct conversion *c, const cJSON *block, struct place at, bool added)
{
    const cJSON *tool = cJSON_GetObjectItemCaseSensitive(block, "tool");
    const cJSON *definition = cJSON_GetObjectItemCaseSensitive(tool, "definition");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(definition, "input_schema");
    const char *name = text_of(definition ? definition : tool, "name");
    if (!name || (definition && !cJSON_IsObject(schema))) return refuse_block(c, at, "tool", "a tool by its name");
    chat_body_text(&c->chat, added ? "This tool can be called now:" : "This tool can no longer be called:");
    if (added && definition)
        add_definition(c, definition, schema);
    else if (added)
        add_reference(c, name);
    else
        chat_body_text(&c->chat, name);
    return true;
}

/* A block of a tool's result.  What is not text becomes a note: were it refused, so would be every later request of the
 * conversation, and the user has not chosen what a tool gives. */
static void add_result_block(struct conversion *c, const cJSON *block, const char *type)
{
    const cJSON *source = cJSON_GetObjectItemCaseSensitive(block, "source");
    const char *text = text_of(block, "text"), *kind = text_of(source, "type");
    char note[96];
    if (strcmp(type, "document") == 0 && kind && strcmp(kind, "text") == 0) text = text_of(source, "data");
    if (!text) {
        size_t n = strspn(type, "abcdefghijklmnopqrstuvwxyz_");
        snprintf(note, sizeof note, "[%.*s: not shown, since this model reads only text]", (int)(n < 40 ? n : 40),
                 type);
        text = note;
    }
    chat_body_text(&c->chat, text);
}

/* A message of role tool; the result's content: absent, a text, or blocks. */
static bool add_result(struct conversion *c, const cJSON *block, struct place at)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(block, "content");
    const char *id = text_of(block, "tool_use_id");
    bool failed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(block, "is_error"));
    if (!id) return refuse_block(c, at, "tool_use_id", "a string");
    if (content && !cJSON_IsString(content) && !cJSON_IsArray(content) && !cJSON_IsNull(content))
        return refuse_block(c, at, "content", "a string or a list of blocks");
    chat_body_end(&c->chat);
    if (cJSON_IsString(content)) chat_body_text(&c->chat, content->valuestring);
    for (const cJSON *b = cJSON_IsArray(content) ? content->child : NULL; b; b = b->next) {
        const char *type = text_of(b, "type"), *name = text_of(b, "tool_name");
        if (!type) return refuse_block(c, at, "content", "blocks with a type");
        if (strcmp(type, "text") == 0 && !text_of(b, "text"))
            return refuse_block(c, at, "content", "blocks with a text");
        if (strcmp(type, "tool_reference") == 0 && name)
            add_reference(c, name);
        else
            add_result_block(c, b, type);
    }
    chat_body_result(&c->chat, id, failed);
    return true;
}

static bool add_call(struct conversion *c, const cJSON *block, struct place at)
{
    const cJSON *input = cJSON_GetObjectItemCaseSensitive(block, "input");
    const char *id = text_of(block, "id"), *name = text_of(block, "name");
    if (!id) return refuse_block(c, at, "id", "a string");
    if (!name || !*name) return refuse_block(c, at, "name", "a string");
    if (input && !cJSON_IsObject(input)) return refuse_block(c, at, "input", "an object");
    struct buf *arguments = chat_body_call(&c->chat, id, name);
    if (input)
        put_value(arguments, input);
    else
        buf_str(arguments, "{}");
    chat_body_call_end(&c->chat);
    return true;
}

static bool add_block(struct conversion *c, const cJSON *block, struct place at)
{
    const char *type = text_of(block, "type");
    bool assistant = strcmp(c->chat.role, "assistant") == 0;
    if (!type) return refuse_block(c, at, "type", "a string");
    if (strcmp(type, "tool_result") == 0) return assistant ? refuse_type(c, at, type) : true; /* written before */
    if (strcmp(type, "redacted_thinking") == 0) return true;
    if (strcmp(type, "text") == 0) {
        const char *text = text_of(block, "text");
        if (!text) return refuse_block(c, at, "text", "a string");
        chat_body_text(&c->chat, text);
        return true;
    }
    if (strcmp(type, "thinking") == 0 && assistant) {
        const char *text = text_of(block, "thinking");
        if (!text) return refuse_block(c, at, "thinking", "a string");
        chat_body_thought(&c->chat, text);
        return true;
    }
    if (strcmp(type, "tool_use") == 0 && assistant) return add_call(c, block, at);
    if (strcmp(type, "tool_addition") == 0 || strcmp(type, "tool_removal") == 0)
        return add_change(c, block, at, strcmp(type, "tool_addition") == 0);
    return refuse_type(c, at, type);
}

/* The content of one message; system: it still belongs to the system's message. */
static bool add_content(struct conversion *c, const cJSON *content, const char *role, int i)
{
    struct place at = {.message = i};
    bool results = false, others = false;
    if (cJSON_IsString(content)) {
        if (strcmp(role, "system") == 0) {
            add_system(c, content->valuestring);
        } else {
            chat_body_begin(&c->chat, role);
            chat_body_text(&c->chat, content->valuestring);
        }
        return true;
    }
    if (!cJSON_IsArray(content))
        return fields_refuse(&c->f, "messages", "messages[%d].content: expected a string or a list of blocks", i);
    for (const cJSON *b = content->child; b && strcmp(role, "user") == 0; b = b->next, at.block++) {
        const char *type = text_of(b, "type");
        bool result = type && strcmp(type, "tool_result") == 0;
        if (result && !add_result(c, b, at)) return false;
        results = results || result;
        others = others || !result;
    }
    if (results && !others) return true;
    chat_body_begin(&c->chat, role);
    at.block = 0;
    for (const cJSON *b = content->child; b; b = b->next, at.block++)
        if (!add_block(c, b, at)) return false;
    return true;
}

/* @return the role that the template gets; NULL: unknown. */
static const char *role_of(const char *given, bool begun)
{
    if (strcmp(given, "assistant") == 0) return "assistant";
    if (strcmp(given, "system") == 0 || strcmp(given, "developer") == 0) return begun ? "user" : "system";
    bool user = strcmp(given, "user") == 0 || strcmp(given, "ctx") == 0 || strcmp(given, "msg") == 0;
    return user ? "user" : NULL;
}

static bool read_messages(struct conversion *c)
{
    const cJSON *messages = fields_find(&c->f, "messages");
    bool begun = false;
    int i = 0;
    if (!messages) return fields_refuse(&c->f, "messages", "messages: the field is missing");
    if (!cJSON_IsArray(messages)) return fields_refuse(&c->f, "messages", "messages: expected an array");
    if (!messages->child) return fields_refuse(&c->f, "messages", "messages: the list is empty");
    buf_str(c->out, ",\"messages\":[");
    if (!read_system(c)) return false;
    for (const cJSON *m = messages->child; m; m = m->next, i++) {
        const char *given = text_of(m, "role"), *role = given ? role_of(given, begun) : NULL;
        if (!cJSON_IsObject(m)) return fields_refuse(&c->f, "messages", "messages[%d]: expected an object", i);
        if (!role)
            return fields_refuse(&c->f, "messages", "messages[%d].role: expected \"user\", \"assistant\" or \"system\"",
                                 i);
        begun = begun || strcmp(role, "system") != 0;
        if (!add_content(c, cJSON_GetObjectItemCaseSensitive(m, "content"), role, i)) return false;
    }
    chat_body_end(&c->chat);
    buf_char(c->out, ']');
    if (c->chat.open_ended) buf_str(c->out, ",\"continue_final_message\":true");
    return true;
}

/* ---- tools ----------------------------------------------------------------------------------------------------- */

static bool add_tool(struct conversion *c, const cJSON *tool, int i)
{
    const char *type = text_of(tool, "type"), *name = text_of(tool, "name"), *about = text_of(tool, "description");
    cJSON *schema = cJSON_GetObjectItemCaseSensitive(tool, "input_schema");
    if (!cJSON_IsObject(tool)) return fields_refuse(&c->f, "tools", "tools[%d]: expected an object", i);
    if (type && strcmp(type, "custom") != 0)
        return fields_refuse(&c->f, "tools",
                             "tools[%d].type: \"%.40s\" is not supported: only tools with a name and an input_schema "
                             "are",
                             i, type);
    if (!name || !*name) return fields_refuse(&c->f, "tools", "tools[%d].name: expected a name", i);
    if (!cJSON_IsObject(schema))
        return fields_refuse(&c->f, "tools", "tools[%d].input_schema: expected a JSON schema", i);
    if (!cJSON_GetObjectItemCaseSensitive(schema, "type")) cJSON_AddStringToObject(schema, "type", "object");
    chat_body_put_tool(c->out, i == 0, name, about);
    put_value(c->out, schema);
    buf_str(c->out, chat_tool_deferred(tool) ? "},\"defer_loading\":true}" : "}}");
    return true;
}

static bool read_tool_choice(struct conversion *c)
{
    const cJSON *choice = fields_find(&c->f, "tool_choice");
    const char *type = text_of(choice, "type"), *name = text_of(choice, "name");
    if (!choice) return true;
    if (!type) return fields_refuse(&c->f, "tool_choice", "tool_choice: expected an object with the field `type`");
    if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(choice, "disable_parallel_tool_use")))
        buf_str(c->out, ",\"parallel_tool_calls\":false");
    if (strcmp(type, "auto") == 0 || strcmp(type, "none") == 0) {
        buf_printf(c->out, ",\"tool_choice\":\"%s\"", type);
    } else if (strcmp(type, "any") == 0) {
        buf_str(c->out, ",\"tool_choice\":\"required\"");
    } else if (strcmp(type, "tool") == 0 && name) {
        buf_str(c->out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        put_text(c->out, name);
        buf_str(c->out, "}}");
    } else {
        return fields_refuse(&c->f, "tool_choice",
                             "tool_choice: expected the type \"auto\", \"any\", \"none\", or \"tool\" with a `name`");
    }
    return true;
}

static bool read_tools(struct conversion *c)
{
    const cJSON *tools = fields_find(&c->f, "tools");
    int i = 0;
    if (tools && !cJSON_IsArray(tools)) return fields_refuse(&c->f, "tools", "tools: expected an array");
    if (tools && tools->child) { /* an empty list counts as none */
        buf_str(c->out, ",\"tools\":[");
        for (const cJSON *t = tools->child; t; t = t->next, i++)
            if (!add_tool(c, t, i)) return false;
        buf_char(c->out, ']');
    }
    return read_tool_choice(c);
}

/* ---- the other fields ------------------------------------------------------------------------------------------ */

static bool read_format(struct conversion *c, const cJSON *config)
{
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(config, "format");
    const char *type = text_of(format, "type");
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(format, "schema");
    if (!format || cJSON_IsNull(format)) return true;
    if (!type || strcmp(type, "json_schema") != 0 || !schema)
        return fields_refuse(&c->f, "output_config",
                             "output_config.format: expected {\"type\": \"json_schema\", \"schema\": ...}");
    buf_str(c->out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"answer\",\"schema\":");
    put_value(c->out, schema);
    buf_str(c->out, "}}");
    return true;
}

/* thinking and output_config.effort are variables of templates: enable_thinking (Qwen 3) and reasoning_effort
 * (gpt-oss); thinking.budget_tokens is the budget of thoughts.  chat_template_kwargs, which vLLM accepts here, comes
 * first. */
static bool read_template(struct conversion *c, const cJSON *config)
{
    const cJSON *given = NULL, *thinking = NULL;
    if (!fields_object(&c->f, "chat_template_kwargs", &given) || !fields_object(&c->f, "thinking", &thinking))
        return false;
    const char *type = text_of(thinking, "type"), *effort = text_of(config, "effort"), *comma = "";
    size_t start = c->out->len;
    buf_str(c->out, ",\"chat_template_kwargs\":{");
    for (const cJSON *v = given ? given->child : NULL; v; v = v->next) {
        buf_str(c->out, comma);
        put_text(c->out, v->string);
        buf_char(c->out, ':');
        put_value(c->out, v);
        comma = ",";
    }
    if (type && !cJSON_GetObjectItemCaseSensitive(given, "enable_thinking")) {
        buf_printf(c->out, "%s\"enable_thinking\":%s", comma, strcmp(type, "disabled") == 0 ? "false" : "true");
        comma = ",";
    }
    if (effort && !cJSON_GetObjectItemCaseSensitive(given, "reasoning_effort")) {
        buf_printf(c->out, "%s\"reasoning_effort\":", comma);
        put_text(c->out, effort);
        comma = ",";
    }
    buf_char(c->out, '}');
    if (!*comma) c->out->data[c->out->len = start] = 0; /* nothing was given */
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(thinking, "budget_tokens");
    if (budget && !cJSON_IsNull(budget) && !(type && strcmp(type, "disabled") == 0)) {
        buf_str(c->out, ",\"thinking_token_budget\":");
        put_value(c->out, budget);
    }
    return true;
}

/* Fields that ask for what the model's server would have to keep, or do besides. */
static bool refuse_others(struct conversion *c)
{
    const cJSON *servers = fields_find(&c->f, "mcp_servers");
    if (fields_find(&c->f, "thread"))
        return fields_refuse(&c->f, MESSAGES_THREAD,
                             "thread: conversations are not kept, so each request has all its messages");
    if (fields_find(&c->f, "compaction"))
        return fields_refuse(&c->f, "compaction", "compaction is not supported: ask for a summary in a message");
    if (servers && (!cJSON_IsArray(servers) || servers->child))
        return fields_refuse(&c->f, "mcp_servers",
                             "mcp_servers is not supported: the client connects to them, and sends their `tools`");
    return true;
}

static bool read_fields(struct conversion *c, bool count)
{
    static const char *const copied[] = {"model",
                                         "max_tokens",
                                         "stop_sequences",
                                         "stream",
                                         "temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "seed",
                                         "priority",
                                         "repetition_penalty",
                                         "timeout_ms",
                                         "ignore_eos",
                                         "cache_salt",
                                         "structured_outputs"};
    const char *comma = "";
    if (!fields_find(&c->f, "model")) return fields_refuse(&c->f, "model", "model: the field is missing");
    if (!count && !fields_find(&c->f, "max_tokens"))
        return fields_refuse(&c->f, "max_tokens", "max_tokens: the field is missing");
    buf_char(c->out, '{');
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        const cJSON *v = fields_find(&c->f, copied[i]);
        if (!v || (count && i)) continue; /* counting samples nothing */
        buf_printf(c->out, "%s\"%s\":", comma, copied[i]);
        put_value(c->out, v);
        comma = ",";
    }
    return true;
}

static bool convert(struct conversion *c, bool count)
{
    const cJSON *config = NULL;
    if (!cJSON_IsObject(c->f.at.obj)) return fields_refuse(&c->f, NULL, "expected a JSON object");
    bool good = fields_few(c->f.at.obj, c->f.e) && refuse_others(c) && read_fields(c, count) && read_messages(c) &&
                read_tools(c) && fields_object(&c->f, "output_config", &config) && (count || read_format(c, config)) &&
                read_template(c, config);
    if (good) buf_char(c->out, '}');
    return good;
}

bool messages_to_chat(const char *body, size_t len, bool count, struct messages_chat *out, struct err *e)
{
    *out = (struct messages_chat){0};
    e->code = 0;
    cJSON *tree = json_parse_body(body, len, e);
    if (!tree) return false;
    struct conversion c = {
        .f = {.at = {.obj = tree, .path = "", .e = e}, .e = e}, .out = &out->text, .chat = {.out = &out->text}};
    bool good = reserve(&out->held, MEMORY_LEAST + MEMORY_PER_BYTE * len, "the conversation", e) && convert(&c, count);
    out->param = good ? NULL : c.f.param;
    chat_body_free(&c.chat);
    json_free(tree);
    return good;
}

void messages_chat_free(struct messages_chat *c)
{
    buf_free(&c->text);
    reservation_free(&c->held);
}
