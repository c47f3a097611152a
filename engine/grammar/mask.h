/* Which tokens may come next in a state of a grammar's automaton (run.h): one bit per token.
 *
 * The vocabulary is a trie of its tokens' bytes, made once per model and immutable: any thread may read it.  A mask is
 * computed by walking the trie and the automaton together, in time slices set by the caller.  The subtree below a
 * disallowed byte sequence is skipped, and so are subtrees on which the state does not change (the inside of a string).
 */
#ifndef TANDEM_ENGINE_GRAMMAR_MASK_H
#define TANDEM_ENGINE_GRAMMAR_MASK_H

#include "engine/grammar/run.h"
#include "engine/tokenizer/tokenizer.h"

struct token_trie;

/* Special tokens are spelled with GRAM_SPECIAL around them.  Tokens with that byte in their own text, without bytes or
 * with more than GRAM_LOOK are never allowed; eos tokens exactly when the state accepts.  vocab: the model's, which may
 * differ from the tokenizer's. */
struct token_trie *token_trie_new(const struct tokenizer *, int vocab, const int32_t *eos, int n_eos);
void token_trie_free(struct token_trie *);
/* The bytes that the token adds to the text; n 0: none, or it is never allowed. */
const unsigned char *token_trie_bytes(const struct token_trie *, int32_t id, size_t *n);
/* Whether a longer token begins with these bytes. */
bool token_trie_longer(const struct token_trie *, const unsigned char *bytes, size_t n);
int token_trie_eos(const struct token_trie *);       /* number of eos tokens */
size_t token_trie_memory(const struct token_trie *); /* bytes */

/* Immutable once computed; reference counted. */
struct gram_mask {
    _Atomic int refs;
    int vocab;
    int n_allowed;
    uint32_t bits[]; /* ((vocab + 31) / 32) token i: bit i % 32 of word i / 32 */
};

struct gram_mask *gram_mask_ref(struct gram_mask *);
void gram_mask_unref(struct gram_mask *); /* NULL is allowed */
size_t gram_mask_bytes(const struct gram_mask *);

struct mask_walk {       /* zero-initialise; between two calls of mask_at it belongs to one state */
    struct gram_mask *m; /* NULL: none in progress */
    int part;            /* of the trie */
    int known;           /* tokens of at most this many bytes are already in m */
    uint32_t at;         /* its next node */
    int32_t path[GRAM_LOOK + 1];
    uint8_t chars[GRAM_LOOK + 1]; /* characters begun along the path */
};

/* The mask of a state, cached with the state; computed if missing, until clock_now() reaches `until`.  @return 1 and a
 * reference for the caller; 0: not finished, call again; GRAM_FULL.  Under the automaton's lock, which may be released
 * between two calls. */
int mask_at(struct mask_walk *, const struct token_trie *, struct gram_automaton *, int32_t state, uint64_t until,
            struct gram_mask **);
void mask_walk_drop(struct mask_walk *); /* discards the partial result */

#endif
