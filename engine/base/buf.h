/* A growing byte buffer.  Zero-initialise, append, buf_free.  `data` is always NUL-terminated after an append. */
#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; /* owned; NULL until the first append */
    size_t len; /* bytes used, the NUL not counted */
    size_t cap;
};

void buf_append(struct buf *b, const void *p, size_t n);
/* For sizes controlled by a client.  @return false: out of memory, and the buffer is unchanged. */
__attribute__((warn_unused_result)) bool buf_try_append(struct buf *b, const void *p, size_t n);
/* Reserves space for n more bytes, so that appending them cannot fail.  @return false: out of memory. */
__attribute__((warn_unused_result)) bool buf_try_room(struct buf *b, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_char(struct buf *b, char c);
__attribute__((format(printf, 2, 3))) void buf_printf(struct buf *b, const char *fmt, ...);
void buf_decimal(struct buf *b, int64_t value); /* "%lld", without the cost of printf */
void buf_clear(struct buf *b);                  /* keeps the memory */
void buf_free(struct buf *b);

#endif
