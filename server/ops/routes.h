/* The handlers of health, metrics, debugging and the daemon's own description: each answers one route (struct
 * http_route), on the loop thread. */
#ifndef TANDEM_SERVER_OPS_ROUTES_H
#define TANDEM_SERVER_OPS_ROUTES_H

struct http_req;

/* api_info.c */
void api_root(struct http_req *);
void api_info(struct http_req *);
void api_health(struct http_req *);
void api_ready(struct http_req *);
/* api_metrics.c */
void api_metrics(struct http_req *);
/* api_debug.c, api_trace.c */
void api_debug_state(struct http_req *);
void api_debug_trace(struct http_req *);

#endif
