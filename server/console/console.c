/* Serving the console's files (console.h). */
#include "server/console/console.h"

#include <string.h>
#include <strings.h>

/* The page may load and connect to this daemon only, and cannot turn strings into markup. */
static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "
                             "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                             "require-trusted-types-for 'script'; trusted-types 'none'";

/* ---- what the client accepts ----------------------------------------------------------------------------------- */

/* The weight of one range in thousandths; 1000 without a q. */
static int weight(const char *at, const char *end)
{
    while ((at = memchr(at, ';', (size_t)(end - at)))) {
        at++;
        while (at < end && (*at == ' ' || *at == '\t')) at++;
        if (end - at < 3 || (*at != 'q' && *at != 'Q') || at[1] != '=') continue;
        int q = 0, unit = 1000;
        for (at += 2; at < end && unit; at++) {
            if (*at == '.') continue;
            if (*at < '0' || *at > '9') break;
            q += (*at - '0') * unit;
            unit /= 10;
        }
        return q < 1000 ? q : 1000;
    }
    return 1000;
}

/* @return how specifically a range of n bytes matches the type: 0 not at all, 1 the wildcard, 2 "text/" and a star, 3
 * exactly. */
static int fit(const char *range, size_t n, const char *type)
{
    size_t major = (size_t)(strchr(type, '/') - type) + 1;
    if (n == 3 && memcmp(range, "*/*", 3) == 0) return 1;
    if (n == major + 1 && range[major] == '*' && strncasecmp(range, type, major) == 0) return 2;
    return n == strlen(type) && strncasecmp(range, type, n) == 0 ? 3 : 0;
}

/* @return the weight of the most specific range that matches the type; 0 when none does. */
static int weight_of(const char *accept, const char *type)
{
    int best = 0, q = 0;
    for (const char *at = accept; *at;) {
        at += strspn(at, " \t,");
        const char *end = at + strcspn(at, ",");
        int how = fit(at, strcspn(at, " \t;,"), type);
        if (how > best) {
            best = how;
            q = weight(at, end);
        }
        at = end;
    }
    return q;
}

bool console_accepts(const char *accept)
{
    return accept && weight_of(accept, "text/html") > weight_of(accept, "application/json");
}

/* ---- the files ------------------------------------------------------------------------------------------------- */

static const struct console_file *find(const char *name)
{
    for (int i = 0; i < console_n_files; i++)
        if (strcmp(console_files[i].name, name) == 0) return &console_files[i];
    return NULL;
}

static void reply(struct http_req *req, const struct console_file *f)
{
    const char *known = http_header(req, "If-None-Match");
    http_set_header(req, "ETag", f->etag);
    http_set_header(req, "Cache-Control", "no-cache"); /* revalidated on each load: a new binary may have a new page */
    http_set_header(req, "Content-Security-Policy", policy);
    http_set_header(req, "X-Content-Type-Options", "nosniff");
    http_set_header(req, "Referrer-Policy", "no-referrer");
    http_set_header(req, "Cross-Origin-Resource-Policy", "same-origin");
    if (known && (strstr(known, f->etag) || strcmp(known, "*") == 0))
        http_reply(req, 304, NULL, NULL, 0);
    else
        http_reply(req, 200, f->type, f->data, f->len);
}

void console_page(struct http_req *req)
{
    reply(req, find("index.html"));
}

void api_console_file(struct http_req *req)
{
    const struct console_file *f = find(req->param);
    if (f)
        reply(req, f);
    else
        http_reply_error(req, 404, "not_found", "the console has no file %.80s", req->param);
}
