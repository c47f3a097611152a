/* Constraints on generated text: read from a request's JSON, compiled to a grammar of the engine, cached for requests
 * with the same constraint.
 *
 * Steps of a route: constraint_read_* while it checks its fields (cheap: copies the text, compiles nothing) ->
 * grammar_cache_compile, when request.kind is set -> gen_request.grammar.  Compilation is bounded (constraint_build's
 * limits) and runs on the thread pool, so no schema blocks the loop.  Loop thread, except constraint_build (any). */
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
    CONSTRAINT_JSON_SCHEMA, /* a JSON document valid for the schema in `text`, as far as docs/constrained.md supports it
                             */
    CONSTRAINT_REGEX,       /* what re.fullmatch(text) matches */
    CONSTRAINT_CHOICE,      /* one of the strings in the JSON array `text` */
    CONSTRAINT_CALLS,       /* the calls of tools that the JSON object `text` describes (calls.h) */
    CONSTRAINT_MAY_CALL,    /* any text, which may have such calls: `text` also describes what is around them
                               (answer.h), as "free" */
};

/* A requested constraint.  Zero-initialise; release with constraint_request_free. */
struct constraint_request {
    enum constraint_kind kind;
    const char *field;        /* the request's field, for messages ("response_format"); static */
    struct buf text;          /* as above; with kind, before and after the cache key */
    struct buf before, after; /* the generated text is before, the constrained text, after; empty but for tools */
};

enum {
    CONSTRAINT_TEXT_MAX = 128 * 1024, /* bytes of a schema, without white space */
    CONSTRAINT_REGEX_MAX = 16 * 1024,
    CONSTRAINT_CHOICE_MAX = 4096 /* strings */
};

/* TGI: the value of `parameters.grammar`: {"type": "json" | "json_object" | "json_schema" | "regex", "value": ...}.
 * NULL and null: no constraint.  @return true, or false with *e: one sentence that does not name the field, so that
 * TGI's "grammar is not valid: " can precede it. */
bool constraint_read_tgi(struct constraint_request *, const cJSON *grammar, struct err *e);
/* OpenAI and vLLM: `response_format` and `structured_outputs` (and vLLM's older guided_json, guided_regex,
 * guided_choice) among the fields of the request `top`.  Response formats are text, json_object, json_schema, and TGI's
 * chat forms {"type": "json" | "json_object" | "regex", "value": ...}.  More than one constraint is an error.  @return
 * true, or false with *e, which begins with the field at fault ("response_format.json_schema: ...",
 * "structured_outputs: ..."). */
bool constraint_read_openai(struct constraint_request *, const cJSON *top, struct err *e);
/* Sets the constraint directly: a document valid for `schema` between two texts (NULL: none), as for tool calls.
 * @return false with *e when the schema is too large; field: static, for messages. */
bool constraint_set_schema(struct constraint_request *, const char *field, const char *before, const cJSON *schema,
                           const char *after, struct err *e);
/* The same for calls of tools, which the text has to have; where `calls` has a "free", it may. */
bool constraint_set_calls(struct constraint_request *, const char *field, const cJSON *calls, struct err *e);
/* Generated before the constrained text; special tokens as in a call_shape (calls.h). */
void constraint_set_lead(struct constraint_request *, const char *text);
void constraint_request_free(struct constraint_request *);

/* Compiles; any thread.  @return NULL and *e: ERR_INVALID with a sentence that names the position (a JSON pointer into
 * the schema, a byte of the regex) or the limit exceeded.  Bounded in time and memory. */
struct grammar *constraint_build(const struct constraint_request *, struct err *e);

#endif
