/* Where a text repeats itself: an index of its n-grams, which proposes the tokens that may follow its end.
 *
 * Each token is indexed by the NGRAM tokens that end with it.  The end of the text is looked up, and of the places
 * found the one that agrees furthest back gives the proposal.  Pure; owned by the engine thread, one per request. */
#ifndef TANDEM_ENGINE_SERVE_NGRAMS_H
#define TANDEM_ENGINE_SERVE_NGRAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NGRAM = 3,
    NGRAMS_MAX = 1 << 15, /* the last tokens of a text that are indexed */
    NGRAMS_AGREE = 64,    /* tokens compared at a place */
    NGRAMS_ADD = 1 << 12, /* tokens added by one call, which bounds its time */
};

struct ngrams {
    int32_t *head; /* (mask + 1) by hash: 1 + the position of the last n-gram's last token; 0: none */
    int32_t *prev; /* (mask + 1) by position & mask: the same for the n-gram before it with that hash */
    uint32_t mask;
    int n; /* tokens indexed */
};

/* For a text of at most `len` tokens.  @return false: no memory; nothing is proposed then. */
bool ngrams_open(struct ngrams *, int len);
void ngrams_close(struct ngrams *);
size_t ngrams_bytes(const struct ngrams *);

/* Adds the tokens of the text (n) that are new to the index, at most NGRAMS_ADD.  @return whether it has all. */
bool ngrams_add(struct ngrams *, const int32_t *tokens, int n);
/* What may follow the text (n), all of which is indexed: at most `most` tokens to out.  @return their number;
 * *agreed: how many tokens before them agree, at most NGRAMS_AGREE. */
int ngrams_propose(const struct ngrams *, const int32_t *tokens, int n, int most, int32_t *out, int *agreed);
/* The same of another text: what followed there (`text`, m tokens, all of which is indexed) after the place that agrees
 * furthest back with the end of `tokens`, up to its end or a negative token. */
int ngrams_propose_from(const struct ngrams *, const int32_t *text, int m, const int32_t *tokens, int n, int most,
                        int32_t *out, int *agreed);

#endif
