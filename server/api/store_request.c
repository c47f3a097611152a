/* Passes requests to the store thread and back (store_request.h). */
#include "server/api/store_request.h"

#include "engine/base/mem.h"
#include "server/access/keys.h"
#include "server/api/model_table.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void store_request_free(struct store_request *c)
{
    c->app->call_bytes -= c->body_len;
    if (c->pinned) model_release(c->app->models, c->served);
    free(c->param);
    free(c->query);
    http_body_free(&c->taken);
    free(c->idempotency_key);
    free(c->path);
    free(c->path2);
    buf_free(&c->out);
    free(c);
}

/* ---- errors ---------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *s)
{
    if (s)
        json_put_string(b, s, strlen(s));
    else
        buf_str(b, "null");
}

void store_request_put_error(struct buf *b, bool openai, int status, const char *type, const char *param,
                             const char *msg)
{
    if (!openai) {
        buf_str(b, "{\"error\":");
        put_text(b, msg);
        buf_str(b, ",\"error_type\":");
        put_text(b, type);
        buf_char(b, '}');
        return;
    }
    buf_str(b, "{\"error\":{\"message\":");
    put_text(b, msg);
    buf_printf(b, ",\"type\":\"%s\",\"param\":", http_openai_type(status));
    put_text(b, param);
    buf_str(b, ",\"code\":");
    put_text(b, type);
    buf_str(b, "}}");
}

void store_request_fail(struct store_request *c, int status, const char *type, const char *param, const char *fmt, ...)
{
    char msg[640];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    c->status = status;
    c->type = "application/json";
    c->header_name[0] = 0;
    buf_clear(&c->out);
    store_request_put_error(&c->out, c->openai, status, type, param, msg);
}

/* The body was malformed, or too large for memory. */
static void fail_body(struct store_request *c, const char *type, const struct err *e)
{
    int status = reservation_status(e, 400);
    store_request_fail(c, status, status == 503 ? "memory" : type, NULL, "%s%s", e->msg,
                       status == 503 ? "; try again" : "");
    if (status != 503) return;
    snprintf(c->header_name, sizeof c->header_name, "Retry-After");
    snprintf(c->header_value, sizeof c->header_value, "1");
}

cJSON *store_request_object(struct store_request *c)
{
    struct err e = {0};
    cJSON *tree = json_parse_body(c->body, c->body_len, &e);
    if (cJSON_IsObject(tree)) return tree;
    if (!tree)
        fail_body(c, c->openai ? "invalid_request" : "validation", &e);
    else if (c->openai)
        store_request_fail(c, 400, "invalid_request", NULL, "expected an object");
    else
        store_request_fail(c, 422, "validation", NULL, "Input validation error: expected an object");
    json_free(tree);
    return NULL;
}

void store_request_reply_error(struct http_req *req, bool openai, int status, const char *type, const char *fmt, ...)
{
    char msg[640];
    struct buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    store_request_put_error(&b, openai, status, type, NULL, msg);
    http_reply(req, status, "application/json", b.data, b.len);
    buf_free(&b);
}

/* ---- there and back -------------------------------------------------------------------------------------------- */

static void on_close(struct http_req *req)
{
    struct store_request *c = req->user;
    c->req = NULL;
}

static int on_run(struct store_work *w, struct db *db)
{
    struct store_request *c = (struct store_request *)w;
    c->status = 200; /* run is repeated, alone, when a batch of works fails */
    buf_clear(&c->out);
    c->run(c, db);
    return c->status >= 400;
}

static void on_settle(struct store_work *w, struct db *db)
{
    struct store_request *c = (struct store_request *)w;
    /* a database error is not the client's fault; the reason helps the operator */
    if (w->e.code) store_request_fail(c, 507, "storage", NULL, "the request could not be stored: %s", w->e.msg);
    if (c->settle) c->settle(c, db);
}

static void on_done(struct store_work *w)
{
    struct store_request *c = (struct store_request *)w;
    if (c->status == 413 || c->status == 503) metrics_reject(&c->app->metrics, REJECT_MEMORY);
    if (c->after) c->after(c);
    if (c->req && !c->answered) {
        struct http_req *req = c->req;
        req->on_close = NULL;
        if (c->header_name[0]) http_set_header(req, c->header_name, c->header_value);
        /* an immediate retry does not help against a full disk or a conflict */
        if (c->openai && (c->status == 409 || (c->status >= 500 && c->status != 503)))
            http_set_header(req, "x-should-retry", "false");
        http_reply(req, c->status, c->type, c->out.data, c->out.len);
    }
    store_request_free(c);
}

struct store_request *store_request_new(struct http_req *req, bool openai, store_request_fn *run)
{
    struct store_request *c = mem_zalloc(sizeof *c);
    const char *key = http_header(req, "Idempotency-Key");
    *c = (struct store_request){
        .work = {.run = on_run, .settle = on_settle, .done = on_done},
        .app = req->app,
        .served = served_model_of(req),
        .pinned = req->model != NULL,
        .req = req,
        .openai = openai,
        .may_download = !req->key || req->key->role == KEY_ADMIN,
        .run = run,
        .param = mem_strdup(req->param),
        .query = mem_strdup(req->query),
        .body = "",
        .idempotency_key = key ? mem_strdup(key) : NULL,
        .status = 200,
        .type = "application/json",
    };
    if (c->pinned) {
        model_use_again(c->served);
        c->info = c->served->info;
        c->engine = c->served->engine;
    }
    req->user = c;
    req->on_close = on_close;
    return c;
}

void store_request_take_body(struct store_request *c)
{
    http_take_body(c->req, &c->taken);
    if (c->taken.data) c->body = c->taken.data;
    c->body_len = c->taken.len;
    c->app->call_bytes += c->body_len;
}

bool store_request_crowded(const struct http_req *req)
{
    const struct app *app = req->app;
    return app->call_bytes && app->call_bytes + req->body_len > STORE_REQUEST_BYTES;
}

void store_request_send(struct store_request *c)
{
    store_send(c->app->store, &c->work);
}

void store_request_start(struct http_req *req, bool openai, store_request_fn *run,
                         void (*after)(struct store_request *))
{
    struct store_request *c = store_request_new(req, openai, run);
    c->after = after;
    store_request_send(c);
}

/* ---- query strings --------------------------------------------------------------------------------------------- */

static int hex(char c)
{
    return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

static bool decode(const char *p, size_t n, char *out, size_t size)
{
    for (size_t i = 0; i < n; i++) {
        char c = p[i] == '+' ? ' ' : p[i];
        int high = p[i] == '%' && n - i > 2 ? hex(p[i + 1]) : -1, low = high >= 0 ? hex(p[i + 2]) : -1;
        if (low >= 0) {
            c = (char)(high << 4 | low);
            i += 2;
        }
        if (size < 2 || !c) return false;
        *out++ = c;
        size--;
    }
    *out = 0;
    return true;
}

bool query_get(const char *query, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    while (*query) {
        size_t len = strcspn(query, "&");
        if (len >= n && strncmp(query, name, n) == 0 && (len == n || query[n] == '='))
            return decode(query + n + (len > n), len - n - (len > n), out, size);
        query += len + (query[len] == '&');
    }
    return false;
}

bool query_int(const char *query, const char *name, int64_t min, int64_t max, int64_t otherwise, int64_t *out,
               struct err *e)
{
    char text[32] = "", *end = text;
    *out = otherwise;
    if (!query_get(query, name, text, sizeof text)) return true;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || v < min || v > max) {
        err_set(e, ERR_INVALID, "%s: must be a whole number between %lld and %lld", name, (long long)min,
                (long long)max);
        return false;
    }
    *out = v;
    return true;
}
