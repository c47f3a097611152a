/* How clients share a limited number of slots: those of the request queue (admission_policy.h) and of the thread pool's
 * job queue (work_queue.h).
 *
 * Below the limit any client may take slots, even all of them.  At the limit, a client may still take slots up to its
 * share: the limit divided by the number of clients present, itself included.  So a client that took more than its
 * share while it was alone cannot lock others out.  In all, at most twice the limit is taken. */
#ifndef TANDEM_SERVER_ACCESS_FAIR_SHARE_H
#define TANDEM_SERVER_ACCESS_FAIR_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* taken: slots of all clients; own: the client's among them; want: how many more it asks for; clients: clients that
 * have slots, the asking one included, >= 1.  A share is at least one slot. */
static inline bool fair_share_fits(int64_t taken, int64_t own, int64_t want, int64_t limit, int clients)
{
    if (taken + want <= limit) return true;
    if (clients < 2 || taken - own <= 0 || taken + want > 2 * limit) return false;
    int64_t share = limit / clients;
    return own + want <= (share > 1 ? share : 1);
}

#endif
