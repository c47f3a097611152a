/* Server-sent events out of bytes as they come (WHATWG HTML, "Interpreting an event stream"): lines end in LF, CR LF or
 * CR, `data:` lines of one event are joined by LF, a blank line ends it; comments and other fields are dropped, but
 * `event: error` is told.  Pure; one reader per answer. */
#ifndef TANDEM_LOADTEST_SSE_H
#define TANDEM_LOADTEST_SSE_H

#include "engine/base/buf.h"

#include <stdbool.h>

enum { SSE_EVENT_MAX = 4 << 20 }; /* bytes of one line, or of an event's data */

struct sse_reader {
    struct buf line, data;
    bool has_data, error, after_cr;
    void (*on_event)(void *user, const char *data, size_t n, bool error); /* data has a NUL after it */
    void *user;
};

/* False when a line or an event is longer than SSE_EVENT_MAX: the bytes are no stream of events. */
bool sse_read(struct sse_reader *, const char *p, size_t n);
void sse_reader_free(struct sse_reader *);

#endif
