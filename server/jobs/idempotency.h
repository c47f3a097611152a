/* Idempotency-Key: a request that is sent again with the key and the body of an earlier one is answered as that one.
 * Store thread. */
#ifndef TANDEM_SERVER_JOBS_IDEMPOTENCY_H
#define TANDEM_SERVER_JOBS_IDEMPOTENCY_H

#include "server/api/store_request.h"

enum { IDEMPOTENCY_HASH = 40 };

/* Hashes the body, to tell whether a request with a known key is a repetition. */
void idempotency_hash(const struct store_request *, char out[static IDEMPOTENCY_HASH]);
/* sql: a literal that selects the number (seq) and the hash of what the key created.  @return true with c->job set or
 * an error answer; false: there is no key, or it is new. */
bool idempotency_replay(struct store_request *, struct db *, const char *sql);

#endif
