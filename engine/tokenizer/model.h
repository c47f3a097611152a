/* Reading the "model" of a tokenizer.json, and encoding one word with it. */
#ifndef TANDEM_TOKENIZER_MODEL_H
#define TANDEM_TOKENIZER_MODEL_H

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/json.h"
#include "engine/tokenizer/unigram.h"
#include "engine/tokenizer/wordpiece.h"

enum model_kind { MODEL_BPE, MODEL_WORDPIECE, MODEL_UNIGRAM, MODEL_WORDLEVEL };

/* A word is a token, or unknown. */
struct wordlevel {
    struct vocab vocab;
    int32_t unk; /* -1: an unknown word is an error, as in the reference */
};

struct model {
    enum model_kind kind;
    union {
        struct bpe bpe;
        struct wordpiece wordpiece;
        struct unigram unigram;
        struct wordlevel wordlevel;
    };
};

int model_read(struct model *m, const struct json_at *at, struct err *e);
void model_free(struct model *m);
const struct vocab *model_vocab(const struct model *m);
/* Replaces run's symbols by those of word[0, n).  byte_level: see bpe_encode. */
int model_encode(const struct model *m, struct bpe_run *run, const char *word, size_t n, bool byte_level,
                 struct err *e);

#endif
