/* POST /api/v1/asample: texts of a prompt given as tokens, by a future.
 *
 * The engine gets them as requests of the daemon's own, behind those of clients that wait for an answer, and not more
 * at a time than can run at once; the others wait here, in order of arrival. */
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/request_body.h"
#include "server/api/request_fields.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/net/http.h"
#include "server/tinker/sample_params.h"
#include "server/tinker/state.h"

#include <stdlib.h>

struct sampled {
    struct sampling *of;
    struct gen *gen; /* NULL before and after it runs */
    struct generation_result result;
};

struct sampling {
    struct sampling *next;
    bool queued, used; /* used: the model is loaded, and stays so */
    struct tinker *t;
    struct future *future;
    struct served_model *model;
    struct model_wait wait;
    uint64_t client;
    char *adapter; /* owned; NULL: none */
    struct sample_params params;
    struct sampled *text; /* (params.n) owned */
    int n_submitted, n_done;
    size_t gathered;         /* bytes of the results, at most */
    struct reservation held; /* for them */
};

static void dequeue(struct sampling *s)
{
    struct sampling **link = &s->t->first;
    if (!s->queued) return;
    while (*link != s) link = &(*link)->next;
    *link = s->next;
    if (!*link) s->t->last = link;
    s->queued = false;
}

/* The future stays as it is, and is not told. */
static void cancel(void *arg)
{
    struct sampling *s = arg;
    dequeue(s);
    for (int i = 0; i < s->n_submitted; i++) {
        s->t->flying -= s->text[i].gen != NULL;
        bridge_cancel(s->text[i].gen);
    }
    for (int i = 0; i < s->params.n; i++) result_free(&s->text[i].result);
    model_wait_cancel(s->t->app->models, &s->wait);
    if (s->used) model_release(s->t->app->models, s->model);
    sample_params_free(&s->params);
    reservation_free(&s->held);
    free(s->text);
    free(s->adapter);
    free(s);
}

static void fail(struct sampling *s, const char *category, const char *msg)
{
    struct future *f = s->future;
    future_failed(f, category, msg);
    cancel(s);
}

/* ---- the results ---------------------------------------------------------------------------------------------------
 */

static void finish(struct sampling *s)
{
    struct future *f = s->future;
    size_t bytes = 0;
    struct err e = {0};
    for (int i = 0; i < s->params.n; i++) {
        const struct event *done = &s->text[i].result.done;
        if (done->finish == FINISH_ERROR || done->finish == FINISH_CANCELLED || done->finish == FINISH_ABORTED) {
            fail(s, "server", done->error ? done->error : "the request was ended before its text was whole");
            return;
        }
        bytes += ANSWER_GROWTH * sample_answer_bytes(&s->params.shape, &s->text[i].result);
    }
    if (!reserve(&f->memory, bytes, "the answer", &e)) {
        fail(s, "server", e.msg);
        return;
    }
    for (int i = 0; i < s->params.n; i++) sample_put_text(&f->answer, &s->params.shape, &s->text[i].result);
    sample_put_prompt(&f->answer, &s->params.shape, &s->text[0].result);
    future_done(f);
    cancel(s);
}

static void on_event(void *arg, const struct event *ev, const struct event_batch *batch)
{
    struct sampled *text = arg;
    struct sampling *s = text->of;
    struct tinker *t = s->t;
    s->gathered += result_event_bytes(ev);
    if (!reserve_up_to(&s->held, s->gathered, "the texts", NULL) || !result_room(&text->result, ev)) {
        fail(s, "server", "no memory for the texts");
        return;
    }
    result_add(&text->result, ev, batch);
    if (ev->kind != EV_DONE) return;
    text->gen = NULL;
    t->flying--;
    if (++s->n_done == s->params.n) finish(s);
    sampling_pump(t);
}

/* ---- submitting ----------------------------------------------------------------------------------------------------
 */

/* What is asked for of the prompt's tokens.  @return the ids to score, to be freed when it is submitted; NULL: none. */
static int32_t *ask_prompt(struct gen_request *r, const struct sample_shape *shape)
{
    int32_t *scored = NULL;
    r->prompt_logprobs = true;
    r->n_drawn = shape->alternatives;
    if (!shape->targets.rows) return NULL;
    r->n_scored = shape->targets.widest;
    r->scored = scored = prompt_targets_scored(&shape->targets, r->logprobs_from > 1 ? r->logprobs_from - 1 : 0);
    return scored;
}

/* The next text.  The events of the prompt are asked for once. */
static int submit(struct sampling *s, struct err *e)
{
    int i = s->n_submitted;
    struct gen_request r = s->params.gen;
    const struct sample_shape *shape = &s->params.shape;
    bool prompt =
        i == 0 && (shape->prompt_logprobs || shape->topk_prompt || shape->targets.rows || shape->alternatives);
    int room = s->model->info->max_total_tokens - r.n_prompt;
    if (r.max_new_tokens == 0) r.max_new_tokens = room;
    if (room < r.max_new_tokens || room < 1)
        return err_set(e, ERR_INVALID,
                       "`prompt` has %d tokens and `sampling_params.max_tokens` is %d: a text may have %d in all",
                       r.n_prompt, r.max_new_tokens, s->model->info->max_total_tokens);
    if (shape->targets.rows && shape->targets.largest >= s->model->info->vocab)
        return err_set(e, ERR_INVALID, "`target_prompt_logprobs` has %d; the model knows 0 to %d",
                       shape->targets.largest, s->model->info->vocab - 1);
    r.top_n = prompt && shape->topk_prompt > shape->topk_sample ? shape->topk_prompt : shape->topk_sample;
    r.sampling.seed = seed_derive(r.sampling.seed, i);
    struct sampled *text = &s->text[i];
    int32_t *scored = NULL;
    if (prompt)
        scored = ask_prompt(&r, shape);
    else
        r.logprobs_from = 0;
    text->of = s;
    text->gen = bridge_submit_own(s->model->bridge, &r, s->client, on_event, text, e);
    free(scored);
    if (!text->gen) return e->code;
    s->n_submitted++;
    s->t->flying++;
    return 0;
}

void sampling_pump(struct tinker *t)
{
    for (struct sampling *s = t->first, *next; s && !t->stopping; s = next) {
        struct err e = {0};
        next = s->next;
        if (!s->used) continue;
        while (s->n_submitted < s->params.n && t->flying < s->model->info->max_seqs && !submit(s, &e))
            ;
        if (e.code && e.code != ERR_FULL)
            fail(s, e.code == ERR_INVALID ? "user" : "server", e.msg);
        else if (s->n_submitted == s->params.n)
            dequeue(s);
    }
}

static void on_loaded(void *arg, const struct err *e)
{
    struct sampling *s = arg;
    struct tinker *t = s->t;
    if (e->code) {
        fail(s, "server", e->msg);
        return;
    }
    s->used = true;
    sampling_pump(t);
}

static void enqueue(struct sampling *s)
{
    struct tinker *t = s->t;
    *t->last = s;
    t->last = &s->next;
    s->queued = true;
    s->used = model_use(t->app->models, s->model);
    if (s->used)
        sampling_pump(t);
    else if (!model_wait_for(t->app->models, s->model, &s->wait, NULL, on_loaded, s))
        fail(s, "server", "too many requests wait for models");
}

/* ---- the request ---------------------------------------------------------------------------------------------------
 */

static void reply_future(struct http_req *req, const struct future *f, int n)
{
    struct buf b = {0};
    buf_printf(&b, "{\"request_id\":\"%s\",\"sample_sequence_ids\":[", f->handle.id);
    for (int i = 0; i < n; i++) buf_printf(&b, "%s\"%s:%d\"", i ? "," : "", f->handle.id, i);
    buf_str(&b, "]}");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

/* Takes params over, if it gives 0. */
static int start(struct http_req *req, struct sampler *sampler, struct sample_params *params)
{
    struct tinker *t = tinker_of(req);
    struct future *f = future_new(t, sampler, sampler->handle.client, params->seq);
    if (!f) return ERR_FULL;
    struct sampling *s = mem_zalloc(sizeof *s);
    *s = (struct sampling){.t = t, .future = f, .model = sampler->model, .client = sampler->handle.client};
    s->params = *params;
    s->params.gen.stop = (const char *const *)s->params.stop;
    s->params.gen.stop_ids = s->params.stop_ids;
    s->adapter = sampler->adapter ? mem_strdup(sampler->adapter) : NULL;
    s->params.gen.adapter = s->adapter;
    if (!params->has_seed) s->params.gen.sampling.seed = seed_random();
    s->text = mem_array((size_t)params->n, sizeof *s->text);
    f->work = s;
    f->cancel = cancel;
    reply_future(req, f, params->n);
    enqueue(s);
    return 0;
}

static void begin(struct http_req *req, const cJSON *body)
{
    struct tinker *t = tinker_of(req);
    struct err e = {0};
    struct sample_params params = {0};
    const char *id = NULL;
    struct json_at at = {body, "", &e};
    json_get_string(&at, "sampling_session_id", &id);
    struct sampler *sampler = (struct sampler *)handles_find(&t->samplers, id, client_id(req));
    if (e.code || (sampler && sample_params_read(&params, body, &e))) {
        tinker_refuse(req, &e);
    } else if (sampler && sampler->gone) {
        http_reply_error(req, 404, "not_found",
                         "`sampling_session_id`: these weights are gone: the newest %d of a run stay", SNAPSHOTS_MAX);
    } else if (!sampler) {
        http_reply_error(req, 404, "not_found", "`sampling_session_id`: there is no such sampling session");
    } else {
        struct future *before = future_of(t, sampler, params.seq);
        tinker_session(req, sampler->session->handle.id); /* its client lives */
        if (before) {
            reply_future(req, before, params.n);
        } else if (!start(req, sampler, &params)) {
            return;
        } else {
            http_set_header(req, "Retry-After", "1");
            http_reply_error(req, 429, "overloaded", "%d results wait to be fetched", FUTURES_MAX);
        }
    }
    sample_params_free(&params);
}

/* A long body, parsed on the pool. */
struct reading {
    struct app *app;
    struct http_req *req; /* NULL once closed */
    struct http_body body;
    cJSON *tree;
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct reading *)req->user)->req = NULL;
}

static void work_parse(void *arg)
{
    struct reading *r = arg;
    r->tree = tinker_parse(r->body.data, r->body.len, &r->e);
    http_body_free(&r->body);
}

static void after_parse(void *arg)
{
    struct reading *r = arg;
    if (r->req) {
        r->req->on_close = NULL;
        r->req->user = NULL;
        if (r->e.code)
            tinker_refuse(r->req, &r->e);
        else
            begin(r->req, r->tree);
    }
    body_free_json(r->app->bridge, 0, r->tree);
    free(r);
}

void api_tinker_asample(struct http_req *req)
{
    struct app *app = req->app;
    if (admission_refuses(req, NULL)) return;
    if (req->body_len <= BODY_INLINE) {
        cJSON *tree = tinker_body(req);
        if (tree) begin(req, tree);
        json_free(tree);
        return;
    }
    struct reading *r = mem_zalloc(sizeof *r);
    r->app = app;
    r->req = req;
    http_take_body(req, &r->body);
    req->user = r;
    req->on_close = on_close;
    bridge_work(app->bridge, client_id(req), work_parse, after_parse, r);
}
