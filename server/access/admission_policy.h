/* The policy of admission control: which requests are admitted, and when a refused one should retry.  Pure: no clock,
 * no socket, no engine; the caller passes samples of the load.  `now` is clock_now(); a clock that goes back only stops
 * the buckets from filling.  Owned by admission.c, loop thread.
 *
 * Counting.  A request is n sequences (prompts x best_of).  A sequence is active from its request's admission until the
 * engine has ended it; its prompt tokens are queued until its first token.
 *
 * Fairness.  Clients (client.h) share the queue's two limits by the rule of fair_share.h: when a limit is reached, a
 * client below its share is still admitted.  A client with no prompt tokens queued may always queue those of one
 * request, up to twice the limit in all.  The estimate of a client's wait follows from that: with k clients present the
 * scheduler takes from each in turn, so it is the time for k times the client's own work, at most that for all work.
 *
 * Estimates.  A sequence waits for a slot and for the prompts queued before it; its wait is the larger of the two:
 *      slots     (active + 1 - slots) x interval,   interval = residence / running        Little's law
 *      prompts   queued tokens / prefill rate
 * residence: mean time from first step to end, over the sequences that ended last; the time since the last end where
 * that is longer, so that the estimate grows while the engine is stalled.  prefill rate: prompt tokens per second of
 * the steps that computed any, whatever else these steps did. */
#ifndef TANDEM_SERVER_ACCESS_ADMISSION_POLICY_H
#define TANDEM_SERVER_ACCESS_ADMISSION_POLICY_H

#include <stdbool.h>
#include <stdint.h>

/* The table of clients is set-associative: the hash of a client's name selects one of POLICY_SETS sets. */
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
    int max_queue;      /* sequences that wait beside them */
    int64_t max_tokens; /* queued prompt tokens; a larger request is admitted when nothing is queued */
    double max_wait;    /* longest estimated wait of an admitted request, seconds; 0: no limit */
    int max_prompt;     /* tokens in one prompt; 0: no limit */
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

/* Recent sums over request bodies, from which the tokens of the next one are estimated. */
struct policy_bodies {
    double bytes, tokens;
};

/* One client's active sequences and use of its limits. */
struct policy_client {
    char *name; /* owned; NULL: an unused entry */
    uint32_t hash;
    int active;     /* sequences */
    int64_t queued; /* prompt tokens */
    struct policy_bodies bodies;
    int users;     /* requests that refer to this entry, which keep it from eviction */
    uint64_t used; /* clock of the last policy_client */
    struct policy_bucket requests, tokens;
};

/* A sample of the engine's load; see struct engine_stats. */
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
    uint64_t quiet_since;          /* clock of the last end, or of the first request after an idle time */
    struct policy_bodies bodies;   /* of requests without a client entry */
    int n_present;                 /* clients that have sequences */
    struct policy_client *clients; /* (POLICY_SETS, POLICY_WAYS), owned */
};

struct policy_request {
    int n;                        /* all its sequences; 0: it runs none and only counts as a request of its client */
    int64_t tokens;               /* prompt tokens of all of them */
    int held_n;                   /* sequences it already holds; > 0: it was admitted before */
    int64_t held_tokens;          /* prompt tokens it already holds */
    double time_left;             /* seconds to its deadline; 0: none */
    struct policy_client *client; /* NULL: the plain limits hold, without a share */
    struct policy_key_limits per; /* of the client's key */
};

void policy_init(struct admission_policy *, const struct policy_limits *);
void policy_free(struct admission_policy *);

/* @return the client's entry, added if missing in place of the least recently used of its set; valid while `users` is
 * not 0.  NULL: every entry of the set has users. */
struct policy_client *policy_client(struct admission_policy *, const char *name, uint64_t now);

/* Decides; changes only the levels of the client's buckets, which it brings up to date.  *retry: seconds after which to
 * retry; 0 for TOO_MANY and KEY_TOO_MANY, which no retry can change. */
enum policy_verdict policy_decide(struct admission_policy *, const struct policy_request *, uint64_t now,
                                  double *retry);

/* After POLICY_YES: takes what was asked for.  Counts a request of the client unless it already held something. */
void policy_admit(struct admission_policy *, const struct policy_request *, uint64_t now);
/* Gives back (or, negative, takes) sequences and prompt tokens.  The client's token bucket stays as it is. */
void policy_release(struct admission_policy *, struct policy_client *, int n, int64_t tokens);
/* Charges the client's token bucket for tokens used beyond those taken, negative: refunds them.  The bucket may go into
 * debt. */
void policy_charge(struct policy_client *, const struct policy_key_limits *, double tokens, uint64_t now);

/* Updates the estimates with a new sample. */
void policy_observe(struct admission_policy *, const struct policy_sample *);
/* A sequence ended `seconds` after its first step. */
void policy_record_end(struct admission_policy *, double seconds, uint64_t now);
/* Learns that a body of `bytes` bytes had `tokens` prompt tokens.  Kept per client, since one that sends large bodies
 * with short prompts says nothing about others. */
void policy_record_tokens(struct admission_policy *, struct policy_client *, uint64_t bytes, int64_t tokens);

/* Estimates the prompt tokens of a body from the client's earlier ones: between one token per 16 bytes and one per
 * byte, at least 1, at most prompts * max_prompt.  client NULL: no entry. */
int64_t policy_estimate_tokens(const struct admission_policy *, const struct policy_client *, uint64_t bytes,
                               int prompts);
/* Estimated seconds to the first token of a request with `tokens` prompt tokens that arrives now. */
double policy_estimate_wait(const struct admission_policy *, int64_t tokens, uint64_t now);

/* The value of Retry-After: whole seconds, rounded up, 1 .. 3600. */
int policy_seconds(double retry);

#endif
