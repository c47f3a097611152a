/* Texts in which marks do not occur: what is around calls, and within their texts.  Pure; any thread. */
#ifndef TANDEM_SERVER_SCHEMA_MARKS_H
#define TANDEM_SERVER_SCHEMA_MARKS_H

#include "server/schema/jexpr.h"

enum { MARKS_MAX = 12, MARK_MAX = 64 /* bytes */, STARTS_MAX = 8 };

/* A text without the CALLS_SPECIAL (calls.h) around parts of it, at most MARK_MAX + 1 bytes of it; NULL: an empty one.
 * @return out. */
const char *marks_bare(const char *text, char out[MARK_MAX + 2]);
/* A text that has none of the n marks (UTF-8; at most MARKS_MAX) and whose first character, if it is no white
 * space, is none of `starts`
 * (ASCII, at most 3).  No mark may have the first character of a mark a second time; a mark that begins
 * with the same character several times counts from the last of them. */
jx text_without_marks(struct jpool *, const char *const *marks, size_t n, const char *starts);
/* Any amount of it. */
jx white_space(struct jpool *);

#endif
