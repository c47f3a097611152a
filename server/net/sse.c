/* Server-sent events over http_write.  Loop thread only. */
#include "server/net/sse.h"

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "server/net/http.h"

#include <stdlib.h>
#include <string.h>
#include <uv.h>

struct sse_hub {
    uv_timer_t timer;
    struct sse streams; /* head of a ring */
    uint64_t silence_ns;
};

struct sse_hub *sse_hub_open(uv_loop_t *loop, double keepalive_seconds)
{
    struct sse_hub *h = mem_zalloc(sizeof *h);
    CHECK(uv_timer_init(loop, &h->timer) == 0);
    h->timer.data = h;
    h->streams.next = h->streams.prev = &h->streams;
    h->silence_ns = (uint64_t)(keepalive_seconds * 1e9);
    return h;
}

void sse_hub_keepalive(struct sse_hub *h, double keepalive_seconds)
{
    h->silence_ns = (uint64_t)(keepalive_seconds * 1e9);
    if (uv_is_active((uv_handle_t *)&h->timer)) uv_timer_set_repeat(&h->timer, h->silence_ns / 4000000 + 1);
}

static void on_closed(uv_handle_t *t)
{
    free(t->data);
}

void sse_hub_close(struct sse_hub *h)
{
    uv_close((uv_handle_t *)&h->timer, on_closed);
}

/* A sign of life goes out between silence_ns and 1.25 times it after the last event. */
static void on_timer(uv_timer_t *t)
{
    struct sse_hub *h = t->data;
    uint64_t now = clock_now();
    for (struct sse *s = h->streams.next, *next; s != &h->streams; s = next) {
        next = s->next; /* a failed write may close the exchange, and with it this stream */
        if (now - s->last_write < h->silence_ns) continue;
        s->last_write = now;
        const char *sign = s->next_keepalive ? s->next_keepalive(s->req) : s->keepalive ? s->keepalive : ":\n\n";
        http_write(s->req, sign, strlen(sign));
    }
}

void sse_start(struct sse *s, struct sse_hub *h, struct http_req *req)
{
    s->hub = h;
    s->req = req;
    s->last_write = clock_now();
    s->next = &h->streams;
    s->prev = h->streams.prev;
    s->prev->next = s->next->prev = s;
    uint64_t period = h->silence_ns / 4000000 + 1; /* ms */
    if (!uv_is_active((uv_handle_t *)&h->timer)) uv_timer_start(&h->timer, on_timer, period, period);
    http_set_header(req, "Cache-Control", "no-cache");
    http_set_header(req, "X-Accel-Buffering", "no");
    http_start(req, 200, "text/event-stream");
}

bool sse_send(struct sse *s, const void *json, size_t n)
{
    char small[2048], *p = n + 8 <= sizeof small ? small : mem_alloc(n + 8);
    memcpy(p, "data: ", 6);
    memcpy(p + 6, json, n);
    memcpy(p + 6 + n, "\n\n", 2);
    s->last_write = clock_now();
    bool more = http_write(s->req, p, n + 8);
    if (p != small) free(p);
    return more;
}

bool sse_write(struct sse *s, const void *events, size_t n)
{
    s->last_write = clock_now();
    return http_write(s->req, events, n);
}

void sse_stop(struct sse *s)
{
    if (!s->hub) return;
    s->prev->next = s->next;
    s->next->prev = s->prev;
    if (s->hub->streams.next == &s->hub->streams) uv_timer_stop(&s->hub->timer);
    s->hub = NULL;
}
