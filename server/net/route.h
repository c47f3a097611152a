/* The route table: finds the route of a method and a path (route.c). */
#ifndef TANDEM_SERVER_NET_ROUTE_H
#define TANDEM_SERVER_NET_ROUTE_H

#include "server/net/http.h"

#include <stdbool.h>
#include <stddef.h>

struct route_match {
    const struct http_route *route; /* NULL: status says why */
    char param[128];                /* for its {...} */
    int status;                     /* 200, 404, 405; 204: OPTIONS without a route of its own */
    char allow[64];                 /* the methods this path has, "GET, HEAD, OPTIONS"; "" on 404 */
};

void route_find(const struct http_route *routes, int n, enum http_method method, const char *path,
                struct route_match *out);

/* Writes to out the path with /v1 added or removed if a route has it, for clients whose base URL wrongly has or lacks
 * the /v1.  @return false when no route has it. */
bool route_near(const struct http_route *routes, int n, const char *path, char *out, size_t size);

#endif
