/* A small call with its whole answer: /metrics, /v1/models, jobs.  Loop thread. */
#ifndef TANDEM_LOADTEST_FETCH_H
#define TANDEM_LOADTEST_FETCH_H

#include "loadtest/api.h"
#include "loadtest/client.h"

enum { FETCH_MAX = 16 << 20 }; /* bytes of an answer; a longer one fails */

struct fetch {
    struct call call;
    struct buf body;
    bool busy;
    void (*done)(struct fetch *, int status); /* status 0: there was no whole answer.  May start it again. */
    void *user;
};

/* `body` may be NULL.  One at a time for each fetch. */
void fetch_start(struct fetch *, struct client *, const struct target *, const char *method, const char *path,
                 const char *body);
void fetch_free(struct fetch *); /* dropping what is on its way */

#endif
