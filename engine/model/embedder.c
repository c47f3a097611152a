#include "engine/model/embedder.h"

#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/embedder_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int embedder_open(struct embedder *m, const char *dir, const struct model_config *c, struct err *e)
{
    *m = (struct embedder){
        .encoder = c->encoder, .default_prompt = -1, .pad = -1, .inputs = c->hidden, .size = c->hidden};
    cJSON *config = NULL;
    int rc = embedder_json(dir, "config.json", &config, e);
    if (!rc && c->classifier)
        rc = classifier_head_read(m, dir, c, config, e);
    else if (!rc)
        rc = sentence_files_read(m, dir, c, e);
    cJSON_Delete(config);
    if (!rc && (c->encoder || c->classifier || m->sentences)) rc = sentence_limits_read(m, dir, e);
    if (rc) embedder_free(m);
    return rc;
}

void embedder_free(struct embedder *m)
{
    for (int i = 0; i < m->n_prompts; i++) {
        free(m->prompts[i].name);
        free(m->prompts[i].text);
    }
    for (int i = 0; m->labels && i < m->n_labels; i++) free(m->labels[i]);
    for (int i = 0; i < m->n_steps; i++) {
        free(m->step[i].w);
        free(m->step[i].b);
        free(m->step[i].norm_w);
        free(m->step[i].norm_b);
    }
    free(m->prompts);
    free(m->labels);
    *m = (struct embedder){0};
}

/* ---- applying ------------------------------------------------------------------------------------------------------
 */

/* Sixteen sums side by side, added in order: the same bits whatever the compiler makes of the loop. */
static double dot(const float *w, const float *x, int n)
{
    float sum[16] = {0};
    double all = 0;
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += w[i + k] * x[i + k];
    for (; i < n; i++) sum[0] += w[i] * x[i];
    for (int k = 0; k < 16; k++) all += (double)sum[k];
    return all;
}

static double activate(enum vector_act act, double x)
{
    switch (act) {
    case VECTOR_LINEAR: return x;
    case VECTOR_TANH: return tanh(x);
    case VECTOR_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752));
    case VECTOR_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case VECTOR_RELU: return x > 0 ? x : 0;
    case VECTOR_SIGMOID: return 1 / (1 + exp(-x));
    }
    return x;
}

static void layer_norm(const struct vector_step *s, float *y)
{
    double mean = 0, variance = 0;
    for (int i = 0; i < s->rows; i++) mean += (double)y[i];
    mean /= s->rows;
    for (int i = 0; i < s->rows; i++) variance += ((double)y[i] - mean) * ((double)y[i] - mean);
    double scale = 1 / sqrt(variance / s->rows + (double)s->eps);
    for (int i = 0; i < s->rows; i++)
        y[i] = (float)(((double)y[i] - mean) * scale * (double)s->norm_w[i] + (s->norm_b ? (double)s->norm_b[i] : 0));
}

void embedder_apply(const struct embedder *m, const double *pooled, float *out)
{
    int most = m->inputs;
    for (int i = 0; i < m->n_steps; i++)
        if (m->step[i].rows > most) most = m->step[i].rows;
    float *x = mem_array(2 * (size_t)most, sizeof *x), *y = x + most, *memory = x;
    for (int i = 0; i < m->inputs; i++) x[i] = (float)pooled[i];
    for (int i = 0; i < m->n_steps; i++) {
        const struct vector_step *s = &m->step[i];
        for (int r = 0; r < s->rows; r++)
            y[r] = (float)activate(s->act,
                                   dot(s->w + (size_t)r * (size_t)s->cols, x, s->cols) + (s->b ? (double)s->b[r] : 0));
        if (s->norm_w) layer_norm(s, y);
        float *swap = x;
        x = y;
        y = swap;
    }
    memcpy(out, x, (size_t)m->size * sizeof *out);
    free(memory);
}
