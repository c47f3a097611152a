/* Whose shape a request for embeddings has.  Pure; any thread.
 *
 * POST / is TGI's for generating and Text Embeddings Inference's for embedding; Hugging Face's client sends both there,
 * to servers that do one of the two. */
#ifndef TANDEM_SERVER_API_EMBED_SHAPE_H
#define TANDEM_SERVER_API_EMBED_SHAPE_H

#include <stddef.h>

enum embed_shape {
    EMBED_OPENAI,     /* POST /v1/embeddings */
    EMBED_TEI,        /* {"inputs": TEXT or TEXTS}: [[x, ...], ...] */
    EMBED_SIMILARITY, /* {"inputs": {"source_sentence": TEXT, "sentences": TEXTS}}: [cosine, ...] */
    EMBED_NONE,
};

/* What a body of POST / asks for: similarities where `inputs` is an object, embeddings where it is a list or where the
 * body has a field of theirs (normalize, truncate, truncation_direction, prompt_name, dimensions), else EMBED_NONE.
 * Looks only as far as it must, in at most one pass over the bytes; a body that is no JSON may be anything. */
enum embed_shape embed_shape_of(const char *body, size_t n);

#endif
