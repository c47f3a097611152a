/* What the daemon says of itself when it is ready. */
#ifndef TANDEM_SERVER_CLI_SERVE_REPORT_H
#define TANDEM_SERVER_CLI_SERVE_REPORT_H

#include <stdint.h>

struct app;
struct settings;

enum { SERVE_URL = 128 };

/* An address a person can paste: the wildcard is no place to connect to. */
void serve_url(char out[static SERVE_URL], const struct settings *, const char *host, int port);
/* For people, on stderr: model, weights, cache, limits, device.  started: clock_now() of the process's begin. */
void serve_report_print(const struct app *, uint64_t started);
/* The same as one line of the JSON log. */
void serve_report_log(const struct app *, const char *url);

#endif
