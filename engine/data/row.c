#include "engine/data/row.h"

#include "engine/base/json_literal.h"
#include "engine/base/mem.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a row is ----------------------------------------------------------------------------------------------- */

static const cJSON *field(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, name);
    return cJSON_IsNull(v) ? NULL : v;
}

static const char *type_of(const cJSON *v)
{
    return !v                  ? "missing"
           : cJSON_IsString(v) ? "a string"
           : cJSON_IsNumber(v) ? "a number"
           : cJSON_IsBool(v)   ? "a boolean"
           : cJSON_IsArray(v)  ? "a list"
           : cJSON_IsObject(v) ? "an object"
                               : /* cJSON_IsNull(v)*/ "null";
}

/* @return how many bytes of a name or word a message shows: a prefix of a long one, ending at a character boundary. */
static int shown(const char *s)
{
    size_t n = strnlen(s, 30);
    while (n && ((unsigned char)s[n] & 0xc0) == 0x80) n--;
    return (int)n;
}

static const cJSON *conversation(const cJSON *row)
{
    const cJSON *v = field(row, "conversations");
    return v ? v : field(row, "conversation");
}

enum dataset_format row_format(const cJSON *row)
{
    if (cJSON_IsString(row)) return DATASET_TEXT;
    if (!cJSON_IsObject(row)) return DATASET_AUTO;
    if (field(row, "chosen") || field(row, "rejected") || field(row, "preferred_output") || field(row, "chosen_ids"))
        return DATASET_AUTO;
    if (field(row, "messages")) return DATASET_MESSAGES;
    if (conversation(row)) {
        const cJSON *first = cJSON_GetArrayItem(conversation(row), 0);
        return field(first, "role") ? DATASET_MESSAGES : DATASET_SHAREGPT;
    }
    if (field(row, "prompt") && field(row, "completion")) return DATASET_COMPLETION;
    if (field(row, "prompt_ids") && field(row, "completion_ids")) return DATASET_COMPLETION;
    if (field(row, "instruction") && field(row, "output")) return DATASET_ALPACA;
    if (field(row, "input_ids")) return DATASET_TOKENS;
    return field(row, "text") ? DATASET_TEXT : DATASET_AUTO;
}

void row_describe(struct buf *b, const cJSON *row)
{
    if (!cJSON_IsObject(row) || !row->child) {
        buf_str(b, cJSON_IsObject(row) ? "an object without fields" : type_of(row));
        return;
    }
    buf_str(b, "an object with the fields");
    int n = 0;
    for (const cJSON *v = row->child; v; v = v->next, n++) {
        if (n == 8) {
            buf_str(b, "...");
            return;
        }
        buf_printf(b, "%s %.*s", n ? "," : "", shown(v->string), v->string);
    }
}

void row_free(struct row *r)
{
    cJSON_Delete(r->turns);
    cJSON_Delete(r->own);
    free(r->own_prompt);
    free(r->trained);
    free(r->id);
    free(r->is_target);
    free(r->logprob);
    *r = (struct row){0};
}

/* A member that must be a string; it may be absent unless `needed`. */
static int string_of(const cJSON *row, const char *name, bool needed, const char **out, struct err *e)
{
    const cJSON *v = field(row, name);
    *out = cJSON_IsString(v) ? v->valuestring : NULL;
    if (*out || (!v && !needed)) return 0;
    if (!v) return err_set(e, ERR_INVALID, "no \"%s\"", name);
    return err_set(e, ERR_INVALID, "\"%s\" must be a string, is %s", name, type_of(v));
}

static bool is_blank(const char *s)
{
    return !s || !s[strspn(s, " \t\r\n")];
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* Takes ownership of the message. */
static void turn_take(struct row *r, cJSON *message, bool trained)
{
    if (!r->turns) r->turns = cJSON_CreateArray();
    cJSON_AddItemToArray(r->turns, message);
    r->trained = mem_resize(r->trained, (size_t)r->n_turns + 1, 1);
    r->trained[r->n_turns++] = trained;
}

static void turn_add(struct row *r, const char *role, const char *content, bool trained)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", content);
    turn_take(r, m, trained);
}

/* Content may be a list of {"type": "text", "text" or "value": ...}: joined to one string. */
static int content_join(cJSON *message, const cJSON *parts, int at, struct err *e)
{
    struct buf text = {0};
    const cJSON *part;
    int rc = 0, i = 0;
    buf_str(&text, "");
    cJSON_ArrayForEach(part, parts)
    {
        const cJSON *type = field(part, "type"), *v = field(part, "text") ? field(part, "text") : field(part, "value");
        if (cJSON_IsString(type) && strcmp(type->valuestring, "text") != 0)
            rc = err_set(e, ERR_UNSUPPORTED, "messages[%d].content[%d] is of type \"%.*s\"; only text can be trained",
                         at, i, shown(type->valuestring), type->valuestring);
        else if (!cJSON_IsString(v))
            rc = err_set(e, ERR_INVALID, "messages[%d].content[%d] has no \"text\"", at, i);
        else
            buf_str(&text, v->valuestring);
        if (rc) break;
        i++;
    }
    if (!rc) cJSON_ReplaceItemInObjectCaseSensitive(message, "content", cJSON_CreateString(text.data));
    buf_free(&text);
    return rc;
}

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};

static int role_check(const cJSON *message, int at, const char **role, struct err *e)
{
    if (!cJSON_IsObject(message))
        return err_set(e, ERR_INVALID, "messages[%d] must be an object, is %s", at, type_of(message));
    const cJSON *v = field(message, "role");
    if (!cJSON_IsString(v)) return err_set(e, ERR_INVALID, "messages[%d].role must be a string, is %s", at, type_of(v));
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (strcmp(v->valuestring, roles[i]) != 0) continue;
        *role = roles[i];
        return 0;
    }
    return err_set(e, ERR_INVALID, "messages[%d].role is \"%.*s\", not system, user, assistant or tool", at,
                   shown(v->valuestring), v->valuestring);
}

/* weight (OpenAI) or loss_weight: 0, or 1 on assistant turns only.  By default 1 on assistant turns and 0 on others. */
static int weight_read(const cJSON *message, const char *role, int at, bool *trained, struct err *e)
{
    const cJSON *v = field(message, "weight");
    const char *name = v ? "weight" : "loss_weight";
    bool assistant = strcmp(role, "assistant") == 0;
    if (!v) v = field(message, "loss_weight");
    *trained = assistant;
    if (!v) return 0;
    if (!cJSON_IsNumber(v))
        return err_set(e, ERR_INVALID, "messages[%d].%s must be a number, is %s", at, name, type_of(v));
    if (v->valuedouble != 0 && v->valuedouble != 1)
        return err_set(e, ERR_UNSUPPORTED, "messages[%d].%s is %g; only 0 and 1 are supported", at, name,
                       v->valuedouble);
    *trained = v->valuedouble == 1;
    if (*trained && !assistant)
        return err_set(e, ERR_UNSUPPORTED, "messages[%d].%s is 1, but only what the assistant says can be trained", at,
                       name);
    return 0;
}

static int message_read(struct row *r, const cJSON *message, int at, bool trainable, struct err *e)
{
    const char *role = NULL;
    bool trained;
    int rc = role_check(message, at, &role, e);
    if (!rc) rc = weight_read(message, role, at, &trained, e);
    if (rc) return rc;
    const cJSON *content = field(message, "content");
    bool calls = cJSON_IsArray(field(message, "tool_calls"));
    if (!content && !calls) return err_set(e, ERR_INVALID, "messages[%d] has no \"content\"", at);
    if (content && !cJSON_IsString(content) && !cJSON_IsArray(content))
        return err_set(e, ERR_INVALID, "messages[%d].content must be a string, is %s", at, type_of(content));
    cJSON *copy = cJSON_Duplicate(message, true);
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "weight");
    cJSON_DeleteItemFromObjectCaseSensitive(copy, "loss_weight");
    if (cJSON_IsArray(content)) rc = content_join(copy, content, at, e);
    const cJSON *said = field(copy, "content");
    if (!rc && trained && trainable && !calls && is_blank(cJSON_GetStringValue(said)))
        rc = err_set(e, ERR_INVALID, "messages[%d] is an empty answer", at);
    turn_take(r, copy, trained && trainable);
    return rc;
}

static int messages_read(struct row *r, const cJSON *list, const char *name, bool trainable, struct err *e)
{
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INVALID, "\"%s\" must be a list, is %s", name, type_of(list));
    if (!list->child) return err_set(e, ERR_INVALID, "\"%s\" is empty", name);
    int rc = 0, at = 0;
    for (const cJSON *m = list->child; m && !rc; m = m->next) rc = message_read(r, m, at++, trainable, e);
    return rc;
}

static int turns_check(const struct row *r, struct err *e)
{
    bool answered = false;
    int n_trained = 0, i = 0;
    const cJSON *m;
    cJSON_ArrayForEach(m, r->turns)
    {
        answered |= strcmp(cJSON_GetStringValue(field(m, "role")), "assistant") == 0;
        n_trained += r->trained[i++];
    }
    if (!answered) return err_set(e, ERR_INVALID, "no answer: no message of the assistant");
    return n_trained ? 0 : err_set(e, ERR_INVALID, "no answer with a weight of 1");
}

/* "tools": a list, or JSON as a string. */
static int tools_read(struct row *r, const cJSON *row, struct err *e)
{
    const cJSON *tools = field(row, "tools");
    if (cJSON_IsString(tools)) {
        if (is_blank(tools->valuestring)) return 0;
        r->own = json_literal_parse(tools->valuestring, strlen(tools->valuestring), NULL);
        if (!cJSON_IsArray(r->own)) return err_set(e, ERR_INVALID, "\"tools\" is a string that is no JSON list");
        tools = r->own;
    }
    if (tools && !cJSON_IsArray(tools)) return err_set(e, ERR_INVALID, "\"tools\" must be a list");
    r->tools = tools && tools->child ? tools : NULL;
    return 0;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

static int id_read(const cJSON *v, double min, double max, int32_t *id)
{
    if (!cJSON_IsNumber(v) || v->valuedouble != floor(v->valuedouble) || v->valuedouble < min || v->valuedouble > max)
        return -1;
    *id = (int32_t)v->valuedouble;
    return 0;
}

/* What sampling said of the last n ids, those of `name`; null where it said nothing. */
static int logprobs_read(struct row *r, const cJSON *list, int n, const char *name, struct err *e)
{
    if (!list) return 0;
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INVALID, "\"logprobs\" must be a list, is %s", type_of(list));
    if (cJSON_GetArraySize(list) != n)
        return err_set(e, ERR_INVALID, "%d \"logprobs\" for %d \"%s\"", cJSON_GetArraySize(list), n, name);
    r->logprob = mem_array((size_t)r->n + 1, sizeof *r->logprob);
    int i = 0, first = r->n - n;
    for (; i < first; i++) r->logprob[i] = NAN;
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        bool null = cJSON_IsNull(v);
        if (!null && (!cJSON_IsNumber(v) || !(v->valuedouble >= -(double)FLT_MAX && v->valuedouble <= 0)))
            return err_set(e, ERR_INVALID, "logprobs[%d] is neither null nor a number up to 0", i - first);
        r->logprob[i] = null ? NAN : (float)v->valuedouble;
    }
    return 0;
}

/* Appends a list of ids to a row that has room for them. */
static int ids_append(struct row *r, const cJSON *list, const char *name, bool targets, int vocab, struct err *e)
{
    int i = 0;
    for (const cJSON *v = list->child; v; v = v->next, i++) {
        if (id_read(v, 0, vocab - 1, &r->id[r->n]))
            return err_set(e, ERR_INVALID, "%s[%d] is not a token id below %d", name, i, vocab);
        r->is_target[r->n++] = targets;
    }
    return 0;
}

/* A prompt and an answer as ids: all that is trained is there, an end of the text only if it is among them. */
static int answer_ids_read(struct row *r, const cJSON *row, const char *name, int vocab, struct err *e)
{
    const cJSON *prompt = field(row, "prompt_ids"), *answer = field(row, name);
    r->kind = ROW_IDS;
    if (!cJSON_IsArray(prompt)) return err_set(e, ERR_INVALID, "\"prompt_ids\" must be a list, is %s", type_of(prompt));
    if (!cJSON_IsArray(answer)) return err_set(e, ERR_INVALID, "\"%s\" must be a list, is %s", name, type_of(answer));
    if (!answer->child) return err_set(e, ERR_INVALID, "\"%s\" is empty", name);
    size_t room = (size_t)cJSON_GetArraySize(prompt) + (size_t)cJSON_GetArraySize(answer);
    r->id = mem_array(room, sizeof *r->id);
    r->is_target = mem_array(room, 1);
    int rc = ids_append(r, prompt, "prompt_ids", false, vocab, e);
    return rc ? rc : ids_append(r, answer, name, true, vocab, e);
}

/* Whether the row has ids of its prompt and this answer: then its texts, if it has any, are for people. */
static bool has_ids(const cJSON *row, const char *name)
{
    return field(row, "prompt_ids") && field(row, name);
}

/* ---- one function per format ------------------------------------------------------------------------------------- */

static int text_read(struct row *r, const cJSON *row, struct err *e)
{
    r->kind = ROW_TEXT;
    if (cJSON_IsString(row)) r->text = row->valuestring;
    int rc = r->text ? 0 : string_of(row, "text", true, &r->text, e);
    return rc || !is_blank(r->text) ? rc : err_set(e, ERR_INVALID, "\"text\" is empty");
}

static int completion_read(struct row *r, const cJSON *row, int vocab, struct err *e)
{
    if (has_ids(row, "completion_ids")) {
        int rc = answer_ids_read(r, row, "completion_ids", vocab, e);
        int n = rc ? 0 : cJSON_GetArraySize(field(row, "completion_ids"));
        return rc ? rc : logprobs_read(r, field(row, "logprobs"), n, "completion_ids", e);
    }
    const cJSON *prompt = field(row, "prompt"), *completion = field(row, "completion");
    if (cJSON_IsArray(prompt) && cJSON_IsArray(completion)) {
        r->kind = ROW_TURNS;
        int rc = messages_read(r, prompt, "prompt", false, e);
        if (!rc) rc = messages_read(r, completion, "completion", true, e);
        if (!rc) rc = tools_read(r, row, e);
        return rc ? rc : turns_check(r, e);
    }
    r->kind = ROW_PAIR;
    int rc = string_of(row, "prompt", true, &r->prompt, e);
    if (!rc) rc = string_of(row, "completion", true, &r->text, e);
    if (!rc && is_blank(r->text)) rc = err_set(e, ERR_INVALID, "\"completion\" is empty");
    return rc;
}

static int unpaired_read(struct row *r, const cJSON *row, int vocab, struct err *e)
{
    const cJSON *label = field(row, "label");
    if (!label) return err_set(e, ERR_INVALID, "no \"label\"");
    if (!cJSON_IsBool(label)) return err_set(e, ERR_INVALID, "\"label\" must be a boolean, is %s", type_of(label));
    r->label = cJSON_IsTrue(label) ? DATASET_DESIRABLE : DATASET_UNDESIRABLE;
    return completion_read(r, row, vocab, e);
}

/* What is answered in training; the row's other fields are not looked at. */
static int prompt_read(struct row *r, const cJSON *row, struct err *e)
{
    const cJSON *prompt = field(row, "prompt"), *list = cJSON_IsArray(prompt) ? prompt : NULL, *last;
    const char *name = list ? "prompt" : "messages";
    r->asks = true;
    if (prompt && !list) {
        r->kind = ROW_PAIR;
        r->text = "";
        return string_of(row, "prompt", true, &r->prompt, e);
    }
    if (!list && !(list = field(row, "messages"))) return err_set(e, ERR_INVALID, "no \"prompt\" and no \"messages\"");
    r->kind = ROW_TURNS;
    int rc = messages_read(r, list, name, false, e);
    if (!rc) rc = tools_read(r, row, e);
    if (rc) return rc;
    r->extra = field(row, "chat_template_kwargs");
    if (r->extra && !cJSON_IsObject(r->extra)) r->extra = NULL;
    last = cJSON_GetArrayItem(r->turns, r->n_turns - 1);
    if (strcmp(cJSON_GetStringValue(field(last, "role")), "assistant") != 0) return 0;
    return err_set(e, ERR_INVALID, "\"%s\" ends with what the assistant says, and a prompt ends before that", name);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* As they are written: time and memory are linear, where comparing objects member by member can be exponential. */
static bool same_message(const cJSON *a, const cJSON *b)
{
    char *x = cJSON_PrintUnformatted(a), *y = cJSON_PrintUnformatted(b);
    bool same = x && y && strcmp(x, y) == 0;
    cJSON_free(x);
    cJSON_free(y);
    return same;
}

/* How many messages both lists begin with. */
static int common_messages(const cJSON *a, const cJSON *b)
{
    int n = 0;
    for (a = a->child, b = b->child; a && b && same_message(a, b); a = a->next, b = b->next) n++;
    return n;
}

/* How many bytes both texts begin with: whole characters, and without a space at the end, which belongs to the answers
 * (as in TRL's extract_prompt). */
static size_t common_text(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    while (n && ((unsigned char)a[n] & 0xc0) == 0x80) n--;
    return n && a[n - 1] == ' ' ? n - 1 : n;
}

/* One answer as messages: those after the first `shared` ones, which are the prompt's, or with a prompt all. */
static int turns_answer(struct row *r, const cJSON *row, const cJSON *prompt, const char *name, int shared,
                        struct err *e)
{
    const cJSON *list = field(row, name);
    int rc = prompt ? messages_read(r, prompt, "prompt", false, e) : 0, at = 0;
    r->kind = ROW_TURNS;
    if (rc) return err_prefix(e, "\"prompt\"");
    if (!list->child) return err_set(e, ERR_INVALID, "\"%s\" is empty", name);
    for (const cJSON *m = list->child; m && !rc; m = m->next, at++) rc = message_read(r, m, at, at >= shared, e);
    if (!rc) rc = turns_check(r, e);
    if (rc) return err_prefix(e, "\"%s\"", name);
    r->extra = field(row, "chat_template_kwargs");
    if (r->extra && !cJSON_IsObject(r->extra)) r->extra = NULL;
    return tools_read(r, row, e);
}

static int text_answer(struct row *r, const cJSON *row, const char *prompt, const char *name, size_t shared,
                       struct err *e)
{
    const char *text;
    int rc = string_of(row, name, true, &text, e);
    r->kind = ROW_PAIR;
    if (rc) return rc;
    if (!prompt) r->own_prompt = mem_strndup(text, shared);
    r->prompt = prompt ? prompt : r->own_prompt;
    r->text = text + shared;
    return is_blank(r->text)
               ? err_set(e, ERR_INVALID, "\"%s\" is empty%s", name, shared ? " after what both begin with" : "")
               : 0;
}

static int ids_pair(struct row *chosen, struct row *rejected, const cJSON *row, int vocab, struct err *e)
{
    if (same_message(field(row, "chosen_ids"), field(row, "rejected_ids")))
        return err_set(e, ERR_INVALID, "\"chosen_ids\" and \"rejected_ids\" are the same");
    int rc = answer_ids_read(chosen, row, "chosen_ids", vocab, e);
    return rc ? rc : answer_ids_read(rejected, row, "rejected_ids", vocab, e);
}

int row_read_pair(struct row *chosen, struct row *rejected, const cJSON *row, int vocab, struct err *e)
{
    const cJSON *yes = field(row, "chosen"), *no = field(row, "rejected"), *prompt = field(row, "prompt");
    const char *text = NULL;
    *chosen = *rejected = (struct row){0};
    if (!cJSON_IsObject(row)) return err_set(e, ERR_INVALID, "a row must be an object, this is %s", type_of(row));
    if (has_ids(row, "chosen_ids") && field(row, "rejected_ids")) return ids_pair(chosen, rejected, row, vocab, e);
    if (!yes || !no) return err_set(e, ERR_INVALID, "no \"%s\"", yes ? "rejected" : "chosen");
    if (same_message(yes, no)) return err_set(e, ERR_INVALID, "\"chosen\" and \"rejected\" are the same");
    if (cJSON_IsArray(yes) && cJSON_IsArray(no)) {
        /* a prompt that is a text only repeats what the messages say, as in TRL */
        bool given = cJSON_IsArray(prompt);
        if (prompt && !given && !cJSON_IsString(prompt))
            return err_set(e, ERR_INVALID, "\"prompt\" must be a list of messages, is %s", type_of(prompt));
        int shared = given ? 0 : common_messages(yes, no);
        int rc = turns_answer(chosen, row, given ? prompt : NULL, "chosen", shared, e);
        return rc ? rc : turns_answer(rejected, row, given ? prompt : NULL, "rejected", shared, e);
    }
    if (cJSON_IsArray(yes) || cJSON_IsArray(no))
        return err_set(e, ERR_INVALID, "\"chosen\" is %s and \"rejected\" %s: both must be texts, or lists of messages",
                       type_of(yes), type_of(no));
    int rc = string_of(row, "prompt", false, &text, e);
    size_t shared =
        !text && cJSON_IsString(yes) && cJSON_IsString(no) ? common_text(yes->valuestring, no->valuestring) : 0;
    if (!rc) rc = text_answer(chosen, row, text, "chosen", shared, e);
    return rc ? rc : text_answer(rejected, row, text, "rejected", shared, e);
}

/* ---- other formats ----------------------------------------------------------------------------------------------- */

static int history_read(struct row *r, const cJSON *history, struct err *e)
{
    if (history && !cJSON_IsArray(history))
        return err_set(e, ERR_INVALID, "\"history\" must be a list, is %s", type_of(history));
    const cJSON *turn;
    int i = 0;
    cJSON_ArrayForEach(turn, history)
    {
        const cJSON *question = cJSON_GetArrayItem(turn, 0), *answer = cJSON_GetArrayItem(turn, 1);
        if (!cJSON_IsArray(turn) || cJSON_GetArraySize(turn) != 2 || !cJSON_IsString(question) ||
            !cJSON_IsString(answer))
            return err_set(e, ERR_INVALID, "history[%d] must be two strings: a question and its answer", i);
        turn_add(r, "user", question->valuestring, false);
        turn_add(r, "assistant", answer->valuestring, !is_blank(answer->valuestring));
        i++;
    }
    return 0;
}

static int alpaca_read(struct row *r, const cJSON *row, struct err *e)
{
    const char *input, *output, *system;
    r->kind = ROW_ALPACA;
    int rc = string_of(row, "instruction", true, &r->instruction, e);
    if (!rc) rc = string_of(row, "input", false, &input, e);
    if (!rc) rc = string_of(row, "output", true, &output, e);
    if (!rc) rc = string_of(row, "system", false, &system, e);
    if (rc) return rc;
    if (is_blank(output)) return err_set(e, ERR_INVALID, "\"output\" is empty");
    r->alpaca_in = is_blank(input) ? "" : input;
    if (is_blank(r->instruction) && !*r->alpaca_in)
        return err_set(e, ERR_INVALID, "\"instruction\" and \"input\" are empty");
    if (!is_blank(system)) turn_add(r, "system", system, false);
    if ((rc = history_read(r, field(row, "history"), e))) return rc;
    struct buf question = {0};
    buf_printf(&question, "%s%s%s", r->instruction, *r->instruction && *r->alpaca_in ? "\n" : "", r->alpaca_in);
    turn_add(r, "user", question.data, false);
    buf_free(&question);
    turn_add(r, "assistant", output, true);
    return 0;
}

static int chat_read(struct row *r, const cJSON *row, struct err *e)
{
    const cJSON *list = field(row, "messages");
    r->kind = ROW_TURNS;
    int rc = messages_read(r, list ? list : conversation(row), list ? "messages" : "conversations", true, e);
    if (!rc) rc = tools_read(r, row, e);
    r->extra = field(row, "chat_template_kwargs");
    if (r->extra && !cJSON_IsObject(r->extra)) r->extra = NULL;
    return rc ? rc : turns_check(r, e);
}

static const struct {
    const char *from, *role;
} speakers[] = {
    {"human", "user"},        {"user", "user"},       {"gpt", "assistant"},           {"assistant", "assistant"},
    {"chatgpt", "assistant"}, {"model", "assistant"}, {"function_call", "assistant"}, {"observation", "tool"},
    {"tool", "tool"},         {"system", "system"},
};

static int speaker_read(struct row *r, const cJSON *turn, int at, struct err *e)
{
    const char *from, *value, *role = NULL;
    if (!cJSON_IsObject(turn))
        return err_set(e, ERR_INVALID, "conversations[%d] must be an object, is %s", at, type_of(turn));
    int rc = string_of(turn, "from", true, &from, e);
    if (!rc) rc = string_of(turn, "value", true, &value, e);
    if (rc) return err_prefix(e, "conversations[%d]", at);
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers && !role; i++)
        if (strcmp(from, speakers[i].from) == 0) role = speakers[i].role;
    if (!role)
        return err_set(e, ERR_INVALID,
                       "conversations[%d].from is \"%.*s\", not human, gpt, system, function_call or observation", at,
                       shown(from), from);
    bool trained = strcmp(role, "assistant") == 0;
    if (trained && is_blank(value)) return err_set(e, ERR_INVALID, "conversations[%d] is an empty answer", at);
    turn_add(r, role, value, trained);
    return 0;
}

static int sharegpt_read(struct row *r, const cJSON *row, struct err *e)
{
    const cJSON *list = conversation(row);
    const char *system;
    r->kind = ROW_TURNS;
    if (!list) return err_set(e, ERR_INVALID, "no \"conversations\"");
    if (!cJSON_IsArray(list)) return err_set(e, ERR_INVALID, "\"conversations\" must be a list, is %s", type_of(list));
    if (!list->child) return err_set(e, ERR_INVALID, "\"conversations\" is empty");
    int rc = string_of(row, "system", false, &system, e), at = 0;
    if (!rc && !is_blank(system)) turn_add(r, "system", system, false);
    for (const cJSON *turn = list->child; turn && !rc; turn = turn->next) rc = speaker_read(r, turn, at++, e);
    if (!rc) rc = tools_read(r, row, e);
    return rc ? rc : turns_check(r, e);
}

static int ids_read(struct row *r, const cJSON *row, int vocab, struct err *e)
{
    const cJSON *ids = field(row, "input_ids"), *labels = field(row, "labels");
    r->kind = ROW_IDS;
    if (!ids) return err_set(e, ERR_INVALID, "no \"input_ids\"");
    if (!cJSON_IsArray(ids)) return err_set(e, ERR_INVALID, "\"input_ids\" must be a list, is %s", type_of(ids));
    if (labels && !cJSON_IsArray(labels))
        return err_set(e, ERR_INVALID, "\"labels\" must be a list, is %s", type_of(labels));
    int n = cJSON_GetArraySize(ids);
    if (labels && cJSON_GetArraySize(labels) != n)
        return err_set(e, ERR_INVALID, "%d \"labels\" for %d \"input_ids\"", cJSON_GetArraySize(labels), n);
    r->id = mem_array((size_t)n + 1, sizeof *r->id);
    r->is_target = mem_array((size_t)n + 1, 1);
    const cJSON *label = labels ? labels->child : NULL;
    for (const cJSON *v = ids->child; v; v = v->next) {
        int32_t target;
        if (id_read(v, 0, vocab - 1, &r->id[r->n]))
            return err_set(e, ERR_INVALID, "input_ids[%d] is not a token id below %d", r->n, vocab);
        target = r->id[r->n];
        if (label && (id_read(label, -100, vocab - 1, &target) || (target != r->id[r->n] && target != -100)))
            return err_set(e, ERR_INVALID, "labels[%d] is neither input_ids[%d] nor -100", r->n, r->n);
        r->is_target[r->n++] = target >= 0;
        if (label) label = label->next;
    }
    return logprobs_read(r, field(row, "logprobs"), n, "input_ids", e);
}

int row_read(struct row *r, const cJSON *row, enum dataset_format format, int vocab, struct err *e)
{
    *r = (struct row){0};
    if (!cJSON_IsObject(row) && !(format == DATASET_TEXT && cJSON_IsString(row)))
        return err_set(e, ERR_INVALID, "a row must be an object, this is %s", type_of(row));
    switch (format) {
    case DATASET_TEXT: return text_read(r, row, e);
    case DATASET_COMPLETION: return completion_read(r, row, vocab, e);
    case DATASET_ALPACA: return alpaca_read(r, row, e);
    case DATASET_MESSAGES: return chat_read(r, row, e);
    case DATASET_SHAREGPT: return sharegpt_read(r, row, e);
    case DATASET_TOKENS: return ids_read(r, row, vocab, e);
    case DATASET_UNPAIRED: return unpaired_read(r, row, vocab, e);
    case DATASET_PROMPTS: return prompt_read(r, row, e);
    case DATASET_PREFERENCE: /* row_read_pair */
    case DATASET_AUTO: break;
    }
    return err_set(e, ERR_INVALID, "not in a known format");
}
