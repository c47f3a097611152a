/* Authorization.  With --api-keys (keys.h), every request must carry a key whose role suffices for its route; without,
 * everything is permitted except state changes from pages of other sites (origin.h).  Loop thread. */
#ifndef TANDEM_SERVER_ACCESS_AUTH_H
#define TANDEM_SERVER_ACCESS_AUTH_H

#include "server/net/http.h"

/* http_server_config.permit for a struct credentials: sets req->key, or answers 401 or 403 and returns false. */
bool auth_permits(void *credentials, struct http_req *req);

#endif
