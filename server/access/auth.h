/* Who may do what.  Where the daemon has keys (keys.h), every request must bring one whose role is enough for its
 * route; without --api-keys everything is permitted but what another site's page would do (origin.h).  Loop thread. */
#ifndef TANDEM_SERVER_ACCESS_AUTH_H
#define TANDEM_SERVER_ACCESS_AUTH_H

#include "server/net/http.h"

/* http_server_config.permit for a struct credentials: sets req->key, or answers 401 or 403 and returns false. */
bool auth_permits(void *credentials, struct http_req *req);

#endif
