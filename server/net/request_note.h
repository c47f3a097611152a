/* Statistics of one generating exchange, for its line in the access log.  Filled by the handlers as events arrive;
 * `model` and `adapter` are borrowed for the duration of the exchange.  Loop thread. */
#ifndef TANDEM_SERVER_NET_REQUEST_NOTE_H
#define TANDEM_SERVER_NET_REQUEST_NOTE_H

#include <stdbool.h>
#include <stdint.h>

struct event;

struct request_note {
    const char *model;   /* as named in the request; NULL: the served model */
    const char *adapter; /* NULL: none */
    const char *finish;  /* static; of the sequence that ended last */
    int sequences;       /* submitted */
    int ended;
    uint64_t prompt, generated, cached; /* tokens of all of them */
    uint64_t queue_ns, prefill_ns;      /* the longest */
    uint64_t first_token;               /* clock_now() of the first one of any; 0: none yet */
};

/* An event of one of its sequences. */
void request_note_event(struct request_note *, const struct event *);

#endif
