/* Chat templates: the Jinja that models ship (tokenizer_config.json "chat_template", or chat_template.jinja), rendered
 * by a small interpreter without access to anything but its variables (and the time, through strftime_now).  Serving
 * and training render with the same code.  Immutable after parsing: any thread.
 *
 * The language is jinja2 3.1 as transformers 5 sets it up: its immutable sandbox, trim_blocks, lstrip_blocks, loop
 * controls, {% generation %}, its tojson, raise_exception and strftime_now.  Missing: extends, include, import,
 * autoescape, complex numbers, bytes (str.encode) and Markup (safe and escape give plain strings).  An unknown filter
 * or test is an error when the template is parsed; within a condition, when it is reached, as in jinja2.
 * Steps, depth, memory and output are bounded (jinja_value.h): past a bound the render is an error. */
#ifndef TANDEM_ENGINE_TEMPLATE_CHAT_TEMPLATE_H
#define TANDEM_ENGINE_TEMPLATE_CHAT_TEMPLATE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* The source is copied.  NULL and *e with line and column. */
struct chat_template *chat_template_parse(const char *source, size_t n, struct err *e);
/* A model directory's template (of several, "default", and "tool_use" when tools are given: chat_template.jinja and
 * additional_chat_templates/tool_use.jinja, or a list in tokenizer_config.json); NULL with e->code left alone when it
 * has none. */
struct chat_template *chat_template_load(const char *model_dir, struct err *e);
/* The template in a file, with the bos_token and the like of a model's directory. */
struct chat_template *chat_template_load_file(const char *model_dir, const char *path, struct err *e);
void chat_template_free(struct chat_template *);
/* Hash of its source and its directory's special tokens (bos_token...).  0 for NULL. */
uint64_t chat_template_identity(const struct chat_template *);
/* The Jinja text itself (*n bytes, NUL-terminated; the template's): the one for tools where there are two.  NULL for
 * NULL. */
const char *chat_template_source(const struct chat_template *, size_t *n);

/* A conversation: messages (array of objects), tools (array or NULL), and whatever else the template's variables are to
 * be (an object or NULL: documents, enable_thinking...).  bos_token and the like come from the template's directory, or
 * from extra.  A message's reasoning is there under all its names (reasoning_content, thinking), as transformers does.
 * JSON's 3 is an int and 3.5 a float; 3.0 is a float, and a large int exact, where the reader kept the literal
 * (json_literal.h).
 * adapt: the messages are OpenAI's, where an assistant's content may be null or absent and a call's arguments are a
 * text: they are made what this template takes (chat_adapt.c). continue_final_message: the page ends within the last
 * message, right after its text. */
struct chat_input {
    const cJSON *messages, *tools, *extra;
    bool add_generation_prompt;
    bool continue_final_message;
    bool adapt;
    size_t memory; /* bytes that rendering may take; 0: what any template may */
};

/* Bytes [start, end) of the output that the assistant of message `message` would have generated, end-of-turn mark
 * included ("Hello.<|im_end|>", not the newline after it; where a template writes no mark, the newline): what is
 * trained on.  In order.  Messages that the template does not print have none.  A template with {% generation %} blocks
 * defines its spans itself. */
struct chat_span {
    size_t start, end;
    int message;
};
struct chat_spans {
    struct chat_span *v; /* malloc */
    int n;
};

/* Appends to out (nothing on an error).  t NULL: the plain layout for models without a template, one line "role:
 * content" per message.  spans may be NULL; otherwise it is overwritten, with positions in out->data.  ERR_INVALID
 * names the template's line, or has the text of raise_exception; ERR_UNSUPPORTED: it renders, but what the assistant
 * would have generated cannot be determined. */
int chat_template_render(const struct chat_template *t, const struct chat_input *, struct buf *out,
                         struct chat_spans *spans, struct err *e);

#endif
