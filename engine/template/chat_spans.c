/* Finds what the assistant would have generated on a rendered page.
 *
 * Every byte of the page that comes from a message is marked with it (struct jrun), whatever the template did to it. An
 * assistant's bytes are surrounded by the template's own text; which part of that is generated is inferred from the
 * differences between renderings:
 *
 *   messages[:i+1] with the generation prompt, minus without it: the prompt G, "<|im_start|>assistant\n".  A turn
 *       is generated from right after the last G before its text.
 *   what stands between the text's end and there: the mark M that ends a turn, "<|im_end|>".  A turn is generated
 *       up to the first M after its text.
 *
 * The marks inferred from the last turn mostly apply to all turns.  A turn to which they do not apply gets its own, and
 * last a plain prefix is tried: messages[:i] with the prompt begins the page.  A template with {% generation %} defines
 * itself what is generated. */
#include "engine/template/chat_input.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { NOWHERE = -1, SHORTEST_PROMPT = 4, LONGEST_MARK = 40 };

/* The positions of a message's bytes.  Without any: first > last. */
struct message_bytes {
    size_t first, last;   /* [first, last) */
    size_t before, after; /* the template's own text around them: [before, first) and [last, after) */
    bool there, whole;    /* whole: no bytes of other messages in between */
};

struct turn_marks {
    struct jstr prompt, mark;
    bool known; /* the mark was inferred; if empty, the template writes none */
};

static struct message_bytes message_bytes_of(struct jstr page, int message)
{
    struct message_bytes p = {.after = page.n, .whole = true};
    for (size_t i = 0; i < page.n_runs; i++) {
        struct jrun r = page.runs[i];
        if (r.origin != message) continue;
        if (!p.there) p.first = r.start;
        p.last = r.end;
        p.there = true;
    }
    for (size_t i = 0; i < page.n_runs; i++) {
        struct jrun r = page.runs[i];
        if (r.origin == message) continue;
        bool earlier = p.there ? r.end <= p.first : r.origin >= 0 && r.origin < message;
        bool later = p.there ? r.start >= p.last : r.origin > message;
        if (earlier && r.end > p.before) p.before = r.end;
        if (later && !earlier && r.start < p.after) p.after = r.start;
        if (p.there && !earlier && !later) p.whole = false;
    }
    return p;
}

static struct jstr part(struct jstr s, size_t start, size_t end)
{
    return (struct jstr){.s = s.s + start, .n = end - start};
}

static size_t common(struct jstr a, struct jstr b)
{
    size_t n = a.n < b.n ? a.n : b.n, i = 0;
    while (i < n && a.s[i] == b.s[i]) i++;
    return i;
}

static struct jstr without_end_space(struct jstr s)
{
    for (size_t n; (n = jinja_space_before(s.s, s.n));) s.n -= n;
    return s;
}

static bool ends_with(struct jstr s, struct jstr end)
{
    return end.n <= s.n && memcmp(s.s + s.n - end.n, end.s, end.n) == 0;
}

/* First or last position of `what` in s; NOWHERE */
static ptrdiff_t find(struct jstr s, struct jstr what, bool last)
{
    ptrdiff_t found = NOWHERE;
    for (size_t at = 0; what.n && what.n <= s.n - at;) {
        const char *p = memmem(s.s + at, s.n - at, what.s, what.n);
        if (!p) break;
        found = p - s.s;
        if (!last) break;
        at = (size_t)found + 1;
    }
    return found;
}

static struct jstr eos_token(const struct chat_view *v)
{
    for (size_t i = 0; i < v->variables.dict->n; i++) {
        const struct jpair *p = &v->variables.dict->v[i];
        if (jv_is_text(p->key, "eos_token") && p->value.type == J_STR) return *p->value.str;
    }
    return (struct jstr){.s = ""};
}

/* The end of the turn: `last` follows its text when nothing more comes, `more` when something does. */
static struct jstr mark_of(const struct chat_view *v, struct jstr last, struct jstr more)
{
    struct jstr eos = eos_token(v), mark = last;
    size_t shared = common(last, more);
    /* Phi 3 ends the page, not a turn, with it: either it goes when more comes, or it has a line of its own */
    bool own_line = last.n > eos.n + 1 && last.s[last.n - eos.n - 1] == '\n' && last.s[0] != '\n';
    if (eos.n && ends_with(last, eos) && (shared < last.n || own_line)) mark.n -= eos.n;
    if (shared < mark.n) { /* "<|end|><|a..." and "<|end|><|b...": what they share ends within a mark */
        mark.n = shared;
        while (mark.n && mark.s[mark.n - 1] != '\n' && mark.s[mark.n - 1] != '>' && mark.s[mark.n - 1] != ']') mark.n--;
    }
    struct jstr stripped = without_end_space(mark);
    return stripped.n ? stripped : mark;
}

/* Infers the marks from the turn of message i; @return false when its renderings are not conclusive. */
static bool infer_marks(struct chat_view *v, struct jstr page, size_t i, struct turn_marks *l)
{
    struct chat_page bare, prompted;
    if (chat_view_render(v, i + 1, false, &bare, NULL) || chat_view_render(v, i + 1, true, &prompted, NULL))
        return false;
    size_t same = common(bare.text, prompted.text);
    struct message_bytes p = message_bytes_of(bare.text, (int)i), there = message_bytes_of(page, (int)i);
    *l = (struct turn_marks){.prompt = part(prompted.text, same, prompted.text.n), .mark = {.s = ""}};
    l->known = p.there && p.last <= same;
    if (!l->known) return true;
    struct jstr more = part(prompted.text, p.last, prompted.text.n);
    if (i + 1 < v->messages.list->n && there.there) more = part(page, there.last, page.n);
    l->mark = mark_of(v, part(bare.text, p.last, bare.text.n), more);
    return true;
}

/* The shortest part of a prompt that identifies the role: its first line. */
static size_t first_line(struct jstr prompt)
{
    size_t i = 0;
    while (i < prompt.n && prompt.s[i] == '\n') i++;
    while (i < prompt.n && prompt.s[i] != '\n') i++;
    return i < prompt.n ? i + 1 : prompt.n;
}

/* Where the generated part of the turn begins; NOWHERE */
static ptrdiff_t find_start(struct jstr page, const struct message_bytes *p, const struct turn_marks *l)
{
    struct jstr gap = part(page, p->before, p->there ? p->first : p->after);
    size_t least = first_line(l->prompt);
    /* turns may lack the prompt's end: Qwen3's empty thoughts; less than a line of it must stand right before the text
     */
    for (size_t n = l->prompt.n; n >= SHORTEST_PROMPT || (n && n == l->prompt.n); n--) {
        struct jstr some = part(l->prompt, 0, n);
        ptrdiff_t at = n >= least ? find(gap, some, p->there) : NOWHERE;
        if (at != NOWHERE) return (ptrdiff_t)(p->before + n) + at;
        if (p->there && ends_with(gap, some)) return (ptrdiff_t)p->first;
    }
    return NOWHERE;
}

/* A template without a prompt: after whatever ends the others' turn, "[/INST]" or a heading's line. */
static ptrdiff_t find_start_without_prompt(struct jstr page, const struct message_bytes *p, const struct turn_marks *l)
{
    size_t at = p->first;
    if (!l->known || l->prompt.n || !p->there) return NOWHERE;
    while (at > p->before && page.s[at - 1] != '>' && page.s[at - 1] != ']' && page.s[at - 1] != '\n') at--;
    return at > p->before ? (ptrdiff_t)at : NOWHERE;
}

/* messages[:i] with the prompt begins the page, except for an end-of-text token at the end of every page */
static ptrdiff_t find_start_by_prefix(struct chat_view *v, struct jstr page, const struct message_bytes *p, size_t i)
{
    struct chat_page before;
    if (!p->there || chat_view_render(v, i, true, &before, NULL)) return NOWHERE;
    struct jstr eos = eos_token(v);
    size_t n = before.text.n, shared = common(page, before.text);
    if (shared < n && ends_with(before.text, eos)) n -= eos.n;
    if (shared < n) return NOWHERE;
    return n >= p->before && n <= p->first ? (ptrdiff_t)n : NOWHERE;
}

static ptrdiff_t find_end(struct jstr page, const struct message_bytes *p, size_t from, struct jstr mark)
{
    ptrdiff_t at = find(part(page, from, p->after), mark, false);
    return at == NOWHERE ? NOWHERE : (ptrdiff_t)(from + mark.n) + at;
}

/* messages[:i+1] begins the page */
static ptrdiff_t find_end_by_prefix(struct chat_view *v, struct jstr page, const struct message_bytes *p, size_t from,
                                    size_t i)
{
    struct chat_page upto;
    if (chat_view_render(v, i + 1, false, &upto, NULL)) return NOWHERE;
    if (common(page, upto.text) < upto.text.n || upto.text.n > p->after) return NOWHERE;
    size_t n = without_end_space(upto.text).n;
    return n < from ? NOWHERE : (ptrdiff_t)n;
}

/* Whether a mark ends a turn, rather than beginning that of another role. */
static bool says_end(struct jstr mark)
{
    static const char *const words[] = {"end", "eot", "eom", "eos", "stop", "return", "call"};
    if (mark.s[1] == '/') return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(mark.s, mark.n, words[i], strlen(words[i]))) return true;
    return false;
}

/* Last: a mark right behind the text, "<|end|>", "</s>" or "[/A]"; some templates end the last turn of a page with
 * another one than those before, so that no inferred marks fit. */
static ptrdiff_t find_any_mark(struct jstr page, const struct message_bytes *p, size_t from)
{
    size_t at = from;
    for (size_t n; at < p->after && (n = jinja_space(page.s + at, p->after - at));) at += n;
    char open = at < p->after ? page.s[at] : 0, close = open == '<' ? '>' : ']';
    if (open != '<' && open != '[') return NOWHERE;
    for (size_t i = at + 1; i < p->after && i < at + LONGEST_MARK; i++) {
        if (page.s[i] == close && i > at + 1) return says_end(part(page, at, i + 1)) ? (ptrdiff_t)i + 1 : NOWHERE;
        if (page.s[i] == open || jinja_space(page.s + i, 1)) break;
    }
    return NOWHERE;
}

static void add(struct chat_spans *out, size_t start, size_t end, size_t message)
{
    out->v = mem_resize(out->v, (size_t)out->n + 1, sizeof *out->v);
    out->v[out->n++] = (struct chat_span){start, end, (int)message};
}

/* One assistant's turn: its span is added, or nothing when it is not on the page. */
static int find_turn(struct chat_view *v, struct jstr page, size_t i, struct turn_marks *l, struct chat_spans *out,
                     struct err *e)
{
    struct message_bytes p = message_bytes_of(page, (int)i);
    struct turn_marks own = *l;
    if (out->n && out->v[out->n - 1].end > p.before) p.before = out->v[out->n - 1].end;
    if (p.before > (p.there ? p.first : p.after)) /* printed in another order */
        return err_set(e, ERR_UNSUPPORTED, "the chat template does not print messages[%zu] after the turn before it",
                       i);
    if (!p.whole)
        return err_set(e, ERR_UNSUPPORTED, "the chat template mixes the text of messages[%zu] with that of others", i);
    ptrdiff_t start = find_start(page, &p, l), end = NOWHERE;
    if (start == NOWHERE && infer_marks(v, page, i, &own)) start = find_start(page, &p, &own);
    if (start == NOWHERE) start = find_start_by_prefix(v, page, &p, i);
    if (start == NOWHERE) start = find_start_without_prompt(page, &p, &own);
    if (start == NOWHERE && !p.there) return ERR_OK;
    if (start == NOWHERE)
        return err_set(e, ERR_UNSUPPORTED,
                       "cannot tell where messages[%zu] begins on the chat template's page: "
                       "no generation prompt stands before it",
                       i);
    size_t from = p.there ? p.last : (size_t)start;
    end = find_end(page, &p, from, l->mark);
    if (end == NOWHERE && infer_marks(v, page, i, &own)) end = find_end(page, &p, from, own.mark);
    if (end == NOWHERE) end = find_end(page, &p, from, eos_token(v));
    if (end == NOWHERE) end = find_end_by_prefix(v, page, &p, from, i);
    if (end == NOWHERE) end = find_any_mark(page, &p, from);
    if (end == NOWHERE && own.known && !own.mark.n) end = (ptrdiff_t)from;
    if (end == NOWHERE)
        return err_set(e, ERR_UNSUPPORTED, "cannot tell where messages[%zu] ends on the chat template's page", i);
    if (out->n && out->v[out->n - 1].end > (size_t)start)
        return err_set(e, ERR_UNSUPPORTED, "the chat template does not print messages[%zu] after the turn before it",
                       i);
    add(out, (size_t)start, (size_t)end, i);
    return ERR_OK;
}

/* {% generation %}: each block belongs to the assistant whose text is in it; blocks without any are counted, and what
 * is left over (an end-of-text token) belongs to the last. */
static int take_marks(struct chat_view *v, const struct chat_page *page, struct chat_spans *out, struct err *e)
{
    size_t n = v->messages.list->n, next = 0, last = n;
    while (last > 0 && !v->assistant[last - 1]) last--;
    for (size_t k = 0; k < page->n_marks; k++) {
        struct jmark m = page->marks[k];
        while (next < n && !v->assistant[next]) next++;
        size_t message = next;
        for (size_t i = 0; i < page->text.n_runs; i++) {
            struct jrun r = page->text.runs[i];
            if (r.origin >= 0 && r.start >= m.start && r.end <= m.end && v->assistant[r.origin])
                message = (size_t)r.origin;
        }
        if (!last) return err_set(e, ERR_UNSUPPORTED, "the chat template generates a turn, but there is no assistant");
        if (message >= n) message = last - 1;
        if (m.end > m.start) add(out, m.start, m.end, message);
        next = message + 1;
    }
    return ERR_OK;
}

int chat_find_spans(struct chat_view *v, const struct chat_page *page, struct chat_spans *out, struct err *e)
{
    struct turn_marks l = {{.s = ""}, {.s = ""}, false};
    size_t n = v->messages.list->n, last = n;
    int r = ERR_OK;
    if (page->n_marks) {
        r = take_marks(v, page, out, e);
    } else {
        while (last > 0 && !v->assistant[last - 1]) last--;
        if (last) infer_marks(v, page->text, last - 1, &l);
        for (size_t i = 0; i < last && !r; i++)
            if (v->assistant[i]) r = find_turn(v, page->text, i, &l, out, e);
    }
    if (r) {
        free(out->v);
        *out = (struct chat_spans){0};
    }
    return r;
}
