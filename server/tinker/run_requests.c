/* The requests of training runs: their bodies, and the calls that they become. */
#include "engine/base/mem.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/app.h"
#include "server/api/model_table.h"
#include "server/api/request_body.h"
#include "server/api/served_model.h"
#include "server/bridge/bridge.h"
#include "server/net/http.h"
#include "server/store/data_dir.h"
#include "server/tinker/finding.h"
#include "server/tinker/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned run_targets(bool attn, bool mlp, bool unembed)
{
    return (attn ? TUNER_ATTENTION : 0) | (mlp ? TUNER_FEED_FORWARD : 0) | (unembed ? TUNER_HEAD : 0);
}

static void read_lora(struct json_at *at, struct tuner_params *p, int most)
{
    const cJSON *lora = NULL;
    int64_t rank = 32, seed = 0;
    bool unembed = true, mlp = true, attn = true;
    if (json_get_object(at, "lora_config", &lora)) {
        struct json_at in = {lora, "lora_config", at->e};
        json_get_int(&in, "rank", 1, most, &rank);
        json_get_int(&in, "seed", INT64_MIN, INT64_MAX, &seed);
        json_get_bool(&in, "train_unembed", &unembed);
        json_get_bool(&in, "train_mlp", &mlp);
        json_get_bool(&in, "train_attn", &attn);
    }
    *p = (struct tuner_params){.r = (int)rank, .alpha = 32, .seed = (uint64_t)seed};
    p->targets = run_targets(attn, mlp, unembed);
    if (!p->targets && !at->e->code)
        err_set(at->e, ERR_INVALID, "`lora_config`: one of train_attn, train_mlp and train_unembed must be true");
}

void api_tinker_create_model(struct http_req *req)
{
    struct err e = {0};
    struct tuner_params p;
    const char *id = NULL, *base = NULL;
    int64_t seq = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "session_id", &id);
    json_get_string(&at, "base_model", &base);
    json_get_int(&at, "model_seq_id", 0, INT32_MAX, &seq);
    read_lora(&at, &p, served_model_of(req)->info->max_lora_rank);
    const cJSON *optimizer = cJSON_GetObjectItemCaseSensitive(tree, "optimizer_config");
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(optimizer, "type");
    if (!e.code && cJSON_IsString(type) && strcmp(type->valuestring, "adamw"))
        err_set(&e, ERR_UNSUPPORTED, "`optimizer_config.type` must be adamw");
    if (e.code)
        tinker_refuse(req, &e);
    else if (!base || model_table_named(((struct app *)req->app)->models, base) != served_model_of(req))
        http_reply_error(req, 404, "not_found", "`base_model`: there is no model %.200s here", base ? base : "");
    else {
        struct session *s = tinker_session(req, id);
        if (s) run_create(req, s, seq, served_model_of(req), &p, NULL, false);
    }
    json_free(tree);
}

void api_tinker_get_info(struct http_req *req)
{
    struct err e = {0};
    struct buf b = {0};
    const char *id = NULL;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "model_id", &id);
    const struct run *r = run_find(req, id);
    json_free(tree);
    if (!r) return;
    const char *name = r->model->name, *where = r->model->dir ? r->model->dir : name;
    buf_printf(&b,
               "{\"type\":\"get_info\",\"model_id\":\"%s\",\"is_lora\":true,\"lora_rank\":%d,\"model_name\":", r->id,
               r->params.r);
    json_put_string(&b, name, strlen(name));
    buf_str(&b, ",\"model_data\":{\"arch\":");
    json_put_string(&b, r->model->info->family, strlen(r->model->info->family));
    buf_str(&b, ",\"model_name\":");
    json_put_string(&b, name, strlen(name));
    buf_str(&b, ",\"tokenizer_id\":");
    json_put_string(&b, where, strlen(where));
    buf_str(&b, "}}");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

/* @return the run that the body names, and its seq_id; NULL with an answer. */
static struct run *read_call(struct http_req *req, struct json_at *at, int64_t *seq)
{
    const char *id = NULL;
    json_get_string(at, "model_id", &id);
    if (!json_get_int(at, "seq_id", 1, INT32_MAX, seq) && !at->e->code)
        err_set(at->e, ERR_INVALID, "`seq_id` is needed");
    if (!at->e->code) return run_find(req, id);
    tinker_refuse(req, at->e);
    return NULL;
}

static int read_step(struct json_at *at, struct tuner_step *s)
{
    const cJSON *adam = NULL;
    struct err *e = at->e;
    *s = (struct tuner_step){1e-4, 0.9, 0.95, 1e-12, 0, 0};
    if (!json_get_object(at, "adam_params", &adam))
        return e->code ? e->code : err_set(e, ERR_UNSUPPORTED, "`adam_params` is needed: the optimizer is AdamW");
    struct json_at in = {adam, "adam_params", e};
    const struct {
        const char *name;
        double *v, max;
    } fields[] = {{"learning_rate", &s->learning_rate, 1e3}, {"beta1", &s->beta1, 0.999999},
                  {"beta2", &s->beta2, 0.99999999},          {"eps", &s->epsilon, 1},
                  {"weight_decay", &s->weight_decay, 1e3},   {"grad_clip_norm", &s->max_norm, 1e30}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_get_number(&in, fields[i].name, fields[i].v);
        if (!e->code && !(*fields[i].v >= 0 && *fields[i].v <= fields[i].max))
            err_set(e, ERR_INVALID, "`adam_params.%s` must be from 0 to %g", fields[i].name, fields[i].max);
    }
    return e->code;
}

void api_tinker_optim_step(struct http_req *req)
{
    struct err e = {0};
    struct tuner_step step;
    int64_t seq = 0;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    read_step(&at, &step);
    struct run *r = read_call(req, &at, &seq);
    json_free(tree);
    struct run_call *c = r ? run_call_new(req, r, CALL_STEP, seq) : NULL;
    if (!c) return;
    c->step = step;
    run_call_add(r, c);
}

/* ---- saving --------------------------------------------------------------------------------------------------------
 */

enum { METADATA_MAX = 2 << 10 };

static void read_metadata(struct json_at *at, struct checkpoint *c)
{
    const cJSON *all = NULL, *one;
    struct buf b = {0};
    if (!json_get_object(at, "user_metadata", &all)) return;
    cJSON_ArrayForEach(one, all) if (!cJSON_IsString(one) && !at->e->code)
        err_set(at->e, ERR_INVALID, "`user_metadata` must be an object of texts");
    json_put_value(&b, all, ",", ":");
    if (b.len > METADATA_MAX && !at->e->code)
        err_set(at->e, ERR_INVALID, "`user_metadata` must be of at most %d bytes", METADATA_MAX);
    c->metadata = b.data;
}

/* What the body says of the weights to be saved; without a name that of its number. */
static void read_saved(struct json_at *at, const struct run *r, int64_t seq, struct checkpoint *c)
{
    const char *name = NULL;
    int64_t ttl = 0;
    if (json_get_int(at, "ttl_seconds", 1, TTL_MOST, &ttl)) c->expires = data_now_ms() + 1000 * ttl;
    json_get_string(at, "path", &name);
    read_metadata(at, c);
    if (name && !checkpoint_name_ok(name) && !at->e->code)
        err_set(at->e, ERR_INVALID,
                "`path` must be a name: a letter or digit, then up to 99 of letters, digits, '.', '_', '-', ':'");
    if (at->e->code) return;
    if (name)
        snprintf(c->name, sizeof c->name, "%s", name);
    else
        snprintf(c->name, sizeof c->name, "%06lld", (long long)seq);
    memcpy(c->run, r->id, sizeof c->run);
    memcpy(c->owner, r->owner, sizeof c->owner);
    c->base = mem_strdup(r->model->name);
    c->rank = r->params.r;
    c->attn = r->params.targets & TUNER_ATTENTION;
    c->mlp = r->params.targets & TUNER_FEED_FORWARD;
    c->unembed = r->params.targets & TUNER_HEAD;
    c->created = data_now_ms();
}

static void save(struct http_req *req, struct run *r, int64_t seq, const struct checkpoint *saved, bool overwrite)
{
    struct run_call *c = run_call_new(req, r, CALL_SAVE, seq);
    struct checkpoint unused = *saved;
    if (!c) {
        checkpoint_free(&unused);
        return;
    }
    c->saved = *saved;
    c->overwrite = overwrite;
    run_call_add(r, c);
}

static void publish(struct http_req *req, struct run *r, int64_t seq, bool shared)
{
    struct run_call *c = run_call_new(req, r, CALL_PUBLISH, seq);
    if (!c) return;
    c->shared = shared;
    if (shared)
        snprintf(c->adapter, sizeof c->adapter, "@tinker-%llu-live", (unsigned long long)r->number);
    else
        snprintf(c->adapter, sizeof c->adapter, "@tinker-%llu-%010lld", (unsigned long long)r->number, (long long)seq);
    run_call_add(r, c);
}

static void save_request(struct http_req *req, bool sampler)
{
    struct err e = {0};
    const char *kind = "snapshot", *name = NULL;
    struct checkpoint saved = {.sampler = sampler};
    int64_t seq = 0;
    bool overwrite = false;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "kind", &kind);
    json_get_bool(&at, "overwrite", &overwrite);
    json_get_string(&at, "path", &name);
    struct run *r = read_call(req, &at, &seq);
    bool unnamed = sampler && !name;
    if (r && !unnamed) read_saved(&at, r, seq, &saved);
    if (r && e.code) {
        tinker_refuse(req, &e);
        checkpoint_free(&saved);
    } else if (r && unnamed) {
        publish(req, r, seq, !strcmp(kind, "inflight"));
    } else if (r) {
        save(req, r, seq, &saved, overwrite);
    }
    json_free(tree);
}

void api_tinker_save_weights(struct http_req *req)
{
    save_request(req, false);
}

void api_tinker_save_for_sampler(struct http_req *req)
{
    save_request(req, true);
}

/* ---- loading -------------------------------------------------------------------------------------------------------
 */

struct creating {
    char session[HANDLE_ID];
    int64_t seq;
    bool optimizer;
};

static void on_found(struct http_req *req, struct checkpoint *c, struct served_model *m, void *arg)
{
    const struct creating *d = arg;
    struct session *s = tinker_session(req, d->session);
    struct tuner_params p = {.r = c->rank, .alpha = 32, .targets = run_targets(c->attn, c->mlp, c->unembed)};
    if (s) run_create(req, s, d->seq, m, &p, c, d->optimizer);
}

/* A model that begins with saved weights. */
static void create_from(struct http_req *req, struct json_at *at, const char *path, bool optimizer)
{
    struct creating *d = mem_zalloc(sizeof *d);
    const char *id = "";
    json_get_string(at, "session_id", &id);
    json_get_int(at, "model_seq_id", 0, INT32_MAX, &d->seq);
    d->optimizer = optimizer;
    snprintf(d->session, sizeof d->session, "%.*s", HANDLE_ID - 1, id);
    if (!at->e->code && tinker_session(req, id)) {
        checkpoint_find(req, path, true, on_found, d);
        return;
    }
    if (at->e->code) tinker_refuse(req, at->e);
    free(d);
}

/* Saved weights into a model that there is. */
static void load_into(struct http_req *req, struct json_at *at, const char *path, bool optimizer)
{
    struct checkpoint saved = {0};
    int64_t seq = 0;
    if (checkpoint_parse(&saved, path, at->e)) return tinker_refuse(req, at->e);
    struct run *r = read_call(req, at, &seq); /* NULL: it has answered */
    struct run_call *c = r ? run_call_new(req, r, CALL_LOAD, seq) : NULL;
    if (!c) return;
    c->saved = saved;
    c->optimizer = optimizer;
    run_call_add(r, c);
}

void api_tinker_load_weights(struct http_req *req)
{
    struct err e = {0};
    const char *path = NULL;
    bool optimizer = false;
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_bool(&at, "optimizer", &optimizer);
    if (!json_get_string(&at, "path", &path) && !e.code) err_set(&e, ERR_INVALID, "`path` is needed");
    if (e.code)
        tinker_refuse(req, &e);
    else if (cJSON_IsString(cJSON_GetObjectItemCaseSensitive(tree, "session_id")))
        create_from(req, &at, path, optimizer);
    else
        load_into(req, &at, path, optimizer);
    json_free(tree);
}

static void on_info(struct http_req *req, struct checkpoint *c, struct served_model *m, void *arg)
{
    struct buf b = {0};
    buf_str(&b, "{\"base_model\":");
    json_put_string(&b, c->base, strlen(c->base));
    buf_printf(&b, ",\"is_lora\":true,\"lora_rank\":%d,\"train_unembed\":%s,\"train_mlp\":%s,\"train_attn\":%s}",
               c->rank, c->unembed ? "true" : "false", c->mlp ? "true" : "false", c->attn ? "true" : "false");
    http_reply(req, 200, "application/json", b.data, b.len);
    buf_free(&b);
}

void api_tinker_weights_info(struct http_req *req)
{
    struct err e = {0};
    const char *path = "";
    if (admission_refuses(req, NULL)) return;
    cJSON *tree = tinker_body(req);
    if (!tree) return;
    struct json_at at = {tree, "", &e};
    json_get_string(&at, "tinker_path", &path);
    if (e.code)
        tinker_refuse(req, &e);
    else
        checkpoint_find(req, path, false, on_info, NULL);
    json_free(tree);
}

/* ---- forward and backward ------------------------------------------------------------------------------------------
 */

struct reading {
    struct http_req *req; /* NULL once closed */
    struct http_body body;
    struct gradient_request gradient;
    struct err e;
};

static void on_close(struct http_req *req)
{
    ((struct reading *)req->user)->req = NULL;
}

static void work_read(void *arg)
{
    struct reading *d = arg;
    gradient_request_read(&d->gradient, d->body.data ? d->body.data : "", d->body.len, &d->e);
    http_body_free(&d->body);
}

static void begin_gradient(struct http_req *req, struct reading *d)
{
    struct run *r = run_find(req, d->gradient.model_id);
    const struct engine_info *info = r ? r->model->info : NULL;
    if (!r) return;
    if (d->gradient.seq < 1) err_set(&d->e, ERR_INVALID, "seq_id must be at least 1");
    if (d->e.code || gradient_request_fits(&d->gradient, info->vocab, info->max_model_len, &d->e)) {
        tinker_refuse(req, &d->e);
        return;
    }
    struct run_call *c = run_call_new(req, r, CALL_GRADIENT, d->gradient.seq);
    if (!c) return;
    c->gradient = d->gradient;
    d->gradient = (struct gradient_request){0};
    run_call_add(r, c);
}

static void after_read(void *arg)
{
    struct reading *d = arg;
    struct http_req *req = d->req;
    if (req) {
        req->on_close = NULL;
        req->user = NULL;
        if (d->e.code)
            tinker_refuse(req, &d->e);
        else
            begin_gradient(req, d);
    }
    gradient_request_free(&d->gradient);
    free(d);
}

void api_tinker_forward_backward(struct http_req *req)
{
    struct app *app = req->app;
    if (admission_refuses(req, NULL)) return;
    struct reading *d = mem_zalloc(sizeof *d);
    d->req = req;
    http_take_body(req, &d->body);
    req->user = d;
    req->on_close = on_close;
    bridge_work(app->bridge, client_id(req), work_read, after_read, d);
}
