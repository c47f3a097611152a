#include "server/api/chat_format.h"

#include "engine/base/log.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/chat_body.h"
#include "server/api/openai_params.h"
#include "server/config/settings.h"
#include "server/json/json.h"

#include <stdio.h>
#include <stdlib.h>
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
    c->reasoning = reasoning_choose(set->reasoning_parser, reasoning_detect(source, n));
    c->short_ids = source && memmem(source, n, "length != 9", 11);
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

/* The tools that the prompt shows: those of defer_loading are told of where a search found them (messages_params.c).
 * @return NULL: all; else a list that refers to them. */
static cJSON *shown_tools(const cJSON *tools)
{
    const cJSON *t = tools ? tools->child : NULL;
    while (t && !chat_tool_deferred(t)) t = t->next;
    if (!t) return NULL;
    cJSON *shown = cJSON_CreateArray();
    for (cJSON *i = tools->child; i; i = i->next)
        if (!chat_tool_deferred(i)) cJSON_AddItemReferenceToArray(shown, i);
    return shown;
}

/* gpt-oss knows three efforts. */
static void adapt_effort(const struct chat_format *c, cJSON *kwargs)
{
    static const char *const names[][2] = {{"none", "low"}, {"minimal", "low"}, {"xhigh", "high"}, {"max", "high"}};
    cJSON *effort = cJSON_GetObjectItemCaseSensitive(kwargs, "reasoning_effort");
    if (c->reasoning != REASONING_HARMONY || !cJSON_IsString(effort)) return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(effort->valuestring, names[i][0]) == 0) cJSON_SetValuestring(effort, names[i][1]);
}

/* Mistral's templates take ids of nine letters and digits: the last ones, which are random. */
static void shorten_id(cJSON *id)
{
    char out[10] = "000000000";
    const char *s = cJSON_GetStringValue(id);
    size_t at = 9;
    for (size_t i = s ? strlen(s) : 0; i-- > 0 && at;)
        if ((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= 'a' && s[i] <= 'z'))
            out[--at] = s[i];
    if (s && strlen(s) >= 9) cJSON_SetValuestring(id, out);
}

static void adapt_messages(const struct chat_format *c, cJSON *messages)
{
    for (cJSON *m = messages->child; m; m = m->next) {
        cJSON *calls = cJSON_GetObjectItemCaseSensitive(m, "tool_calls");
        const char *content = string_of(m, "content"), *thoughts = string_of(m, "reasoning_content");
        for (cJSON *call = calls && c->short_ids ? calls->child : NULL; call; call = call->next)
            shorten_id(cJSON_GetObjectItemCaseSensitive(call, "id"));
        if (c->short_ids) shorten_id(cJSON_GetObjectItemCaseSensitive(m, "tool_call_id"));
        if (c->reasoning != REASONING_HARMONY || !calls || !content || !*content || !thoughts || !*thoughts) continue;
        struct buf both = {0}; /* beside a call, its template takes one of the two */
        buf_printf(&both, "%s\n\n%s", thoughts, content);
        set_string(m, "reasoning_content", both.data);
        set_string(m, "content", "");
        buf_free(&both);
    }
}

int chat_render(const struct chat_format *c, struct openai_params *p, size_t body_len, struct buf *out, struct err *e)
{
    adapt_effort(c, p->template_kwargs);
    adapt_messages(c, p->messages);
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

/* A text of the format, or a mark of the thoughts, in which the marks that are special tokens of the vocabulary stand
 * between two CALLS_SPECIAL. */
static char *mark_special(const char *text, const struct output_format *f, const struct reasoning_marks *r,
                          const struct tokenizer *t)
{
    const char *const *lists[] = {f->group, f->open, f->close, r->specials};
    const char *single[] = {f->end, f->quote, "[ARGS]", TOOL_DEEPSEEK_SEP};
    struct buf out = {0};
    buf_str(&out, "");
    while (*text) {
        size_t longest = 0;
        for (size_t i = 0; i < 4 * FORMAT_MARKS + 4; i++) {
            const char *mark =
                i < 4 * FORMAT_MARKS ? lists[i / FORMAT_MARKS][i % FORMAT_MARKS] : single[i - 4 * FORMAT_MARKS];
            size_t n = mark ? strlen(mark) : 0;
            if (n <= longest || strncmp(text, mark, n) != 0) continue;
            int32_t id = tokenizer_find(t, mark);
            if (id >= 0 && tokenizer_is_special(t, id)) longest = n;
        }
        if (longest) buf_char(&out, CALLS_SPECIAL);
        buf_append(&out, text, longest ? longest : 1);
        if (longest) buf_char(&out, CALLS_SPECIAL);
        text += longest ? longest : 1;
    }
    return out.data;
}

static void add_text(cJSON *list, const char *text, const struct output_format *f, const struct reasoning_marks *r,
                     const struct tokenizer *t)
{
    char *marked = mark_special(text ? text : "", f, r, t);
    cJSON_AddItemToArray(list, cJSON_CreateString(marked));
    free(marked);
}

/* The schema of a text that is to be kept to whenever the tool is called (responses_params.c); NULL: it is a function.
 */
static const cJSON *format_of(const cJSON *function)
{
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    const cJSON *properties = cJSON_GetObjectItemCaseSensitive(parameters, "properties");
    const cJSON *input = cJSON_GetObjectItemCaseSensitive(properties, "input");
    bool alone = cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(parameters, "additionalProperties")) &&
                 cJSON_GetArraySize(properties) == 1;
    bool format = cJSON_GetObjectItemCaseSensitive(input, "lark") || cJSON_GetObjectItemCaseSensitive(input, "pattern");
    return alone && format ? input : NULL;
}

/* What schema/calls.h makes a grammar of.  Not demanded: calls of all tools, with whatever arguments where the tool has
 * no format. */
static cJSON *describe_calls(const struct chat_format *c, const struct openai_params *p, const struct tokenizer *t,
                             bool demanded)
{
    const struct output_format *f = output_format(chat_tool_format(c, p));
    const struct reasoning_marks *r = reasoning_marks(c->reasoning);
    const struct call_shape *s = &f->shape;
    const char *texts[] = {s->first, s->before, s->between, s->after, s->next, s->last, s->quote};
    cJSON *top = cJSON_CreateObject(), *shape = cJSON_AddArrayToObject(top, "shape");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) add_text(shape, texts[i], f, r, t);
    cJSON_AddNumberToObject(top, "arguments", s->arguments);
    cJSON_AddBoolToObject(top, "many", p->parallel_tool_calls && p->tool_choice != TOOL_CHOICE_NAMED && !s->single);
    cJSON *list = cJSON_AddArrayToObject(top, "tools");
    for (const cJSON *tool = p->tools->child; tool; tool = tool->next) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
        const char *name = string_of(function, "name");
        if (demanded && (p->tool_name ? strcmp(name, p->tool_name) != 0 : chat_tool_deferred(tool))) continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddStringToObject(item, "name", name);
        if (!demanded && !format_of(function))
            cJSON_AddTrueToObject(item, "any");
        else if (cJSON_IsObject(parameters))
            cJSON_AddItemToObject(item, "parameters", cJSON_Duplicate(parameters, true));
        if (format_of(function)) cJSON_AddTrueToObject(item, "described");
        cJSON_AddItemToArray(list, item);
    }
    return top;
}

/* What schema/answer.h takes: what is around calls that are not demanded. */
static cJSON *describe_text(const struct chat_format *c, const struct output_format *f, const struct tokenizer *t)
{
    const struct reasoning_marks *r = reasoning_marks(c->reasoning);
    bool channels = f == output_format(TOOL_FORMAT_HARMONY), own = f->none[0];
    const char *const nothing[FORMAT_MARKS] = {0};
    /* harmony's in the order in which answer.c takes them */
    const char *const *lists[] = {own ? f->none : f->open, channels ? f->close : nothing, own ? nothing : f->group};
    cJSON *top = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(top, "marks");
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < FORMAT_MARKS && lists[k][i]; i++) add_text(list, lists[k][i], f, r, t);
    bool object = f->bare & FORM_OBJECT, other = f->bare & (FORM_LIST | FORM_PYTHON);
    cJSON_AddStringToObject(top, "starts", object && other ? "{[" : object ? "{" : other ? "[" : "");
    cJSON_AddBoolToObject(top, "channels", channels);
    if (!r->begin) return top;
    list = cJSON_AddArrayToObject(top, "thoughts");
    add_text(list, r->begin, f, r, t);
    add_text(list, r->end, f, r, t);
    return top;
}

/* JSON that is asked for is the final message. */
static void lead_to_answer(enum reasoning_format reasoning, const struct tokenizer *t,
                           struct constraint_request *request)
{
    static const char lead[] = "<|channel|>final<|message|>";
    bool json = request->kind == CONSTRAINT_JSON_OBJECT || request->kind == CONSTRAINT_JSON_SCHEMA;
    if (reasoning != REASONING_HARMONY || !json) return;
    char *marked = mark_special(lead, output_format(TOOL_FORMAT_HARMONY), reasoning_marks(reasoning), t);
    constraint_set_lead(request, marked);
    free(marked);
}

int chat_tool_constraint(const struct chat_format *c, const struct openai_params *p, const struct tokenizer *t,
                         struct constraint_request *request, struct err *e)
{
    e->code = 0;
    if (!demanded(p)) {
        lead_to_answer(c->reasoning, t, request);
        return 0;
    }
    /* A response format is for messages, and there will be none: instructor sends both. */
    if (request->kind != CONSTRAINT_NONE && strcmp(request->field, "response_format") == 0)
        constraint_request_free(request);
    if (request->kind != CONSTRAINT_NONE)
        return err_set(e, ERR_INVALID, "tool_choice: a call is demanded, and %s asks for something else",
                       request->field);
    cJSON *calls = describe_calls(c, p, t, true);
    constraint_set_calls(request, "tools", calls, e);
    cJSON_Delete(calls);
    return e->code;
}

int chat_calls_constraint(const struct chat_format *c, const struct openai_params *p, const struct tokenizer *t,
                          struct constraint_request *request, struct err *e)
{
    enum tool_format format = chat_tool_format(c, p);
    bool formats = false;
    e->code = 0;
    for (const cJSON *tool = p->tools ? p->tools->child : NULL; tool; tool = tool->next)
        formats = formats || format_of(cJSON_GetObjectItemCaseSensitive(tool, "function"));
    if (!formats || demanded(p) || request->kind != CONSTRAINT_NONE || format == TOOL_FORMAT_NONE) return 0;
    cJSON *calls = describe_calls(c, p, t, false);
    cJSON_AddItemToObject(calls, "free", describe_text(c, output_format(format), t));
    struct err large = {0};
    if (!constraint_set_calls(request, "tools", calls, &large)) constraint_request_free(request);
    cJSON_Delete(calls);
    return e->code;
}
