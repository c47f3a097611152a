/* The tool call parser (tool_calls.h).  Two state machines: one for the text, which buffers marks and white space that
 * may belong to a call; and within it one for a call's object, which json_scan checks byte by byte while its members
 * are extracted. */
#include "server/api/tool_calls.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "server/json/json.h"
#include "server/json/scan.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum mark { MARK_THINK, MARK_THINK_END, MARK_CALL, MARK_CALL_END, MARK_PYTHON, N_MARKS };

/* Each begins with the only '<' it has, so that after a mismatch only the last byte can begin another. */
static const char *const marks[N_MARKS] = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"};

enum member { MEMBER_NONE, MEMBER_NAME, MEMBER_ARGUMENTS, MEMBER_TYPE, MEMBER_ID };

enum { KEY_MAX = 16, NAME_LITERAL_MAX = 6 * TOOL_NAME_MAX + 2 }; /* \u00xx for each byte, and the quotes */

/* An object that may be a call. */
struct candidate {
    struct json_scan scan;
    bool marked;    /* after a mark: may name an unknown tool */
    bool announced; /* TOOL_BEGIN was emitted; only with stream */
    bool in_key;
    char key[KEY_MAX]; /* raw key of the member being read */
    int key_len;
    enum member member;                 /* whose value is being read */
    unsigned seen;                      /* bit for each enum member */
    size_t value_at;                    /* where in `held` that value began */
    bool given;                         /* the arguments have begun, and are not null */
    size_t arguments_at, arguments_end; /* in `held`: the part not yet emitted */
    size_t size;                        /* bytes so far */
    char *name;                         /* owned; NULL: not known yet */
};

struct tool_parser {
    enum tool_format format;
    bool stream;
    const char *const *names; /* from the config */
    int n_names, calls;

    struct buf held; /* text that may be part of a call: white space, then a mark, then an object */
    size_t mark_at;  /* where the mark being read begins in `held` */
    bool in_mark, in_object;
    bool start;         /* nothing but white space (and thoughts) so far */
    bool behind_call;   /* nothing but white space since the last call */
    bool closed;        /* and its closing mark */
    bool behind_marked; /* that call had a mark, which also covers the calls after it */
    bool thinking, finished;
    struct candidate call;

    struct tool_event *events;
    size_t *places; /* of each event's text or id in `out` */
    size_t n_events, cap_events, cap_places;
    struct buf out;
};

/* ---- formats --------------------------------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool has(const char *s, size_t n, const char *what)
{
    return s && n && memmem(s, n, what, strlen(what));
}

enum tool_format tool_format_detect(const char *source, size_t n)
{
    /* Other models write XML or their own lists between the same marks (Qwen3-Coder, GLM). */
    bool other = has(source, n, "<function=") || has(source, n, "<arg_key>");
    if (has(source, n, "<tool_call>")) return other ? TOOL_FORMAT_NONE : TOOL_FORMAT_HERMES;
    bool llama =
        has(source, n, "<|python_tag|>") || (has(source, n, "{\"name\": ") && has(source, n, "\"parameters\": "));
    return llama ? TOOL_FORMAT_LLAMA3 : TOOL_FORMAT_NONE;
}

enum tool_format tool_format_choose(const char *option, enum tool_format detected)
{
    if (strcmp(option, "hermes") == 0) return TOOL_FORMAT_HERMES;
    if (strcmp(option, "llama3_json") == 0) return TOOL_FORMAT_LLAMA3;
    return strcmp(option, "none") == 0 ? TOOL_FORMAT_NONE : detected;
}

bool tool_prompt_thinks(const char *prompt, size_t n)
{
    const char *mark = marks[MARK_THINK];
    size_t len = strlen(mark);
    while (n && is_space(prompt[n - 1])) n--;
    return n >= len && memcmp(prompt + n - len, mark, len) == 0;
}

static bool format_has(enum tool_format format, enum mark m)
{
    if (m == MARK_PYTHON) return format == TOOL_FORMAT_LLAMA3;
    return m == MARK_CALL || m == MARK_CALL_END ? format == TOOL_FORMAT_HERMES : format != TOOL_FORMAT_NONE;
}

bool tool_format_is_mark(enum tool_format format, const char *text, size_t n)
{
    for (int m = MARK_CALL; m < N_MARKS; m++)
        if (format_has(format, m) && strlen(marks[m]) == n && memcmp(marks[m], text, n) == 0) return true;
    return false;
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

/* TOOL_CONTENT or TOOL_ARGUMENTS: extends the last event if it has that kind. */
static void emit(struct tool_parser *p, enum tool_event_kind kind, const char *text, size_t n)
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

static void emit_begin(struct tool_parser *p)
{
    add_event(p, TOOL_BEGIN);
    put_id(&p->out);
    buf_char(&p->out, 0);
    buf_append(&p->out, p->call.name, strlen(p->call.name) + 1);
}

/* Emits the call's end; text follows. */
static void emit_end(struct tool_parser *p, bool broken)
{
    add_event(p, TOOL_END)->broken = broken;
    p->calls++;
    p->behind_call = !broken;
    p->behind_marked = p->call.marked;
    p->closed = p->in_object = p->start = false;
    buf_clear(&p->held);
}

static struct tool_events handed_out(struct tool_parser *p)
{
    for (size_t i = 0; i < p->n_events; i++) {
        struct tool_event *ev = &p->events[i];
        const char *at = p->out.data + p->places[i];
        if (ev->kind == TOOL_CONTENT || ev->kind == TOOL_ARGUMENTS) ev->text = at;
        if (ev->kind != TOOL_BEGIN) continue;
        ev->id = at;
        ev->name = at + TOOL_ID_SIZE;
    }
    return (struct tool_events){p->events, (int)p->n_events};
}

/* The held text is not part of a call: emits it as content. */
static void release(struct tool_parser *p)
{
    emit(p, TOOL_CONTENT, p->held.data, p->held.len);
    buf_clear(&p->held);
    p->in_mark = p->start = p->behind_call = false;
}

/* ---- a call's object ------------------------------------------------------------------------------------------- */

static void candidate_begin(struct tool_parser *p, bool marked)
{
    free(p->call.name);
    p->call = (struct candidate){.marked = marked};
    p->in_mark = false;
    p->in_object = true;
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
    emit_begin(p);
}

/* Emits the buffered arguments of an announced call. */
static void emit_arguments(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    size_t end = c->member == MEMBER_ARGUMENTS ? p->held.len : c->arguments_end;
    if (!c->given) return;
    emit(p, TOOL_ARGUMENTS, p->held.data + c->arguments_at, end - c->arguments_at);
    c->arguments_at = end;
}

static bool is_tool(const struct tool_parser *p, const char *name)
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
    bool good = len && len <= TOOL_NAME_MAX && (p->call.marked || is_tool(p, s));
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

/* The object is complete. */
static bool object_end(struct tool_parser *p)
{
    struct candidate *c = &p->call;
    if (!c->name || (!c->given && !c->marked)) return false;
    if (!c->announced) emit_begin(p);
    if (c->given) {
        emit_arguments(p);
    } else {
        emit(p, TOOL_ARGUMENTS, "{}", 2);
    }
    emit_end(p, false);
    return true;
}

/* @return false when the byte, which is not consumed, shows that the object is not a call. */
static bool object_byte(struct tool_parser *p, char byte)
{
    struct candidate *c = &p->call;
    enum scan_state state = c->scan.state;
    int depth = c->scan.depth;
    enum scan_result r = json_scan_byte(&c->scan, (unsigned char)byte);
    if (r == SCAN_BAD || ++c->size > TOOL_CALL_MAX) return false;
    if (state == SCAN_VALUE && depth == 0 && byte != '{' && !is_space(byte)) return false;
    buf_char(&p->held, byte);
    if (r == SCAN_DONE ? object_end(p) : member_byte(p, byte, state, depth)) {
        if (p->in_object) announce(p);
        return true;
    }
    p->held.len--;
    return false;
}

/* The object is malformed, or the text ends within it. */
static void object_fail(struct tool_parser *p)
{
    if (p->call.announced) {
        emit_arguments(p);
        emit_end(p, true);
        return;
    }
    p->in_object = false;
    release(p);
}

/* ---- the text around it ---------------------------------------------------------------------------------------- */

static bool mark_active(const struct tool_parser *p, enum mark m)
{
    if (!format_has(p->format, m)) return false;
    if (m == MARK_THINK_END) return p->thinking;
    if (m == MARK_THINK) return p->start && !p->thinking;
    if (m == MARK_CALL_END) return p->behind_call && !p->closed;
    return !p->thinking;
}

/* @return the mark at held[mark_at...), or N_MARKS; *prefix: whether it may become one. */
static enum mark mark_match(const struct tool_parser *p, bool *prefix)
{
    size_t n = p->held.len - p->mark_at;
    *prefix = false;
    for (int m = 0; m < N_MARKS; m++) {
        size_t len = strlen(marks[m]);
        if (n > len || memcmp(marks[m], p->held.data + p->mark_at, n) != 0 || !mark_active(p, m)) continue;
        if (n == len) return m;
        *prefix = true;
    }
    return N_MARKS;
}

static void mark_found(struct tool_parser *p, enum mark m)
{
    p->in_mark = false;
    if (m == MARK_CALL_END) {
        p->closed = true;
        buf_clear(&p->held);
    } else if (m == MARK_THINK || m == MARK_THINK_END) {
        release(p);
        p->thinking = m == MARK_THINK;
        p->start = m == MARK_THINK_END;
    } else if (p->calls < TOOL_CALLS_MAX) {
        candidate_begin(p, true);
    } else {
        release(p);
    }
}

static void text_byte(struct tool_parser *p, char c)
{
    bool llama = p->format == TOOL_FORMAT_LLAMA3, may_call = p->start || p->behind_call;
    if (p->in_mark) {
        bool prefix;
        buf_char(&p->held, c);
        enum mark m = mark_match(p, &prefix);
        if (m < N_MARKS) mark_found(p, m);
        if (m < N_MARKS || prefix) return;
        p->held.len--;
        release(p);
        may_call = false;
    }
    if (c == '<') {
        p->in_mark = true;
        p->mark_at = p->held.len;
        buf_char(&p->held, c);
    } else if ((is_space(c) && !p->thinking) || (llama && c == ';' && p->behind_call)) {
        buf_char(&p->held, c);
    } else if (llama && c == '{' && may_call && p->calls < TOOL_CALLS_MAX) {
        candidate_begin(p, p->behind_call && p->behind_marked);
        object_byte(p, c);
    } else {
        release(p);
        emit(p, TOOL_CONTENT, &c, 1);
    }
}

struct tool_events tool_parser_feed(struct tool_parser *p, const char *text, size_t n)
{
    CHECK(!p->finished);
    p->n_events = 0;
    buf_clear(&p->out);
    if (p->format == TOOL_FORMAT_NONE) {
        emit(p, TOOL_CONTENT, text, n);
        n = 0;
    }
    for (size_t i = 0; i < n; i++) {
        if (p->in_object) {
            if (object_byte(p, text[i])) continue;
            object_fail(p);
        }
        text_byte(p, text[i]);
    }
    if (p->in_object && p->call.announced) emit_arguments(p);
    return handed_out(p);
}

struct tool_events tool_parser_finish(struct tool_parser *p)
{
    CHECK(!p->finished);
    p->finished = true;
    p->n_events = 0;
    buf_clear(&p->out);
    if (p->in_object) {
        object_fail(p);
    } else if (p->in_mark || !p->behind_call) {
        release(p);
    }
    return handed_out(p);
}

int tool_parser_calls(const struct tool_parser *p)
{
    return p->calls + (p->in_object && p->call.announced);
}

struct tool_parser *tool_parser_new(const struct tool_parser_config *c)
{
    struct tool_parser *p = mem_zalloc(sizeof *p);
    p->format = c->format;
    p->stream = c->stream;
    p->thinking = c->thinking;
    p->start = !c->thinking;
    p->n_names = c->n_names;
    p->names = c->names;
    return p;
}

void tool_parser_free(struct tool_parser *p)
{
    if (!p) return;
    free(p->call.name);
    free(p->events);
    free(p->places);
    buf_free(&p->held);
    buf_free(&p->out);
    free(p);
}

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

static void put_function(struct buf *out, const char *id, const char *name, const char *arguments, size_t n)
{
    if (id) buf_printf(out, "\"id\":\"%s\",\"type\":\"function\",", id);
    buf_str(out, "\"function\":{");
    if (name) {
        buf_str(out, "\"name\":");
        json_put_string(out, name, strlen(name));
        buf_char(out, ',');
    }
    buf_str(out, "\"arguments\":");
    json_put_string(out, arguments, n);
    buf_str(out, "}}");
}

static void put_call(struct buf *out, const struct tool_call *c)
{
    put_function(out, c->name ? c->id : NULL, c->name, c->arguments.data ? c->arguments.data : "", c->arguments.len);
}

void tool_put_delta(struct buf *out, const struct tool_answer *a)
{
    buf_printf(out, "{\"index\":%d,", a->calls[0].index);
    put_call(out, &a->calls[0]);
}

static struct tool_call *last_call(struct tool_answer *a, int index)
{
    if (a->n && a->calls[a->n - 1].index == index) return &a->calls[a->n - 1];
    mem_grow(&a->calls, &a->cap, a->n + 1, sizeof *a->calls);
    struct tool_call *c = &a->calls[a->n++];
    *c = (struct tool_call){.index = index};
    return c;
}

void tool_answer_add(struct tool_answer *a, struct tool_events events)
{
    for (int i = 0; i < events.n; i++) {
        const struct tool_event *ev = &events.v[i];
        if (ev->kind == TOOL_CONTENT) buf_append(&a->content, ev->text, ev->n);
        if (ev->kind == TOOL_ARGUMENTS) buf_append(&last_call(a, ev->index)->arguments, ev->text, ev->n);
        if (ev->kind != TOOL_BEGIN) continue;
        struct tool_call *c = last_call(a, ev->index);
        c->name = mem_strdup(ev->name);
        memcpy(c->id, ev->id, sizeof c->id);
    }
}

void tool_answer_drop(struct tool_answer *a)
{
    if (!a->n) return;
    free(a->calls[0].name);
    buf_free(&a->calls[0].arguments);
    memmove(a->calls, a->calls + 1, --a->n * sizeof *a->calls);
}

void tool_answer_put(struct buf *out, const struct tool_answer *a)
{
    buf_char(out, '[');
    for (size_t i = 0; i < a->n; i++) {
        buf_str(out, i ? ",{" : "{");
        put_call(out, &a->calls[i]);
    }
    buf_char(out, ']');
}

void tool_answer_free(struct tool_answer *a)
{
    for (size_t i = 0; i < a->n; i++) {
        free(a->calls[i].name);
        buf_free(&a->calls[i].arguments);
    }
    free(a->calls);
    buf_free(&a->content);
    *a = (struct tool_answer){0};
}
