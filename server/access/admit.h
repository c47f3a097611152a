/* Whether a request may come in, and when a refused one should come again.  Pure: no clock, no socket, no engine.  What
 * is known of the load is handed in; `now` is clock_now(), and a clock that goes back only stops buckets from filling.
 * Owned by admission.c, loop thread.
 *
 * Counting.  A request is n sequences (prompts x best_of).  A sequence is active from the moment its request was
 * admitted until the engine has ended it; its prompt tokens are queued until its first token is out.
 *
 * Clients (client.h) share the two limits of the queue by the rule of share.h: when a limit is reached, those with less
 * than their share still come in.  A client with no prompt tokens queued may always queue those of one request, up to
 * twice the limit in all.  What a client waits for is estimated accordingly: with k clients present the schedule takes
 * from each in turn, so it waits for k times what is its own, or for everything if that is less.
 *
 * Estimates.  Two things make a sequence wait: a slot (somebody has to end) and the prompts ahead of it.
 *      slots     (active + 1 - slots) x interval,   interval = residence / running        Little's law
 *      prompts   queued tokens / prefill rate
 * residence: mean time between a sequence's first step and its end, of those that ended last; when nothing has ended
 * for longer than that, that time instead, so that an engine that stalls looks slower with every second.  prefill rate:
 * prompt tokens computed in a second of the steps that computed any, whatever else these steps did.  The wait is the
 * larger of the two. */
#ifndef TANDEM_SERVER_ACCESS_ADMIT_H
#define TANDEM_SERVER_ACCESS_ADMIT_H

#include <stdbool.h>
#include <stdint.h>

/* clients that are remembered at once: places in sets, a client's set is given by its name */
enum { ADMIT_SETS = 2048, ADMIT_WAYS = 16 };

enum admit_verdict {
    ADMIT_YES,
    ADMIT_TOO_MANY,     /* more sequences than could ever be admitted */
    ADMIT_KEY_TOO_MANY, /* likewise by the key's limit */
    ADMIT_KEY_CONCURRENCY,
    ADMIT_KEY_RATE,
    ADMIT_KEY_TOKENS,
    ADMIT_QUEUE_FULL,
    ADMIT_QUEUE_TOKENS,
    ADMIT_WAIT,     /* it would wait for longer than max_wait */
    ADMIT_DEADLINE, /* or for longer than it may take itself */
};

struct admit_limits {
    int max_seqs;       /* sequences that run at once */
    int max_queue;      /* and that wait beside them */
    int64_t max_tokens; /* queued prompt tokens.  A larger request is admitted when nothing is queued */
    double max_wait;    /* seconds that a request may be expected to wait; 0: any */
    int max_prompt;     /* tokens that one prompt may have at most; 0: any number */
};

/* 0: no limit */
struct admit_key_limits {
    double requests_per_minute, tokens_per_minute; /* buckets that hold one minute's worth */
    int max_concurrent;                            /* sequences */
};

struct admit_bucket {
    double level;
    uint64_t at; /* when it had that level; 0: never used, so full */
};

/* What bodies had, recently. */
struct admit_bodies {
    double bytes, tokens;
};

/* What one client has and used, by its name. */
struct admit_client {
    char *name; /* owned; NULL: a free place */
    uint32_t hash;
    int active;     /* sequences */
    int64_t queued; /* prompt tokens */
    struct admit_bodies bodies;
    int users;     /* requests that point here */
    uint64_t used; /* when it was last asked for */
    struct admit_bucket requests, tokens;
};

/* What the engine says; see struct engine_stats. */
struct admit_sample {
    int running;
    int slots;                           /* sequences that can run at once, as pages allow */
    uint64_t prefill_tokens, prefill_ns; /* growing counts */
};

struct admit {
    struct admit_limits limits;
    int active;     /* sequences */
    int64_t queued; /* prompt tokens */
    /* measured */
    struct admit_sample last;
    double prefill_tokens, prefill_seconds; /* recent sums */
    double residence;                       /* seconds */
    uint64_t n_ended;
    uint64_t quiet_since;         /* the last end, or when the first came after nobody was here */
    struct admit_bodies bodies;   /* of no client */
    int n_present;                /* clients that have sequences */
    struct admit_client *clients; /* (ADMIT_SETS, ADMIT_WAYS), owned */
};

struct admit_ask {
    int n;                       /* sequences, all of its; 0: it is only one more request of its client */
    int64_t tokens;              /* prompt tokens of all of them */
    int held_n;                  /* what of these it was given before; */
    int64_t held_tokens;         /* > 0 means it is in already */
    double time_left;            /* seconds to its deadline; 0: none */
    struct admit_client *client; /* NULL: the limits hold as they are, nothing is shared */
    struct admit_key_limits per; /* of the client's key */
};

void admit_init(struct admit *, const struct admit_limits *);
void admit_free(struct admit *);

/* The client's place, made when there was none, instead of the one that was unused for longest; stays good while
 * `users` is not 0.  NULL: every place of its set has users. */
struct admit_client *admit_client(struct admit *, const char *name, uint64_t now);

/* Changes nothing but the levels of the client's buckets, which it brings up to date.  *retry: seconds after which it
 * is worth asking again, at least 0; for the first three verdicts that are not YES only that of KEY_CONCURRENCY has
 * any.
 */
enum admit_verdict admit_decide(struct admit *, const struct admit_ask *, uint64_t now, double *retry);

/* After ADMIT_YES: it holds what it asked for.  Counts one request with the client unless it held something before. */
void admit_take(struct admit *, const struct admit_ask *, uint64_t now);
/* It holds so much less (or, negative, more) now.  The client's bucket of tokens is not touched. */
void admit_give(struct admit *, struct admit_client *, int n, int64_t tokens);
/* Tokens that the client used beyond what was taken, or gets back: below 0 it goes into debt. */
void admit_charge(struct admit_client *, const struct admit_key_limits *, double tokens, uint64_t now);

/* What was measured. */
void admit_observe(struct admit *, const struct admit_sample *);
/* A sequence ended that ran for so long. */
void admit_ended(struct admit *, double seconds, uint64_t now);
/* A body of so many bytes had so many prompt tokens.  Each client has its own figures: what one sends, be it large
 * bodies with short prompts, says nothing of others. */
void admit_learn(struct admit *, struct admit_client *, uint64_t bytes, int64_t tokens);

/* Prompt tokens of a body with so many prompts, by what the client's bodies had before: from one token for 16 bytes to
 * one a byte, at least 1, at most what so many prompts may have.  NULL: of no client. */
int64_t admit_guess(const struct admit *, const struct admit_client *, uint64_t bytes, int prompts);
/* Seconds until a request of so many prompt tokens would have its first token if it came now. */
double admit_wait(const struct admit *, int64_t tokens, uint64_t now);

/* For a header: whole seconds, rounded up, 1 .. 3600. */
int admit_seconds(double retry);

#endif
