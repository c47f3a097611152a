/* POST /v1/embeddings: OpenAI's embeddings from the served model. */
#include "server/api/embed_exchange.h"
#include "server/api/routes.h"
#include "server/json/json.h"
#include "server/store/data_dir.h"

#include <string.h>

static bool write_openai(void *arg, struct buf *out)
{
    struct embed_exchange *x = arg;
    const struct embed_params *p = &x->params;
    unsigned long long n = x->n_tokens;
    if (!x->written && !x->written_values) {
        char id[DATA_ID_MAX];
        data_id(id, "embd-");
        buf_printf(out, "{\"object\":\"list\",\"id\":\"%s\",\"created\":%lld,\"model\":", id,
                   (long long)data_now_ms() / 1000);
        json_put_string(out, x->model.name, strlen(x->model.name));
        buf_str(out, ",\"data\":[");
    }
    while (x->written < p->n && out->len < REPLY_CHUNK_BYTES) {
        if (!x->written_values)
            buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", x->written ? "," : "",
                       x->written);
        if (embed_put_values(x, out)) buf_char(out, '}');
    }
    if (x->written < p->n) return true;
    buf_printf(out, "],\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu}}", n, n);
    return false;
}

static void answer(struct embed_exchange *x)
{
    embed_reply_chunks(x, write_openai);
}

void api_embeddings(struct http_req *req)
{
    embed_exchange_begin(req, EMBED_OPENAI, answer);
}
