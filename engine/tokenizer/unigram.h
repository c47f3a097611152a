/* Unigram (SentencePiece): one word to the token ids with the largest sum of scores.  Immutable once read. */
#ifndef TANDEM_ENGINE_TOKENIZER_UNIGRAM_H
#define TANDEM_ENGINE_TOKENIZER_UNIGRAM_H

#include "engine/base/err.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/vocab_trie.h"

struct unigram {
    struct vocab vocab;
    struct vocab_trie trie;
    double *scores;   /* (vocab.size) */
    double unk_score; /* of a character that is no piece */
    int32_t unk;      /* -1: there is none */
    bool byte_fallback;
    int32_t fallback[256]; /* id of <0xNN> or -1 */
};

/* After vocabulary, scores and options are in place. */
void unigram_seal(struct unigram *m);
void unigram_free(struct unigram *m);
/* Replaces run's symbols by those of word[0, n).  A symbol of length 0 stands for the same bytes as the one before.
 * @return 0; an err code where a character is no piece and the model has no unknown token. */
int unigram_encode(const struct unigram *m, struct bpe_run *run, const char *word, size_t n, struct err *e);

#endif
