/* Fuzzes server/net/multipart.c.  The first byte says how the rest is cut into pieces.  Whatever comes: no part is
 * begun inside another, what is given was in the input, and however the bytes are cut, the same parts with the same
 * content come out, or the same refusal. */
#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "server/net/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct seen {
    struct buf log; /* names, contents, ends: what a caller was told */
    size_t bytes;
    bool open;
};

static bool on_begin(void *arg, const struct multipart_part *p, struct err *e)
{
    struct seen *s = arg;
    (void)e;
    CHECK(!s->open && strlen(p->name) <= MULTIPART_NAME && strlen(p->filename) <= MULTIPART_NAME);
    CHECK(!strchr(p->filename, '/') && !strchr(p->filename, '\\'));
    s->open = true;
    buf_printf(&s->log, "\1%s\1%s\1%d\1", p->name, p->filename, p->has_filename);
    return true;
}

static bool on_data(void *arg, const char *p, size_t n, struct err *e)
{
    struct seen *s = arg;
    (void)e;
    CHECK(s->open && n > 0);
    s->bytes += n;
    buf_append(&s->log, p, n);
    return true;
}

static bool on_end(void *arg, struct err *e)
{
    struct seen *s = arg;
    (void)e;
    CHECK(s->open);
    s->open = false;
    buf_str(&s->log, "\2");
    return true;
}

static const struct multipart_events events = {on_begin, on_data, on_end};

/* Whether the body was taken as a whole. */
static bool run(const char *p, size_t n, size_t piece, struct seen *s)
{
    struct multipart m;
    struct err e = {0};
    CHECK(multipart_init(&m, "multipart/form-data; boundary=\"b-B\"", &events, s, &e) == 0);
    for (size_t at = 0; at < n; at += piece) {
        size_t k = n - at < piece ? n - at : piece;
        char *copy = malloc(k); /* exactly as long as it is, so that reading past the end is seen */
        memcpy(copy, p + at, k);
        int rc = multipart_feed(&m, copy, k, &e);
        free(copy);
        if (rc) {
            CHECK(e.code == ERR_INVALID && e.msg[0]);
            return false;
        }
    }
    CHECK(s->bytes <= n);
    return multipart_end(&m, &e) == 0;
}

static void check_header(const char *p, size_t n)
{
    struct multipart m;
    struct seen s = {0};
    struct err e = {0};
    char *type = malloc(n + 1);
    memcpy(type, p, n);
    type[n] = 0;
    if (multipart_init(&m, type, &events, &s, &e) == 0) CHECK(m.mark_len > 4 && m.mark_len <= MULTIPART_BOUNDARY + 4);
    free(type);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!size) return 0;
    const char *p = (const char *)data + 1;
    struct seen whole = {0}, cut = {0};
    bool a = run(p, size - 1, size, &whole), b = run(p, size - 1, 1 + data[0] % 9, &cut);
    CHECK(a == b && whole.log.len == cut.log.len);
    CHECK(whole.log.len == 0 || memcmp(whole.log.data, cut.log.data, whole.log.len) == 0);
    buf_free(&whole.log);
    buf_free(&cut.log);
    check_header(p, size - 1);
    return 0;
}
