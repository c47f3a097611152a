#include "engine/train/rollout.h"

#include "engine/base/mem.h"
#include "engine/train/train_state.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_ORDER = 21, STREAM_TEXTS = 22 }; /* random streams of the seed */

/* ---- which prompts ------------------------------------------------------------------------------------------------
 */

static int check_row(const struct dataset *set, uint64_t i, int vocab, struct err *e)
{
    struct dataset_row r = dataset_row(set, i);
    const char *source = dataset_row_source(set, i);
    if (!r.fields)
        return err_set(e, ERR_INVALID, "row of line %u of %.120s: method grpo wants prompts (format prompts)",
                       (unsigned)r.line, source ? source : "the data");
    return train_row_check_ids(&r, i, vocab, e);
}

/* The steps of each epoch, whose last one may have fewer prompts. */
static void schedule(struct train_rows *rows, const struct train_params *p)
{
    int64_t each = (rows->n + (int64_t)p->prompts_per_step - 1) / p->prompts_per_step;
    rows->epochs = (int)ceil(p->epochs);
    rows->before = mem_array((size_t)rows->epochs + 1, sizeof *rows->before);
    rows->whole = mem_array((size_t)rows->epochs, sizeof *rows->whole);
    rows->before[0] = 0;
    for (int i = 0; i < rows->epochs; i++) {
        double part = p->epochs - i;
        rows->whole[i] = each;
        rows->before[i + 1] = rows->before[i] + (part < 1 ? (int64_t)ceil(part * (double)each) : each);
        if (!p->max_steps || rows->before[i + 1] < p->max_steps) continue;
        rows->before[i + 1] = p->max_steps;
        rows->epochs = i + 1;
    }
}

int rollout_rows_open(struct train_rows *rows, const struct train_job *job, const struct train_params *p, int vocab,
                      uint64_t *left_out, struct err *e)
{
    const uint64_t LOOK = 1 << 14;
    uint64_t n = dataset_rows(job->data);
    if (n > UINT32_MAX - 1) return err_set(e, ERR_INVALID, "more than 4 billion rows");
    if (job->eval) return err_set(e, ERR_INVALID, "method grpo has no use for held-out rows: leave `validation` out");
    *rows = (struct train_rows){.set = job->data, .epoch = -1, .max_length = p->max_length};
    rows->index = mem_array(n, sizeof *rows->index);
    for (uint64_t i = 0; i < n; i++) {
        if (i % LOOK == 0 && job->stop && job->stop(job->stop_arg))
            return err_set(e, ERR_FULL, "stopped before it began");
        if (check_row(job->data, i, vocab, e)) return e->code;
        if (dataset_row(job->data, i).n >= p->max_length) {
            ++*left_out;
            continue;
        }
        rows->index[rows->n++] = (uint32_t)i;
        rows->tokens += ((uint64_t)dataset_row(job->data, i).n + (uint64_t)p->max_new_tokens) * (uint64_t)p->samples;
    }
    if (!rows->n)
        return err_set(e, ERR_INVALID, "no prompt leaves room for an answer within max_length %d", p->max_length);
    schedule(rows, p);
    return 0;
}

struct keyed {
    uint64_t key;
    uint32_t row;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    return x->key != y->key ? x->key < y->key ? -1 : 1 : (x->row > y->row) - (x->row < y->row);
}

/* The order of the epoch's prompts, a function of the seed. */
static void shuffle(struct train *t, int epoch)
{
    struct rollout *r = &t->rollout;
    uint32_t n = t->rows.n;
    if (r->order && r->epoch == epoch) return;
    if (!r->order) r->order = mem_array(n, sizeof *r->order);
    struct keyed *v = mem_array(n, sizeof *v);
    uint64_t seed = rng_at(t->p.seed, (uint64_t)STREAM_ORDER << 48 | (uint64_t)epoch);
    for (uint32_t i = 0; i < n; i++) v[i] = (struct keyed){rng_at(seed, i), i};
    qsort(v, n, sizeof *v, by_key);
    for (uint32_t i = 0; i < n; i++) r->order[i] = v[i].row;
    free(v);
    r->epoch = epoch;
}

/* ---- the texts of a step ------------------------------------------------------------------------------------------
 */

static void free_texts(struct rollout *r)
{
    for (int i = 0; i < r->task.n; i++) {
        free(r->task.text[i].id);
        free(r->task.text[i].logprob);
        free(r->reference[i]);
    }
    free(r->task.text);
    free(r->advantage);
    free(r->reference);
    r->task = (struct train_rollout){0};
    r->advantage = NULL;
    r->reference = NULL;
}

void rollout_free(struct rollout *r)
{
    free_texts(r);
    free(r->order);
    *r = (struct rollout){0};
}

static struct train_text text_of(const struct train *t, uint32_t row, uint64_t seed)
{
    struct dataset_row prompt = dataset_row(t->rows.set, row);
    int room = t->p.max_length - prompt.n;
    if (room > t->p.max_new_tokens) room = t->p.max_new_tokens;
    struct train_text x = {.row = row, .seed = seed, .n_prompt = prompt.n, .room = room};
    x.id = mem_array((size_t)prompt.n + (size_t)room, sizeof *x.id);
    x.logprob = mem_array((size_t)room, sizeof *x.logprob);
    memcpy(x.id, prompt.id, (size_t)prompt.n * sizeof *x.id);
    return x;
}

static void choose(struct train *t)
{
    struct rollout *r = &t->rollout;
    int epoch = train_rows_epoch(&t->rows, t->st.step);
    int64_t first = (t->st.step - t->rows.before[epoch]) * t->p.prompts_per_step, rest = t->rows.n - first;
    int prompts = rest < t->p.prompts_per_step ? (int)rest : t->p.prompts_per_step;
    uint64_t seed = rng_at(t->p.seed, (uint64_t)STREAM_TEXTS << 48 | (uint64_t)t->st.step);
    free_texts(r);
    shuffle(t, epoch);
    r->task = (struct train_rollout){.train = t,
                                     .step = t->st.step,
                                     .temperature = t->p.temperature,
                                     .n = prompts * t->p.samples,
                                     .samples = t->p.samples};
    r->task.text = mem_array((size_t)r->task.n, sizeof *r->task.text);
    r->advantage = mem_array((size_t)r->task.n, sizeof *r->advantage);
    r->reference = mem_array((size_t)r->task.n, sizeof *r->reference);
    for (int i = 0; i < r->task.n; i++) {
        uint32_t row = t->rows.index[r->order[first + i / t->p.samples]];
        r->task.text[i] = text_of(t, row, rng_at(seed, (uint64_t)i));
        r->reference[i] = NULL;
    }
}

/* What was sampled becomes advantages. */
static int judge(struct train *t, struct err *e)
{
    struct rollout *r = &t->rollout;
    int n = r->task.n;
    double *reward = mem_array((size_t)n, sizeof *reward), truncated = 0;
    r->rewards = train_no_rewards;
    r->tokens = 0;
    for (int i = 0; i < n; i++) {
        const struct train_text *x = &r->task.text[i];
        reward[i] = x->reward;
        r->tokens += x->n;
        truncated += x->truncated;
        if (!isfinite(x->reward)) err_set(e, ERR_INVALID, "a reward is not a finite number");
    }
    if (!e->code)
        grpo_advantages(reward, n / r->task.samples, r->task.samples, t->p.scale_rewards, r->advantage, &r->rewards);
    r->rewards.length = (double)r->tokens / n;
    r->rewards.truncated = truncated / n;
    free(reward);
    return e->code;
}

int rollout_sample(struct train *t, struct err *e)
{
    if (!t->job.rollout) return err_set(e, ERR_UNSUPPORTED, "method grpo needs an engine that samples texts");
    choose(t);
    t->seen = TRAIN_GO_ON;
    scheduler_gate_leave(t->gate); /* serving has the device meanwhile */
    if (t->job.rollout(t->job.rollout_arg, &t->rollout.task, e)) return e->code;
    return judge(t, e);
}

bool train_stopped(struct train *t)
{
    int c = atomic_load(&t->command);
    if (c != TRAIN_GO_ON) t->seen = c;
    return t->seen != TRAIN_GO_ON;
}

struct adapter *train_adapter(struct train *t, struct err *e)
{
    scheduler_gate_pass(t->gate);
    if (t->host[0] != t->o.p) chunked_download(train_chunks(t), t->host[0], t->o.p, t->o.n);
    t->d->ops->finish(t->d);
    bool failed = train_device_failed(t, e);
    scheduler_gate_leave(t->gate);
    return failed ? NULL : train_lora_adapter(&t->lora, t->host[0]);
}

/* ---- their gradients ----------------------------------------------------------------------------------------------
 */

static bool is_trained(const struct train *t, int i)
{
    const struct train_text *x = &t->rollout.task.text[i];
    if (!x->n || (x->truncated && t->p.mask_truncated)) return false;
    return t->rollout.advantage[i] != 0 || t->p.beta > 0;
}

/* The token behind target `at` of the micro-batch, which is of text i. */
static struct grpo_value value_of(const struct train *t, const struct micro *b, int seq, int at, const float *loss)
{
    const struct rollout *r = &t->rollout;
    int i = (int)b->seq[seq].row, k = at - b->seq[seq].target;
    struct grpo_token x = {.now = -(double)loss[at],
                           .sampled = (double)r->task.text[i].logprob[k],
                           .reference = r->reference[i] ? (double)r->reference[i][k] : 0,
                           .advantage = r->advantage[i]};
    return grpo_value(&t->p, &x);
}

static double share_of(const struct train *t, uint32_t i)
{
    const struct rollout *r = &t->rollout;
    return grpo_share(&t->p, r->task.text[i].n, r->task.n, r->tokens);
}

void rollout_weigh(void *arg, const struct micro *b, const float *loss, float *factor)
{
    const struct train *t = arg;
    for (int s = 0; s < b->n_seqs; s++) {
        double share = share_of(t, b->seq[s].row);
        for (int at = b->seq[s].target; at < b->seq[s + 1].target; at++)
            factor[at] = (float)(share * value_of(t, b, s, at, loss).d);
    }
}

/* The base's log-probabilities: the same forward pass without adapters. */
static int find_reference(struct train *t, const struct micro *b, struct err *e)
{
    struct rollout *r = &t->rollout;
    const struct site *site = t->tm.site, *of_experts = t->tm.experts.site;
    if (!(t->p.beta > 0) || r->reference[b->seq[0].row]) return 0;
    t->tm.site = t->tm.experts.site = NULL;
    train_model_run(&t->tm, b, false, 1);
    t->tm.site = site;
    t->tm.experts.site = of_experts;
    if (train_device_failed(t, e)) return e->code;
    for (int s = 0; s < b->n_seqs; s++) {
        int from = b->seq[s].target, n = b->seq[s + 1].target - from;
        float *v = r->reference[b->seq[s].row] = mem_array((size_t)n, sizeof *v);
        for (int k = 0; k < n; k++) v[k] = -t->tm.host_loss[from + k];
    }
    return 0;
}

static void add(struct train *t, const struct micro *b, int64_t hits, struct rollout_sums *sum)
{
    for (int s = 0; s < b->n_seqs; s++) {
        double share = share_of(t, b->seq[s].row);
        for (int at = b->seq[s].target; at < b->seq[s + 1].target; at++) {
            struct grpo_value v = value_of(t, b, s, at, t->tm.host_loss);
            sum->loss += share * v.loss;
            sum->kl += v.kl;
            sum->clipped += v.clipped;
        }
    }
    sum->hits += hits;
    sum->tokens += b->n_targets;
    sum->computed += b->n_tokens;
    sum->micro_batches++;
}

/* The texts from i on that fit into one micro-batch.  @return the next one. */
static int fill(struct train *t, int i, bool first)
{
    struct micro *b = &t->micro;
    const struct train_text *x = t->rollout.task.text;
    micro_clear(b);
    for (; i < t->rollout.task.n; i++) {
        int length = x[i].n_prompt + x[i].n - 1;
        if (!is_trained(t, i)) continue;
        if (b->n_tokens && b->n_tokens + length > t->tm.max_tokens) break;
        micro_add_text(b, x[i].id, first ? x[i].logprob : NULL, x[i].n_prompt, x[i].n_prompt + x[i].n, (uint32_t)i);
    }
    micro_end(b);
    return i;
}

int rollout_gradients(struct train *t, bool first, struct rollout_sums *sum, struct err *e)
{
    for (int i = 0; i < t->rollout.task.n;) {
        if (first && train_stopped(t)) return err_set(e, ERR_FULL, "stopped");
        i = fill(t, i, first);
        if (!t->micro.n_tokens) break;
        step_clock_read(t->tm.clock, TRAIN_DATA);
        if (find_reference(t, &t->micro, e)) return e->code;
        struct train_loss l = train_model_run(&t->tm, &t->micro, true, 1);
        step_clock_read(t->tm.clock, TRAIN_BACKWARD);
        if (train_device_failed(t, e)) return e->code;
        add(t, &t->micro, l.hits, sum);
    }
    return 0;
}

struct train_rewards rollout_rewards(const struct train *t, const struct rollout_sums *sum)
{
    struct train_rewards r = t->rollout.rewards;
    if (t->p.beta > 0 && sum->tokens) r.kl = sum->kl / (double)sum->tokens;
    r.clipped = sum->tokens ? (double)sum->clipped / (double)sum->tokens : 0;
    return r;
}
