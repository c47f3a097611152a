/* What quantisation costs: perplexity and KL divergence against the unquantised model, on held-out text, and the size
 * in bits per weight, side by side for every way of rounding.
 *
 *   quality_test MODEL_DIR TEXT_FILE [DEVICE STORIES]
 *
 * The first STORIES stories of the text are measured; what follows them calibrates the last variant.  Bounds:
 * perplexity within 0.5 % (int8) and 5 % (int4) of the unquantised model's at 8.5 and 4.6 bits per weight, everything
 * that is kept in memory for the weights counted; each way of rounding nearer to the model than the simpler one at the
 * same bits, by KL divergence (the perplexity of a text this short can fall by chance).
 *
 * With a device: the first so many stories, on the cpu and on that device, both against the unquantised model on the
 * cpu.  The device may cost a tenth more than the cpu does, and what rounding activations to bf16 costs. */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/bench/eval.h"
#include "engine/model/quantize.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WINDOW = 512, STORIES = 40, VARIANTS = 10, DEVICE_VARIANTS = 7 }; /* tokens of a story looked at; stories */

static const double ROUNDING = 2e-4; /* KL divergence by activations in bf16 */

struct variant {
    const char *name, *quantize, *kv;
    bool no_calibration, from_file; /* from_file: tandem quantize --calibrate, then loaded */
    double worse, bits;             /* allowed: relative rise of the perplexity, bits per weight */
    int better_than;                /* the variant whose KL divergence must be larger; 0: none */
};

static const struct variant variants[VARIANTS] = {
    {"as the file has it", "none", "f32", false, false, 0, 64, 0},
    {"int8 to nearest", "int8-nearest", "f16", false, false, 0.005, 8.5, 0},
    {"int8", "int8", "f16", false, false, 0.005, 8.5, 1},
    {"int4 to nearest", "int4-nearest", "f16", false, false, 0.15, 4.6, 0},
    {"int4 least squares", "int4", "f16", true, false, 0.07, 4.6, 3},
    {"int4", "int4", "f16", false, false, 0.05, 4.6, 4},
    {"int4 calibrated with text", "int4", "f16", false, true, 0.05, 4.6, 4},
    {"nf4", "nf4", "f16", false, false, 0.07, 64, 0}, /* the head stays in floats */
    {"KV cache int8", "none", "int8", false, false, 0.005, 64, 0},
    {"KV cache f16", "none", "f16", false, false, 0.001, 64, 0},
};

/* not calibrated: the calibration is the engine's, not the device's */
static const struct variant on_device[DEVICE_VARIANTS] = {
    {"floats", "none", "f32", false, false, 0, 0, 0},  {"int8", "int8", "f32", true, false, 0, 0, 0},
    {"int4", "int4", "f32", true, false, 0, 0, 0},     {"nf4", "nf4", "f32", true, false, 0, 0, 0},
    {"KV bf16", "none", "bf16", true, false, 0, 0, 0}, {"KV f16", "none", "f16", true, false, 0, 0, 0},
    {"KV int8", "none", "int8", true, false, 0, 0, 0},
};

struct story {
    int32_t ids[WINDOW];
    int n;
    float *want; /* (n, V) log-probabilities of the unquantised model */
};

struct run {
    const struct story *story;
    int vocab;
    bool is_reference;
    double nll, kl, kl2;
    int tokens, rows, top1;
};

static double log_sum(const float *l, int n)
{
    float top = l[0];
    double sum = 0;
    for (int i = 1; i < n; i++) top = l[i] > top ? l[i] : top;
    for (int i = 0; i < n; i++) sum += exp((double)(l[i] - top));
    return top + log(sum);
}

static void take_row(void *arg, int pos, const float *l)
{
    struct run *r = arg;
    const struct story *s = r->story;
    float *want = s->want + (size_t)pos * (size_t)r->vocab;
    double z = log_sum(l, r->vocab), kl = 0;
    int top = 0, want_top = 0;
    if (pos + 1 < s->n) r->nll += z - l[s->ids[pos + 1]], r->tokens++;
    if (r->is_reference)
        for (int i = 0; i < r->vocab; i++) want[i] = (float)(l[i] - z);
    for (int i = 0; i < r->vocab; i++) {
        kl += exp((double)want[i]) * (want[i] - (l[i] - z));
        if (l[i] > l[top]) top = i;
        if (want[i] > want[want_top]) want_top = i;
    }
    r->kl += kl;
    r->kl2 += kl * kl;
    r->rows++;
    r->top1 += top == want_top;
}

static void die(const struct err *e)
{
    fprintf(stderr, "%s\n", e->msg);
    exit(1);
}

static struct eval *open_variant(const char *model, const struct variant *v, const char *text, const char *device)
{
    struct err e = {0};
    struct engine_config c = {.model = model,
                              .device = device,
                              .quantize = v->quantize,
                              .kv_type = v->kv,
                              .no_calibration = v->no_calibration};
    char dir[] = "/tmp/tandem-quality-XXXXXX", remove[64];
    if (v->from_file) {
        if (!mkdtemp(dir)) perror(dir), exit(1);
        struct quantize_text with = {text, strlen(text)};
        struct quantize_options how = {.type = v->quantize, .calibrate = &with};
        if (quantize_model(model, dir, &how, &e)) die(&e);
        c.model = dir, c.quantize = "none";
    }
    struct eval *got = eval_open(&c, &e);
    if (!got) die(&e);
    if (v->from_file) { /* what is mapped stays */
        snprintf(remove, sizeof remove, "rm -r %s", dir);
        if (system(remove)) fprintf(stderr, "%s is left behind\n", dir);
    }
    return got;
}

/* one story, with the tokens the model expects before it */
static void encode_story(const struct eval *v, const char *text, size_t n, struct story *s)
{
    struct tokens t = {0};
    struct err e;
    if (tokenizer_encode(eval_tokenizer(v), text, n, TOKENIZE_SPECIAL, &t, &e)) die(&e);
    s->n = t.n < WINDOW ? (int)t.n : WINDOW;
    for (int i = 0; i < s->n; i++) s->ids[i] = t.v[i].id;
    s->want = mem_array((size_t)s->n * (size_t)eval_vocab(v), sizeof *s->want);
    tokens_free(&t);
}

/* The first n stories; returns what follows them. */
static const char *read_stories(const struct eval *v, const char *text, struct story *stories, int n)
{
    static const char end[] = "<|endoftext|>";
    for (int i = 0; i < n; i++) {
        const char *stop = strstr(text, end);
        if (!stop) fprintf(stderr, "the text has only %d stories\n", i), exit(1);
        encode_story(v, text, (size_t)(stop - text), &stories[i]);
        text = stop + sizeof end - 1;
        text += strspn(text, "\n ");
    }
    return text;
}

static struct run measure(struct eval *v, const struct story *stories, int n, bool is_reference)
{
    struct run r = {.vocab = eval_vocab(v), .is_reference = is_reference};
    struct err e;
    for (int i = 0; i < n; i++) {
        r.story = &stories[i];
        if (r.story->n > 1 && eval_logits(v, r.story->ids, r.story->n, take_row, &r, &e)) die(&e);
    }
    return r;
}

static bool report(const struct variant *v, const struct run *r, const struct run *all, const struct engine_info *info)
{
    double base = exp(all[0].nll / all[0].tokens), ppl = exp(r->nll / r->tokens), kl = r->kl / r->rows;
    double error = sqrt(fmax(0, r->kl2 / r->rows - kl * kl) / r->rows);
    double bits = 8.0 * (double)info->weight_bytes / (double)info->parameters;
    bool ok = ppl / base - 1 <= v->worse && bits <= v->bits && r->tokens > 1000 && isfinite(kl);
    const struct run *other = &all[v->better_than];
    if (v->better_than) ok &= kl < other->kl / other->rows;
    printf("%-4s %-26s %7.4f %+8.2f %% (at most %+5.1f %%) %9.5f +- %.5f %10.1f %% %9.3f\n", ok ? "ok" : "FAIL",
           v->name, ppl, 100 * (ppl / base - 1), 100 * v->worse, kl, error, 100.0 * r->top1 / r->rows, bits);
    return ok;
}

static bool compare_ways(const char *model, const char *text, struct story *stories)
{
    struct run run[VARIANTS];
    const char *rest = NULL;
    bool ok = true;
    printf("%s\n%-31s %s\n", model, "",
           "perplexity, change             KL divergence        same best token  bits/weight");
    for (int i = 0; i < VARIANTS; i++) {
        struct eval *v = open_variant(model, &variants[i], rest, NULL);
        if (i == 0) rest = read_stories(v, text, stories, STORIES);
        run[i] = measure(v, stories, STORIES, i == 0);
        ok &= report(&variants[i], &run[i], run, eval_info(v));
        eval_close(v);
    }
    return ok;
}

static bool compare_devices(const char *model, const char *text, struct story *stories, const char *device, int n)
{
    bool ok = true;
    for (int i = 0; i < DEVICE_VARIANTS; i++) {
        double kl[2];
        for (int other = 0; other < 2; other++) {
            struct eval *v = open_variant(model, &on_device[i], NULL, other ? device : "cpu:portable");
            if (i == 0 && !other) read_stories(v, text, stories, n);
            struct run r = measure(v, stories, n, i == 0 && !other);
            kl[other] = r.kl / r.rows;
            eval_close(v);
        }
        bool good = kl[1] <= 1.1 * kl[0] + ROUNDING && isfinite(kl[1]);
        printf("%-4s %-8s KL divergence %.6f on %s, %.6f on the cpu\n", good ? "ok" : "FAIL", on_device[i].name, kl[1],
               device, kl[0]);
        ok &= good;
    }
    return ok;
}

int main(int argc, char **argv)
{
    char *text;
    size_t size;
    struct err e;
    static struct story stories[STORIES];
    int n = argc == 5 ? atoi(argv[4]) : STORIES;
    if ((argc != 3 && argc != 5) || n < 1 || n > STORIES) {
        fprintf(stderr, "usage: quality_test MODEL_DIR TEXT_FILE [DEVICE STORIES]\n");
        return 2;
    }
    if (file_read(argv[2], 64 << 20, &text, &size, &e)) die(&e);
    bool ok = argc == 3 ? compare_ways(argv[1], text, stories) : compare_devices(argv[1], text, stories, argv[3], n);
    for (int i = 0; i < STORIES; i++) free(stories[i].want);
    free(text);
    return !ok;
}
