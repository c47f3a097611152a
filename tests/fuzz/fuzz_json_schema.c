/* Fuzzes the way from a schema's text to a grammar (schema/schema*.c, schema/regex.c, schema/number.c, schema/jexpr*.c,
 * constraint.c). The first byte says how the text is asked for.  What compiles must have a text that it matches: the
 * walk below looks for one, and every text of a schema must be JSON. */
#include "engine/base/check.h"
#include "engine/grammar/run.h"
#include "server/json/json.h"
#include "server/schema/constraint.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 200 };

/* Follows the automaton by the bytes of the input; each state must go somewhere or accept. */
static void walk(struct grammar *g, const uint8_t *data, size_t size, bool json)
{
    struct gram_automaton *a = gram_automaton_of(g, 0);
    struct buf text = {0};
    pthread_mutex_lock(gram_lock(a));
    int32_t state = gram_begin(a);
    for (int i = 0; i < STEPS && state >= 0; i++) {
        int start = size ? data[(size_t)i % size] : 0, c = 0;
        int32_t next = GRAM_DEAD;
        if (gram_accepts(a, state) && (i % 3 == 0 || gram_ends(a, state))) break;
        for (; c < 256 && next < 0; c++) {
            next = gram_next(a, state, (uint8_t)(start + c));
            if (next == GRAM_FULL) break;
            if (next >= 0) buf_char(&text, (char)(start + c));
        }
        if (next == GRAM_FULL) {
            state = next;
            break;
        }
        CHECK(next >= 0 || gram_accepts(a, state));
        if (next < 0) break;
        state = next;
    }
    if (json && state >= 0 && gram_accepts(a, state)) {
        struct err e = {0};
        cJSON *tree = json_parse(text.data ? text.data : "", text.len, &e);
        CHECK(tree || strstr(e.msg, "nested deeper") || strstr(e.msg, "out of range") ||
              strstr(e.msg, "too many digits"));
        cJSON_Delete(tree);
    }
    pthread_mutex_unlock(gram_lock(a));
    gram_automaton_unref(a);
    buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct constraint_request ask = {0};
    struct err e = {0};
    if (size < 2) return 0;
    cJSON *tree = json_parse((const char *)data + 1, size - 1, &e);
    bool good = false;
    if (!tree) return 0;
    switch (data[0] % 3) {
    case 0: good = constraint_set_schema(&ask, "fuzz", NULL, tree, NULL, &e); break;
    case 1: good = constraint_read_tgi(&ask, tree, &e); break;
    default: good = constraint_read_openai(&ask, tree, &e); break;
    }
    CHECK(good == (e.code == 0));
    if (good && ask.kind) {
        struct grammar *g = constraint_build(&ask, &e);
        CHECK(g || (e.code == ERR_INVALID && e.msg[0]));
        if (g) walk(g, data, size, ask.kind == CONSTRAINT_JSON_OBJECT || ask.kind == CONSTRAINT_JSON_SCHEMA);
        grammar_unref(g);
    }
    constraint_request_free(&ask);
    cJSON_Delete(tree);
    return 0;
}
