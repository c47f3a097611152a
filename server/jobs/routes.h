/* The handlers of fine-tuning jobs, batches and files: each answers one route (struct http_route), on the loop thread.
 */
#ifndef TANDEM_SERVER_JOBS_ROUTES_H
#define TANDEM_SERVER_JOBS_ROUTES_H

#include <stddef.h>

struct http_req;

#define FILES_LIMIT ((size_t)512 * 1024 * 1024) /* of one upload to /v1/files, including the multipart form */

/* api_train.c, api_train_events.c */
void api_train_create(struct http_req *);
void api_train_validate(struct http_req *);
void api_train_list(struct http_req *);
void api_train_get(struct http_req *);
void api_train_delete(struct http_req *);
void api_train_events(struct http_req *);
void api_train_metrics(struct http_req *);
void api_train_checkpoints(struct http_req *);
void api_train_cancel(struct http_req *);
void api_train_pause(struct http_req *);
void api_train_resume(struct http_req *);
/* api_finetune.c */
void api_finetune_create(struct http_req *);
void api_finetune_list(struct http_req *);
void api_finetune_get(struct http_req *);
void api_finetune_events(struct http_req *);
void api_finetune_checkpoints(struct http_req *);
void api_finetune_cancel(struct http_req *);
void api_finetune_pause(struct http_req *);
void api_finetune_resume(struct http_req *);
/* api_files.c */
void api_files_begin(struct http_req *);
void api_files_create(struct http_req *);
void api_files_list(struct http_req *);
void api_files_get(struct http_req *);
void api_files_delete(struct http_req *);
void api_files_content(struct http_req *);
/* api_batches.c */
void api_batches_create(struct http_req *);
void api_batches_list(struct http_req *);
void api_batches_get(struct http_req *);
void api_batches_cancel(struct http_req *);
/* api_evaluate.c */
void api_evaluate_create(struct http_req *);
void api_evaluate_list(struct http_req *);
void api_evaluate_get(struct http_req *);
void api_evaluate_cancel(struct http_req *);
void api_evaluate_delete(struct http_req *);
/* api_feedback.c */
void api_feedback_create(struct http_req *);
void api_feedback_list(struct http_req *);
void api_feedback_delete(struct http_req *);
/* api_rollback.c */
void api_adapter_rollback(struct http_req *);

#endif
