/* The post-processor of a tokenizer.json: tokens put around the text's own, or around and between those of a pair of
 * texts, the type of each token, and offsets trimmed of spaces. */
#ifndef TANDEM_ENGINE_TOKENIZER_TEMPLATE_H
#define TANDEM_ENGINE_TOKENIZER_TEMPLATE_H

#include "engine/tokenizer/json.h"

enum { TEMPLATE_TEXT = -1, TEMPLATE_PAIR = -2 };

/* What an input is made of, in order. */
struct template_list {
    struct template_item {
        int32_t id; /* of a token; TEMPLATE_TEXT or TEMPLATE_PAIR: the tokens of the first or of the second text */
        unsigned char type;
    } * v;
    size_t n;       /* 0: the file has no template for this */
    size_t n_added; /* tokens that are in neither text */
};

struct template
{
    struct template_list single, pair;
    int32_t *before, *after; /* ids of `single` before and behind the text, owned */
    size_t n_before, n_after;
    bool trim;        /* ByteLevel's trim_offsets */
    bool trim_prefix; /* its add_prefix_space: the space it added itself is not trimmed */
};

int template_read(struct template *z, const struct json_at *at, struct err *e); /* at->v NULL: nothing is added */
void template_free(struct template *z);

#endif
