/* The route table: which handler a method and a path mean (route.c). */
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

/* The path that a client with the other kind of base URL meant, one with or one without the /v1 before it: where that
 * is a route's, it goes to out.  False: neither is. */
bool route_near(const struct http_route *routes, int n, const char *path, char *out, size_t size);

#endif
