/* What a generated text must look like, as requests ask for it: read from the request's JSON, compiled to a grammar of
 * the engine, kept for the next request that asks for the same.
 *
 * A route goes: constraint_read_* while it checks its fields (cheap: the text is copied, nothing is compiled) ->
 * grammar_cache_compile, when ask.kind is set -> gen_request.grammar.  Compilation is bounded (constraint_build's
 * limits) and runs on the thread pool, so no schema holds the loop up.  Loop thread, but for constraint_build (any). */
#ifndef TANDEM_SERVER_SCHEMA_CONSTRAINT_H
#define TANDEM_SERVER_SCHEMA_CONSTRAINT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/grammar/grammar.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

enum constraint_kind {
    CONSTRAINT_NONE,        /* any text */
    CONSTRAINT_JSON_OBJECT, /* any JSON object */
    CONSTRAINT_JSON_SCHEMA, /* a JSON document that the schema in `text` allows: docs/constrained.md says what of it */
    CONSTRAINT_REGEX,       /* what re.fullmatch(text) matches */
    CONSTRAINT_CHOICE,      /* one of the strings in the JSON array `text` */
};

/* Zero-initialise; constraint_ask_free frees. */
struct constraint_ask {
    enum constraint_kind kind;
    const char *field;        /* what asked, for messages ("response_format"); static */
    struct buf text;          /* as above; the whole identity of what is asked: equal asks share a grammar */
    struct buf before, after; /* the generated text is before, the constrained text, after; empty but for tools */
};

enum {
    CONSTRAINT_TEXT_MAX = 128 * 1024, /* bytes of a schema, written compactly */
    CONSTRAINT_REGEX_MAX = 16 * 1024,
    CONSTRAINT_CHOICE_MAX = 4096 /* strings */
};

/* TGI: the value of `parameters.grammar`: {"type": "json" | "json_object" | "json_schema" | "regex", "value": ...}.
 * NULL and null ask for nothing.  True, or *e is set: one sentence that does not name the field (so that TGI's "grammar
 * is not valid: " can stand before it). */
bool constraint_read_tgi(struct constraint_ask *, const cJSON *grammar, struct err *e);
/* OpenAI and vLLM: `response_format` and `structured_outputs` (and vLLM's older guided_json, guided_regex,
 * guided_choice) among the fields of the request `top`.  Response formats are text, json_object, json_schema, and TGI's
 * chat forms {"type": "json" | "json_object" | "regex", "value": ...}.  Asking twice is an error.  True, or *e is set:
 * the message begins with the field at fault ("response_format.json_schema: ...", "structured_outputs: ..."). */
bool constraint_read_openai(struct constraint_ask *, const cJSON *top, struct err *e);
/* The same by hand: a document of `schema` between two texts (NULL: none), as for tool calls.  False with *e when the
 * schema is too large; field: static, for messages. */
bool constraint_set_schema(struct constraint_ask *, const char *field, const char *before, const cJSON *schema,
                           const char *after, struct err *e);
void constraint_ask_free(struct constraint_ask *);

/* Compiles; any thread.  NULL and *e: ERR_INVALID with a sentence that names the place (a JSON pointer into the schema,
 * a byte of the regex) or the limit.  Bounded time and memory: what is too large is refused. */
struct grammar *constraint_build(const struct constraint_ask *, struct err *e);

#endif
