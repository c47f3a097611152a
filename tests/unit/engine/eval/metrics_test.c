/* The metrics of evaluations on texts whose scores can be computed by hand; tests/eval compares with the reference
 * packages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/eval/metrics.h"
#include "engine/eval/stem.h"
#include "engine/eval/words.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-12 * fmax(1, fabs(want))) fail_msg("%.17g instead of %.17g", got, want);
}

static void test_words(void **state)
{
    (void)state;
    struct words w = {0};
    const char *text = "\xe2\x80\x83 one\x1ctwo\n\xc2\xa0three ";
    words_split(&w, text, strlen(text));
    assert_int_equal(w.n, 3);
    assert_memory_equal(w.v[1].at, "two", 3);
    assert_int_equal(w.v[2].len, 5);
    words_free(&w);
    words_split(&w, "", 0);
    assert_int_equal(w.n, 0);
    words_free(&w);
}

static void test_tokens_of_13a(void **state)
{
    (void)state;
    static const struct {
        const char *text, *tokens;
    } cases[] = {
        {"", ""},
        {"Hello, world!", "Hello , world !"},
        {"It costs $3.50, or 1,000.", "It costs $ 3.50 , or 1,000 ."},
        {"well-known 5-6 -\nend", "well-known 5 - 6 end"},
        {"&quot;a&quot; &amp;lt; b<skipped>c", "\" a \" < bc"},
        {"don't (stop)...", "don't ( stop ) . . ."},
        {"\xe2\x80\x83x\xc2\xa0y \n", "x y"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf got = {0};
        buf_str(&got, "");
        bleu_tokenize(cases[i].text, &got);
        assert_string_equal(got.data, cases[i].tokens);
        buf_free(&got);
    }
}

static double bleu(const char *text, const char *ref, bool effective_order)
{
    double stats[BLEU_STATS];
    bleu_count(text, &ref, 1, stats);
    return bleu_score(stats, effective_order);
}

static void test_bleu(void **state)
{
    (void)state;
    near(bleu("the cat sat on the mat", "the cat sat on the mat", false), 100);
    near(bleu("a b c d", "e f g h", false), 0);
    near(bleu("", "a", false), 0);
    near(bleu("the cat", "the cat", false), 0); /* no n-gram of three words */
    near(bleu("the cat", "the cat", true), 100);
    near(bleu("a b c d", "a b c d e f g h", true), 100 * exp(1 - 8.0 / 4));
    /* matched 4, 2, 0, 0 of 5, 4, 3, 2; smoothed 1/2 and 1/4 */
    near(bleu("a b x c d", "a b c d e", false), 100 * pow(4.0 / 5 * 2 / 4 / (2 * 3) / (4 * 2), 0.25));
    double stats[BLEU_STATS];
    bleu_count("a a a b", (const char *[]){"a", "a a x x x"}, 2, stats);
    near(stats[1], 5);
    near(stats[2], 2); /* a twice, as in the reference that has it most often */
}

static void test_chrf(void **state)
{
    (void)state;
    double plain[CHRF_STATS], plus[CHRF_PLUS_STATS];
    chrf_count("a b", (const char *[]){"ab"}, 1, plain, plus);
    near(chrf_score(plain, CHRF_STATS), 100); /* white space does not count */
    near(plus[3 * CHRF_CHARS + 2], 0);
    near(chrf_score(plus, CHRF_PLUS_STATS), 100 * 2.0 / 3);
    chrf_count("abc", (const char *[]){"xyz", "abd"}, 2, plain, plus);
    double p = (2.0 / 3 + 1.0 / 2) / 3;
    near(chrf_score(plain, CHRF_STATS), 100 * p);
    chrf_count("", (const char *[]){"", "a"}, 2, plain, plus);
    near(chrf_score(plus, CHRF_PLUS_STATS), 0);
}

static void test_rouge(void **state)
{
    (void)state;
    double got[ROUGE_KINDS];
    const char *ref = "the cat sat\non the mat";
    rouge_score("On the mat, the CAT sat!", &ref, 1, false, got);
    near(got[ROUGE_1], 1);
    near(got[ROUGE_2], 2 * 4.0 / 5 * 4 / 5 / (4.0 / 5 + 4.0 / 5));
    near(got[ROUGE_L], 0.5);
    near(got[ROUGE_LSUM], 1);
    rouge_score("running", (const char *[]){"", "runs"}, 2, true, got);
    near(got[ROUGE_1], 1);
    rouge_score("running", (const char *[]){"", "runs"}, 2, false, got);
    near(got[ROUGE_1], 0);
}

static void test_stems(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"caresses", "caress"},  {"ponies", "poni"},      {"agreed", "agre"},    {"hopping", "hop"},
        {"hoping", "hope"},      {"happy", "happi"},      {"enjoy", "enjoy"},    {"skies", "sky"},
        {"dies", "die"},         {"relational", "relat"}, {"fizzed", "fizz"},    {"controll", "control"},
        {"analogies", "analog"}, {"adoption", "adopt"},   {"probate", "probat"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char word[32];
        strcpy(word, cases[i][0]);
        word[stem_word(word, strlen(word))] = 0;
        assert_string_equal(word, cases[i][1]);
    }
}

static void found(const char *regex, bool last, const char *text, const char *want)
{
    struct err e = {0};
    struct buf got = {0};
    struct extractor *x = extractor_open(regex, &e);
    assert_non_null(x);
    buf_str(&got, "");
    extractor_find(x, text, last, &got);
    assert_string_equal(got.data, want);
    buf_free(&got);
    extractor_close(x);
}

static void test_extraction(void **state)
{
    (void)state;
    struct err e = {0};
    found("\\d+", false, "from 12 to 34.", "12");
    found("\\d+", true, "from 12 to 34.", "34");
    found("answer is (\\w+)|#### (.*)", false, "so\n####  \xc3\xa9t\xc3\xa9 ", "\xc3\xa9t\xc3\xa9");
    found("(x)?b", false, "b", "");
    found("\\d+", false, "none", "[invalid]");
    found("x*", true, "a\xe6\x97\xa5xb", "");
    found("", false, "", "");
    assert_null(extractor_open("(", &e));
    assert_non_null(strstr(e.msg, "byte"));
    found("^(a+)+$", false, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "[invalid]"); /* too much work */
}

static void test_scores(void **state)
{
    (void)state;
    const double text[TEXT_SUMS] = {8, 4, 2, 16}, choice[CHOICE_SUMS] = {4, 1, 2, 3};
    near(metrics_score(EVALUATION_TEXT, 0, text, false), exp(2));
    near(metrics_score(EVALUATION_TEXT, 1, text, false), exp(4));
    near(metrics_score(EVALUATION_TEXT, 2, text, false), exp(0.5));
    near(metrics_score(EVALUATION_TEXT, 3, text, false), 0.5 / log(2));
    for (int m = 0; m < 3; m++) near(metrics_score(EVALUATION_CHOICE, m, choice, false), (m + 1) / 4.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),      cmocka_unit_test(test_tokens_of_13a), cmocka_unit_test(test_bleu),
        cmocka_unit_test(test_chrf),       cmocka_unit_test(test_rouge),         cmocka_unit_test(test_stems),
        cmocka_unit_test(test_extraction), cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
