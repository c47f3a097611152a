/* A family that nobody made, for tests: norms after the branches, a window in every third layer, capped logits, and
 * names of its own in config.json and in the file.  It is rows of data and nothing else. */
#ifndef TANDEM_TESTS_MODEL_ODD_FAMILY_H
#define TANDEM_TESTS_MODEL_ODD_FAMILY_H

#include "engine/model/family.h"

#include <stdint.h>

extern const struct model_family odd_family;

enum { ODD_VOCAB = 288 };

/* A model of it, always the same: config.json and model.safetensors into dir, which is there. */
void odd_family_write(const char *dir);
/* What that model's logits are after each of n tokens, (n, ODD_VOCAB), computed in doubles, token by token. */
void odd_family_logits(const int32_t *id, int n, double *logits);

#endif
