/* How a text is judged in training: a weighted sum of checks, "rewards" of POST /train.
 *
 * Immutable once opened, but for what url.c keeps of its connection: one thread at a time. */
#ifndef TANDEM_SERVER_REWARDS_REWARDS_H
#define TANDEM_SERVER_REWARDS_REWARDS_H

#include "engine/base/err.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

struct rewards;

enum { REWARDS_MAX = 16 };

/* Reads a list of checks; path: its name in messages.  NULL and *e, which names the field. */
struct rewards *rewards_open(const cJSON *list, const char *path, struct err *e);
void rewards_free(struct rewards *); /* NULL is allowed */
/* @return the name of the adapter that check i, 0 .. REWARDS_MAX - 1, asks; NULL: it asks none, or there is no such
 * check. */
const char *rewards_model(const struct rewards *, int i);
/* @return whether one of them asks another server. */
bool rewards_ask_others(const struct rewards *);

struct reward_text {
    const char *text; /* valid UTF-8, ends with 0 */
    size_t n;
    int tokens;      /* of the text */
    const char *row; /* (n_row) the row of the data as JSON */
    size_t n_row;
};

/* What the caller does for it. */
struct rewards_calls {
    bool (*stop)(void *arg); /* polled before each text, and while others' answers are waited for; NULL: never */
    /* Sets what an adapter that gives scores makes of each text, with its prompt.  @return 0, or *e; NULL: there is no
     * engine to ask. */
    int (*model)(void *arg, const char *name, double *value, struct err *e);
    void *arg;
};

/* Sets the sum of each of n texts.  May block for others' answers.  @return 0, or *e: ERR_FULL when it was stopped. */
int rewards_score(struct rewards *, const struct reward_text *, int n, const struct rewards_calls *, double *sum,
                  struct err *e);

#endif
