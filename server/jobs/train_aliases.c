#include "server/jobs/train_aliases.h"

#include <stdio.h>
#include <string.h>

enum how {
    AS_IT_IS,
    SCHEDULE,       /* names of transformers' schedules */
    OPTIMIZER,      /* "adamw_torch"... */
    ON_OFF,         /* a boolean -> "on", "off" */
    NOT_F32,        /* a boolean -> its opposite */
    SCALE,          /* also a boolean, as before there were words */
    ROWS,           /* rows of a step, a factor */
    ONLY_FALSE,     /* what tandem does not do */
    WITHOUT_EFFECT, /* what tandem does anyway, or has no use for */
};

/* Sorted by where they come from: TrainingArguments, SFTConfig, LoraConfig, GRPOConfig. */
static const struct alias {
    const char *name, *own; /* own: NULL with the last two */
    enum how how;
    bool is_bool;
    bool grpo; /* of this method only: its trainer's */
} aliases[] = {
    {"num_train_epochs", "epochs", AS_IT_IS, false},
    {"lr_scheduler_type", "schedule", SCHEDULE, false},
    {"adam_beta1", "beta1", AS_IT_IS, false},
    {"adam_beta2", "beta2", AS_IT_IS, false},
    {"adam_epsilon", "epsilon", AS_IT_IS, false},
    {"optim", "optimizer", OPTIMIZER, false},
    {"per_device_train_batch_size", "batch_tokens", ROWS, false},
    {"gradient_accumulation_steps", "batch_tokens", ROWS, false},
    {"gradient_checkpointing", "recompute", ON_OFF, true},
    {"bf16", "f32", NOT_F32, true},
    {"fp16", NULL, ONLY_FALSE, true},
    {"per_device_eval_batch_size", NULL, WITHOUT_EFFECT, false},
    {"logging_steps", NULL, WITHOUT_EFFECT, false},
    {"report_to", NULL, WITHOUT_EFFECT, false},
    {"max_seq_length", "max_length", AS_IT_IS, false},
    {"r", "lora_r", AS_IT_IS, false},
    {"task_type", NULL, WITHOUT_EFFECT, false},
    {"num_generations", "samples", AS_IT_IS, false, true},
    {"max_completion_length", "max_new_tokens", AS_IT_IS, false, true},
    {"epsilon", "clip_low", AS_IT_IS, false, true},
    {"epsilon_high", "clip_high", AS_IT_IS, false, true},
    {"kl", "beta", AS_IT_IS, false, true},
    {"scale_rewards", "scale_rewards", SCALE, false, true},
    {"mask_truncated_completions", "mask_truncated", AS_IT_IS, true, true},
};
enum { N_ALIASES = sizeof aliases / sizeof *aliases, FIELDS_MAX = 200 };

static const char rows_name[] = "per_device_train_batch_size", times_name[] = "gradient_accumulation_steps";

static const struct alias *find(const char *name, bool grpo)
{
    for (int i = 0; i < N_ALIASES; i++)
        if (strcmp(name, aliases[i].name) == 0 && (grpo || !aliases[i].grpo)) return &aliases[i];
    return NULL;
}

static const cJSON *field(const cJSON *obj, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(obj, name);
    return cJSON_IsNull(v) ? NULL : v;
}

static bool wrong(struct json_at *at, const char *name, const char *what)
{
    err_set(at->e, ERR_INVALID, "%s%s%.60s: %.300s", at->path, *at->path ? "." : "", name, what);
    return false;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* @return the value in tandem's words, owned by the caller; NULL: not one of those that are known. */
static cJSON *word(const cJSON *v, const char *const (*words)[2])
{
    for (; cJSON_IsString(v) && (*words)[0]; words++)
        if (strcmp(v->valuestring, (*words)[0]) == 0) return cJSON_CreateString((*words)[1]);
    return NULL;
}

/* The same for a field; *known: what the values are, for a message. */
static cJSON *converted(const struct alias *a, const cJSON *v, const char **known)
{
    static const char *const schedules[][2] = {{"constant", "constant"},
                                               {"constant_with_warmup", "constant"},
                                               {"linear", "linear"},
                                               {"cosine", "cosine"},
                                               {NULL, NULL}};
    static const char *const optimizers[][2] = {{"adamw", "adamw"},
                                                {"adamw_torch", "adamw"},
                                                {"adamw_hf", "adamw"},
                                                {"adamw_torch_fused", "adamw"},
                                                {"muon", "muon"},
                                                {"adamw_8bit", "adamw_8bit"},
                                                {"adamw_bnb_8bit", "adamw_8bit"},
                                                {"paged_adamw_8bit", "adamw_8bit"},
                                                {NULL, NULL}};
    switch (a->how) {
    case SCHEDULE: *known = "must be one of constant, constant_with_warmup, linear, cosine"; return word(v, schedules);
    case OPTIMIZER:
        *known = "must be one of adamw, adamw_torch, adamw_torch_fused, adamw_hf, adamw_8bit, adamw_bnb_8bit, "
                 "paged_adamw_8bit, muon";
        return word(v, optimizers);
    case ON_OFF:
    case NOT_F32:
        *known = "expected a boolean";
        if (!cJSON_IsBool(v)) return NULL;
        return a->how == ON_OFF ? cJSON_CreateString(cJSON_IsTrue(v) ? "on" : "off")
                                : cJSON_CreateBool(!cJSON_IsTrue(v));
    case SCALE:
        *known = "must be one of auto, group, batch, none";
        if (cJSON_IsString(v)) return cJSON_CreateString(v->valuestring);
        return cJSON_IsBool(v) ? cJSON_CreateString(cJSON_IsTrue(v) ? "group" : "none") : NULL;
    default: return NULL;
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------------ */

/* @return another field of the object that says what this one does, or NULL. */
static const char *said_twice(const struct json_at *at, const struct alias *a, bool grpo)
{
    if (field(at->obj, a->own) && !find(a->own, grpo)) return a->own;
    for (int i = 0; i < N_ALIASES; i++)
        if (&aliases[i] != a && aliases[i].own && a->how != ROWS && strcmp(aliases[i].own, a->own) == 0 &&
            field(at->obj, aliases[i].name))
            return aliases[i].name;
    return NULL;
}

/* Adds what an alias means to `out`. */
static bool translate(struct json_at *at, const struct alias *a, const cJSON *v, bool grpo, cJSON *out)
{
    const char *twin = a->own ? said_twice(at, a, grpo) : NULL, *known = "";
    char text[160];
    if (a->how == WITHOUT_EFFECT) return true;
    if (a->how == ONLY_FALSE) return cJSON_IsFalse(v) || wrong(at, a->name, "is not supported; leave it out for bf16");
    if (twin) {
        snprintf(text, sizeof text, "is the same as `%s`: give one of them", twin);
        return wrong(at, a->name, text);
    }
    if (a->how == ROWS) return true;
    if (a->how == AS_IT_IS) return cJSON_AddItemReferenceToObject(out, a->own, (cJSON *)v), true;
    cJSON *value = converted(a, v, &known);
    if (!value) return wrong(at, a->name, known);
    cJSON_AddItemToObject(out, a->own, value);
    return true;
}

/* Rows of a step: those of a pass times the number of passes. */
static bool read_rows(struct json_at *at, int *rows)
{
    int64_t each = 0, times = 1, most = 65536;
    const cJSON *v = field(at->obj, times_name);
    if (!json_get_int(at, rows_name, 1, most, &each) && at->e->code) return false;
    if (!json_get_int(at, times_name, 1, most, &times) && at->e->code) return false;
    if (!each && v) return wrong(at, times_name, "needs per_device_train_batch_size");
    if (each * times > most) return wrong(at, times_name, "more than 65536 rows to a step");
    if (each) *rows = (int)(each * times);
    return true;
}

bool train_hyperparameters_read(struct json_at *at, struct train_params *p, int *batch_rows)
{
    if (cJSON_GetArraySize(at->obj) > FIELDS_MAX) return train_params_read(at, p); /* which finds one that is unknown */
    cJSON *own = cJSON_CreateObject();
    bool good = read_rows(at, batch_rows);
    for (const cJSON *c = at->obj->child; c && good; c = c->next) {
        const struct alias *a = find(c->string, p->method == TRAIN_GRPO);
        bool is_bool;
        if (cJSON_IsNull(c) && (a || train_params_known(c->string, &is_bool))) continue;
        if (a)
            good = translate(at, a, c, p->method == TRAIN_GRPO, own);
        else
            cJSON_AddItemReferenceToObject(own, c->string, (cJSON *)c);
    }
    struct json_at in = {.obj = own, .path = at->path, .e = at->e};
    good = good && train_params_read(&in, p);
    cJSON_Delete(own);
    return good;
}

bool train_hyperparameter_known(const char *name, bool *is_bool)
{
    const struct alias *a = find(name, true);
    if (a) return *is_bool = a->is_bool, true;
    return train_params_known(name, is_bool);
}
