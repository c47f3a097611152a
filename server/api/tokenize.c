/* POST /tokenize and /detokenize: TGI's and vLLM's, distinguished by the field with the text.
 *
 *   {"inputs": TEXT}     TGI:  [{"id","text","start","stop"}], offsets in characters
 *   {"prompt": TEXT}     vLLM: {"count","max_model_len","tokens","token_strs"}
 *   {"messages": [...]}  vLLM: the same of what the chat template makes of a conversation
 *   {"tokens": IDS}      vLLM, /detokenize: {"prompt"}
 *
 * A large body is parsed and tokenised on the thread pool, and the answer is sent in chunks (incremental_reply.h), so a
 * client that does not read keeps only the tokens in memory, which are reserved.  Loop thread; work_*: any thread. */
#include "engine/base/mem.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/request_body.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/bridge/encode.h"
#include "server/json/json.h"
#include "server/net/http.h"
#include "server/net/incremental_reply.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    DETOKENIZE_BYTES = 4 * 1024 * 1024, /* limit of the text for more ids than the model's context */
    TEXT_CHUNK = REPLY_CHUNK_BYTES / 2, /* bytes of text per chunk, before it is escaped */
};

/* The state of an exchange of either route: the request, the work on the pool, the answer. */
struct exchange {
    struct http_req *req; /* NULL once closed */
    const struct app *app;
    struct served_model *served;
    _Atomic bool gone; /* closed, for the pool */
    bool working;      /* the pool or the handler uses it, so on_close must not free it */
    struct http_body body;
    size_t body_len;
    void (*read)(struct exchange *, struct json_at *top); /* any thread: reads the body's object; errors in top->e */
    int status;                                           /* of the refusal; 0: no error */
    struct err e;
    struct reservation held; /* for the fields below */
    struct tokens tokens;    /* /tokenize */
    struct buf text;         /* its text, for TGI's answer; /detokenize: the text */
    bool vllm, strings;
    /* progress of writing the answer */
    reply_chunk_fn *write;
    struct incremental_reply reply;
    size_t next;
    int stage;
    struct text_cursor {
        size_t byte, index;
    } cursor;
};

static void exchange_free(struct exchange *x)
{
    http_body_free(&x->body);
    tokens_free(&x->tokens);
    buf_free(&x->text);
    reservation_free(&x->held);
    free(x);
}

static void on_close(struct http_req *req)
{
    struct exchange *x = req->user;
    x->req = NULL;
    atomic_store(&x->gone, true);
    if (!x->working) exchange_free(x);
}

static void on_drain(struct http_req *req)
{
    struct exchange *x = req->user;
    incremental_reply_more(&x->reply);
}

static void work(void *arg)
{
    struct exchange *x = arg;
    if (atomic_load(&x->gone)) return;
    cJSON *tree = json_parse_body(x->body.data ? x->body.data : "", x->body.len, &x->e);
    http_body_free(&x->body);
    if (!tree) {
        x->status = reservation_status(&x->e, 400);
        return;
    }
    struct json_at top = {.obj = tree, .path = "", .e = &x->e};
    x->e.code = 0;
    x->read(x, &top);
    if (x->e.code) x->status = reservation_status(&x->e, 422);
    json_free(tree);
}

static void after(void *arg)
{
    struct exchange *x = arg;
    x->working = false;
    if (!x->req) {
        exchange_free(x);
        return;
    }
    if (!x->status) {
        x->req->on_drain = on_drain;
        incremental_reply_begin(&x->reply, x->req, "application/json", x->write, x);
    } else if (!body_reply_memory(x->req->app, x->req, &x->e)) {
        http_reply_error(x->req, x->status, "validation", "%s%s", x->status == 422 ? "Input validation error: " : "",
                         x->e.msg);
    }
}

static void begin(struct http_req *req, void (*read)(struct exchange *, struct json_at *), reply_chunk_fn *write)
{
    struct app *app = req->app;
    if (admission_refuses(req, &(struct admission_light_request){.works = true})) return;
    struct exchange *x = mem_zalloc(sizeof *x);
    *x = (struct exchange){
        .req = req, .app = app, .served = served_model_of(req), .read = read, .write = write, .working = true};
    http_take_body(req, &x->body);
    x->body_len = x->body.len;
    req->user = x;
    req->on_close = on_close;
    if (x->body.len > TOKENIZE_INLINE_BYTES) {
        bridge_work(x->served->bridge, client_id(req), work, after, x);
    } else {
        work(x);
        after(x);
    }
}

/* @return whether the body is an object with the field. */
static bool is_object(struct json_at *top, const char *field)
{
    if (cJSON_IsObject(top->obj)) return true;
    err_set(top->e, ERR_INVALID, "expected a JSON object with the field `%s`", field);
    return false;
}

/* ---- /tokenize: the answer ------------------------------------------------------------------------------------- */

/* @return the byte offset of character `index`, searched from the cursor, because neighbouring tokens are close
 * together. */
static size_t seek_character(const struct buf *text, struct text_cursor *c, size_t index)
{
    while (c->index < index && c->byte < text->len) {
        c->byte++;
        while (c->byte < text->len && ((unsigned char)text->data[c->byte] & 0xc0) == 0x80) c->byte++;
        c->index++;
    }
    while (c->index > index) {
        c->byte--;
        while (((unsigned char)text->data[c->byte] & 0xc0) == 0x80) c->byte--;
        c->index--;
    }
    return c->byte;
}

static bool write_tgi(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    const struct tokens *t = &x->tokens;
    if (!x->next) buf_char(out, '[');
    for (; x->next < t->n && out->len < REPLY_CHUNK_BYTES; x->next++) {
        const struct token *v = &t->v[x->next];
        size_t start = seek_character(&x->text, &x->cursor, v->start),
               stop = seek_character(&x->text, &x->cursor, v->end);
        buf_str(out, x->next ? ",{\"id\":" : "{\"id\":");
        buf_decimal(out, v->id);
        buf_str(out, ",\"text\":");
        json_put_string(out, stop > start ? x->text.data + start : "", stop > start ? stop - start : 0);
        buf_str(out, ",\"start\":");
        buf_decimal(out, v->start);
        buf_str(out, ",\"stop\":");
        buf_decimal(out, v->end);
        buf_char(out, '}');
    }
    if (x->next < t->n) return true;
    buf_char(out, ']');
    return false;
}

static bool write_vllm(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    const struct tokens *t = &x->tokens;
    const struct tokenizer *tk = engine_tokenizer(x->served->engine);
    if (!x->stage && !x->next)
        buf_printf(out, "{\"max_model_len\":%d,\"count\":%zu,\"tokens\":[", x->served->info->max_total_tokens, t->n);
    for (; !x->stage && x->next < t->n && out->len < REPLY_CHUNK_BYTES; x->next++) {
        if (x->next) buf_char(out, ',');
        buf_decimal(out, t->v[x->next].id);
    }
    if (!x->stage && x->next < t->n) return true;
    if (!x->stage) {
        x->stage = 1;
        x->next = x->strings ? 0 : t->n;
        buf_str(out, x->strings ? "],\"token_strs\":[" : "],\"token_strs\":null");
    }
    for (; x->next < t->n && out->len < REPLY_CHUNK_BYTES; x->next++) { /* the vocabulary's spellings */
        const char *s = tokenizer_spelling(tk, t->v[x->next].id);
        if (x->next) buf_char(out, ',');
        json_put_string(out, s ? s : "", s ? strlen(s) : 0);
    }
    if (x->next < t->n) return true;
    buf_str(out, x->strings ? "]}" : "}");
    return false;
}

static bool write_tokens(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    return x->vllm ? write_vllm(x, out) : write_tgi(x, out);
}

/* ---- /tokenize: the text --------------------------------------------------------------------------------------- */

static void encode(struct exchange *x, const char *text, size_t n, bool special)
{
    struct err e = {0};
    int rc = encode_reserved(engine_tokenizer(x->served->engine), text, n, special ? TOKENIZE_SPECIAL : 0, &x->tokens,
                             &x->held, &e);
    if (rc) err_set(&x->e, rc, "%s%s", reservation_status(&e, 0) ? "" : "tokenizer error ", e.msg);
}

/* Reads the fields that control how a conversation is rendered.  @return false with *top->e. */
static bool read_chat(struct exchange *x, struct json_at *top, const cJSON *messages, struct chat_input *in,
                      bool *special)
{
    const struct chat_format *chat = &x->served->chat;
    *special = false;
    in->add_generation_prompt = true;
    json_get_bool(top, "continue_final_message", &in->continue_final_message);
    if (in->continue_final_message) in->add_generation_prompt = false;
    json_get_bool(top, "add_generation_prompt", &in->add_generation_prompt);
    json_get_bool(top, "add_special_tokens", special);
    json_get_bool(top, "return_token_strs", &x->strings);
    json_get_array(top, "tools", &in->tools);
    json_get_object(top, "chat_template_kwargs", &in->extra);
    in->messages = messages;
    in->adapt = true;
    *special = *special || chat->plain; /* a template writes the begin-of-text token itself */
    if (top->e->code) return false;
    if (!messages->child) return err_set(top->e, ERR_INVALID, "messages: the list is empty"), false;
    if (!chat->template && !chat->plain) return err_set(top->e, ERR_UNSUPPORTED, "%s", chat->reason), false;
    if (in->continue_final_message && in->add_generation_prompt)
        return err_set(top->e, ERR_INVALID, "continue_final_message: not with add_generation_prompt"), false;
    return chat_messages_check((cJSON *)(uintptr_t)messages, top->e) == 0; /* the tree is owned here */
}

static void tokenize_chat(struct exchange *x, struct json_at *top, const cJSON *messages)
{
    struct chat_input in = {0};
    struct buf page = {0};
    bool special;
    x->vllm = true;
    if (!read_chat(x, top, messages, &in, &special)) return;
    buf_str(&page, "");
    if (chat_render_input(&x->served->chat, &in, x->body_len, &page, &x->e) == 0)
        encode(x, page.data, page.len, special);
    buf_free(&page);
}

static void read_text(struct exchange *x, struct json_at *top)
{
    const char *text = NULL;
    const cJSON *messages = NULL;
    bool special = true;
    if (!is_object(top, "inputs")) return;
    bool given = json_get_string(top, "inputs", &text);
    if (!given) given = x->vllm = json_get_string(top, "prompt", &text);
    if (!given && json_get_array(top, "messages", &messages)) {
        tokenize_chat(x, top, messages);
        return;
    }
    json_get_bool(top, "add_special_tokens", &special);
    json_get_bool(top, "return_token_strs", &x->strings);
    if (!top->e->code && !given)
        err_set(top->e, ERR_INVALID, "inputs: the field is missing (or prompt, or messages, in vLLM's shape)");
    if (top->e->code) return;
    size_t n = strlen(text);
    encode(x, text, n, special);
    if (x->e.code || x->vllm || !reserve(&x->held, 2 * n, "the text", &x->e)) return;
    buf_append(&x->text, text, n);
}

void api_tokenize(struct http_req *req)
{
    begin(req, read_text, write_tokens);
}

/* ---- /detokenize ----------------------------------------------------------------------------------------------- */

/* @return the ids, owned by the caller with their reservation in *held; NULL and *e.  most: limit on their number. */
static int32_t *read_list(struct json_at *top, int vocab, size_t most, size_t *n, struct reservation *held)
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
    if (!reserve(held, (count + 1) * sizeof(int32_t), "the ids", top->e)) return NULL;
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

static void read_ids(struct exchange *x, struct json_at *top)
{
    const struct served_model *m = x->served;
    struct reservation held = {0};
    bool skip = false;
    size_t n = 0, context = (size_t)m->info->max_total_tokens, most = DETOKENIZE_BYTES / m->longest_token;
    if (!is_object(top, "tokens")) return;
    json_get_bool(top, "skip_special_tokens", &skip);
    int32_t *ids = top->e->code ? NULL : read_list(top, m->info->vocab, most > context ? most : context, &n, &held);
    /* twice: the buffer doubles */
    if (ids && reserve(&x->held, 2 * n * m->longest_token + 16, "the text", top->e)) {
        tokenizer_decode(engine_tokenizer(m->engine), ids, n, skip, &x->text);
        if (x->text.cap < x->held.bytes) reservation_shrink(&x->held, x->held.bytes - x->text.cap);
    }
    free(ids);
    reservation_free(&held);
}

/* Appends a part of a text, escaped; it ends at a character boundary. */
static void put_part(struct buf *out, const char *s, size_t n)
{
    size_t at = out->len;
    json_put_string(out, s, n);
    memmove(out->data + at, out->data + at + 1, out->len - at - 2); /* without its quotes */
    out->len -= 2;
    out->data[out->len] = 0;
}

static bool write_text(void *arg, struct buf *out)
{
    struct exchange *x = arg;
    const char *text = x->text.data ? x->text.data : "";
    size_t end = x->next + TEXT_CHUNK;
    if (end >= x->text.len) end = x->text.len;
    while (end < x->text.len && ((unsigned char)text[end] & 0xc0) == 0x80) end++;
    if (!x->next) buf_str(out, "{\"prompt\":\"");
    put_part(out, text + x->next, end - x->next);
    x->next = end;
    if (end < x->text.len) return true;
    buf_str(out, "\"}");
    return false;
}

void api_detokenize(struct http_req *req)
{
    begin(req, read_ids, write_text);
}
