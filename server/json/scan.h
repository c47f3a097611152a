/* A JSON text as it comes: the grammar that json_check reads at once, here byte by byte.  Pure; any thread.
 *
 * Accepts and refuses what json_check does, but for numbers that are too large for a double and for what stands behind
 * the value.  A number at the top has no last byte and is refused: the text is an object, an array, a string or a word
 * (true, false, null). */
#ifndef TANDEM_SERVER_JSON_SCAN_H
#define TANDEM_SERVER_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

enum scan_result { SCAN_MORE, SCAN_DONE, SCAN_BAD };

enum scan_state {
    SCAN_VALUE, /* a value must come */
    SCAN_FIRST, /* behind [: a value or ] */
    SCAN_OPEN,  /* behind {: a name or } */
    SCAN_NAME,  /* behind , in an object */
    SCAN_COLON,
    SCAN_AFTER, /* a value is complete; , or the end of what holds it must come, or the text is complete */
    /* within a string */
    SCAN_STRING,
    SCAN_UTF8,
    SCAN_ESCAPE,
    SCAN_HEX,
    SCAN_PAIR, /* the \ and the u of the second half of a surrogate pair */
    SCAN_PAIR_U,
    SCAN_WORD,
    /* within a number */
    SCAN_MINUS,
    SCAN_ZERO,
    SCAN_DIGITS,
    SCAN_POINT,
    SCAN_FRACTION,
    SCAN_E,
    SCAN_SIGN,
    SCAN_EXPONENT,
};

/* Zero-initialise. */
struct json_scan {
    enum scan_state state;
    int depth;        /* containers that are open */
    uint64_t objects; /* bit i: the container at depth i + 1 is an object */
    bool name;        /* the string is a member's name */
    const char *word; /* what is left of it */
    int left;         /* hexadecimal digits, or bytes of a UTF-8 sequence, still to come */
    unsigned unit;    /* \uXXXX so far */
    bool low;         /* the second half of a pair must come */
    uint8_t min, max; /* of the sequence's next byte */
    int digits;       /* bytes of the number so far */
};

/* One byte more.  SCAN_DONE: it was the last byte of the value.  After SCAN_DONE or SCAN_BAD the state is of no use. */
enum scan_result json_scan_byte(struct json_scan *, unsigned char);

#endif
