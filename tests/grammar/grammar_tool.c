/* Grammars behind a pipe, for test_regexes.py and test_masks.py.  One request per line, a JSON object:
 *
 *   {"regex": R or "json": longest string, "texts": [...]}                  -> "ok 0110...": which texts match
 *   {"regex": R or "json": ..., "tokenizer": FILE, "prefixes": [...]}       -> "ok n n n ...": how many tokens may
 * follow each prefix (-1: none of its texts begins so), after comparing every bit with a walk of that token alone
 *
 * or "err" and a message.  The tokenizer is kept until another is asked for. */
#include "engine/base/clock.h"
#include "engine/grammar/mask.h"
#include "tests/grammar/json_grammar.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static struct grammar *build(const cJSON *q, struct err *e)
{
    struct grammar_builder *b = grammar_builder_new();
    const cJSON *regex = cJSON_GetObjectItem(q, "regex"), *json = cJSON_GetObjectItem(q, "json");
    gexpr root = regex ? json_regex(b, regex->valuestring) : json_value(b, json ? (uint32_t)json->valuedouble : 0);
    struct grammar *g = grammar_build(b, root, e);
    grammar_builder_free(b);
    return g;
}

static void match_all(struct grammar *g, const cJSON *texts, struct buf *out, struct err *e)
{
    const cJSON *t;
    cJSON_ArrayForEach(t, texts)
    {
        int rc = grammar_matches(g, t->valuestring, strlen(t->valuestring), e);
        if (rc < 0) return;
        buf_char(out, rc ? '1' : '0');
    }
}

/* ---- masks ---- */

static struct tokenizer *tokenizer;
static struct token_trie *trie;
static char tokenizer_file[4096];

static bool take_tokenizer(const char *path, struct err *e)
{
    if (tokenizer && !strcmp(path, tokenizer_file)) return true;
    token_trie_free(trie);
    tokenizer_close(tokenizer);
    snprintf(tokenizer_file, sizeof tokenizer_file, "%s", path);
    trie = NULL;
    tokenizer = tokenizer_open(path, e);
    if (!tokenizer) return false;
    uint64_t start = clock_now();
    trie = token_trie_new(tokenizer, tokenizer_size(tokenizer) + 40, (int32_t[]){0}, 1);
    fprintf(stderr, "trie of %d tokens: %.0f ms, %.1f MB\n", tokenizer_size(tokenizer),
            (double)(clock_now() - start) / 1e6, (double)token_trie_memory(trie) / 1e6);
    return true;
}

static int32_t walk(struct gram_automaton *a, const char *s, size_t n)
{
    int32_t state = gram_begin(a);
    for (size_t i = 0; i < n && state >= 0; i++) state = gram_next(a, state, (uint8_t)s[i]);
    return state;
}

/* The token by itself, by the rules of grammar/mask.h. */
static bool may_follow(struct gram_automaton *a, int32_t state, int32_t id)
{
    struct buf bytes = {0};
    if (id == 0) return gram_accepts(a, state); /* is eos here */
    if (id >= tokenizer_size(tokenizer) || tokenizer_is_special(tokenizer, id)) return false;
    tokenizer_bytes(tokenizer, id, &bytes);
    bool ok = bytes.len > 0 && bytes.len <= GRAM_LOOK;
    for (size_t i = 0; ok && i < bytes.len; i++) ok = (state = gram_next(a, state, (uint8_t)bytes.data[i])) >= 0;
    buf_free(&bytes);
    return ok;
}

/* How many tokens may follow; the walk is broken off and taken up again on the way.  -2 and *e: a bit differs. */
static int compare_mask(struct grammar *g, const char *prefix, struct err *e)
{
    struct gram_automaton *a = gram_automaton_of(g, 7), *plain;
    struct mask_walk w = {0};
    size_t n = strlen(prefix);
    int32_t state = walk(a, prefix, n);
    if (state < 0) {
        gram_automaton_unref(a);
        return -1;
    }
    plain = gram_automaton_of(g, 0); /* a fresh one: `a` is for another vocabulary */
    int32_t alone = walk(plain, prefix, n);
    int rc, bits = 0, turns = 0;
    struct gram_mask *m = NULL;
    while ((rc = mask_at(&w, trie, a, state, clock_now() + 50000, &m)) == 0 && ++turns < 100000) {
    }
    if (rc < 0) err_set(e, ERR_INVALID, "%s", gram_why(a));
    for (int32_t id = 0; rc == 1 && id < m->vocab && !e->code; id++) {
        bool set = m->bits[id / 32] >> id % 32 & 1, want = may_follow(plain, alone, id);
        bits += set;
        if (set != want)
            err_set(e, ERR_INVALID, "token %d behind \"%s\": the mask says %d, alone it is %d", id, prefix, set, want);
    }
    if (rc == 1 && !e->code && bits != m->n_allowed)
        err_set(e, ERR_INVALID, "%d bits, n_allowed %d", bits, m->n_allowed);
    gram_mask_unref(m);
    mask_walk_drop(&w);
    gram_automaton_unref(a);
    gram_automaton_unref(plain);
    return bits;
}

static void mask_all(struct grammar *g, const cJSON *prefixes, struct buf *out, struct err *e)
{
    const cJSON *p;
    cJSON_ArrayForEach(p, prefixes)
    {
        int n = compare_mask(g, p->valuestring, e);
        if (e->code) return;
        buf_printf(out, "%s%d", out->len ? " " : "", n);
    }
}

static void answer(const cJSON *q)
{
    struct err e = {0};
    struct buf out = {0};
    const cJSON *file = cJSON_GetObjectItem(q, "tokenizer");
    struct grammar *g = build(q, &e);
    if (g && file && take_tokenizer(file->valuestring, &e))
        mask_all(g, cJSON_GetObjectItem(q, "prefixes"), &out, &e);
    else if (g && !file)
        match_all(g, cJSON_GetObjectItem(q, "texts"), &out, &e);
    grammar_unref(g);
    if (e.code)
        printf("err %s\n", e.msg);
    else
        printf("ok %s\n", out.data ? out.data : "");
    fflush(stdout);
    buf_free(&out);
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        cJSON *request = cJSON_Parse(line);
        if (!cJSON_IsObject(request)) return 1;
        answer(request);
        cJSON_Delete(request);
    }
    token_trie_free(trie);
    tokenizer_close(tokenizer);
    free(line);
    return 0;
}
