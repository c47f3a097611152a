#include "engine/serve/thoughts.h"

#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Advances over the mark; a mark's first byte does not occur in it again, but for those of several tokens, which no
 * text has by chance.  @return whether it is complete. */
static bool match(struct thoughts *t, const char *mark, char c)
{
    if (mark[t->matched] != c) t->matched = 0;
    if (mark[t->matched] == c) t->matched++;
    if (mark[t->matched]) return false;
    t->matched = 0;
    return true;
}

static void read_byte(struct thoughts *t, char c)
{
    switch (t->state) {
    case THOUGHTS_FIRST:
        if (!t->matched && is_space(c)) return;
        if (t->begin[t->matched] != c) {
            t->matched = 0;
            t->state = t->again ? THOUGHTS_AGAIN : THOUGHTS_OVER;
            return;
        }
        /* fall through */
    case THOUGHTS_AGAIN:
        if (match(t, t->begin, c)) t->state = THOUGHTS_INSIDE;
        return;
    case THOUGHTS_INSIDE:
        if (match(t, t->end, c)) t->state = t->again ? THOUGHTS_AGAIN : THOUGHTS_OVER;
        return;
    default: return;
    }
}

enum thoughts_change thoughts_token(struct thoughts *t, const char *text, size_t n, bool within)
{
    bool inside = t->state == THOUGHTS_INSIDE;
    if (t->state == THOUGHTS_NONE || t->state == THOUGHTS_OVER) return THOUGHTS_GO_ON;
    for (size_t i = 0; i < n; i++) read_byte(t, text[i]);
    if (t->state != THOUGHTS_INSIDE) {
        t->stopped = false;
        return inside ? THOUGHTS_ENDED : THOUGHTS_GO_ON;
    }
    if (t->stopped) return THOUGHTS_GO_ON;
    if (inside) {
        t->count++;
        if (t->left > 0) t->left--;
    }
    t->stopped = t->left == 0 && !within;
    return t->stopped ? THOUGHTS_USED_UP : THOUGHTS_GO_ON;
}
