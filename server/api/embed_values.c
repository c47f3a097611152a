/* The values of a vector in JSON (embed_exchange.h). */
#include "server/api/embed_exchange.h"

enum { VALUES_PIECE = 1024 }; /* values written at a time: takes less than a millisecond */

static void put_base64(struct buf *out, const void *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                        i + 2 < n ? digits[v & 63] : '='};
        buf_append(out, four, 4);
    }
}

bool embed_put_values(struct embed_exchange *x, struct buf *out)
{
    const struct embed_params *p = &x->params;
    const float *v = embed_vector(x, x->written);
    int from = x->written_values, n = p->dimensions - from;
    if (n > VALUES_PIECE) n = VALUES_PIECE / 3 * 3; /* base64 takes three bytes at a time */
    if (!from) buf_char(out, p->base64 ? '"' : '[');
    if (p->base64) put_base64(out, v + from, (size_t)n * sizeof *v);
    for (int i = from; i < from + n && !p->base64; i++) buf_printf(out, i ? ",%.9g" : "%.9g", (double)v[i]);
    x->written_values += n;
    if (x->written_values < p->dimensions) return false;
    buf_char(out, p->base64 ? '"' : ']');
    x->written_values = 0;
    x->written++;
    return true;
}
