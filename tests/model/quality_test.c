/* What quantisation costs: perplexity and KL divergence against the unquantised model, on held-out text.
 *
 *   quality_test MODEL_DIR TEXT_FILE
 *
 * Bounds: perplexity within 1 % (int8), 6 % (int4) and 7 % (nf4) of the unquantised model's; int8 KV cache within 1 %.
 */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 512, STORIES = 40 }; /* tokens of a story looked at; stories */

struct run {
    const int32_t *ids; /* of the window */
    int n, vocab;
    float *reference; /* (WINDOW, V) log-probabilities of the unquantised model */
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
    float *want = r->reference + (size_t)pos * (size_t)r->vocab;
    double z = log_sum(l, r->vocab), kl = 0;
    int top = 0, want_top = 0;
    if (pos + 1 < r->n) r->nll += z - l[r->ids[pos + 1]], r->tokens++;
    if (r->is_reference) {
        for (int i = 0; i < r->vocab; i++) want[i] = (float)(l[i] - z);
        return;
    }
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

static struct eval *open_or_die(const char *model, const char *quantize, const char *kv)
{
    struct err e;
    struct eval *v = eval_open(&(struct engine_config){.model = model, .quantize = quantize, .kv_type = kv}, &e);
    if (!v) fprintf(stderr, "%s\n", e.msg), exit(1);
    return v;
}

/* one story, with the tokens the model expects before it */
static int encode_story(const struct eval *v, const char *text, size_t n, int32_t *ids)
{
    struct tokens t = {0};
    struct err e;
    if (tokenizer_encode(eval_tokenizer(v), text, n, TOKENIZE_SPECIAL, &t, &e)) fprintf(stderr, "%s\n", e.msg), exit(1);
    int len = t.n < WINDOW ? (int)t.n : WINDOW;
    for (int i = 0; i < len; i++) ids[i] = t.v[i].id;
    tokens_free(&t);
    return len;
}

/* Both models story by story, so that one story's reference rows are all that is kept. */
static bool compare(const char *model, const char *text, const char *quantize, const char *kv, double bound)
{
    static const char end[] = "<|endoftext|>";
    struct eval *want = open_or_die(model, "none", "f32"), *got = open_or_die(model, quantize, kv);
    struct run a = {.vocab = eval_vocab(want), .is_reference = true}, b = {.vocab = eval_vocab(got)};
    struct err e;
    int32_t ids[WINDOW];
    a.reference = b.reference = mem_array((size_t)WINDOW * (size_t)a.vocab, sizeof(float));
    a.ids = b.ids = ids;
    for (int i = 0; i < STORIES && *text; i++) {
        const char *stop = strstr(text, end);
        size_t n = stop ? (size_t)(stop - text) : strlen(text);
        a.n = b.n = encode_story(want, text, n, ids);
        text += stop ? n + sizeof end - 1 : n;
        text += strspn(text, "\n ");
        if (a.n < 2) continue;
        if (eval_logits(want, ids, a.n, take_row, &a, &e) || eval_logits(got, ids, b.n, take_row, &b, &e)) {
            fprintf(stderr, "%s\n", e.msg);
            exit(1);
        }
    }
    double p = exp(a.nll / a.tokens), q = exp(b.nll / b.tokens), kl = b.kl / b.rows;
    double kl_error = sqrt((b.kl2 / b.rows - kl * kl) / b.rows);
    bool ok = q / p - 1 <= bound && b.tokens > 1000 && isfinite(kl);
    printf("%s weights %-5s KV %-5s perplexity %.4f, unquantised %.4f (%+.2f %%, allowed %+.1f %%); KL divergence %.5f "
           "+- %.5f; "
           "same best token %.1f %%\n",
           ok ? "ok  " : "FAIL", quantize, kv, q, p, 100 * (q / p - 1), 100 * bound, kl, kl_error,
           100.0 * b.top1 / b.rows);
    free(a.reference);
    eval_close(want);
    eval_close(got);
    return ok;
}

int main(int argc, char **argv)
{
    char *text;
    size_t size;
    struct err e;
    if (argc != 3) {
        fprintf(stderr, "usage: quality_test MODEL_DIR TEXT_FILE\n");
        return 2;
    }
    if (file_read(argv[2], 64 << 20, &text, &size, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    bool ok = compare(argv[1], text, "int8", "f16", 0.01);
    ok &= compare(argv[1], text, "int4", "f16", 0.06);
    ok &= compare(argv[1], text, "nf4", "f16", 0.07);
    ok &= compare(argv[1], text, "none", "int8", 0.01);
    ok &= compare(argv[1], text, "none", "f16", 0.001);
    free(text);
    return !ok;
}
