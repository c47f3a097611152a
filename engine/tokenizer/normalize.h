/* The normalizer of a tokenizer.json: a list of rewriting steps, each applied to every open piece of a text. */
#ifndef TANDEM_ENGINE_TOKENIZER_NORMALIZE_H
#define TANDEM_ENGINE_TOKENIZER_NORMALIZE_H

#include "engine/tokenizer/charsmap.h"
#include "engine/tokenizer/json.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/text.h"

struct normalizer {
    struct normalizer_step {
        enum normalizer_kind {
            NORMALIZE_NFC,
            NORMALIZE_NFD,
            NORMALIZE_NFKC,
            NORMALIZE_NFKD,
            NORMALIZE_LOWERCASE,
            NORMALIZE_STRIP,
            NORMALIZE_PREPEND,
            NORMALIZE_REPLACE,
            NORMALIZE_DROP_NONSPACING, /* of BertNormalizer's strip_accents */
            NORMALIZE_DROP_MARKS,      /* StripAccents */
            NORMALIZE_NMT,             /* some controls are dropped, some characters become a space */
            NORMALIZE_BYTE_LEVEL,      /* bytes to the characters that stand for them */
            NORMALIZE_BERT_CLEAN,      /* controls are dropped, white space becomes a space */
            NORMALIZE_BERT_CJK,        /* spaces around CJK ideographs */
            NORMALIZE_CHARSMAP,        /* Precompiled */
        } kind;
        bool left, right;     /* STRIP */
        struct regex *regex;  /* REPLACE */
        char *content;        /* PREPEND, REPLACE; owned */
        struct charsmap *map; /* CHARSMAP; owned */
    } * steps;
    size_t n, cap;
};

int normalizer_read(struct normalizer *z, const struct json_at *at, struct err *e); /* at->v NULL: no steps */
void normalizer_free(struct normalizer *z);

/* Normalizes every open piece of *t; *spare is scratch of the same kind. */
int normalizer_apply(const struct normalizer *z, struct regex_run *run, struct text *t, struct text *spare,
                     struct err *e);

#endif
