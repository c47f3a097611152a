/* The head of a *ForSequenceClassification model (embedder.h). */
#include "engine/base/mem.h"
#include "engine/model/config.h"
#include "engine/model/embedder_files.h"
#include "engine/model/safetensors.h"

#include <stdio.h>
#include <string.h>

static int labels_read(struct embedder *m, const cJSON *config, struct err *e)
{
    const cJSON *names = embedder_get(config, "id2label");
    m->n_labels = cJSON_IsObject(names) && names->child ? cJSON_GetArraySize(names)
                                                        : embedder_size(config, "num_labels", LABELS_MAX);
    if (!m->n_labels) m->n_labels = 2; /* transformers' default */
    if (m->n_labels > LABELS_MAX) return err_set(e, ERR_INVALID, "config.json: more than %d labels", LABELS_MAX);
    m->labels = mem_array((size_t)m->n_labels, sizeof *m->labels);
    for (int i = 0; i < m->n_labels; i++) {
        char id[16], other[24];
        snprintf(id, sizeof id, "%d", i);
        snprintf(other, sizeof other, "LABEL_%d", i);
        const char *name = embedder_text(names, id);
        m->labels[i] = mem_strdup(name ? name : other);
    }
    const char *problem = embedder_text(config, "problem_type");
    m->multi_label = problem && strcmp(problem, "multi_label_classification") == 0;
    /* where sentence-transformers keeps a cross-encoder's activation: in newer files in an object of its own */
    const char *act = embedder_text(embedder_get(config, "sentence_transformers"), "activation_fn");
    if (!act) act = embedder_text(config, "sbert_ce_default_activation_function");
    m->raw_scores = act && strcmp(embedder_class_name(act), "Identity") == 0;
    return 0;
}

/* ModernBERT: dense, activation, norm, then the classifier. */
static int modernbert_head(struct embedder *m, const struct tensor_source *f, const cJSON *config, int hidden,
                           struct err *e)
{
    const char *name = embedder_text(config, "classifier_activation"),
               *pooling = embedder_text(config, "classifier_pooling");
    enum vector_act act = VECTOR_GELU;
    if (name && !embedder_act(name, &act))
        return err_set(e, ERR_UNSUPPORTED, "config.json: classifier_activation \"%.40s\" is not supported", name);
    m->pooling.v[0] = pooling && strcmp(pooling, "mean") == 0 ? POOLING_MEAN : POOLING_FIRST;
    int rc = embedder_linear(m, f, "head.dense", hidden, hidden, act, e);
    struct vector_step *s = &m->step[m->n_steps - 1];
    const cJSON *eps = embedder_get(config, "norm_eps");
    s->eps = cJSON_IsNumber(eps) ? (float)eps->valuedouble : 1e-5f;
    if (!rc) rc = embedder_floats(f, "head.norm.weight", hidden, 0, false, &s->norm_w, e);
    if (!rc) rc = embedder_floats(f, "head.norm.bias", hidden, 0, true, &s->norm_b, e);
    return rc ? rc : embedder_linear(m, f, "classifier", m->n_labels, hidden, VECTOR_LINEAR, e);
}

/* Since sentence-transformers 6 the activation is in this file. */
static int activation_read(struct embedder *m, const char *dir, struct err *e)
{
    cJSON *j;
    int rc = embedder_json(dir, "config_sentence_transformers.json", &j, e);
    const char *act = rc ? NULL : embedder_text(j, "activation_fn");
    if (act) m->raw_scores = strcmp(embedder_class_name(act), "Identity") == 0;
    cJSON_Delete(j);
    return rc;
}

/* A decoder: one matrix on the output for the last token, padding not counted. */
static int decoder_head(struct embedder *m, const struct tensor_source *f, const cJSON *config, int hidden,
                        struct err *e)
{
    const cJSON *text = embedder_get(config, "text_config"), *pad = embedder_get(text ? text : config, "pad_token_id");
    if (cJSON_IsNumber(pad) && pad->valuedouble >= 0 && pad->valuedouble < INT32_MAX)
        m->pad = (int32_t)pad->valuedouble;
    m->pooling.v[0] = POOLING_LAST;
    return embedder_linear(m, f, "score", m->n_labels, hidden, VECTOR_LINEAR, e);
}

int classifier_head_read(struct embedder *m, const char *dir, const struct model_config *c, const cJSON *config,
                         struct err *e)
{
    const char *family = c->family->model_type;
    int rc = labels_read(m, config, e);
    if (!rc) rc = activation_read(m, dir, e);
    struct tensor_source *f = rc ? NULL : safetensors_open_dir(dir, e);
    if (!f) return e->code;
    m->classifies = true;
    m->pooling = (struct poolings){{POOLING_FIRST}, 1};
    if (!c->encoder) {
        rc = decoder_head(m, f, config, c->hidden, e);
    } else if (strcmp(family, "modernbert") == 0) {
        rc = modernbert_head(m, f, config, c->hidden, e);
    } else if (strcmp(family, "bert") == 0) {
        rc = embedder_linear(m, f, "bert.pooler.dense", c->hidden, c->hidden, VECTOR_TANH, e);
        if (!rc) rc = embedder_linear(m, f, "classifier", m->n_labels, c->hidden, VECTOR_LINEAR, e);
    } else {
        rc = embedder_linear(m, f, "classifier.dense", c->hidden, c->hidden, VECTOR_TANH, e);
        if (!rc) rc = embedder_linear(m, f, "classifier.out_proj", m->n_labels, c->hidden, VECTOR_LINEAR, e);
    }
    tensor_source_close(f);
    return rc;
}
