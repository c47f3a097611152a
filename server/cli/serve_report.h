/* The daemon's report when it is ready. */
#ifndef TANDEM_SERVER_CLI_SERVE_REPORT_H
#define TANDEM_SERVER_CLI_SERVE_REPORT_H

#include <stdint.h>

struct app;
struct settings;

enum { SERVE_URL = 128 };

/* Writes a URL that can be opened: a wildcard address is replaced. */
void serve_url(char out[static SERVE_URL], const struct settings *, const char *host, int port);
/* Prints model, weights, cache, limits and device on stderr, for people.  started: clock_now() at the process's
 * start. */
void serve_report_print(const struct app *, uint64_t started);
/* The same as one line of the JSON log. */
void serve_report_log(const struct app *, const char *url);

#endif
