/* Added tokens, special ones among them: spellings that are split off the text before any other processing. */
#ifndef TANDEM_ENGINE_TOKENIZER_ADDED_H
#define TANDEM_ENGINE_TOKENIZER_ADDED_H

#include "engine/tokenizer/normalize.h"
#include "engine/tokenizer/vocab.h"

/* Patterns of one kind in a trie whose edges are in one hash table, so the cost of a step does not depend on their
 * number. */
struct added_trie {
    struct added_edge {
        uint64_t key; /* (node << 8 | byte) + 1; 0 free */
        uint32_t to;
    } * edges;
    size_t mask;
    int32_t *ends; /* (n_nodes) index of the token that ends here or -1 */
    uint32_t n_nodes;
    bool first[256]; /* some pattern starts with this byte */
};

struct added {
    struct added_token {
        int32_t id;
        bool single_word, lstrip, rstrip, normalized, special;
    } * tokens;
    size_t n;
    int size;                      /* largest id + 1, including the model's tokens */
    struct vocab names;            /* spelling <-> id of the added tokens */
    int32_t *by_id;                /* (names.size) index into tokens or -1 */
    struct regex *word;            /* one word character, for single_word */
    struct added_trie raw, normal; /* matched before and after normalization */
};

/* Reads "added_tokens".  model: the model's vocabulary, whose ids its tokens keep. */
int added_read(struct added *a, const struct json_at *at, const struct vocab *model, const struct normalizer *z,
               struct err *e);
void added_free(struct added *a);
const struct added_token *added_by_id(const struct added *a, int32_t id); /* NULL: no added token */

/* Splits the tokens of one trie off every open piece of t, in place. */
void added_cut(const struct added *a, const struct added_trie *trie, struct regex_run *run, struct text *t,
               struct text *spare);

#endif
