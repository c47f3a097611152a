/* Internals of schema.h: schema.c (positions, references, alternatives, enumerations), schema_types.c (one function for
 * each type), schema_merge.c (several schemas that hold at once). */
#ifndef TANDEM_SERVER_SCHEMA_SCHEMA_IN_H
#define TANDEM_SERVER_SCHEMA_SCHEMA_IN_H

#include "server/schema/format.h"
#include "server/schema/schema.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    SCHEMA_DEPTH_MAX = 150,     /* nested schemas, including resolved references */
    SCHEMA_WORK_MAX = 60 * 1000 /* visits of keywords and properties, including those by merging */
};

/* The position of a schema: a linked list on the stack. */
struct place {
    const struct place *up; /* NULL: the root */
    const char *name;       /* NULL: index */
    int index;
};

struct target;

struct translator {
    struct jpool *p;
    const cJSON *root;
    struct target *targets; /* of references; owned */
    size_t n_targets, cap_targets;
    cJSON **made; /* merged schemas; owned */
    size_t n_made, cap_made;
    const cJSON *merging; /* the current target, which must be merged now */
    int depth;
    long work;
    jx formats[JSON_FORMATS];                                    /* JX_NONE: not made */
    jx any_value, any_object, any_string, any_number, any_chars; /* JX_NONE: not made */
};

/* What the schema allows; JX_NONE: nothing, or the pool failed. */
jx schema_value(struct translator *, const cJSON *schema, const struct place *);
jx schema_any_value(struct translator *);
jx schema_literal(struct translator *, const cJSON *value, const struct place *); /* this one */
jx schema_any_string(struct translator *);
jx schema_string(struct translator *, const cJSON *schema, const struct place *);
jx schema_number(struct translator *, const cJSON *schema, bool whole, const struct place *);
jx schema_array(struct translator *, const cJSON *schema, const struct place *);
jx schema_object(struct translator *, const cJSON *schema, const struct place *);

/* The keyword's value: the last of duplicates; null counts as absent. */
const cJSON *schema_get(const cJSON *schema, const char *name);
/* @return an integer >= 0, clamped to JX_MANY - 1; `otherwise` when absent. */
uint32_t schema_count(struct translator *, const cJSON *schema, const char *name, uint32_t otherwise,
                      const struct place *);
/* Whether a keyword other than these two restricts. */
bool schema_restricts(const cJSON *schema, const char *but, const char *or_but);
/* The schema that a reference names, of the root; NULL: failed. */
const cJSON *schema_resolve(struct translator *, const cJSON *ref, const struct place *);
/* False (and failed) when it has a keyword that restricts in a way that is not supported. */
bool schema_check_keywords(struct translator *, const cJSON *schema, const struct place *);
/* Counts against SCHEMA_WORK_MAX; false: failed. */
bool schema_works(struct translator *, long units, const struct place *);
__attribute__((format(printf, 3, 4))) void schema_fail(struct translator *, const struct place *, const char *fmt, ...);

/* An empty schema that belongs to the translator. */
cJSON *schema_new(struct translator *);
/* A new schema that holds where both do, of base without the keyword `without` (NULL: all of it), and branch (NULL:
 * base alone; then $ref and allOf are resolved).  It refers into both and belongs to the translator.  NULL: failed. */
const cJSON *schema_merge(struct translator *, const cJSON *base, const char *without, const cJSON *branch,
                          const struct place *);

#endif
