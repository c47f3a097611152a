/* Grammars of calls: those that tool_choice demands, and those that an answer may have (answer.h).  Pure; any thread. */
#ifndef TANDEM_SERVER_SCHEMA_CALLS_H
#define TANDEM_SERVER_SCHEMA_CALLS_H

#include "server/schema/jexpr.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* How arguments are written. */
enum call_arguments {
    ARGUMENTS_JSON,    /* the document that the tool's schema describes */
    ARGUMENTS_XML,     /* <parameter=KEY>\nVALUE\n</parameter>\n for each property; texts as they are */
    ARGUMENTS_PYTHON,  /* key=value, ...; values as in JSON, but for True and False */
    ARGUMENTS_ESCAPED, /* {key:value,...}; texts between two of `quote` */
};

/* The text of a list of calls: first, then before NAME between ARGUMENTS after, ..., with `next` between them, last. */
struct call_shape {
    const char *first, *before, *between, *after, *next, *last;
    enum call_arguments arguments;
    const char *quote;
    bool single; /* one call for each answer, whatever is asked for */
};

/* Within the texts of a call_shape: the mark between two of these bytes is a special token of the vocabulary. */
#define CALLS_SPECIAL '\1'

enum { CALLS_MORE_MAX = 15 /* calls behind the first */ };

/* The calls as a constraint's text: {"shape": [first, before, between, after, next, last, quote], "arguments": n,
 * "many": bool, "tools": [{"name": ..., "parameters": schema} or {"name": ..., "any": true}, ...]} -> the expression;
 * fails the pool where a schema is not supported.  any: whatever arguments the model writes.  Beside parameters,
 * "described": true: also where texts are written as they are they keep to the schema's pattern or grammar, which is to
 * say where such a text ends. */
jx calls_expression(struct jpool *, const cJSON *calls);
/* A text of a call_shape. */
jx calls_text(struct jpool *, const char *text);

#endif
