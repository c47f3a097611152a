#include "engine/train/rows.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/train/params.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdlib.h>

enum { STREAM_HELD_OUT = 7 }; /* random stream of the seed */

/* ---- selection --------------------------------------------------------------------------------------------------- */

/* @return the number of the sequence's targets within max_length tokens, 0: none; and the position of the last one. */
static uint32_t look_at(const struct dataset_row *r, int max_length, uint32_t *last)
{
    int n = r->n < max_length ? r->n : max_length;
    uint32_t count = 0;
    *last = 0;
    for (int i = 1; i < n; i++)
        if (r->trained[i]) count++, *last = (uint32_t)i;
    return count;
}

/* The tokens of a sequence up to that where its score is read.  transformers has the last one that is no pad, which of
 * models that use the end of a text as pad is the one before it. */
static uint32_t scored_length(const struct train_rows *to, const struct dataset_row *r)
{
    int n = r->n < to->max_length ? r->n : to->max_length;
    while (n > 1 && r->id[n - 1] == to->pad) n--;
    return (uint32_t)n;
}

/* The number of targets of a row, of a pair of both sequences together, 0: none; its length, and of a pair that of the
 * first one. */
static uint32_t look(const struct train_rows *to, const struct dataset_row *r, uint32_t *length, uint32_t *chosen)
{
    *chosen = 0;
    if (!r->second) return look_at(r, to->max_length, length);
    struct dataset_row a = dataset_row_answer(r, false), b = dataset_row_answer(r, true);
    uint32_t second, n_a = look_at(&a, to->max_length, chosen), n_b = look_at(&b, to->max_length, &second);
    if (to->scores && n_a && n_b) {
        *chosen = scored_length(to, &a);
        *length = *chosen + scored_length(to, &b);
        return 2;
    }
    *length = *chosen + second;
    return n_a && n_b ? n_a + n_b : 0;
}

/* Targets of a pair whose chosen prompt counts: all tokens of the chosen sequence but the first. */
static uint32_t trained_with_prompt(const struct train_rows *r, uint32_t row, uint32_t chosen, uint32_t trained)
{
    struct dataset_row pair = dataset_row(r->set, row), a = dataset_row_answer(&pair, false);
    uint32_t last;
    return trained - look_at(&a, r->max_length, &last) + chosen;
}

static void take(struct train_rows *to, uint32_t row, uint32_t length, uint32_t chosen, uint32_t trained)
{
    if (to->texts) trained = trained_with_prompt(to, row, chosen, trained);
    to->index[to->n] = row;
    to->chosen[to->n] = chosen;
    to->length[to->n] = length;
    to->trained[to->n++] = trained;
    to->tokens += length;
    to->targets += trained;
}

static void reserve(struct train_rows *r, const struct dataset *set, size_t n, const struct train_params *p,
                    int32_t pad)
{
    *r = (struct train_rows){.set = set, .epoch = -1, .max_length = p->max_length, .pad = pad};
    r->index = mem_array(n, sizeof *r->index);
    r->length = mem_array(n, sizeof *r->length);
    r->trained = mem_array(n, sizeof *r->trained);
    r->chosen = mem_array(n, sizeof *r->chosen);
    r->texts = p->method == TRAIN_ORPO;
    r->scores = p->method == TRAIN_REWARD;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int stopped(const struct train_job *job, struct err *e)
{
    return job->stop && job->stop(job->stop_arg) ? err_set(e, ERR_FULL, "stopped before it began") : 0;
}

/* Pairs are for methods that train on them, labels for kto. */
static int check_kind(const struct dataset *set, uint64_t i, const struct dataset_row *r, enum train_method m,
                      struct err *e)
{
    bool singles = m == TRAIN_KTO, pairs = train_on_preferences(m) && !singles;
    const char *wrong = pairs && !r->second    ? "this method trains on pairs, and it has no rejected answer"
                        : singles && !r->label ? "method kto trains on answers with a label, and it has none"
                        : r->fields            ? "a prompt, which method grpo trains on"
                        : !pairs && r->second
                            ? "a pair of preferences, which methods dpo, orpo, simpo and reward train on"
                        : !singles && r->label ? "its label is for method kto"
                                               : NULL;
    const char *source = dataset_row_source(set, i);
    if (!wrong) return 0;
    return err_set(e, ERR_INVALID, "row of line %u of %.120s: %s", (unsigned)r->line, source ? source : "the data",
                   wrong);
}

int train_row_check_ids(const struct dataset_row *r, uint64_t i, int vocab, struct err *e)
{
    for (int k = 0; k < r->n; k++)
        if (r->id[k] < 0 || r->id[k] >= vocab)
            return err_set(e, ERR_INVALID, "row %llu has the token id %d; the model has 0 to %d",
                           (unsigned long long)i + 1, (int)r->id[k], vocab - 1);
    return 0;
}

static int check_ids(const struct dataset *set, const struct train_job *job, int vocab, struct err *e)
{
    const uint64_t LOOK = 1 << 14;
    for (uint64_t i = 0, n = dataset_rows(set); i < n; i++) {
        struct dataset_row r = dataset_row(set, i);
        if (i % LOOK == 0 && stopped(job, e)) return e->code;
        if (check_kind(set, i, &r, job->p.method, e)) return e->code;
        if (train_row_check_ids(&r, i, vocab, e)) return e->code;
    }
    return 0;
}

/* Adds every row of the set to `to`, except a fraction of the trainable ones, those with the smallest random numbers,
 * which go to `held`.  A row that is there several times, because sets are mixed, goes there with all of them. */
static uint64_t split(struct train_rows *to, struct train_rows *held, double fraction, const struct train_params *p)
{
    const struct dataset *set = to->set;
    uint64_t rows = dataset_rows(set), left_out = 0, limit = 0;
    uint64_t seed = rng_at(p->seed, STREAM_HELD_OUT), *key = NULL, n = 0, want = 0;
    if (fraction > 0) key = mem_array(rows, sizeof *key);
    for (uint64_t i = 0; key && i < rows; i++) {
        struct dataset_row r = dataset_row(set, i);
        uint32_t last, chosen;
        if (look(to, &r, &last, &chosen)) key[n++] = rng_at(seed, dataset_row_origin(set, i));
    }
    if (key && n) {
        want = (uint64_t)llround(fraction * (double)n);
        want = want < 1 ? 1 : want > n - 1 ? n - 1 : want;
        qsort(key, n, sizeof *key, by_key);
        limit = want ? key[want - 1] : 0;
    }
    for (uint64_t i = 0; i < rows; i++) {
        struct dataset_row r = dataset_row(set, i);
        uint32_t last, chosen, trained = look(to, &r, &last, &chosen);
        bool out = want && rng_at(seed, dataset_row_origin(set, i)) <= limit;
        if (!trained)
            left_out++;
        else
            take(out ? held : to, (uint32_t)i, last, chosen, trained);
    }
    free(key);
    return left_out;
}

/* ---- schedule ---------------------------------------------------------------------------------------------------- */

/* The number of steps of an epoch depends on its order, so each epoch is shuffled once to count them. */
static int schedule(struct train_rows *t, const struct train_params *p, const struct train_job *job, struct err *e)
{
    t->epochs = (int)ceil(p->epochs);
    t->before = mem_array((size_t)t->epochs + 1, sizeof *t->before);
    t->whole = mem_array((size_t)t->epochs, sizeof *t->whole);
    for (int i = 0; i < t->epochs; i++) {
        if (stopped(job, e)) return e->code;
        int64_t steps = t->whole[i] = microbatches_epoch(t->batches, (uint32_t)i);
        double part = p->epochs - i;
        if (part < 1) steps = (int64_t)ceil(part * (double)steps);
        t->before[i + 1] = t->before[i] + steps;
        t->epoch = i;
        if (p->max_steps && t->before[i + 1] >= p->max_steps) {
            t->before[i + 1] = p->max_steps;
            t->epochs = i + 1;
        }
    }
    return 0;
}

int train_rows_open(struct train_rows *train, struct train_rows *eval, const struct train_job *job,
                    const struct train_params *p, int vocab, int32_t pad, uint64_t *left_out, struct err *e)
{
    uint64_t n = dataset_rows(job->data), n_eval = job->eval ? dataset_rows(job->eval) : n;
    if (n > UINT32_MAX - 1 || n_eval > UINT32_MAX - 1) return err_set(e, ERR_INVALID, "more than 4 billion rows");
    int rc = check_ids(job->data, job, vocab, e);
    if (!rc && job->eval && (rc = check_ids(job->eval, job, vocab, e))) err_prefix(e, "evaluation data");
    if (rc) return rc;
    reserve(train, job->data, n, p, pad);
    reserve(eval, job->eval ? job->eval : job->data, job->eval || p->eval_fraction > 0 ? n_eval : 0, p, pad);
    *left_out = split(train, eval, job->eval ? 0 : p->eval_fraction, p);
    if (job->eval) *left_out += split(eval, eval, 0, p);
    if (!train->n) return err_set(e, ERR_INVALID, "no row has a token to train on within max_length %d", p->max_length);
    struct microbatches_options o = {.seed = p->seed,
                                     .batch_tokens = p->batch_tokens,
                                     .micro_tokens = train_unit_tokens(p),
                                     .packing = p->packing,
                                     .by_length = p->group_by_length,
                                     .slots = p->grad_slots};
    train->batches = microbatches_new(train->length, train->n, &o);
    rc = schedule(train, p, job, e);
    if (rc || !eval->n) return rc;
    o.in_order = true;
    eval->batches = microbatches_new(eval->length, eval->n, &o);
    eval->epochs = 1;
    eval->before = mem_array(2, sizeof *eval->before);
    eval->before[1] = microbatches_epoch(eval->batches, 0);
    eval->epoch = 0;
    return 0;
}

void train_rows_close(struct train_rows *r)
{
    free(r->index);
    free(r->length);
    free(r->trained);
    free(r->chosen);
    free(r->before);
    free(r->whole);
    microbatches_free(r->batches);
    *r = (struct train_rows){0};
}

int train_rows_epoch(const struct train_rows *r, int64_t step)
{
    int low = 0, high = r->epochs - 1; /* finds the last epoch that begins at or before the step */
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (r->before[mid] <= step)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

struct microbatches_step train_rows_step(struct train_rows *r, int64_t step)
{
    int epoch = train_rows_epoch(r, step);
    CHECK(step >= 0 && step < r->before[r->epochs]);
    if (epoch != r->epoch) microbatches_epoch(r->batches, (uint32_t)epoch);
    r->epoch = epoch;
    return microbatches_step(r->batches, (uint32_t)(step - r->before[epoch]));
}

int64_t train_rows_targets(const struct train_rows *r, const struct microbatches_step *s)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) n += r->trained[s->row[i]];
    return n;
}

int64_t train_rows_chosen(const struct train_rows *r, const struct microbatches_step *s)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < s->n_rows; i++) n += r->chosen[s->row[i]];
    return n;
}

/* ---- prompts with the answers of others ------------------------------------------------------------------------- */

/* The number of tokens before the row's answer. */
static int prompt_of(const struct dataset_row *r)
{
    int n = 1;
    while (n < r->n && !r->trained[n]) n++;
    return n;
}

int train_rows_crossed(const struct train_rows *r, uint32_t prompt, uint32_t answer)
{
    struct dataset_row a = dataset_row(r->set, r->index[prompt]), b = dataset_row(r->set, r->index[answer]);
    int n = prompt_of(&a) + (int)r->length[answer] + 1 - prompt_of(&b);
    return (n < r->max_length ? n : r->max_length) - 1;
}

int train_rows_crossed_max(const struct train_rows *r)
{
    int prompt = 0, answer = 0;
    for (uint32_t i = 0; i < r->n; i++) {
        struct dataset_row row = dataset_row(r->set, r->index[i]);
        int n = prompt_of(&row), rest = (int)r->length[i] + 1 - n;
        if (n > prompt) prompt = n;
        if (rest > answer) answer = rest;
    }
    return (prompt + answer < r->max_length ? prompt + answer : r->max_length) - 1;
}

/* ---- a micro-batch ----------------------------------------------------------------------------------------------- */

void micro_open(struct micro *m, int max_tokens, int near_len)
{
    *m = (struct micro){.near_len = near_len};
    size_t n = (size_t)max_tokens + 1;
    int32_t **arrays[] = {&m->id, &m->pos, &m->q_start, &m->row, &m->target, &m->unit, &m->unit_target};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) *arrays[i] = mem_array(n, sizeof(int32_t));
    m->sampled = mem_array(n, sizeof *m->sampled);
    m->seq = mem_array(n, sizeof *m->seq);
    m->answer = mem_array(n, 1);
}

void micro_uniform(struct micro *m, int n_tokens, int len)
{
    m->n_tokens = m->n_targets = m->unit[1] = m->unit_target[1] = n_tokens;
    m->n_units = 1;
    m->unit[0] = m->unit_target[0] = 0;
    m->n_seqs = (n_tokens + len - 1) / len;
    for (int i = 0; i <= m->n_seqs; i++) m->q_start[i] = i * len < n_tokens ? i * len : n_tokens;
}

void micro_close(struct micro *m)
{
    int32_t *arrays[] = {m->id, m->pos, m->q_start, m->row, m->target, m->unit, m->unit_target};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(m->weight);
    free(m->sampled);
    free(m->seq);
    free(m->answer);
    *m = (struct micro){0};
}

int train_rows_tokens(const struct train_rows *r, const struct microbatches_step *s, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t k = s->start[i]; k < s->start[i + 1]; k++) n += r->length[s->row[k]];
    return (int)n;
}

/* Appends a sequence whose last token has a score. */
static void add_scored(struct micro *m, const struct train_rows *r, const struct dataset_row *row, uint32_t length,
                       struct micro_seq of)
{
    int first = rope_first_row(m->near_len, row->n < r->max_length ? row->n : r->max_length), t = m->n_tokens;
    of.target = m->n_targets;
    m->seq[m->n_seqs] = of;
    m->q_start[m->n_seqs++] = t;
    for (int at = 0; at < (int)length; at++, t++) {
        m->id[t] = row->id[at];
        m->pos[t] = first + at;
    }
    m->row[m->n_targets] = t - 1;
    m->answer[m->n_targets] = 1;
    m->sampled[m->n_targets] = NAN;
    m->target[m->n_targets++] = row->id[length - 1];
    m->q_start[m->n_seqs] = m->n_tokens = t;
    m->seq[m->n_seqs].target = m->n_targets;
}

/* Appends a sequence that is one of a row's, or the row: `length` tokens and the one that they predict last.  With
 * prompt, that is predicted, too. */
static void add_sequence(struct micro *m, const struct train_rows *r, const struct dataset_row *row, uint32_t length,
                         struct micro_seq of, bool prompt)
{
    int first = rope_first_row(m->near_len, row->n < r->max_length ? row->n : r->max_length), t = m->n_tokens;
    of.target = m->n_targets;
    of.undesirable = row->label == DATASET_UNDESIRABLE;
    m->seq[m->n_seqs] = of;
    m->q_start[m->n_seqs++] = t;
    for (int at = 0; at < (int)length; at++, t++) {
        m->id[t] = row->id[at];
        m->pos[t] = first + at;
        if (!row->trained[at + 1] && !prompt) continue;
        m->row[m->n_targets] = t;
        m->answer[m->n_targets] = row->trained[at + 1];
        m->sampled[m->n_targets] = row->logprob ? row->logprob[at + 1] : NAN;
        m->n_sampled += !isnan(m->sampled[m->n_targets]);
        m->target[m->n_targets++] = row->id[at + 1];
    }
    m->q_start[m->n_seqs] = m->n_tokens = t;
    m->seq[m->n_seqs].target = m->n_targets;
}

void micro_add(struct micro *m, const struct train_rows *r, uint32_t which)
{
    struct dataset_row row = dataset_row(r->set, r->index[which]), rejected;
    struct micro_seq of = {.row = which};
    if (!row.second) {
        add_sequence(m, r, &row, r->length[which], of, false);
        return;
    }
    rejected = dataset_row_answer(&row, true);
    row = dataset_row_answer(&row, false);
    if (r->scores) {
        add_scored(m, r, &row, r->chosen[which], of);
        add_scored(m, r, &rejected, r->length[which] - r->chosen[which], of);
        return;
    }
    add_sequence(m, r, &row, r->chosen[which], of, r->texts);
    add_sequence(m, r, &rejected, r->length[which] - r->chosen[which], of, false);
}

void micro_add_text(struct micro *m, const int32_t *id, const float *logprob, int n_prompt, int n, uint32_t number)
{
    int first = rope_first_row(m->near_len, n), t = m->n_tokens;
    m->seq[m->n_seqs] = (struct micro_seq){.target = m->n_targets, .row = number};
    m->q_start[m->n_seqs++] = t;
    for (int at = 0; at + 1 < n; at++, t++) {
        m->id[t] = id[at];
        m->pos[t] = first + at;
        if (at + 1 < n_prompt) continue;
        m->row[m->n_targets] = t;
        m->answer[m->n_targets] = 1;
        m->sampled[m->n_targets] = logprob ? logprob[at + 1 - n_prompt] : NAN;
        m->n_sampled += logprob != NULL;
        m->target[m->n_targets++] = id[at + 1];
    }
    m->q_start[m->n_seqs] = m->n_tokens = t;
    m->seq[m->n_seqs].target = m->n_targets;
}

void micro_add_crossed(struct micro *m, const struct train_rows *r, uint32_t prompt, uint32_t answer, uint32_t number)
{
    struct dataset_row a = dataset_row(r->set, r->index[prompt]), b = dataset_row(r->set, r->index[answer]);
    int n = train_rows_crossed(r, prompt, answer) + 1, head = prompt_of(&a), skip = prompt_of(&b);
    int32_t *id = mem_array((size_t)n, sizeof *id);
    uint8_t *trained = mem_array((size_t)n, 1);
    for (int i = 0; i < n; i++) {
        id[i] = i < head ? a.id[i] : b.id[skip + i - head];
        trained[i] = i >= head && b.trained[skip + i - head];
    }
    struct dataset_row row = {.id = id, .trained = trained, .n = n};
    add_sequence(m, r, &row, (uint32_t)n - 1, (struct micro_seq){.row = number}, false);
    free(id);
    free(trained);
}

void micro_clear(struct micro *m)
{
    m->n_seqs = m->n_targets = m->n_tokens = m->n_units = m->n_sampled = 0;
    m->first = 0;
}

static void begin_unit(struct micro *m)
{
    m->unit[m->n_units] = m->n_tokens;
    m->unit_target[m->n_units++] = m->n_targets;
}

void micro_end(struct micro *m)
{
    m->unit[0] = m->unit_target[0] = 0;
    m->unit[1] = m->n_tokens;
    m->unit_target[1] = m->n_targets;
    m->n_units = 1;
}

void micro_fill(struct micro *m, const struct train_rows *r, const struct microbatches_step *s, uint32_t from,
                uint32_t to, uint64_t before)
{
    micro_clear(m);
    m->first = before;
    for (uint32_t i = from; i < to; i++) {
        begin_unit(m);
        for (uint32_t k = s->start[i]; k < s->start[i + 1]; k++) micro_add(m, r, s->row[k]);
    }
    m->unit[m->n_units] = m->n_tokens;
    m->unit_target[m->n_units] = m->n_targets;
}
