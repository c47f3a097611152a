/* The arrivals of a run, whatever their kind: one after the other until there are no more.  Pure. */
#ifndef TANDEM_LOADTEST_SCHEDULE_H
#define TANDEM_LOADTEST_SCHEDULE_H

#include "loadtest/options.h"

struct schedule {
    const struct options *options;
    const struct trace *trace; /* NULL: none */
    struct scenario scenario;
    struct arrivals arrivals;
    uint64_t index; /* of the next one */
};

void schedule_init(struct schedule *, const struct options *, const struct trace *);
/* The next arrival's time in ns; false when there are no more.  Not for closed runs, which only take asks. */
bool schedule_next(struct schedule *, uint64_t *at);
/* What the latest one asks for. */
struct ask schedule_ask(const struct schedule *, uint64_t index);

#endif
