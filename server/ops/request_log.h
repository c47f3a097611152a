/* The line that the log gets for every finished request (--access-log).  Loop thread. */
#ifndef TANDEM_SERVER_OPS_REQUEST_LOG_H
#define TANDEM_SERVER_OPS_REQUEST_LOG_H

#include <stdint.h>

struct http_req;

/* status 0: the client left first. */
void request_log(const struct http_req *, int status, uint64_t duration_ns);

#endif
