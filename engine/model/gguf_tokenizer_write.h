/* tokenizer.json and tokenizer_config.json as the keys of a GGUF file. */
#ifndef TANDEM_ENGINE_MODEL_GGUF_TOKENIZER_WRITE_H
#define TANDEM_ENGINE_MODEL_GGUF_TOKENIZER_WRITE_H

#include "engine/files/gguf_write.h"

/* BPE, byte-level or SentencePiece's, with its added tokens, and the chat templates.  vocab: rows of the embedding
 * table; rows without a token get a filler.  eos: the ends of a text besides the tokenizer's own.  ERR_UNSUPPORTED for
 * what the format cannot say. */
int gguf_tokenizer_write(struct gguf_writer *, const char *dir, int vocab, const int32_t *eos, int n_eos,
                         struct err *e);

#endif
