#include "server/ops/request_log.h"

#include "engine/base/log.h"
#include "server/access/keys.h"
#include "server/net/http.h"

#include <string.h>

enum { PATH_MAX_LOGGED = 200 };

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static void put_generation(struct log_line *l, const struct http_req *req, uint64_t duration_ns)
{
    const struct request_note *n = &req->note;
    log_text(l, "model", n->model);
    log_text(l, "adapter", n->adapter);
    log_number(l, "sequences", n->sequences);
    log_number(l, "prompt_tokens", (long long)n->prompt);
    log_number(l, "generated_tokens", (long long)n->generated);
    log_number(l, "cached_tokens", (long long)n->cached);
    if (n->ended) {
        log_decimal(l, "queue_ms", ms(n->queue_ns));
        log_decimal(l, "prefill_ms", ms(n->prefill_ns));
    }
    if (n->first_token > req->received) log_decimal(l, "ttft_ms", ms(n->first_token - req->received));
    log_decimal(l, "e2e_ms", ms(duration_ns));
    log_text(l, "finish", n->ended == n->sequences ? n->finish : "cancelled");
}

void request_log(const struct http_req *req, int status, uint64_t duration_ns)
{
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "OTHER"};
    struct log_line l;
    if (!log_wants(LOG_INFO)) return;
    log_begin(&l, LOG_INFO, "request");
    log_text(&l, "request_id", req->id[0] ? req->id : NULL);
    if (req->trace.trace_id[0]) {
        log_text(&l, "trace_id", req->trace.trace_id);
        log_text(&l, "span_id", req->trace.span_id);
    }
    log_text(&l, "key", req->key ? req->key->name : NULL);
    log_text(&l, "method", methods[req->method]);
    log_text(&l, "route", req->route ? req->route->path : NULL);
    log_bytes(&l, "path", req->path, strnlen(req->path, PATH_MAX_LOGGED));
    log_number(&l, "status", status ? status : 499);
    log_decimal(&l, "ms", ms(duration_ns));
    if (req->note.sequences) put_generation(&l, req, duration_ns);
    log_end(&l);
}
