/* Separates the thoughts that an answer begins with, <think> ... </think> or the marks of another format, from the
 * rest, while it is generated.  Pure: any one thread. */
#ifndef TANDEM_SERVER_API_THINKING_H
#define TANDEM_SERVER_API_THINKING_H

#include "engine/base/buf.h"
#include "server/api/output_formats.h"

#include <stdbool.h>
#include <stddef.h>

/* thinking_begin; thinking_free. */
struct thinking {
    enum { THINKING_UNDECIDED, THINKING_INSIDE, THINKING_BEHIND, THINKING_OVER } state;
    const struct reasoning_marks *marks;
    bool begun;      /* there were thoughts */
    struct buf held; /* it may be a part of a mark, or white space before one */
};

/* A format with marks, or REASONING_NONE: all is text.  inside: the prompt ended with the first mark, and the answer
 * begins with thoughts. */
void thinking_begin(struct thinking *, enum reasoning_format, bool inside);
/* Appends the next n bytes of the answer to *thoughts or *text, without the marks and the white space around them;
 * last: what was held back, too.  How the answer is split between calls changes nothing. */
void thinking_feed(struct thinking *, const char *bytes, size_t n, bool last, struct buf *thoughts, struct buf *text);
void thinking_free(struct thinking *);

#endif
