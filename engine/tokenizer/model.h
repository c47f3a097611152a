/* Reading the "model" of a tokenizer.json into a struct bpe. */
#ifndef TANDEM_TOKENIZER_MODEL_H
#define TANDEM_TOKENIZER_MODEL_H

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/json.h"

int model_read(struct bpe *m, const struct json_at *at, struct err *e);

#endif
