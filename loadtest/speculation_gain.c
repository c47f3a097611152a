/* What speculation gains and costs: B requests that decode together, with and without it, in turns, on an engine whose
 * loop is turned by hand.
 *
 *   speculation_gain MODEL [BATCH 1] [TOKENS 2000] [ROUNDS 3] [QUANTIZE int8] [THREADS 0] [EVERY 40]
 *
 * MODEL is one of chain_model.py, whose token t is followed by t + 1: so the text is known, and a prompt can be a file
 * that the text repeats with changes.  "edited": the prompt has the text's tokens, but every 40th is another.
 * "hostile": every 4th, so that what the n-grams find is always wrong.  "new": the prompt has nothing of the text.
 * Prints the tokens per second of decoding, the median over the rounds, with `off` and `auto`; the median of their
 * ratios; and how many candidates were computed and right.  The texts are compared. */
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/serve/engine_state.h"
#include "engine/serve/manual_step.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH_MAX = 32, ROUNDS_MAX = 64, TOKENS_MAX = 2000 };
/* token ids: request i has the text FIRST + i * GAP ...; FAR from them are others */
enum { FIRST = 1000, GAP = TOKENS_MAX + 10, FAR = (BATCH_MAX + 1) * GAP };
enum kind { EDITED, HOSTILE, NEW, KINDS };
static const char *const names[KINDS] = {"edited", "hostile", "new"};

struct run {
    struct engine *g;
    int batch, tokens, every;
    int first, done, generated, wrong;
};

struct text {
    int32_t start;
    int n;
};

static void take_events(struct run *r)
{
    struct event_batch *list = engine_events(r->g);
    for (struct event_batch *l = list; l; l = l->next)
        for (int i = 0; i < l->n; i++) {
            struct text *t = l->v[i].user;
            r->done += l->v[i].kind == EV_DONE;
            if (l->v[i].kind != EV_TOKEN) continue;
            r->wrong += l->v[i].token != t->start + ++t->n;
            r->generated++;
            r->first += t->n == 1;
        }
    engine_events_done(r->g, list);
}

/* The prompt of one request: a file, then the token that the text begins after. */
static void fill(const struct run *r, enum kind kind, int32_t start, int32_t *ids)
{
    int every = kind == HOSTILE ? 4 : r->every;
    for (int k = 0; k < r->tokens; k++) ids[k] = start + k + (kind == NEW || k % every == every - 1 ? FAR : 0);
    ids[r->tokens] = start;
}

/* tokens per second, from when all have their first token */
static double one_run(struct run *r, enum kind kind, enum speculate how, struct err *e)
{
    struct text text[BATCH_MAX] = {0};
    int32_t *ids = mem_array((size_t)r->tokens + 1, sizeof *ids);
    r->first = r->done = r->generated = 0;
    r->g->speculate = how;
    for (int i = 0; i < r->batch && !e->code; i++) {
        text[i].start = FIRST + i * GAP;
        fill(r, kind, text[i].start, ids);
        struct gen_request q = {.prompt = ids,
                                .n_prompt = r->tokens + 1,
                                .max_new_tokens = r->tokens,
                                .ignore_eos = true,
                                .sampling = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1},
                                .user = &text[i]};
        engine_submit(r->g, &q, e);
    }
    free(ids);
    while (r->first < r->batch && !e->code) engine_step_once(r->g, false), take_events(r);
    int before = r->generated;
    uint64_t start = clock_now();
    while (r->done < r->batch && !e->code) engine_step_once(r->g, false), take_events(r);
    return (r->generated - before) / ((double)(clock_now() - start) * 1e-9);
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static int number(int argc, char **argv, int i, int otherwise, int max)
{
    int v = argc > i ? atoi(argv[i]) : otherwise;
    return v < 0 ? 0 : v > max ? max : v;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    struct err e = {0};
    struct run r = {.batch = number(argc, argv, 2, 1, BATCH_MAX),
                    .tokens = number(argc, argv, 3, 2000, TOKENS_MAX),
                    .every = number(argc, argv, 7, 40, TOKENS_MAX)};
    int rounds = number(argc, argv, 4, 3, ROUNDS_MAX);
    r.g = engine_open(&(struct engine_config){.model = argv[1],
                                              .quantize = argc > 5 ? argv[5] : "int8",
                                              .threads = number(argc, argv, 6, 0, 1024),
                                              .max_seqs = r.batch,
                                              .no_calibration = true,
                                              .no_prefix_cache = true,
                                              .kv_pages = r.batch * (2 * r.tokens / 16 + 3)},
                      &e);
    for (int kind = 0; r.g && !e.code && kind < KINDS; kind++) {
        static double rate[2][ROUNDS_MAX], ratio[ROUNDS_MAX];
        struct engine_stats before, after;
        engine_stats_read(r.g, &before);
        for (int round = 0; !e.code && round < rounds; round++) {
            for (int on = 0; on < 2; on++)
                rate[on][round] = one_run(&r, (enum kind)kind, on ? SPECULATE_AUTO : SPECULATE_OFF, &e);
            ratio[round] = rate[1][round] / rate[0][round];
        }
        engine_stats_read(r.g, &after);
        if (e.code || !rounds) break;
        double off = median(rate[0], rounds), on = median(rate[1], rounds);
        printf("%-8s batch %d: off %.1f tokens/s, auto %.1f, ratio %.3f; %llu candidates, %llu right, of %d tokens\n",
               names[kind], r.batch, off, on, median(ratio, rounds),
               (unsigned long long)(after.proposed_tokens - before.proposed_tokens),
               (unsigned long long)(after.accepted_tokens - before.accepted_tokens), rounds * r.batch * r.tokens);
        fflush(stdout);
    }
    if (r.wrong) fprintf(stderr, "speculation_gain: %d tokens are not those of the chain\n", r.wrong);
    if (e.code) fprintf(stderr, "speculation_gain: %s\n", e.msg);
    engine_close(r.g);
    return e.code != 0 || r.wrong != 0;
}
