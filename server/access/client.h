/* Client identity: which client a request counts for when clients share the queue, the thread pool and the engine.
 *
 * A client is its API key (by name) or, without keys, the address it connects from (peer.h).  Everything behind one
 * proxy is one client, unless it has keys. */
#ifndef TANDEM_SERVER_ACCESS_CLIENT_H
#define TANDEM_SERVER_ACCESS_CLIENT_H

#include <stdint.h>

struct http_req;

enum { CLIENT_NAME = 80 };

/* "key NAME" or "address ADDRESS": a key cannot take the name of an address. */
void client_name(const struct http_req *, char out[static CLIENT_NAME]);

/* A number for the name, never 0, which stands for the daemon itself.  Seeded per process, so that an attacker cannot
 * choose an address whose number collides with another client's. */
uint64_t client_id(const struct http_req *);
uint64_t client_id_of(const char *name);
/* Before the first of these: numbers that are to stay the same in the next process have the same secret seed. */
void client_set_seed(uint64_t seed);

#endif
