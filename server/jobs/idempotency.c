#include "server/jobs/idempotency.h"

#include "engine/base/fnv.h"

#include <stdio.h>
#include <string.h>

void idempotency_hash(const struct store_request *c, char out[static IDEMPOTENCY_HASH])
{
    uint64_t h = fnv1a(FNV1A_START, c->body, c->body_len);
    snprintf(out, IDEMPOTENCY_HASH, "%zu-%016llx", c->body_len, (unsigned long long)h);
}

bool idempotency_replay(struct store_request *c, struct db *db, const char *sql)
{
    char hash[IDEMPOTENCY_HASH];
    if (!c->idempotency_key) return false;
    if (!*c->idempotency_key || strlen(c->idempotency_key) > 255) {
        store_request_fail(c, 400, "validation", NULL, "Idempotency-Key must have 1 to 255 bytes");
        return true;
    }
    sqlite3_stmt *q = db_query(db, sql, "t", c->idempotency_key);
    if (!db_step(db, q)) return false;
    idempotency_hash(c, hash);
    c->job = db_int(q, 0);
    bool same = strcmp(db_text(q, 1), hash) == 0;
    db_done(q);
    if (same) {
        snprintf(c->header_name, sizeof c->header_name, "Idempotent-Replayed");
        snprintf(c->header_value, sizeof c->header_value, "true");
    } else {
        store_request_fail(c, 409, "idempotency_key_reused", NULL,
                           "this Idempotency-Key came with another body before");
    }
    return true;
}
