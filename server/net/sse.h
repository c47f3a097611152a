/* Server-sent events: the stream's headers, its events, and what keeps an idle stream open.  Loop
 * thread. */
#ifndef TANDEM_SERVER_NET_SSE_H
#define TANDEM_SERVER_NET_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct uv_loop_s;
struct http_req;
struct sse_hub;

/* One per server: a timer that runs only while streams are open. */
struct sse_hub *sse_hub_open(struct uv_loop_s *, double keepalive_seconds);
/* Applies to new streams at once, to open ones within a period. */
void sse_hub_keepalive(struct sse_hub *, double keepalive_seconds);
void sse_hub_close(struct sse_hub *); /* frees itself once the loop closed the timer; after the last stream */

/* A stream; lives in its owner's memory until sse_stop. */
struct sse {
    struct sse *next, *prev;
    struct sse_hub *hub;
    struct http_req *req;
    uint64_t last_write;   /* clock_now() */
    const char *keepalive; /* set before sse_start: what keeps it open while it is idle, with its line breaks; NULL: a
                              comment */
    const char *(*next_keepalive)(
        struct http_req *); /* set before sse_start: makes it anew each time; NULL: keepalive */
};

/* Sends status 200 and the headers. */
void sse_start(struct sse *, struct sse_hub *, struct http_req *);
/* Sends "data: <json>\n\n".  @return false when the client reads too slowly (http_write). */
bool sse_send(struct sse *, const void *json, size_t n);
/* Whole events, written by the caller with their "id:" and "event:" lines. */
bool sse_write(struct sse *, const void *events, size_t n);
/* Unregisters the stream; call it from on_close, or before http_end.  A no-op when it never started. */
void sse_stop(struct sse *);

#endif
