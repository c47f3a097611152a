/* Chat templates: the Jinja that models ship (tokenizer_config.json "chat_template", or chat_template.jinja), rendered
 * by a small interpreter without access to anything but its variables.  Steps, depth and output are bounded. Serving
 * and training render with the same code.  Immutable after parsing: any thread. */
#ifndef TANDEM_CHAT_TEMPLATE_H
#define TANDEM_CHAT_TEMPLATE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* The source is copied.  NULL and *e with line and column. */
struct chat_template *chat_template_parse(const char *source, size_t n, struct err *e);
/* A model directory's template; NULL with e->code 0 when it has none. */
struct chat_template *chat_template_load(const char *model_dir, struct err *e);
void chat_template_free(struct chat_template *);
/* Of its source and its directory's bos_token and the like: equal for the same template.  0 for NULL. */
uint64_t chat_template_identity(const struct chat_template *);

/* A conversation: messages (array), tools (array or NULL), and whatever else the template's variables are to be (an
 * object or NULL: documents, enable_thinking...).  bos_token and the like come from the template's directory. */
struct chat_input {
    const cJSON *messages, *tools, *extra;
    bool add_generation_prompt;
    bool continue_final_message;
};

/* Bytes [start, end) of the output that the assistant of message `message` would have generated, end-of-turn mark
 * included: what is trained on. */
struct chat_span {
    size_t start, end;
    int message;
};
struct chat_spans {
    struct chat_span *v; /* malloc */
    int n;
};

/* Appends to out.  t NULL: the plain layout "role: content" line by line that models without a template get.
 * spans may be NULL.  An error names the template's line, or says what raise_exception said. */
int chat_template_render(const struct chat_template *t, const struct chat_input *, struct buf *out,
                         struct chat_spans *spans, struct err *e);

#endif
