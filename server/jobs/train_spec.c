/* POST /train's body (train_spec.h).  Pure; runs on the store thread. */
#include "server/jobs/train_spec.h"

#include "engine/base/mem.h"
#include "server/jobs/train_aliases.h"
#include "server/json/names.h"
#include "server/rewards/rewards.h"
#include "server/store/data_dir.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAFT_LEARNING_RATE 5e-4
#define DRAFT_EVAL_FRACTION 0.05
enum { DRAFT_NEW_TOKENS = 256 };
enum { REWARDS_BYTES = 256 << 10 };
enum { METADATA_MAX = 16, METADATA_KEY = 64, METADATA_VALUE = 512 };

__attribute__((format(printf, 3, 4))) static bool wrong(struct json_at *at, const char *name, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    err_set(at->e, ERR_INVALID, "%s%s%s: %s", at->path, *at->path && *name ? "." : "", name, text);
    return false;
}

static const cJSON *field(const cJSON *obj, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *c = obj ? obj->child : NULL; c; c = c->next)
        if (c->string && strcmp(c->string, name) == 0) found = c;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

void data_spec_add(struct data_spec *d, const char *name, int set)
{
    d->ref = mem_resize(d->ref, (size_t)d->n_refs + 1, sizeof *d->ref);
    d->ref[d->n_refs++] = (struct data_ref){mem_strdup(name), set};
}

void data_spec_clear(struct data_spec *d)
{
    for (int i = 0; i < d->n_refs; i++) free(d->ref[i].name);
    free(d->ref);
    free(d->weight);
    for (int i = 0; i < d->n_map; i++) {
        free((char *)d->map[i].to);
        free((char *)d->map[i].from);
    }
    free(d->map);
    d->ref = NULL;
    d->weight = NULL;
    d->map = NULL;
    d->n_refs = d->n_weights = d->n_map = 0;
}

/* One name of a file. */
static bool read_ref(struct json_at *at, const char *name, const cJSON *v, int set, struct data_spec *d)
{
    if (!cJSON_IsString(v)) return wrong(at, name, "expected a string, or a list of them");
    if (!v->valuestring[0]) return wrong(at, name, "is empty");
    if (d->n_refs == DATASET_SOURCES_MAX) return wrong(at, name, "more than %d files", DATASET_SOURCES_MAX);
    data_spec_add(d, v->valuestring, set);
    return true;
}

/* "a", or a list of sets, each "a" or a list ["a", "b"]. */
static bool read_refs(struct json_at *at, const char *name, const cJSON *v, struct data_spec *d)
{
    if (!cJSON_IsArray(v)) return read_ref(at, name, v, 0, d);
    int set = 0;
    if (!v->child) return wrong(at, name, "the list is empty");
    for (const cJSON *c = v->child; c; c = c->next, set++) {
        if (!cJSON_IsArray(c) && !read_ref(at, name, c, set, d)) return false;
        if (cJSON_IsArray(c) && !c->child) return wrong(at, name, "a list in it is empty");
        for (const cJSON *one = cJSON_IsArray(c) ? c->child : NULL; one; one = one->next)
            if (!read_ref(at, name, one, set, d)) return false;
    }
    return true;
}

/* "weights": one for each set. */
static bool read_weights(struct json_at *at, struct data_spec *d)
{
    const cJSON *v = field(at->obj, "weights");
    int sets = d->n_refs ? d->ref[d->n_refs - 1].set + 1 : 0;
    if (!v) return true;
    if (!cJSON_IsArray(v)) return wrong(at, "weights", "expected a list of numbers");
    if (cJSON_GetArraySize(v) != sets)
        return wrong(at, "weights", "expected %d, one for each set of `path` or `file`", sets);
    d->weight = mem_array((size_t)sets, sizeof *d->weight);
    for (const cJSON *c = v->child; c; c = c->next) {
        if (!cJSON_IsNumber(c) || !(c->valuedouble > 0) || c->valuedouble > 1e9)
            return wrong(at, "weights", "must be numbers above 0 and at most 1e9");
        d->weight[d->n_weights++] = c->valuedouble;
    }
    return true;
}

/* {"path"} | {"file"} | {"rows"} | {"text"}: exactly one. */
static bool read_source(struct json_at *at, const struct train_limits *lim, struct data_spec *d)
{
    static const char *const names[] = {"path", "file", "rows", "text"};
    const cJSON *given = NULL;
    int kind = -1;
    for (int i = 0; i < 4; i++) {
        const cJSON *v = field(at->obj, names[i]);
        if (!v) continue;
        if (given) return wrong(at, "", "`%s` and `%s` exclude each other", names[kind], names[i]);
        given = v;
        kind = i;
    }
    if (!given) return wrong(at, "", "needs one of `path`, `file`, `rows`, `text`");
    d->kind = (enum data_kind)(DATA_PATH + kind);
    if (lim->stored && d->kind >= DATA_ROWS) {
        d->size = (int64_t)given->valuedouble;
        return true;
    }
    if (d->kind < DATA_ROWS) return read_refs(at, names[kind], given, d);
    if (d->kind == DATA_ROWS) {
        if (!cJSON_IsArray(given)) return wrong(at, "rows", "expected an array");
        for (const cJSON *r = given->child; r; r = r->next, d->size++)
            if (!cJSON_IsObject(r)) return wrong(at, "rows", "row %lld: expected an object", (long long)d->size + 1);
        if (!d->size) return wrong(at, "rows", "the list is empty");
    } else {
        if (!cJSON_IsString(given)) return wrong(at, names[kind], "expected a string");
        if (!given->valuestring[0]) return wrong(at, names[kind], "is empty");
        d->size = (int64_t)strlen(given->valuestring);
    }
    d->inline_ = given;
    return true;
}

/* "map": {"prompt": "question"}. */
static bool read_map(struct json_at *at, struct data_spec *d)
{
    const cJSON *v = field(at->obj, "map");
    struct err why = {0};
    if (!v) return true;
    if (!cJSON_IsObject(v)) return wrong(at, "map", "expected an object");
    if (cJSON_GetArraySize(v) > DATASET_MAP_MAX) return wrong(at, "map", "more than %d fields", DATASET_MAP_MAX);
    if (v->child) d->map = mem_array((size_t)cJSON_GetArraySize(v), sizeof *d->map);
    for (const cJSON *c = v->child; c; c = c->next) {
        if (!cJSON_IsString(c)) return wrong(at, "map", "%.60s: expected a string", c->string);
        d->map[d->n_map++] = (struct dataset_field){mem_strdup(c->string), mem_strdup(c->valuestring)};
    }
    return !dataset_map_check(d->map, d->n_map, &why) || wrong(at, "map", "%s", why.msg);
}

static bool read_options(struct json_at *at, struct data_spec *d)
{
    static const char *const names[] = {
        "path", "file", "rows", "text", "format", "train_on_prompt", "keep_duplicates", "no_eos", "weights", "map"};
    const char *format;
    if (!json_only(at, names, sizeof names / sizeof *names)) return false;
    if (json_get_string(at, "format", &format)) {
        int f = dataset_format_parse(format);
        if (f < 0)
            return wrong(at, "format",
                         "must be one of auto, text, completion, alpaca, messages, sharegpt, tokens, "
                         "preference, unpaired, prompts");
        d->format = (enum dataset_format)f;
    }
    if (!read_map(at, d)) return false;
    json_get_bool(at, "train_on_prompt", &d->train_on_prompt);
    json_get_bool(at, "keep_duplicates", &d->keep_duplicates);
    json_get_bool(at, "no_eos", &d->no_eos);
    return at->e->code == 0;
}

/* An object, or an array of rows as a shorthand. */
static bool read_data(struct json_at *top, const char *name, const struct train_limits *lim, struct data_spec *d)
{
    const cJSON *v = field(top->obj, name);
    if (!v) return true;
    if (cJSON_IsArray(v)) {
        struct json_at at = {.obj = v, .path = name, .e = top->e};
        d->kind = DATA_ROWS;
        d->inline_ = v;
        for (const cJSON *r = v->child; r; r = r->next, d->size++)
            if (!cJSON_IsObject(r)) return wrong(&at, "", "row %lld: expected an object", (long long)d->size + 1);
        return d->size || wrong(&at, "", "the list is empty");
    }
    if (!cJSON_IsObject(v)) return wrong(top, name, "expected an object");
    struct json_at at = {.obj = v, .path = name, .e = top->e};
    return read_options(&at, d) && read_source(&at, lim, d) && read_weights(&at, d);
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

char *train_metadata_read(struct json_at *at)
{
    const cJSON *map;
    int n = 0;
    if (!json_get_object(at, "metadata", &map)) return NULL;
    for (const cJSON *c = map->child; c; c = c->next, n++) {
        if (!cJSON_IsString(c))
            wrong(at, "metadata", "%.64s: expected a string", c->string);
        else if (strlen(c->string) > METADATA_KEY)
            wrong(at, "metadata", "a name is longer than %d bytes", METADATA_KEY);
        else if (strlen(c->valuestring) > METADATA_VALUE)
            wrong(at, "metadata", "%.64s: the value is longer than %d bytes", c->string, METADATA_VALUE);
    }
    if (n > METADATA_MAX) wrong(at, "metadata", "more than %d entries", METADATA_MAX);
    if (at->e->code) return NULL;
    char *text = cJSON_PrintUnformatted(map);
    char *copy = text ? mem_strdup(text) : NULL;
    cJSON_free(text);
    return copy;
}

static bool read_names(struct json_at *at, const struct train_limits *lim, struct train_spec *s)
{
    const char *text;
    if (json_get_string(at, "serve_as", &text)) {
        if (!data_name_ok(text))
            return wrong(at, "serve_as",
                         "must be 1 to %d letters, digits, '.', '_', '-' or ':', the first a letter or digit",
                         DATA_NAME_MAX);
        if (!lim->stored && strcmp(text, lim->model_id) == 0)
            return wrong(at, "serve_as", "%s is the name of the model itself", text);
        s->serve_as = mem_strdup(text);
    }
    if (json_get_string(at, "base", &text)) {
        if (!lim->stored && strcmp(text, lim->model_id) != 0)
            return wrong(at, "base", "%.100s is not served here; this is %s", text, lim->model_id);
        s->base = mem_strdup(text);
    }
    if (json_get_string(at, "from", &text)) {
        if (!data_name_ok(text)) return wrong(at, "from", "%.100s is no adapter's name", text);
        s->from = mem_strdup(text);
    }
    if (json_get_string(at, "teacher", &text)) {
        if (!data_name_ok(text)) return wrong(at, "teacher", "%.100s is no adapter's name, nor a model's", text);
        s->teacher = mem_strdup(text);
    }
    return at->e->code == 0;
}

static bool is_quantised(const char *weight_type)
{
    return strncmp(weight_type, "int", 3) == 0 || strncmp(weight_type, "nf", 2) == 0;
}

int train_method_suits(enum train_method method, const char *weight_type, struct err *e)
{
    if (method == TRAIN_QLORA && !is_quantised(weight_type))
        return err_set(e, ERR_INVALID,
                       "method: qlora trains on quantised weights, and this server holds %s: start it with "
                       "--quantize nf4, int4 or int8, or use lora",
                       weight_type);
    if (method == TRAIN_FULL && is_quantised(weight_type))
        return err_set(e, ERR_INVALID,
                       "method: full training needs weights in bf16, f16 or f32, and this server holds %s",
                       weight_type);
    return 0;
}

#define TOO_LONG                                                                                                       \
    "%d is above max_total_tokens %d, what a prompt with its answer may have here (--max-total-tokens, and what the "  \
    "KV cache holds)"

int train_length_suits(const struct train_params *p, int max_total_tokens, struct err *e)
{
    if (p->method != TRAIN_GRPO || p->max_length <= max_total_tokens) return 0;
    return err_set(e, ERR_INVALID, "max_length: " TOO_LONG, p->max_length, max_total_tokens);
}

/* "draft": {"layers": 2} or {"init": "NAME"}, and how texts are made. */
static bool read_draft(struct json_at *top, const struct train_limits *lim, struct train_spec *s)
{
    static const char *const names[] = {"layers", "init", "max_new_tokens", "temperature"};
    const char *init = NULL;
    const cJSON *obj;
    int64_t layers = 0, most = DRAFT_NEW_TOKENS;
    train_params_default(&s->p, TRAIN_FULL);
    s->p.method = TRAIN_FULL;
    s->p.learning_rate = DRAFT_LEARNING_RATE;
    s->p.eval_fraction = DRAFT_EVAL_FRACTION;
    s->draft.on = true;
    if (!json_get_object(top, "draft", &obj))
        return top->e->code == 0 && wrong(top, "draft", "the field is missing: {\"layers\": N} or {\"init\": NAME}");
    struct json_at at = {.obj = obj, .path = "draft", .e = top->e};
    if (!json_only(&at, names, sizeof names / sizeof *names)) return false;
    json_get_int(&at, "layers", 1, 1000, &layers);
    json_get_string(&at, "init", &init);
    json_get_int(&at, "max_new_tokens", 8, 65536, &most);
    json_get_number(&at, "temperature", &s->draft.temperature);
    if (at.e->code) return false;
    if (!layers == !init) return wrong(&at, "", "needs one of `layers`, `init`");
    if (init && !data_name_ok(init)) return wrong(&at, "init", "%.100s is no name of a model in models/", init);
    if (!(s->draft.temperature == 0 || (s->draft.temperature >= 0.01 && s->draft.temperature <= 10)))
        return wrong(&at, "temperature", "must be 0, or from 0.01 to 10");
    s->draft.layers = (int)layers;
    s->draft.init = init ? mem_strdup(init) : NULL;
    s->draft.max_new_tokens = (int)most;
    if (s->from) return wrong(top, "from", "an adapter is no start for a draft");
    return lim->stored || !field(top->obj, "validation") ||
           wrong(top, "validation", "a draft is evaluated on texts that are held out: set eval_fraction");
}

const char *train_spec_method(const struct train_spec *s)
{
    return s->draft.on ? "draft" : train_method_names[s->p.method];
}

static bool read_method(struct json_at *at, const struct train_limits *lim, struct train_spec *s)
{
    const char *text = "lora";
    enum train_method method;
    json_get_string(at, "method", &text);
    if (at->e->code) return false;
    if (strcmp(text, "draft") == 0) return read_draft(at, lim, s);
    if (field(at->obj, "draft")) return wrong(at, "draft", "only with method draft");
    if (!train_method_parse(text, &method))
        return wrong(at, "method",
                     "must be one of lora, qlora, full, dpo, orpo, simpo, kto, grpo, reward, distill, draft");
    train_params_default(&s->p, method);
    s->p.method = method;
    if (s->teacher && method != TRAIN_DISTILL) return wrong(at, "teacher", "only with method distill");
    if (method == TRAIN_DISTILL && !s->teacher && !s->from)
        return wrong(at, "teacher",
                     "the field is missing: an adapter, or another model; without one the model itself teaches, if "
                     "`from` names an adapter");
    if (lim->stored) return true;
    if (lim->weight_type && train_method_suits(method, lim->weight_type, at->e)) return false;
    if (method == TRAIN_FULL && s->from) return wrong(at, "from", "an adapter is no start for full training");
    return true;
}

static bool read_hyperparameters(struct json_at *top, const struct train_limits *lim, struct train_spec *s)
{
    const cJSON *obj;
    bool lora = s->p.method != TRAIN_FULL, sampled = s->p.method == TRAIN_GRPO && lim->max_total_tokens;
    if (s->p.max_length > lim->max_model_len) s->p.max_length = lim->max_model_len;
    if (sampled && s->p.max_length > lim->max_total_tokens) s->p.max_length = lim->max_total_tokens;
    if (s->p.lora_r > lim->max_lora_rank) s->p.lora_r = lim->max_lora_rank;
    s->fit_length = !lim->weight_type;
    if (!json_get_object(top, "hyperparameters", &obj)) return top->e->code == 0;
    struct json_at at = {.obj = obj, .path = "hyperparameters", .e = top->e};
    const cJSON *top_k = field(obj, "teacher_top_k");
    s->own_top_k = cJSON_IsNumber(top_k) && top_k->valuedouble != 0;
    struct train_params without = s->p; /* a length of its own: shows whether one was given, under whatever name */
    without.max_length = 0;
    if (!train_hyperparameters_read(&at, &s->p, &s->batch_size)) return false;
    if (s->fit_length && !train_hyperparameters_read(&at, &without, &(int){0})) return false;
    s->fit_length = s->fit_length && !without.max_length;
    if (s->p.max_length > lim->max_model_len && !lim->stored)
        return wrong(&at, "max_length", "must be at most %d, the model's positions", lim->max_model_len);
    if (sampled && s->p.max_length > lim->max_total_tokens)
        return wrong(&at, "max_length", TOO_LONG, s->p.max_length, lim->max_total_tokens);
    if (lora && s->p.lora_r > lim->max_lora_rank && !lim->stored) /* the result could not be served */
        return wrong(&at, "lora_r", "must be at most %d, this server's --max-lora-rank", lim->max_lora_rank);
    return true;
}

/* "rewards": how the texts of method grpo are judged. */
static bool read_rewards(struct json_at *at, const struct train_limits *lim, struct train_spec *s)
{
    const cJSON *list = field(at->obj, "rewards");
    struct buf text = {0};
    if (s->p.method != TRAIN_GRPO) return !list || wrong(at, "rewards", "only with method grpo");
    if (!list)
        return wrong(at, "rewards", "the field is missing: a list such as [{\"type\": \"contains\", \"text\": ...}]");
    struct rewards *r = rewards_open(list, "rewards", at->e);
    if (!r) return false;
    s->asks_others = rewards_ask_others(r);
    rewards_free(r);
    json_put_value(&text, list, ",", ":");
    s->rewards = text.data;
    if (text.len > REWARDS_BYTES) return wrong(at, "rewards", "more than %d bytes", REWARDS_BYTES);
    return lim->stored || !field(at->obj, "validation") ||
           wrong(at, "validation", "not with method grpo, which reports the rewards of each step");
}

/* The first evaluation is of what the job starts from. */
static bool read_gate(struct json_at *at, struct train_spec *s)
{
    json_get_bool(at, "gate", &s->gate);
    if (at->e->code || !s->gate) return at->e->code == 0;
    if (s->p.method == TRAIN_FULL) return wrong(at, "gate", "only for adapters, not for methods full and draft");
    if (s->p.method == TRAIN_GRPO) return wrong(at, "gate", "not with method grpo, which has no held-out rows");
    if (!s->eval.kind && !(s->p.eval_fraction > 0))
        return wrong(at, "gate", "needs rows that are held out: give `validation`, or set eval_fraction");
    s->p.eval_on_start = true;
    return true;
}

int train_spec_read(struct train_spec *s, const cJSON *tree, const struct train_limits *lim, struct err *e)
{
    static const char *const names[] = {"method",     "serve_as",        "base",       "from",       "dataset",
                                        "validation", "hyperparameters", "metadata",   "draft",      "gate",
                                        "rewards",    "teacher",         "batch_size", "fit_length", "teacher_model"};
    enum { STORED_ONLY = 3 }; /* the last ones */
    *s = (struct train_spec){0};
    e->code = 0;
    if (!cJSON_IsObject(tree)) return err_set(e, ERR_INVALID, "expected an object"), 422;
    struct json_at at = {.obj = tree, .path = "", .e = e};
    int64_t batch = 0;
    if (!json_only(&at, names, sizeof names / sizeof *names - (lim->stored ? 0 : STORED_ONLY))) return 422;
    if (!read_names(&at, lim, s) || !read_method(&at, lim, s) || !read_hyperparameters(&at, lim, s)) return 422;
    if (!read_data(&at, "dataset", lim, &s->data) || !read_data(&at, "validation", lim, &s->eval)) return 422;
    if (s->data.kind == DATA_NONE) return wrong(&at, "dataset", "the field is missing"), 422;
    if (!read_rewards(&at, lim, s) || !read_gate(&at, s)) return 422;
    s->metadata = train_metadata_read(&at);
    if (json_get_int(&at, "batch_size", 0, 65536, &batch)) s->batch_size = (int)batch;
    if (lim->stored) json_get_bool(&at, "fit_length", &s->fit_length);
    json_get_bool(&at, "teacher_model", &s->teacher_model);
    return e->code ? 422 : 0;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *name, const char *value)
{
    buf_printf(b, ",\"%s\":", name);
    if (value)
        json_put_string(b, value, strlen(value));
    else
        buf_str(b, "null");
}

/* What read_refs reads. */
static void put_refs(struct buf *b, const char *name, const struct data_spec *d)
{
    buf_printf(b, ",\"%s\":%s", name, d->n_refs > 1 ? "[" : "");
    for (int i = 0; i < d->n_refs; i++) {
        const struct data_ref *r = &d->ref[i];
        bool first = !i || r[-1].set != r->set, last = i + 1 == d->n_refs || r[1].set != r->set;
        buf_str(b, i ? "," : "");
        if (first && !last) buf_str(b, "[");
        json_put_string(b, r->name, strlen(r->name));
        if (last && !first) buf_str(b, "]");
    }
    if (d->n_refs > 1) buf_str(b, "]");
    for (int i = 0; i < d->n_weights; i++) {
        buf_str(b, i ? "," : ",\"weights\":[");
        train_params_put_number(b, d->weight[i]);
    }
    if (d->n_weights) buf_str(b, "]");
}

static void put_map(struct buf *b, const struct data_spec *d)
{
    for (int i = 0; i < d->n_map; i++) {
        buf_str(b, i ? "," : ",\"map\":{");
        json_put_string(b, d->map[i].to, strlen(d->map[i].to));
        buf_char(b, ':');
        json_put_string(b, d->map[i].from, strlen(d->map[i].from));
    }
    if (d->n_map) buf_str(b, "}");
}

static void put_data(struct buf *b, const char *name, const struct data_spec *d)
{
    static const char *const names[] = {"", "path", "file", "rows", "text"};
    buf_printf(b, ",\"%s\":", name);
    if (d->kind == DATA_NONE) {
        buf_str(b, "null");
        return;
    }
    buf_printf(b, "{\"format\":\"%s\",\"train_on_prompt\":%s,\"keep_duplicates\":%s,\"no_eos\":%s",
               dataset_format_name(d->format), d->train_on_prompt ? "true" : "false",
               d->keep_duplicates ? "true" : "false", d->no_eos ? "true" : "false");
    if (d->n_refs)
        put_refs(b, names[d->kind], d);
    else
        buf_printf(b, ",\"%s\":%lld", names[d->kind], (long long)d->size);
    put_map(b, d);
    buf_char(b, '}');
}

static void put_draft(struct buf *b, const struct draft_spec *d)
{
    buf_printf(b, ",\"draft\":{\"max_new_tokens\":%d,\"temperature\":", d->max_new_tokens);
    train_params_put_number(b, d->temperature);
    if (d->init)
        put_text(b, "init", d->init);
    else
        buf_printf(b, ",\"layers\":%d", d->layers);
    buf_char(b, '}');
}

void train_spec_put(struct buf *b, const struct train_spec *s)
{
    buf_printf(b, "{\"method\":\"%s\"", train_spec_method(s));
    put_text(b, "serve_as", s->serve_as);
    put_text(b, "base", s->base);
    put_text(b, "from", s->from);
    if (s->teacher) put_text(b, "teacher", s->teacher);
    if (s->teacher_model) buf_str(b, ",\"teacher_model\":true");
    put_data(b, "dataset", &s->data);
    put_data(b, "validation", &s->eval);
    buf_str(b, ",\"hyperparameters\":");
    train_params_put(b, &s->p);
    buf_printf(b, ",\"metadata\":%s", s->metadata ? s->metadata : "null");
    if (s->batch_size) buf_printf(b, ",\"batch_size\":%d", s->batch_size);
    if (s->fit_length) buf_str(b, ",\"fit_length\":true");
    if (s->draft.on) put_draft(b, &s->draft);
    if (s->gate) buf_str(b, ",\"gate\":true");
    if (s->rewards) buf_printf(b, ",\"rewards\":%s", s->rewards);
    buf_char(b, '}');
}

void train_spec_free(struct train_spec *s)
{
    free(s->serve_as);
    free(s->base);
    free(s->from);
    free(s->teacher);
    free(s->draft.init);
    data_spec_clear(&s->data);
    data_spec_clear(&s->eval);
    free(s->metadata);
    free(s->rewards);
    *s = (struct train_spec){0};
}
