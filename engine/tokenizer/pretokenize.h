/* The pre-tokenizer of a tokenizer.json: steps that split the open pieces of a text into words. */
#ifndef TANDEM_ENGINE_TOKENIZER_PRETOKENIZE_H
#define TANDEM_ENGINE_TOKENIZER_PRETOKENIZE_H

#include "engine/tokenizer/json.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/text.h"

/* what becomes of a delimiter */
enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS };

enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct pretokenizer {
    struct pretokenizer_step {
        enum pretokenizer_kind {
            PRETOKENIZE_BYTE_LEVEL,
            PRETOKENIZE_SPLIT,
            PRETOKENIZE_DIGITS,
            PRETOKENIZE_PUNCTUATION,
            PRETOKENIZE_WHITESPACE,
            PRETOKENIZE_WHITESPACE_SPLIT,
            PRETOKENIZE_METASPACE,
            PRETOKENIZE_CHARACTER, /* CharDelimiterSplit */
            PRETOKENIZE_LENGTH,    /* FixedLength */
            PRETOKENIZE_SCRIPTS,   /* UnicodeScripts */
        } kind;
        struct regex *regex; /* BYTE_LEVEL with use_regex, SPLIT, WHITESPACE */
        enum split_behavior behavior;
        bool invert;
        bool prefix_space; /* BYTE_LEVEL */
        bool split;        /* METASPACE */
        char mark[5];      /* METASPACE: what stands for a space; CHARACTER: the delimiter */
        int32_t length;    /* LENGTH: characters of a piece */
        enum prepend_scheme scheme;
    } * steps;
    size_t n, cap;
};

int pretokenizer_read(struct pretokenizer *z, const struct json_at *at, struct err *e); /* at->v NULL: no steps */
void pretokenizer_free(struct pretokenizer *z);

/* true when the last step is ByteLevel.  Its words stay raw bytes, for the model to map (bpe_encode's byte_level);
 * elsewhere in the list, ByteLevel rewrites the text. */
bool pretokenizer_is_byte_level(const struct pretokenizer *z);

int pretokenizer_apply(const struct pretokenizer *z, struct regex_run *run, struct text *t, struct text *spare,
                       struct err *e);

/* "replacement" and "prepend_scheme" of a Metaspace, shared with the decoder of that name */
int metaspace_read(const struct json_at *at, char mark[5], enum prepend_scheme *scheme, struct err *e);

#endif
