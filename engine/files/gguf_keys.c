#include "engine/files/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEY_MAX = 128 };

static void arch_key(const struct gguf_keys *r, const char *name, char out[KEY_MAX])
{
    snprintf(out, KEY_MAX, "%s.%s", r->arch->name, name);
}

bool gguf_keys_number(struct gguf_keys *r, const char *name, double *out)
{
    char key[KEY_MAX];
    arch_key(r, name, key);
    const struct gguf_key *k = gguf_find(r->g, key);
    if (!k || r->rc) return false;
    if (k->of == GGUF_TEXT || (k->type == GGUF_ARRAY && !k->n)) {
        r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is not a number", key);
        return false;
    }
    *out = gguf_element(k, 0);
    for (uint64_t i = 1; i < k->n && !r->rc; i++)
        if (gguf_element(k, i) != *out)
            r->rc = err_set(r->e, ERR_UNSUPPORTED, "GGUF: key %s differs between layers", key);
    if (!r->rc && !isfinite(*out)) r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is not a finite number", key);
    return !r->rc;
}

double gguf_keys_needed(struct gguf_keys *r, const char *name)
{
    double v = 0;
    char key[KEY_MAX];
    arch_key(r, name, key);
    if (!gguf_keys_number(r, name, &v) && !r->rc) r->rc = err_set(r->e, ERR_INVALID, "GGUF: key %s is missing", key);
    return v;
}

bool gguf_keys_text(const struct gguf_keys *r, const char *name, struct gguf_text *out)
{
    char key[KEY_MAX];
    arch_key(r, name, key);
    return gguf_text(r->g, key, out);
}

const struct gguf_key *gguf_keys_array(const struct gguf_keys *r, const char *name)
{
    char key[KEY_MAX];
    arch_key(r, name, key);
    const struct gguf_key *k = gguf_find(r->g, key);
    return k && k->type == GGUF_ARRAY && k->of != GGUF_TEXT ? k : NULL;
}

/* ---- writing JSON ------------------------------------------------------------------------------------------------ */

void gguf_put_text(struct buf *out, struct gguf_text t)
{
    buf_char(out, '"');
    for (size_t i = 0; i < t.n; i++) {
        unsigned char c = (unsigned char)t.s[i];
        if (c == '"' || c == '\\')
            buf_char(out, '\\'), buf_char(out, (char)c);
        else if (c < 0x20)
            buf_printf(out, "\\u%04x", c);
        else
            buf_char(out, (char)c);
    }
    buf_char(out, '"');
}

void gguf_put(struct buf *out, const char *name, double value)
{
    char digits[40];
    int precision = (double)(float)value == value ? 6 : 17;
    do snprintf(digits, sizeof digits, "%.*g", precision, value);
    while (precision < 9 && strtof(digits, NULL) != (float)value && ++precision);
    buf_printf(out, ",\n\"%s\":%s", name, digits);
}

void gguf_put_if(struct gguf_keys *r, struct buf *out, const char *key, const char *name)
{
    double v;
    if (gguf_keys_number(r, key, &v)) gguf_put(out, name, v);
}

void gguf_put_needed(struct gguf_keys *r, struct buf *out, const char *key, const char *name)
{
    gguf_put(out, name, gguf_keys_needed(r, key));
}

void gguf_put_flag(struct buf *out, const char *name, bool value)
{
    buf_printf(out, ",\n\"%s\":%s", name, value ? "true" : "false");
}
