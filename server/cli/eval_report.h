/* What tandem eval shows: a progress line and a table.  Main thread. */
#ifndef TANDEM_SERVER_CLI_EVAL_REPORT_H
#define TANDEM_SERVER_CLI_EVAL_REPORT_H

#include "server/jobs/evaluation_report.h"

#include <stdio.h>

void eval_report_table(const struct evaluation_report *, FILE *);

/* A line: which subject, its share done, rows per second, the time left.  terminal: rewrites the last one. */
void eval_report_progress(const struct evaluation_subject *, const struct evaluation_rows *, double seconds,
                          bool terminal, FILE *);

#endif
