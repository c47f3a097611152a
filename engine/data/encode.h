/* Text of which some stretches are trained on, to token ids and their mask.
 *
 * Where a trained stretch begins there is a boundary between tokens, and what is before it are exactly the tokens that
 * the server computes for that text as a prompt: the model is trained on what it will see.  The stretch itself is
 * tokenised as one with its prompt when that leaves the prompt's tokens as they are, else on its own. */
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

/* What of the tokenizer's ways matters; made once, then any thread. */
struct encoder {
    const struct tokenizer *tokenizer;
    int32_t eos;          /* -1: none */
    bool adds_space;      /* a text of its own begins with a token that says " " (SentencePiece) */
    const char *anchor;   /* put before a text that goes on, and its tokens taken away again; NULL: none needed */
    struct tokens before; /* the anchor's tokens, owned */
};

enum {
    ENCODE_SPECIAL = 1, /* with what the tokenizer puts before and behind a prompt (bos) */
    ENCODE_EOS = 2,     /* the last stretch ends with eos, unless it ends with a special token */
    ENCODE_GOES_ON = 4, /* the text goes on from one before */
};

/* ids and whether each is a target; zero-initialise, encoded_free. */
struct encoded {
    int32_t *id;
    uint8_t *trained;
    size_t n, cap, cap_trained;
};

int encoder_open(struct encoder *, const struct tokenizer *, int32_t eos, struct err *e);
void encoder_close(struct encoder *);

void encoded_add(struct encoded *, int32_t id, bool trained);
void encoded_free(struct encoded *);

/* Appends text[0, n), valid UTF-8, up to the end of its last stretch. */
int encode_text(const struct encoder *, const char *text, size_t n, const struct stretch *, size_t n_stretches,
                unsigned flags, struct encoded *out, struct err *e);

#endif
