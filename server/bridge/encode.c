#include "server/bridge/encode.h"

int encode_reserved(const struct tokenizer *tk, const char *text, size_t n, unsigned flags, struct tokens *out,
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
