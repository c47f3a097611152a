/* Internals of the parser of tool_calls.h: tool_calls.c (text and marks), tool_object.c (a call's object, events) and
 * harmony.c only. */
#ifndef TANDEM_SERVER_API_TOOL_PARSER_H
#define TANDEM_SERVER_API_TOOL_PARSER_H

#include "server/api/thinking.h"
#include "server/api/tool_calls.h"
#include "server/json/scan.h"

enum member { MEMBER_NONE, MEMBER_NAME, MEMBER_ARGUMENTS, MEMBER_TYPE, MEMBER_ID };

enum { KEY_MAX = 16 };

/* An object that may be a call. */
struct candidate {
    struct json_scan scan;
    bool marked;    /* after a mark: may name an unknown tool */
    bool announced; /* TOOL_BEGIN was emitted; only with stream */
    bool bare;      /* the name is known: the object is its arguments */
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

enum parser_state {
    PARSER_TEXT,
    PARSER_MARK,   /* held[mark_at...) may become a mark */
    PARSER_OPEN,   /* behind a mark that a call follows */
    PARSER_HEADER, /* held[body_at...) is a header with the name */
    PARSER_OBJECT,
    PARSER_LIST, /* between the objects of a list */
    PARSER_BODY, /* held[body_at...) is a call, or a list of calls, that is read when it is complete */
};

struct harmony {
    enum { HARMONY_HEADER, HARMONY_TEXT, HARMONY_THOUGHTS, HARMONY_CALL } state;
    bool in_mark;
    bool begun[2]; /* there was text, thoughts */
    bool further;  /* the message is not the first of its kind: a line break comes before it */
};

struct tool_parser {
    const struct output_format *f;
    enum tool_format format;
    enum reasoning_format reasoning;
    bool stream;
    const char *const *names; /* from the config */
    int n_names, calls;
    const cJSON *tools;

    struct thinking thinking;
    struct buf thoughts, text; /* of thinking_feed */

    enum parser_state state;
    struct buf held; /* text that may be part of a call: white space, then a mark, then the call */
    size_t mark_at;  /* where the mark being read begins in `held` */
    size_t body_at;
    unsigned form;      /* enum call_form of PARSER_BODY */
    bool start;         /* nothing but white space so far */
    bool grouped;       /* and a mark of a group */
    bool behind_call;   /* nothing but white space since the last call */
    unsigned closed;    /* bit for each closing mark since */
    bool behind_marked; /* that call had a mark, which also covers the calls after it */
    bool in_list, list_marked;
    bool finished;
    struct candidate call;
    /* PARSER_BODY, Python's form */
    char quote;
    bool escaped, named;
    int depth;

    struct harmony harmony;

    struct tool_event *events;
    size_t *places; /* of each event's text or id in `out` */
    size_t n_events, cap_events, cap_places;
    struct buf out;
};

/* ---- tool_object.c --------------------------------------------------------------------------------------------- */

/* TOOL_THOUGHT, TOOL_CONTENT or TOOL_ARGUMENTS: extends the last event if it has that kind. */
void parser_emit(struct tool_parser *, enum tool_event_kind, const char *text, size_t n);
/* A whole call. */
void parser_emit_call(struct tool_parser *, const char *name, const struct buf *arguments);
/* The buffered arguments of an announced call. */
void parser_emit_arguments(struct tool_parser *);
struct tool_events parser_handed_out(struct tool_parser *);
/* The held text is not part of a call: emits it as content. */
void parser_release(struct tool_parser *);
bool parser_is_tool(const struct tool_parser *, const char *name);

void parser_begin_object(struct tool_parser *, bool marked);
/* The arguments of a call of that name (n bytes) follow.  @return false: it is no name. */
bool parser_begin_arguments(struct tool_parser *, const char *name, size_t n);
/* @return false when the byte, which is not consumed, shows that the object is not a call. */
bool parser_object_byte(struct tool_parser *, char byte);
/* The object is malformed, or the text ends within it. */
void parser_object_fail(struct tool_parser *);

/* ---- harmony.c ------------------------------------------------------------------------------------------------- */

void harmony_feed(struct tool_parser *, const char *text, size_t n);
void harmony_finish(struct tool_parser *);

#endif
