/* Fuzzes grammars: a regular expression, and after a NUL a text.  What builds must
 *   - not crash, and stay within its limits;
 *   - never lead into a dead end: a random walk that takes only bytes that are allowed comes to an accepting state, and
 *     what it wrote matches;
 *   - say of the text what the automaton says when asked byte by byte;
 *   - give a state without counts from which the same bytes may follow, while no count meets its bound.
 * What does not build must say why. */
#include "engine/base/check.h"
#include "engine/grammar/run.h"
#include "kernels/rng.h"

#include <string.h>

enum { WALK_MAX = 200 };

static void check_loose(struct gram_automaton *a, int32_t state)
{
    int32_t loose = gram_loose(a, state);
    if (loose < 0) return;
    CHECK(gram_loose(a, loose) == loose && gram_accepts(a, loose) == gram_accepts(a, state));
    if (gram_slack(a, state) == 0) return;
    for (int byte = 0; byte < 256; byte++) {
        int32_t x = gram_next(a, state, (uint8_t)byte), y = gram_next(a, loose, (uint8_t)byte);
        CHECK((x == GRAM_DEAD) == (y == GRAM_DEAD) || x == GRAM_FULL || y == GRAM_FULL);
    }
}

/* At each place one of the bytes that may follow; an accepting state ends it, often. */
static void check_walk(struct grammar *g, uint64_t seed)
{
    struct gram_automaton *a = gram_automaton_of(g, 0);
    unsigned char text[WALK_MAX];
    int32_t state = gram_begin(a);
    size_t n = 0;
    while (state >= 0 && n < WALK_MAX) {
        int may[256], k = 0;
        if (gram_accepts(a, state) && (gram_ends(a, state) || rng_at(seed, 1000 + n) % 8 == 0)) break;
        for (int byte = 0; byte < 256; byte++) {
            int32_t to = gram_next(a, state, (uint8_t)byte);
            if (to >= 0) may[k++] = byte;
            if (to == GRAM_FULL) break;
        }
        if (gram_why(a)) break;
        CHECK(k > 0); /* a dead end */
        check_loose(a, state);
        text[n] = (unsigned char)may[rng_at(seed, n) % (uint64_t)k];
        state = gram_next(a, state, text[n++]);
    }
    bool whole = state >= 0 && gram_accepts(a, state) && !gram_why(a);
    gram_automaton_unref(a);
    struct err e = {0};
    if (whole) CHECK(grammar_matches(g, text, n, &e) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    struct grammar_builder *b = grammar_builder_new();
    struct err e = {0};
    struct grammar *g = grammar_build(b, gram_regex(b, n ? (const char *)data : "", n), &e);
    grammar_builder_free(b);
    CHECK(g || (e.code == ERR_INVALID && e.msg[0]));
    if (!g) return 0;
    for (uint64_t seed = 0; seed < 3; seed++) check_walk(g, seed);
    if (end) {
        int rc = grammar_matches(g, end + 1, size - n - 1, &e);
        CHECK(rc >= 0 || (e.code == ERR_INVALID && e.msg[0]));
    }
    grammar_unref(g);
    return 0;
}
