/* Golden models: logits and greedy tokens of every family against what transformers computed
 * (tests/model/make_fixtures.py).
 *
 *   golden_test [--thin N] FIXTURES_DIR [DEVICE...]     by default levels of the cpu, ref, and simt where it is built;
 *                                                       every N-th model with simt, or with the devices that are named
 *
 * One line per model and device; exit status 1 when any differs.  KV cache in f32, weights in the file's type. */
#include "engine/bench/eval.h"
#include "engine/model/safetensors.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double TOLERANCE = 1e-3; /* on logits, absolute */

struct expected {
    struct tensor_source *file;
    const int32_t *ids, *prompt, *greedy;
    const float *logits;
    int n, n_prompt, n_greedy, vocab;
};

static const void *tensor(const struct tensor_source *f, const char *name, int dim, int *n)
{
    const struct tensor *t = tensor_source_find(f, name);
    if (!t) {
        fprintf(stderr, "expected.safetensors has no %s\n", name);
        exit(1);
    }
    *n = (int)t->dims[dim];
    return t->data;
}

static struct expected expected_open(const char *dir)
{
    char path[1100];
    struct err e;
    struct expected x = {0};
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    if (!(x.file = safetensors_open(path, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    x.ids = tensor(x.file, "ids", 0, &x.n);
    x.logits = tensor(x.file, "logits", 1, &x.vocab);
    x.prompt = tensor(x.file, "greedy_prompt", 0, &x.n_prompt);
    x.greedy = tensor(x.file, "greedy", 0, &x.n_greedy);
    return x;
}

struct compare {
    const struct expected *x;
    double worst, error, power; /* sums of squares */
    int worst_pos, rows;
};

static void compare_row(void *arg, int pos, const float *logits)
{
    struct compare *c = arg;
    const float *want = c->x->logits + (size_t)pos * (size_t)c->x->vocab;
    for (int i = 0; i < c->x->vocab; i++) {
        double d = fabs((double)logits[i] - (double)want[i]);
        if (!(d <= c->worst)) c->worst = d, c->worst_pos = pos; /* NaN counts as worst */
        c->error += d * d;
        c->power += (double)want[i] * (double)want[i];
    }
    c->rows++;
}

struct keep {
    float *logits;
    int vocab;
};

static void keep_row(void *arg, int pos, const float *logits)
{
    struct keep *k = arg;
    memcpy(k->logits + (size_t)pos * (size_t)k->vocab, logits, (size_t)k->vocab * sizeof *logits);
}

struct argmax {
    int pos, vocab, id;
};

static void take_argmax(void *arg, int pos, const float *logits)
{
    struct argmax *a = arg;
    if (pos != a->pos) return;
    a->id = 0;
    for (int i = 1; i < a->vocab; i++)
        if (logits[i] > logits[a->id]) a->id = i;
}

/* simt is slow, and each token is the whole text again: of its greedy tokens the first are enough */
static int greedy_wanted(const char *device)
{
    return strcmp(device, "simt") == 0 ? 6 : 64;
}

/* how many of the greedy tokens agree before the first that does not */
static int greedy_agree(struct eval *v, const struct expected *x, int wanted)
{
    int32_t text[512];
    struct err e;
    int n = x->n_prompt;
    memcpy(text, x->prompt, (size_t)n * sizeof *text);
    for (int i = 0; i < wanted; i++) {
        struct argmax a = {n - 1, eval_vocab(v), -1};
        if (eval_logits(v, text, n, take_argmax, &a, &e) || a.id != x->greedy[i]) return i;
        text[n++] = a.id;
    }
    return wanted;
}

/* Devices round the inputs of MXFP4 experts to int8 (kernels/ops.h, linear_args). */
static bool rounds_inputs(const char *name)
{
    return strstr(name, "mxfp4");
}

static bool check_model(const char *root, const char *name, const char *device)
{
    char dir[1024];
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    struct expected x = expected_open(dir);
    struct eval *v = eval_open(&(struct engine_config){.model = dir,
                                                       .device = device,
                                                       .kv_type = "f32",
                                                       .activations = "f32",
                                                       .threads = 2,
                                                       .kv_cache_bytes = 64 << 20},
                               &e);
    bool ok = false;
    if (!v) {
        printf("FAIL %-20s %-14s %s\n", name, device, e.msg);
    } else {
        struct compare c = {.x = &x};
        bool rounds = rounds_inputs(name);
        ok = eval_vocab(v) == x.vocab && eval_logits(v, x.ids, x.n, compare_row, &c, &e) == 0 && c.rows == x.n &&
             (rounds ? c.error <= 1e-3 * c.power : c.worst <= TOLERANCE);
        int wanted = rounds ? 0 : greedy_wanted(device), agree = x.n_greedy == 64 ? greedy_agree(v, &x, wanted) : -1;
        ok = ok && agree == wanted;
        printf("%s %-20s %-14s worst logit difference %.2e at position %d of %d; greedy tokens equal: %d of %d%s%s\n",
               ok ? "ok  " : "FAIL", name, device, c.worst, c.worst_pos, x.n, agree, wanted, e.msg[0] ? "; " : "",
               e.msg);
    }
    eval_close(v);
    tensor_source_close(x.file);
    return ok;
}

/* In bf16, as served by default where the processor multiplies it: the f32 logits but for roundings of 2^-9. */
static bool check_bf16(const char *root, const char *name, const char *device)
{
    char dir[1024];
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    struct expected x = expected_open(dir);
    struct compare c = {.x = &x};
    struct eval *v = eval_open(&(struct engine_config){.model = dir,
                                                       .device = device,
                                                       .kv_type = "bf16",
                                                       .activations = "bf16",
                                                       .threads = 2,
                                                       .kv_cache_bytes = 64 << 20},
                               &e);
    bool ok = v && eval_logits(v, x.ids, x.n, compare_row, &c, &e) == 0 && c.rows == x.n && c.error <= 1e-3 * c.power;
    printf("%s %-20s %s in bf16    error %.1e of the logits' power%s%s\n", ok ? "ok  " : "FAIL", name, device,
           c.error / c.power, e.msg[0] ? "; " : "", e.msg);
    eval_close(v);
    tensor_source_close(x.file);
    return ok;
}

/* What quantised weights make of a text on a GPU's device, against the cpu's logits: both quantise activations alike,
 * but sums come in other orders, so now and then a rounded value is the next one, and the layers after it see that. For
 * nf4 the GPU's rounds to bf16, as in check_bf16. */
static bool check_quantised(const char *root, const char *name, const char *type, const char *device)
{
    char dir[1024];
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s/%s", root, name);
    struct expected x = expected_open(dir), own = x;
    float *logits = calloc((size_t)x.n * (size_t)x.vocab, sizeof *logits);
    struct compare c = {.x = &own};
    own.logits = logits;
    bool ok = logits != NULL;
    for (int i = 0; i < 2 && ok; i++) {
        struct engine_config how = {.model = dir,
                                    .device = i ? device : "cpu",
                                    .quantize = type,
                                    .no_calibration = true,
                                    .kv_type = "f32",
                                    .threads = 2,
                                    .kv_cache_bytes = 16 << 20};
        struct eval *v = eval_open(&how, &e);
        struct keep k = {logits, x.vocab};
        ok = v && eval_logits(v, x.ids, x.n, i ? compare_row : keep_row, i ? (void *)&c : (void *)&k, &e) == 0;
        eval_close(v);
    }
    ok = ok && c.rows == x.n && c.error <= 1e-3 * c.power;
    printf("%s %-20s %s in %-5s   %.1e of the power of the cpu's logits differs%s%s\n", ok ? "ok  " : "FAIL", name,
           device, type, c.error / c.power, e.msg[0] ? "; " : "", e.msg);
    free(logits);
    tensor_source_close(x.file);
    return ok;
}

static bool is_golden(const char *fixtures, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%.700s/%.255s/expected.safetensors", fixtures, name);
    return access(path, F_OK) == 0;
}

static int check_other(const char *fixtures, const char *name, const char *device)
{
    static const char *const types[] = {"int8", "int4", "nf4"};
    bool quantised = strstr(name, "nf4") || strstr(name, "mxfp4");
    int failed = !check_bf16(fixtures, name, device);
    for (int i = 0; i < 3 && !quantised; i++) failed += !check_quantised(fixtures, name, types[i], device);
    return failed;
}

int main(int argc, char **argv)
{
#ifdef TANDEM_SANITIZED
    static const char *const always[] = {"cpu", NULL}; /* slow enough; the others run in the release build */
#else
    static const char *const always[] = {"ref", "cpu:portable", "cpu", NULL};
#endif
#if defined(TANDEM_SIMT) && !defined(TANDEM_SANITIZED)
    static const char *const slow[] = {"simt", NULL};
#else
    static const char *const slow[] = {NULL};
#endif
    bool thinned = argc > 2 && strcmp(argv[1], "--thin") == 0;
    int thin = thinned ? atoi(argv[2]) : 1, models = 0, failed = 0;
    char **at = argv + 1 + 2 * thinned; /* FIXTURES_DIR, devices, NULL */
    struct dirent **found = NULL;
    int n = argc > 1 && thin > 0 && *at ? scandir(*at, &found, NULL, alphasort) : -1;
    if (n < 0) {
        fprintf(stderr, "usage: golden_test [--thin N] FIXTURES_DIR [DEVICE...]\n");
        return 2;
    }
    const char *fixtures = *at, *const *asked = (const char *const *)at + 1;
    for (int i = 0; i < n; i++) {
        const char *name = found[i]->d_name;
        if (is_golden(fixtures, name)) {
            bool whole = models++ % thin == 0;
            for (const char *const *d = *asked ? asked : always; *d && (whole || !*asked); d++)
                failed += !check_model(fixtures, name, *d);
            if (!*asked) failed += !check_bf16(fixtures, name, "cpu");
            for (const char *const *d = *asked ? asked : slow; *d && whole; d++) {
                if (!*asked) failed += !check_model(fixtures, name, *d);
                failed += check_other(fixtures, name, *d);
            }
        }
        free(found[i]);
    }
    free(found);
    printf("%d models, %d failures\n", models, failed);
    return failed || models < 10;
}
