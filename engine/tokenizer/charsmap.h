/* SentencePiece's "precompiled_charsmap", the normalizer Precompiled of a tokenizer.json.
 *
 * Format (sentencepiece, src/normalizer.cc; darts-clone's double array): base64 of a little-endian uint32, the size of
 * the array in bytes; the array, uint32 each; then the replacements, UTF-8 texts that each end with a NUL.  The trie's
 * keys are the bytes of a text, its values are offsets into the replacements.  It comes from a file: every index is
 * checked where it is used. */
#ifndef TANDEM_ENGINE_TOKENIZER_CHARSMAP_H
#define TANDEM_ENGINE_TOKENIZER_CHARSMAP_H

#include "engine/tokenizer/json.h"

struct charsmap;

int charsmap_read(struct charsmap **out, const struct json_at *at, struct err *e);
void charsmap_free(struct charsmap *m); /* NULL is allowed */

/* The replacement of the shortest key that s[0, n) begins with, and its length; NULL: no key. */
const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, size_t *n_replacement);

#endif
