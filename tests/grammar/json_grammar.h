/* JSON without spaces as a grammar of recursive rules: for tests that want nesting, strings and numbers. */
#ifndef TANDEM_TESTS_JSON_GRAMMAR_H
#define TANDEM_TESTS_JSON_GRAMMAR_H

#include "engine/grammar/grammar.h"

#include <string.h>

static inline gexpr json_text(struct grammar_builder *b, const char *s)
{
    return gram_bytes(b, s, strlen(s));
}

static inline gexpr json_regex(struct grammar_builder *b, const char *s)
{
    return gram_regex(b, s, strlen(s));
}

static inline gexpr json_list(struct grammar_builder *b, const char *open, gexpr item, const char *close)
{
    gexpr rest[2] = {json_text(b, ","), item};
    gexpr items[2] = {item, gram_repeat(b, gram_seq(b, rest, 2), 0, UINT32_MAX)};
    gexpr all[3] = {json_text(b, open), gram_repeat(b, gram_seq(b, items, 2), 0, 1), json_text(b, close)};
    return gram_seq(b, all, 3);
}

/* any JSON value; strings of at most `longest` characters */
static inline gexpr json_value(struct grammar_builder *b, uint32_t longest)
{
    gexpr value = gram_rule(b);
    gexpr letter = json_regex(b, "[^\"\\\\\\x00-\\x1f]|\\\\[\"\\\\/bfnrt]|\\\\u[0-9a-fA-F]{4}");
    gexpr quoted[3] = {json_text(b, "\""), gram_repeat(b, letter, 0, longest), json_text(b, "\"")};
    gexpr string = gram_seq(b, quoted, 3);
    gexpr pair[3] = {string, json_text(b, ":"), value};
    gexpr kinds[5] = {string, json_regex(b, "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null"),
                      json_list(b, "[", value, "]"), json_list(b, "{", gram_seq(b, pair, 3), "}")};
    gram_define(b, value, gram_alt(b, kinds, 4));
    return value;
}

#endif
