/* One table of hyperparameters: names, types, ranges, struct offsets (train_params.h). */
#include "server/jobs/train_params.h"
#include "server/json/names.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *const train_method_names[] = {"lora",  "qlora", "full", "dpo",    "orpo",
                                          "simpo", "kto",   "grpo", "reward", "distill"};
static const char *const schedule_names[] = {"constant", "linear", "cosine", NULL};
static const char *const optimizer_names[] = {"adamw", "muon", "adamw_8bit", NULL};
static const char *const recompute_names[] = {"auto", "on", "off", NULL};
static const char *const loss_type_names[] = {"grpo", "dr_grpo", "dapo", NULL};
static const char *const scale_names[] = {"auto", "group", "batch", "none", NULL};

static const struct {
    const char *name;
    unsigned target;
} targets[] = {
    {"q_proj", TARGET_Q},
    {"k_proj", TARGET_K},
    {"v_proj", TARGET_V},
    {"o_proj", TARGET_O},
    {"gate_proj", TARGET_GATE},
    {"up_proj", TARGET_UP},
    {"down_proj", TARGET_DOWN},
    {"c_attn", TARGET_C_ATTN},
    {"c_proj", TARGET_C_PROJ},
    {"c_fc", TARGET_C_FC},
    {"fc1", TARGET_FC1},
    {"fc2", TARGET_FC2},
    {"dense", TARGET_DENSE},
    {"qkv_proj", TARGET_QKV_PROJ},
    {"gate_up_proj", TARGET_GATE_UP_PROJ},
    {"query_key_value", TARGET_QUERY_KEY_VALUE},
    {"dense_h_to_4h", TARGET_DENSE_H_TO_4H},
    {"dense_4h_to_h", TARGET_DENSE_4H_TO_H},
    {"shared_expert_gate", TARGET_SHARED_EXPERT_GATE},
    {"experts.gate_up_proj", TARGET_EXPERTS_GATE_UP},
    {"experts.down_proj", TARGET_EXPERTS_DOWN},
    {"gate.weight", TARGET_ROUTER},
    {"embed_tokens", TARGET_EMBEDDING},
    {"lm_head", TARGET_HEAD},
    {"wte", TARGET_EMBEDDING},
    {"embed_in", TARGET_EMBEDDING},
    {"embed_out", TARGET_HEAD},
    {"q", TARGET_Q},
    {"k", TARGET_K},
    {"v", TARGET_V},
    {"o", TARGET_O},
    {"gate", TARGET_GATE},
    {"up", TARGET_UP},
    {"down", TARGET_DOWN},
    {"all-linear", TARGET_ALL},
    {"all", TARGET_ALL},
};
enum { N_TARGETS = sizeof targets / sizeof *targets, N_OWN_TARGETS = 24 };

enum kind { K_NUMBER, K_INT, K_AUTO, K_I64, K_BOOL, K_U64, K_CHOICE, K_TARGETS };

#define AT(field) offsetof(struct train_params, field)

/* Ranges come from the engine: train_range(). */
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    const char *const *choices;
    bool grpo; /* of this method only: not written for others */
} fields[] = {
    {"epochs", K_NUMBER, AT(epochs), NULL},
    {"max_steps", K_I64, AT(max_steps), NULL},
    {"batch_tokens", K_INT, AT(batch_tokens), NULL},
    {"micro_tokens", K_AUTO, AT(micro_tokens), NULL}, /* a number, or "auto" */
    {"grad_slots", K_INT, AT(grad_slots), NULL},
    {"zero", K_INT, AT(zero), NULL},
    {"memory_mib", K_INT, AT(memory_mib), NULL},
    {"max_length", K_INT, AT(max_length), NULL},
    {"learning_rate", K_NUMBER, AT(learning_rate), NULL},
    {"schedule", K_CHOICE, AT(schedule), schedule_names},
    {"min_lr_ratio", K_NUMBER, AT(min_lr_ratio), NULL},
    {"warmup_ratio", K_NUMBER, AT(warmup_ratio), NULL},
    {"warmup_steps", K_I64, AT(warmup_steps), NULL},
    {"weight_decay", K_NUMBER, AT(weight_decay), NULL},
    {"beta1", K_NUMBER, AT(beta1), NULL},
    {"beta2", K_NUMBER, AT(beta2), NULL},
    {"epsilon", K_NUMBER, AT(epsilon), NULL},
    {"max_grad_norm", K_NUMBER, AT(max_grad_norm), NULL},
    {"optimizer", K_CHOICE, AT(optimizer), optimizer_names},
    {"offload_optimizer", K_BOOL, AT(offload_optimizer), NULL},
    {"dropout", K_NUMBER, AT(dropout), NULL},
    {"ema_decay", K_NUMBER, AT(ema_decay), NULL},
    {"lora_r", K_INT, AT(lora_r), NULL},
    {"lora_alpha", K_NUMBER, AT(lora_alpha), NULL},
    {"lora_dropout", K_NUMBER, AT(lora_dropout), NULL},
    {"use_rslora", K_BOOL, AT(use_rslora), NULL},
    {"beta", K_NUMBER, AT(beta), NULL},
    {"label_smoothing", K_NUMBER, AT(label_smoothing), NULL},
    {"gamma", K_NUMBER, AT(gamma), NULL},
    {"center_rewards_coefficient", K_NUMBER, AT(center), NULL},
    {"desirable_weight", K_NUMBER, AT(desirable_weight), NULL},
    {"undesirable_weight", K_NUMBER, AT(undesirable_weight), NULL},
    {"teacher_top_k", K_INT, AT(teacher_top_k), NULL},
    {"samples", K_INT, AT(samples), NULL, true},
    {"prompts_per_step", K_INT, AT(prompts_per_step), NULL, true},
    {"max_new_tokens", K_INT, AT(max_new_tokens), NULL, true},
    {"temperature", K_NUMBER, AT(temperature), NULL, true},
    {"num_iterations", K_INT, AT(iterations), NULL, true},
    {"clip_low", K_NUMBER, AT(clip_low), NULL, true},
    {"clip_high", K_NUMBER, AT(clip_high), NULL, true},
    {"loss_type", K_CHOICE, AT(loss_type), loss_type_names, true},
    {"scale_rewards", K_CHOICE, AT(scale_rewards), scale_names, true},
    {"mask_truncated", K_BOOL, AT(mask_truncated), NULL, true},
    {"target_modules", K_TARGETS, AT(targets), NULL},
    {"packing", K_BOOL, AT(packing), NULL},
    {"group_by_length", K_BOOL, AT(group_by_length), NULL},
    {"eval_fraction", K_NUMBER, AT(eval_fraction), NULL},
    {"eval_steps", K_I64, AT(eval_steps), NULL},
    {"eval_on_start", K_BOOL, AT(eval_on_start), NULL},
    {"save_steps", K_I64, AT(save_steps), NULL},
    {"early_stopping_patience", K_INT, AT(patience), NULL},
    {"early_stopping_threshold", K_NUMBER, AT(min_improvement), NULL},
    {"recompute", K_CHOICE, AT(recompute), recompute_names},
    {"f32", K_BOOL, AT(f32), NULL},
    {"exact", K_BOOL, AT(exact), NULL},
    {"random_init", K_BOOL, AT(random_init), NULL},
    {"seed", K_U64, AT(seed), NULL},
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

bool train_method_parse(const char *name, enum train_method *out)
{
    for (int i = 0; i < TRAIN_METHODS; i++)
        if (strcmp(name, train_method_names[i]) == 0) return *out = (enum train_method)i, true;
    return false;
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

static bool wrong(struct json_at *at, const char *name, const char *fmt, const char *what)
{
    char text[400];
    snprintf(text, sizeof text, fmt, what);
    err_set(at->e, ERR_INVALID, "%s%s%.60s: %s", at->path, *at->path ? "." : "", name, text);
    return false;
}

/* @return the name that was meant, which edit distance would not find.  Names that are accepted are in
 * train_aliases.c. */
static const char *known_alias(const char *name)
{
    static const char *const pairs[][2] = {
        {"lr", "learning_rate"},
        {"n_epochs", "epochs"},
        {"num_epochs", "epochs"},
        {"rank", "lora_r"},
        {"lora_rank", "lora_r"},
        {"alpha", "lora_alpha"},
        {"batch_size", "batch_tokens"},
        {"max_seq_len", "max_length"},
        {"patience", "early_stopping_patience"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (strcmp(name, pairs[i][0]) == 0) return pairs[i][1];
    return NULL;
}

static bool check_names(struct json_at *at)
{
    const char *names[N_FIELDS];
    for (int i = 0; i < N_FIELDS; i++) names[i] = fields[i].name;
    for (const cJSON *c = at->obj->child; c; c = c->next) {
        const char *alias = known_alias(c->string);
        if (alias) return wrong(at, c->string, "unknown field; did you mean `%s`?", alias);
    }
    return json_only(at, names, N_FIELDS);
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

static bool read_number(struct json_at *at, const struct field *f, double *out)
{
    const struct train_range *r = train_range(f->name);
    double v;
    char range[80];
    if (!json_get_number(at, f->name, &v)) return at->e->code == 0;
    if (!train_range_has(r, v)) {
        snprintf(range, sizeof range, "%s %.12g and at most %.12g", r->above_min ? "above" : "at least", r->min,
                 r->max);
        return wrong(at, f->name, "must be %s", range);
    }
    *out = v;
    return true;
}

static bool read_whole(struct json_at *at, const struct field *f, int64_t *out)
{
    const struct train_range *r = train_range(f->name);
    return json_get_int(at, f->name, (int64_t)r->min, (int64_t)r->max, out);
}

static bool read_choice(struct json_at *at, const struct field *f, int *out)
{
    const char *text;
    char list[120] = "";
    if (!json_get_string(at, f->name, &text)) return at->e->code == 0;
    for (int i = 0; f->choices[i]; i++) {
        if (strcmp(text, f->choices[i]) == 0) return *out = i, true;
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", f->choices[i]);
    }
    return wrong(at, f->name, "must be one of %s", list);
}

static bool add_target(struct json_at *at, const struct field *f, const cJSON *item, unsigned *mask)
{
    if (!cJSON_IsString(item)) return wrong(at, f->name, "expected a list of module names%s", "");
    const char *names[N_TARGETS], *near;
    for (int i = 0; i < N_TARGETS; i++) {
        names[i] = targets[i].name;
        if (strcmp(item->valuestring, targets[i].name) != 0) continue;
        *mask |= targets[i].target;
        return true;
    }
    near = name_nearest(item->valuestring, names, N_TARGETS);
    char text[160];
    snprintf(text, sizeof text, "unknown module \"%.40s\"%s%s", item->valuestring, near ? "; did you mean " : "",
             near ? near : "");
    return wrong(at, f->name, "%s", text);
}

/* "all-linear", or a list of names. */
static bool read_targets(struct json_at *at, const struct field *f, unsigned *out)
{
    const cJSON *found = NULL;
    unsigned mask = 0;
    for (const cJSON *c = at->obj->child; c; c = c->next)
        if (strcmp(c->string, f->name) == 0) found = c;
    if (!found || cJSON_IsNull(found)) return true;
    if (cJSON_IsString(found)) {
        if (!add_target(at, f, found, &mask)) return false;
    } else if (cJSON_IsArray(found)) {
        for (const cJSON *c = found->child; c; c = c->next)
            if (!add_target(at, f, c, &mask)) return false;
        if (!mask) return wrong(at, f->name, "the list is empty%s", "");
    } else {
        return wrong(at, f->name, "expected a list of module names%s", "");
    }
    *out = mask;
    return true;
}

static bool is_auto(struct json_at *at, const char *name)
{
    const cJSON *c = cJSON_GetObjectItemCaseSensitive(at->obj, name);
    return cJSON_IsString(c) && strcmp(c->valuestring, "auto") == 0;
}

static bool read_field(struct json_at *at, const struct field *f, struct train_params *p)
{
    void *place = (char *)p + f->offset;
    int64_t whole;
    switch (f->kind) {
    case K_NUMBER: return read_number(at, f, place);
    case K_AUTO:
    case K_INT:
        if (f->kind == K_AUTO && is_auto(at, f->name))
            *(int *)place = MICRO_TOKENS_AUTO;
        else if (read_whole(at, f, &whole))
            *(int *)place = (int)whole;
        break;
    case K_I64: read_whole(at, f, place); break;
    case K_BOOL: json_get_bool(at, f->name, place); break;
    case K_U64: json_get_u64(at, f->name, place); break;
    case K_CHOICE: return read_choice(at, f, place);
    case K_TARGETS: return read_targets(at, f, place);
    }
    return at->e->code == 0;
}

static bool check_together(struct json_at *at, const struct train_params *p)
{
    if (p->micro_tokens > 0 && p->micro_tokens < p->max_length)
        return wrong(at, "micro_tokens", "must be at least max_length, or 0, or \"auto\"%s", "");
    if (p->grad_slots & (p->grad_slots - 1)) return wrong(at, "grad_slots", "must be a power of two%s", "");
    const char *methods, *other = train_preferences_wrong(p, &methods);
    if (other) return wrong(at, other, "only with method %s", methods);
    if ((other = train_policy_wrong(p, &methods))) return wrong(at, other, "%s", methods);
    if (p->method == TRAIN_FULL) return true;
    if (p->random_init) return wrong(at, "random_init", "only with method full%s", "");
    if (p->optimizer == OPTIMIZER_MUON) return wrong(at, "optimizer", "muon only with method full%s", "");
    if (p->dropout > 0) return wrong(at, "dropout", "only with method full; did you mean `%s`?", "lora_dropout");
    if (p->ema_decay > 0) return wrong(at, "ema_decay", "only with method full%s", "");
    return true;
}

bool train_params_known(const char *name, bool *is_bool)
{
    for (int i = 0; i < N_FIELDS; i++)
        if (strcmp(name, fields[i].name) == 0) return *is_bool = fields[i].kind == K_BOOL, true;
    return false;
}

bool train_params_read(struct json_at *at, struct train_params *p)
{
    if (!check_names(at)) return false;
    for (int i = 0; i < N_FIELDS; i++)
        if (!read_field(at, &fields[i], p)) return false;
    return check_together(at, p);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void put_targets(struct buf *b, unsigned mask)
{
    if (mask == TARGET_ALL) {
        buf_str(b, "\"all-linear\"");
        return;
    }
    buf_char(b, '[');
    bool first = true;
    for (int i = 0; i < N_OWN_TARGETS; i++) {
        if (!(mask & targets[i].target)) continue;
        buf_printf(b, "%s\"%s\"", first ? "" : ",", targets[i].name);
        first = false;
    }
    buf_char(b, ']');
}

/* 17 digits: a stored double must read back bit-identical, or a resumed job would compute different values. */
void train_params_put_number(struct buf *b, double v)
{
    char text[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back;
        if (sscanf(text, "%lf", &back) == 1 && back == v) break;
    }
    buf_str(b, text);
}

static void put_int(struct buf *b, const struct field *f, int v)
{
    if (f->kind == K_AUTO && v == MICRO_TOKENS_AUTO)
        buf_str(b, "\"auto\"");
    else
        buf_printf(b, "%d", v);
}

void train_params_put(struct buf *b, const struct train_params *p)
{
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        const void *place = (const char *)p + f->offset;
        if (f->grpo && p->method != TRAIN_GRPO) continue;
        /* with grpo `epsilon` is the ratio's, as in TRL */
        bool adam = p->method == TRAIN_GRPO && f->offset == AT(epsilon);
        buf_printf(b, "%c\"%s%s\":", i ? ',' : '{', adam ? "adam_" : "", f->name);
        switch (f->kind) {
        case K_NUMBER: train_params_put_number(b, *(const double *)place); break;
        case K_AUTO:
        case K_INT: put_int(b, f, *(const int *)place); break;
        case K_I64: buf_printf(b, "%lld", (long long)*(const int64_t *)place); break;
        case K_BOOL: buf_str(b, *(const bool *)place ? "true" : "false"); break;
        case K_U64: buf_printf(b, "%llu", (unsigned long long)*(const uint64_t *)place); break;
        case K_CHOICE: buf_printf(b, "\"%s\"", f->choices[*(const int *)place]); break;
        case K_TARGETS: put_targets(b, *(const unsigned *)place); break;
        }
    }
    buf_char(b, '}');
}
