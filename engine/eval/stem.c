#include "engine/eval/stem.h"

#include <stdbool.h>
#include <string.h>

struct stem { /* a word that becomes shorter; a step that lengthens it never exceeds its first length */
    char *s;
    size_t n;
};

/* A condition on what is left of a word without the suffix: word[0, n). */
typedef bool condition(const char *word, size_t n);

struct rule {
    const char *suffix, *with;
};

/* ---- words as consonants and vowels ------------------------------------------------------------------------------ */

static bool is_vowel(char c, bool after_consonant)
{
    return c == 'a' || c == 'e' || c == 'i' || c == 'o' || c == 'u' || (c == 'y' && after_consonant);
}

static bool is_consonant(const char *w, size_t at)
{
    bool consonant = false; /* a y is one at the beginning, and after a vowel */
    size_t i = at;
    while (i > 0 && w[i] == 'y') i--; /* the run of y that ends here alternates */
    for (; i <= at; i++) consonant = !is_vowel(w[i], consonant);
    return consonant;
}

/* How many times a vowel is followed by a consonant: m of the paper. */
static size_t measure(const char *w, size_t n)
{
    size_t m = 0;
    bool consonant = false, vowel_before = false;
    for (size_t i = 0; i < n; i++) {
        consonant = !is_vowel(w[i], consonant);
        m += consonant && vowel_before;
        vowel_before = !consonant;
    }
    return m;
}

static bool is_positive(const char *w, size_t n)
{
    return measure(w, n) > 0;
}

static bool is_above_one(const char *w, size_t n)
{
    return measure(w, n) > 1;
}

static bool has_vowel(const char *w, size_t n)
{
    bool consonant = false;
    for (size_t i = 0; i < n; i++) {
        consonant = !is_vowel(w[i], consonant);
        if (!consonant) return true;
    }
    return false;
}

static bool ends_double(const char *w, size_t n)
{
    return n >= 2 && w[n - 1] == w[n - 2] && is_consonant(w, n - 1);
}

/* Consonant, vowel, consonant that is not w, x or y; or the two letters vowel, consonant. */
static bool ends_short(const char *w, size_t n)
{
    if (n == 2) return !is_consonant(w, 0) && is_consonant(w, 1);
    return n >= 3 && is_consonant(w, n - 3) && !is_consonant(w, n - 2) && is_consonant(w, n - 1) && w[n - 1] != 'w' &&
           w[n - 1] != 'x' && w[n - 1] != 'y';
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static bool ends_with(const struct stem *w, const char *suffix)
{
    size_t n = strlen(suffix);
    return w->n >= n && memcmp(w->s + w->n - n, suffix, n) == 0;
}

static void put(struct stem *w, size_t keep, const char *with)
{
    size_t n = strlen(with);
    memcpy(w->s + keep, with, n);
    w->n = keep + n;
}

/* Applies the first rule whose suffix the word has, if the condition holds. */
static void apply(struct stem *w, const struct rule *rules, size_t n, condition *holds)
{
    for (size_t i = 0; i < n; i++) {
        if (!ends_with(w, rules[i].suffix)) continue;
        size_t keep = w->n - strlen(rules[i].suffix);
        if (!holds || holds(w->s, keep)) put(w, keep, rules[i].with);
        return;
    }
}

#define APPLY(w, rules, holds) apply(w, rules, sizeof(rules) / sizeof *(rules), holds)

static void step_1a(struct stem *w)
{
    static const struct rule rules[] = {{"sses", "ss"}, {"ies", "i"}, {"ss", "ss"}, {"s", ""}};
    if (w->n == 4 && ends_with(w, "ies"))
        w->n--; /* dies: die */
    else
        APPLY(w, rules, NULL);
}

/* Mends a stem whose -ed or -ing was taken. */
static void mend(struct stem *w)
{
    char last = w->s[w->n - 1];
    bool wants_e = ends_with(w, "at") || ends_with(w, "bl") || ends_with(w, "iz");
    if (wants_e) {
        put(w, w->n, "e");
    } else if (ends_double(w->s, w->n)) {
        if (last != 'l' && last != 's' && last != 'z') w->n--;
    } else if (measure(w->s, w->n) == 1 && ends_short(w->s, w->n)) {
        put(w, w->n, "e");
    }
}

static void step_1b(struct stem *w)
{
    if (ends_with(w, "ied")) {
        w->n -= w->n == 4 ? 1 : 2; /* died: die; spied: spi */
    } else if (ends_with(w, "eed")) {
        if (is_positive(w->s, w->n - 3)) w->n--;
    } else {
        size_t keep = ends_with(w, "ed") ? w->n - 2 : ends_with(w, "ing") ? w->n - 3 : w->n;
        if (keep == w->n || !has_vowel(w->s, keep)) return;
        w->n = keep;
        mend(w);
    }
}

static void step_1c(struct stem *w)
{
    if (w->n > 2 && w->s[w->n - 1] == 'y' && is_consonant(w->s, w->n - 2)) w->s[w->n - 1] = 'i';
}

static void step_2(struct stem *w)
{
    static const struct rule rules[] = {
        {"ational", "ate"}, {"tional", "tion"}, {"enci", "ence"}, {"anci", "ance"}, {"izer", "ize"},
        {"bli", "ble"},     {"alli", "al"},     {"entli", "ent"}, {"eli", "e"},     {"ousli", "ous"},
        {"ization", "ize"}, {"ation", "ate"},   {"ator", "ate"},  {"alism", "al"},  {"iveness", "ive"},
        {"fulness", "ful"}, {"ousness", "ous"}, {"aliti", "al"},  {"iviti", "ive"}, {"biliti", "ble"},
        {"fulli", "ful"},
    };
    while (ends_with(w, "alli") && is_positive(w->s, w->n - 4)) put(w, w->n - 4, "al"); /* then another rule */
    if (ends_with(w, "logi")) { /* the l counts to what is left */
        if (is_positive(w->s, w->n - 3)) w->n--;
        return;
    }
    APPLY(w, rules, is_positive);
}

static void step_3(struct stem *w)
{
    static const struct rule rules[] = {{"icate", "ic"}, {"ative", ""}, {"alize", "al"}, {"iciti", "ic"},
                                        {"ical", "ic"},  {"ful", ""},   {"ness", ""}};
    APPLY(w, rules, is_positive);
}

static bool takes_ion(const char *w, size_t n)
{
    return is_above_one(w, n) && (w[n - 1] == 's' || w[n - 1] == 't');
}

static void step_4(struct stem *w)
{
    static const struct rule rules[] = {{"al", ""},   {"ance", ""}, {"ence", ""}, {"er", ""},    {"ic", ""},
                                        {"able", ""}, {"ible", ""}, {"ant", ""},  {"ement", ""}, {"ment", ""},
                                        {"ent", ""},  {"ou", ""},   {"ism", ""},  {"ate", ""},   {"iti", ""},
                                        {"ous", ""},  {"ive", ""},  {"ize", ""}};
    static const struct rule ion[] = {{"ion", ""}};
    if (ends_with(w, "ion"))
        APPLY(w, ion, takes_ion);
    else
        APPLY(w, rules, is_above_one);
}

static void step_5(struct stem *w)
{
    if (ends_with(w, "e")) {
        size_t m = measure(w->s, w->n - 1);
        if (m > 1 || (m == 1 && !ends_short(w->s, w->n - 1))) w->n--;
    }
    if (ends_with(w, "ll") && is_above_one(w->s, w->n - 1)) w->n--;
}

/* Words that the rules would take wrongly. */
static bool is_irregular(struct stem *w)
{
    static const struct rule words[] = {
        {"sky", "sky"},        {"skies", "sky"},       {"dying", "die"},        {"lying", "lie"},
        {"tying", "tie"},      {"news", "news"},       {"innings", "inning"},   {"inning", "inning"},
        {"outings", "outing"}, {"outing", "outing"},   {"cannings", "canning"}, {"canning", "canning"},
        {"howe", "howe"},      {"proceed", "proceed"}, {"exceed", "exceed"},    {"succeed", "succeed"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (w->n != strlen(words[i].suffix) || memcmp(w->s, words[i].suffix, w->n) != 0) continue;
        put(w, 0, words[i].with);
        return true;
    }
    return false;
}

size_t stem_word(char *word, size_t n)
{
    struct stem w = {word, n};
    if (is_irregular(&w) || n <= 2) return w.n;
    step_1a(&w);
    step_1b(&w);
    step_1c(&w);
    step_2(&w);
    step_3(&w);
    step_4(&w);
    step_5(&w);
    return w.n;
}
