/* libFuzzer: any bytes as a safetensors file.  What is accepted must be readable in full: every byte of every tensor.
 */
#include "engine/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct tensor_source *s = safetensors_parse((const char *)data, size, &e);
    if (!s) {
        if (!e.msg[0]) abort(); /* an error without a sentence */
        return 0;
    }
    volatile unsigned sum = 0;
    for (size_t i = 0; i < tensor_source_count(s); i++) {
        const struct tensor *t = tensor_source_at(s, i);
        for (size_t k = 0; k < t->bytes; k++) sum += ((const unsigned char *)t->data)[k];
        (void)sum;
        if (tensor_source_find(s, t->name) != t) abort();
    }
    if (tensor_source_verify(s, &e) && !e.msg[0]) abort();
    tensor_source_close(s);
    return 0;
}
