/* The options of tandem-loadtest: one table, from which parsing and --help follow. */
#ifndef TANDEM_LOADTEST_OPTIONS_H
#define TANDEM_LOADTEST_OPTIONS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "loadtest/api.h"
#include "loadtest/arrivals.h"
#include "loadtest/stats.h"

enum { SWEEP_MAX = 64, HEADERS_MAX = 16 };

struct options {
    /* the server */
    const char *url;
    int api; /* enum api_kind */
    const char *model, *key;
    struct buf headers; /* lines with CRLF */
    bool fresh;         /* a connection for every request */
    /* arrivals */
    int arrivals; /* enum arrival_kind */
    double rate, burstiness, ramp, duration, warmup, drain, think;
    int requests, concurrency, max_open;
    const char *trace;
    double trace_speed;
    bool trace_lengths;
    int sweep[SWEEP_MAX], n_sweep;
    double seed;
    /* requests */
    struct range prompt, output;
    int prompt_max, output_max, prefix, groups, long_prompt, leave_after;
    double long_share, slow_share, disconnect_share, bad_share, slow_ms, temperature;
    bool natural_end, exact;
    double timeout;
    bool retry;
    int retries;
    /* training beside it */
    int train_jobs, train_rows, train_steps;
    /* measuring */
    struct slo slo;
    double metrics_every;
    /* output */
    const char *json, *html, *samples, *title;
    bool dry_run, quiet;
};

/* -> 0; 1: --help was printed; negative: *e says what is wrong.  Texts point into argv. */
int options_parse(struct options *, int argc, char **argv, struct err *e);
void options_help(FILE *);
void options_free(struct options *);

struct place {
    char host[256], port[8], base[256];
    char authority[280]; /* as in the Host header */
};

/* http://host:port/path */
int place_parse(struct place *, const char *url, struct err *e);

#endif
