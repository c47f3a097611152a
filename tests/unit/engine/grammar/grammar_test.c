/* Grammars: what the builder's expressions mean, regular expressions against the table that Python made, limits, and
 * the masks of a small vocabulary against every token by itself.
 *
 *   grammar_test MODELS_DIR TABLE */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/grammar/mask.h"
#include "kernels/rng.h"
#include "tests/grammar/json_grammar.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>

static const char *models, *table;

static bool matches(struct grammar *g, const char *text)
{
    struct err e = {0};
    int rc = grammar_matches(g, text, strlen(text), &e);
    if (rc < 0) fail_msg("\"%s\": %s", text, e.msg);
    return rc;
}

static struct grammar *built(struct grammar_builder *b, gexpr root)
{
    struct err e = {0};
    struct grammar *g = grammar_build(b, root, &e);
    if (!g) fail_msg("%s", e.msg);
    grammar_builder_free(b);
    return g;
}

static void refused(struct grammar_builder *b, gexpr root, const char *why)
{
    struct err e = {0};
    struct grammar *g = grammar_build(b, root, &e);
    assert_null(g);
    assert_int_equal(e.code, ERR_INVALID);
    if (!strstr(e.msg, why)) fail_msg("\"%s\" does not say \"%s\"", e.msg, why);
    grammar_builder_free(b);
}

/* ---- the builder ---- */

static void test_expressions(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr parts[3] = {json_text(b, "ab"), gram_repeat(b, json_text(b, "x"), 2, 4), json_text(b, "")};
    gexpr choice[3] = {gram_seq(b, parts, 3), json_text(b, "abx"), gram_seq(b, NULL, 0)};
    struct grammar *g = built(b, gram_alt(b, choice, 3));
    static const char *const yes[] = {"", "abx", "abxx", "abxxx", "abxxxx"}, *const no[] = {"a", "ab", "abxxxxx", "x",
                                                                                            "abxy"};
    for (size_t i = 0; i < 5; i++) assert_true(matches(g, yes[i]));
    for (size_t i = 0; i < 5; i++) assert_false(matches(g, no[i]));
    grammar_unref(grammar_ref(g));
    grammar_unref(g);
}

static void test_classes(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grange some[3] = {{'a', 'c'}, {0xe9, 0x20ac}, {0x1f600, 0x1f640}}, surrogates = {0xd700, 0xe010};
    gexpr all[3] = {gram_class(b, some, 3, 0), gram_class(b, some, 3, 1), gram_class(b, &surrogates, 1, 0)};
    struct grammar *g = built(b, gram_seq(b, all, 3));
    assert_true(matches(g, "bd\xed\x9c\x80"));                       /* U+D700 */
    assert_true(matches(g, "\xc3\xa9\xf0\x9f\x99\x81\xee\x80\x90")); /* U+E9 U+1F641 U+E010 */
    assert_true(matches(g, "\xe2\x82\xac\xe2\x82\xad\xed\x9f\xbf")); /* U+20AC U+20AD U+D7FF */
    assert_false(matches(g, "\xe2\x82\xad\xe2\x82\xad\xed\x9f\xbf"));
    assert_false(matches(g, "bd\xed\xa0\x80"));        /* a surrogate */
    assert_false(matches(g, "bd\xee\x80\x91"));        /* one too far */
    assert_false(matches(g, "b\xc1\xa1\xee\x80\x80")); /* overlong */
    grammar_unref(g);
}

static void test_json_nests(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, json_value(b, UINT32_MAX));
    static const char *const yes[] = {"{}", "[]", "[[[[1]]],{\"a\":[true,null,-0.5e-3]}]", "\"\\u00e9\\n\xc3\xa9\"",
                                      "[1,2,3]"};
    static const char *const no[] = {"",       "{",   "[1,]", "[1}",     "{\"a\"}",   "01",
                                     "\"\n\"", "[[]", "[]]",  "\"\\x\"", "{\"a\":1,}"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++) assert_true(matches(g, yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) assert_false(matches(g, no[i]));
    char deep[4001];
    for (int i = 0; i < 2000; i++) deep[i] = '[', deep[3999 - i] = ']';
    deep[4000] = 0;
    assert_true(matches(g, deep));
    deep[3999] = 0;
    assert_false(matches(g, deep));
    grammar_unref(g);
}

/* a rule that ends in itself takes no room on the stack */
static void test_right_recursion(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr list = gram_rule(b), more[2] = {json_text(b, "a"), list},
          kinds[2] = {gram_seq(b, more, 2), json_text(b, ".")};
    gram_define(b, list, gram_alt(b, kinds, 2));
    struct grammar *g = built(b, list);
    size_t n = 300000;
    char *text = malloc(n + 1);
    struct err e = {0};
    memset(text, 'a', n);
    text[n] = '.';
    assert_int_equal(grammar_matches(g, text, n + 1, &e), 1);
    assert_int_equal(grammar_matches(g, text, n, &e), 0);
    struct gram_automaton *a = gram_automaton_of(g, 0);
    assert_in_range(gram_states(a), 2, 4);
    gram_automaton_unref(a);
    grammar_unref(g);
    free(text);
}

/* counts are not written out */
static void test_counts(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, json_regex(b, "((ab){2,3}c?){1000,100000}x{70000,}"));
    size_t n = 0;
    char *text = malloc(200000);
    for (int i = 0; i < 999; i++) n += (size_t)sprintf(text + n, "%s", i % 2 ? "ababc" : "ababab");
    memcpy(text + n, "abab", 4);
    memset(text + n + 4, 'x', 70000);
    struct err e = {0};
    assert_int_equal(grammar_matches(g, text, n + 4 + 70000, &e), 1);
    assert_int_equal(grammar_matches(g, text, n + 4 + 69999, &e), 0);
    memset(text + n, 'x', 70000);
    assert_int_equal(grammar_matches(g, text, n + 70000, &e), 0);
    grammar_unref(g);
    free(text);
}

static void test_many_choices(void **state)
{
    enum { N = 20000 };
    struct grammar_builder *b = grammar_builder_new();
    gexpr *v = malloc(N * sizeof *v);
    char text[32];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "choice-%d", i * 7);
        v[i] = json_text(b, text);
    }
    struct grammar *g = built(b, gram_alt(b, v, N));
    assert_true(matches(g, "choice-0"));
    assert_true(matches(g, "choice-139993"));
    assert_false(matches(g, "choice-139994"));
    assert_false(matches(g, "choice-"));
    assert_false(matches(g, "choice-1"));
    grammar_unref(g);
    free(v);
}

static void test_refusals(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr r = gram_rule(b), two[2] = {r, json_text(b, "a")}, or [2];
    or [0] = gram_seq(b, two, 2), or [1] = json_text(b, "b");
    gram_define(b, r, gram_alt(b, or, 2));
    refused(b, r, "left recursion");

    b = grammar_builder_new(); /* hidden behind what may be empty, through another rule */
    gexpr s = gram_rule(b), t = gram_rule(b),
          three[3] = {gram_repeat(b, json_text(b, "x"), 0, 1), t, json_text(b, "a")};
    gram_define(b, s, gram_seq(b, three, 3));
    gram_define(b, t, gram_repeat(b, s, 0, UINT32_MAX));
    refused(b, s, "left recursion");

    b = grammar_builder_new();
    r = gram_rule(b), two[0] = json_text(b, "a"), two[1] = r;
    gram_define(b, r, gram_seq(b, two, 2)); /* never ends */
    refused(b, r, "no text at all");

    b = grammar_builder_new();
    refused(b, gram_class(b, NULL, 0, 0), "no text at all");
    b = grammar_builder_new();
    refused(b, gram_rule(b), "no definition");
    b = grammar_builder_new();
    refused(b, gram_repeat(b, json_text(b, "a"), 3, 2), "repetition");
    b = grammar_builder_new();
    gexpr bad = gram_alt(b, NULL, 0); /* remembered, whatever comes after */
    refused(b, gram_seq(b, (gexpr[]){bad, json_text(b, "a")}, 2), "choice of nothing");
    b = grammar_builder_new();
    gexpr x = json_text(b, "a");
    for (int i = 0; i < 2000; i++) x = gram_repeat(b, x, 0, 1);
    refused(b, x, "deeper");
    b = grammar_builder_new();
    x = json_text(b, "a");
    for (int i = 0; i < 40; i++) x = gram_seq(b, (gexpr[]){x, x}, 2); /* 2^40 of them */
    refused(b, x, "too large");
}

/* much that says nothing is not written for ever */
static void test_empty_tower(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr x = gram_seq(b, NULL, 0);
    for (int i = 0; i < 40; i++) x = gram_seq(b, (gexpr[]){x, x, x}, 3);
    struct err e = {0};
    struct grammar *g = grammar_build(b, x, &e); /* all of it is nothing: refused, or known to be the empty text */
    assert_true(g || strstr(e.msg, "too large"));
    grammar_unref(g);
    grammar_builder_free(b);
}

/* what can match nothing is left out, and the rest goes on */
static void test_dead_branches(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    gexpr nothing = gram_class(b, NULL, 0, 0), dead[2] = {json_text(b, "ab"), nothing};
    gexpr kinds[2] = {gram_seq(b, dead, 2), json_text(b, "ac")},
          all[2] = {gram_alt(b, kinds, 2), gram_repeat(b, nothing, 0, 3)};
    struct grammar *g = built(b, gram_seq(b, all, 2));
    struct gram_automaton *a = gram_automaton_of(g, 0);
    int32_t s = gram_next(a, gram_begin(a), 'a');
    assert_true(s >= 0);
    assert_int_equal(gram_next(a, s, 'b'), GRAM_DEAD);
    s = gram_next(a, s, 'c');
    assert_true(s >= 0 && gram_accepts(a, s) && gram_ends(a, s));
    gram_automaton_unref(a);
    grammar_unref(g);
}

/* Whatever a grammar does, it stays within its limits and ends. */
static void test_explosions(void **state)
{
    static const char *const patterns[] = {"(a|b)*a(a|b){2000}", "((a{0,300}){0,300}){0,300}b",
                                           "(.{0,900}x.{0,900}){0,900}", "((a|b)*a(a|b){500}c?)*"};
    char text[4096];
    for (size_t i = 0; i < sizeof text; i++) text[i] = rng_at(3, i) & 1 ? 'a' : 'b';
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        struct grammar_builder *b = grammar_builder_new();
        struct grammar *g = built(b, json_regex(b, patterns[k]));
        struct err e = {0};
        int rc = grammar_matches(g, text, 400, &e);
        assert_true(rc >= 0 || (e.code == ERR_INVALID && e.msg[0]));
        rc = grammar_matches(g, text, sizeof text, &e); /* perhaps with a new automaton */
        assert_true(rc >= 0 || (e.code == ERR_INVALID && e.msg[0]));
        grammar_unref(g);
    }
}

/* ---- regular expressions ---- */

static void check_row(const cJSON *row)
{
    const char *pattern = cJSON_GetArrayItem(row, 0)->valuestring, *text = cJSON_GetArrayItem(row, 1)->valuestring;
    const cJSON *want = cJSON_GetArrayItem(row, 2);
    struct grammar_builder *b = grammar_builder_new();
    gexpr x = json_regex(b, pattern);
    if (!want) {
        refused(b, x, text);
        return;
    }
    struct grammar *g = built(b, x);
    if (matches(g, text) != cJSON_IsTrue(want))
        fail_msg("re.fullmatch(\"%s\", \"%s\") is %s", pattern, text, cJSON_IsTrue(want) ? "a match" : "none");
    grammar_unref(g);
}

static void test_regex_table(void **state)
{
    char *line = NULL;
    size_t room = 0;
    int rows = 0;
    FILE *f = fopen(table, "r");
    assert_non_null(f);
    while (getline(&line, &room, f) > 0) {
        cJSON *row = cJSON_Parse(line);
        assert_non_null(row);
        check_row(row);
        cJSON_Delete(row);
        rows++;
    }
    assert_true(rows > 1000);
    free(line);
    fclose(f);
}

static void test_regex_bytes(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    refused(b, gram_regex(b, "a\xff", 2), "byte 1");
    b = grammar_builder_new();
    struct grammar *g = built(b, gram_regex(b, "a\0b|\\0", 6));
    struct err e = {0};
    assert_int_equal(grammar_matches(g, "a\0b", 3, &e), 1);
    assert_int_equal(grammar_matches(g, "", 1, &e), 1);
    assert_int_equal(grammar_matches(g, "a", 1, &e), 0);
    grammar_unref(g);
    b = grammar_builder_new();
    char deep[1200];
    memset(deep, '(', 600), memset(deep + 600, ')', 600);
    refused(b, gram_regex(b, deep, 1200), "nested deeper");
}

/* ---- masks ---- */

static struct tokenizer *tokenizer;
static struct token_trie *trie;
enum { EXTRA = 13 }; /* ids that the model has and the tokenizer has not */

static bool alone(struct gram_automaton *a, int32_t state, int32_t id, int32_t eos)
{
    struct buf bytes = {0};
    if (id == eos) return gram_accepts(a, state);
    if (tokenizer_is_special(tokenizer, id)) return false;
    tokenizer_bytes(tokenizer, id, &bytes);
    bool ok = bytes.len > 0 && bytes.len <= GRAM_LOOK;
    for (size_t i = 0; ok && i < bytes.len; i++) ok = (state = gram_next(a, state, (uint8_t)bytes.data[i])) >= 0;
    buf_free(&bytes);
    return ok;
}

/* The mask behind a text, and that it is what every token says by itself. */
static void check_mask(struct grammar *g, const char *text, int32_t eos)
{
    struct gram_automaton *a = gram_automaton_of(g, 1), *plain;
    struct mask_walk w = {0};
    int32_t s = gram_begin(a);
    for (const char *p = text; *p; p++) s = gram_next(a, s, (uint8_t)*p);
    assert_true(s >= 0);
    struct gram_mask *m = NULL, *again = NULL;
    while (mask_at(&w, trie, a, s, clock_now() + 20000, &m) == 0) { /* in many pieces */
    }
    assert_non_null(m);
    assert_int_equal(mask_at(&w, trie, a, s, 0, &again), 1);
    assert_ptr_equal(again, m);
    gram_mask_unref(again);
    plain = gram_automaton_of(g, 0);
    s = gram_begin(plain);
    for (const char *p = text; *p; p++) s = gram_next(plain, s, (uint8_t)*p);
    int n = 0;
    for (int32_t id = 0; id < m->vocab; id++) {
        bool set = m->bits[id / 32] >> id % 32 & 1;
        n += set;
        if (set != alone(plain, s, id, eos)) fail_msg("behind \"%s\", token %d: the mask says %d", text, id, set);
    }
    assert_int_equal(n, m->n_allowed);
    gram_mask_unref(m);
    gram_automaton_unref(a);
    gram_automaton_unref(plain);
}

static void test_masks(void **state)
{
    static const struct {
        const char *pattern; /* NULL: JSON */
        uint32_t longest;
        const char *texts[6];
    } cases[] = {{"(yes|no|maybe so)", 0, {"", "m", "maybe s", "yes"}},
                 {".*", 0, {"", "Once", "\xc3", "\xe2\x82"}},
                 {"[^\\n]{0,700}", 0, {"", "a", "Once upon a time"}},
                 {"[a-z ]{3,300}!", 0, {"", "abc", "once upon a time "}},
                 {"(\\w+ ){2,4}", 0, {"", "Once ", "Once upon a "}},
                 {"\\d{4}-\\d\\d", 0, {"", "20", "2024-01"}},
                 {NULL, UINT32_MAX, {"", "{\"a", "[1", "[[\"\\", "[\"x\",{\"y\":"}},
                 {NULL, 400, {"", "{\"a", "[\"once upon"}},
                 {NULL, 6, {"", "{\"a", "[\"once u", "[\"once \xc3"}}};
    char path[1200];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/tinystories-656k/tokenizer.json", models);
    tokenizer = tokenizer_open(path, &e);
    if (!tokenizer) fail_msg("%s", e.msg);
    int32_t eos[1] = {2};
    trie = token_trie_new(tokenizer, tokenizer_size(tokenizer) + EXTRA, eos, 1);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct grammar_builder *b = grammar_builder_new();
        struct grammar *g =
            built(b, cases[k].pattern ? json_regex(b, cases[k].pattern) : json_value(b, cases[k].longest));
        for (int i = 0; i < 6 && cases[k].texts[i]; i++) check_mask(g, cases[k].texts[i], eos[0]);
        grammar_unref(g);
    }
    token_trie_free(trie);
    tokenizer_close(tokenizer);
}

/* a string's many places share one mask, in unbounded and long ones */
static void test_counts_far_from_bounds(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, json_regex(b, "x{2000}a{500,2000}"));
    struct gram_automaton *a = gram_automaton_of(g, 0);
    int32_t s = gram_begin(a), at[2600];
    for (int i = 0; i < 2600; i++) at[i] = s = gram_next(a, s, i < 2000 ? 'x' : 'a');
    assert_int_equal(gram_loose(a, at[5]), gram_loose(a, at[1990]));
    assert_int_equal(gram_slack(a, at[4]), 1994);
    assert_int_equal(gram_loose(a, at[2010]), gram_loose(a, at[2400])); /* both below 500 */
    assert_int_not_equal(gram_loose(a, at[2010]), gram_loose(a, at[2520]));
    assert_int_equal(gram_loose(a, at[2520]), gram_loose(a, at[2590]));
    assert_int_equal(gram_next(a, gram_loose(a, at[2520]), 'a'), gram_loose(a, at[2520]));
    assert_int_equal(gram_slack(a, at[2589]), 1409);
    gram_automaton_unref(a);
    grammar_unref(g);
}

/* What the engine thread asks for ends soon, whatever the grammar; the rest is for the other thread. */
static void test_hurry(void **state)
{
    static const char *const patterns[] = {"((a|b|.)*a(a|b){500}c?)*", "((.{0,300}){0,300}){0,300}b",
                                           "(.{0,90}\\w.{0,90}\\d){0,90}", "((\\w|x){0,3}y?){0,200}"};
    char path[1200];
    struct err e = {0};
    int later = 0;
    snprintf(path, sizeof path, "%s/tinystories-656k/tokenizer.json", models);
    tokenizer = tokenizer_open(path, &e);
    if (!tokenizer) fail_msg("%s", e.msg);
    int32_t eos[1] = {2};
    trie = token_trie_new(tokenizer, tokenizer_size(tokenizer) + EXTRA, eos, 1);
    for (size_t k = 0; k < sizeof patterns / sizeof *patterns; k++) {
        struct grammar_builder *b = grammar_builder_new();
        struct grammar *g = built(b, json_regex(b, patterns[k]));
        struct gram_automaton *a = gram_automaton_of(g, 1);
        struct mask_walk w = {0};
        struct gram_mask *m = NULL;
        int32_t s = gram_begin(a);
        int rc = s >= 0 ? 0 : s;
        for (int i = 0; i < 20000 && rc == 0; i++) {
            uint64_t before = gram_work(a);
            bool hurry = i % 8 != 7;
            gram_hurry(a, hurry);
            rc = mask_at(&w, trie, a, s, clock_now() + 1000, &m);
            later += rc == 0;
            assert_true(gram_work(a) - before < (hurry ? 10000 : 200000));
        }
        assert_true(rc == 1 || (rc == GRAM_FULL && gram_why(a)));
        mask_walk_drop(&w);
        if (rc == 1) gram_mask_unref(m);
        gram_automaton_unref(a);
        grammar_unref(g);
    }
    assert_true(later > 0);
    token_trie_free(trie);
    tokenizer_close(tokenizer);
}

/* A byte that may be read in too many ways ends the text that has it, and no other. */
static void test_too_many_ways(void **state)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, json_regex(b, "ok|x((((a{0,99}){0,99}){0,99}){0,99}b|y)"));
    struct gram_automaton *a = gram_automaton_of(g, 0);
    int32_t start = gram_begin(a), s = gram_next(a, start, 'x');
    for (int i = 0; i < 200 && s >= 0; i++) s = gram_next(a, s, 'a');
    assert_int_equal(s, GRAM_FULL);
    assert_non_null(strstr(gram_why(a), "too many ways"));
    s = gram_next(a, gram_next(a, start, 'o'), 'k');
    assert_true(s >= 0 && gram_accepts(a, s));
    gram_automaton_unref(a);
    grammar_unref(g);
}

static void check_spelling(gexpr (*make)(struct grammar_builder *, const char *), const char *text, const char *lacking,
                           const char *missing)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, make(b, text));
    unsigned char bytes[256];
    struct err e = {0};
    memset(bytes, 1, sizeof bytes);
    for (const char *p = lacking; *p; p++) bytes[(unsigned char)*p] = 0;
    int rc = grammar_check_bytes(g, bytes, &e);
    if (rc && !missing) fail_msg("%s without %s: %s", text, lacking, e.msg);
    if (missing) {
        assert_int_equal(rc, ERR_UNSUPPORTED);
        if (!strstr(e.msg, missing)) fail_msg("%s without %s: \"%s\" does not name %s", text, lacking, e.msg, missing);
    }
    grammar_unref(g);
}

/* A vocabulary that lacks characters: refused where every text needs one, and the one that is named is needed. */
static void test_spelling(void **state)
{
    check_spelling(json_regex, "abc", "", NULL);
    check_spelling(json_regex, "abc", "x", NULL);
    check_spelling(json_regex, "abc", "b", "'b'");
    check_spelling(json_regex, "a|b", "a", NULL);
    check_spelling(json_regex, "a|b", "ab", "'a'");
    check_spelling(json_regex, "x*y", "x", NULL);
    check_spelling(json_regex, "x*y", "y", "'y'");
    check_spelling(json_regex, "x+y", "x", "'x'");
    check_spelling(json_regex, "(ab){3,40}c", "b", "'b'");
    check_spelling(json_regex, "(ab){0,40}c", "b", NULL);
    check_spelling(json_regex, "(ab){0,40}c", "bc", "'c'");
    check_spelling(json_regex, "(x|y)z", "xz", "'z'");
    check_spelling(json_regex, "(xa|yb){2,40}z", "xz", "'z'");
    check_spelling(json_regex, "(xa|yb)(cc|dd)", "xd", NULL);
    check_spelling(json_regex, "[a-c]", "ab", NULL);
    check_spelling(json_regex, "[a-c]", "abc", "'a'");
    check_spelling(json_regex, "[\xc3\xa4\xc3\xb6]", "\xc3", "'\xc3\xa4'");
    check_spelling(json_regex, "w\xc3\xa4r", "\xa4", "'\xc3\xa4'");
    check_spelling(json_regex, "a\n", "\n", "0x0a");
}

/* All that automata hold is counted; after the tests above nothing is left. */
static void test_memory(void **state)
{
    assert_int_equal(gram_memory(), 0);
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = built(b, json_regex(b, "[a-z]{3,40}"));
    struct gram_automaton *a = gram_automaton_of(g, 0);
    assert_true(gram_begin(a) >= 0 && gram_memory() > 0);
    gram_automaton_leave(g, a); /* there is room: the grammar keeps it */
    assert_true(gram_memory() > 0);
    grammar_unref(g);
    assert_int_equal(gram_memory(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expressions),   cmocka_unit_test(test_classes),
        cmocka_unit_test(test_json_nests),    cmocka_unit_test(test_right_recursion),
        cmocka_unit_test(test_counts),        cmocka_unit_test(test_many_choices),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_empty_tower),
        cmocka_unit_test(test_dead_branches), cmocka_unit_test(test_explosions),
        cmocka_unit_test(test_regex_table),   cmocka_unit_test(test_regex_bytes),
        cmocka_unit_test(test_masks),         cmocka_unit_test(test_counts_far_from_bounds),
        cmocka_unit_test(test_hurry),         cmocka_unit_test(test_too_many_ways),
        cmocka_unit_test(test_spelling),      cmocka_unit_test(test_memory),
    };
    if (argc != 3) return 2;
    models = argv[1];
    table = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
