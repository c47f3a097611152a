/* The regular expressions of JSON Schema (`pattern`), as expressions over the characters of a JSON string. */
#ifndef TANDEM_SERVER_SCHEMA_REGEX_H
#define TANDEM_SERVER_SCHEMA_REGEX_H

#include "server/schema/jexpr.h"

enum { JSON_REGEX_MAX = 4096 /* bytes of a pattern */ };

/* @return the strings that contain a match of the pattern (^ and $ anchor it).  The dialect is the common part of ECMA
 * 262 and Python; where they differ (\d, \w and \s beyond ASCII, a line feed before $) only strings that match in both
 * are allowed.  JX_NONE and *e (which begins with the byte) for an invalid expression, or one that needs more than a
 * finite automaton: back-references, look-around, \b. */
jx json_regex(struct jpool *, const char *pattern, struct err *e);
/* Whether a grammar of the engine can be made of it. */
bool json_regex_supported(const char *pattern);

#endif
