/* Every route of the daemon: method, path, handler, required role and body limit. */
#ifndef TANDEM_SERVER_CLI_SERVE_ROUTES_H
#define TANDEM_SERVER_CLI_SERVE_ROUTES_H

#include "server/net/http.h"

extern const struct http_route serve_routes[];
extern const int serve_n_routes;

#endif
