/* The call of one JSON object, or whose arguments are one, and the parser's events (tool_parser.h). */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/api/tool_parser.h"
#include "server/json/json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { NAME_LITERAL_MAX = 6 * TOOL_NAME_MAX + 2 }; /* \u00xx for each byte, and the quotes */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static struct tool_event *add_event(struct tool_parser *p, enum tool_event_kind kind)
{
    mem_grow(&p->events, &p->cap_events, p->n_events + 1, sizeof *p->events);
    mem_grow(&p->places, &p->cap_places, p->n_events + 1, sizeof *p->places);
    p->places[p->n_events] = p->out.len;
    struct tool_event *ev = &p->events[p->n_events++];
    *ev = (struct tool_event){.kind = kind, .index = p->calls};
    return ev;
}

void parser_emit(struct tool_parser *p, enum tool_event_kind kind, const char *text, size_t n)
{
    if (!n) return;
    struct tool_event *last = p->n_events ? &p->events[p->n_events - 1] : NULL;
    if (!last || last->kind != kind) last = add_event(p, kind);
    last->n += n;
    buf_append(&p->out, text, n);
}

static void put_id(struct buf *out)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    unsigned char random[24];
    CHECK(getrandom(random, sizeof random, 0) == sizeof random); /* reads of so few bytes are never partial */
    buf_str(out, "call_");
    for (size_t i = 0; i < sizeof random; i++) buf_char(out, letters[random[i] % (sizeof letters - 1)]);
}

static void emit_begin(struct tool_parser *p, const char *name)
{
    add_event(p, TOOL_BEGIN);
    put_id(&p->out);
    buf_char(&p->out, 0);
    buf_append(&p->out, name, strlen(name) + 1);
}

/* Emits the call's end; text follows. */
static void emit_end(struct tool_parser *p, bool broken)
{
    add_event(p, TOOL_END)->broken = broken;
    p->calls++;
    p->behind_call = !broken;
    p->behind_marked = p->call.marked;
    p->closed = 0;
    p->start = p->grouped = false;
    p->state = p->in_list && !broken ? PARSER_LIST : PARSER_TEXT;
    p->in_list = p->in_list && !broken;
    buf_clear(&p->held);
}

void parser_emit_call(struct tool_parser *p, const char *name, const struct buf *arguments)
{
    emit_begin(p, name);
    parser_emit(p, TOOL_ARGUMENTS, arguments->data, arguments->len);
    p->call.marked = true;
    emit_end(p, false);
}

struct tool_events parser_handed_out(struct tool_parser *p)
{
    for (size_t i = 0; i < p->n_events; i++) {
        struct tool_event *ev = &p->events[i];
        const char *at = p->out.data + p->places[i];
        if (ev->kind != TOOL_BEGIN && ev->kind != TOOL_END) ev->text = at;
        if (ev->kind != TOOL_BEGIN) continue;
        ev->id = at;
        ev->name = at + TOOL_ID_SIZE;
    }
    return (struct tool_events){p->events, (int)p->n_events};
}

void parser_release(struct tool_parser *p)
{
    parser_emit(p, TOOL_CONTENT, p->held.data, p->held.len);
    buf_clear(&p->held);
    p->state = PARSER_TEXT;
    p->start = p->behind_call = p->grouped = p->in_list = false;
}

/* ---- a call's object ------------------------------------------------------------------------------------------- */

void parser_begin_object(struct tool_parser *p, bool marked)
{
    free(p->call.name);
    p->call = (struct candidate){.marked = marked};
    p->state = PARSER_OBJECT;
}

bool parser_begin_arguments(struct tool_parser *p, const char *name, size_t n)
{
    if (!n || n > TOOL_NAME_MAX || memchr(name, 0, n)) return false;
    char *copy = mem_alloc(n + 1);
    memcpy(copy, name, n);
    copy[n] = 0;
    parser_begin_object(p, true);
    p->call.name = copy;
    p->call.bare = true;
    return true;
}

static enum member find_member(const struct candidate *c)
{
    static const struct {
        const char *key;
        enum member member;
    } known[] = {{"name", MEMBER_NAME},
                 {"arguments", MEMBER_ARGUMENTS},
                 {"parameters", MEMBER_ARGUMENTS},
                 {"type", MEMBER_TYPE},
                 {"id", MEMBER_ID}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((size_t)c->key_len == strlen(known[i].key) && memcmp(c->key, known[i].key, strlen(known[i].key)) == 0)
            return known[i].member;
    return MEMBER_NONE;
}

/* Streaming: emits TOOL_BEGIN once the name is known and the arguments have begun. */
static void announce(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    if (!p->stream || c->announced || !c->name || !c->given) return;
    c->announced = true;
    emit_begin(p, p->call.name);
}

void parser_emit_arguments(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    size_t end = c->member == MEMBER_ARGUMENTS ? p->held.len : c->arguments_end;
    if (!c->given) return;
    parser_emit(p, TOOL_ARGUMENTS, p->held.data + c->arguments_at, end - c->arguments_at);
    c->arguments_at = end;
}

bool parser_is_tool(const struct tool_parser *p, const char *name)
{
    for (int i = 0; i < p->n_names; i++)
        if (strcmp(p->names[i], name) == 0) return true;
    return false;
}

static bool take_name(struct tool_parser *p, const char *literal, size_t n)
{
    cJSON *text = json_parse(literal, n, NULL);
    const char *s = cJSON_IsString(text) ? text->valuestring : "";
    size_t len = strlen(s);
    bool good = len && len <= TOOL_NAME_MAX && (p->call.marked || parser_is_tool(p, s));
    if (good) p->call.name = mem_strdup(s);
    json_free(text);
    return good;
}

/* The first byte of a member's value. */
static bool value_begin(struct candidate *c, char first, size_t at)
{
    enum member m = find_member(c);
    if (m == MEMBER_NONE || c->seen & 1u << m) return false;
    c->seen |= 1u << m;
    c->member = m;
    c->value_at = at;
    if (m != MEMBER_ARGUMENTS) return first == '"';
    c->given = first == '{';
    c->arguments_at = at;
    return c->given || (first == 'n' && c->marked);
}

/* The last byte of a member's value. */
static bool value_end(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    const char *value = p->held.data + c->value_at;
    size_t n = p->held.len - c->value_at;
    enum member m = c->member;
    c->member = MEMBER_NONE;
    if (m == MEMBER_ARGUMENTS) c->arguments_end = p->held.len;
    if (m == MEMBER_TYPE) return n == 10 && memcmp(value, "\"function\"", n) == 0;
    return m != MEMBER_NAME || take_name(p, value, n);
}

/* The byte, now the last of `held`, within the call's object; state and depth are those before it. */
static bool member_byte(struct tool_parser *p, char byte, enum scan_state state, int depth)
{
    struct candidate *c = &p->call;
    if (c->member) {
        if (c->scan.depth == 1 && c->scan.state == SCAN_AFTER) return value_end(p);
        return c->member == MEMBER_ARGUMENTS || p->held.len - c->value_at < NAME_LITERAL_MAX;
    }
    if (depth != 1) return true;
    if (c->in_key) {
        c->in_key = c->scan.state != SCAN_COLON;
        if (!c->in_key) return true;
        if (c->key_len == KEY_MAX) return false;
        c->key[c->key_len++] = byte;
    } else if (byte == '"' && (state == SCAN_OPEN || state == SCAN_NAME)) {
        c->in_key = true;
        c->key_len = 0;
    } else if (state == SCAN_VALUE && !is_space(byte)) {
        return value_begin(c, byte, p->held.len - 1);
    }
    return true;
}

/* The byte, now the last of `held`, within the arguments of a call whose name is known. */
static void argument_byte(struct tool_parser *p, char byte)
{
    struct candidate *c = &p->call;
    if (c->given || byte != '{') return;
    c->given = true;
    c->member = MEMBER_ARGUMENTS;
    c->arguments_at = p->held.len - 1;
}

/* The object is complete. */
static bool object_end(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    if (!c->name || (!c->given && !c->marked)) return false;
    if (!c->announced) emit_begin(p, c->name);
    if (c->bare) c->arguments_end = p->held.len;
    c->member = MEMBER_NONE;
    if (c->given) {
        parser_emit_arguments(p);
    } else {
        parser_emit(p, TOOL_ARGUMENTS, "{}", 2);
    }
    emit_end(p, false);
    return true;
}

bool parser_object_byte(struct tool_parser *p, char byte)
{
    struct candidate *c = &p->call;
    enum scan_state state = c->scan.state;
    int depth = c->scan.depth;
    enum scan_result r = json_scan_byte(&c->scan, (unsigned char)byte);
    if (r == SCAN_BAD || ++c->size > TOOL_CALL_MAX) return false;
    if (state == SCAN_VALUE && depth == 0 && byte != '{' && !is_space(byte)) return false;
    buf_char(&p->held, byte);
    if (c->bare) argument_byte(p, byte);
    if (r == SCAN_DONE ? object_end(p) : c->bare || member_byte(p, byte, state, depth)) {
        if (p->state == PARSER_OBJECT) announce(p);
        return true;
    }
    p->held.len--;
    return false;
}

void parser_object_fail(struct tool_parser *p)
{
    if (p->call.announced) {
        parser_emit_arguments(p);
        emit_end(p, true);
        return;
    }
    parser_release(p);
}
