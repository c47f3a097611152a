#include "server/cli/conversation.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void conversation_free(struct conversation *c)
{
    cJSON_Delete(c->messages);
    c->messages = NULL;
    buf_free(&c->text);
}

bool conversation_has_turns(const struct conversation *c)
{
    return c->chat || c->plain;
}

static cJSON *messages(struct conversation *c)
{
    if (!c->messages) c->messages = cJSON_CreateArray();
    return c->messages;
}

static bool has_system(struct conversation *c)
{
    const cJSON *role = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(messages(c), 0), "role");
    return cJSON_IsString(role) && strcmp(role->valuestring, "system") == 0;
}

/* @return a copy, owned by the caller, with U+FFFD for each NUL, which some tokens contain but a message cannot. */
static char *copy_text(const char *text, size_t n)
{
    struct buf out = {0};
    buf_str(&out, "");
    for (size_t i = 0; i < n; i++) {
        if (text[i])
            buf_char(&out, text[i]);
        else
            buf_str(&out, "\xef\xbf\xbd");
    }
    return out.data;
}

static cJSON *new_message(const char *role, const char *text)
{
    cJSON *m = cJSON_CreateObject();
    cJSON_AddStringToObject(m, "role", role);
    cJSON_AddStringToObject(m, "content", text);
    return m;
}

void conversation_reset(struct conversation *c)
{
    int keep = has_system(c);
    while (cJSON_GetArraySize(messages(c)) > keep) cJSON_DeleteItemFromArray(c->messages, keep);
    buf_clear(&c->text);
}

void conversation_system(struct conversation *c, const char *text)
{
    if (!conversation_has_turns(c)) return;
    if (has_system(c)) cJSON_DeleteItemFromArray(c->messages, 0);
    if (text && *text) cJSON_InsertItemInArray(messages(c), 0, new_message("system", text));
}

void conversation_user(struct conversation *c, const char *text, size_t n)
{
    char *copy = copy_text(text, n);
    if (conversation_has_turns(c)) {
        cJSON_AddItemToArray(messages(c), new_message("user", copy));
    } else if (n) {
        buf_clear(&c->text);
        buf_str(&c->text, copy);
    }
    free(copy);
}

void conversation_assistant(struct conversation *c, const char *text, size_t n)
{
    char *copy = copy_text(text, n);
    if (conversation_has_turns(c)) {
        cJSON_AddItemToArray(messages(c), new_message("assistant", copy));
    } else {
        buf_str(&c->text, copy);
    }
    free(copy);
}

void conversation_undo(struct conversation *c)
{
    int n = cJSON_GetArraySize(messages(c));
    if (n > has_system(c)) cJSON_DeleteItemFromArray(c->messages, n - 1);
}

static int encode(struct conversation *c, struct tokens *out, struct err *e)
{
    const struct buf *page = &c->text;
    struct buf rendered = {0};
    int rc = 0;
    out->n = 0;
    if (conversation_has_turns(c)) {
        const struct chat_input in = {.messages = messages(c), .add_generation_prompt = true};
        rc = chat_template_render(c->chat, &in, &rendered, NULL, e);
        page = &rendered;
    }
    /* a template writes the begin-of-text tokens itself */
    if (!rc)
        rc = tokenizer_encode(c->tokenizer, page->data ? page->data : "", page->len, c->chat ? 0 : TOKENIZE_SPECIAL,
                              out, e);
    buf_free(&rendered);
    return rc;
}

/* Removes the oldest turn: one message, and the answers to it. */
static int forget_turn(struct conversation *c)
{
    int first = has_system(c), n = 0;
    const cJSON *role;
    do {
        cJSON_DeleteItemFromArray(c->messages, first);
        n++;
        role = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(c->messages, first), "role");
    } while (cJSON_IsString(role) && strcmp(role->valuestring, "user") != 0);
    return n;
}

int32_t *conversation_prompt(struct conversation *c, int most, int *n, int *forgotten, struct err *e)
{
    struct tokens tokens = {0};
    int32_t *ids = NULL;
    *forgotten = 0;
    int rc = encode(c, &tokens, e);
    while (!rc && tokens.n > (size_t)most && cJSON_GetArraySize(messages(c)) > has_system(c) + 1) {
        *forgotten += forget_turn(c);
        rc = encode(c, &tokens, e);
    }
    if (!rc && (tokens.n < 1 || tokens.n > (size_t)most))
        rc = err_set(e, ERR_INVALID, "this is %zu tokens long; there is room for 1 to %d", tokens.n, most);
    if (!rc) {
        ids = mem_array(tokens.n, sizeof *ids);
        for (size_t i = 0; i < tokens.n; i++) ids[i] = tokens.v[i].id;
        *n = (int)tokens.n;
    }
    tokens_free(&tokens);
    return ids;
}
