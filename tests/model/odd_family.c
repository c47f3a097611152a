#include "tests/model/odd_family.h"

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor_table.h"
#include "kernels/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rows ---------------------------------------------------------------------------------------------------- */

static const struct tensor_row rows[] = {
    {"look.ask", PART_Q, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_PEFT, TARGET_Q},
    {"look.key", PART_K, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_K},
    {"look.tell", PART_V, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_PEFT, TARGET_V},
    {"look.mix", PART_O, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_O},
    {"look_norm", PART_POST1, TENSOR_ALWAYS},
    {"think.gate", PART_GATE, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_GATE},
    {"think.up", PART_UP, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_UP},
    {"think.down", PART_DOWN, TENSOR_ALWAYS, TENSOR_NEVER, 0, TARGET_DOWN},
    {"think_norm", PART_POST2, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    {"last_norm", PART_NORM, TENSOR_ALWAYS},
    {"words", PART_EMBED, TENSOR_ALWAYS},
    {"lm_head", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};
static const struct tensor_table tensors = {{"odd.", ""}, "floors", rows};

const struct model_family odd_family = {
    .model_type = "odd",
    .field = {.hidden = "width",
              .layers = "floors",
              .heads = "heads",
              .kv_heads = "key_heads",
              .inter = "thoughts",
              .max_len = "positions",
              .eps = "epsilon",
              .act = "act"},
    .otherwise = {.kv_heads = 2, .max_len = 128, .eps = 1e-5, .act = "silu", .tied = true},
    .number = {{"cap", NUMBER_LOGIT_SOFTCAP, 3}},
    .window = {.rule = WINDOW_ALL, .positions = 5, .by_type = true},
    .rope = {.any = true, .partial = 1, .theta = 500},
    .layer = {.norm = NORM_RMS, .norms = NORMS_AFTER, .gated = true},
    .tensors = &tensors,
};

/* ---- a model ----------------------------------------------------------------------------------------------------- */

enum { L = 4, C = 24, H = 4, G = 2, D = C / H, F = 40, V = ODD_VOCAB, WINDOW = 5, LAYER_TENSORS = 9 };

static const char config[] =
    "{\"model_type\":\"odd\",\"vocab_size\":288,\"width\":24,\"floors\":4,\"heads\":4,\"thoughts\":40,\"cap\":2.5,"
    "\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}\n";
static const double CAP = 2.5, THETA = 500, EPS = 1e-5;

enum { ASK, KEY, TELL, MIX, LOOK_NORM, GATE, UP, DOWN, THINK_NORM };
static const struct {
    const char *name;
    int rows, cols;    /* cols 1: a vector */
    float wide, about; /* uniform in about -+ wide */
} shapes[LAYER_TENSORS + 2] = {
    {"look.ask", H *D, C, 0.5f, 0}, {"look.key", G *D, C, 0.5f, 0}, {"look.tell", G *D, C, 0.5f, 0},
    {"look.mix", C, H *D, 0.5f, 0}, {"look_norm", C, 1, 0.5f, 1},   {"think.gate", F, C, 0.5f, 0},
    {"think.up", F, C, 0.5f, 0},    {"think.down", C, F, 0.5f, 0},  {"think_norm", C, 1, 0.5f, 0},
    {"last_norm", C, 1, 0.5f, 1},   {"words", V, C, 1, 0},
};

/* Tensor i of layer l, or of the model (i from LAYER_TENSORS on); to be freed. */
static float *values(int l, int i)
{
    size_t n = (size_t)shapes[i].rows * (size_t)shapes[i].cols;
    float *v = mem_array(n, sizeof *v);
    for (size_t k = 0; k < n; k++) {
        float u = (float)rng_uniform(rng_at(11, (uint64_t)(l * LAYER_TENSORS + i)), k);
        v[k] = shapes[i].about + shapes[i].wide * (2 * u - 1);
    }
    return v;
}

void odd_family_write(const char *dir)
{
    struct tensor t[L * LAYER_TENSORS + 2];
    size_t n = 0;
    struct err e = {0};
    for (int l = 0; l <= L; l++)
        for (int i = l < L ? 0 : LAYER_TENSORS; i < (l < L ? LAYER_TENSORS : LAYER_TENSORS + 2); i++) {
            char name[64];
            if (l < L)
                snprintf(name, sizeof name, "odd.floors.%d.%s.weight", l, shapes[i].name);
            else
                snprintf(name, sizeof name, "odd.%s.weight", shapes[i].name);
            t[n++] = (struct tensor){.name = mem_strdup(name),
                                     .type = TENSOR_F32,
                                     .n_dims = shapes[i].cols > 1 ? 2 : 1,
                                     .dims = {shapes[i].rows, shapes[i].cols},
                                     .data = values(l < L ? l : 0, i),
                                     .bytes = (size_t)shapes[i].rows * (size_t)shapes[i].cols * sizeof(float)};
        }
    char *path = file_join(dir, "model.safetensors"), *text = file_join(dir, "config.json");
    int rc = safetensors_write(path, t, n, NULL, &e);
    if (!rc) rc = file_write_sync(text, config, strlen(config), &e);
    if (rc) fprintf(stderr, "%s\n", e.msg), exit(1);
    for (size_t i = 0; i < n; i++) {
        free(t[i].name);
        free((void *)t[i].data);
    }
    free(path);
    free(text);
}

/* ---- its forward pass -------------------------------------------------------------------------------------------- */

/* y = w x; w (rows, cols) */
static void multiply(double *y, const float *w, const double *x, int n_rows, int n_cols)
{
    for (int r = 0; r < n_rows; r++) {
        y[r] = 0;
        for (int c = 0; c < n_cols; c++) y[r] += (double)w[r * n_cols + c] * x[c];
    }
}

static void rms(double *y, const double *x, const float *w, double plus)
{
    double square = 0;
    for (int c = 0; c < C; c++) square += x[c] * x[c] / C;
    for (int c = 0; c < C; c++) y[c] = x[c] / sqrt(square + EPS) * ((double)w[c] + plus);
}

static void rotate(double *x, int heads, int pos)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < D / 2; i++) {
            double angle = pos * pow(THETA, -2.0 * i / D), *a = &x[h * D + i], *b = &x[h * D + i + D / 2], was = *a;
            *a = was * cos(angle) - *b * sin(angle);
            *b = *b * cos(angle) + was * sin(angle);
        }
}

/* Token t sees tokens from..t. */
static void look(double *out, const double *q, const double *k, const double *v, int from, int t)
{
    for (int h = 0; h < H; h++) {
        int g = h / (H / G);
        double sum = 0;
        memset(out + (size_t)h * D, 0, D * sizeof *out);
        for (int s = from; s <= t; s++) {
            double score = 0;
            for (int i = 0; i < D; i++) score += q[h * D + i] * k[(s * G + g) * D + i];
            double weight = exp(score / sqrt(D));
            sum += weight;
            for (int i = 0; i < D; i++) out[h * D + i] += weight * v[(s * G + g) * D + i];
        }
        for (int i = 0; i < D; i++) out[h * D + i] /= sum;
    }
}

static void layer(double *x, int l, int n)
{
    float *w[LAYER_TENSORS];
    for (int i = 0; i < LAYER_TENSORS; i++) w[i] = values(l, i);
    double *k = mem_array((size_t)n * G * D, sizeof *k), *v = mem_array((size_t)n * G * D, sizeof *v);
    for (int t = 0; t < n; t++) {
        double q[H * D], seen[H * D], y[C], gate[F], up[F], *xt = x + (size_t)t * C;
        double *kt = k + (size_t)t * G * D;
        multiply(q, w[ASK], xt, H * D, C);
        multiply(kt, w[KEY], xt, G * D, C);
        multiply(v + (size_t)t * G * D, w[TELL], xt, G * D, C);
        rotate(q, H, t);
        rotate(kt, G, t);
        look(seen, q, k, v, l % 3 == 2 && t >= WINDOW ? t - WINDOW + 1 : 0, t);
        multiply(y, w[MIX], seen, C, H * D);
        rms(y, y, w[LOOK_NORM], 0);
        for (int c = 0; c < C; c++) xt[c] += y[c];
        multiply(gate, w[GATE], xt, F, C);
        multiply(up, w[UP], xt, F, C);
        for (int f = 0; f < F; f++) up[f] *= gate[f] / (1 + exp(-gate[f]));
        multiply(y, w[DOWN], up, C, F);
        rms(y, y, w[THINK_NORM], 1);
        for (int c = 0; c < C; c++) xt[c] += y[c];
    }
    for (int i = 0; i < LAYER_TENSORS; i++) free(w[i]);
    free(k);
    free(v);
}

void odd_family_logits(const int32_t *id, int n, double *logits)
{
    float *words = values(0, LAYER_TENSORS + 1), *norm = values(0, LAYER_TENSORS);
    double *x = mem_array((size_t)n * C, sizeof *x);
    for (int t = 0; t < n; t++)
        for (int c = 0; c < C; c++) x[t * C + c] = (double)words[id[t] * C + c];
    for (int l = 0; l < L; l++) layer(x, l, n);
    for (int t = 0; t < n; t++) {
        double h[C], *z = logits + (size_t)t * V;
        rms(h, x + (size_t)t * C, norm, 0);
        multiply(z, words, h, V, C);
        for (int i = 0; i < V; i++) z[i] = CAP * tanh(z[i] / CAP);
    }
    free(words);
    free(norm);
    free(x);
}
