/* What decides who comes in, and how: app->keys (keys.h) and app->tls (tls.h), from --api-keys, --tls-cert, --tls-key.
 * Loop thread. */
#ifndef TANDEM_SERVER_ACCESS_CREDENTIALS_H
#define TANDEM_SERVER_ACCESS_CREDENTIALS_H

#include "server/api/app.h"

int credentials_open(struct app *,
                     struct err *); /* before anybody can connect; credentials_close whatever the result */
void credentials_config(const struct app *, struct http_server_config *);
/* SIGHUP: what has a fault stays as it was, and the log says why. */
void credentials_reload(struct app *);
void credentials_close(struct app *); /* after the last connection */

#endif
