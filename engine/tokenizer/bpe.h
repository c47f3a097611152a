/* Byte-pair encoding: one word to token ids.  The model is immutable once read; a bpe_run is one call's scratch. */
#ifndef TANDEM_ENGINE_TOKENIZER_BPE_H
#define TANDEM_ENGINE_TOKENIZER_BPE_H

#include "engine/tokenizer/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe {
    struct vocab vocab;
    struct bpe_merge {
        uint32_t left, right; /* ids; left UINT32_MAX in a free slot */
        uint32_t rank, id;
    } * merges; /* open addressing */
    size_t merge_mask, n_merges;
    char *prefix, *suffix; /* NULL or non-empty: continuing_subword_prefix, end_of_word_suffix */
    int32_t unk;           /* -1: unknown characters are dropped */
    bool fuse_unk, byte_fallback, ignore_merges;
    uint64_t *joints;       /* hashed set of symbol pairs some merge bridges, or NULL: bpe_seal */
    bool plain;             /* neither prefix nor suffix: a character's symbol does not depend on its position */
    int32_t fallback[256];  /* id of <0xNN> or -1 */
    int32_t byte_unit[256]; /* id of the byte's byte-level character or -1 */
};

struct bpe_symbol {
    int32_t id;
    uint32_t len; /* bytes of the word it stands for; 0 while merging: its left neighbour has taken it */
    int32_t prev, next;
};

struct bpe_run {
    struct bpe_symbol *symbols; /* the result: n of them, in order */
    size_t n, cap;
    struct bpe_candidate {
        uint64_t order; /* rank, then position */
        uint32_t id;
    } * heap;
    size_t n_heap, cap_heap;
    struct buf spelled;
    struct unigram_end *ends; /* of unigram.c */
    size_t cap_ends;
};

void bpe_free(struct bpe *m);
void bpe_merges_init(struct bpe *m, size_t n);
void bpe_merge_add(struct bpe *m, int32_t left, int32_t right, uint32_t rank, int32_t id); /* a later one replaces */
/* After vocabulary, merges and options are in place. */
void bpe_seal(struct bpe *m);

/* Encodes word[0, n).  byte_level: the word is raw bytes and the model knows them by their byte-level characters. */
void bpe_encode(const struct bpe *m, struct bpe_run *run, const char *word, size_t n, bool byte_level);
void bpe_run_free(struct bpe_run *run);
void bpe_symbol_add(struct bpe_run *run, int32_t id, uint32_t len);

/* The character that stands for a byte in byte-level vocabularies (GPT-2's table), and back: -1 for no byte. */
uint32_t byte_level_char(unsigned char byte);
int byte_level_byte(uint32_t c);

#endif
