/* A list of cores that threads are bound to. */
#ifndef TANDEM_ENGINE_BASE_CPUS_H
#define TANDEM_ENGINE_BASE_CPUS_H

#include "engine/base/err.h"

enum { CPUS_MAX = 1024 };

struct cpus {
    int v[CPUS_MAX], n; /* n 0: threads are not bound */
};

/* "0-3,8"; NULL or "": none.  ERR_INVALID: a malformed list, a core listed twice, or one that this process may not run
 * on. */
int cpus_parse(struct cpus *, const char *text, struct err *e);

/* @return the number of compute threads that this process should have: of the processors it may run on, as many as its
 * control groups give it time for, rounded up.  More would be halted together when the time is used up. */
int cpus_available(void);

#endif
