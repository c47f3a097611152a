/* GET /get_world_size, GET /server_info, and the routes by which vLLM takes weights from a trainer's GPU: what TRL asks
 * of a server of vLLM's before and while it trains.  The latter are refused: here a trainer writes an adapter to a
 * directory and loads it.  Loop thread. */
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/json/json.h"
#include "server/net/http.h"

#include <string.h>

void api_world_size(struct http_req *req)
{
    static const char one[] = "{\"world_size\":1}";
    http_reply(req, 200, "application/json", one, sizeof one - 1);
}

/* As PyTorch spells it; that of a quantised model as tandem does. */
static const char *dtype_of(const char *weight_type)
{
    static const char *const names[][2] = {
        {"bf16", "torch.bfloat16"}, {"f16", "torch.float16"}, {"f32", "torch.float32"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(weight_type, names[i][0]) == 0) return names[i][1];
    return weight_type;
}

/* Those of vLLM's settings that its clients read. */
void api_server_info(struct http_req *req)
{
    struct buf out = {0};
    if (admission_refuses(req, NULL)) return;
    const struct served_model *m = served_model_of(req);
    if (!m->info) {
        http_set_header(req, "Retry-After", "1");
        http_reply_error(req, 503, "loading", "the model is loading");
        return;
    }
    buf_str(&out, "{\"vllm_config\":{\"model_config\":{\"model\":");
    json_put_string(&out, m->id, strlen(m->id));
    buf_str(&out, ",\"dtype\":");
    const char *dtype = dtype_of(m->info->weight_type);
    json_put_string(&out, dtype, strlen(dtype));
    buf_printf(&out, ",\"max_model_len\":%d},\"parallel_config\":{\"world_size\":1},\"weight_transfer_config\":null}}",
               m->info->max_total_tokens);
    http_reply(req, 200, "application/json", out.data, out.len);
    buf_free(&out);
}

void api_no_weight_transfer(struct http_req *req)
{
    http_reply_error(req, 400, "unsupported",
                     "%.60s: weights are not taken over NCCL or CUDA IPC here: save the adapter to a directory within "
                     "--adapter-dir and POST /v1/load_lora_adapter; requests that run keep the version they began with",
                     req->path);
}
