#include "server/cli/serve_routes.h"

#include "server/access/admission.h"
#include "server/api/request_body.h"
#include "server/api/routes.h"
#include "server/console/console.h"
#include "server/jobs/routes.h"
#include "server/ops/routes.h"

#define TRAIN_BODY ((size_t)32 * 1024 * 1024) /* may contain inline data */
#define NAME_BODY ((size_t)BODY_INLINE)       /* a name and a path: read on the loop */
#define OPEN_BODY ((size_t)4096)              /* of a GET that is open to all; ignored */

const struct http_route serve_routes[] = {
    {HTTP_M_POST, "/generate", api_generate, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/generate_stream", api_generate_stream, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/", api_generate_compat, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_GET, "/v1/models", api_models_list, 0, .role = ROUTE_USER},
    {HTTP_M_GET, "/v1/models/*", api_models_get, 0, .role = ROUTE_USER},
    {HTTP_M_DELETE, "/v1/models/*", api_models_delete, 0, .role = ROUTE_ADMIN},
    {HTTP_M_POST, "/v1/completions", api_completions, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/chat/completions", api_chat_completions, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/messages", api_messages, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/messages/count_tokens", api_messages_count, 0, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/embeddings", api_embeddings, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/embed", api_embed, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/similarity", api_similarity, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/rerank", api_rerank, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/rerank", api_rerank, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v2/rerank", api_rerank, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/score", api_score, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/v1/score", api_score, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/classify", api_classify, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/predict", api_predict, 0, .gate = admission_gate, .role = ROUTE_USER},
    {HTTP_M_POST, "/tokenize", api_tokenize, 0, .role = ROUTE_USER},
    {HTTP_M_POST, "/detokenize", api_detokenize, 0, .role = ROUTE_USER},
    {HTTP_M_GET, "/tokenizer_info", api_tokenizer_info, 0, .role = ROUTE_USER},
    {HTTP_M_GET, "/adapters", api_adapters_list, 0, .role = ROUTE_USER},
    {HTTP_M_POST, "/adapters", api_adapters_load, NAME_BODY, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/adapters/{name}", api_adapters_get, 0, .role = ROUTE_USER},
    {HTTP_M_DELETE, "/adapters/{name}", api_adapters_delete, 0, .role = ROUTE_ADMIN},
    {HTTP_M_POST, "/v1/load_lora_adapter", api_lora_load, NAME_BODY, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/unload_lora_adapter", api_lora_unload, NAME_BODY, .role = ROUTE_ADMIN},
    {HTTP_M_GET, "/", api_root, OPEN_BODY, .role = ROUTE_PAGE},
    {HTTP_M_GET, "/console/{file}", api_console_file, OPEN_BODY, .role = ROUTE_OPEN},
    {HTTP_M_GET, "/info", api_info, 0, .role = ROUTE_USER},
    {HTTP_M_GET, "/health", api_health, OPEN_BODY, .role = ROUTE_OPEN},
    {HTTP_M_GET, "/ping", api_health, OPEN_BODY, .role = ROUTE_OPEN},
    {HTTP_M_GET, "/ready", api_ready, OPEN_BODY, .role = ROUTE_OPEN},
    {HTTP_M_GET, "/metrics", api_metrics, 0, .role = ROUTE_USER},
    {HTTP_M_GET, "/debug/state", api_debug_state, 0, .role = ROUTE_ADMIN},
    {HTTP_M_POST, "/debug/trace", api_debug_trace, 0, .role = ROUTE_ADMIN},
    {HTTP_M_POST, "/train", api_train_create, TRAIN_BODY, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/train/validate", api_train_validate, TRAIN_BODY, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/train", api_train_list, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/train/{id}", api_train_get, 0, .role = ROUTE_TRAIN},
    {HTTP_M_DELETE, "/train/{id}", api_train_delete, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/train/{id}/events", api_train_events, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/train/{id}/metrics", api_train_metrics, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/train/{id}/checkpoints", api_train_checkpoints, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/train/{id}/cancel", api_train_cancel, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/train/{id}/pause", api_train_pause, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/train/{id}/resume", api_train_resume, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/fine_tuning/jobs", api_finetune_create, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/fine_tuning/jobs", api_finetune_list, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/fine_tuning/jobs/{id}", api_finetune_get, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/fine_tuning/jobs/{id}/events", api_finetune_events, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/fine_tuning/jobs/{id}/checkpoints", api_finetune_checkpoints, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/fine_tuning/jobs/{id}/cancel", api_finetune_cancel, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/fine_tuning/jobs/{id}/pause", api_finetune_pause, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/fine_tuning/jobs/{id}/resume", api_finetune_resume, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/files", api_files_create, FILES_LIMIT, api_files_begin, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/files", api_files_list, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/files/{id}", api_files_get, 0, .role = ROUTE_TRAIN},
    {HTTP_M_DELETE, "/v1/files/{id}", api_files_delete, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/files/{id}/content", api_files_content, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/batches", api_batches_create, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/batches", api_batches_list, 0, .role = ROUTE_TRAIN},
    {HTTP_M_GET, "/v1/batches/{id}", api_batches_get, 0, .role = ROUTE_TRAIN},
    {HTTP_M_POST, "/v1/batches/{id}/cancel", api_batches_cancel, 0, .role = ROUTE_TRAIN},
};
const int serve_n_routes = sizeof serve_routes / sizeof *serve_routes;
