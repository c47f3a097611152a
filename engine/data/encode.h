/* Tokenises text with trained stretches into token ids and their mask.
 *
 * A trained stretch always begins at a token boundary, and the tokens before it are exactly those that the server
 * computes for that text as a prompt, so training and serving see the same prompts.  The stretch is tokenised together
 * with its prompt if that leaves the prompt's tokens unchanged, else separately. */
#ifndef TANDEM_ENGINE_DATA_ENCODE_H
#define TANDEM_ENGINE_DATA_ENCODE_H

#include "engine/base/err.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stretch {
    size_t start, end; /* bytes of the text; stretches are in order and do not overlap */
};

/* The tokenizer's properties that matter here; initialised once, then any thread. */
struct encoder {
    const struct tokenizer *tokenizer;
    int32_t eos;          /* -1: none */
    bool adds_space;      /* a separate text begins with a token for " " (SentencePiece) */
    const char *anchor;   /* prepended to a continued text, and its tokens removed again; NULL: not needed */
    struct tokens before; /* the anchor's tokens, owned */
};

enum {
    ENCODE_SPECIAL = 1, /* with the tokens that the tokenizer adds before and after a prompt (bos) */
    ENCODE_EOS = 2,     /* the last stretch ends with eos, unless it ends with a special token */
    ENCODE_GOES_ON = 4, /* the text continues a previous one */
};

/* ids and whether each is a target; zero-initialise, encoded_free. */
struct encoded {
    int32_t *id;
    uint8_t *trained;
    float *logprob; /* (n_logprob) of the first ids, what sampling gave them; NAN: unknown, as beyond n_logprob */
    size_t n, n_logprob, cap, cap_trained, cap_logprob;
};

int encoder_open(struct encoder *, const struct tokenizer *, int32_t eos, struct err *e);
void encoder_close(struct encoder *);

void encoded_add(struct encoded *, int32_t id, bool trained);
/* logprob: of the id added last */
void encoded_sampled(struct encoded *, float logprob);
/* The log-probabilities of the n ids from `first` on; NULL: all are unknown.  May allocate. */
const float *encoded_logprobs(struct encoded *, size_t first, size_t n);
void encoded_clear(struct encoded *);
void encoded_free(struct encoded *);

/* Appends text[0, n), valid UTF-8, up to the end of its last stretch. */
int encode_text(const struct encoder *, const char *text, size_t n, const struct stretch *, size_t n_stretches,
                unsigned flags, struct encoded *out, struct err *e);

#endif
