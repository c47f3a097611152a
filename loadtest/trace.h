/* A recorded load: when each request arrived and how long its prompt and its answer were.  Read from CSV: Azure's LLM
 * inference traces (github.com/Azure/AzurePublicDataset: TIMESTAMP,ContextTokens,GeneratedTokens, the time as
 * 2023-11-16 18:15:46.6805900, of 2024 with +00:00 after it), BurstGPT's (Timestamp in seconds, Request tokens,
 * Response tokens), or any file whose first line names such columns; without such a line the first three columns are
 * taken in this order. */
#ifndef TANDEM_LOADTEST_TRACE_H
#define TANDEM_LOADTEST_TRACE_H

#include "engine/base/err.h"

#include <stddef.h>

enum { TRACE_TOKENS_MAX = 10000000 };

struct trace_row {
    double at;          /* seconds since the first row; never decreasing */
    int prompt, output; /* tokens, at least 1 */
};

struct trace {
    struct trace_row *rows; /* n, owned; trace_free */
    size_t n;
};

/* Parses the text of a file.  Rows are put in order of time.  ERR_INVALID with the line's number; an empty trace is an
 * error too.  On an error *t is empty. */
int trace_parse(struct trace *t, const char *text, size_t n, struct err *e);
int trace_read(struct trace *t, const char *path, struct err *e); /* 1 GB at most */
void trace_free(struct trace *t);

#endif
