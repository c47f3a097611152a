/* A row as text with trained stretches: conversations by the chat template that serving uses, the Alpaca layout where
 * a model has none. */
#ifndef TANDEM_ENGINE_DATA_RENDER_H
#define TANDEM_ENGINE_DATA_RENDER_H

#include "engine/data/encode.h"
#include "engine/data/row.h"
#include "engine/template/chat_template.h"

struct rendered {
    struct buf text;
    struct stretch *v; /* owned */
    size_t n, cap;
    unsigned flags; /* ENCODE_SPECIAL, ENCODE_EOS */
};

/* Zero-initialise *out.  Not for ROW_IDS. */
int render_row(const struct row *, const struct chat_template *t, struct rendered *out, struct err *e);
void rendered_clear(struct rendered *); /* keeps the memory */
void rendered_free(struct rendered *);

#endif
