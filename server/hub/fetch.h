/* One HTTP request to the hub, by libcurl, with its redirects.  The downloading thread only.
 *
 * Redirects are followed here and not by libcurl: the token goes to the endpoint and to the hub's own hosts only, as in
 * huggingface_hub 2.4.0 (utils/_http.py: _is_same_or_hub_host), never to the storage that files are redirected to; and
 * X-Repo-Commit, X-Linked-Etag and X-Linked-Size are headers of the first answer. */
#ifndef TANDEM_SERVER_HUB_FETCH_H
#define TANDEM_SERVER_HUB_FETCH_H

#include "engine/base/buf.h"
#include "server/hub/hub.h"
#include "server/hub/repo.h"

#include <curl/curl.h>

/* Takes bytes of the body of a 200 or 206.  @return false: ends the request */
typedef bool fetch_sink(void *arg, const char *data, size_t n);

struct fetch {
    const struct hub *hub;
    CURL *easy;
    struct curl_slist *headers;
    fetch_sink *sink;
    void *arg;
    int hops;
    bool head, taken;   /* taken: the sink has had bytes of this answer; the sink sets it */
    bool unreachable;   /* there was no connection */
    bool asked_storage; /* the last request went where no token may go */
    /* of the last answer */
    long status;
    char error_code[48], error_message[160]; /* X-Error-Code, X-Error-Message; printable */
    int retry_after;                         /* seconds; 0: not said */
    int64_t range_begin;                     /* of Content-Range; -1: none */
    /* of the first answer that has them */
    char etag[72];
    int64_t size; /* -1: not said */
    char curl_error[CURL_ERROR_SIZE];
};

enum fetch_end {
    FETCH_DONE,
    FETCH_FOLLOW, /* redirected: perform it again */
    FETCH_AGAIN,  /* a failure that may pass: connection lost, time-out, 408, 429, 5xx */
    FETCH_FAILED,
};

void fetch_global(void); /* once before the first request, any thread */
/* from > 0: asks for the bytes from there on.  head: the headers alone. */
void fetch_open(struct fetch *, const struct hub *, const char *url, uint64_t from, bool head, fetch_sink *, void *arg);
void fetch_close(struct fetch *);
/* What the end of a request means.  `what`: for messages.  With FETCH_AGAIN and FETCH_FAILED, *e is set. */
enum fetch_end fetch_end(struct fetch *, CURLcode, const struct repo_name *, const char *what, struct err *e);
/* How long to wait before the n-th repetition (from 1). */
uint64_t fetch_delay_ns(const struct fetch *, int n);
enum { FETCH_TRIES = 5 };

/* The whole body of a URL, at most `limit` bytes, with repetitions; or with out NULL its headers, into *f (closed). */
int fetch_text(const struct hub *, const char *url, const struct repo_name *, const char *what, size_t limit,
               struct buf *out, struct fetch *f, struct err *e);

#endif
