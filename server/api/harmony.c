/* OpenAI's harmony format, which gpt-oss writes: messages with a header, of which each goes to a channel.
 *
 *      <|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>final<|message|>text<|return|>
 *      <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"x": 1}<|call|>
 *
 * The prompt ends with <|start|>assistant, and the recipient may also stand before the channel.  analysis is thoughts,
 * as is what goes to a tool of another kind than functions; commentary and final are text.  Text without any header
 * is text.
 *
 * Source: https://github.com/openai/harmony (docs/format.md). */
#include "server/api/tool_parser.h"

#include <string.h>

enum { HEADER_MAX = 600 };

enum harmony_mark { MARK_END, MARK_CALL, MARK_RETURN, MARK_START, MARK_CHANNEL, N_MARKS };

static const char *const marks[N_MARKS] = {"<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"};
static const char MESSAGE[] = "<|message|>";

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Text of the message that is open. */
static void put(struct tool_parser *p, const char *s, size_t n)
{
    bool thoughts = p->harmony.state == HARMONY_THOUGHTS;
    enum tool_event_kind kind = thoughts && p->reasoning != REASONING_NONE ? TOOL_THOUGHT : TOOL_CONTENT;
    if (!n) return;
    if (p->harmony.further) parser_emit(p, kind, "\n", 1);
    p->harmony.further = false;
    p->harmony.begun[kind == TOOL_THOUGHT] = true;
    parser_emit(p, kind, s, n);
}

static void begin_text(struct tool_parser *p, bool thoughts)
{
    p->harmony.state = thoughts ? HARMONY_THOUGHTS : HARMONY_TEXT;
    p->harmony.further = p->harmony.begun[thoughts && p->reasoning != REASONING_NONE];
}

/* ---- headers --------------------------------------------------------------------------------------------------- */

/* The word behind `mark` in the header, up to white space or a mark.  @return its length; 0: none. */
static size_t word_behind(const struct buf *header, const char *mark, const char **word)
{
    const char *at = memmem(header->data, header->len, mark, strlen(mark)), *end = header->data + header->len;
    size_t n = 0;
    if (!at) return 0;
    *word = at += strlen(mark);
    while (at + n < end && !is_space(at[n]) && at[n] != '<') n++;
    return n;
}

static void end_header(struct tool_parser *p)
{
    static const char functions[] = "functions.";
    const char *channel = "", *to = "";
    char name[TOOL_NAME_MAX];
    size_t n = word_behind(&p->held, "<|channel|>", &channel), n_to = word_behind(&p->held, "to=", &to), skip = 0;
    bool analysis = n == 8 && memcmp(channel, "analysis", 8) == 0;
    if (n_to > strlen(functions) && memcmp(to, functions, strlen(functions)) == 0) skip = strlen(functions);
    bool call = skip && p->format == TOOL_FORMAT_HARMONY && p->calls < TOOL_CALLS_MAX && n_to - skip <= sizeof name;
    if (call) memcpy(name, to + skip, n_to - skip);
    buf_clear(&p->held);
    if (call && parser_begin_arguments(p, name, n_to - skip)) {
        p->harmony.state = HARMONY_CALL;
        return;
    }
    begin_text(p, analysis || (n_to && !skip));
}

/* Whether the text so far may be the beginning of a header. */
static bool may_be_header(const struct buf *held)
{
    static const char *const starts[] = {"<|start|>", "<|channel|>", "<|message|>", "to="};
    size_t lead = 0;
    while (lead < held->len && is_space(held->data[lead])) lead++;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        size_t n = held->len - lead, len = strlen(starts[i]);
        if (memcmp(held->data + lead, starts[i], n < len ? n : len) == 0) return true;
    }
    return false;
}

static void header_byte(struct tool_parser *p, char c)
{
    size_t n = sizeof MESSAGE - 1;
    buf_char(&p->held, c);
    if (p->held.len >= n && memcmp(p->held.data + p->held.len - n, MESSAGE, n) == 0) {
        end_header(p);
    } else if (p->held.len > HEADER_MAX || !may_be_header(&p->held)) {
        begin_text(p, false);
        put(p, p->held.data, p->held.len);
        buf_clear(&p->held);
    }
}

/* ---- messages -------------------------------------------------------------------------------------------------- */

/* @return the mark that is held, or N_MARKS; *prefix: whether it may become one. */
static enum harmony_mark match(const struct tool_parser *p, bool *prefix)
{
    *prefix = false;
    for (int m = 0; m < N_MARKS; m++) {
        size_t len = strlen(marks[m]), n = p->held.len;
        if (n > len || memcmp(marks[m], p->held.data, n) != 0) continue;
        if (n == len) return (enum harmony_mark)m;
        *prefix = true;
    }
    return N_MARKS;
}

static void found(struct tool_parser *p, enum harmony_mark m)
{
    p->harmony.state = HARMONY_HEADER;
    p->harmony.in_mark = false;
    if (m < MARK_START) buf_clear(&p->held); /* the others begin a header */
}

static void message_byte(struct tool_parser *p, char c)
{
    if (p->harmony.in_mark) {
        bool prefix;
        buf_char(&p->held, c);
        enum harmony_mark m = match(p, &prefix);
        if (m < N_MARKS) found(p, m);
        if (m < N_MARKS || prefix) return;
        p->harmony.in_mark = false;
        if (p->harmony.state == HARMONY_CALL) begin_text(p, false);
        put(p, p->held.data, p->held.len - 1);
        buf_clear(&p->held);
    }
    if (c == '<') {
        p->harmony.in_mark = true;
        buf_char(&p->held, c);
    } else if (p->harmony.state != HARMONY_CALL) {
        put(p, &c, 1);
    } else if (!is_space(c)) { /* behind the arguments */
        begin_text(p, false);
        put(p, &c, 1);
    }
}

void harmony_feed(struct tool_parser *p, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p->state == PARSER_OBJECT) {
            if (parser_object_byte(p, text[i])) continue;
            parser_object_fail(p);
            begin_text(p, false);
            p->harmony.further = false; /* the text goes on */
        }
        if (p->harmony.state == HARMONY_HEADER)
            header_byte(p, text[i]);
        else
            message_byte(p, text[i]);
    }
}

void harmony_finish(struct tool_parser *p)
{
    if (p->state == PARSER_OBJECT) {
        parser_object_fail(p);
    } else if (p->harmony.in_mark) {
        if (p->harmony.state == HARMONY_CALL) begin_text(p, false);
        put(p, p->held.data, p->held.len);
    }
    buf_clear(&p->held); /* a header without a message */
}
