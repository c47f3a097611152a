/* What was generated before: the last texts that followed a prompt with the same end, which a request that is repeated
 * or generated anew may continue likewise.
 *
 * An entry holds the last texts of one key and an index of their n-grams (ngrams.h).  The key is a hash of
 * the last tokens of the prompt, the adapter's version and the request's salt: as in the prefix cache, a request learns
 * nothing, not even by its time, of texts with another salt.  Memory is bounded; the entry that was used longest ago
 * goes first.  Pure; owned by the engine thread. */
#ifndef TANDEM_ENGINE_SERVE_HISTORY_H
#define TANDEM_ENGINE_SERVE_HISTORY_H

#include <stddef.h>
#include <stdint.h>

enum {
    HISTORY_PROMPT = 64,   /* the last tokens of a prompt that are compared; a shorter prompt as a whole */
    HISTORY_TOKENS = 8192, /* of an entry, at most */
    HISTORY_TEXTS = 4,     /* of an entry, at most */
};

struct history;
struct history_entry;

/* bytes: at most this much is kept; 0: nothing.  NULL: no memory. */
struct history *history_new(size_t bytes, uint64_t hash_seed);
void history_free(struct history *); /* after the last history_unref; NULL is allowed */

uint64_t history_key(const struct history *, uint64_t root, uint64_t salt, const int32_t *prompt, int n);
/* @return the texts of the key, with a reference; NULL: none. */
struct history_entry *history_find(struct history *, uint64_t key);
void history_unref(struct history_entry *); /* NULL is allowed */
/* Keeps the tokens from n_prompt on of a text (n).  Too little memory: it is not kept. */
void history_add(struct history *, uint64_t key, const int32_t *tokens, int n_prompt, int n);
/* As ngrams_propose_from. */
int history_propose(const struct history_entry *, const int32_t *tokens, int n, int most, int32_t *out, int *agreed);

/* Of what is kept: its bytes, its entries. */
size_t history_bytes(const struct history *);
int history_entries(const struct history *);

#endif
