/* Opens exchanges between devices: on all ranks, or on none. */
#include "kernels/comm_device.h"

#include "kernels/comm_transport.h"

#include <stdio.h>
#include <string.h>

/* Each rank calls it.  @return whether all are ok; else why[] is that of the first that is not, with its rank. */
static bool agree(struct comm *c, bool ok, char why[COMM_WHY_BYTES])
{
    bool all[COMM_RANKS_MAX] = {0};
    int first = 0, ranks = comm_ranks(c);
    char said[COMM_WHY_BYTES];
    comm_all_gather(c, &ok, all, sizeof ok);
    while (first < ranks && all[first]) first++;
    if (first == ranks && !comm_error(c)) return true;
    if (first < ranks) {
        snprintf(said, sizeof said, "%s", why);
        comm_broadcast(c, said, sizeof said, first);
        said[sizeof said - 1] = 0;
        snprintf(why, COMM_WHY_BYTES, "rank %d: %.*s", first, COMM_WHY_BYTES - 16, said);
    }
    if (comm_error(c)) snprintf(why, COMM_WHY_BYTES, "%.*s", COMM_WHY_BYTES - 1, comm_error(c));
    return false;
}

bool comm_device_open(struct comm *c, struct dev *d, char why[COMM_WHY_BYTES])
{
    struct comm_device_id id = {0};
    bool ok = d->ops->comm_prepare && d->ops->comm_prepare(d, &id, why);
    if (!d->ops->comm_prepare) snprintf(why, COMM_WHY_BYTES, "the device %s has no exchanges", d->ops->name);
    bool all = agree(c, ok, why);
    if (all) {
        comm_broadcast(c, &id, sizeof id, 0);
        all = agree(c, !comm_error(c) && d->ops->comm_open(d, c, &id, why), why);
    }
    if (!all && d->ops->comm_close) d->ops->comm_close(d);
    return all;
}
