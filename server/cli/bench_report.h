/* The output of `tandem bench`: tables, or the JSON document of docs/bench.md.  Main thread. */
#ifndef TANDEM_SERVER_CLI_BENCH_REPORT_H
#define TANDEM_SERVER_CLI_BENCH_REPORT_H

#include "engine/base/buf.h"
#include "engine/bench/bench.h"

struct bench_report {
    struct bench_system system;
    const struct engine_info *info; /* NULL for --ops */
    const char *device;             /* "cpu avx512" */
    int threads, prompt_tokens, generate_tokens, repeat;
    size_t load_peak;
    struct ceilings before, after; /* --ops measures once: both the same */
    const struct bench_result *results;
    int n_results;
    const struct bench_op_row *rows; /* --ops */
    int n_rows;
};

void bench_report_json(struct buf *out, const struct bench_report *);
void bench_report_text(struct buf *out, const struct bench_report *);

/* The beginning of both, with the machine and its ceilings, for other reports: the JSON object stays open. */
void bench_report_head_json(struct buf *out, const struct bench_report *);
void bench_report_head_text(struct buf *out, const struct bench_report *, const char *flag);

/* Members of a JSON object, after a comma if it has members already.  A count is written exactly: json_put_number
 * writes fewer digits than a number of bytes may have. */
void bench_put_name(struct buf *out, const char *name);
void bench_put_number(struct buf *out, const char *name, double v);
void bench_put_count(struct buf *out, const char *name, double v);
void bench_put_string(struct buf *out, const char *name, const char *s);

/* Parts of the table of --ops, which is printed while measuring. */
void bench_ops_head(struct buf *out, const struct bench_report *);
void bench_ops_line(struct buf *out, const struct bench_op_row *, const struct ceilings *);

#endif
