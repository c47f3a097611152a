#include "server/bridge/encode.h"

/* What one of the two functions below tokenises. */
struct source {
    const char *text;
    size_t n;                         /* bytes of all texts */
    const struct encode_input *input; /* NULL: `text` */
    struct buf *types;
};

static int encode(const struct tokenizer *tk, const struct source *s, unsigned flags, struct tokens *out,
                  struct reservation *held, struct err *e)
{
    struct reservation work = {0};
    e->code = 0;
    if (!reserve(&work, s->n * ENCODE_BYTES, "tokenising the text", e)) return e->code;
    int rc = s->input ? tokenizer_encode_input(tk, s->input, flags, out, s->types, e)
                      : tokenizer_encode(tk, s->text, s->n, flags, out, e);
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

int encode_reserved(const struct tokenizer *tk, const char *text, size_t n, unsigned flags, struct tokens *out,
                    struct reservation *held, struct err *e)
{
    return encode(tk, &(struct source){.text = text, .n = n}, flags, out, held, e);
}

int encode_input_reserved(const struct tokenizer *tk, const struct encode_input *in, unsigned flags, struct tokens *out,
                          struct buf *types, struct reservation *held, struct err *e)
{
    return encode(tk, &(struct source){.n = in->n_text + in->n_pair, .input = in, .types = types}, flags, out, held, e);
}
