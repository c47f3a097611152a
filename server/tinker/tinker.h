/* Tinker's API: training and sampling driven call by call by PyPI's `tinker`.  Loop thread. */
#ifndef TANDEM_SERVER_TINKER_TINKER_H
#define TANDEM_SERVER_TINKER_TINKER_H

struct app;
struct http_req;
struct tinker;

struct tinker *tinker_open(struct app *);
/* The daemon ends: calls that are held open are answered, new ones refused. */
void tinker_drain(struct tinker *);
/* Cancels and frees everything; done(arg) when its handles are closed.  After the last connection was closed. */
void tinker_close(struct tinker *, void (*done)(void *), void *arg);

void api_tinker_healthz(struct http_req *);
void api_tinker_config(struct http_req *);
void api_tinker_dynamic_config(struct http_req *);
void api_tinker_capabilities(struct http_req *);
void api_tinker_telemetry(struct http_req *);
void api_tinker_session_create(struct http_req *);
void api_tinker_session_heartbeat(struct http_req *);
void api_tinker_session_finish(struct http_req *);
void api_tinker_sampler_create(struct http_req *);
void api_tinker_sampler_get(struct http_req *);
void api_tinker_asample(struct http_req *);
void api_tinker_retrieve(struct http_req *);
void api_tinker_create_model(struct http_req *);
void api_tinker_get_info(struct http_req *);
void api_tinker_forward_backward(struct http_req *);
void api_tinker_optim_step(struct http_req *);
void api_tinker_save_for_sampler(struct http_req *);
void api_tinker_save_weights(struct http_req *);
void api_tinker_load_weights(struct http_req *);
void api_tinker_copy_weights(struct http_req *);
void api_tinker_weights_info(struct http_req *);
void api_tinker_runs(struct http_req *);
void api_tinker_run(struct http_req *);
void api_tinker_run_checkpoints(struct http_req *);
void api_tinker_checkpoints(struct http_req *);
void api_tinker_checkpoint_delete(struct http_req *);
void api_tinker_checkpoint_publish(struct http_req *);
void api_tinker_checkpoint_ttl(struct http_req *);
void api_tinker_sessions(struct http_req *);
void api_tinker_session(struct http_req *);

#endif
