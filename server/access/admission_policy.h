/* Whether a request may come in, and when a refused one should come again.  Pure: no clock, no socket, no engine.  What
 * is known of the load is handed in; `now` is clock_now(), and a clock that goes back only stops buckets from filling.
 * Owned by admission.c, loop thread.
 *
 * Counting.  A request is n sequences (prompts x best_of).  A sequence is active from the moment its request was
 * admitted until the engine has ended it; its prompt tokens are queued until its first token is out.
 *
 * Clients (client.h) share the two limits of the queue by the rule of fair_share.h: when a limit is reached, those with
 * less than their share still come in.  A client with no prompt tokens queued may always queue those of one request, up
 * to twice the limit in all.  What a client waits for is estimated accordingly: with k clients present the schedule
 * takes from each in turn, so it waits for k times what is its own, or for everything if that is less.
 *
 * Estimates.  Two things make a sequence wait: a slot (somebody has to end) and the prompts ahead of it.
 *      slots     (active + 1 - slots) x interval,   interval = residence / running        Little's law
 *      prompts   queued tokens / prefill rate
 * residence: mean time between a sequence's first step and its end, of those that ended last; when nothing has ended
 * for longer than that, that time instead, so that an engine that stalls looks slower with every second.  prefill rate:
 * prompt tokens computed in a second of the steps that computed any, whatever else these steps did.  The wait is the
 * larger of the two. */
#ifndef TANDEM_SERVER_ACCESS_ADMISSION_POLICY_H
#define TANDEM_SERVER_ACCESS_ADMISSION_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* clients that are remembered at once: places in sets, a client's set is given by its name */
enum { POLICY_SETS = 2048, POLICY_WAYS = 16 };

enum policy_verdict {
    POLICY_YES,
    POLICY_TOO_MANY,     /* more sequences than could ever be admitted */
    POLICY_KEY_TOO_MANY, /* likewise by the key's limit */
    POLICY_KEY_CONCURRENCY,
    POLICY_KEY_RATE,
    POLICY_KEY_TOKENS,
    POLICY_QUEUE_FULL,
    POLICY_QUEUE_TOKENS,
    POLICY_WAIT,     /* it would wait for longer than max_wait */
    POLICY_DEADLINE, /* or for longer than it may take itself */
};

struct policy_limits {
    int max_seqs;       /* sequences that run at once */
    int max_queue;      /* and that wait beside them */
    int64_t max_tokens; /* queued prompt tokens.  A larger request is admitted when nothing is queued */
    double max_wait;    /* seconds that a request may be expected to wait; 0: any */
    int max_prompt;     /* tokens that one prompt may have at most; 0: any number */
};

/* 0: no limit */
struct policy_key_limits {
    double requests_per_minute, tokens_per_minute; /* buckets that hold one minute's worth */
    int max_concurrent;                            /* sequences */
};

struct policy_bucket {
    double level;
    uint64_t at; /* when it had that level; 0: never used, so full */
};

/* What bodies had, recently. */
struct policy_bodies {
    double bytes, tokens;
};

/* What one client has and used, by its name. */
struct policy_client {
    char *name; /* owned; NULL: a free place */
    uint32_t hash;
    int active;     /* sequences */
    int64_t queued; /* prompt tokens */
    struct policy_bodies bodies;
    int users;     /* requests that point here */
    uint64_t used; /* when it was last asked for */
    struct policy_bucket requests, tokens;
};

/* What the engine says; see struct engine_stats. */
struct policy_sample {
    int running;
    int slots;                           /* sequences that can run at once, as pages allow */
    uint64_t prefill_tokens, prefill_ns; /* growing counts */
};

struct admission_policy {
    struct policy_limits limits;
    int active;     /* sequences */
    int64_t queued; /* prompt tokens */
    /* measured */
    struct policy_sample last;
    double prefill_tokens, prefill_seconds; /* recent sums */
    double residence;                       /* seconds */
    uint64_t n_ended;
    uint64_t quiet_since;          /* the last end, or when the first came after nobody was here */
    struct policy_bodies bodies;   /* of no client */
    int n_present;                 /* clients that have sequences */
    struct policy_client *clients; /* (POLICY_SETS, POLICY_WAYS), owned */
};

struct policy_ask {
    int n;                        /* sequences, all of its; 0: it is only one more request of its client */
    int64_t tokens;               /* prompt tokens of all of them */
    int held_n;                   /* what of these it was given before; */
    int64_t held_tokens;          /* > 0 means it is in already */
    double time_left;             /* seconds to its deadline; 0: none */
    struct policy_client *client; /* NULL: the limits hold as they are, nothing is shared */
    struct policy_key_limits per; /* of the client's key */
};

void policy_init(struct admission_policy *, const struct policy_limits *);
void policy_free(struct admission_policy *);

/* The client's place, made when there was none, instead of the one that was unused for longest; stays good while
 * `users` is not 0.  NULL: every place of its set has users. */
struct policy_client *policy_client(struct admission_policy *, const char *name, uint64_t now);

/* Changes nothing but the levels of the client's buckets, which it brings up to date.  *retry: seconds after which it
 * is worth asking again, at least 0; for the first three verdicts that are not YES only that of KEY_CONCURRENCY has
 * any.
 */
enum policy_verdict policy_decide(struct admission_policy *, const struct policy_ask *, uint64_t now, double *retry);

/* After POLICY_YES: it holds what it asked for.  Counts one request with the client unless it held something before. */
void policy_take(struct admission_policy *, const struct policy_ask *, uint64_t now);
/* It holds so much less (or, negative, more) now.  The client's bucket of tokens is not touched. */
void policy_give(struct admission_policy *, struct policy_client *, int n, int64_t tokens);
/* Tokens that the client used beyond what was taken, or gets back: below 0 it goes into debt. */
void policy_charge(struct policy_client *, const struct policy_key_limits *, double tokens, uint64_t now);

/* What was measured. */
void policy_observe(struct admission_policy *, const struct policy_sample *);
/* A sequence ended that ran for so long. */
void policy_ended(struct admission_policy *, double seconds, uint64_t now);
/* A body of so many bytes had so many prompt tokens.  Each client has its own figures: what one sends, be it large
 * bodies with short prompts, says nothing of others. */
void policy_learn(struct admission_policy *, struct policy_client *, uint64_t bytes, int64_t tokens);

/* Prompt tokens of a body with so many prompts, by what the client's bodies had before: from one token for 16 bytes to
 * one a byte, at least 1, at most what so many prompts may have.  NULL: of no client. */
int64_t policy_guess(const struct admission_policy *, const struct policy_client *, uint64_t bytes, int prompts);
/* Seconds until a request of so many prompt tokens would have its first token if it came now. */
double policy_wait(const struct admission_policy *, int64_t tokens, uint64_t now);

/* For a header: whole seconds, rounded up, 1 .. 3600. */
int policy_seconds(double retry);

#endif
