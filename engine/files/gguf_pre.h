/* How byte-level BPE splits words before merging: llama.cpp's names (src/llama-vocab.cpp), with the patterns of the
 * models' own tokenizer.json. */
#ifndef TANDEM_ENGINE_FILES_GGUF_PRE_H
#define TANDEM_ENGINE_FILES_GGUF_PRE_H

#include "engine/files/gguf.h"

#include <stdbool.h>

enum { GGUF_PRE_FIRST = 4 };
struct gguf_pre {
    const char
        *first[GGUF_PRE_FIRST]; /* patterns in whose places a text is split before, each in turn; NULL: no more */
    const char *pattern;        /* its matches are words; "": GPT-2's, which ByteLevel has built in */
    bool digits;                /* each digit is a word, whatever the pattern says */
    bool nfc, whole;            /* whole: a word that is a token needs no merges */
    bool bos;                   /* a beginning is put before a text unless a key says otherwise */
};

/* tokenizer.ggml.pre; NULL: not known. */
const struct gguf_pre *gguf_pre_find(struct gguf_text name);
/* A name for words split like this, preferably one with that normalisation, which the format does not say; NULL: none.
 */
const char *gguf_pre_name(const char *pattern, bool digits, bool whole, bool nfc);

#endif
