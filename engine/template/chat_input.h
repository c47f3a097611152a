/* A conversation as a template's input: JSON converted to values, and one rendering of its first messages. */
#ifndef TANDEM_ENGINE_TEMPLATE_CHAT_INPUT_H
#define TANDEM_ENGINE_TEMPLATE_CHAT_INPUT_H

#include "engine/template/chat_template.h"
#include "engine/template/jinja_eval.h"

/* Appended to the text that continue_final_message continues, to find the position in the rendered page, as in
 * transformers.  The blank shows whether the template strips the text. */
#define CHAT_CONTINUE_MARK "CONTINUE_FINAL_MESSAGE_TAG "

/* A special token as a variable: bos_token -> "<s>". */
struct chat_token {
    char *name, *text;
};

struct chat_template {
    struct jinja j;                /* the programs' arena */
    struct jprogram normal, tools; /* tools: rendered when tools are given; names NULL when there is no such template */
    struct chat_token *tokens;     /* (n_tokens) */
    int n_tokens;
    uint64_t identity; /* FNV-1a of sources and tokens */
    /* How it takes an assistant's message with calls (chat_adapt.c): content none, or ""; "" is to be none, too; a
     * call's arguments as JSON text. */
    bool null_content, empty_is_null, text_arguments;
    struct jstr source; /* in the arena: of `tools` where there is one, else of `normal` */
};

/* JSON that values point into; freed with the view. */
struct chat_tree {
    struct chat_tree *older;
    cJSON *json; /* owned */
};

/* One call of chat_template_render: values made once, rendered as often as the spans need. */
struct chat_view {
    const struct chat_template *t;
    const struct chat_input *in;
    struct jinja j;
    struct jv variables; /* dict of all but messages and add_generation_prompt */
    struct jv messages;  /* list */
    bool *assistant;     /* (messages) it is the assistant's */
    struct chat_tree *trees;
};

struct chat_page {
    struct jstr text; /* in view->j's arena */
    const struct jmark *marks;
    size_t n_marks;
};

/* Runs fn(arg) and catches jinja_fail.  @return false on failure, and *e is set. */
bool chat_attempt(struct jinja *j, void (*fn)(void *arg), void *arg, struct err *e);

int chat_view_init(struct chat_view *v, const struct chat_template *t, const struct chat_input *in, struct err *e);
/* messages[0, n), with or without the generation prompt */
int chat_view_render(struct chat_view *v, size_t n, bool prompt, struct chat_page *page, struct err *e);
void chat_view_free(struct chat_view *v);

/* The item as a template's value; its texts derive from message `origin`. */
struct jv chat_json_value(struct jinja *j, const cJSON *item, int origin);

/* chat_adapt.c: finds out how the template takes calls; and makes the assistant's message so, while values are made. */
void chat_adapt_probe(struct chat_template *t);
void chat_adapt_message(struct chat_view *v, struct jdict *message, int origin);

/* Finds what the assistant would have generated on the page of all messages (chat_spans.c). */
int chat_find_spans(struct chat_view *v, const struct chat_page *page, struct chat_spans *out, struct err *e);

#endif
