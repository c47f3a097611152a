/* A reward that another server gives: the texts go there by POST, and numbers come back.
 *
 *   -> {"texts": ["..."], "rows": [{...}]}      rows: those of the data, one for each text
 *   <- [0.5, 1]   or   {"rewards": [0.5, 1]}
 *
 * Blocking, with a limit of time and repetitions with growing pauses.  Never on the loop or the engine's thread. */
#ifndef TANDEM_SERVER_REWARDS_URL_H
#define TANDEM_SERVER_REWARDS_URL_H

#include "server/json/json.h"
#include "server/rewards/rewards.h"

struct reward_url;

/* "url", "timeout_s", "retries", "key_env" of a check.  NULL and *at->e. */
struct reward_url *reward_url_read(struct json_at *at);
void reward_url_free(struct reward_url *); /* NULL is allowed */
/* As rewards_score, of this one alone. */
int reward_url_score(struct reward_url *, const struct reward_text *, int n, bool (*stop)(void *), void *arg,
                     double *value, struct err *e);

#endif
