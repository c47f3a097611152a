/* Detects requests from pages of other sites (CSRF and DNS rebinding).  A browser lets any page send simple requests to
 * any address, also to 127.0.0.1; CORS prevents the page from reading the answer, but not the effects of the request.
 * A page whose name was made to resolve to this machine (DNS rebinding) is same-origin to the browser: only the name in
 * Host shows it. */
#ifndef TANDEM_SERVER_ACCESS_ORIGIN_H
#define TANDEM_SERVER_ACCESS_ORIGIN_H

#include <stdbool.h>

/* Decides by `fetch_site` (Sec-Fetch-Site, sent over HTTPS and to loopback), otherwise by comparing `origin` (Origin)
 * with `host` (Host).  NULL: the header is absent.  `allowed`: a permitted origin, "*" for all, NULL or "" for none.
 * Clients other than browsers send neither header and are never foreign. */
bool origin_is_foreign(const char *fetch_site, const char *origin, const char *host, const char *allowed);

enum { ORIGIN_HOST_MAX = 256 };

struct origin_names {
    const char *listen;  /* --host */
    const char *allowed; /* --allowed-hosts: "a.example,.b.example", "*" for all; NULL or "" for none */
    bool local;          /* only this machine can connect */
};

/* @return whether `host` (the Host header; NULL: absent, so not a browser) names this daemon: an address, localhost,
 * the name it listens on, or an allowed name; when it listens beyond loopback also a name that cannot be in public DNS
 * (a single label, .local, .internal, .home.arpa, .svc). */
bool origin_host_known(const char *host, const struct origin_names *names);

#endif
