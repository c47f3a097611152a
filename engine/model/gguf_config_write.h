/* The configuration of a model as the keys of a GGUF file. */
#ifndef TANDEM_ENGINE_MODEL_GGUF_CONFIG_WRITE_H
#define TANDEM_ENGINE_MODEL_GGUF_CONFIG_WRITE_H

#include "engine/files/gguf_model.h"
#include "engine/files/gguf_write.h"
#include "engine/model/config.h"

/* Sizes, norms, rotations, experts and the family's own numbers.  What the keys cannot say is not written, and shows
 * when they are read again: gguf_config_check. */
void gguf_config_write(struct gguf_writer *, const struct gguf_arch *, const struct model_config *);

/* Divisors of the frequencies that are a tensor of the file: "rope_freqs", or "rope_factors_short" and
 * "rope_factors_long".  @return how many there are; out[i] has one for each rotated pair, and *pairs is their number.
 */
int gguf_rope_tensors(const struct model_config *, const char *names[2], float out[2][ROPE_PAIRS_MAX], int *pairs);

/* Compares a configuration with the one read back from the keys.  ERR_UNSUPPORTED, naming what differs. */
int gguf_config_check(const struct model_config *want, const struct model_config *got, struct err *e);

#endif
