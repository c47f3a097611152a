#include "server/api/thinking.h"

#include <string.h>

static const char SPACE[] = " \t\r\n";
enum { SPACE_MAX = 4096 /* more of it is no margin of a mark, and would be looked through for every token */ };

static bool is_space(char c)
{
    return c && strchr(SPACE, c);
}

/* Drops the first n held bytes. */
static void drop(struct thinking *t, size_t n)
{
    if (!n) return;
    memmove(t->held.data, t->held.data + n, t->held.len - n + 1);
    t->held.len -= n;
}

static size_t leading_space(const struct thinking *t)
{
    size_t n = 0;
    while (n < t->held.len && is_space(t->held.data[n])) n++;
    return n;
}

/* @return whether s (n bytes) is the beginning of the mark, or begins with it. */
static bool may_be(const char *s, size_t n, const char *mark)
{
    size_t m = strlen(mark);
    return memcmp(s, mark, n < m ? n : m) == 0;
}

static void decide(struct thinking *t, bool last)
{
    const char *mark = t->marks->begin;
    size_t lead = leading_space(t), rest = t->held.len - lead;
    bool open = rest && may_be(t->held.data + lead, rest, mark);
    if (open && rest >= strlen(mark)) {
        drop(t, lead + strlen(mark));
        t->state = THINKING_INSIDE;
    } else if (last || lead > SPACE_MAX || (rest && !open)) {
        t->state = THINKING_OVER;
    }
}

/* Passes thoughts on up to the closing mark.  White space is held back until it is known not to be before the mark. */
static void take_thoughts(struct thinking *t, bool last, struct buf *thoughts)
{
    const char *mark = t->marks->end;
    const char *s = t->held.data;
    size_t n = t->held.len, text = 0, at = 0;
    while (at < n && !may_be(s + at, n - at, mark)) {
        if (!is_space(s[at])) text = at + 1;
        at++;
    }
    bool closed = n - at >= strlen(mark);
    if (!closed && at - text > SPACE_MAX) text = at;
    if (!closed && last) text = n;
    buf_append(thoughts, s, text);
    t->begun = t->begun || text;
    if (closed) t->state = THINKING_BEHIND;
    drop(t, closed ? at + strlen(mark) : text);
}

void thinking_begin(struct thinking *t, enum reasoning_format format, bool inside)
{
    *t = (struct thinking){.marks = reasoning_marks(format)};
    t->state = format == REASONING_NONE ? THINKING_OVER : inside ? THINKING_INSIDE : THINKING_UNDECIDED;
}

void thinking_feed(struct thinking *t, const char *bytes, size_t n, bool last, struct buf *thoughts, struct buf *text)
{
    if (t->state == THINKING_OVER) {
        buf_append(text, bytes, n);
        return;
    }
    buf_append(&t->held, bytes, n);
    if (t->state == THINKING_UNDECIDED) decide(t, last);
    if (t->state == THINKING_INSIDE) {
        if (!t->begun) drop(t, leading_space(t));
        take_thoughts(t, last, thoughts);
    }
    if (t->state == THINKING_BEHIND) {
        drop(t, leading_space(t));
        if (t->held.len) t->state = THINKING_OVER;
    }
    if (t->state != THINKING_OVER) return;
    buf_append(text, t->held.data, t->held.len);
    buf_clear(&t->held);
}

void thinking_free(struct thinking *t)
{
    buf_free(&t->held);
    *t = (struct thinking){0};
}
