/* The rule by which clients share a limited number of places, wherever they do: the request queue (admission_policy.h),
 * jobs for the thread pool (work_queue.h).
 *
 * While the limit is not reached, anybody may take places: one client may have all of them.  When it is reached, a
 * client comes in only while it has no more than its share, the limit divided by the clients present, itself included.
 * So those who took more than their share while nobody else was there cannot keep others out.  There are never more
 * than twice as many places as the limit. */
#ifndef TANDEM_SERVER_ACCESS_FAIR_SHARE_H
#define TANDEM_SERVER_ACCESS_FAIR_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* taken: by all; own: of these, the client's; want: more; clients: that have places, the asking one included, >= 1.
 * A single place is within everybody's share. */
static inline bool fair_share_fits(int64_t taken, int64_t own, int64_t want, int64_t limit, int clients)
{
    if (taken + want <= limit) return true;
    if (clients < 2 || taken - own <= 0 || taken + want > 2 * limit) return false;
    int64_t share = limit / clients;
    return own + want <= (share > 1 ? share : 1);
}

#endif
