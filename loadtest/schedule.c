#include "loadtest/schedule.h"

#include "kernels/rng.h"

enum { SEED_ARRIVALS, SEED_ASKS };

void schedule_init(struct schedule *s, const struct options *o, const struct trace *trace)
{
    uint64_t seed = (uint64_t)o->seed;
    *s = (struct schedule){.options = o,
                           .trace = o->arrivals == ARRIVE_TRACE ? trace : NULL,
                           .scenario = {.seed = rng_at(seed, SEED_ASKS),
                                        .prompt = o->prompt,
                                        .output = o->output,
                                        .lengths = trace,
                                        .prompt_max = o->prompt_max,
                                        .output_max = o->output_max,
                                        .prefix = o->prefix,
                                        .groups = o->groups,
                                        .long_share = o->long_share,
                                        .long_prompt = o->long_prompt,
                                        .slow_share = o->slow_share,
                                        .disconnect_share = o->disconnect_share,
                                        .bad_share = o->bad_share,
                                        .leave_after = o->leave_after},
                           .arrivals = {.kind = (enum arrival_kind)o->arrivals,
                                        .rate = o->rate,
                                        .shape = o->burstiness,
                                        .ramp = o->ramp,
                                        .seed = rng_at(seed, SEED_ARRIVALS)}};
}

bool schedule_next(struct schedule *s, uint64_t *at)
{
    const struct options *o = s->options;
    if (o->requests && s->index >= (uint64_t)o->requests) return false;
    if (s->trace && s->index >= s->trace->n) return false;
    double t = s->trace ? s->trace->rows[s->index].at / o->trace_speed : arrivals_next(&s->arrivals);
    if ((o->duration > 0 && t >= o->duration) || t > 1e9) return false;
    *at = (uint64_t)(t * 1e9);
    s->index++;
    return true;
}

struct ask schedule_ask(const struct schedule *s, uint64_t index)
{
    return scenario_ask(&s->scenario, index);
}
