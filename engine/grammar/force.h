/* Forced text: stretches for which a grammar allows only one continuation, as tokens (masker.c emits them without
 * sampling).
 *
 * The bytes that must follow a state are spelled with the tokens the tokenizer itself would use, and only as far as
 * that spelling is unambiguous: a token is left to the model if a longer token of the vocabulary could start at the
 * same byte and extend beyond the stretch. */
#ifndef TANDEM_ENGINE_GRAMMAR_FORCE_H
#define TANDEM_ENGINE_GRAMMAR_FORCE_H

#include "engine/grammar/mask.h"

/* The tokens that must follow the state, to *out, cached with the state.  @return 1; GRAM_LATER: not computed yet, and
 * gram_hurry is on.  Under the automaton's lock; *out is immutable and lives as long as the automaton.  It depends only
 * on grammar, vocabulary and state. */
int grammar_force(const struct token_trie *, const struct tokenizer *, struct gram_automaton *, int32_t state,
                  const struct gram_forced **out);

#endif
