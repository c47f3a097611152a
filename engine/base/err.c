#include "engine/base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef err_set /* scripts/lint.h */
#undef err_prefix

int err_set(struct err *e, int code, const char *fmt, ...)
{
    if (!e) return code;
    e->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    /* names in files and requests are untrusted: control characters must not break the line or reach a terminal */
    for (char *p = e->msg; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = '?';
    return code;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e) return ERR_INVALID;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : (size_t)n, left = at + 3 < sizeof e->msg ? sizeof e->msg - at - 3 : 0;
    if (left) snprintf(e->msg + at, sizeof e->msg - at, ": %.*s", (int)left, old); /* truncated at the end */
    return e->code;
}
