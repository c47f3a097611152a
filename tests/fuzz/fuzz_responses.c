/* Fuzzes server/api/responses_params.c with bodies.
 *   - What one becomes is JSON: an object with messages that chat_format.c accepts; the answer repeats JSON, too.
 *   - What was reserved is enough.
 *   - A refusal has a message. */
#include "engine/base/check.h"
#include "server/api/chat_format.h"
#include "server/api/responses_params.h"
#include "server/json/json.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool is_deep(const struct err *e)
{
    return strstr(e->msg, "deep") || strstr(e->msg, "nest");
}

static void check_chat(const struct buf *text)
{
    struct err e = {0};
    cJSON *tree = json_parse(text->data, text->len, &e);
    cJSON *messages = cJSON_GetObjectItemCaseSensitive(tree, "messages");
    CHECK(tree ? cJSON_IsArray(messages) : is_deep(&e));
    CHECK(!tree || chat_messages_check(messages, &e) == 0);
    json_free(tree);
}

static void check_echo(const struct buf *echo)
{
    struct err e = {0};
    struct buf whole = {0};
    buf_printf(&whole, "{\"id\":1%s}", echo->data);
    cJSON *tree = json_parse(whole.data, whole.len, &e);
    CHECK(tree ? cJSON_IsObject(tree) : is_deep(&e));
    json_free(tree);
    buf_free(&whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct responses_request r;
    struct buf text;
    struct reservation held;
    struct err e = {0};
    const char *param;
    char *body = malloc(n + 1); /* exactly as long as it is, and a NUL */
    CHECK(body);
    memcpy(body, data, n);
    body[n] = 0;
    if (responses_to_chat(body, n, &text, &held, &r, &e, &param)) {
        CHECK(text.cap <= held.bytes && r.echo.cap <= r.held.bytes);
        check_chat(&text);
        check_echo(&r.echo);
        for (size_t i = 0; i < r.n_tools; i++) CHECK(responses_tool_find(&r, r.tools[i].flat) == &r.tools[i]);
    } else {
        CHECK(e.code && *e.msg);
    }
    buf_free(&text);
    reservation_free(&held);
    responses_request_free(&r);
    free(body);
    return 0;
}
