/* An HTTP/1.1 client for many answers at once: connections are kept and used again, bytes of an answer are handed over
 * as they come, reading can be paused, and a call can be dropped at any time.  On libuv and llhttp, loop thread only.
 *
 * A server may close a kept connection at the very moment a request is sent on it.  When such a connection ends before
 * the first byte of the answer, the request is sent again on a new one (RFC 9112, 9.3.1), once. */
#ifndef TANDEM_LOADTEST_CLIENT_H
#define TANDEM_LOADTEST_CLIENT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct client;
struct client_conn;

enum call_end {
    CALL_WHOLE,   /* the answer is complete */
    CALL_CONNECT, /* no connection */
    CALL_CLOSED,  /* it ended before the answer was complete */
    CALL_GARBAGE, /* what came is not HTTP */
};

struct call {
    /* the caller's, set before client_send */
    void (*on_body)(struct call *, const char *p, size_t n);
    void (*on_end)(struct call *, enum call_end); /* the last callback; never from within client_send or client_drop */
    void *user;
    bool fresh;         /* on a connection of its own, which is not kept */
    int receive_buffer; /* bytes that the kernel keeps for a reader that pauses, with `fresh`; 0: its default */
    /* the client's, to be read */
    int status;         /* 0 before the head of the answer */
    double retry_after; /* seconds; -1: no such header */
    uint64_t sent;      /* clock_now() when the request was written; 0: not yet */
    uint64_t got;       /* clock_now() of the latest bytes */
    uint64_t bytes;     /* of the answer so far, heads included */
    struct client_conn *conn;
};

/* Resolves the name (blocking).  The loop outlives the client. */
struct client *client_open(uv_loop_t *, const char *host, const char *port, struct err *e);
void client_close(struct client *); /* no call may be left; run the loop afterwards, then client_free */
void client_free(struct client *);

/* Takes the bytes of *request (a whole HTTP request) and leaves it empty.  The call stays the caller's and must live
 * until on_end or client_drop. */
void client_send(struct client *, struct call *, struct buf *request);
void client_drop(struct call *); /* closes its connection; nothing is called back */
void client_pause(struct call *);
void client_resume(struct call *);

struct client_counts {
    uint64_t opened, reused, resent; /* connections; requests on a kept one; requests sent a second time */
    int open;
};
const struct client_counts *client_counts(const struct client *);

#endif
