/* Fuzzes chat templates: a template, and after a NUL a JSON object with messages, tools and extra.  What renders must
 *   - be valid UTF-8, and render to the same bytes again (unless it asks for the time);
 *   - have spans within the page, in order, of the assistant's messages.
 * What does not must say why. */
#include "engine/base/check.h"
#include "engine/data/json.h"
#include "engine/template/chat_template.h"
#include "engine/tokenizer/text.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const char CONVERSATION[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\" a\\nb \"},"
    "{\"role\":\"assistant\",\"content\":\"\xc3\xa9<think>x</think>y\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
    "\"arguments\":{\"k\":1.5}}}]},{\"role\":\"tool\",\"content\":\"t\"},{\"role\":\"assistant\",\"content\":\"z\"}],"
    "\"extra\":{\"name\":\"Ada\",\"items\":[3,1,2],\"d\":{\"a\":1},\"eos_token\":\"</s>\",\"bos_token\":\"<s>\"}}";

static void check_utf8(const struct buf *page)
{
    for (size_t i = 0; i < page->len;) {
        int n = utf8_step(page->data + i, page->len - i);
        CHECK(n > 0);
        i += (size_t)n;
    }
}

static void check_spans(const struct chat_spans *spans, const struct buf *page, const cJSON *messages)
{
    size_t before = 0;
    for (int i = 0; i < spans->n; i++) {
        struct chat_span s = spans->v[i];
        CHECK(s.start >= before && s.start <= s.end && s.end <= page->len);
        const cJSON *m = cJSON_GetArrayItem(messages, s.message);
        const cJSON *role = cJSON_GetObjectItemCaseSensitive(m, "role");
        CHECK(cJSON_IsString(role) && strcmp(role->valuestring, "assistant") == 0);
        before = s.end;
    }
}

static void check_render(const struct chat_template *t, const struct chat_input *in, bool timeless)
{
    struct err e = {0};
    struct buf page = {0}, again = {0};
    struct chat_spans spans = {0};
    if (chat_template_render(t, in, &page, NULL, &e)) {
        CHECK(e.code && e.msg[0] && page.len == 0);
        return;
    }
    check_utf8(&page);
    bool told = !in->continue_final_message && !chat_template_render(t, in, &again, &spans, &e);
    if (told && timeless) CHECK(again.len == page.len && (!page.len || memcmp(again.data, page.data, page.len) == 0));
    if (told) check_spans(&spans, &again, in->messages);
    CHECK(told || spans.n == 0);
    free(spans.v);
    buf_free(&page);
    buf_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    char *source = malloc(n ? n : 1);
    if (n) memcpy(source, data, n);
    struct err e = {0};
    cJSON *request = end ? row_parse((const char *)end + 1, size - n - 1, &e) : NULL;
    if (!cJSON_IsObject(request)) {
        cJSON_Delete(request);
        request = cJSON_Parse(CONVERSATION);
    }
    e = (struct err){0};
    struct chat_template *t = chat_template_parse(source, n, &e);
    CHECK(t || (e.code == ERR_INVALID && e.msg[0]));
    free(source); /* the template must not need it */
    bool timeless = !memmem(data, n, "strftime", 8);
    for (int k = 0; t && k < 3; k++) {
        struct chat_input in = {.messages = cJSON_GetObjectItem(request, "messages"),
                                .tools = cJSON_GetObjectItem(request, "tools"),
                                .extra = cJSON_GetObjectItem(request, "extra"),
                                .add_generation_prompt = k == 1,
                                .continue_final_message = k == 2};
        check_render(t, &in, timeless);
    }
    chat_template_free(t);
    cJSON_Delete(request);
    return 0;
}
