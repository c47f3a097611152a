/* Module names against the rules of adapter_config.json, as PEFT applies them (peft/tuners/tuners_utils.py
 * check_target_module_exists, peft/utils/other.py get_pattern_key): Python regular expressions, run by PCRE2 with
 * limits, since the file is untrusted. */
#ifndef TANDEM_ENGINE_MODEL_ADAPTER_MATCH_H
#define TANDEM_ENGINE_MODEL_ADAPTER_MATCH_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

/* Which part of a name the rule's text must match: the whole name, or its end after a dot. */
enum rule_kind { RULE_WHOLE, RULE_TAIL };

struct rule {
    const char *text; /* borrowed */
    enum rule_kind kind;
    void *code, *match; /* PCRE2's; NULL: the text has only letters, digits, _ and dots; a dot matches any character */
};

/* key: its name in error messages */
int rule_open(struct rule *, const char *text, enum rule_kind, const char *key, struct err *e);
/* @return 1 or 0; an error code when a limit was hit */
int rule_matches(const struct rule *, const char *name, struct err *e);
void rule_close(struct rule *);

/* An object {pattern: number}; the first match wins. */
struct rule_table {
    struct rule *rule;
    double *value;
    int n;
};

int rule_table_open(struct rule_table *, const cJSON *object, const char *key, struct err *e);
/* sets *value when a rule matches the name; otherwise *value is unchanged */
int rule_table_find(const struct rule_table *, const char *name, double *value, struct err *e);
void rule_table_close(struct rule_table *);

/* Whether the name is in the list, or ends with "." and a name of the list. */
bool list_matches(const cJSON *list, const char *name, bool *exact);

#endif
