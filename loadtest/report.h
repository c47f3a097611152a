/* What a run, or a sweep of runs, came to: as a table, as JSON, as a page with plots.  Pure, but for the file written.
 */
#ifndef TANDEM_LOADTEST_REPORT_H
#define TANDEM_LOADTEST_REPORT_H

#include "loadtest/run.h"

struct report {
    const struct options *options;
    const char *model;             /* NULL: not known */
    const struct run_result *runs; /* n: more than one in a sweep */
    int n;
    double unix_time; /* when it began */
};

/* Figures of one run that all forms of the report show. */
struct summary {
    double tokens_per_s, requests_per_s, good_per_s; /* in the window */
    double offered_per_s;                            /* arrivals a second */
    double tps_per_user;                             /* 1000 / tpot_p90_ms, as MLPerf Endpoints has it; 0: no tokens */
    double late_p99_ms, cpu_share;                   /* of the generator; of one core */
    bool saturated;                                  /* so late or so busy that it measured itself */
    uint64_t errors;
};

struct summary report_summary(const struct run_result *);
double report_ms(const struct run_result *, enum metric, double percent); /* 0 when there are none */

void report_text(struct buf *out, const struct report *);
void report_json(struct buf *out, const struct report *);
void report_html(struct buf *out, const struct report *);

#endif
