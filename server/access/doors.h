/* What decides who comes in, and how: app->keys (keys.h) and app->tls (tls.h), from --api-keys, --tls-cert, --tls-key.
 * Loop thread. */
#ifndef TANDEM_SERVER_ACCESS_DOORS_H
#define TANDEM_SERVER_ACCESS_DOORS_H

#include "server/api/app.h"

int doors_open(struct app *, struct err *); /* before anybody can connect; doors_close whatever the result */
void doors_config(const struct app *, struct http_server_config *);
/* SIGHUP: what has a fault stays as it was, and the log says why. */
void doors_reload(struct app *);
void doors_close(struct app *); /* after the last connection */

#endif
