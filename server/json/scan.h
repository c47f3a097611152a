/* An incremental JSON validator: the grammar of json_check, byte by byte.  Pure; any thread.
 *
 * Accepts and refuses the same texts as json_check, except numbers too large for a double and text after the value.  A
 * top-level number is refused because its end cannot be detected: the text is an object, an array, a string or a word
 * (true, false, null). */
#ifndef TANDEM_SERVER_JSON_SCAN_H
#define TANDEM_SERVER_JSON_SCAN_H

#include <stdbool.h>
#include <stdint.h>

enum scan_result { SCAN_MORE, SCAN_DONE, SCAN_BAD };

enum scan_state {
    SCAN_VALUE, /* a value must follow */
    SCAN_FIRST, /* after [: a value or ] */
    SCAN_OPEN,  /* after {: a name or } */
    SCAN_NAME,  /* after , in an object */
    SCAN_COLON,
    SCAN_AFTER, /* a value is complete: , or the end of its container must follow, or the text is complete */
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
    int depth;        /* open containers */
    uint64_t objects; /* bit i: the container at depth i + 1 is an object */
    bool name;        /* the string is a member's name */
    const char *word; /* its remaining letters */
    int left;         /* hexadecimal digits, or bytes of a UTF-8 sequence, remaining */
    unsigned unit;    /* \uXXXX so far */
    bool low;         /* the second half of a pair must follow */
    uint8_t min, max; /* of the sequence's next byte */
    int digits;       /* bytes of the number so far */
};

/* Consumes one byte.  SCAN_DONE: it was the last byte of the value.  After SCAN_DONE or SCAN_BAD the state is
 * invalid. */
enum scan_result json_scan_byte(struct json_scan *, unsigned char);

#endif
