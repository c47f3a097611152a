/* Quantising: every fitter against a slow search, never worse than plain rounding; moments and feedback against their
 * definitions; a directory written and read back gives the model that loading quantises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/bench/eval.h"
#include "engine/model/calibrate.h"
#include "engine/model/layer.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *models;

/* ---- data ---- */

static uint64_t counter;

static double normal(void)
{
    double u = rng_uniform(1, counter++) + 1e-12, v = rng_uniform(1, counter++);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static float *normals(size_t n, double scale)
{
    float *v = malloc(n * sizeof *v);
    for (size_t i = 0; i < n; i++) v[i] = (float)(normal() * scale);
    return v;
}

/* rows of every kind: ordinary, zeros, one huge value, tiny and huge scales, few distinct values */
static float *hard_rows(int rows, int cols)
{
    float *w = normals((size_t)rows * (size_t)cols, 1);
    for (int r = 0; r < rows; r++) {
        float *v = w + (size_t)r * (size_t)cols;
        float scale = r % 7 == 1 ? 0 : r % 7 == 2 ? 1e-3f : r % 7 == 3 ? 1e4f : 1;
        for (int k = 0; k < cols; k++) v[k] *= scale;
        if (r % 7 == 4) v[cols / 2] = 80;
        for (int k = 0; r % 7 == 5 && k < cols; k++) v[k] = v[k] < 0 ? -1 : 0.25f;
    }
    return w;
}

struct quantized {
    struct weight_src src;
    double *value; /* (rows, cols) what the weights became */
};

static struct quantized quantize(const float *w, int rows, int cols, struct quantize_fit fit, int threads)
{
    struct weight_src src = {.t = DT_F32, .rows = rows, .cols = cols, .data = w};
    struct quantized q;
    struct err e;
    if (quantize_matrix(&src, &fit, threads, &q.src, &e)) fail_msg("%s", e.msg);
    q.value = malloc((size_t)rows * (size_t)cols * sizeof *q.value);
    int groups = (cols + INT4_GROUP - 1) / INT4_GROUP;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < cols; k++) {
            size_t i = (size_t)r * (size_t)cols + (size_t)k;
            if (fit.type == DT_I8) {
                q.value[i] = (double)((const int8_t *)q.src.data)[i] * (double)((const float *)q.src.scale)[r];
                assert_true(((const int8_t *)q.src.data)[i] != -128);
            } else {
                uint8_t byte = ((const uint8_t *)q.src.data)[((size_t)r * groups * INT4_GROUP + k) / 2];
                uint16_t scale = ((const uint16_t *)q.src.scale)[r * groups + k / INT4_GROUP];
                q.value[i] = ((k & 1 ? byte >> 4 : byte & 15) - 8) * (double)f16_to_f32(scale);
            }
        }
    return q;
}

static void quantized_free(struct quantized *q)
{
    free((void *)q->src.data);
    free((void *)q->src.scale);
    free(q->value);
}

static double error_of(const float *w, const double *q, int n)
{
    double sum = 0;
    for (int k = 0; k < n; k++) sum += ((double)w[k] - q[k]) * ((double)w[k] - q[k]);
    return sum;
}

/* the least error of n weights at one step of low..high whole steps, by trying very many scales of either sign */
static double best_error(const float *w, int n, double low, double high, double from, double to, int tries)
{
    double amax = 0, best = INFINITY;
    for (int k = 0; k < n; k++) amax = fmax(amax, fabs((double)w[k]));
    if (amax == 0) return 0;
    for (int c = 0; c < 2 * tries; c++) {
        double s = amax / (from + (to - from) * (c / 2) / (tries - 1)) * (c & 1 ? -1 : 1), sum = 0;
        for (int k = 0; k < n; k++) {
            double q = fmin(fmax(nearbyint((double)w[k] / s), low), high);
            sum += ((double)w[k] - q * s) * ((double)w[k] - q * s);
        }
        best = fmin(best, sum);
    }
    return best;
}

/* ---- plain fitters ---- */

static void test_int4_near_the_best_scale(void **state)
{
    enum { ROWS = 70, COLS = 83 };
    float *w = hard_rows(ROWS, COLS);
    struct quantized q = quantize(w, ROWS, COLS, (struct quantize_fit){.type = DT_I4}, 2);
    struct quantized plain = quantize(w, ROWS, COLS, (struct quantize_fit){.type = DT_I4, .nearest = true}, 1);
    double sum = 0, sum_best = 0;
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < COLS; k += INT4_GROUP) {
            int at = r * COLS + k, n = COLS - k < INT4_GROUP ? COLS - k : INT4_GROUP;
            double got = error_of(w + at, q.value + at, n), best = best_error(w + at, n, -8, 7, 4, 12, 2000);
            double rtn = error_of(w + at, plain.value + at, n), norm = error_of(w + at, (double[INT4_GROUP]){0}, n);
            if (got > rtn * 1.001 + norm * 1e-6) fail_msg("group %d of row %d: %g, to nearest %g", k, r, got, rtn);
            if (got > best * 1.35 + norm * 1e-6) fail_msg("group %d of row %d: %g, at best %g", k, r, got, best);
            if (norm > 0) sum += got / norm, sum_best += best / norm;
        }
    if (sum > sum_best * 1.03) fail_msg("on average %g of the best", sum / sum_best);
    quantized_free(&q);
    quantized_free(&plain);
    free(w);
}

static void test_int8_near_the_best_scale(void **state)
{
    enum { ROWS = 21, COLS = 301 };
    float *w = hard_rows(ROWS, COLS);
    struct quantized q = quantize(w, ROWS, COLS, (struct quantize_fit){.type = DT_I8}, 2);
    struct quantized plain = quantize(w, ROWS, COLS, (struct quantize_fit){.type = DT_I8, .nearest = true}, 1);
    for (int r = 0; r < ROWS; r++) {
        int at = r * COLS;
        double got = error_of(w + at, q.value + at, COLS), rtn = error_of(w + at, plain.value + at, COLS);
        double best = best_error(w + at, COLS, -127, 127, 100, 260, 1000);
        double norm = error_of(w + at, (double[COLS]){0}, COLS);
        if (got > rtn * (1 + 1e-6) + norm * 1e-13) fail_msg("row %d: %g, to nearest %g", r, got, rtn);
        if (r % 7 != 5 &&
            got > best * 1.2 + norm * 1e-12) /* a search has luck with the rounding, most with two values */
            fail_msg("row %d: %g, at best %g", r, got, best);
    }
    quantized_free(&q);
    quantized_free(&plain);
    free(w);
}

static void test_not_finite_is_refused(void **state)
{
    enum { ROWS = 9, COLS = 40 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct moments m;
    struct feedback f;
    float *w = normals(ROWS * COLS, 1);
    moments_open(&m, COLS);
    feedback_open(&f, &m, 1);
    w[7 * COLS + 33] = 0;
    for (int i = 0; i < 12; i++) {
        struct weight_src src = {.t = DT_F32, .rows = ROWS, .cols = COLS, .data = w}, out;
        struct quantize_fit fit = {.type = i & 1 ? DT_I8 : DT_I4, .feedback = i & 2 ? &f : NULL};
        struct err e = {0};
        w[7 * COLS + 33] = bad[i % 3];
        assert_int_equal(quantize_matrix(&src, &fit, 1 + i % 2, &out, &e), ERR_INVALID);
        if (!strstr(e.msg, "[7, 33]")) fail_msg("%s", e.msg);
    }
    feedback_close(&f);
    moments_close(&m);
    free(w);
}

/* ---- moments and feedback ---- */

static void test_moments_are_sums_of_products(void **state)
{
    enum { ROWS = 13, COLS = FEEDBACK_BLOCK + 70, LD = COLS + 3 };
    float *x = normals(ROWS * LD, 2);
    struct moments one, three;
    moments_open(&one, COLS);
    moments_open(&three, COLS);
    moments_add(&one, x, 5, LD, 1);
    moments_add(&one, x + 5 * LD, ROWS - 5, LD, 1);
    moments_add(&three, x, 5, LD, 3);
    moments_add(&three, x + 5 * LD, ROWS - 5, LD, 3);
    assert_int_equal(one.rows, ROWS);
    const float *h = one.h;
    for (int at = 0; at < COLS; at += FEEDBACK_BLOCK) {
        int n = COLS - at < FEEDBACK_BLOCK ? COLS - at : FEEDBACK_BLOCK;
        assert_memory_equal(h, three.h + (h - one.h), (size_t)n * (size_t)n * sizeof *h);
        for (int i = 0; i < n; i += 7)
            for (int j = i; j < n; j++) {
                double want = 0, size = 0;
                for (int t = 0; t < ROWS; t++) {
                    double p = (double)x[t * LD + at + i] * (double)x[t * LD + at + j];
                    want += p, size += fabs(p);
                }
                if (fabs((double)h[i * n + j] - want) > 1e-5 * size)
                    fail_msg("h[%d, %d] is %g, not %g", at + i, at + j, (double)h[i * n + j], want);
            }
        h += (size_t)n * (size_t)n;
    }
    moments_close(&one);
    moments_close(&three);
    free(x);
}

/* T rows whose columns hang together: few hidden causes, a mean, and a little noise */
static float *correlated(int T, int cols)
{
    enum { CAUSES = 12 };
    float *mix = normals((size_t)CAUSES * (size_t)cols, 1), *x = normals((size_t)T * (size_t)cols, 0.3);
    for (int t = 0; t < T; t++) {
        double cause[CAUSES];
        for (int c = 0; c < CAUSES; c++) cause[c] = normal() + (c == 0);
        for (int k = 0; k < cols; k++)
            for (int c = 0; c < CAUSES; c++) x[t * cols + k] += (float)(cause[c] * (double)mix[c * cols + k]);
    }
    free(mix);
    return x;
}

static void test_factor_inverts(void **state)
{
    enum { N = 45, T = 60 };
    float *x = correlated(T, N);
    struct moments m;
    struct feedback f;
    moments_open(&m, N);
    moments_add(&m, x, T, N, 1);
    feedback_open(&f, &m, 0.1);
    double mean = 0;
    for (int i = 0; i < N; i++) mean += (double)m.h[i * N + i] / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) { /* (U^T U (H + damp))[i][j] */
            double sum = 0;
            for (int k = 0; k < N; k++) {
                double g = 0, h = (double)(k <= j ? m.h[k * N + j] : m.h[j * N + k]) + (k == j ? 0.1 * mean : 0);
                for (int l = 0; l < N; l++) g += (double)f.u[l * N + i] * (double)f.u[l * N + k];
                sum += g * h;
            }
            if (fabs(sum - (i == j)) > 1e-3) fail_msg("[%d, %d] is %g", i, j, sum);
            if (j < i) assert_true(f.u[i * N + j] == 0);
        }
    feedback_close(&f);
    moments_close(&m);
    free(x);
}

static double output_error(const float *x, int T, const float *w, const double *q, int rows, int cols)
{
    double sum = 0;
    for (int t = 0; t < T; t++)
        for (int r = 0; r < rows; r++) {
            double y = 0;
            for (int k = 0; k < cols; k++) y += (double)x[t * cols + k] * ((double)w[r * cols + k] - q[r * cols + k]);
            sum += y * y;
        }
    return sum;
}

/* on inputs it has not seen, and the same bits for a row whatever rows and threads there are beside it */
static void feedback_case(int rows, int cols, int type)
{
    enum { T = 400, UNSEEN = 60 };
    float *w = normals((size_t)rows * (size_t)cols, 1), *x = correlated(T + UNSEEN, cols);
    const float *unseen = x + (size_t)T * (size_t)cols;
    struct moments m;
    struct feedback f;
    moments_open(&m, cols);
    moments_add(&m, x, T, cols, 2);
    feedback_open(&f, &m, 0.05);
    struct quantize_fit with = {.type = type, .feedback = &f};
    struct quantized plain = quantize(w, rows, cols, (struct quantize_fit){.type = type}, 1);
    struct quantized fed = quantize(w, rows, cols, with, 1), again = quantize(w, rows, cols, with, 3);
    double a = output_error(unseen, UNSEEN, w, plain.value, rows, cols);
    double b = output_error(unseen, UNSEEN, w, fed.value, rows, cols);
    if (b > 0.5 * a) fail_msg("type %d, %d x %d: error %g with feedback, %g without", type, rows, cols, b, a);
    size_t bytes = (size_t)rows * (size_t)cols * sizeof *fed.value;
    assert_memory_equal(fed.value, again.value, bytes);
    for (int r = 0; r < rows; r += 3) {
        struct quantized alone = quantize(w + r * cols, 1, cols, with, 1);
        assert_memory_equal(alone.value, fed.value + r * cols, (size_t)cols * sizeof *fed.value);
        quantized_free(&alone);
    }
    quantized_free(&plain);
    quantized_free(&fed);
    quantized_free(&again);
    feedback_close(&f);
    moments_close(&m);
    free(w);
    free(x);
}

static void test_feedback_spares_the_output(void **state)
{
    feedback_case(7, 96, DT_I4);
    feedback_case(7, 96, DT_I8);
    feedback_case(6, 83, DT_I4);
    feedback_case(5, 83, DT_I8);
    feedback_case(4, FEEDBACK_BLOCK + 40, DT_I4);
    feedback_case(3, FEEDBACK_BLOCK + 40, DT_I8);
}

/* ---- whole models ---- */

static const char story[] = "Once upon a time there was a little dog named Max. He liked to play in the park with his "
                            "friends. One day Max saw a big red ball.";

/* The first product's input is the normed embedding: what calibration saw there can be computed without a model. */
static void test_calibration_sees_the_inputs(void **state)
{
    char dir[512], path[600];
    struct err e = {0};
    struct calibration c;
    snprintf(dir, sizeof dir, "%s/tinystories-656k", models);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    if (calibration_from_text(&c, dir, "ref", 1, story, sizeof story - 1, &e)) fail_msg("%s", e.msg);
    struct tokenizer *tk = tokenizer_open(path, &e);
    struct tokens t = {0};
    struct tensor_source *f = safetensors_open_dir(dir, &e);
    assert_non_null(tk);
    assert_non_null(f);
    tokenizer_encode(tk, story, sizeof story - 1, TOKENIZE_SPECIAL, &t, &e);
    assert_int_equal(c.tokens, t.n);
    const float *table = tensor_source_find(f, "lm_head.weight")->data;
    const float *norm = tensor_source_find(f, "model.layers.0.input_layernorm.weight")->data;
    enum { C = 128 };
    struct moments m;
    struct feedback want;
    moments_open(&m, C);
    for (size_t i = 0; i < t.n; i++) {
        const float *row = table + (size_t)t.v[i].id * C;
        double square = 0;
        float x[C];
        for (int k = 0; k < C; k++) square += (double)row[k] * (double)row[k] / C;
        for (int k = 0; k < C; k++) x[k] = (float)((double)row[k] / sqrt(square + 1e-6) * (double)norm[k]);
        moments_add(&m, x, 1, C, 1);
    }
    feedback_open(&want, &m, DAMP);
    const struct feedback *got = calibration_feedback(&c, 0);
    for (int i = 0; i < C; i++)
        for (int j = i; j < C; j++) {
            double a = (double)got->u[i * C + j], b = (double)want.u[i * C + j];
            if (fabs(a - b) > 1e-3 * (double)want.u[i * C + i]) fail_msg("u[%d, %d] is %g, not %g", i, j, a, b);
        }
    assert_null(calibration_feedback(&c, -1));
    assert_null(calibration_feedback(&c, c.n));
    feedback_close(&want);
    moments_close(&m);
    calibration_close(&c);
    tokens_free(&t);
    tokenizer_close(tk);
    tensor_source_close(f);
}

struct rows {
    float *v;
    size_t n, cap;
    int vocab;
};

static void keep(void *arg, int pos, const float *logits)
{
    struct rows *r = arg;
    r->v = realloc(r->v, (r->n + (size_t)r->vocab) * sizeof *r->v);
    memcpy(r->v + r->n, logits, (size_t)r->vocab * sizeof *r->v);
    r->n += (size_t)r->vocab;
}

static struct rows logits_of(const char *model, const char *type)
{
    static const int32_t ids[] = {1, 40, 33, 57, 90, 12, 7, 7, 64};
    struct err e = {0};
    struct eval *v = eval_open(&(struct engine_config){.model = model, .quantize = type, .threads = 2}, &e);
    if (!v) fail_msg("%s: %s", model, e.msg);
    struct rows r = {.vocab = eval_vocab(v)};
    if (eval_logits(v, ids, sizeof ids / sizeof *ids, keep, &r, &e)) fail_msg("%s: %s", model, e.msg);
    eval_close(v);
    return r;
}

/* tied and untied heads, biases, fused matrices, rows by head, [inputs][outputs] weights, position tables, norms stored
 * as w for 1 + w, experts */
static void test_directory_is_what_loading_makes(void **state)
{
    static const char *const names[] = {"tinystories-656k", "llama-gqa", "gpt2", "phi",     "qwen2-bf16",
                                        "gemma3-bf16",      "qwen2-moe", "phi3", "gpt-neox"};
    static const char *const types[] = {"int8", "int4"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int k = 0; k < 2; k++) {
            char dir[512], out[] = "/tmp/tandem-quantize-XXXXXX", remove[64];
            struct err e = {0};
            snprintf(dir, sizeof dir, "%s/%s", models, names[i]);
            assert_non_null(mkdtemp(out));
            struct quantize_options how = {.type = types[k]};
            if (quantize_model(dir, out, &how, &e)) fail_msg("%s: %s", names[i], e.msg);
            struct rows a = logits_of(dir, types[k]), b = logits_of(out, "none");
            assert_int_equal(a.n, b.n);
            for (size_t j = 0; j < a.n; j++)
                if (memcmp(a.v + j, b.v + j, sizeof *a.v))
                    fail_msg("%s %s: logit %zu is %g loaded, %g from the directory", names[i], types[k], j,
                             (double)a.v[j], (double)b.v[j]);
            snprintf(remove, sizeof remove, "rm -r %s", out);
            assert_int_equal(system(remove), 0);
            free(a.v);
            free(b.v);
        }
}

/* Gemma's embedding scale is rounded to the type that the model was saved in, however it is loaded. */
static void test_embedding_scale_of_a_quantised_model(void **state)
{
    char dir[512];
    struct quantize_how int8 = {.type = DT_I8};
    snprintf(dir, sizeof dir, "%s/gemma3-bf16", models);
    for (int quantised = 0; quantised < 2; quantised++) {
        struct model m;
        struct err e = {0};
        if (model_load(&m, dir, "cpu", 1, quantised ? &int8 : NULL, false, &e)) fail_msg("%s: %s", dir, e.msg);
        m.c.dtype = DT_NONE; /* config.json does not say */
        assert_true(m.w.float_type == DT_BF16 && m.c.hidden == 56);
        assert_true(layer_embed_scale(&m.c, &m.w) == 7.46875f);
        model_close(&m);
    }
}

int main(int argc, char **argv)
{
    models = argc > 1 ? argv[1] : "tests/fixtures/models";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int4_near_the_best_scale),
        cmocka_unit_test(test_int8_near_the_best_scale),
        cmocka_unit_test(test_not_finite_is_refused),
        cmocka_unit_test(test_moments_are_sums_of_products),
        cmocka_unit_test(test_factor_inverts),
        cmocka_unit_test(test_feedback_spares_the_output),
        cmocka_unit_test(test_calibration_sees_the_inputs),
        cmocka_unit_test(test_directory_is_what_loading_makes),
        cmocka_unit_test(test_embedding_scale_of_a_quantised_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
