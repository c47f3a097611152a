/* Parses the tool calls that a model writes into its text, while the text is generated, into OpenAI's shape.
 *
 * hermes (Qwen 2.5 and 3, Hermes): any number of calls, with text before, between and behind them; none within a
 * leading <think> ... </think>:
 *      <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>
 *
 * llama3_json (Llama 3): at the start of the answer, or after <|python_tag|>; several are separated by ";" or white
 * space:
 *      {"name": "f", "parameters": {"x": 1}}
 *
 * A call's object has name (a text of 1 to 256 bytes), arguments or parameters (an object, in either format), and at
 * most type ("function") and id (a text) besides, in any order.  After a mark, arguments may be missing or null: {}.
 * An object without a mark is only a call when it names one of the tools.  A closing mark may be missing.
 *
 * Everything else is content and is passed on byte for byte: bad JSON (by the rules of json.h, except that numbers may
 * be out of range), another shape, nesting deeper than 64, more than TOOL_CALL_MAX bytes, calls after the first
 * TOOL_CALLS_MAX.  Content is buffered only while it may be the start of a mark, or white space before one: white space
 * before a call and behind the last one belongs to the calls and is dropped.
 *
 * How the text is split between calls of the parser affects only how the deltas are split.  One thread at a time; time
 * and memory are linear in the text. */
#ifndef TANDEM_SERVER_API_TOOL_CALLS_H
#define TANDEM_SERVER_API_TOOL_CALLS_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>

enum tool_format { TOOL_FORMAT_NONE, TOOL_FORMAT_HERMES, TOOL_FORMAT_LLAMA3 };

/* What a chat template's source (n bytes; NULL: none) teaches the model to write. */
enum tool_format tool_format_detect(const char *source, size_t n);
/* --tool-call-parser: "auto" (then `detected`), "hermes", "llama3_json", "none". */
enum tool_format tool_format_choose(const char *option, enum tool_format detected);
/* Whether a prompt ends within <think>, as those of some templates do: the answer begins with thoughts. */
bool tool_prompt_thinks(const char *prompt, size_t n);
/* A special token's text (which the generated text does not have) that the parser is to be fed all the same. */
bool tool_format_is_mark(enum tool_format, const char *text, size_t n);

enum { TOOL_CALL_MAX = 1 << 20, TOOL_CALLS_MAX = 128, TOOL_NAME_MAX = 256, TOOL_ID_SIZE = 30 };

enum tool_event_kind {
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
    const char *text; /* TOOL_CONTENT, TOOL_ARGUMENTS: not empty, not NUL-terminated; whole UTF-8 characters if the
                         text fed was split between characters */
    size_t n;
    bool broken; /* TOOL_END: only with stream; what follows in the text is content */
};

struct tool_events {
    const struct tool_event *v; /* the parser's, until the next call on it */
    int n;
};

struct tool_parser;

struct tool_parser_config {
    enum tool_format format; /* TOOL_FORMAT_NONE: everything is content, at once */
    /* false: a call is handed out when it is complete (BEGIN, one ARGUMENTS, END together); all that is no call is
     * content.  true: BEGIN as soon as the name is known and the arguments begin, then their bytes as they come; a call
     * that breaks after that, or whose text ends early, keeps what was handed out and ends as broken. */
    bool stream;
    bool thinking;            /* the prompt ended with <think>: the answer begins within */
    const char *const *names; /* the tools' (n_names), which outlive the parser; see above for what they are for */
    int n_names;
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
    struct buf content;
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
