/* Fuzzes server/api/messages_params.c.  The first byte says whether tokens are only counted, the rest is a body.
 *   - What it becomes is JSON: an object with messages that chat_format.c accepts.
 *   - A refusal has a message. */
#include "engine/base/check.h"
#include "server/api/chat_format.h"
#include "server/api/messages_params.h"
#include "server/json/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct messages_chat chat;
    struct err e = {0};
    if (!n) return 0;
    char *body = malloc(n); /* exactly as long as it is, and a NUL */
    CHECK(body);
    memcpy(body, data + 1, n - 1);
    body[n - 1] = 0;
    if (messages_to_chat(body, n - 1, data[0] & 1, &chat, &e)) {
        CHECK(chat.text.cap <= chat.held.bytes);
        cJSON *tree = json_parse(chat.text.data, chat.text.len, &e);
        cJSON *messages = cJSON_GetObjectItemCaseSensitive(tree, "messages");
        CHECK(tree ? cJSON_IsArray(messages) : strstr(e.msg, "deep") || strstr(e.msg, "nest"));
        CHECK(!tree || chat_messages_check(messages, &e) == 0);
        json_free(tree);
    } else {
        CHECK(e.code && *e.msg);
    }
    messages_chat_free(&chat);
    free(body);
    return 0;
}
