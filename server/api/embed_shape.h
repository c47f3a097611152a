/* The API convention of an embeddings request.  Pure; any thread.
 *
 * POST / generates in TGI's API and embeds in Text Embeddings Inference's; Hugging Face's client uses it for both,
 * since those servers do only one. */
#ifndef TANDEM_SERVER_API_EMBED_SHAPE_H
#define TANDEM_SERVER_API_EMBED_SHAPE_H

#include <stddef.h>

enum embed_shape {
    EMBED_OPENAI,     /* POST /v1/embeddings */
    EMBED_TEI,        /* {"inputs": TEXT or TEXTS}: [[x, ...], ...] */
    EMBED_SIMILARITY, /* {"inputs": {"source_sentence": TEXT, "sentences": TEXTS}}: [cosine, ...] */
    /* of a classifier (rank_params.c) */
    EMBED_RERANK,       /* vLLM's, Jina's and Cohere's: {"query": TEXT, "documents": TEXTS} */
    EMBED_RANK,         /* TEI's: {"query": TEXT, "texts": TEXTS} */
    EMBED_SCORE,        /* vLLM's: {"text_1": TEXT or TEXTS, "text_2": TEXT or TEXTS} */
    EMBED_CLASSIFY,     /* vLLM's: {"input": TEXT or TEXTS} */
    EMBED_PREDICT,      /* TEI's: {"inputs": TEXT, a pair, or a list of lists of one or two texts} */
    EMBED_PREDICT_ROOT, /* the same at POST /, answered with a list of lists as Hugging Face's API does */
    EMBED_NONE,
};

/* Classifies a body of POST /: similarities if `inputs` is an object, embeddings if it is a list or the body has a
 * field of TEI's (normalize, truncate, truncation_direction, prompt_name, dimensions), otherwise EMBED_NONE.  At most
 * one pass over the bytes, as few as needed; the result for invalid JSON is arbitrary. */
enum embed_shape embed_shape_of(const char *body, size_t n);

#endif
