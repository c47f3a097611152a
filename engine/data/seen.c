#include "engine/data/seen.h"

#include "engine/base/err.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool grow(struct seen *s)
{
    size_t n = s->slots ? 2 * s->slots : 1024;
    uint64_t *slot = calloc(n, sizeof *slot);
    if (!slot) return false;
    for (size_t i = 0; i < s->slots; i++) {
        size_t k = (size_t)s->slot[i] & (n - 1);
        if (!s->slot[i]) continue;
        while (slot[k]) k = (k + 1) & (n - 1);
        slot[k] = s->slot[i];
    }
    free(s->slot);
    s->slot = slot;
    s->slots = n;
    return true;
}

int seen_add(struct seen *s, uint64_t digest)
{
    if (!digest) digest = 1;
    if (2 * (s->n + 1) > s->slots && !grow(s)) return ERR_NOMEM;
    size_t k = (size_t)digest & (s->slots - 1);
    for (; s->slot[k]; k = (k + 1) & (s->slots - 1))
        if (s->slot[k] == digest) return 0;
    s->slot[k] = digest;
    s->n++;
    return 1;
}

void seen_free(struct seen *s)
{
    free(s->slot);
    *s = (struct seen){0};
}

uint64_t seen_digest(const struct dataset_row *r, unsigned char out[SHA256_BYTES])
{
    struct sha256 h;
    uint64_t first;
    sha256_start(&h);
    int32_t more[] = {r->second, (int32_t)r->label};
    sha256_add(&h, r->id, (size_t)r->n * sizeof *r->id);
    sha256_add(&h, r->trained, (size_t)r->n);
    if (r->second || r->label) sha256_add(&h, more, sizeof more); /* the hash of other sets stays */
    if (r->fields) sha256_add(&h, r->fields, (size_t)r->n_fields);
    sha256_end(&h, out);
    memcpy(&first, out, sizeof first);
    return first;
}
