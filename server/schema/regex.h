/* The regular expressions of JSON Schema (`pattern`), as expressions over the characters of a JSON string. */
#ifndef TANDEM_SERVER_SCHEMA_REGEX_H
#define TANDEM_SERVER_SCHEMA_REGEX_H

#include "server/schema/jexpr.h"

enum { JSON_REGEX_MAX = 4096 /* bytes of a pattern */ };

/* The strings in which the pattern is found, as `pattern` means it: ^ and $ tie it to the ends.  Its dialect is what
 * ECMA 262 and Python agree about; where they differ (\d, \w and \s beyond ASCII, a line's end before $) only strings
 * that match for both are allowed.  JX_NONE and *e (which begins with the byte) for what is not a regular expression,
 * or none that a finite automaton can do: back-references, look-around, \b. */
jx json_regex(struct jpool *, const char *pattern, struct err *e);

#endif
