/* libFuzzer: any bytes as config.json.  What is accepted must describe layers that exist, and finite rotary tables. */
#include "engine/model/config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A device for rope_tables_open: memory, and nothing else. */
static void *take(struct dev *d, size_t bytes)
{
    (void)d;
    return calloc(1, bytes);
}

static void give(struct dev *d, void *p)
{
    (void)d;
    free(p);
}

static void put(struct dev *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(to, from, bytes);
}

static void check_layers(const struct model_config *c)
{
    if (c->layers < 1 || c->layers > MAX_LAYERS || c->n_ropes < 1 || c->n_ropes > ROPES_MAX) abort();
    for (int l = 0; l < c->layers; l++) {
        if (c->kind[l] >= BLOCKS_MAX) abort();
        const struct block *b = model_block(c, l);
        if (b->rope < 0 || b->rope >= c->n_ropes || b->window < 0 || !isfinite(b->scale)) abort();
    }
}

static void check_ropes(const struct model_config *c)
{
    static const struct dev_ops ops = {.alloc = take, .free = give, .upload = put};
    enum { POSITIONS = 3 };
    struct dev d = {.ops = &ops};
    struct rope_table t[ROPES_MAX] = {{0}};
    struct err e = {0};
    int near_len = c->near_len > 2 ? 2 : c->near_len; /* the rows of both kinds, but few */
    if (c->near_len < 0 || rope_tables_open(c->rope, c->n_ropes, near_len, &d, POSITIONS, t, &e)) abort();
    for (int i = 0; i < c->n_ropes; i++) {
        int rot = c->rope[i].rot, rows = near_len ? near_len + POSITIONS : POSITIONS;
        if (rot < 0 || rot > c->head_dim || rot % 2) abort();
        for (int k = 0; k < rows * rot / 2; k++)
            if (!isfinite(t[i].cos[k]) || !isfinite(t[i].sin[k])) abort();
    }
    rope_tables_close(&d, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct model_config c;
    char *text = malloc(size + 1);
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (!model_config_parse(text, NULL, &c, &e)) {
        check_layers(&c);
        check_ropes(&c);
    } else if (!e.msg[0]) {
        abort(); /* an error without a sentence */
    }
    free(text);
    return 0;
}
