/* The token before a text that has nothing before it, as lm-eval chooses it. */
#ifndef TANDEM_ENGINE_EVAL_PREFIX_H
#define TANDEM_ENGINE_EVAL_PREFIX_H

#include "engine/serve/engine.h"

/* The model's bos_token, else its eos_token (tokenizer_config.json, special_tokens_map.json), else what the tokenizer
 * puts before texts, else the first id that ends a text.  @return -1: there is none. */
int32_t evaluation_prefix(const char *model, const struct engine *);

#endif
