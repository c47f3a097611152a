/* Where the thoughts of a generated text begin and end, and how many tokens they have: by the text of its tokens, so
 * that no result depends on how a tokenizer spells a mark, on the batch, or on how many tokens a step gives.  Pure;
 * owned by the engine thread. */
#ifndef TANDEM_ENGINE_SERVE_THOUGHTS_H
#define TANDEM_ENGINE_SERVE_THOUGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum thoughts_state {
    THOUGHTS_NONE,  /* they are not looked for */
    THOUGHTS_FIRST, /* the text has only white space so far, or a part of the first mark */
    THOUGHTS_INSIDE,
    THOUGHTS_AGAIN, /* others may follow */
    THOUGHTS_OVER
};

/* The marks and `stop` belong to the request. */
struct thoughts {
    enum thoughts_state state;
    const char *begin, *end;
    bool again;
    size_t matched; /* bytes of the mark that is looked for */
    int count;      /* tokens within thoughts */
    int left;       /* of the budget; negative: there is none */
    bool stopped;   /* it is used up, and `stop` follows */
    const int32_t *stop;
    int n_stop;
};

enum thoughts_change { THOUGHTS_GO_ON, THOUGHTS_ENDED, THOUGHTS_USED_UP };

/* Reads the text of the next token, a special one's too; within: it ends within a character, whose bytes are not in the
 * text yet.  THOUGHTS_ENDED: with this token.  THOUGHTS_USED_UP: the tokens of `stop` must follow; a budget that ends
 * within a character is used up with it. */
enum thoughts_change thoughts_token(struct thoughts *, const char *text, size_t n, bool within);

#endif
