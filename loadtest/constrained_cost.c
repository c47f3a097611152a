/* What constrained output costs: B requests that decode together, free and constrained, in turns, on an engine whose
 * loop is turned by hand.
 *
 *   constrained_cost MODEL [BATCH 16] [TOKENS 64] [ROUNDS 5] [QUANTIZE none] [THREADS 0] [KIND all]
 *
 * Prints tokens per second of each kind of request until the first of them ends, the median over the rounds, what the
 * constraint costs against the free requests of the same rounds, and the longest step after the first tokens.  A
 * logit_bias of nothing keeps tokens from being forced, so that steps have the same work; "forced" is without it.
 * "own": each request has a grammar of its own (nothing is shared, as when every client sends another schema);
 * "shared": one for all; "again": that one once more, so that its states are known, then with forced tokens; "hard":
 * one request's grammar is too hard and works until it ends with an error, the others are free. */
#include "engine/base/clock.h"
#include "engine/serve/manual_step.h"
#include "kernels/rng.h"
#include "tests/grammar/json_grammar.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH_MAX = 256, ROUNDS_MAX = 64, PROMPT = 24 };
enum kind { FREE, OWN, SHARED, AGAIN, FORCED, SHORT, HARD, KINDS };
static const char *const names[KINDS] = {"free",         "json, own",        "json, shared",       "json, again",
                                         "json, forced", "strings<=60, own", "hard one, rest free"};

struct run {
    struct engine *g;
    int batch, tokens;
    int first, done, generated;
    uint64_t longest; /* turn, in ns */
};

static gexpr field(struct grammar_builder *b, const char *name, gexpr value)
{
    char text[64];
    snprintf(text, sizeof text, "\"%s\":", name);
    gexpr v[2] = {json_text(b, text), value};
    return gram_seq(b, v, 2);
}

/* [record, record, ...], too many to end within the run; `longest` characters in a string */
static struct grammar *records(uint32_t longest, struct err *e)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr letter = json_regex(b, "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}");
    gexpr quoted[3] = {json_text(b, "\""), gram_repeat(b, letter, 0, longest), json_text(b, "\"")};
    gexpr string = gram_seq(b, quoted, 3), comma = json_text(b, ",");
    gexpr all[] = {json_text(b, "{"),
                   field(b, "name", string),
                   comma,
                   field(b, "age", json_regex(b, "0|[1-9][0-9]{0,2}")),
                   comma,
                   field(b, "kind", json_regex(b, "\"(cat|dog|bird|no animal at all)\"")),
                   comma,
                   field(b, "tags", json_list(b, "[", string, "]")),
                   json_text(b, "},")};
    gexpr record = gram_seq(b, all, sizeof all / sizeof *all);
    gexpr list[2] = {json_text(b, "["), gram_repeat(b, record, 5000, 6000)};
    struct grammar *g = grammar_build(b, gram_seq(b, list, 2), e);
    grammar_builder_free(b);
    return g;
}

/* ambiguous beyond the limits */
static struct grammar *hard(struct err *e)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = grammar_build(b, json_regex(b, "(([^0]{0,900}){0,900}[^1]){0,900}([^2]{0,900}){900}"), e);
    grammar_builder_free(b);
    return g;
}

static void take_events(struct run *r)
{
    struct event_batch *list = engine_events(r->g);
    for (struct event_batch *l = list; l; l = l->next)
        for (int i = 0; i < l->n; i++) {
            int *n = l->v[i].user;
            if (l->v[i].kind == EV_TOKEN) r->generated++, r->first += (*n)++ == 0;
            if (l->v[i].kind != EV_DONE) continue;
            r->done++;
        }
    engine_events_done(r->g, list);
}

static void turn(struct run *r, int *n)
{
    uint64_t start = clock_now();
    *n = engine_step_once(r->g, *n == 0);
    if (clock_now() - start > r->longest) r->longest = clock_now() - start;
    take_events(r);
}

/* tokens per second, from when all have their first token */
static double one_run(struct run *r, enum kind kind, struct grammar **grammars, int *steps, struct err *e)
{
    int32_t ids[PROMPT];
    int counts[BATCH_MAX] = {0}, n = 1;
    r->first = r->done = r->generated = 0;
    for (int i = 0; i < r->batch; i++) {
        for (int k = 0; k < PROMPT; k++) ids[k] = (int32_t)(rng_at((uint64_t)i, (uint64_t)k) % 1000);
        struct gen_request q = {
            .prompt = ids,
            .n_prompt = PROMPT,
            .max_new_tokens = r->tokens,
            .ignore_eos = true,
            .grammar = kind == FREE ? NULL : grammars[i],
            .sampling =
                {.sample = true, .temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .seed = (uint64_t)i},
            .user = &counts[i]};
        static const struct logit_bias nothing = {0, 0};
        if (kind != FORCED) {
            q.sampling.bias = &nothing;
            q.sampling.n_bias = 1;
        }
        if (kind == HARD && i > 0) q.grammar = NULL;
        if (!engine_submit(r->g, &q, e)) return 0;
    }
    while (r->first < r->batch && !(kind == HARD && r->first == r->batch - 1)) turn(r, &n);
    int before = r->generated;
    uint64_t start = clock_now();
    r->longest = 0;
    for (*steps = 0; r->done <= (kind == HARD); ++*steps) turn(r, &n);
    double rate = (r->generated - before) / ((double)(clock_now() - start) * 1e-9);
    while (r->done < r->batch) turn(r, &n);
    return rate;
}

static int by_value(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

static double median(const double *v, int n)
{
    double copy[ROUNDS_MAX];
    memcpy(copy, v, (size_t)n * sizeof *v);
    qsort(copy, (size_t)n, sizeof *copy, by_value);
    return n % 2 ? copy[n / 2] : (copy[n / 2 - 1] + copy[n / 2]) / 2;
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
    struct run r = {.batch = number(argc, argv, 2, 16, BATCH_MAX), .tokens = number(argc, argv, 3, 64, 100000)};
    int rounds = number(argc, argv, 4, 5, ROUNDS_MAX), steps[KINDS] = {0};
    uint64_t longest[KINDS] = {0};
    r.g = engine_open(&(struct engine_config){.model = argv[1],
                                              .quantize = argc > 5 ? argv[5] : "none",
                                              .threads = number(argc, argv, 6, 0, 1024),
                                              .max_seqs = r.batch,
                                              .max_queue = r.batch + 1,
                                              .kv_pages = r.batch * (r.tokens / 16 + 5)},
                      &e);
    static double rate[KINDS][ROUNDS_MAX], lost[KINDS][ROUNDS_MAX];
    struct grammar *shared[BATCH_MAX], *own[BATCH_MAX] = {NULL}, *one = NULL;
    int only = argc > 7 ? atoi(argv[7]) : -1;
    for (int round = -1; r.g && !e.code && round < rounds; round++) { /* the first warms up */
        one = records(UINT32_MAX, &e);
        for (int kind = 0; kind < KINDS && !e.code; kind++) {
            if (only >= 0 && kind != FREE && kind != only) continue;
            for (int i = 0; i < r.batch; i++) {
                shared[i] = one;
                own[i] = kind == HARD && i == 0 ? hard(&e)
                         : kind == OWN          ? records(UINT32_MAX, &e)
                         : kind == SHORT        ? records(60, &e)
                                                : NULL;
            }
            double v = one_run(&r, kind, kind == OWN || kind == SHORT || kind == HARD ? own : shared, &steps[kind], &e);
            for (int i = 0; i < r.batch; i++) grammar_unref(own[i]);
            if (round < 0) continue;
            rate[kind][round] = v;
            longest[kind] = r.longest > longest[kind] ? r.longest : longest[kind];
            lost[kind][round] = 100 * (rate[FREE][round] / v - 1);
        }
        grammar_unref(one);
    }
    if (e.code) fprintf(stderr, "constrained_cost: %s\n", e.msg);
    for (int kind = 0; !e.code && kind < KINDS; kind++)
        if (rate[kind][0] > 0)
            printf("%-20s batch %d: %8.1f tokens/s, %2d steps, the longest %.2f ms, costs %+.1f %%\n", names[kind],
                   r.batch, median(rate[kind], rounds), steps[kind], (double)longest[kind] * 1e-6,
                   median(lost[kind], rounds));
    engine_close(r.g);
    return e.code != 0;
}
