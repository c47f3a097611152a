/* Does a request come from another site's page?  A browser lets any page send simple requests to any address, also to
 * 127.0.0.1; that the page may not read the answer (CORS) does not undo what was asked for.  And a page whose own name
 * was made to resolve to this machine (DNS rebinding) is same-origin to the browser: only the name in Host shows it. */
#ifndef TANDEM_SERVER_ACCESS_ORIGIN_H
#define TANDEM_SERVER_ACCESS_ORIGIN_H

#include <stdbool.h>

/* By what the browser says: `fetch_site` (Sec-Fetch-Site, on HTTPS and on this machine), else `origin` (Origin) beside
 * `host` (Host).  NULL: there is no such header.  `allowed`: an origin that may call, "*" for all, NULL or "" for none.
 * Programs that are no browsers send none of them, and are not foreign. */
bool origin_is_foreign(const char *fetch_site, const char *origin, const char *host, const char *allowed);

enum { ORIGIN_HOST_MAX = 256 };

struct origin_names {
    const char *listen;  /* --host */
    const char *allowed; /* --allowed-hosts: "a.example,.b.example", "*" for all; NULL or "" for none */
    bool local;          /* only this machine can connect */
};

/* Is `host` (the Host header; NULL: absent, so it is no browser's) a name of this daemon: an address, localhost, the
 * name it listens on, an allowed one; beyond loopback also one that the public DNS cannot have (a single label, .local,
 * .internal, .home.arpa, .svc). */
bool origin_host_known(const char *host, const struct origin_names *names);

#endif
