/* Who a browser says is asking (origin.h): Fetch's Origin header and Fetch Metadata's Sec-Fetch-Site, which no page can
 * set itself. */
#include "server/origin.h"

#include <string.h>
#include <strings.h>

/* http://HOST of the request's own Host?  The scheme may be another one: a proxy speaks HTTPS for us. */
static bool same_host(const char *origin, const char *host)
{
    const char *authority = strstr(origin, "://");
    return authority && host && strcasecmp(authority + 3, host) == 0;
}

bool origin_is_foreign(const char *fetch_site, const char *origin, const char *host, const char *allowed)
{
    if (allowed && (strcmp(allowed, "*") == 0 || (origin && *allowed && strcmp(allowed, origin) == 0))) return false;
    if (fetch_site) return strcmp(fetch_site, "same-origin") != 0 && strcmp(fetch_site, "none") != 0;
    return origin && !same_host(origin, host); /* "null" is a page that hides where it is from */
}
