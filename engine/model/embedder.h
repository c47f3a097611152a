/* What a model's directory says about vectors and classes: the files that sentence-transformers writes beside a model
 * (modules.json and what it lists, sentence_bert_config.json, config_sentence_transformers.json), and the head of a
 * *ForSequenceClassification model (its tensors, its labels in config.json).
 *
 * Formats: sentence-transformers 6.2 (base/model.py, sentence_transformer/modules), transformers 5.23 (modeling_*.py of
 * each family).  The files are untrusted; what is not supported is an error that names the file and the field.
 * Immutable after opening: any thread. */
#ifndef TANDEM_ENGINE_MODEL_EMBEDDER_H
#define TANDEM_ENGINE_MODEL_EMBEDDER_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stdint.h>

struct model_config;

/* What a request gets instead of tokens: the outputs of the last layer for its tokens, after the final norm if there is
 * one, as one vector.  The mean, with weights 1, 2, 3 ... or divided by the square root of their number instead; the
 * largest of each feature; that of the last or the first token. */
enum pooling {
    POOLING_NONE,
    POOLING_MEAN,
    POOLING_LAST,
    POOLING_FIRST,
    POOLING_MAX,
    POOLING_WEIGHTED,
    POOLING_ROOT,
};

/* Vectors that are concatenated, in this order; n 0: no pooling. */
enum { POOLINGS_MAX = 8 };
struct poolings {
    enum pooling v[POOLINGS_MAX];
    int n;
};

/* One step from the pooled vector to the result; what it does not have is NULL. */
struct vector_step {
    int rows, cols; /* outputs, inputs */
    float *w, *b;   /* (rows, cols), (rows): y = w x + b */
    enum vector_act { VECTOR_LINEAR, VECTOR_TANH, VECTOR_GELU, VECTOR_GELU_TANH, VECTOR_RELU, VECTOR_SIGMOID } act;
    float *norm_w, *norm_b, eps; /* (rows) then LayerNorm */
};

enum { VECTOR_STEPS_MAX = 4, PROMPTS_MAX = 256, LABELS_MAX = 4096 };

struct embedder {
    bool encoder;            /* texts are computed as a whole; the model gives vectors or classes, no text */
    bool sentences;          /* modules.json was read: the fields up to `prompts` are its model's */
    struct poolings pooling; /* n 0: the files do not say */
    bool skip_prompt;        /* the tokens of a prompt are left out of the pooling */
    bool normalize;          /* results have length 1 */
    int max_tokens;          /* longer texts are cut; 0: no such limit */
    bool lowercase;          /* texts are made lower case first */
    struct named_prompt {
        char *name, *text; /* text is put in front of an input */
    } * prompts;
    int n_prompts, default_prompt; /* -1: none */
    /* a classifier: one value for each label */
    bool classifies;  /* the model gives classes only, no text */
    bool multi_label; /* problem_type: labels do not exclude each other */
    bool raw_scores;  /* the activation of a cross-encoder's scores is the identity, not the sigmoid */
    char **labels;
    int n_labels;
    int32_t pad; /* a decoder's classifier reads the last token that is not this one; -1: the last */
    struct vector_step step[VECTOR_STEPS_MAX];
    int n_steps, inputs, size; /* inputs: values of a pooled vector; size: of a result */
};

/* A directory without any of these files is no error. */
int embedder_open(struct embedder *, const char *dir, const struct model_config *, struct err *);
void embedder_free(struct embedder *);

static inline bool embedder_generates(const struct embedder *m)
{
    return !m->encoder && !m->classifies;
}

/* Puts the pooled vector (inputs) through all steps: out (size). */
void embedder_apply(const struct embedder *, const double *pooled, float *out);

#endif
