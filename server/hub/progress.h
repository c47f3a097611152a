/* How far a download is: counts, rate, time left, and how that is printed.  The downloading thread only. */
#ifndef TANDEM_SERVER_HUB_PROGRESS_H
#define TANDEM_SERVER_HUB_PROGRESS_H

#include "engine/base/buf.h"
#include "server/hub/hub.h"

enum { PROGRESS_SAMPLES = 16 };

struct progress {
    struct hub_progress now;
    uint64_t begun, reported; /* clock_now */
    uint64_t loaded;          /* bytes that came over the network */
    struct {
        uint64_t at, loaded;
    } sample[PROGRESS_SAMPLES]; /* a ring: the rate is that of the last seconds */
    int samples;
};

void progress_begin(struct progress *, const char *name);
void progress_update(struct progress *, const struct hub *, bool finished); /* reports several times a second at most */

/* "12.3 MB", "4.56 GB": powers of 1000, as the hub shows sizes. */
void progress_bytes(struct buf *out, double bytes);
void progress_line(struct buf *out, const struct hub_progress *);

#endif
