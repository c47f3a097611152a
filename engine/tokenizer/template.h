/* The post-processor of a tokenizer.json: tokens put before and behind the text's own, and offsets trimmed of spaces.
 */
#ifndef TANDEM_ENGINE_TOKENIZER_TEMPLATE_H
#define TANDEM_ENGINE_TOKENIZER_TEMPLATE_H

#include "engine/tokenizer/json.h"

struct template
{
    int32_t *before, *after; /* ids, owned */
    size_t n_before, n_after;
    bool trim;        /* ByteLevel's trim_offsets */
    bool trim_prefix; /* its add_prefix_space: the space it added itself is not trimmed */
};

int template_read(struct template *z, const struct json_at *at, struct err *e); /* at->v NULL: nothing to do */
void template_free(struct template *z);

#endif
