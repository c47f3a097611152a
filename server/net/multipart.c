/* A byte machine over the delimiters (multipart.h).  A delimiter is CRLF "--" boundary; the first one may stand at the
 * very beginning, which is treated as if a CRLF had come before it. */
#include "server/net/multipart.h"

#include <string.h>
#include <strings.h>

enum { S_PREAMBLE, S_AFTER_MARK, S_HEAD, S_DATA, S_EPILOGUE, S_FAILED };

/* ---- parameters of header fields ------------------------------------------------------------------------------- */

/* The value of `; name=value` or `; name="value"`; false when absent, *bad when malformed or too long. */
static bool parameter(const char *p, const char *name, char *out, size_t size, bool *bad)
{
    size_t want = strlen(name);
    for (p = strchr(p, ';'); p; p = strchr(p, ';')) {
        p += 1 + strspn(p + 1, " \t");
        size_t n = strcspn(p, "=; \t");
        bool mine = n == want && strncasecmp(p, name, n) == 0;
        p += n + strspn(p + n, " \t");
        if (*p != '=') continue;
        p += 1 + strspn(p + 1, " \t");
        size_t len = 0;
        bool quoted = *p == '"';
        for (p += quoted; *p && (quoted ? *p != '"' : !strchr("; \t", *p)); p++) {
            /* browsers escape a quote as %22, others as \" ; a lone backslash is a Windows path's */
            if (quoted && p[0] == '\\' && p[1] == '"') p++;
            if (mine && len + 1 < size) out[len] = *p;
            len++;
        }
        if (quoted && *p != '"') *bad = true; /* p is at the end; the next line does not advance it */
        p += *p == '"';
        if (!mine) continue;
        if (len + 1 > size) *bad = true;
        out[len < size ? len : size - 1] = 0;
        return true;
    }
    return false;
}

int multipart_init(struct multipart *m, const char *type, const struct multipart_events *on, void *arg, struct err *e)
{
    char boundary[MULTIPART_BOUNDARY + 1] = "";
    bool bad = false;
    *m = (struct multipart){.on = on, .arg = arg, .state = S_PREAMBLE};
    if (!type || strncasecmp(type, "multipart/form-data", 19) != 0 || !strchr("; \t", type[19]))
        return err_set(e, ERR_INVALID, "expected multipart/form-data");
    if (!parameter(type, "boundary", boundary, sizeof boundary, &bad) || bad || !*boundary)
        return err_set(e, ERR_INVALID, "multipart/form-data without a boundary of 1 to %d bytes", MULTIPART_BOUNDARY);
    strcpy(m->mark, "\r\n--");
    strcat(m->mark, boundary);
    m->mark_len = strlen(m->mark);
    m->matched = 2; /* as if a line had just ended */
    return 0;
}

static int fail(struct multipart *m, struct err *e, const char *what)
{
    m->state = S_FAILED;
    return err_set(e, ERR_INVALID, "malformed multipart body: %s", what);
}

/* ---- a part's headers ------------------------------------------------------------------------------------------ */

/* Reduces a path to its last component. */
static void last_component(char *name)
{
    char *from = name;
    for (char *p = name; *p; p++)
        if (*p == '/' || *p == '\\') from = p + 1;
    memmove(name, from, strlen(from) + 1);
}

static int begin_part(struct multipart *m, struct err *e)
{
    struct multipart_part part = {0};
    char *line = m->head, *next;
    bool found = false, bad = false;
    m->head[m->head_len] = 0;
    if (strlen(m->head) != m->head_len) return fail(m, e, "a part's headers hold a NUL");
    for (; *line; line = next) {
        next = strstr(line, "\r\n");
        if (!next) return fail(m, e, "a part's header line does not end");
        *next = 0;
        next += 2;
        if (strncasecmp(line, "Content-Disposition:", 20) == 0) {
            const char *value = line + 20 + strspn(line + 20, " \t");
            if (found || strncasecmp(value, "form-data", 9) != 0)
                return fail(m, e, "Content-Disposition must be form-data, once");
            found = parameter(value, "name", part.name, sizeof part.name, &bad);
            part.has_filename = parameter(value, "filename", part.filename, sizeof part.filename, &bad);
        } else if (strncasecmp(line, "Content-Transfer-Encoding:", 26) == 0 && !strcasestr(line + 26, "binary") &&
                   !strcasestr(line + 26, "8bit") && !strcasestr(line + 26, "7bit")) {
            return fail(m, e, "Content-Transfer-Encoding is not supported (RFC 7578 4.7)");
        }
    }
    if (!found || bad) return fail(m, e, "a part without a good name in its Content-Disposition");
    if (++m->parts > MULTIPART_PARTS) return fail(m, e, "too many parts");
    last_component(part.filename);
    m->state = S_DATA;
    m->matched = 0;
    if (m->on->begin(m->arg, &part, e)) return 0;
    m->state = S_FAILED;
    return e->code;
}

static int head_byte(struct multipart *m, char c, struct err *e)
{
    if (m->head_len + 1 >= sizeof m->head) return fail(m, e, "a part's headers are too long");
    m->head[m->head_len++] = c;
    bool empty = m->head_len == 2 && memcmp(m->head, "\r\n", 2) == 0;
    if (empty) return fail(m, e, "a part without headers");
    if (m->head_len < 4 || memcmp(m->head + m->head_len - 4, "\r\n\r\n", 4) != 0) return 0;
    m->head_len -= 2;
    return begin_part(m, e);
}

/* ---- the machine ----------------------------------------------------------------------------------------------- */

/* After a delimiter: CRLF and another part, or "--" and the end.  head collects the two bytes (and white space). */
static int mark_byte(struct multipart *m, char c, struct err *e)
{
    if (m->head_len == 0 && (c == ' ' || c == '\t')) return 0;
    m->head[m->head_len++] = c;
    if (m->head_len < 2) return 0;
    bool next = memcmp(m->head, "\r\n", 2) == 0, last = memcmp(m->head, "--", 2) == 0;
    m->head_len = 0;
    m->matched = 0;
    if (!next && !last) return fail(m, e, "a delimiter is followed by neither a line end nor --");
    m->state = next ? S_HEAD : S_EPILOGUE;
    return 0;
}

static bool give(struct multipart *m, const char *p, size_t n, struct err *e)
{
    if (!n || m->state != S_DATA) return true;
    if (m->on->data(m->arg, p, n, e)) return true;
    m->state = S_FAILED;
    return false;
}

/* Looks for the delimiter; returns how many bytes it used, and the outcome in *rc.  After a partial match, the matched
 * bytes are delivered as content from m->mark itself, since they may have arrived in an earlier buffer.  The mark's
 * only CR is its first byte, so no match can begin inside a partial match. */
static size_t scan(struct multipart *m, const char *p, size_t n, int *rc, struct err *e)
{
    size_t i = 0, plain = 0; /* p[plain, i) is content not delivered yet; empty while matched > 0 */
    while (i < n) {
        if (m->matched == 0) {
            const char *cr = memchr(p + i, '\r', n - i);
            i = cr ? (size_t)(cr - p) : n;
            if (!give(m, p + plain, i - plain, e)) return *rc = e->code, i;
            plain = i;
            if (!cr) break;
        }
        if (p[i] == m->mark[m->matched]) {
            plain = ++i;
            if (++m->matched < m->mark_len) continue;
            if (m->state == S_DATA && !m->on->end(m->arg, e)) {
                m->state = S_FAILED;
                *rc = e->code;
                return i;
            }
            m->state = S_AFTER_MARK;
            m->head_len = 0;
            return i;
        }
        if (!give(m, m->mark, m->matched, e)) return *rc = e->code, i;
        m->matched = 0;
    }
    return i;
}

int multipart_feed(struct multipart *m, const char *p, size_t n, struct err *e)
{
    int rc = 0;
    while (n && !rc) {
        size_t used = 1;
        switch (m->state) {
        case S_PREAMBLE:
        case S_DATA: used = scan(m, p, n, &rc, e); break;
        case S_AFTER_MARK: rc = mark_byte(m, *p, e); break;
        case S_HEAD: rc = head_byte(m, *p, e); break;
        case S_EPILOGUE: used = n; break;
        default: return err_set(e, ERR_INVALID, "malformed multipart body");
        }
        p += used;
        n -= used;
    }
    return rc;
}

int multipart_end(struct multipart *m, struct err *e)
{
    if (m->state == S_EPILOGUE) return 0;
    return fail(m, e, "it ends before its last delimiter");
}
