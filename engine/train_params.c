#include "engine/train_params.h"

#include "engine/base/crc32c.h"
#include "kernels/rng.h"

#include <math.h>
#include <string.h>

void train_params_default(struct train_params *p, enum train_method method)
{
    bool full = method == TRAIN_FULL;
    *p = (struct train_params){
        .method = method,
        .epochs = 3,
        .batch_tokens = 2048,
        .max_length = 512,
        .learning_rate = full ? 5e-5 : 2e-4,
        .schedule = SCHEDULE_COSINE,
        .warmup_ratio = 0.03,
        .warmup_steps = -1,
        .weight_decay = full ? 0.01 : 0,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
        .max_grad_norm = 1,
        .lora_r = 16,
        .lora_alpha = 32,
        .targets = TARGET_ALL,
        .packing = true,
        .group_by_length = true,
        .seed = 42,
    };
}

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

struct range {
    const char *name;
    double value, min, max;
    bool above_min; /* min itself is out */
    bool whole;
};

static int check_range(const struct range *r, struct err *e)
{
    bool low = r->above_min ? !(r->value > r->min) : !(r->value >= r->min);
    if (!low && r->value <= r->max && (!r->whole || r->value == floor(r->value))) return 0;
    return err_set(e, ERR_INVALID, "%s must be %s%s %g and at most %g, not %g", r->name,
                   r->whole ? "a whole number " : "", r->above_min ? "above" : "at least", r->min, r->max, r->value);
}

int train_params_check(struct train_params *p, const struct model_config *c, struct err *e)
{
    bool lora = p->method != TRAIN_FULL;
    const struct range ranges[] = {
        {"epochs", p->epochs, 0, 1000, true, false},
        {"max_steps", (double)p->max_steps, 0, 1e15, false, true},
        {"batch_tokens", p->batch_tokens, 16, 1048576, false, true},
        {"micro_tokens", p->micro_tokens, 0, 1048576, false, true},
        {"max_length", p->max_length, 8, c->max_len < 8 ? 8 : c->max_len, false, true},
        {"learning_rate", p->learning_rate, 0, 1, true, false},
        {"min_lr_ratio", p->min_lr_ratio, 0, 1, false, false},
        {"warmup_ratio", p->warmup_ratio, 0, 1, false, false},
        {"warmup_steps", (double)p->warmup_steps, -1, 1e15, false, true},
        {"weight_decay", p->weight_decay, 0, 10, false, false},
        {"beta1", p->beta1, 0, 0.99999, false, false},
        {"beta2", p->beta2, 0, 0.9999999, false, false},
        {"epsilon", p->epsilon, 1e-30, 1, false, false},
        {"max_grad_norm", p->max_grad_norm, 0, 1e9, false, false},
        {"dropout", p->dropout, 0, 0.999, false, false},
        {"ema_decay", p->ema_decay, 0, 0.9999999, false, false},
        {"lora_r", lora ? p->lora_r : 1, 1, 256, false, true},
        {"lora_alpha", lora ? p->lora_alpha : 1, 0, 4096, true, false},
        {"lora_dropout", lora ? p->lora_dropout : 0, 0, 0.999, false, false},
        {"eval_fraction", p->eval_fraction, 0, 0.5, false, false},
        {"eval_steps", (double)p->eval_steps, 0, 1e15, false, true},
        {"save_steps", (double)p->save_steps, 0, 1e15, false, true},
        {"patience", p->patience, 0, 1e9, false, true},
        {"min_improvement", p->min_improvement, 0, 1e9, false, false},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges && !rc; i++) rc = check_range(&ranges[i], e);
    if (rc) return rc;
    if ((unsigned)p->method > TRAIN_FULL) return err_set(e, ERR_INVALID, "method must be lora, qlora or full");
    if ((unsigned)p->schedule > SCHEDULE_COSINE)
        return err_set(e, ERR_INVALID, "schedule must be constant, linear or cosine");
    if (lora && !(p->targets & TARGET_ALL)) return err_set(e, ERR_INVALID, "targets must name a module");
    if ((unsigned)p->optimizer > OPTIMIZER_MUON) return err_set(e, ERR_INVALID, "optimizer must be adamw or muon");
    if (lora && p->random_init) return err_set(e, ERR_INVALID, "random_init is for method full");
    if (lora && p->optimizer) return err_set(e, ERR_INVALID, "optimizer muon is for method full");
    if (lora && p->ema_decay > 0) return err_set(e, ERR_INVALID, "ema_decay is for method full");
    if (lora && p->dropout > 0)
        return err_set(e, ERR_INVALID, "dropout is for method full: adapters have lora_dropout");
    if (!lora) p->lora_dropout = 0;
    if (!p->micro_tokens) p->micro_tokens = p->batch_tokens < 2048 ? p->batch_tokens : 2048;
    if (p->micro_tokens < p->max_length) p->micro_tokens = p->max_length;
    return 0;
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

/* A tensor's begin, middle and end: training changes all of it or nothing. */
static uint64_t mix_tensor(uint64_t h, const struct st_tensor *t)
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

uint64_t train_job_hash(const struct train_params *p, uint64_t data, uint64_t eval, const struct safetensors *base,
                        const float *first, size_t n)
{
    /* recompute is left out: it does not change a bit.  save_steps neither. */
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
    h = rng_mix(h ^ data);
    h = rng_mix(h ^ eval);
    for (size_t i = 0; base && i < safetensors_count(base); i++) h = mix_tensor(h, safetensors_at(base, i));
    return mix(h, first, n * sizeof *first);
}
