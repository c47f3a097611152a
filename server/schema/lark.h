/* Grammars in Lark's notation, as OpenAI's custom tools have them, as expressions over the characters of a JSON string.
 *
 * Rules, terminals, alternatives, groups, [optional], ? * + ~n ~n..m, strings, ranges, regular expressions and imports
 * of `common` are supported, recursion too unless it is left recursion.  A rule's text is that of its parts side by
 * side: the choices of a lexer are not looked at.  %ignore and templates are refused. */
#ifndef TANDEM_SERVER_SCHEMA_LARK_H
#define TANDEM_SERVER_SCHEMA_LARK_H

#include "server/schema/jexpr.h"

enum { LARK_MAX = 16 * 1024 /* bytes of a grammar */ };

/* @return the strings that `start` derives.  JX_NONE and *e (which begins with the byte) for what is refused. */
jx json_lark(struct jpool *, const char *grammar, struct err *e);
/* Whether a grammar of the engine can be made of it; else *e. */
bool lark_supported(const char *grammar, struct err *e);

#endif
