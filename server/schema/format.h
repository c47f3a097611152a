/* JSON Schema's `format`, as expressions over the characters of a string. */
#ifndef TANDEM_SERVER_SCHEMA_FORMAT_H
#define TANDEM_SERVER_SCHEMA_FORMAT_H

#include "server/schema/jexpr.h"

enum json_format {
    FORMAT_UNKNOWN, /* says nothing about the text, as the standard has it for names it does not define */
    FORMAT_KNOWN,
    FORMAT_REFUSED, /* a name of the standard that no finite automaton can check */
};

enum { JSON_FORMATS = 20 };

/* Sets *out (FORMAT_KNOWN): texts of this format, not always all (docs/constrained.md), of bounded length.  What was
 * made is kept in made[], for the next string of the same format. */
enum json_format json_format(struct jpool *, const char *name, jx made[static JSON_FORMATS], jx *out);

#endif
