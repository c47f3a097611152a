/* The parser (tool_calls.h): thoughts are separated first (thinking.c, harmony.c); what is left is read by a state
 * machine, which buffers marks and white space that may belong to a call. */
#include "server/api/tool_calls.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/api/call_text.h"
#include "server/api/tool_parser.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 2 * TOOL_NAME_MAX + 128 };

static const char XML_END[] = "</function>";

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ---- marks ----------------------------------------------------------------------------------------------------- */

enum mark_kind { MARK_NONE, MARK_GROUP, MARK_OPEN, MARK_CLOSE };

static bool mark_active(const struct tool_parser *p, enum mark_kind kind, int i)
{
    return kind != MARK_CLOSE || (p->behind_call && !(p->closed & 1u << i));
}

/* What held[mark_at...) is, and which of its kind; *prefix: whether it may become a mark. */
static enum mark_kind mark_match(const struct tool_parser *p, int *which, bool *prefix)
{
    const char *const *lists[] = {NULL, p->f->group, p->f->open, p->f->close};
    const char *at = p->held.data + p->mark_at;
    size_t n = p->held.len - p->mark_at;
    enum mark_kind found = MARK_NONE;
    *prefix = false;
    for (enum mark_kind kind = MARK_GROUP; kind <= MARK_CLOSE; kind++) {
        for (int i = 0; i < FORMAT_MARKS && lists[kind][i]; i++) {
            size_t len = strlen(lists[kind][i]);
            if (n > len || memcmp(lists[kind][i], at, n) != 0 || !mark_active(p, kind, i)) continue;
            if (n < len) *prefix = true;
            if (n == len) found = kind, *which = i;
        }
    }
    if (found) *prefix = false; /* the shorter mark counts */
    return found;
}

static bool may_begin_mark(const struct tool_parser *p, char c)
{
    const char *const *lists[] = {NULL, p->f->group, p->f->open, p->f->close};
    for (enum mark_kind kind = MARK_GROUP; kind <= MARK_CLOSE; kind++)
        for (int i = 0; i < FORMAT_MARKS && lists[kind][i]; i++)
            if (*lists[kind][i] == c && mark_active(p, kind, i)) return true;
    return false;
}

static void begin_body(struct tool_parser *p, unsigned form)
{
    p->state = PARSER_BODY;
    p->form = form;
    p->body_at = p->held.len;
    p->quote = 0;
    p->escaped = p->named = false;
    p->depth = 0;
}

static void mark_found(struct tool_parser *p, enum mark_kind kind, int which)
{
    p->state = PARSER_TEXT;
    if (kind == MARK_CLOSE) {
        p->closed |= 1u << which;
        buf_clear(&p->held);
    } else if (p->calls == TOOL_CALLS_MAX) {
        parser_release(p);
    } else if (kind == MARK_GROUP) {
        p->grouped = true;
    } else if (p->f->marked & (FORM_XML | FORM_ESCAPED)) {
        begin_body(p, p->f->marked);
    } else {
        p->state = PARSER_OPEN;
    }
}

/* ---- the beginning of a call ----------------------------------------------------------------------------------- */

/* The first byte of what may be a call in one of the forms.  @return false, and nothing is consumed: it is none. */
static bool begin_form(struct tool_parser *p, char c, unsigned forms, bool marked)
{
    if (c == '{' && forms & FORM_OBJECT) {
        parser_begin_object(p, marked);
        return parser_object_byte(p, c);
    }
    if (c == '[' && forms & FORM_LIST) {
        p->in_list = true;
        p->list_marked = marked;
        p->state = PARSER_LIST;
        p->behind_call = false;
    } else if (c == '[' && forms & FORM_PYTHON) {
        begin_body(p, FORM_PYTHON);
        p->depth = 1;
    } else if (forms & FORM_NAMED && c != '{' && c != '[') {
        p->state = PARSER_HEADER;
        p->body_at = p->held.len;
    } else {
        return false;
    }
    buf_char(&p->held, c);
    return true;
}

/* A byte behind a mark that a call follows.  @return false: no call follows, and it is not consumed. */
static bool open_byte(struct tool_parser *p, char c)
{
    if (!is_space(c)) return begin_form(p, c, p->f->marked, true);
    buf_char(&p->held, c);
    return true;
}

static bool header_byte(struct tool_parser *p, char c)
{
    size_t n = p->held.len - p->body_at;
    const char *name;
    if (c == '{') {
        n = tool_header_name(p->held.data + p->body_at, n, &name);
        return parser_begin_arguments(p, name, n) && parser_object_byte(p, c);
    }
    if (n == HEADER_MAX) return false;
    buf_char(&p->held, c);
    return true;
}

static bool list_byte(struct tool_parser *p, char c)
{
    if (c == '{' && p->calls < TOOL_CALLS_MAX) {
        parser_begin_object(p, p->list_marked);
        return parser_object_byte(p, c);
    }
    if (c == ']' && p->behind_call) {
        p->in_list = false;
        p->state = PARSER_TEXT;
        buf_clear(&p->held);
        return true;
    }
    if (!is_space(c) && (c != ',' || !p->behind_call)) return false;
    buf_char(&p->held, c);
    return true;
}

/* ---- calls that are read when they are complete ---------------------------------------------------------------- */

static bool take_texts(struct tool_parser *p, size_t end)
{
    struct call_texts found = {0};
    const char *s = p->held.data + p->body_at;
    size_t n = end - p->body_at;
    bool good = p->form == FORM_XML       ? call_text_xml(s, n, p->tools, &found)
                : p->form == FORM_ESCAPED ? call_text_escaped(s, n, p->f->quote, &found)
                                          : call_text_python(s, n, &found);
    if (p->calls + (int)found.n > TOOL_CALLS_MAX) good = false;
    for (size_t i = 0; i < found.n && p->form == FORM_PYTHON; i++) good = good && parser_is_tool(p, found.v[i].name);
    for (size_t i = 0; i < found.n && good; i++) parser_emit_call(p, found.v[i].name, &found.v[i].arguments);
    if (good) p->behind_marked = p->form != FORM_PYTHON;
    call_texts_free(&found);
    return good;
}

static bool held_ends_with(const struct tool_parser *p, const char *text)
{
    size_t n = strlen(text);
    return p->held.len - p->body_at >= n && memcmp(p->held.data + p->held.len - n, text, n) == 0;
}

/* Whether held[body_at...), "[NAME(", names a tool. */
static bool first_is_tool(const struct tool_parser *p)
{
    const char *s = p->held.data + p->body_at + 1;
    size_t n = p->held.len - p->body_at - 2;
    char name[TOOL_NAME_MAX + 1];
    while (n && is_space(*s)) s++, n--;
    while (n && is_space(s[n - 1])) n--;
    if (!n || n > TOOL_NAME_MAX) return false;
    memcpy(name, s, n);
    name[n] = 0;
    return parser_is_tool(p, name);
}

/* The byte, now the last held, of [NAME(...), ...].  *complete: it is the last.  @return false: that is no call. */
static bool python_byte(struct tool_parser *p, char c, bool *complete)
{
    bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("_.-", c);
    if (!p->named) {
        p->named = c == '(';
        p->depth += p->named;
        return c && (word || is_space(c) || (p->named && first_is_tool(p)));
    }
    if (p->quote) {
        if (!p->escaped && c == p->quote) p->quote = 0;
        p->escaped = !p->escaped && c == '\\';
    } else if (c == '"' || c == '\'') {
        p->quote = c;
    } else if (c == '(' || c == '[' || c == '{') {
        p->depth++;
    } else if (c == ')' || c == ']' || c == '}') {
        *complete = --p->depth == 0;
    }
    return true;
}

static bool body_byte(struct tool_parser *p, char c)
{
    bool good = c && p->held.len - p->body_at < TOOL_CALL_MAX, complete = false; /* a NUL is not for JSON */
    size_t end;
    buf_char(&p->held, c);
    end = p->held.len;
    if (p->form == FORM_PYTHON) {
        good = good && python_byte(p, c, &complete);
    } else {
        const char *mark = p->form == FORM_XML ? XML_END : p->f->end;
        complete = held_ends_with(p, mark);
        if (complete) end -= strlen(mark);
    }
    if (good && (!complete || take_texts(p, end))) return true;
    p->held.len--;
    return false;
}

/* ---- the text around them -------------------------------------------------------------------------------------- */

static void text_byte(struct tool_parser *p, char c)
{
    bool may_call = p->start || p->behind_call || p->grouped;
    if (p->state == PARSER_MARK) {
        bool prefix;
        int which = 0;
        buf_char(&p->held, c);
        enum mark_kind kind = mark_match(p, &which, &prefix);
        if (kind) mark_found(p, kind, which);
        if (kind || prefix) return;
        p->held.len--;
        parser_release(p);
        may_call = false;
    }
    if (may_begin_mark(p, c)) {
        p->state = PARSER_MARK;
        p->mark_at = p->held.len;
        buf_char(&p->held, c);
    } else if (is_space(c) || (c == p->f->between && c && p->behind_call)) {
        buf_char(&p->held, c);
    } else if (!may_call || p->calls == TOOL_CALLS_MAX ||
               !begin_form(p, c, p->f->bare, p->behind_call && p->behind_marked)) {
        parser_release(p);
        parser_emit(p, TOOL_CONTENT, &c, 1);
    }
}

/* @return whether the byte was consumed within a call. */
static bool call_byte(struct tool_parser *p, char c)
{
    switch (p->state) {
    case PARSER_OPEN: return open_byte(p, c);
    case PARSER_HEADER: return header_byte(p, c);
    case PARSER_LIST: return list_byte(p, c);
    case PARSER_BODY: return body_byte(p, c);
    case PARSER_OBJECT:
        if (parser_object_byte(p, c)) return true;
        parser_object_fail(p);
        return false;
    default: return false;
    }
}

static void parse(struct tool_parser *p, const char *text, size_t n)
{
    if (p->format == TOOL_FORMAT_NONE) {
        parser_emit(p, TOOL_CONTENT, text, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (call_byte(p, text[i])) continue;
        if (p->state != PARSER_TEXT && p->state != PARSER_MARK) parser_release(p);
        text_byte(p, text[i]);
    }
}

/* Thoughts come out as they are, and what else there is is parsed. */
static void separate(struct tool_parser *p, const char *text, size_t n, bool last)
{
    thinking_feed(&p->thinking, text, n, last, &p->thoughts, &p->text);
    parser_emit(p, TOOL_THOUGHT, p->thoughts.data, p->thoughts.len);
    parse(p, p->text.data, p->text.len);
    buf_clear(&p->thoughts);
    buf_clear(&p->text);
}

static bool is_harmony(const struct tool_parser *p)
{
    return p->reasoning == REASONING_HARMONY || p->format == TOOL_FORMAT_HARMONY;
}

static void begin_events(struct tool_parser *p)
{
    CHECK(!p->finished);
    p->n_events = 0;
    buf_clear(&p->out);
}

struct tool_events tool_parser_feed(struct tool_parser *p, const char *text, size_t n)
{
    begin_events(p);
    if (is_harmony(p))
        harmony_feed(p, text, n);
    else if (p->reasoning != REASONING_NONE)
        separate(p, text, n, false);
    else
        parse(p, text, n);
    if (p->state == PARSER_OBJECT && p->call.announced) parser_emit_arguments(p);
    return parser_handed_out(p);
}

struct tool_events tool_parser_finish(struct tool_parser *p)
{
    begin_events(p);
    p->finished = true;
    if (is_harmony(p)) {
        harmony_finish(p);
        return parser_handed_out(p);
    }
    if (p->reasoning != REASONING_NONE) separate(p, NULL, 0, true);
    bool dropped = p->behind_call && (p->state == PARSER_TEXT || p->state == PARSER_LIST);
    if (p->state == PARSER_OBJECT)
        parser_object_fail(p);
    else if (!dropped)
        parser_release(p);
    return parser_handed_out(p);
}

int tool_parser_calls(const struct tool_parser *p)
{
    return p->calls + (p->state == PARSER_OBJECT && p->call.announced);
}

struct tool_parser *tool_parser_new(const struct tool_parser_config *c)
{
    struct tool_parser *p = mem_zalloc(sizeof *p);
    p->f = output_format(c->format);
    p->format = c->format;
    p->reasoning = c->reasoning;
    p->stream = c->stream;
    p->start = true;
    p->n_names = c->n_names;
    p->names = c->names;
    p->tools = c->tools;
    if (!is_harmony(p)) {
        thinking_begin(&p->thinking, c->reasoning, c->thinking);
    } else if (c->thinking) {
        p->harmony.state = HARMONY_THOUGHTS;
    }
    return p;
}

void tool_parser_free(struct tool_parser *p)
{
    if (!p) return;
    free(p->call.name);
    free(p->events);
    free(p->places);
    thinking_free(&p->thinking);
    buf_free(&p->thoughts);
    buf_free(&p->text);
    buf_free(&p->held);
    buf_free(&p->out);
    free(p);
}
