/* One check of a text: from 0 to 1.  Internals of rewards.c. */
#ifndef TANDEM_SERVER_REWARDS_CHECK_H
#define TANDEM_SERVER_REWARDS_CHECK_H

#include "server/json/json.h"
#include "server/rewards/rewards.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum check_kind {
    CHECK_CONTAINS,
    CHECK_EXACT,
    CHECK_REGEX,
    CHECK_JSON,
    CHECK_SCHEMA,
    CHECK_LENGTH,
    CHECK_URL, /* from here on others give the numbers */
    CHECK_MODEL,
    CHECK_KINDS
};
extern const char *const check_names[CHECK_KINDS];

struct grammar;
struct reward_url;

struct check {
    enum check_kind kind;
    double weight;
    char path[40];    /* "rewards[2]" */
    char *text;       /* CONTAINS, EXACT: what is looked for; NULL: the row's field */
    char *field;      /* of the row */
    bool ignore_case; /* CONTAINS, EXACT: of ASCII letters */
    pcre2_code *code;
    pcre2_match_data *found;
    pcre2_match_context *limits;
    struct grammar *grammar;      /* SCHEMA: what constrained output with the schema may be */
    int64_t least, most, falloff; /* LENGTH, tokens */
    struct reward_url *url;
    char *model; /* MODEL: an adapter that gives scores */
};

/* Reads one; at: the object.  @return false and *at->e.  Zero-initialise; check_free in either case. */
bool check_read(struct json_at *at, struct check *);
void check_free(struct check *);
/* row: of the text.  All but URL and MODEL.  @return the value; *e where the row lacks what it needs. */
double check_score(const struct check *, const struct reward_text *, const cJSON *row, struct err *e);

#endif
