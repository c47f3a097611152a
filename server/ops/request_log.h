/* Logs one line for every finished request (--access-log).  Loop thread. */
#ifndef TANDEM_SERVER_OPS_REQUEST_LOG_H
#define TANDEM_SERVER_OPS_REQUEST_LOG_H

#include <stdint.h>

struct http_req;

/* status 0: the client disconnected before the answer. */
void request_log(const struct http_req *, int status, uint64_t duration_ns);

#endif
