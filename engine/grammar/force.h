/* Stretches of text that a grammar leaves no choice about, as tokens (masker.c emits them without sampling).
 *
 * The bytes that must follow a state are spelled with the tokens the tokenizer itself would use, and only as far as
 * that spelling is the only good one: a token is left to the model when a longer one of the vocabulary could begin
 * where it begins and go on beyond the stretch. */
#ifndef TANDEM_ENGINE_GRAMMAR_FORCE_H
#define TANDEM_ENGINE_GRAMMAR_FORCE_H

#include "engine/grammar/mask.h"

/* The tokens that must follow the state: *out, kept with it.  1; GRAM_LATER: not known, and gram_hurry is on.  Under
 * the automaton's lock; *out is immutable and lives as long as the automaton.  It depends on nothing but grammar,
 * vocabulary and state. */
int grammar_force(const struct token_trie *, const struct tokenizer *, struct gram_automaton *, int32_t state,
                  const struct gram_forced **out);

#endif
