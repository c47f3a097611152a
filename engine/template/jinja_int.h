/* Integers of any size for the chat templates' language, as Python has them.  What fits 64 bits is a J_INT; only what
 * does not is a J_BIG, so each number has one form.  The arithmetic is GMP's mpn functions, on limbs in the arena. */
#ifndef TANDEM_ENGINE_TEMPLATE_JINJA_INT_H
#define TANDEM_ENGINE_TEMPLATE_JINJA_INT_H

#include "engine/template/jinja_value.h"

enum {
    JINJA_INT_BITS = 1 << 16, /* of an integer; past it the render fails */
    JINJA_INT_DIGITS = 4300,  /* decimal digits that are read or written: Python's limit */
};

struct jbig;

/* int or bool, of any size */
bool jint_is(struct jv v);
/* a op b: + - * // % ** of two integers, and /, which gives a float */
struct jv jint_binary(struct jinja *j, int op, struct jv a, struct jv b);
struct jv jint_negative(struct jinja *j, struct jv v);
bool jint_below_zero(struct jv v);
int jint_compare(struct jv a, struct jv b);                      /* <0, 0, >0 */
int jint_compare_double(struct jinja *j, struct jv a, double b); /* exact; b is no NaN */

/* Digits of the base (2..36), which the caller has checked; fails where there are too many. */
struct jv jint_parse(struct jinja *j, const char *digits, size_t n, int base, bool negative);
/* The digits of |v|, lower case, NUL-terminated, in the arena. */
char *jint_digits(struct jinja *j, struct jv v, int base);

/* Rounded to the nearest; infinite where it is out of range. */
double jint_double(struct jv v);
/* d without its fraction; fails where it is not finite. */
struct jv jint_of_double(struct jinja *j, double d);

#endif
