/* The registry of output formats: how models write their thoughts and their calls of tools.  One row for each format:
 * how it is recognised in a chat template's source, its marks, and how a call is written.  What reads them is
 * tool_calls.h; what makes a model write them is schema/calls.h.  Constant; any thread.
 *
 * Sources of the formats: the chat templates of the models' repositories, and where these do not say it, vLLM's
 * documentation of its tool parsers; each row names its own. */
#ifndef TANDEM_SERVER_API_OUTPUT_FORMATS_H
#define TANDEM_SERVER_API_OUTPUT_FORMATS_H

#include "server/schema/calls.h"

#include <stdbool.h>
#include <stddef.h>

/* ---- calls ----------------------------------------------------------------------------------------------------- */

enum tool_format {
    TOOL_FORMAT_NONE,
    TOOL_FORMAT_HERMES,
    TOOL_FORMAT_QWEN3_CODER,
    TOOL_FORMAT_LLAMA3,
    TOOL_FORMAT_LLAMA4,
    TOOL_FORMAT_PYTHONIC,
    TOOL_FORMAT_MISTRAL,      /* a list of objects */
    TOOL_FORMAT_MISTRAL_ARGS, /* a mark, a name and an object for each call */
    TOOL_FORMAT_DEEPSEEK_V3,
    TOOL_FORMAT_DEEPSEEK_V31,
    TOOL_FORMAT_GRANITE,
    TOOL_FORMAT_PHI4,
    TOOL_FORMAT_GEMMA4,
    TOOL_FORMAT_FUNCTION_GEMMA,
    TOOL_FORMAT_HARMONY,
    TOOL_FORMATS
};

/* What may follow a mark, or stand at the start of an answer. */
enum call_form {
    FORM_OBJECT = 1,   /* {"name": ..., "arguments": {...}} */
    FORM_LIST = 2,     /* [object, ...] */
    FORM_NAMED = 4,    /* a header with the name (header_name), then the arguments' object */
    FORM_PYTHON = 8,   /* [name(key=value, ...), ...] */
    FORM_XML = 16,     /* NAME>, then <parameter=KEY>VALUE</parameter> ... up to </function> */
    FORM_ESCAPED = 32, /* call:NAME{key:value, ...} up to `end`, with texts between two `quote` */
};

enum { FORMAT_MARKS = 4 };

struct output_format {
    const char *name; /* --tool-call-parser; several rows may share it, which the template then tells apart */
    const char *aliases[3];
    const char *needs[2], *lacks[2]; /* texts that a template's source has all of, and none of */
    /* Marks.  No mark has its own first byte a second time, except at its end. */
    const char *group[FORMAT_MARKS]; /* may stand before the first call, and counts for nothing */
    const char *open[FORMAT_MARKS];  /* a call follows, in one of `marked` */
    const char *close[FORMAT_MARKS]; /* may stand behind a call, each once */
    const char *none[FORMAT_MARKS];  /* what a text has none of where no call is meant; empty: those of open and group */
    unsigned marked;                 /* forms */
    unsigned bare;                   /* forms that an answer may begin with, without a mark, when they name a tool */
    char between;                    /* besides white space, between two calls; 0: nothing */
    const char *end, *quote;         /* FORM_ESCAPED */
    struct call_shape shape;         /* how a forced call is written */
};

const struct output_format *output_format(enum tool_format);
/* What a chat template's source (n bytes; NULL: none) teaches the model to write. */
enum tool_format tool_format_detect(const char *source, size_t n);
/* --tool-call-parser: "auto" (then `detected`), "none", or a name of the registry. */
enum tool_format tool_format_choose(const char *option, enum tool_format detected);
bool tool_format_known(const char *option);
/* A special token's text (which the generated text does not have) that the parser is to be fed all the same. */
bool tool_format_is_mark(enum tool_format, const char *text, size_t n);
/* The name in a header (n bytes, up to the arguments' first byte).  @return its length; 0: it is no header. */
size_t tool_header_name(const char *header, size_t n, const char **name);

#define TOOL_DEEPSEEK_SEP "<\xef\xbd\x9ctool\xe2\x96\x81sep\xef\xbd\x9c>"

/* ---- thoughts -------------------------------------------------------------------------------------------------- */

enum reasoning_format {
    REASONING_NONE,    /* all is text */
    REASONING_THINK,   /* <think> ... </think> */
    REASONING_MISTRAL, /* [THINK] ... [/THINK] */
    REASONING_GEMMA4,  /* <|channel>thought ... <channel|> */
    REASONING_HARMONY, /* channels (harmony.h) */
    REASONING_FORMATS
};

struct reasoning_marks {
    const char *name; /* --reasoning-parser */
    const char *aliases[6];
    const char *begin, *end; /* of the thoughts */
    const char *stop;        /* what is generated when the budget is used up: the end, and what leads to the answer */
    const char *specials[4]; /* marks, or parts of them, that may be special tokens */
    bool again;              /* thoughts may begin behind others */
};

const struct reasoning_marks *reasoning_marks(enum reasoning_format);
enum reasoning_format reasoning_detect(const char *source, size_t n);
/* --reasoning-parser: "auto" (then `detected`), "none", or a name. */
enum reasoning_format reasoning_choose(const char *option, enum reasoning_format detected);
bool reasoning_known(const char *option);
bool reasoning_is_mark(enum reasoning_format, const char *text, size_t n);
/* Whether a prompt ends within thoughts, as those of some templates do: the answer begins with them. */
bool reasoning_prompt_thinks(enum reasoning_format, const char *prompt, size_t n);

#endif
