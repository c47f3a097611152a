/* What names a request beyond this process: its X-Request-Id, and the trace it belongs to (W3C Trace Context).  Both
 * come from strangers and end in logs and in headers, so both are taken only in the form their rules allow. */
#ifndef TANDEM_SERVER_NET_REQUEST_ID_H
#define TANDEM_SERVER_NET_REQUEST_ID_H

#include <stdbool.h>

enum { REQUEST_ID_MAX = 128 };

struct trace_parent {
    char trace_id[33], span_id[17]; /* lower-case hex; "": none */
    bool sampled;
};

/* 1 .. REQUEST_ID_MAX of letters, digits and . _ : / + = @ ~ -  */
bool request_id_valid(const char *);
/* 32 hex digits that nobody can guess. */
void request_id_make(char out[REQUEST_ID_MAX + 1]);

/* The header `traceparent`: https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, the caller's
 * span and flags; later versions may have more behind a '-'.  False, and *out empty, when it is not exactly that. */
bool trace_parent_parse(const char *text, struct trace_parent *out);

#endif
