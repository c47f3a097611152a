#include "engine/base/buf.h"

#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put(struct buf *b, const void *p, size_t n)
{
    if (n) memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void buf_append(struct buf *b, const void *p, size_t n)
{
    mem_grow(&b->data, &b->cap, b->len + n + 1, 1);
    put(b, p, n);
}

bool buf_try_append(struct buf *b, const void *p, size_t n)
{
    if (!mem_try_grow(&b->data, &b->cap, b->len + n + 1, 1)) return false;
    put(b, p, n);
    return true;
}

bool buf_try_room(struct buf *b, size_t n)
{
    return mem_try_grow(&b->data, &b->cap, b->len + n + 1, 1);
}

void buf_str(struct buf *b, const char *s)
{
    buf_append(b, s, strlen(s));
}

void buf_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n > 0) {
        mem_grow(&b->data, &b->cap, b->len + (size_t)n + 1, 1);
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_decimal(struct buf *b, int64_t value)
{
    char digits[20]; /* of 2^63, and a sign */
    char *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? -(uint64_t)value : (uint64_t)value;
    do *--at = (char)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0) *--at = '-';
    buf_append(b, at, (size_t)(digits + sizeof digits - at));
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

void buf_free(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}
