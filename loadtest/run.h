/* One run: requests are sent when they are due, followed to their end, and counted. */
#ifndef TANDEM_LOADTEST_RUN_H
#define TANDEM_LOADTEST_RUN_H

#include "loadtest/client.h"
#include "loadtest/options.h"
#include "loadtest/side.h"
#include "loadtest/stats.h"

#include <signal.h>

struct run_result {
    struct stats *stats;     /* owned: run_result_free */
    int concurrency;         /* of a closed run, 0 else */
    double seconds;          /* from the start to the last answer */
    double arrivals_seconds; /* ... to the last arrival */
    double window_seconds;   /* that rates refer to */
    double cpu_seconds;      /* of this process */
    int peak_open;           /* requests at once */
    bool interrupted;
    struct client_counts client;
    struct train_counts train;
};

/* Runs it on the loop and returns when all is over.  `trace` may be NULL.  For a closed run, with `concurrency` users.
 */
void run_load(struct run_result *, uv_loop_t *, struct client *, const struct target *, const struct options *,
              const struct trace *trace, int concurrency, FILE *samples);
void run_result_free(struct run_result *);

/* What the schedule will be, a line of JSON for each request. */
void run_print_schedule(FILE *, const struct options *, const struct trace *trace);

/* Set by a signal handler: no more arrivals, open requests are dropped, the run ends. */
extern volatile sig_atomic_t run_interrupted;

#endif
