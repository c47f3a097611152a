/* Spellings to ids and back (vocab.h). */
#include "engine/tokenizer/vocab.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>

static uint32_t hash_bytes(const char *s, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (; n >= 8; s += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    uint64_t w = 0;
    memcpy(&w, s, n);
    h = (h ^ w) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 32);
}

void vocab_init(struct vocab *v, size_t n, int size)
{
    size_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    *v = (struct vocab){.mask = slots - 1, .size = size};
    v->slots = mem_array(slots, sizeof *v->slots);
    v->by_id = mem_array((size_t)size, sizeof *v->by_id);
    mem_grow(&v->entries, &v->cap, n + 1, sizeof *v->entries);
    buf_str(&v->arena, "");
}

void vocab_free(struct vocab *v)
{
    buf_free(&v->arena);
    free(v->entries);
    free(v->slots);
    free(v->by_id);
    *v = (struct vocab){0};
}

/* The slot that holds s, or the free one where it would go. */
static struct vocab_slot *vocab_slot(const struct vocab *v, const char *s, size_t n, uint32_t hash)
{
    for (size_t i = hash & v->mask;; i = (i + 1) & v->mask) {
        struct vocab_slot *slot = v->slots + i;
        if (!slot->entry) return slot;
        if (slot->hash != hash) continue;
        const struct vocab_entry *t = v->entries + slot->entry - 1;
        if (t->len == n && !memcmp(v->arena.data + t->at, s, n)) return slot;
    }
}

bool vocab_add(struct vocab *v, const char *s, size_t n, int32_t id)
{
    uint32_t hash = hash_bytes(s, n);
    struct vocab_slot *slot = vocab_slot(v, s, n, hash);
    if (slot->entry || v->by_id[id]) return false;
    mem_grow(&v->entries, &v->cap, v->n + 1, sizeof *v->entries);
    v->entries[v->n++] = (struct vocab_entry){(uint32_t)v->arena.len, (uint32_t)n, id};
    buf_append(&v->arena, s, n);
    buf_append(&v->arena, "", 1);
    *slot = (struct vocab_slot){hash, (uint32_t)v->n};
    v->by_id[id] = (uint32_t)v->n;
    return true;
}

int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    if (!v->n) return -1;
    uint32_t entry = vocab_slot(v, s, n, hash_bytes(s, n))->entry;
    return entry ? v->entries[entry - 1].id : -1;
}

const char *vocab_spelling(const struct vocab *v, int32_t id, size_t *n)
{
    if (id < 0 || id >= v->size || !v->by_id[id]) return NULL;
    const struct vocab_entry *t = v->entries + v->by_id[id] - 1;
    if (n) *n = t->len;
    return v->arena.data + t->at;
}
