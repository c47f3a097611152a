/* JSON bodies and their memory (request_body.h). */
#include "server/api/request_body.h"

#include "server/access/admission.h"
#include "server/api/app.h"
#include "server/bridge/bridge.h"
#include "server/json/json.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"

enum { FREE_INLINE = 256 * 1024 /* bytes of a tree; some thousand nodes */ };

bool body_reply_memory(struct app *app, struct http_req *req, const struct err *e)
{
    int status = reservation_status(e, 0);
    if (status == 503) admission_reply_memory(req, e->msg);
    if (status == 413) {
        metrics_reject(&app->metrics, REJECT_MEMORY);
        http_reply_error(req, 413, "validation", "%s", e->msg);
    }
    return status != 0;
}

static void work_free(void *tree)
{
    json_free(tree);
    reservation_trim();
}

static void after_free(void *tree)
{
    (void)tree;
}

void body_free_json(struct bridge *b, uint64_t client, cJSON *tree)
{
    if (json_reserved(tree) > FREE_INLINE)
        bridge_work(b, client, work_free, after_free, tree);
    else
        json_free(tree);
}
