#include "engine/tokenizer/charsmap.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    ENCODED_MAX = 16 << 20,
    REPLACEMENT_MAX = 256, /* bytes; a longer one counts as no key, so a text grows at most this much a character */
};

struct charsmap {
    uint32_t *units;
    size_t n_units;
    char *texts; /* (n_texts) valid UTF-8 */
    size_t n_texts;
};

static int digit_value(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* @return bytes written to out, or -1: not base64 with its padding. */
static long base64_decode(const char *s, size_t n, unsigned char *out)
{
    long k = 0;
    if (n % 4) return -1;
    size_t pad = n && s[n - 1] == '=' ? 1 + (s[n - 2] == '=') : 0;
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int v = i < n - pad ? digit_value(s[i]) : 0;
        if (v < 0) return -1;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 != 3) continue;
        out[k++] = (unsigned char)(bits >> 16);
        out[k++] = (unsigned char)(bits >> 8);
        out[k++] = (unsigned char)bits;
        bits = 0;
    }
    return k - (long)pad;
}

static uint32_t little(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int blob_read(struct charsmap *m, const unsigned char *p, size_t n, const struct json_at *at, struct err *e)
{
    if (n < 4) return json_fail(at, e, ERR_INVALID, "shorter than its header");
    uint32_t bytes = little(p);
    if (bytes > n - 4 || bytes < 4 || bytes % 4)
        return json_fail(at, e, ERR_INVALID, "a trie of %u bytes in %zu bytes", (unsigned)bytes, n);
    m->n_units = bytes / 4;
    m->units = mem_array(m->n_units, sizeof *m->units);
    for (size_t i = 0; i < m->n_units; i++) m->units[i] = little(p + 4 + 4 * i);
    m->n_texts = n - 4 - bytes;
    m->texts = mem_alloc(m->n_texts + 1);
    memcpy(m->texts, p + 4 + bytes, m->n_texts);
    for (size_t i = 0; i < m->n_texts;) {
        int step = utf8_step(m->texts + i, m->n_texts - i);
        if (step <= 0) return json_fail(at, e, ERR_INVALID, "byte %zu is not UTF-8", 4 + bytes + i);
        i += (size_t)step;
    }
    return 0;
}

int charsmap_read(struct charsmap **out, const struct json_at *at, struct err *e)
{
    const char *s;
    struct json_at place = json_member(at, "precompiled_charsmap");
    int rc = json_string(at, "precompiled_charsmap", &s, e);
    if (rc) return rc;
    size_t n = strlen(s);
    if (n > ENCODED_MAX) return json_fail(&place, e, ERR_INVALID, "larger than %d MiB", ENCODED_MAX >> 20);
    unsigned char *blob = mem_alloc(n / 4 * 3 + 4);
    long bytes = base64_decode(s, n, blob);
    *out = mem_zalloc(sizeof **out);
    rc = bytes < 0 ? json_fail(&place, e, ERR_INVALID, "not base64") : blob_read(*out, blob, (size_t)bytes, &place, e);
    free(blob);
    return rc;
}

void charsmap_free(struct charsmap *m)
{
    if (!m) return;
    free(m->units);
    free(m->texts);
    free(m);
}

/* darts-clone: bits of a unit.  A leaf's value is its lower 31 bits. */
static uint32_t unit_offset(uint32_t unit)
{
    return (unit >> 10) << ((unit & 1u << 9) >> 6);
}

static const char *replacement_at(const struct charsmap *m, uint32_t at, size_t *n)
{
    if (at >= m->n_texts || ((unsigned char)m->texts[at] & 0xc0) == 0x80) return NULL;
    *n = strnlen(m->texts + at, m->n_texts - at);
    return *n <= REPLACEMENT_MAX ? m->texts + at : NULL;
}

const char *charsmap_find(const struct charsmap *m, const char *s, size_t n, size_t *n_replacement)
{
    uint32_t node = unit_offset(m->units[0]);
    for (size_t i = 0; i < n && s[i]; i++) {
        unsigned char c = (unsigned char)s[i];
        node ^= c;
        if (node >= m->n_units) return NULL;
        uint32_t unit = m->units[node];
        if ((unit & (1u << 31 | 0xffu)) != c) return NULL;
        node ^= unit_offset(unit);
        if (!(unit >> 8 & 1)) continue;
        return node < m->n_units ? replacement_at(m, m->units[node] & 0x7fffffffu, n_replacement) : NULL;
    }
    return NULL;
}
