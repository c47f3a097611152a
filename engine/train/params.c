#include "engine/train/params.h"

#include "engine/base/crc32c.h"
#include "engine/data/dataset.h"
#include "kernels/rng.h"

#include <stddef.h>
#include <string.h>

static double default_beta(enum train_method m)
{
    return m == TRAIN_SIMPO ? 2 : train_on_preferences(m) && m != TRAIN_REWARD ? 0.1 : 0;
}

void train_params_default(struct train_params *p, enum train_method method)
{
    bool full = method == TRAIN_FULL, kto = method == TRAIN_KTO, grpo = method == TRAIN_GRPO;
    bool preferences = train_on_preferences(method), reward = method == TRAIN_REWARD;
    *p = (struct train_params){
        .method = method,
        .epochs = 3,
        .batch_tokens = 2048,
        .max_length = 512,
        .learning_rate = full          ? 5e-5
                         : reward      ? 1e-4
                         : preferences ? 1e-5
                         : grpo        ? 5e-5
                                       : 2e-4,
        .schedule = grpo ? SCHEDULE_CONSTANT : SCHEDULE_COSINE,
        .warmup_ratio = grpo ? 0 : 0.03,
        .warmup_steps = -1,
        .weight_decay = full ? 0.01 : 0,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .max_grad_norm = 1,
        .beta = method == TRAIN_DISTILL ? 0.5 : default_beta(method),
        .teacher_top_k = method == TRAIN_DISTILL ? 64 : 0,
        .gamma = method == TRAIN_SIMPO,
        .desirable_weight = kto,
        .undesirable_weight = kto,
        .samples = grpo ? 8 : 0,
        .prompts_per_step = grpo ? 4 : 0,
        .max_new_tokens = grpo ? 128 : 0,
        .temperature = grpo,
        .iterations = grpo,
        .clip_low = grpo ? 0.2 : 0,
        .clip_high = grpo ? 0.2 : 0,
        .exact = grpo,
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
    if (given == DATASET_AUTO && method == TRAIN_GRPO) return DATASET_PROMPTS;
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
    bool grpo; /* used by this method only; 0 with others */
} table[] = {
    {{"epochs", 0, 1000, true}, DOUBLE, AT(epochs), false},
    {{"max_steps", 0, 1e12, false}, INT64, AT(max_steps), false},
    {{"batch_tokens", 16, 1048576, false}, INT, AT(batch_tokens), false},
    {{"micro_tokens", 0, 1048576, false}, INT, AT(micro_tokens), false},
    {{"grad_slots", 0, 64, false}, INT, AT(grad_slots), false},
    {{"zero", 0, 3, false}, INT, AT(zero), false},
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
    {{"center_rewards_coefficient", 0, 1000, false}, DOUBLE, AT(center), false},
    {{"desirable_weight", 0, 1000, false}, DOUBLE, AT(desirable_weight), false},
    {{"undesirable_weight", 0, 1000, false}, DOUBLE, AT(undesirable_weight), false},
    {{"teacher_top_k", 0, 1024, false}, INT, AT(teacher_top_k), false},
    {{"samples", 2, 1024, false}, INT, AT(samples), false, true},
    {{"prompts_per_step", 1, 1024, false}, INT, AT(prompts_per_step), false, true},
    {{"max_new_tokens", 1, 1048575, false}, INT, AT(max_new_tokens), false, true}, /* and below max_length */
    {{"temperature", 0.01, 10, false}, DOUBLE, AT(temperature), false, true},
    {{"num_iterations", 1, 64, false}, INT, AT(iterations), false, true},
    {{"clip_low", 0, 1, true}, DOUBLE, AT(clip_low), false, true},
    {{"clip_high", 0, 100, true}, DOUBLE, AT(clip_high), false, true},
    {{"eval_fraction", 0, 0.5, false}, DOUBLE, AT(eval_fraction), false},
    {{"eval_steps", 0, 1e12, false}, INT64, AT(eval_steps), false},
    {{"save_steps", 0, 1e12, false}, INT64, AT(save_steps), false},
    {{"early_stopping_patience", 0, 1e6, false}, INT, AT(patience), false},
    {{"early_stopping_threshold", 0, 1e6, false}, DOUBLE, AT(min_improvement), false},
};
_Static_assert(GRAD_SLOTS_MAX == 64, "the range of grad_slots");
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
        bool other = (table[i].lora && !lora) || (table[i].grpo && p->method != TRAIN_GRPO);
        if (other || automatic || train_range_has(r, v)) continue;
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
        {"beta", "dpo, orpo, simpo, kto, grpo or distill", p->beta,
         (train_on_preferences(m) && m != TRAIN_REWARD) || m == TRAIN_GRPO || m == TRAIN_DISTILL},
        {"label_smoothing", "dpo or simpo", p->label_smoothing, m == TRAIN_DPO || m == TRAIN_SIMPO},
        {"gamma", "simpo or reward", p->gamma, m == TRAIN_SIMPO || m == TRAIN_REWARD},
        {"center_rewards_coefficient", "reward", p->center, m == TRAIN_REWARD},
        {"teacher_top_k", "distill", p->teacher_top_k, m == TRAIN_DISTILL},
        {"desirable_weight", "kto", p->desirable_weight, m == TRAIN_KTO},
        {"undesirable_weight", "kto", p->undesirable_weight, m == TRAIN_KTO},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].v > 0 && !of[i].has) return *methods = of[i].methods, of[i].name;
    return NULL;
}

static const char *only_with_grpo(const struct train_params *p, const char **why)
{
    *why = "only with method grpo";
    return p->samples            ? "samples"
           : p->prompts_per_step ? "prompts_per_step"
           : p->max_new_tokens   ? "max_new_tokens"
           : p->temperature > 0  ? "temperature"
           : p->iterations       ? "num_iterations"
           : p->clip_low > 0     ? "clip_low"
           : p->clip_high > 0    ? "clip_high"
           : p->loss_type        ? "loss_type"
           : p->scale_rewards    ? "scale_rewards"
           : p->mask_truncated   ? "mask_truncated"
                                 : NULL;
}

const char *train_policy_wrong(const struct train_params *p, const char **why)
{
    if (p->method != TRAIN_GRPO) return only_with_grpo(p, why);
    const struct {
        const char *name, *why;
        bool wrong;
    } of[] = {
        {"samples", "at most 4096 texts to a step: samples times prompts_per_step",
         (int64_t)p->samples * p->prompts_per_step > TRAIN_TEXTS_MAX},
        {"max_new_tokens", "must be below max_length, which counts the prompt too", p->max_new_tokens >= p->max_length},
        {"exact", "must be true: the texts are trained on as they were sampled", !p->exact},
        {"eval_fraction", "not with method grpo, which reports the rewards of each step", p->eval_fraction > 0},
        {"eval_on_start", "not with method grpo, which reports the rewards of each step", p->eval_on_start},
        {"micro_tokens", "auto: not with method grpo", p->micro_tokens == MICRO_TOKENS_AUTO},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (of[i].wrong) return *why = of[i].why, of[i].name;
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
    if ((unsigned)p->method >= TRAIN_METHODS)
        return err_set(e, ERR_INVALID,
                       "method must be lora, qlora, full, dpo, orpo, simpo, kto, grpo, reward or distill");
    const char *methods, *wrong = train_preferences_wrong(p, &methods);
    if (wrong) return err_set(e, ERR_INVALID, "%s is for method %s", wrong, methods);
    if ((wrong = train_policy_wrong(p, &methods))) return err_set(e, ERR_INVALID, "%s: %s", wrong, methods);
    if (!p->beta) p->beta = default_beta(p->method);
    if (p->method == TRAIN_DISTILL && p->beta > 1)
        return err_set(e, ERR_INVALID, "beta must be at most 1 with method distill, not %.12g", p->beta);
    if (p->method == TRAIN_DISTILL && !p->teacher_top_k) p->teacher_top_k = 64;
    if (p->scale_rewards == SCALE_AUTO && p->method == TRAIN_GRPO)
        p->scale_rewards = p->loss_type == LOSS_DR_GRPO ? SCALE_NONE : SCALE_GROUP;
    if ((unsigned)p->schedule > SCHEDULE_COSINE)
        return err_set(e, ERR_INVALID, "schedule must be constant, linear or cosine");
    if (lora && !(p->targets & (TARGET_ALL | TARGET_PARAMETERS | TARGET_ENDS)))
        return err_set(e, ERR_INVALID, "targets must name a module");
    if (p->method == TRAIN_REWARD && p->targets & TARGET_HEAD)
        return err_set(e, ERR_INVALID, "targets: method reward has no use for the LM head");
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
    if (!p->grad_slots) p->grad_slots = 1;
    if (p->grad_slots & (p->grad_slots - 1))
        return err_set(e, ERR_INVALID, "grad_slots must be a power of two, not %d", p->grad_slots);
    if (p->grad_slots > 1 && p->method == TRAIN_GRPO)
        return err_set(e, ERR_INVALID, "grad_slots must be 1 with method grpo");
    if (p->zero && p->method == TRAIN_GRPO)
        return err_set(e, ERR_INVALID, "zero must be 0 with method grpo, which does not train on several ranks");
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

static uint64_t mix_crc(uint64_t h, uint32_t crc, size_t n)
{
    return rng_mix(rng_mix(h ^ crc) + n);
}

static uint64_t mix(uint64_t h, const void *p, size_t n)
{
    return mix_crc(h, crc32c(0, p, n), n);
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
                        uint32_t first, size_t bytes)
{
    /* recompute, save_steps, memory_mib, offload_optimizer and zero are left out: they do not change the result. */
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
    if (p->method == TRAIN_REWARD) h = mix_number(h, p->center);
    if (p->method == TRAIN_DISTILL) h = mix_number(mix_number(h, p->beta), p->teacher_top_k);
    const double policy[] = {p->beta,        p->samples,       p->prompts_per_step, p->max_new_tokens,
                             p->temperature, p->iterations,    p->clip_low,         p->clip_high,
                             p->loss_type,   p->scale_rewards, p->mask_truncated};
    for (size_t i = 0; p->method == TRAIN_GRPO && i < sizeof policy / sizeof *policy; i++) h = mix_number(h, policy[i]);
    /* not in the list: the hash of other jobs stays */
    if (p->exact) h = mix_number(h, 1);
    if (p->eval_on_start) h = mix_number(h, 2);
    if (p->grad_slots > 1) h = mix_number(h, 1000 + p->grad_slots);
    h = rng_mix(h ^ data);
    h = rng_mix(h ^ eval);
    for (size_t i = 0; base && i < tensor_source_count(base); i++) h = mix_tensor(h, tensor_source_at(base, i));
    return mix_crc(h, first, bytes);
}
