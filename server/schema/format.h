/* JSON Schema's `format`, as expressions over the characters of a string. */
#ifndef TANDEM_SERVER_SCHEMA_FORMAT_H
#define TANDEM_SERVER_SCHEMA_FORMAT_H

#include "server/schema/jexpr.h"

enum json_format {
    FORMAT_UNKNOWN, /* no constraint: the standard's rule for names that it does not define */
    FORMAT_KNOWN,
    FORMAT_REFUSED, /* a standard format that no finite automaton can check */
};

enum { JSON_FORMATS = 20 };

/* Sets *out (FORMAT_KNOWN): texts of this format, possibly a subset (docs/constrained.md), of bounded length.  Caches
 * the expression in made[] for the next string of the same format. */
enum json_format json_format(struct jpool *, const char *name, jx made[static JSON_FORMATS], jx *out);

#endif
