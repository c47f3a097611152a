/* What goes on beside the load: the server's gauges are sampled, and fine-tuning jobs kept going.  Loop thread. */
#ifndef TANDEM_LOADTEST_SIDE_H
#define TANDEM_LOADTEST_SIDE_H

#include "loadtest/client.h"
#include "loadtest/options.h"

struct train_counts {
    int started, refused, succeeded, failed, cancelled, lost; /* lost: its state could not be read */
    char error[200];                                          /* of the first that failed or was refused; "" */
};

struct side;

/* Begins with the run; `start` is clock_now() then.  All arguments outlive it. */
struct side *side_open(uv_loop_t *, struct client *, const struct target *, const struct options *, struct stats *,
                       uint64_t start);
void side_stop(struct side *);       /* no new jobs; those that run are cancelled */
bool side_over(const struct side *); /* after side_stop: nothing is on its way */
void side_close(struct side *);      /* then run the loop until it is empty, then side_free */
void side_free(struct side *);
const struct train_counts *side_train(const struct side *);

#endif
