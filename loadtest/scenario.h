/* What each request is: its lengths, what its client does, which words it shares with others.  Pure: the index-th
 * request of a seed is always the same one, whichever server it is sent to and whenever. */
#ifndef TANDEM_LOADTEST_SCENARIO_H
#define TANDEM_LOADTEST_SCENARIO_H

#include "engine/base/buf.h"
#include "loadtest/trace.h"

#include <stdint.h>

enum ask_kind {
    ASK_PLAIN,
    ASK_LONG,       /* with a long prompt among short ones */
    ASK_SLOW,       /* its client reads slowly */
    ASK_DISCONNECT, /* its client leaves before the end */
    ASK_BAD,        /* not a request that can be served: a 4xx is the right answer */
    ASK_KINDS
};

extern const char *const ask_names[ASK_KINDS];

struct range {
    int low, high; /* both included */
};

struct scenario {
    uint64_t seed;
    struct range prompt, output; /* tokens, evenly spread */
    const struct trace *lengths; /* not NULL: the lengths of its rows instead, in turn; not owned */
    int prompt_max, output_max;  /* at most so many tokens; 0: no limit */
    int prefix, groups;          /* the first `prefix` words are those of one of `groups` groups; 0: none */
    double long_share;           /* of all requests, 0..1, as those below */
    int long_prompt;             /* tokens */
    double slow_share, disconnect_share, bad_share;
    int leave_after; /* a client that leaves does so after 0 to so many events */
};

struct ask {
    uint64_t index;
    enum ask_kind kind;
    int prompt, output; /* tokens */
    int prefix;         /* words shared within the group, 0: none */
    uint64_t group;     /* the seed of those words */
    uint64_t text;      /* the seed of its own words */
    int leave_after;    /* ASK_DISCONNECT: events it waits for; 0: leaves when it has asked */
    unsigned bad;       /* ASK_BAD: which fault (api.h) */
};

struct ask scenario_ask(const struct scenario *, uint64_t index);

/* The prompt's text: prompt words, each a token or more in any usual vocabulary, separated by blanks.  Plain ASCII
 * letters, so it needs no escaping in JSON. */
void ask_put_prompt(struct buf *out, const struct ask *, int words);

#endif
