#include "engine/model/peft_config.h"

#include "engine/model/adapter.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const cJSON *get(const struct peft_config *p, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(p->json, key);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static bool says_yes(const cJSON *v)
{
    bool empty = (cJSON_IsArray(v) || cJSON_IsObject(v)) && !v->child;
    bool blank = cJSON_IsString(v) && !v->valuestring[0], zero = cJSON_IsNumber(v) && v->valuedouble == 0;
    return v && !cJSON_IsNull(v) && !cJSON_IsFalse(v) && !empty && !blank && !zero;
}

/* Options that change the arithmetic of the adapter or of the base model and are not implemented. */
static const struct {
    const char *key, *what;
} refused[] = {
    {"use_dora", "DoRA"},
    {"alora_invocation_tokens", "aLoRA (activated by tokens)"},
    {"lora_bias", "a bias in lora_B"},
    {"trainable_token_indices", "trained token embeddings"},
    {"layer_replication", "replicated layers"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "Arrow routing"},
    {"monteclora_config", "MonteCLoRA"},
    {"kasa_config", "KaSA"},
};

/* PEFT saves the head of a sequence classifier whole, under one of two names: every decoder's is `score`. */
static int read_saved(struct peft_config *p, struct err *e)
{
    const cJSON *saved = get(p, "modules_to_save"), *task = get(p, "task_type");
    const cJSON *name = cJSON_IsArray(saved) ? saved->child : NULL;
    bool only = cJSON_IsArray(saved), score = false;
    for (; name; name = name->next) {
        const char *text = cJSON_IsString(name) ? name->valuestring : "";
        score |= strcmp(text, "score") == 0;
        only &= strcmp(text, "score") == 0 || strcmp(text, "classifier") == 0;
    }
    p->scores = score;
    if (!says_yes(saved)) return 0;
    if (only && score && cJSON_IsString(task) && strcmp(task->valuestring, "SEQ_CLS") == 0) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "modules_to_save: whole trained modules are not supported, but `score` of task_type SEQ_CLS");
}

static int refuse_features(const struct peft_config *p, struct err *e)
{
    const cJSON *type = get(p, "peft_type"), *bias = get(p, "bias"), *init = get(p, "init_lora_weights");
    if (!cJSON_IsString(type)) return err_set(e, ERR_INVALID, "peft_type is missing");
    if (strcmp(type->valuestring, "LORA"))
        return err_set(e, ERR_UNSUPPORTED, "peft_type \"%.40s\": only LORA is supported", type->valuestring);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (says_yes(get(p, refused[i].key)))
            return err_set(e, ERR_UNSUPPORTED, "%s: %s is not supported", refused[i].key, refused[i].what);
    if (bias && (!cJSON_IsString(bias) || strcmp(bias->valuestring, "none")))
        return err_set(e, ERR_UNSUPPORTED, "bias: only \"none\" is supported, trained biases are not");
    /* the others (pissa, olora, corda, loftq...) replace the base's weights by their residual after subtracting B A */
    static const char *const plain[] = {"gaussian", "eva", "orthogonal"};
    bool known = !cJSON_IsString(init);
    for (size_t i = 0; i < sizeof plain / sizeof *plain && !known; i++) known = !strcmp(init->valuestring, plain[i]);
    if (known) return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "init_lora_weights \"%.40s\" trains on changed base weights: convert the adapter with "
                   "save_pretrained(path_initial_model_for_weight_conversion=...)",
                   init->valuestring);
}

static int get_number(const struct peft_config *p, const char *key, double otherwise, double *out, struct err *e)
{
    const cJSON *v = get(p, key);
    *out = v ? v->valuedouble : otherwise;
    if (v && (!cJSON_IsNumber(v) || !isfinite(*out))) return err_set(e, ERR_INVALID, "%s must be a number", key);
    return 0;
}

/* a list of strings, or one string; NULL: absent */
static int get_names(const struct peft_config *p, const char *key, const cJSON **list, const char **text, struct err *e)
{
    const cJSON *v = get(p, key);
    *list = cJSON_IsArray(v) ? v : NULL;
    *text = cJSON_IsString(v) ? v->valuestring : NULL;
    bool ok = !v || *list || *text;
    for (const cJSON *i = *list ? v->child : NULL; i; i = i->next) ok &= cJSON_IsString(i);
    return ok ? 0 : err_set(e, ERR_INVALID, "%s must be a list of names, or a regular expression", key);
}

/* layers_pattern is accepted only when it is the name of the layer list in this family */
static int read_layers(struct peft_config *p, const struct model_config *c, struct err *e)
{
    const char *text, *ours = c->family->tensors->layers;
    const cJSON *list;
    p->layers = get(p, "layers_to_transform");
    if (cJSON_IsArray(p->layers) && !p->layers->child) p->layers = NULL;
    const cJSON *one = cJSON_IsArray(p->layers) ? p->layers->child : p->layers;
    for (; one; one = one == p->layers ? NULL : one->next)
        if (!cJSON_IsNumber(one) || one->valuedouble != floor(one->valuedouble))
            return err_set(e, ERR_INVALID, "layers_to_transform must be a layer's number or a list of them");
    int rc = get_names(p, "layers_pattern", &list, &text, e);
    if (rc || !p->layers) return rc;
    bool fits = (!list || !list->child) && (!text || !*text || strcmp(text, ours) == 0);
    for (const cJSON *i = list ? list->child : NULL; i; i = i->next) fits |= strcmp(i->valuestring, ours) == 0;
    return fits ? 0 : err_set(e, ERR_UNSUPPORTED, "layers_pattern: only \"%s\" is supported for this model", ours);
}

static bool is_all_linear(const char *s)
{
    const char *want = "all-linear";
    for (; *s && *want; s++, want++)
        if (*s != *want && (*s | 32) != *want) return false;
    return !*s && !*want;
}

/* PEFT's default modules when the configuration names none */
static cJSON *default_targets(const struct model_config *c)
{
    struct lora_module m[LORA_MODULES_MAX];
    int n = lora_modules(c, m);
    cJSON *names = cJSON_CreateArray();
    for (int i = 0; i < n; i++)
        if (m[i].peft) cJSON_AddItemToArray(names, cJSON_CreateString(m[i].name));
    return names;
}

static int read_targets(struct peft_config *p, const struct model_config *c, struct err *e)
{
    const char *text = NULL, *without = NULL;
    const char *parameter = NULL;
    if (get_names(p, "target_parameters", &p->parameters, &parameter, e)) return e->code;
    if (parameter) return err_set(e, ERR_INVALID, "target_parameters must be a list of names");
    if (!get(p, "target_modules") && !p->parameters) {
        cJSON_DeleteItemFromObjectCaseSensitive(p->json, "target_modules");
        cJSON_AddItemToObject(p->json, "target_modules", default_targets(c));
    }
    int rc = get_names(p, "target_modules", &p->targets, &text, e);
    if (!rc) rc = get_names(p, "exclude_modules", &p->exclude, &without, e);
    if (!rc && text) {
        p->all_linear = is_all_linear(text);
        if (!p->all_linear) rc = rule_open(&p->target, text, RULE_WHOLE, "target_modules", e);
    }
    if (!rc && without && *without) rc = rule_open(&p->excluded, without, RULE_WHOLE, "exclude_modules", e);
    return rc ? rc : read_layers(p, c, e);
}

void peft_config_close(struct peft_config *p)
{
    rule_close(&p->target);
    rule_close(&p->excluded);
    rule_table_close(&p->ranks);
    rule_table_close(&p->alphas);
    cJSON_Delete(p->json);
}

static int check_rank(double r, const char *what, struct err *e)
{
    if (r >= 1 && r <= LORA_RANK_MAX && r == floor(r)) return 0;
    return err_set(e, ERR_INVALID, "%s must be a whole number from 1 to %d", what, LORA_RANK_MAX);
}

int peft_config_open(struct peft_config *p, const char *text, const struct model_config *c, struct err *e)
{
    *p = (struct peft_config){.json = cJSON_ParseWithOpts(text, NULL, 1)};
    int rc = cJSON_IsObject(p->json) ? 0 : err_set(e, ERR_INVALID, "not a JSON object");
    if (!rc) rc = refuse_features(p, e);
    if (!rc) rc = read_saved(p, e);
    if (!rc) rc = get_number(p, "r", 8, &p->r, e);
    if (!rc) rc = check_rank(p->r, "r", e);
    if (!rc) rc = get_number(p, "lora_alpha", 8, &p->alpha, e);
    if (!rc) rc = get_number(p, "lora_dropout", 0, &p->dropout, e);
    const cJSON *rslora = rc ? NULL : get(p, "use_rslora");
    if (rslora && !cJSON_IsBool(rslora)) rc = err_set(e, ERR_INVALID, "use_rslora must be true or false");
    p->rslora = cJSON_IsTrue(rslora);
    if (!rc) rc = read_targets(p, c, e);
    if (!rc) rc = rule_table_open(&p->ranks, get(p, "rank_pattern"), "rank_pattern", e);
    if (!rc) rc = rule_table_open(&p->alphas, get(p, "alpha_pattern"), "alpha_pattern", e);
    if (rc) peft_config_close(p);
    return rc;
}

static bool layer_chosen(const struct peft_config *p, int layer)
{
    if (!p->layers) return true;
    if (cJSON_IsNumber(p->layers)) return p->layers->valuedouble == layer;
    for (const cJSON *v = p->layers->child; v; v = v->next)
        if (v->valuedouble == layer) return true;
    return false;
}

int peft_config_targets(const struct peft_config *p, int layer, const char *name, struct err *e)
{
    bool exact;
    if (p->exclude && list_matches(p->exclude, name, &exact)) return 0;
    int rc = p->excluded.text ? rule_matches(&p->excluded, name, e) : 0;
    if (rc) return rc < 0 ? rc : 0;
    if (p->all_linear) return 1;
    if (p->target.text) return rule_matches(&p->target, name, e);
    return p->targets && list_matches(p->targets, name, &exact) && (exact || layer_chosen(p, layer));
}

bool peft_config_parameter(const struct peft_config *p, const char *name)
{
    bool exact;
    return p->parameters && list_matches(p->parameters, name, &exact);
}

int peft_config_rank(const struct peft_config *p, const char *name, int *rank, double *alpha, struct err *e)
{
    char what[256];
    double r = p->r;
    *alpha = p->alpha;
    int rc = rule_table_find(&p->ranks, name, &r, e);
    if (!rc) rc = rule_table_find(&p->alphas, name, alpha, e);
    snprintf(what, sizeof what, "rank_pattern for %s", name);
    if (!rc) rc = check_rank(r, what, e);
    if (!rc) *rank = (int)r;
    return rc;
}
