/* The console: one page for a browser, and the files it is made of.
 *
 * Written by hand in server/console/, put into the binary at build time (embed.py makes console_files.c of them), so
 * that it works offline and needs no folder beside the daemon.  The page is public; what it asks the daemon for is
 * what any client may ask.  Loop thread. */
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

/* Whether an Accept header (RFC 9110, 12.5.1; NULL: none) likes text/html more than application/json: a browser's does,
 * the wildcard of a client program does not. */
bool console_accepts(const char *accept);
/* GET / for whom console_accepts: the page. */
void console_page(struct http_req *);
void api_console_file(struct http_req *); /* GET /console/{file} */

#endif
