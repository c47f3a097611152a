/* A template's source cut into tokens, with jinja2's rules for white space: trim_blocks and lstrip_blocks on, one
 * newline at the end dropped, "-" and "+" beside a delimiter. */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_LEX_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_LEX_H

#include "engine/template/jinja_value.h"

enum jtok {
    TOK_END,
    TOK_DATA,
    TOK_BLOCK_BEGIN,
    TOK_BLOCK_END,
    TOK_VARIABLE_BEGIN,
    TOK_VARIABLE_END,
    TOK_NAME,
    TOK_STRING,
    TOK_INT,
    TOK_FLOAT,
    TOK_ADD,
    TOK_SUB,
    TOK_MUL,
    TOK_DIV,
    TOK_FLOORDIV,
    TOK_MOD,
    TOK_POW,
    TOK_TILDE,
    TOK_EQ,
    TOK_NE,
    TOK_LT,
    TOK_LE,
    TOK_GT,
    TOK_GE,
    TOK_ASSIGN,
    TOK_DOT,
    TOK_COLON,
    TOK_PIPE,
    TOK_COMMA,
    TOK_SEMICOLON,
    TOK_LPAREN,
    TOK_RPAREN,
    TOK_LBRACKET,
    TOK_RBRACKET,
    TOK_LBRACE,
    TOK_RBRACE,
};

struct jtoken {
    enum jtok type;
    unsigned line, column; /* from 1; the column counts bytes */
    struct jstr text;      /* data, name; a string without quotes and escapes */
    struct jv value;       /* of TOK_INT, TOK_FLOAT */
};

/* The tokens, TOK_END last, in j's arena.  Source bytes must be valid UTF-8 and outlive the tokens. */
const struct jtoken *jinja_lex(struct jinja *j, struct jstr source);
const char *jinja_token_name(enum jtok type);

#endif
