/* The daemon's API keys (keys.h) and TLS certificate (tls.h), from --api-keys, --tls-cert and --tls-key.  Loop
 * thread. */
#ifndef TANDEM_SERVER_ACCESS_CREDENTIALS_H
#define TANDEM_SERVER_ACCESS_CREDENTIALS_H

#include "engine/base/err.h"
#include "server/config/settings.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

struct credentials {
    const struct settings *set;
    struct metrics *metrics;   /* counts refused requests */
    struct keys *keys;         /* NULL: no key is required */
    struct tls *tls;           /* NULL: plain HTTP */
    uint64_t refused_logged;   /* clock_now() of auth.c's latest line */
    unsigned refused_unlogged; /* requests refused since */
};

/* Before the server listens; call credentials_close even after an error. */
int credentials_open(struct credentials *, const struct settings *, struct metrics *, struct err *);
void credentials_config(struct credentials *, struct http_server_config *);
/* SIGHUP: reads the files again.  A file with an error is logged, and its previous content stays in effect. */
void credentials_reload(struct credentials *);
void credentials_close(struct credentials *); /* after the last connection */

#endif
