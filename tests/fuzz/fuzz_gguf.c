/* libFuzzer: any bytes as a GGUF file.  What is accepted must be readable in full: every byte of every tensor, and the
 * files made from its keys by their readers. */
#include "engine/files/gguf_model.h"
#include "engine/model/config.h"
#include "engine/model/gguf_source.h"
#include "engine/model/weights_gguf.h"
#include "engine/tokenizer/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need_text(const struct err *e)
{
    if (!e->msg[0]) abort(); /* an error without a sentence */
}

static void read_files(const struct gguf *g)
{
    struct buf config = {0}, generation = {0}, tokenizer = {0}, settings = {0};
    struct model_config c;
    struct err e = {0};
    gguf_generation_json(g, &generation, &e);
    if (gguf_config_json(g, &config, &e) || model_config_parse(config.data, generation.data, &c, &e)) need_text(&e);
    e = (struct err){0};
    if (gguf_tokenizer_config_json(g, &settings, &e)) need_text(&e);
    e = (struct err){0};
    if (gguf_tokenizer_json(g, &tokenizer, &e)) {
        need_text(&e);
    } else {
        struct tokenizer *t = tokenizer_parse(tokenizer.data, tokenizer.len, &e);
        if (!t) need_text(&e);
        tokenizer_close(t);
    }
    buf_free(&config);
    buf_free(&generation);
    buf_free(&tokenizer);
    buf_free(&settings);
}

static void read_matrix(const struct tensor *t)
{
    struct matrix_slot slot = {.rows = (int)t->dims[0], .cols = (int)t->dims[1]};
    struct weight_src src;
    struct err e = {0};
    void *owned = NULL;
    if (gguf_matrix(t, &slot, &src, &owned, &e)) need_text(&e);
    free(owned);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct gguf *g = gguf_parse((const char *)data, size, &e);
    if (!g) {
        need_text(&e);
        return 0;
    }
    read_files(g);
    struct tensor_source *s = gguf_source(g, &e);
    volatile unsigned sum = 0;
    if (!s) need_text(&e);
    for (size_t i = 0; s && i < tensor_source_count(s); i++) {
        const struct tensor *t = tensor_source_at(s, i);
        for (size_t k = 0; k < t->bytes; k++) sum += ((const unsigned char *)t->data)[k];
        if (t->form && t->n_dims == 2) read_matrix(t);
    }
    (void)sum;
    tensor_source_close(s);
    return 0;
}
