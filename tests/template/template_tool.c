/* Chat templates behind a pipe, for test_templates.py.  One request per line, a JSON object:
 *
 *   {"template": source, or "dir": a model's directory, or neither: no template,
 *    "messages": [...], "tools": [...], "extra": {...}, "prompt": bool, "continue": bool, "spans": bool,
 *    "adapt": bool}
 *
 * Answer: "ok N start end message start end message...", a newline and N bytes of text; or "err" and a message. */
#include "engine/base/mem.h"
#include "engine/data/json.h"
#include "engine/template/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct chat_template *template_of(const cJSON *request, struct err *e)
{
    const cJSON *source = cJSON_GetObjectItem(request, "template"), *dir = cJSON_GetObjectItem(request, "dir");
    if (cJSON_IsString(dir)) return chat_template_load(dir->valuestring, e);
    return cJSON_IsString(source) ? chat_template_parse(source->valuestring, strlen(source->valuestring), e) : NULL;
}

static bool flag(const cJSON *request, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItem(request, name));
}

static void answer(const cJSON *request)
{
    struct err e = {0};
    struct buf out = {0};
    struct chat_spans spans = {0};
    struct chat_input in = {.messages = cJSON_GetObjectItem(request, "messages"),
                            .tools = cJSON_GetObjectItem(request, "tools"),
                            .extra = cJSON_GetObjectItem(request, "extra"),
                            .add_generation_prompt = flag(request, "prompt"),
                            .continue_final_message = flag(request, "continue"),
                            .adapt = flag(request, "adapt")};
    struct chat_template *t = template_of(request, &e);
    if (!e.code) chat_template_render(t, &in, &out, flag(request, "spans") ? &spans : NULL, &e);
    if (e.code) {
        printf("err %s\n", e.msg);
    } else {
        printf("ok %zu", out.len);
        for (int i = 0; i < spans.n; i++) printf(" %zu %zu %d", spans.v[i].start, spans.v[i].end, spans.v[i].message);
        printf("\n");
        fwrite(out.data, 1, out.len, stdout);
    }
    fflush(stdout);
    free(spans.v);
    buf_free(&out);
    chat_template_free(t);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        struct err e = {0};
        cJSON *request = row_parse(line, strlen(line), &e); /* numbers keep their literals, as in the server */
        if (!cJSON_IsObject(request)) return 1;
        answer(request);
        cJSON_Delete(request);
    }
    free(line);
    return 0;
}
