/* Parses what a model generates, while it is generated: its thoughts, its calls of tools in OpenAI's shape, and the
 * text beside them.  How they are written is a row of output_formats.h.
 *
 * Thoughts come first, and no call is found within them.  Calls may have text before, between and behind them, unless
 * they are recognised without a mark: such a call stands at the start of the answer, or behind another call, and names
 * one of the tools.
 *
 * A call's object has name (a text of 1 to 256 bytes), arguments or parameters (an object, in any format), and at most
 * type ("function") and id (a text) besides, in any order.  After a mark, arguments may be missing or null: {}.  A
 * closing mark may be missing.  Arguments that are not JSON in the text become JSON (call_text.h), and such a call is
 * handed out when it is complete.
 *
 * Everything else is content and is passed on byte for byte: bad JSON (by the rules of json.h, except that numbers may
 * be out of range), another shape, nesting deeper than 64, more than TOOL_CALL_MAX bytes, calls after the first
 * TOOL_CALLS_MAX.  Content is buffered only while it may be the start of a mark, or white space before one: white space
 * before a call and behind the last one belongs to the calls and is dropped, as is white space around thoughts.
 *
 * How the text is split between calls of the parser affects only how the deltas are split.  One thread at a time; time
 * and memory are linear in the text. */
#ifndef TANDEM_SERVER_API_TOOL_CALLS_H
#define TANDEM_SERVER_API_TOOL_CALLS_H

#include "engine/base/buf.h"
#include "server/api/output_formats.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum { TOOL_CALL_MAX = 1 << 20, TOOL_CALLS_MAX = 128, TOOL_NAME_MAX = 256, TOOL_ID_SIZE = 30 };

enum tool_event_kind {
    TOOL_THOUGHT,   /* text of the thoughts */
    TOOL_CONTENT,   /* text */
    TOOL_BEGIN,     /* a call: index, id, name; its arguments follow */
    TOOL_ARGUMENTS, /* text: the next bytes of the arguments' JSON object */
    TOOL_END,       /* the call is complete, or broken */
};

struct tool_event {
    enum tool_event_kind kind;
    int index;        /* of the call, from 0 */
    const char *id;   /* TOOL_BEGIN: "call_" and 24 letters and digits, random */
    const char *name; /* TOOL_BEGIN */
    const char *text; /* TOOL_THOUGHT, TOOL_CONTENT, TOOL_ARGUMENTS: not empty, not NUL-terminated; whole UTF-8
                         characters if the text fed was split between characters */
    size_t n;
    bool broken; /* TOOL_END: only with stream; what follows in the text is content */
};

struct tool_events {
    const struct tool_event *v; /* the parser's, until the next call on it */
    int n;
};

struct tool_parser;

struct tool_parser_config {
    enum tool_format format; /* TOOL_FORMAT_NONE: nothing is a call */
    enum reasoning_format reasoning;
    /* false: a call is handed out when it is complete (BEGIN, one ARGUMENTS, END together); all that is no call is
     * content.  true: BEGIN as soon as the name is known and the arguments begin, then their bytes as they come; a call
     * that breaks after that, or whose text ends early, keeps what was handed out and ends as broken. */
    bool stream;
    bool thinking;            /* the prompt ended within thoughts: the answer begins there */
    const char *const *names; /* the tools' (n_names), which outlive the parser; see above for what they are for */
    int n_names;
    const cJSON *tools; /* OpenAI's, for the types of arguments that are written as text; NULL: not known; likewise */
};

struct tool_parser *tool_parser_new(const struct tool_parser_config *); /* never NULL */
void tool_parser_free(struct tool_parser *);                            /* NULL is allowed */

/* The next bytes of the generated text; n may be 0. */
struct tool_events tool_parser_feed(struct tool_parser *, const char *text, size_t n);
/* The text ends here: what was held back.  Once; nothing may be fed after it. */
struct tool_events tool_parser_finish(struct tool_parser *);
/* Calls handed out so far: not 0 makes finish_reason "tool_calls" where it would be "stop". */
int tool_parser_calls(const struct tool_parser *);

/* ---- as JSON --------------------------------------------------------------------------------------------------- */

/* What was collected from events: a whole answer, or what a stream has not sent yet.  One entry per call, whatever
 * number of events told of it.  Zero-initialise; tool_answer_free. */
struct tool_answer {
    struct buf thoughts, content;
    struct tool_call {
        int index;
        char id[TOOL_ID_SIZE];
        char *name; /* owned; NULL: the call began before what was collected, and id is empty */
        struct buf arguments;
    } * calls;
    size_t n, cap;
};

void tool_answer_add(struct tool_answer *, struct tool_events);
/* The only entry of a chunk's delta.tool_calls, from the first call collected: {"index":0,"id":...,"type":"function",
 * "function":{"name":...,"arguments":"{"}}, then {"index":0,"function":{"arguments":"..."}}.  Clients append the
 * entries of their first chunk without looking at the indices, and some read only the first entry of a chunk. */
void tool_put_delta(struct buf *out, const struct tool_answer *);
/* The chunk was sent: the first call collected is dropped. */
void tool_answer_drop(struct tool_answer *);
/* The message's tool_calls: [{"id":...,"type":"function","function":{"name":...,"arguments":"..."}}, ...] */
void tool_answer_put(struct buf *out, const struct tool_answer *);
void tool_answer_free(struct tool_answer *);

#endif
