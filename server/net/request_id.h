/* Identifiers of a request across processes: its X-Request-Id, and its trace (W3C Trace Context).  Both are untrusted
 * and are written to logs and headers, so only well-formed values are accepted. */
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
/* 32 random hex digits, not guessable. */
void request_id_make(char out[REQUEST_ID_MAX + 1]);

/* The header `traceparent`: https://www.w3.org/TR/trace-context/#traceparent-header: version, trace id, the caller's
 * span and flags; later versions may have more behind a '-'.  @return false, and *out empty, when it is malformed. */
bool trace_parent_parse(const char *text, struct trace_parent *out);

#endif
