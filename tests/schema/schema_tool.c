/* What a constraint allows, for the Python tests.  Reads one JSON object a line:
 *
 *   {"schema": ...} or {"regex": "..."} or {"object": true}, "documents": [texts], "samples": n, "seed": s
 *
 * and answers with one: {"error": "..."} or {"accepted": [booleans], "samples": [texts], "seconds": of compiling}.
 * Samples are random walks through the automaton, which likes to close what is open. */
#include "engine/base/clock.h"
#include "engine/grammar/run.h"
#include "server/json/json.h"
#include "server/schema/constraint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE_MAX = 1000 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* One walk; false when it did not end in time. */
static bool walk(struct gram_automaton *a, uint64_t *seed, struct buf *out)
{
    int32_t state = gram_begin(a);
    buf_clear(out);
    while (out->len < SAMPLE_MAX) {
        unsigned char can[256];
        int32_t to[256];
        int n = 0, closing = -1;
        bool accepts = gram_accepts(a, state);
        for (int c = 0; c < 256; c++) {
            int32_t next = gram_next(a, state, (unsigned char)c);
            if (next < 0) continue;
            if (c == '"' || c == '}' || c == ']') closing = n;
            can[n] = (unsigned char)c;
            to[n++] = next;
        }
        if (accepts && (n == 0 || next_random(seed) % 3 == 0)) return true;
        if (n == 0) return false; /* a dead end, which must not be */
        int pick = (int)(next_random(seed) % (uint64_t)n);
        if (closing >= 0 && next_random(seed) % 3 == 0) pick = closing;
        buf_char(out, (char)can[pick]);
        state = to[pick];
    }
    return false;
}

static void put_samples(struct buf *out, struct grammar *g, int n, uint64_t seed)
{
    struct gram_automaton *a = gram_automaton_of(g, 0);
    struct buf text = {0};
    pthread_mutex_lock(gram_lock(a));
    for (int i = 0; i < n; i++) {
        bool ended = walk(a, &seed, &text);
        if (i) buf_char(out, ',');
        if (ended)
            json_put_string(out, text.data ? text.data : "", text.len);
        else
            buf_str(out, text.len < SAMPLE_MAX ? "false" : "null");
    }
    pthread_mutex_unlock(gram_lock(a));
    gram_automaton_unref(a);
    buf_free(&text);
}

static bool read_ask(struct constraint_request *ask, const cJSON *line, struct err *e)
{
    const cJSON *schema = cJSON_GetObjectItemCaseSensitive(line, "schema");
    const cJSON *regex = cJSON_GetObjectItemCaseSensitive(line, "regex");
    if (schema) return constraint_set_schema(ask, "schema", NULL, schema, NULL, e);
    if (cJSON_IsString(regex)) {
        ask->kind = CONSTRAINT_REGEX;
        buf_str(&ask->text, regex->valuestring);
    } else {
        ask->kind = CONSTRAINT_JSON_OBJECT;
    }
    return true;
}

static void answer(const cJSON *line, struct buf *out)
{
    struct constraint_request ask = {0};
    struct err e = {0};
    uint64_t start = clock_now();
    struct grammar *g = read_ask(&ask, line, &e) ? constraint_build(&ask, &e) : NULL;
    double seconds = (double)(clock_now() - start) * 1e-9;
    const cJSON *documents = cJSON_GetObjectItemCaseSensitive(line, "documents");
    const cJSON *samples = cJSON_GetObjectItemCaseSensitive(line, "samples");
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(line, "seed");
    if (g) {
        buf_str(out, "{\"accepted\":[");
        for (const cJSON *d = documents ? documents->child : NULL; d; d = d->next) {
            int rc = grammar_matches(g, d->valuestring, strlen(d->valuestring), &e);
            buf_printf(out, "%s%s", d == documents->child ? "" : ",", rc > 0 ? "true" : rc == 0 ? "false" : "null");
        }
        buf_str(out, "],\"samples\":[");
        if (samples) put_samples(out, g, samples->valueint, seed ? (uint64_t)seed->valueint : 1);
        buf_printf(out, "],\"seconds\":%.6f}", seconds);
    } else {
        buf_str(out, "{\"error\":");
        json_put_string(out, e.msg, strlen(e.msg));
        buf_printf(out, ",\"seconds\":%.6f}", seconds);
    }
    grammar_unref(g);
    constraint_request_free(&ask);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    struct buf out = {0};
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct err e = {0};
        cJSON *tree = json_parse(line, (size_t)n, &e);
        buf_clear(&out);
        if (tree) {
            answer(tree, &out);
        } else {
            buf_str(&out, "{\"error\":");
            json_put_string(&out, e.msg, strlen(e.msg));
            buf_char(&out, '}');
        }
        cJSON_Delete(tree);
        puts(out.data);
        fflush(stdout);
    }
    buf_free(&out);
    free(line);
    return 0;
}
