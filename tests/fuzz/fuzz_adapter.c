/* libFuzzer: any bytes as an adapter of a small model: its configuration, a NUL, its tensors.  What is accepted must be
 * readable in full, and finite. */
#include "engine/model/adapter.h"
#include "engine/model/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct adapter *a)
{
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        const struct lora_pair *p = &a->pair[i];
        float sum = 0;
        for (int k = 0; k < p->r * m->k; k++) sum += p->a[k] * 0;
        for (int k = 0; k < p->r * m->n; k++) sum += p->b[k] * 0;
        if (sum != 0 || p->r < 0 || p->r > LORA_RANK_MAX) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct model_family llama = {.tensors = &llama_tensors}, gpt2 = {.tensors = &gpt2_tensors};
    static const struct model_config models[] = {
        {.family = &llama, .layers = 2, .hidden = 8, .heads = 2, .kv_heads = 1, .head_dim = 6, .inter = 10},
        {.family = &gpt2, .layers = 2, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .inter = 32},
    };
    const uint8_t *end = memchr(data, 0, size);
    struct err e = {0};
    if (!end) return 0;
    size_t rest = size - (size_t)(end + 1 - data);
    struct tensor_source *f = safetensors_parse((const char *)end + 1, rest, &e);
    for (int i = 0; i < 2 && f; i++) {
        e = (struct err){0};
        struct adapter *a = adapter_parse((const char *)data, f, &models[i], &e);
        if (!a && !e.msg[0]) abort(); /* an error without a sentence */
        if (a) check(a);
        adapter_free(a);
    }
    tensor_source_close(f);
    return 0;
}
