/* Regular expressions as tokenizer.json writes them (Oniguruma's Ruby syntax), run by PCRE2.
 *
 * The pattern is rewritten so that PCRE2 means what Oniguruma meant (regex.c says where they differ).  A
 * compiled regex is immutable and shared; a regex_run holds what one call needs and belongs to it.  Matching is
 * bounded: past its limits it is an error, not a hang.  */
#ifndef TANDEM_ENGINE_TOKENIZER_REGEX_H
#define TANDEM_ENGINE_TOKENIZER_REGEX_H

#include "engine/tokenizer/json.h"

#include <stdbool.h>
#include <stddef.h>

struct regex;

struct regex *regex_compile(const char *pattern, size_t n, struct err *e);
struct regex *regex_literal(const char *text, size_t n, struct err *e); /* matches exactly this text */
/* A member {"String": s} or {"Regex": r} of at. */
int regex_read(const struct json_at *at, const char *key, struct regex **out, struct err *e);
void regex_free(struct regex *);
/* PCRE2's memory is base/mem.h's: what it makes is there.  A pcre2_general_context; any thread. */
void *regex_memory(void);

struct regex_run {
    void *match, *context, *stack; /* made on first use */
};

void regex_run_free(struct regex_run *);

/* Successive matches in one subject: set s, n; zero the rest. */
struct regex_scan {
    const char *s;
    size_t n;
    size_t from;       /* the next search starts here */
    size_t start, end; /* the match found */
    bool any;          /* there was one before */
};

/* 1 and the next match, 0 when there is none, an err code when a limit was hit. */
int regex_next(const struct regex *, struct regex_run *, struct regex_scan *, struct err *e);

#endif
