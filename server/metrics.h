/* What the daemon counts, and its Prometheus text.  Fixed memory: every label value is known here.  Loop thread only.
 */
#ifndef TANDEM_SERVER_METRICS_H
#define TANDEM_SERVER_METRICS_H

#include "engine/base/buf.h"
#include "engine/engine.h"

#include <stdint.h>

struct jobs_view;

enum { METRICS_ROUTES = 96, METRICS_STATUSES = 24, METRICS_BUCKETS = 20 };

enum reject_reason {
    REJECT_OVERLOADED,
    REJECT_VALIDATION,
    REJECT_LOADING,
    REJECT_DRAINING,
    REJECT_UNAUTHORIZED,
    REJECT_FORBIDDEN,
    REJECT_REASONS
};

enum histogram_id {
    HIST_TTFT,   /* request head complete to first token, seconds */
    HIST_ITL,    /* between tokens of one request, as they reach the loop, seconds */
    HIST_E2E,    /* request head complete to last token, seconds */
    HIST_QUEUE,  /* submitted to first scheduled, seconds */
    HIST_PROMPT, /* tokens */
    HIST_GENERATED,
    HISTOGRAMS,
};

struct histogram {
    uint64_t counts[METRICS_BUCKETS + 1]; /* the last: beyond every bound */
    double sum;
};

struct metrics {
    const char *routes[METRICS_ROUTES]; /* label values, static text; n_routes of them, then "other" */
    int n_routes;
    uint64_t requests[METRICS_ROUTES + 1][METRICS_STATUSES];
    uint64_t finished[FINISH_ERROR + 1];
    uint64_t rejected[REJECT_REASONS];
    struct histogram hist[HISTOGRAMS];
    uint64_t start_unix_ns;
};

/* what metrics_render reads beside its own counts; NULL where there is none yet */
struct metrics_view {
    const struct engine_info *info;
    const struct engine_stats *stats;
    const struct http_server_stats *http;
    const struct jobs_view *jobs;
    bool ready;
};

void metrics_init(struct metrics *);
/* Routes are known by the address-independent text of their path; call before serving. */
void metrics_add_route(struct metrics *, const char *path);
/* status 0: the client left first (reported as 499) */
void metrics_request(struct metrics *, const char *path, int status);
void metrics_reject(struct metrics *, enum reject_reason);
void metrics_observe(struct metrics *, enum histogram_id, double value);
/* one generation is over */
void metrics_finish(struct metrics *, const struct event *done, uint64_t received, uint64_t now);

void metrics_render(const struct metrics *, const struct metrics_view *, struct buf *out);

#endif
