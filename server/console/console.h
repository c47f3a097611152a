/* The console: one page for a browser, and the files it is made of.
 *
 * Sources in server/console/, embedded in the binary at build time (embed.py generates console_files.c), so that it
 * works offline and needs no installed files.  The page is public and uses only routes that any client may use.  Loop
 * thread. */
#ifndef TANDEM_SERVER_CONSOLE_CONSOLE_H
#define TANDEM_SERVER_CONSOLE_CONSOLE_H

#include "server/net/http.h"

struct console_file {
    const char *name;          /* GET /console/NAME */
    const char *type;          /* Content-Type */
    const char *etag;          /* with its quotes; of the bytes */
    const unsigned char *data; /* len bytes, static */
    size_t len;
};

/* console_files.c, generated; the page itself, index.html, is among them */
extern const struct console_file console_files[];
extern const int console_n_files;

/* @return whether an Accept header (RFC 9110, 12.5.1; NULL: none) prefers text/html to application/json: a browser's
 * does, the wildcard of other clients does not. */
bool console_accepts(const char *accept);
/* GET / for clients that console_accepts: the page. */
void console_page(struct http_req *);
void api_console_file(struct http_req *); /* GET /console/{file} */

#endif
