/* The flight recorder: the engine's last steps, in fixed memory that a signal handler may read (base/crash.h).  Written
 * by the engine thread; any thread may read, even during a write, and may then get a line that is part old and part
 * new, which is acceptable in a crash report.  With several engines in a process their lines are mixed. */
#ifndef TANDEM_BASE_FLIGHT_H
#define TANDEM_BASE_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

enum { FLIGHT_STEPS = 32, FLIGHT_REQUESTS = 32 };

struct flight_step {
    uint64_t number;         /* from 1 */
    uint64_t started, ended; /* clock_now(); ended 0: in progress */
    int requests, tokens, rows, preempted;
};

struct flight_request { /* of the newest step */
    uint64_t id;
    int start, tokens; /* positions [start, start + tokens) of its text */
};

void flight_begin(uint64_t now, int requests, int tokens, int rows, int preempted);
void flight_request(int i, uint64_t id, int start, int tokens); /* i >= FLIGHT_REQUESTS is ignored */
void flight_end(uint64_t now);
void flight_counts(int waiting, int running, int paused);

/* The i-th newest step; @return false: there is none. */
bool flight_step(int i, struct flight_step *out);
/* The i-th request of the newest step; likewise. */
bool flight_request_at(int i, struct flight_request *out);
void flight_counts_read(int out[static 3]); /* waiting, running, paused */

#endif
