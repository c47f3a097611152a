/* How many units a micro-batch has: as many as the memory allows.  The result does not depend on it, since sums over
 * tokens are made unit by unit. */
#include "engine/train/train_state.h"
#include "kernels/trace.h"

static bool trains_experts(const struct train_model *m)
{
    bool any = false;
    for (int l = 0; l < m->c->layers && !any; l++)
        for (int p = LAYER_GEMMS; p < LORA_GEMMS; p++)
            any |= model_block(m->c, l)->experts.count && (m->grads || train_site(m, l, (enum layer_gemm)p)->r);
    return any;
}

/* The rows of an expert are those of all units together, and a tied table gets gradients from both ends of the model:
 * neither sum can be made unit by unit. */
bool train_fits_units(const struct train *t)
{
    bool tied = t->tm.grads && t->model->c.tied;
    return t->p.micro_tokens == MICRO_TOKENS_AUTO && !tied && !trains_experts(&t->tm);
}

int train_fit_most(const struct train *t)
{
    enum { MOST = 8192, MOST_ON_HOST = 2048 }; /* more is no faster */
    int64_t step = t->p.batch_tokens, rows = (int64_t)t->rows.tokens;
    int most = dev_host_memory(t->d) ? MOST_ON_HOST : MOST;
    if (step > rows) step = rows;
    if (step < most) most = (int)step;
    return train_fits_units(t) && most > t->unit ? most : t->unit;
}

int train_fit_half(const struct train *t, int tokens)
{
    return tokens / 2 > t->unit ? tokens / 2 : t->unit;
}

/* Evaluations have no dropout; its memory is needed all the same. */
static int reopen(struct train *t, int tokens, struct err *e)
{
    float dropout = t->tm.dropout, residual = t->tm.residual_dropout;
    t->tm.dropout = (float)t->p.lora_dropout;
    t->tm.residual_dropout = (float)t->p.dropout;
    int rc = train_model_reopen(&t->tm, tokens, t->p.max_length, e);
    t->tm.dropout = dropout;
    t->tm.residual_dropout = residual;
    return rc;
}

bool train_fit_less(struct train *t, struct err *e)
{
    while (e->code == ERR_NOMEM && t->tm.max_tokens > t->unit && !t->o.s.grads) { /* else: check_slots of plan.c */
        struct err why = *e;
        int tokens = train_fit_half(t, t->tm.max_tokens);
        e->code = 0;
        scheduler_gate_pass(t->gate);
        prefetch_limit(t->next, tokens);
        prefetch_limit(t->next_eval, tokens);
        micro_close(&t->micro);
        int rc = reopen(t, tokens, e);
        micro_open(&t->micro, tokens, t->tm.c->near_len);
        t->plan.micro_tokens = tokens;
        if (rc) continue;
        buf_clear(&t->warnings);
        buf_printf(&t->warnings, "%.300s: micro-batches have at most %d tokens from now on", why.msg, tokens);
        return true;
    }
    return false;
}
