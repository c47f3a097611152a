#include "engine/data/render.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

void rendered_clear(struct rendered *r)
{
    buf_clear(&r->text);
    r->n = 0;
    r->flags = 0;
}

void rendered_free(struct rendered *r)
{
    buf_free(&r->text);
    free(r->v);
    *r = (struct rendered){0};
}

static void stretch_add(struct rendered *r, size_t start, size_t end)
{
    if (start >= end) return;
    mem_grow(&r->v, &r->cap, r->n + 1, sizeof *r->v);
    r->v[r->n++] = (struct stretch){start, end};
}

static void say(struct rendered *r, const char *text, bool trained)
{
    size_t start = r->text.len;
    buf_str(&r->text, text);
    if (trained) stretch_add(r, start, r->text.len);
}

/* The Alpaca layout (Taori et al. 2023, stanford_alpaca's PROMPT_DICT), with a line break behind "### Response:" so
 * that an answer begins with its first word; docs/datasets.md tells users to write the same. */
#define WITH_INPUT                                                                                                     \
    "Below is an instruction that describes a task, paired with an input that provides further context. "              \
    "Write a response that appropriately completes the request."
#define WITHOUT_INPUT                                                                                                  \
    "Below is an instruction that describes a task. Write a response that appropriately completes the request."

static const char *content_of(const cJSON *message)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "content"));
}

static void alpaca_question(struct rendered *r, const char *instruction, const char *input)
{
    say(r, "### Instruction:\n", false);
    say(r, instruction, false);
    if (*input) {
        say(r, "\n\n### Input:\n", false);
        say(r, input, false);
    }
    say(r, "\n\n### Response:\n", false);
}

static void alpaca_render(const struct row *row, struct rendered *r)
{
    const cJSON *m = row->turns->child;
    const char *system =
        strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m, "role")), "system") == 0 ? content_of(m) : NULL;
    int i = system != NULL;
    if (system) m = m->next;
    say(r, system ? system : *row->alpaca_in ? WITH_INPUT : WITHOUT_INPUT, false);
    say(r, "\n\n", false);
    for (; m && m->next; m = m->next->next, i += 2) {
        bool last = !m->next->next;
        alpaca_question(r, last ? row->instruction : content_of(m), last ? row->alpaca_in : "");
        say(r, content_of(m->next), row->trained[i + 1]);
        if (!last) say(r, "\n\n", false);
    }
    r->flags = ENCODE_SPECIAL | ENCODE_EOS;
}

static int turns_render(const struct row *row, const struct chat_template *t, struct rendered *r, struct err *e)
{
    struct chat_spans spans = {0};
    struct chat_input input = {.messages = row->turns, .tools = row->tools, .extra = row->extra, .adapt = true};
    input.add_generation_prompt = row->asks;
    int rc = chat_template_render(t, &input, &r->text, &spans, e);
    for (int i = 0; i < spans.n && !rc; i++) {
        const struct chat_span *s = &spans.v[i];
        if (s->message < 0 || s->message >= row->n_turns || !row->trained[s->message]) continue;
        stretch_add(r, s->start, s->end);
        if (s->message == row->n_turns - 1) r->flags |= ENCODE_EOS;
    }
    free(spans.v);
    if (!t) r->flags |= ENCODE_SPECIAL; /* a template writes its own bos */
    if (!rc && !r->n && !row->asks)
        rc = err_set(e, ERR_INVALID, "the chat template shows nothing that the assistant says");
    return rc;
}

static int render(const struct row *row, const struct chat_template *t, struct rendered *r, struct err *e)
{
    switch (row->kind) {
    case ROW_TURNS: return turns_render(row, t, r, e);
    case ROW_ALPACA:
        if (t) return turns_render(row, t, r, e);
        alpaca_render(row, r);
        return 0;
    case ROW_PAIR: say(r, row->prompt, false); /* fall through */
    case ROW_TEXT:
        say(r, row->text, true);
        r->flags = ENCODE_SPECIAL | ENCODE_EOS;
        return 0;
    case ROW_IDS: break;
    }
    return err_set(e, ERR_INVALID, "a row of ids has no text");
}

/* A prompt is what is before an empty stretch. */
int render_row(const struct row *row, const struct chat_template *t, struct rendered *r, struct err *e)
{
    int rc = render(row, t, r, e);
    if (rc || !row->asks) return rc;
    mem_grow(&r->v, &r->cap, 1, sizeof *r->v);
    r->v[0] = (struct stretch){r->text.len, r->text.len};
    r->n = 1;
    r->flags &= ~(unsigned)ENCODE_EOS;
    return 0;
}
