#include "engine/train/params.h"

#include "engine/base/crc32c.h"
#include "engine/data/dataset.h"
#include "kernels/rng.h"

#include <stddef.h>
#include <string.h>

static double default_beta(enum train_method m)
{
    return m == TRAIN_SIMPO ? 2 : train_on_preferences(m) ? 0.1 : 0;
}

void train_params_default(struct train_params *p, enum train_method method)
{
    bool full = method == TRAIN_FULL, preferences = train_on_preferences(method), kto = method == TRAIN_KTO;
    *p = (struct train_params){
        .method = method,
        .epochs = 3,
        .batch_tokens = 2048,
        .max_length = 512,
        .learning_rate = full          ? 5e-5
                         : preferences ? 1e-5
                                       : 2e-4,
        .schedule = SCHEDULE_COSINE,
        .warmup_ratio = 0.03,
        .warmup_steps = -1,
        .weight_decay = full ? 0.01 : 0,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .max_grad_norm = 1,
        .beta = default_beta(method),
        .gamma = method == TRAIN_SIMPO,
        .desirable_weight = kto,
        .undesirable_weight = kto,
        .lora_r = 16,
        .lora_alpha = 32,
        .targets = TARGET_ALL,
        .packing = true,
        .group_by_length = true,
        .seed = 42,
    };
}

enum dataset_format train_data_format(enum train_method method, enum dataset_format given)
{
    if (given != DATASET_AUTO || !train_on_preferences(method)) return given;
    return method == TRAIN_KTO ? DATASET_UNPAIRED : DATASET_PREFERENCE;
}

int train_batch_tokens(int rows, const struct dataset_report *r)
{
    bool mixed = r->drawn > 0;
    double tokens = (double)(mixed ? r->drawn_tokens : r->tokens), of = (double)(mixed ? r->drawn : r->kept);
    double sum = of > 0 ? rows * tokens / of : 0;
    return sum < 16 ? 16 : sum > 1048576 ? 1048576 : (int)sum;
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

#define AT(field) offsetof(struct train_params, field)

/* One row per numeric parameter: its range and its offset. */
static const struct {
    struct train_range range;
    enum { DOUBLE, INT, INT64 } type;
    size_t at;
    bool lora; /* not used by method full */
} table[] = {
    {{"epochs", 0, 1000, true}, DOUBLE, AT(epochs), false},
    {{"max_steps", 0, 1e12, false}, INT64, AT(max_steps), false},
    {{"batch_tokens", 16, 1048576, false}, INT, AT(batch_tokens), false},
    {{"micro_tokens", 0, 1048576, false}, INT, AT(micro_tokens), false},
    {{"memory_mib", 0, 1e9, false}, INT, AT(memory_mib), false},
    {{"max_length", 8, 1048576, false}, INT, AT(max_length), false}, /* and at most the model's */
    {{"learning_rate", 0, 1, true}, DOUBLE, AT(learning_rate), false},
    {{"min_lr_ratio", 0, 1, false}, DOUBLE, AT(min_lr_ratio), false},
    {{"warmup_ratio", 0, 1, false}, DOUBLE, AT(warmup_ratio), false},
    {{"warmup_steps", -1, 1e12, false}, INT64, AT(warmup_steps), false},
    {{"weight_decay", 0, 10, false}, DOUBLE, AT(weight_decay), false},
    {{"beta1", 0, 0.99999, false}, DOUBLE, AT(beta1), false},
    {{"beta2", 0, 0.9999999, false}, DOUBLE, AT(beta2), false},
    {{"epsilon", 1e-30, 1, false}, DOUBLE, AT(epsilon), false},
    {{"max_grad_norm", 0, 1e6, false}, DOUBLE, AT(max_grad_norm), false},
    {{"dropout", 0, 0.999, false}, DOUBLE, AT(dropout), false},
    {{"ema_decay", 0, 0.9999999, false}, DOUBLE, AT(ema_decay), false},
    {{"lora_r", 1, 256, false}, INT, AT(lora_r), true},
    {{"lora_alpha", 0, 4096, true}, DOUBLE, AT(lora_alpha), true},
    {{"lora_dropout", 0, 0.999, false}, DOUBLE, AT(lora_dropout), true},
    {{"beta", 0, 1000, false}, DOUBLE, AT(beta), false},
    {{"label_smoothing", 0, 0.499, false}, DOUBLE, AT(label_smoothing), false},
    {{"gamma", 0, 1000, false}, DOUBLE, AT(gamma), false},
    {{"desirable_weight", 0, 1000, false}, DOUBLE, AT(desirable_weight), false},
    {{"undesirable_weight", 0, 1000, false}, DOUBLE, AT(undesirable_weight), false},
    {{"eval_fraction", 0, 0.5, false}, DOUBLE, AT(eval_fraction), false},
    {{"eval_steps", 0, 1e12, false}, INT64, AT(eval_steps), false},
    {{"save_steps", 0, 1e12, false}, INT64, AT(save_steps), false},
    {{"early_stopping_patience", 0, 1e6, false}, INT, AT(patience), false},
    {{"early_stopping_threshold", 0, 1e6, false}, DOUBLE, AT(min_improvement), false},
};
enum { N_RANGES = sizeof table / sizeof *table };

const struct train_range *train_range(const char *name)
{
    for (int i = 0; i < N_RANGES; i++)
        if (strcmp(name, table[i].range.name) == 0) return &table[i].range;
    return NULL;
}

bool train_range_has(const struct train_range *r, double v)
{
    return (r->above_min ? v > r->min : v >= r->min) && v <= r->max;
}

static double value_of(const struct train_params *p, int i)
{
    const void *at = (const char *)p + table[i].at;
    switch (table[i].type) {
    case INT: return *(const int *)at;
    case INT64: return (double)*(const int64_t *)at;
    default: return *(const double *)at;
    }
}

static int check_ranges(const struct train_params *p, bool lora, struct err *e)
{
    for (int i = 0; i < N_RANGES; i++) {
        const struct train_range *r = &table[i].range;
        double v = value_of(p, i);
        bool automatic = table[i].at == AT(micro_tokens) && v == MICRO_TOKENS_AUTO;
        if ((table[i].lora && !lora) || automatic || train_range_has(r, v)) continue;
        return err_set(e, ERR_INVALID, "%s must be %s %.12g and at most %.12g, not %.12g", r->name,
                       r->above_min ? "above" : "at least", r->min, r->max, v);
    }
    return 0;
}

const char *train_preferences_wrong(const struct train_params *p, const char **methods)
{
    enum train_method m = p->method;
    const struct {
        const char *name, *methods;
        double v;
        bool has;
    } of[] = {
        {"beta", "dpo, orpo, simpo or kto", p->beta, train_on_preferences(m)},
        {"label_smoothing", "dpo or simpo", p->label_smoothing, m == TRAIN_DPO || m == TRAIN_SIMPO},
        {"gamma", "simpo", p->gamma, m == TRAIN_SIMPO},
        {"desirable_weight", "kto", p->desirable_weight, m == TRAIN_KTO},
        {"undesirable_weight", "kto", p->undesirable_weight, m == TRAIN_KTO},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].v > 0 && !of[i].has) return *methods = of[i].methods, of[i].name;
    return NULL;
}

int train_params_check(struct train_params *p, const struct model_config *c, struct err *e)
{
    bool lora = p->method != TRAIN_FULL;
    int most = c->max_len < 8 ? 8 : c->max_len;
    if (check_ranges(p, lora, e)) return e->code;
    if (p->max_length > most)
        return err_set(e, ERR_INVALID, "max_length must be at most %d, the model's positions, not %d", most,
                       p->max_length);
    if ((unsigned)p->method > TRAIN_KTO)
        return err_set(e, ERR_INVALID, "method must be lora, qlora, full, dpo, orpo, simpo or kto");
    const char *methods, *wrong = train_preferences_wrong(p, &methods);
    if (wrong) return err_set(e, ERR_INVALID, "%s is for method %s", wrong, methods);
    if (!p->beta) p->beta = default_beta(p->method);
    if ((unsigned)p->schedule > SCHEDULE_COSINE)
        return err_set(e, ERR_INVALID, "schedule must be constant, linear or cosine");
    if (lora && !(p->targets & (TARGET_ALL | TARGET_PARAMETERS | TARGET_ENDS)))
        return err_set(e, ERR_INVALID, "targets must name a module");
    if ((unsigned)p->optimizer > OPTIMIZER_ADAMW_8BIT)
        return err_set(e, ERR_INVALID, "optimizer must be adamw, muon or adamw_8bit");
    if (lora && p->random_init) return err_set(e, ERR_INVALID, "random_init is for method full");
    if (lora && p->optimizer == OPTIMIZER_MUON) return err_set(e, ERR_INVALID, "optimizer muon is for method full");
    if (lora && p->ema_decay > 0) return err_set(e, ERR_INVALID, "ema_decay is for method full");
    if (lora && p->dropout > 0)
        return err_set(e, ERR_INVALID, "dropout is for method full: adapters have lora_dropout");
    if (!lora) p->lora_dropout = 0;
    if (p->exact && (p->lora_dropout > 0 || p->dropout > 0))
        return err_set(e, ERR_INVALID, "exact: %s must be 0, since texts are sampled without dropout",
                       lora ? "lora_dropout" : "dropout");
    if (!p->micro_tokens) p->micro_tokens = p->batch_tokens < 2048 ? p->batch_tokens : 2048;
    if (p->micro_tokens < p->max_length && p->micro_tokens != MICRO_TOKENS_AUTO) p->micro_tokens = p->max_length;
    return 0;
}

int train_unit_tokens(const struct train_params *p)
{
    enum { UNIT = 512 }; /* enough for the GEMMs of the sums, little enough to fit almost anywhere */
    int unit = p->batch_tokens < UNIT ? p->batch_tokens : UNIT;
    if (p->micro_tokens != MICRO_TOKENS_AUTO) return p->micro_tokens;
    return unit > p->max_length ? unit : p->max_length;
}

/* ---- the hash ---------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    return rng_mix(rng_mix(h ^ crc32c(0, p, n)) + n);
}

static uint64_t mix_number(uint64_t h, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    return rng_mix(h ^ rng_mix(bits));
}

/* Samples the beginning, middle and end of a tensor: training changes all of a tensor or none of it. */
static uint64_t mix_tensor(uint64_t h, const struct tensor *t)
{
    enum { SAMPLE = 1 << 14 };
    const char *data = t->data;
    h = mix(h, t->name, strlen(t->name));
    h = mix(h, t->dims, (size_t)t->n_dims * sizeof *t->dims);
    h = mix_number(h, (double)t->type);
    if (t->bytes <= 3 * SAMPLE) return mix(h, data, t->bytes);
    h = mix(h, data, SAMPLE);
    h = mix(h, data + t->bytes / 2, SAMPLE);
    return mix(h, data + t->bytes - SAMPLE, SAMPLE);
}

uint64_t train_job_hash(const struct train_params *p, uint64_t data, uint64_t eval, const struct tensor_source *base,
                        const float *first, size_t n)
{
    /* recompute, save_steps, memory_mib and offload_optimizer are left out: they do not change the result. */
    const double numbers[] = {
        p->method,
        p->epochs,
        (double)p->max_steps,
        p->batch_tokens,
        p->micro_tokens,
        p->max_length,
        p->learning_rate,
        p->schedule,
        p->min_lr_ratio,
        p->warmup_ratio,
        p->weight_decay,
        p->beta1,
        (double)p->warmup_steps,
        p->beta2,
        p->epsilon,
        p->lora_r,
        p->lora_alpha,
        p->lora_dropout,
        p->use_rslora,
        p->targets,
        p->packing,
        p->group_by_length,
        p->eval_fraction,
        (double)p->eval_steps,
        p->patience,
        p->f32,
        p->random_init,
        p->min_improvement,
        p->max_grad_norm,
        p->optimizer,
        p->dropout,
        p->ema_decay,
    };
    uint64_t h = rng_mix(p->seed);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) h = mix_number(h, numbers[i]);
    const double preferences[] = {p->beta, p->label_smoothing, p->gamma, p->desirable_weight, p->undesirable_weight};
    for (size_t i = 0; train_on_preferences(p->method) && i < sizeof preferences / sizeof *preferences; i++)
        h = mix_number(h, preferences[i]);
    /* not in the list: the hash of other jobs stays */
    if (p->exact) h = mix_number(h, 1);
    if (p->eval_on_start) h = mix_number(h, 2);
    h = rng_mix(h ^ data);
    h = rng_mix(h ^ eval);
    for (size_t i = 0; base && i < tensor_source_count(base); i++) h = mix_tensor(h, tensor_source_at(base, i));
    return mix(h, first, n * sizeof *first);
}
