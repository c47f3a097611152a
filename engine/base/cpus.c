#include "engine/base/cpus.h"

#include "engine/base/cgroup.h"

#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

int cpus_parse(struct cpus *s, const char *text, struct err *e)
{
    s->n = 0;
    cpu_set_t allowed;
    bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
    for (const char *p = text ? text : ""; *p;) {
        char *end;
        long from = strtol(p, &end, 10), to = from;
        bool ok = end > p;
        if (ok && *end == '-') {
            p = end + 1;
            to = strtol(p, &end, 10);
            ok = end > p;
        }
        ok = ok && from >= 0 && from <= to && to < CPUS_MAX && s->n + (to - from) < CPUS_MAX &&
             (*end == 0 || (*end == ',' && end[1]));
        if (!ok) return err_set(e, ERR_INVALID, "cpus \"%.60s\" is not a list of cores such as 0-3,8", text);
        for (long i = from; i <= to; i++) {
            if (known && !CPU_ISSET((size_t)i, &allowed))
                return err_set(e, ERR_INVALID, "cpus: core %ld is not one that this process may run on", i);
            for (int k = 0; k < s->n; k++)
                if (s->v[k] == i) return err_set(e, ERR_INVALID, "cpus: core %ld is named twice", i);
            s->v[s->n++] = (int)i;
        }
        p = *end ? end + 1 : end;
    }
    return 0;
}

int cpus_available(void)
{
    cpu_set_t allowed;
    int n = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
    double limit = cgroup_processor_limit("");
    return limit > 0 && limit < n ? (int)ceil(limit) : n;
}
