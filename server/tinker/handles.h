/* A table of things that clients name by ids: sessions, samplers, futures.  An id has the number of its slot, so that
 * it is found at once, and random digits, so that it cannot be guessed; it belongs to one client.  Loop thread. */
#ifndef TANDEM_SERVER_TINKER_HANDLES_H
#define TANDEM_SERVER_TINKER_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HANDLE_ID = 48 }; /* bytes, with the NUL */

struct handle { /* the first member of what has one */
    char id[HANDLE_ID];
    uint64_t client; /* client_id */
    size_t slot;
};

/* Zero-initialise; handles_free when it is empty. */
struct handles {
    struct handle **v; /* (n) NULL: a free slot; owned, not what it points to */
    size_t n, cap, used;
};

/* Gives it an id.  @return false: there are `most` already. */
bool handles_add(struct handles *, struct handle *, uint64_t client, size_t most);
/* NULL: there is none of this client. */
struct handle *handles_find(const struct handles *, const char *id, uint64_t client);
void handles_remove(struct handles *, struct handle *);
void handles_free(struct handles *);

#endif
