/* POST /tokenize and /detokenize: TGI's and vLLM's, told apart by the field that holds the text.
 *
 *   {"inputs": TEXT}     TGI:  [{"id","text","start","stop"}], offsets in characters
 *   {"prompt": TEXT}     vLLM: {"count","max_model_len","tokens","token_strs"}
 *   {"messages": [...]}  vLLM: the same of what the chat template makes of a conversation
 *   {"tokens": IDS}      vLLM, /detokenize: {"prompt"}
 *
 * A long text, or a long list, is worked on by the pool.  Loop thread; the render_ and work_ functions any. */
#include "engine/base/mem.h"
#include "server/app.h"
#include "server/json.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    DETOKENIZE_INLINE = 4096,           /* ids */
    DETOKENIZE_BYTES = 4 * 1024 * 1024, /* more ids than the model takes may spell so much text */
};

/* ---- /tokenize ------------------------------------------------------------------------------------------------- */

struct tokenize_exchange {
    struct http_req *req; /* NULL once closed */
    struct token_job *job;
    int max_model_len;
    bool vllm;
};

/* Where character `index` begins, from a place known before; offsets of neighbouring tokens are near each other. */
struct text_cursor {
    const char *text;
    size_t len, byte, index;
};

static size_t seek_character(struct text_cursor *c, size_t index)
{
    while (c->index < index && c->byte < c->len) {
        c->byte++;
        while (c->byte < c->len && ((unsigned char)c->text[c->byte] & 0xc0) == 0x80) c->byte++;
        c->index++;
    }
    while (c->index > index) {
        c->byte--;
        while (((unsigned char)c->text[c->byte] & 0xc0) == 0x80) c->byte--;
        c->index--;
    }
    return c->byte;
}

/* text is the piece of the input, "" for tokens that the tokenizer added */
static void render_tgi(const struct tokenizer *tk, const char *text, size_t n, const struct tokens *t, struct buf *out)
{
    struct text_cursor c = {.text = text, .len = n};
    buf_char(out, '[');
    for (size_t i = 0; i < t->n; i++) {
        const struct token *v = &t->v[i];
        size_t start = seek_character(&c, v->start), stop = seek_character(&c, v->end);
        buf_printf(out, "%s{\"id\":%d,\"text\":", i ? "," : "", v->id);
        json_put_string(out, text + start, stop > start ? stop - start : 0);
        buf_printf(out, ",\"start\":%u,\"stop\":%u}", v->start, v->end);
    }
    buf_char(out, ']');
}

/* `"tokens":[...]`: the rest of the object is the same for every text */
static void render_ids(const struct tokenizer *tk, const char *text, size_t n, const struct tokens *t, struct buf *out)
{
    buf_printf(out, "\"count\":%zu,\"tokens\":[", t->n);
    for (size_t i = 0; i < t->n; i++) buf_printf(out, i ? ",%d" : "%d", t->v[i].id);
    buf_str(out, "],\"token_strs\":");
}

static void render_vllm(const struct tokenizer *tk, const char *text, size_t n, const struct tokens *t, struct buf *out)
{
    render_ids(tk, text, n, t, out);
    buf_str(out, "null");
}

/* as the vocabulary spells them */
static void render_vllm_strings(const struct tokenizer *tk, const char *text, size_t n, const struct tokens *t,
                                struct buf *out)
{
    render_ids(tk, text, n, t, out);
    for (size_t i = 0; i < t->n; i++) {
        const char *s = tokenizer_spelling(tk, t->v[i].id);
        buf_char(out, i ? ',' : '[');
        json_put_string(out, s ? s : "", s ? strlen(s) : 0);
    }
    buf_str(out, t->n ? "]" : "[]");
}

static void on_tokenize_close(struct http_req *req)
{
    struct tokenize_exchange *x = req->user;
    x->req = NULL;
    bridge_tokenize_cancel(x->job); /* x itself was http_alloc'ed */
}

static void on_tokenized(void *arg, const struct tokenization *t)
{
    struct tokenize_exchange *x = arg;
    struct buf out = {0};
    x->job = NULL;
    if (t->err.code) {
        http_reply_error(x->req, 422, "validation", "Input validation error: tokenizer error %s", t->err.msg);
        return;
    }
    if (x->vllm) buf_printf(&out, "{\"max_model_len\":%d,", x->max_model_len);
    buf_append(&out, t->rendered.data, t->rendered.len);
    if (x->vllm) buf_char(&out, '}');
    http_reply(x->req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

/* The whole body, which has the field; NULL: refused. */
static cJSON *read_body(struct http_req *req, const char *field)
{
    struct err e = {0};
    cJSON *tree = json_parse(req->body, req->body_len, &e);
    if (!tree) {
        http_reply_error(req, 400, "validation", "%s", e.msg);
    } else if (!cJSON_IsObject(tree)) {
        http_reply_error(req, 422, "validation", "Input validation error: expected a JSON object with the field `%s`",
                         field);
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

/* ---- /tokenize of a conversation ---- */

struct chat_work {
    struct http_req *req; /* NULL once closed */
    _Atomic bool gone;    /* the same, for the pool */
    const struct app *app;
    cJSON *tree; /* owned; what input points into */
    struct chat_input input;
    bool special, strings;
    struct buf out;
    struct err e;
};

static void on_chat_close(struct http_req *req)
{
    struct chat_work *w = req->user;
    w->req = NULL;
    atomic_store(&w->gone, true);
}

static void work_chat(void *arg)
{
    struct chat_work *w = arg;
    const struct tokenizer *tk = engine_tokenizer(w->app->engine);
    struct buf page = {0};
    struct tokens t = {0};
    if (atomic_load(&w->gone)) return;
    buf_str(&page, "");
    if (chat_template_render(w->app->chat.template, &w->input, &page, NULL, &w->e) == 0 &&
        tokenizer_encode(tk, page.data, page.len, w->special ? TOKENIZE_SPECIAL : 0, &t, &w->e) == 0) {
        buf_printf(&w->out, "{\"max_model_len\":%d,", w->app->info->max_total_tokens);
        (w->strings ? render_vllm_strings : render_vllm)(tk, page.data, page.len, &t, &w->out);
        buf_char(&w->out, '}');
    }
    tokens_free(&t);
    buf_free(&page);
}

static void after_chat(void *arg)
{
    struct chat_work *w = arg;
    if (w->req) {
        w->req->on_close = NULL;
        if (w->e.code)
            http_reply_error(w->req, 422, "validation", "Input validation error: %s", w->e.msg);
        else
            http_reply(w->req, 200, "application/json", w->out.data, w->out.len);
    }
    buf_free(&w->out);
    cJSON_Delete(w->tree);
    free(w);
}

/* The fields that say how; false: *top->e says what is wrong. */
static bool read_chat(struct chat_work *w, struct json_at *top, const cJSON *messages)
{
    const struct chat_format *chat = &w->app->chat;
    w->input.add_generation_prompt = true;
    json_get_bool(top, "continue_final_message", &w->input.continue_final_message);
    if (w->input.continue_final_message) w->input.add_generation_prompt = false;
    json_get_bool(top, "add_generation_prompt", &w->input.add_generation_prompt);
    json_get_bool(top, "add_special_tokens", &w->special);
    json_get_bool(top, "return_token_strs", &w->strings);
    json_get_array(top, "tools", &w->input.tools);
    json_get_object(top, "chat_template_kwargs", &w->input.extra);
    w->input.messages = messages;
    w->input.adapt = true;
    w->special = w->special || chat->plain; /* a template writes its own begin-of-text */
    if (top->e->code) return false;
    if (!messages->child) return err_set(top->e, ERR_INVALID, "messages: the list is empty"), false;
    if (!chat->template && !chat->plain) return err_set(top->e, ERR_UNSUPPORTED, "%s", chat->reason), false;
    if (w->input.continue_final_message && w->input.add_generation_prompt)
        return err_set(top->e, ERR_INVALID, "continue_final_message: not with add_generation_prompt"), false;
    return chat_messages_check((cJSON *)(uintptr_t)messages, top->e) == 0; /* the tree is ours */
}

/* Takes the tree. */
static void tokenize_chat(struct http_req *req, cJSON *tree, const cJSON *messages)
{
    struct app *app = req->app;
    struct err e = {0};
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    struct chat_work *w = mem_zalloc(sizeof *w);
    *w = (struct chat_work){.req = req, .app = app, .tree = tree};
    req->user = w;
    req->on_close = on_chat_close;
    if (!read_chat(w, &top, messages)) {
        req->on_close = NULL;
        http_reply_error(req, 422, "validation", "Input validation error: %s", e.msg);
        cJSON_Delete(tree);
        free(w);
    } else if (req->body_len > TOKENIZE_INLINE_BYTES) {
        bridge_work(app->bridge, client_id(req), work_chat, after_chat, w);
    } else {
        work_chat(w);
        after_chat(w);
    }
}

/* ---- the routes ---- */

void api_tokenize(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    const cJSON *messages = NULL;
    if (admission_refuses(app, req, &(struct admission_ask){.works = true})) return;
    cJSON *tree = read_body(req, "inputs");
    if (!tree) return;
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    const char *text = NULL;
    bool special = true, strings = false, given = json_get_string(&top, "inputs", &text), vllm = false;
    if (!given) given = vllm = json_get_string(&top, "prompt", &text);
    if (!given && json_get_array(&top, "messages", &messages)) {
        tokenize_chat(req, tree, messages);
        return;
    }
    json_get_bool(&top, "add_special_tokens", &special);
    json_get_bool(&top, "return_token_strs", &strings);
    if (e.code || !given) {
        http_reply_error(req, 422, "validation", "Input validation error: %s",
                         e.code ? e.msg : "inputs: the field is missing (or prompt, or messages, in vLLM's shape)");
    } else {
        struct tokenize_exchange *x = http_alloc(req, sizeof *x);
        *x = (struct tokenize_exchange){.req = req, .vllm = vllm, .max_model_len = app->info->max_total_tokens};
        req->user = x;
        req->on_close = on_tokenize_close;
        struct token_job *job =
            bridge_tokenize(app->bridge, client_id(req), text, strlen(text), special ? TOKENIZE_SPECIAL : 0,
                            !vllm     ? render_tgi
                            : strings ? render_vllm_strings
                                      : render_vllm,
                            on_tokenized, x);
        if (job) x->job = job; /* answered at once otherwise, and x may be gone */
    }
    cJSON_Delete(tree);
}

/* ---- /detokenize ----------------------------------------------------------------------------------------------- */

struct detokenize_work {
    struct http_req *req; /* NULL once closed */
    _Atomic bool gone;    /* the same, for the pool */
    const struct tokenizer *tokenizer;
    int32_t *ids; /* owned */
    size_t n;
    bool skip_special;
    struct buf out;
};

static void on_detokenize_close(struct http_req *req)
{
    struct detokenize_work *w = req->user;
    w->req = NULL;
    atomic_store(&w->gone, true);
}

static void work_detokenize(void *arg)
{
    struct detokenize_work *w = arg;
    struct buf text = {0};
    if (atomic_load(&w->gone)) return;
    tokenizer_decode(w->tokenizer, w->ids, w->n, w->skip_special, &text);
    buf_str(&w->out, "{\"prompt\":");
    json_put_string(&w->out, text.data ? text.data : "", text.len);
    buf_char(&w->out, '}');
    buf_free(&text);
}

static void after_detokenize(void *arg)
{
    struct detokenize_work *w = arg;
    if (w->req) {
        w->req->on_close = NULL;
        http_reply(w->req, 200, "application/json", w->out.data, w->out.len);
    }
    buf_free(&w->out);
    free(w->ids);
    free(w);
}

/* The ids, owned by the caller; NULL and *e.  most: no more than so many. */
static int32_t *read_ids(struct json_at *top, int vocab, size_t most, size_t *n)
{
    const cJSON *list = NULL;
    *n = 0;
    if (!json_get_array(top, "tokens", &list)) {
        if (!top->e->code) err_set(top->e, ERR_INVALID, "tokens: the field is missing");
        return NULL;
    }
    size_t count = (size_t)cJSON_GetArraySize(list);
    if (count > most) {
        err_set(top->e, ERR_INVALID, "tokens: has %zu ids; a request may have %zu at most", count, most);
        return NULL;
    }
    int32_t *ids = mem_array(count + 1, sizeof *ids);
    for (const cJSON *v = list->child; v; v = v->next) {
        if (cJSON_IsNumber(v) && v->valuedouble >= 0 && v->valuedouble < vocab &&
            v->valuedouble == floor(v->valuedouble)) {
            ids[(*n)++] = (int32_t)v->valuedouble;
            continue;
        }
        err_set(top->e, ERR_INVALID, "tokens[%zu]: expected a token id from 0 to %d", *n, vocab - 1);
        free(ids);
        return NULL;
    }
    return ids;
}

void api_detokenize(struct http_req *req)
{
    struct app *app = req->app;
    struct err e = {0};
    if (admission_refuses(app, req, &(struct admission_ask){.works = true})) return;
    cJSON *tree = read_body(req, "tokens");
    if (!tree) return;
    struct json_at top = {.obj = tree, .path = "", .e = &e};
    bool skip = false;
    size_t n = 0, context = (size_t)app->info->max_total_tokens, most = DETOKENIZE_BYTES / app->longest_token;
    json_get_bool(&top, "skip_special_tokens", &skip);
    int32_t *ids = e.code ? NULL : read_ids(&top, app->info->vocab, most > context ? most : context, &n);
    cJSON_Delete(tree);
    if (!ids) {
        http_reply_error(req, 422, "validation", "Input validation error: %s", e.msg);
        return;
    }
    struct detokenize_work *w = mem_zalloc(sizeof *w);
    *w = (struct detokenize_work){
        .req = req, .tokenizer = engine_tokenizer(app->engine), .ids = ids, .n = n, .skip_special = skip};
    req->user = w;
    req->on_close = on_detokenize_close;
    if (n > DETOKENIZE_INLINE) {
        bridge_work(app->bridge, client_id(req), work_detokenize, after_detokenize, w);
    } else {
        work_detokenize(w);
        after_detokenize(w);
    }
}
