/* A two-way table of token spellings and ids.  Filled while a tokenizer is read, immutable after. */
#ifndef TANDEM_ENGINE_TOKENIZER_VOCAB_H
#define TANDEM_ENGINE_TOKENIZER_VOCAB_H

#include "engine/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOKEN_ID_MAX = (1 << 24) - 1 };

struct vocab {
    struct buf arena; /* spellings, each NUL-terminated */
    struct vocab_entry {
        uint32_t at, len; /* where in arena */
        int32_t id;
    } * entries;
    size_t n, cap;
    struct vocab_slot {
        uint32_t hash, entry; /* index of an entry + 1; 0 free */
    } * slots;                /* open addressing; comparing the hash here avoids most accesses to entries */
    size_t mask;
    uint32_t *by_id; /* (size) index of an entry + 1; 0 for an unused id */
    int size;        /* largest id + 1 */
};

/* Reserves space for n tokens with ids below size. */
void vocab_init(struct vocab *v, size_t n, int size);
void vocab_free(struct vocab *v);
/* false when the spelling or the id is taken already */
bool vocab_add(struct vocab *v, const char *s, size_t n, int32_t id);
int32_t vocab_find(const struct vocab *v, const char *s, size_t n); /* -1: not here */
const char *vocab_spelling(const struct vocab *v, int32_t id, size_t *n);

#endif
