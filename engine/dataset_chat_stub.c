/* Stands in for chat_template.c until that exists: the plain layout only. */
#include "engine/chat_template.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

uint64_t chat_template_identity(const struct chat_template *t)
{
    return 0;
}

int chat_template_render(const struct chat_template *t, const struct chat_input *in, struct buf *out,
                         struct chat_spans *spans, struct err *e)
{
    if (t) return err_set(e, ERR_UNSUPPORTED, "chat templates are not built in yet");
    const cJSON *m;
    int i = 0;
    cJSON_ArrayForEach(m, in->messages)
    {
        const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "role"));
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "content"));
        buf_printf(out, "%s:", role);
        size_t start = out->len;
        buf_printf(out, " %s\n", content ? content : "");
        if (spans && !strcmp(role, "assistant")) {
            spans->v = mem_resize(spans->v, (size_t)spans->n + 1, sizeof *spans->v);
            spans->v[spans->n++] = (struct chat_span){start, out->len, i};
        }
        i++;
    }
    return 0;
}
