/* The numbers of JSON Schema as expressions over their digits.
 *
 * Bounds and steps are exact decimals.  A bounded or stepped number is generated without an exponent and with at most
 * 15 digits (integers: 18), so that its constraints also hold after conversion to a double. */
#ifndef TANDEM_SERVER_SCHEMA_NUMBER_H
#define TANDEM_SERVER_SCHEMA_NUMBER_H

#include "server/schema/jexpr.h"

#include <cjson/cJSON.h>

/* The value is (-1)^negative x 0.d0 d1 d2 ... x 10^point; d0 is not 0, and n = 0 is zero. */
struct decimal {
    bool negative;
    int n, point;
    char d[1001]; /* '0'..'9' */
};

/* item is a number, read by json_parse. */
void decimal_read(struct decimal *, const cJSON *item);
int decimal_compare(const struct decimal *, const struct decimal *);

struct number_limits {
    bool whole;                      /* type integer */
    bool has_min, has_max, has_step; /* step: multipleOf */
    bool min_excluded, max_excluded; /* the bound itself is not allowed */
    struct decimal min, max, step;
};

/* @return JX_NONE when no number is allowed, or with *e when the step is not supported. */
jx json_numbers(struct jpool *, const struct number_limits *, struct err *e);

#endif
