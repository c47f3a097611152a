#include "server/schema/marks.h"

#include "engine/base/check.h"
#include "server/schema/calls.h"

#include <stdio.h>
#include <string.h>

const char *marks_bare(const char *text, char out[MARK_MAX + 2])
{
    size_t n = 0;
    for (; text && *text && n <= MARK_MAX; text++)
        if (*text != CALLS_SPECIAL) out[n++] = *text;
    out[n] = 0;
    return out;
}

jx white_space(struct jpool *p)
{
    static const struct grange white[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    return jx_repeat(p, jx_raw_chars(p, white, 3), 0, JX_MANY);
}

/* The marks as a trie of characters; node 0 is the root. */
struct node {
    uint32_t c;
    uint16_t child, next; /* 0: none */
    bool last;            /* a mark ends here */
};

struct marks {
    struct jpool *p;
    struct node v[MARKS_MAX * MARK_MAX + 1];
    size_t n;
    jx rest; /* any characters that begin no mark */
};

/* Reads one character of s; 0: the end. */
static uint32_t next_char(const char **s)
{
    const unsigned char *at = (const unsigned char *)*s;
    uint32_t c = *at;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : c >= 0xc0 ? 1 : 0;
    if (!c) return 0;
    if (more) c &= 0x3fu >> more;
    at++;
    for (; more && (*at & 0xc0) == 0x80; more--) c = c << 6 | (*at++ & 0x3f);
    *s = (const char *)at;
    return c;
}

static uint16_t child_of(struct marks *m, uint16_t parent, uint32_t c)
{
    uint16_t *link = &m->v[parent].child;
    while (*link && m->v[*link].c != c) link = &m->v[*link].next;
    if (!*link) {
        *link = (uint16_t)m->n;
        m->v[m->n++] = (struct node){.c = c};
    }
    return *link;
}

static void add_mark(struct marks *m, const char *mark)
{
    uint16_t node = 0;
    const char *next = mark;
    if (strlen(mark) > MARK_MAX) {
        jpool_fail(m->p, "a mark is longer than %d bytes", MARK_MAX);
        return;
    }
    uint32_t first = next_char(&next);
    for (const char *second = next; first && next_char(&next) == first; second = next) mark = second;
    for (uint32_t c; (c = next_char(&mark));) node = child_of(m, node, c);
    if (node) m->v[node].last = true;
}

/* A set of characters, ascending. */
struct taken {
    uint32_t v[2 * MARKS_MAX + STARTS_MAX];
    size_t n;
};

static void take(struct taken *t, uint32_t c)
{
    size_t at = t->n++;
    for (; at && t->v[at - 1] > c; at--) t->v[at] = t->v[at - 1];
    t->v[at] = c;
}

/* One character that is neither a mark's first one, nor a child of `node`, nor one of `more`. */
static jx other_char(struct marks *m, uint16_t node, const char *more)
{
    struct taken t = {0};
    struct grange out[sizeof t.v / sizeof *t.v + 1];
    size_t n = 0;
    uint32_t from = 0;
    for (uint16_t i = m->v[0].child; i; i = m->v[i].next) take(&t, m->v[i].c);
    for (uint16_t i = node ? m->v[node].child : 0; i; i = m->v[i].next) take(&t, m->v[i].c);
    for (; *more; more++) take(&t, (unsigned char)*more);
    for (size_t i = 0; i < t.n; i++) {
        if (t.v[i] > from) out[n++] = (struct grange){from, t.v[i] - 1};
        if (t.v[i] >= from) from = t.v[i] + 1;
    }
    out[n++] = (struct grange){from, 0x10ffff};
    return jx_raw_chars(m->p, out, n);
}

static jx one_char(struct marks *m, uint32_t c)
{
    return jx_raw_chars(m->p, &(struct grange){c, c}, 1);
}

/* What may follow a mark's beginning up to `node`, until the next first character of a mark. */
static jx tail(struct marks *m, uint16_t node)
{
    jx out = jx_alt2(m->p, JX_EMPTY, jx_seq2(m->p, other_char(m, node, ""), m->rest));
    for (uint16_t i = m->v[node].child; i; i = m->v[i].next)
        if (!m->v[i].last) out = jx_alt2(m->p, out, jx_seq2(m->p, one_char(m, m->v[i].c), tail(m, i)));
    return out;
}

jx text_without_marks(struct jpool *p, const char *const *list, size_t n, const char *starts)
{
    struct marks m = {.p = p, .n = 1};
    char not_first[STARTS_MAX + 1];
    CHECK(n <= MARKS_MAX);
    snprintf(not_first, sizeof not_first, " \t\r\n%s", starts);
    for (size_t i = 0; i < n; i++) add_mark(&m, list[i]);
    m.rest = jx_repeat(p, other_char(&m, 0, ""), 0, JX_MANY);
    jx begun = JX_NONE;
    for (uint16_t i = m.v[0].child; i; i = m.v[i].next)
        if (!m.v[i].last) begun = jx_alt2(p, begun, jx_seq2(p, one_char(&m, m.v[i].c), tail(&m, i)));
    begun = jx_shared(p, begun);
    jx more = jx_repeat(p, begun, 0, JX_MANY);
    if (!*starts) return jx_shared(p, jx_seq2(p, m.rest, more));
    jx plain = jx_seq3(p, other_char(&m, 0, not_first), m.rest, more);
    return jx_shared(p, jx_seq2(p, white_space(p), jx_alt(p, (jx[]){JX_EMPTY, plain, jx_repeat(p, begun, 1, JX_MANY)}, 3)));
}
