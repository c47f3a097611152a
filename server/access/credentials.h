/* What decides who comes in, and how: the keys (keys.h) and the certificate (tls.h), from --api-keys, --tls-cert and
 * --tls-key.  Loop thread. */
#ifndef TANDEM_SERVER_ACCESS_CREDENTIALS_H
#define TANDEM_SERVER_ACCESS_CREDENTIALS_H

#include "engine/base/err.h"
#include "server/config/settings.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

struct credentials {
    const struct settings *set;
    struct metrics *metrics;   /* refused requests are counted there */
    struct keys *keys;         /* NULL: none is needed */
    struct tls *tls;           /* NULL: plain HTTP */
    uint64_t refused_logged;   /* clock_now() of auth.c's latest line */
    unsigned refused_unlogged; /* requests refused since */
};

/* Before the server listens; credentials_close whatever the result. */
int credentials_open(struct credentials *, const struct settings *, struct metrics *, struct err *);
void credentials_config(struct credentials *, struct http_server_config *);
/* SIGHUP: what has a fault stays as it was, and the log says why. */
void credentials_reload(struct credentials *);
void credentials_close(struct credentials *); /* after the last connection */

#endif
