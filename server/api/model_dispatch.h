/* Which model a request is for: chosen before its handler runs, which then finds it loaded.  Loop thread. */
#ifndef TANDEM_SERVER_API_MODEL_DISPATCH_H
#define TANDEM_SERVER_API_MODEL_DISPATCH_H

struct http_req;

/* http_server_config.dispatch.  Sets req->model and calls the handler, at once or when the model is loaded; or answers:
 * 404 where there is no such model, 429 where too many wait, 503 where it is not loaded in time, or at all.
 * fields: where the body names a model, http_route.model. */
void model_dispatch(struct http_req *, void (*handler)(struct http_req *), const char *fields);
/* http_server_config.release_model: the request is over. */
void model_dispatch_release(void *app, void *model);

#endif
