/* The formats as regular expressions.  Where a standard allows rarely used forms (years below 1000, leap seconds,
 * quoted local parts), the expression is narrower: generated text must be valid for every validator.  Lengths are
 * bounded, so that a maxLength beside a format is usually satisfied anyway. */
#include "server/schema/format.h"

#include "server/schema/regex.h"

#include "engine/base/check.h"

#include <string.h>

#define YEAR "[1-9][0-9]{3}"
#define LEAP_YEAR "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"              \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define HOUR_MINUTE "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
#define TIME HOUR_MINUTE ":[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-]" HOUR_MINUTE ")"
/* RFC 3339, appendix A: units in order, without gaps */
#define DURATION_TIME "T(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
#define DURATION_DATE "(?:[0-9]{1,4}D|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?)"
#define DURATION "P(?:" DURATION_DATE "(?:" DURATION_TIME ")?|" DURATION_TIME "|[0-9]{1,4}W)"
#define LABEL "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){0,3}"
#define DOMAIN "(?:" LABEL "\\.){1,3}[a-z]{2,12}"
#define WORD "[A-Za-z0-9_+-]{1,24}"
#define EMAIL WORD "(?:\\." WORD ")?@" DOMAIN
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9a-f]{1,4}"
#define IPV6                                                                                                           \
    "(?:" H16 "(?::" H16 "){7}|::(?:" H16 "(?::" H16 "){0,5})?|" H16 "::(?:" H16 "(?::" H16 "){0,4})?|" H16 ":" H16    \
    "::(?:" H16 "(?::" H16 "){0,3})?|" H16 "(?::" H16 "){2}::(?:" H16 "(?::" H16 "){0,2})?|" H16 "(?::" H16            \
    "){3}::(?:" H16 "(?::" H16 ")?)?|" H16 "(?::" H16 "){4}::(?:" H16 ")?)"
#define HEX "[0-9a-f]"
#define UUID HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}"
#define PATH_CHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})"
#define QUERY "(?:\\?" PATH_CHAR "{0,100})?(?:#" PATH_CHAR "{0,50})?"
#define URI "(?:https?|ftp)://" HOST "(?::[1-9][0-9]{0,3})?(?:/" PATH_CHAR "{0,200})?" QUERY
#define POINTER "(?:/(?:[A-Za-z0-9 ._$@-]|~[01]){0,40}){0,8}"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"email", EMAIL},
    {"idn-email", EMAIL},
    {"hostname", HOST},
    {"idn-hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", UUID},
    {"uri", URI},
    {"iri", URI},
    {"url", URI},
    {"uri-reference", "(?:" URI "|/" PATH_CHAR "{0,200}" QUERY ")"},
    {"iri-reference", "(?:" URI "|/" PATH_CHAR "{0,200}" QUERY ")"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]{0,3})(?:#|" POINTER ")"},
    {"regex", NULL},
    {"uri-template", NULL},
};

enum json_format json_format(struct jpool *p, const char *name, jx made[static JSON_FORMATS], jx *out)
{
    _Static_assert(sizeof formats / sizeof *formats == JSON_FORMATS, "the number of formats");
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) != 0) continue;
        if (!formats[i].pattern) return FORMAT_REFUSED;
        *out = made[i];
        if (*out != JX_NONE) return FORMAT_KNOWN;
        char anchored[4096] = "^(?:";
        struct err e = {0};
        CHECK(strlen(formats[i].pattern) + 8 < sizeof anchored);
        strcat(strcat(anchored, formats[i].pattern), ")$");
        *out = made[i] = json_regex(p, anchored, &e);
        CHECK(e.code == 0);
        return FORMAT_KNOWN;
    }
    return FORMAT_UNKNOWN;
}
