/* What the readers of an embedder's files share: JSON files, and linear layers of safetensors files. */
#ifndef TANDEM_ENGINE_MODEL_EMBEDDER_FILES_H
#define TANDEM_ENGINE_MODEL_EMBEDDER_FILES_H

#include "engine/model/embedder.h"
#include "engine/model/tensor_source.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Parses dir/name; the caller frees *out.  *out NULL without an error: there is no such file. */
int embedder_json(const char *dir, const char *name, cJSON **out, struct err *e);

/* A member that is not null; a text; true or false; a whole number from 1 to max.  What is missing or of another type:
 * NULL, `otherwise`, 0. */
const cJSON *embedder_get(const cJSON *, const char *name);
const char *embedder_text(const cJSON *, const char *name);
bool embedder_bool(const cJSON *, const char *name, bool otherwise);
int embedder_size(const cJSON *, const char *name, int max);

/* The part of a Python class's name behind the last dot. */
const char *embedder_class_name(const char *path);
/* The activation of a class of torch.nn or a name of transformers.  @return whether it is known. */
bool embedder_act(const char *name, enum vector_act *);

/* Copies the tensor (rows, cols), or (rows) where cols is 0, as floats, owned by the caller.  *out NULL without an
 * error: there is none, and it is optional. */
int embedder_floats(const struct tensor_source *, const char *name, int rows, int cols, bool optional, float **out,
                    struct err *e);
/* Adds a step: the linear layer NAME.weight (rows, cols) and NAME.bias, which is optional. */
int embedder_linear(struct embedder *, const struct tensor_source *, const char *name, int rows, int cols,
                    enum vector_act, struct err *e);

/* Reads modules.json and the files that it lists, and those of prompts and limits (sentence_files.c).  Without
 * modules.json nothing changes. */
int sentence_files_read(struct embedder *, const char *dir, const struct model_config *, struct err *e);
/* Reads the longest text and whether texts are made lower case; for classifiers too. */
int sentence_limits_read(struct embedder *, const char *dir, struct err *e);
/* Reads the head of a *ForSequenceClassification model (classifier_head.c); config: config.json. */
int classifier_head_read(struct embedder *, const char *dir, const struct model_config *, const cJSON *config,
                         struct err *e);

#endif
