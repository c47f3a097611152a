/* Does a request come from another site's page?  A browser lets any page send simple requests to any address, also to
 * 127.0.0.1; that the page may not read the answer (CORS) does not undo what was asked for. */
#ifndef TANDEM_SERVER_ORIGIN_H
#define TANDEM_SERVER_ORIGIN_H

#include <stdbool.h>

/* By what the browser says: `fetch_site` (Sec-Fetch-Site, on HTTPS and on this machine), else `origin` (Origin) beside
 * `host` (Host).  NULL: there is no such header.  `allowed`: an origin that may call, "*" for all, NULL or "" for none.
 * Programs that are no browsers send none of them, and are not foreign. */
bool origin_is_foreign(const char *fetch_site, const char *origin, const char *host, const char *allowed);

#endif
