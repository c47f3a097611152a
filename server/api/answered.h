/* What was generated, kept for a while after it was answered, so that feedback can name a request by its id
 * (server/jobs/api_feedback.c): the ids of prompts and answers, in memory only.
 *
 * A ring: beyond a number of requests, or a number of bytes, the oldest is dropped.  Loop thread, but for what is said
 * otherwise. */
#ifndef TANDEM_SERVER_API_ANSWERED_H
#define TANDEM_SERVER_API_ANSWERED_H

#include "server/net/request_id.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answered_ring;
struct engine_info;
struct event;
struct served_model;

enum { ANSWERED_REQUESTS = 10000, ANSWERED_ID = REQUEST_ID_MAX + 24 };

/* One answer, and what was said of it. */
struct answered_choice {
    int32_t *ids;   /* (n) that were sampled, with the one that ended the text and those of a stop text; owned */
    float *logprob; /* (n) of them; owned */
    int n, capacity;
    bool ended;            /* the last id is one that ends a text */
    bool full;             /* it is as long as it might be */
    const int32_t *prompt; /* (n_prompt) as the model had it; the entry's */
    int n_prompt;
    /* the store thread's */
    bool rated, corrected;
    double rating;
    uint64_t correction; /* a hash of it */
};

/* A request that was answered.  Constant but for what is the store thread's. */
struct answered {
    atomic_int refs;
    struct served_model *served;
    char *adapter; /* NULL: none; owned */
    /* either names it: that of the answer, that of the header x-request-id */
    char id[ANSWERED_ID], header_id[ANSWERED_ID];
    size_t bytes;
    int32_t **prompts; /* (n_prompts) owned */
    int n_prompts;
    struct answered_choice *choice; /* (n_choices) in the order of the answer; owned */
    int n_choices;
};

/* max_bytes: of all that is kept or being made. */
struct answered_ring *answered_open(size_t max_bytes);
void answered_close(struct answered_ring *); /* NULL is allowed */

/* The newest request of the client with this id.  @return a reference; NULL: there is none. */
struct answered *answered_find(struct answered_ring *, uint64_t client, const char *id);
void answered_release(struct answered *); /* any thread; NULL is allowed */

struct answered_totals {
    int requests;
    size_t bytes, max_bytes;
};
struct answered_totals answered_totals(const struct answered_ring *);

/* ---- an answer while it is made ---------------------------------------------------------------------------------- */

struct answered_draft;

/* Of n sequences.  @return NULL: nothing is kept, because ring is NULL or there is no room; all that follow do nothing
 * then. */
struct answered_draft *answered_begin(struct answered_ring *, int n);
/* An event of a sequence: its EV_TOKENs count. */
void answered_add(struct answered_draft *, int sequence, const struct event *);
void answered_drop(struct answered_draft *);

struct answered_prompt {
    const int32_t *ids; /* (n) copied */
    size_t n;
};
struct answered_facts {
    struct served_model *served;
    const struct engine_info *info;       /* of its engine, for the ids that end a text; NULL: unknown */
    const char *adapter, *id, *header_id; /* copied; adapter may be NULL */
    uint64_t client;                      /* client_id */
    const struct answered_prompt *prompt; /* (n_prompts): of sequence i, prompt[i / (sequences / n_prompts)] */
    int n_prompts;
    const int *order; /* (n_choices) the sequences that were answered, in that order; NULL: all */
    int n_choices;
};
/* Keeps it, complete; takes the draft over. */
void answered_keep(struct answered_draft *, const struct answered_facts *);

#endif
