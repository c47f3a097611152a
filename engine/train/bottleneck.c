#include "engine/train/bottleneck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Tokens at which a micro-batch takes twice the time that its tokens alone would: estimates for reading the weights and
 * starting ops, on a CPU and on a GPU. */
static const double HALF_SPEED_TOKENS = 16, HALF_SPEED_TOKENS_GPU = 768;
static const double NEAR_CEILING = 0.5;      /* of the ceiling: larger batches would gain little */
static const double CHECKPOINTS_LEAST = 0.2; /* seconds: every job makes one or two, however short */
static const double LEAST_GAIN = 1.01;       /* less is not worth a word */

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static double share_of(const struct train_facts *f, enum train_part p)
{
    return f->usage.part[p] / f->usage.seconds;
}

static double computing(const struct train_facts *f)
{
    return share_of(f, TRAIN_FORWARD) + share_of(f, TRAIN_BACKWARD);
}

static double whole(const struct train_facts *f)
{
    return f->usage.seconds + f->usage.eval_seconds + f->usage.checkpoint_seconds;
}

static double half_speed(const struct train_facts *f)
{
    return f->plan.own_memory ? HALF_SPEED_TOKENS_GPU : HALF_SPEED_TOKENS;
}

/* The share of a step that forward and backward pass take whatever its tokens. */
static double fixed_share(const struct train_facts *f)
{
    if (!f->usage.micro_batches || f->usage.tokens < 1) return 0;
    double tokens = (double)f->usage.tokens / (double)f->usage.micro_batches;
    return computing(f) * half_speed(f) / (half_speed(f) + tokens);
}

static double bytes_kept(const struct train_plan *p)
{
    return (double)p->state_bytes + (double)p->kept_bytes;
}

static double room(const struct train_plan *p)
{
    return TRAIN_ROOM_MOST * (double)p->room_bytes;
}

/* ---- figures of the rules ---------------------------------------------------------------------------------------- */

static double data_share(const struct train_facts *f)
{
    return share_of(f, TRAIN_DATA);
}

static double optimizer_share(const struct train_facts *f)
{
    return share_of(f, TRAIN_OPTIMIZER);
}

static double wait_share(const struct train_facts *f)
{
    return share_of(f, TRAIN_WAIT);
}

/* The rank that waits least waits for the link alone; what the first one takes longer it waits for slower ranks. */
static double link_share(const struct train_facts *f)
{
    return fmin(f->usage.link_seconds / f->usage.seconds, share_of(f, TRAIN_RANKS));
}

static double ranks_share(const struct train_facts *f)
{
    return share_of(f, TRAIN_RANKS) - link_share(f);
}

static double other_share(const struct train_facts *f)
{
    return share_of(f, TRAIN_OTHER);
}

static double eval_share(const struct train_facts *f)
{
    return f->usage.eval_seconds / whole(f);
}

static double checkpoint_share(const struct train_facts *f)
{
    double seconds = f->usage.checkpoint_seconds;
    return seconds < CHECKPOINTS_LEAST ? 0 : seconds / whole(f);
}

static bool divided(const struct train_facts *f)
{
    return f->usage.micro_batches > f->usage.steps;
}

static double split_share(const struct train_facts *f)
{
    return divided(f) && f->ceiling_ratio <= NEAR_CEILING ? fixed_share(f) : 0;
}

/* Larger batches must fit into memory, and there must be rows for them. */
static double small_share(const struct train_facts *f)
{
    const struct train_plan *p = &f->plan;
    if (divided(f)) return 0;
    if (f->best_ratio > 0) return 1 - 1 / f->best_ratio;
    bool fit = !p->room_bytes || (double)p->state_bytes + 2 * (double)p->activation_bytes <= room(p);
    bool rows = 2 * f->usage.tokens <= p->tokens_per_epoch * f->usage.steps;
    return fit && rows && f->ceiling_ratio <= NEAR_CEILING ? fixed_share(f) : 0;
}

/* Activations are recomputed though memory would hold them: the forward pass is computed twice. */
static double recompute_share(const struct train_facts *f)
{
    const struct train_plan *p = &f->plan;
    return p->recompute && p->room_bytes && bytes_kept(p) <= room(p) ? share_of(f, TRAIN_FORWARD) : 0;
}

/* They are recomputed since memory does not hold them. */
static double spilled_share(const struct train_facts *f)
{
    const struct train_plan *p = &f->plan;
    return p->recompute && p->room_bytes && bytes_kept(p) > room(p) ? share_of(f, TRAIN_FORWARD) : 0;
}

static double missing_tokens(const struct train_facts *f)
{
    const struct train_plan *p = &f->plan;
    return p->micro_tokens < p->most_tokens ? 1 - (double)p->micro_tokens / p->most_tokens : 0;
}

static double idle_cores(const struct train_facts *f)
{
    const struct train_plan *p = &f->plan;
    return p->threads > 0 && p->threads < p->cores ? 1 - (double)p->threads / p->cores : 0;
}

static double slowdown(const struct train_facts *f)
{
    return f->clock_ratio > 0 ? 1 - f->clock_ratio : 0;
}

/* ---- gains: the speed when the cause is gone, relative to now ---------------------------------------------------- */

static double all_of(const struct train_facts *f, double share)
{
    (void)f;
    return 1 / (1 - fmin(share, 0.99));
}

static double half_of(const struct train_facts *f, double share)
{
    return all_of(f, share / 2);
}

static double of_computing(const struct train_facts *f, double share)
{
    return all_of(f, share * computing(f));
}

/* Of micro-batches that are as large as they could be. */
static double larger_ones(const struct train_facts *f, double missing)
{
    double tokens = f->plan.micro_tokens, most = tokens / (1 - missing);
    return of_computing(f, 1 - (1 + half_speed(f) / most) / (1 + half_speed(f) / tokens));
}

/* ---- the rules --------------------------------------------------------------------------------------------------- */

/* A rule holds when its figure is above the threshold.  The cause is said as: before, the figure in percent, after.
 * docs/training.md has this table. */
static const struct rule {
    const char *name;
    double (*figure)(const struct train_facts *);
    double above;
    const char *before, *after, *change;
    double (*gain)(const struct train_facts *, double figure);
} rules[] = {
    {"slow data", data_share, 0.10, "getting the rows takes", "of a step",
     "keep the job's directory (--out, of a daemon --data-dir) on a local disk with room in memory, and leave a core "
     "to other work than --threads",
     all_of},
    {"optimizer", optimizer_share, 0.20, "the optimizer takes", "of a step",
     "twice the batch_tokens halve it for each token; with method full: lora has far fewer parameters", half_of},
    {"device idle", other_share, 0.10, "the device stands still for", "of a step, between its parts",
     "raise batch_tokens: fewer steps for the same tokens", all_of},
    {"small batches", small_share, 0.25, "about", "of a step does not depend on its tokens, since batches are small",
     "raise batch_tokens (and learning_rate with it)", all_of},
    {"small micro-batches", split_share, 0.25, "about",
     "of a step does not depend on its tokens, since micro-batches are small",
     "raise micro_tokens or set it to auto, and leave packing on", all_of},
    {"waiting for serving", wait_share, 0.25, "training stands still for", "of a step, while serving has the device",
     "raise --train-slowdown or --train-itl-budget-ms of tandem serve, or train when fewer requests come", all_of},
    {"link between ranks", link_share, 0.20, "it is bound by the link between ranks, which takes", "of a step",
     "raise batch_tokens: a step sends as many bytes for more tokens; with zero 2 or 3 set grad_slots to the number of "
     "ranks, "
     "or zero to 1; or use a faster link, or fewer ranks",
     half_of},
    {"ranks", ranks_share, 0.20, "the first rank waits for slower ones for", "of a step",
     "give each rank as many cores (--bind-to none, --map-by slot:PE=N of mpirun), or start fewer ranks", all_of},
    {"recomputation", recompute_share, 0.10, "activations are recomputed, about",
     "of a step, though memory would hold them", "set recompute to off", all_of},
    {"activations over budget", spilled_share, 0.10, "activations are recomputed, about",
     "of a step, since memory does not hold them", "raise memory_mib if it is set, or lower micro_tokens or max_length",
     all_of},
    {"micro-batches over budget", missing_tokens, 0, "micro-batches have",
     "fewer tokens than they could: memory is short", "raise memory_mib if it is set, or free memory", larger_ones},
    {"few threads", idle_cores, 0, "no thread uses", "of the cores", "leave --threads at 0: one for each core",
     of_computing},
    {"evaluations", eval_share, 0.20, "evaluations take", "of the job", "raise eval_steps, or lower eval_fraction",
     half_of},
    {"checkpoints", checkpoint_share, 0.10, "checkpoints take", "of the job", "raise save_steps, or use a faster disk",
     half_of},
    {"throttled clocks", slowdown, 0.10, "the machine has become", "slower during the run",
     "see tandem doctor for clocks, temperature and power; look for other processes", all_of},
};
enum { N_RULES = sizeof rules / sizeof *rules };
_Static_assert((int)N_RULES <= (int)TRAIN_ADVICE_MAX, "advice");

static int by_gain(const void *a, const void *b)
{
    double x = ((const struct train_advice *)a)->gain, y = ((const struct train_advice *)b)->gain;
    return (x < y) - (x > y);
}

int train_advise(const struct train_facts *f, struct train_advice out[TRAIN_ADVICE_MAX])
{
    int n = 0;
    if (f->usage.steps < TRAIN_STEPS_LEAST || !(f->usage.seconds > 0)) return 0;
    if (f->plan.texts) return 0; /* most of such a step is sampling, which the rules know nothing of */
    for (int i = 0; i < N_RULES; i++) {
        double figure = rules[i].figure(f);
        if (!(figure > rules[i].above)) continue;
        double gain = rules[i].gain(f, figure);
        if (!(gain >= LEAST_GAIN)) continue;
        struct train_advice *a = &out[n++];
        *a = (struct train_advice){.rule = rules[i].name, .change = rules[i].change, .gain = gain};
        snprintf(a->cause, sizeof a->cause, "%s %.0f %% %s", rules[i].before, 100 * figure, rules[i].after);
    }
    qsort(out, (size_t)n, sizeof *out, by_gain);
    return n;
}

void train_advice_text(const struct train_advice *a, char *out, size_t size)
{
    snprintf(out, size, "%s: %s: %s; up to %.2f times the tokens per second", a->rule, a->cause, a->change, a->gain);
}

struct train_facts train_facts_of(const struct train_event *e)
{
    return (struct train_facts){.usage = e->usage, .plan = *e->plan, .clock_ratio = e->usage.speed_ratio};
}
