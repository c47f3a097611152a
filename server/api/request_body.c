/* Bodies of JSON and the memory they take (request_body.h). */
#include "server/api/request_body.h"

#include "server/api/app.h"
#include "server/json/json.h"

enum { FREE_INLINE = 256 * 1024 /* bytes of a tree; some thousand nodes */ };

int body_encode(const struct tokenizer *tk, const char *text, size_t n, unsigned flags, struct tokens *out,
                struct reservation *held, struct err *e)
{
    struct reservation work = {0};
    e->code = 0;
    if (!reserve(&work, n * ENCODE_BYTES, "tokenising the text", e)) return e->code;
    int rc = tokenizer_encode(tk, text, n, flags, out, e);
    if (rc && !e->code) err_set(e, ERR_INVALID, "the text cannot be tokenised");
    size_t bytes = out->cap * ENCODE_TOKEN;
    if (bytes > work.bytes && !reserve(&work, bytes - work.bytes, "the tokens", e)) rc = e->code;
    if (rc) {
        tokens_free(out);
        reservation_free(&work);
        return e->code;
    }
    reservation_shrink(&work, work.bytes - bytes);
    held->bytes += bytes;
    return 0;
}

bool body_reply_memory(struct app *app, struct http_req *req, const struct err *e)
{
    int status = reservation_status(e, 0);
    if (status == 503) admission_reply_memory(app, req, e->msg);
    if (status == 413) {
        metrics_reject(&app->metrics, REJECT_MEMORY);
        http_reply_error(req, 413, "validation", "%s", e->msg);
    }
    return status != 0;
}

static void work_free(void *tree)
{
    json_free(tree);
    reservation_trim();
}

static void after_free(void *tree)
{
    (void)tree;
}

void body_free_json(struct bridge *b, uint64_t client, cJSON *tree)
{
    if (json_reserved(tree) > FREE_INLINE)
        bridge_work(b, client, work_free, after_free, tree);
    else
        json_free(tree);
}
