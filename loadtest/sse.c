#include "loadtest/sse.h"

#include <string.h>

static const char *value_of(const struct buf *line, const char *field)
{
    size_t n = strlen(field);
    if (line->len < n || memcmp(line->data, field, n)) return NULL;
    if (line->len == n) return line->data + n;
    if (line->data[n] != ':') return NULL;
    return line->data + n + 1 + (line->data[n + 1] == ' ');
}

static bool end_line(struct sse_reader *r)
{
    const char *value;
    if (!r->line.len) {
        if (r->has_data) r->on_event(r->user, r->data.data ? r->data.data : "", r->data.len, r->error);
        buf_clear(&r->data);
        r->has_data = r->error = false;
    } else if ((value = value_of(&r->line, "data"))) {
        size_t n = (size_t)(r->line.data + r->line.len - value);
        if (r->data.len + n > SSE_EVENT_MAX) return false;
        if (r->has_data) buf_char(&r->data, '\n');
        buf_append(&r->data, value, n);
        r->has_data = true;
    } else if ((value = value_of(&r->line, "event"))) {
        r->error = strcmp(value, "error") == 0;
    }
    buf_clear(&r->line);
    return true;
}

bool sse_read(struct sse_reader *r, const char *p, size_t n)
{
    for (const char *end = p + n; p < end;) {
        if (r->after_cr && *p == '\n') {
            r->after_cr = false;
            p++;
            continue;
        }
        r->after_cr = false;
        const char *q = p;
        while (q < end && *q != '\n' && *q != '\r') q++;
        if (r->line.len + (size_t)(q - p) > SSE_EVENT_MAX) return false;
        if (q > p || !r->line.data) buf_append(&r->line, p, (size_t)(q - p));
        if (q == end) break;
        r->after_cr = *q == '\r';
        if (!end_line(r)) return false;
        p = q + 1;
    }
    return true;
}

void sse_reader_free(struct sse_reader *r)
{
    buf_free(&r->line);
    buf_free(&r->data);
}
