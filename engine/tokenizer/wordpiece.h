/* WordPiece: one word to token ids, the longest piece first.  The model is immutable once read. */
#ifndef TANDEM_ENGINE_TOKENIZER_WORDPIECE_H
#define TANDEM_ENGINE_TOKENIZER_WORDPIECE_H

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/vocab_trie.h"

struct wordpiece {
    struct vocab vocab;
    struct vocab_trie trie;
    int64_t inside;     /* the trie's node behind the prefix of pieces within a word, or VOCAB_TRIE_NONE */
    int32_t unk;        /* of a word that has no pieces */
    int32_t characters; /* of the longest word that is looked up: a longer one is unknown */
};

/* After vocabulary and options are in place. */
void wordpiece_seal(struct wordpiece *m, const char *prefix);
void wordpiece_free(struct wordpiece *m);
/* Replaces run's symbols by those of word[0, n). */
void wordpiece_encode(const struct wordpiece *m, struct bpe_run *run, const char *word, size_t n);

#endif
