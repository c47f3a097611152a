/* libFuzzer: any bytes as the files that say what an embedding model or a classifier gives: config.json, modules.json,
 * the configuration of a module, config_sentence_transformers.json and sentence_bert_config.json, a NUL after each.
 * What is accepted must describe a vector that can be computed. */
#include "engine/base/file.h"
#include "engine/model/config.h"
#include "engine/model/embedder.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HIDDEN = 8 };

/* A directory of this process; libFuzzer ends without a way to remove it. */
static const char *directory(void)
{
    static char dir[64];
    if (dir[0]) return dir;
    strcpy(dir, "/tmp/fuzz_embedder.XXXXXX");
    if (!mkdtemp(dir)) abort();
    char *module = file_join(dir, "1_Pooling");
    if (mkdir(module, 0700)) abort();
    free(module);
    return dir;
}

static void check(const struct embedder *m)
{
    if (m->pooling.n < 0 || m->pooling.n > POOLINGS_MAX || m->n_steps > VECTOR_STEPS_MAX) abort();
    if (m->inputs != HIDDEN * (m->pooling.n ? m->pooling.n : 1) || m->size < 1) abort();
    if (m->n_prompts > PROMPTS_MAX || m->default_prompt >= m->n_prompts || m->max_tokens < 0) abort();
    if (m->classifies && (m->n_labels < 1 || m->n_labels != m->size)) abort();
    double pooled[HIDDEN * POOLINGS_MAX] = {0};
    float *out = malloc((size_t)m->size * sizeof *out);
    if (!out) return;
    embedder_apply(m, pooled, out);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"config.json", "modules.json", "1_Pooling/config.json",
                                        "config_sentence_transformers.json", "sentence_bert_config.json"};
    static const struct model_family bert = {.model_type = "bert", .encoder = true}, llama = {.model_type = "llama"};
    const char *dir = directory();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const uint8_t *end = size ? memchr(data, 0, size) : NULL;
        size_t n = end ? (size_t)(end - data) : size, skip = end ? n + 1 : n;
        char *path = file_join(dir, names[i]);
        unlink(path);
        int fd = n ? open(path, O_CREAT | O_WRONLY, 0600) : -1;
        if (n && (fd < 0 || file_write_all(fd, data, n))) abort();
        if (n) close(fd);
        free(path);
        data = skip ? data + skip : data;
        size -= skip;
    }
    for (int i = 0; i < 3; i++) {
        const struct model_config c = {
            .family = i ? &bert : &llama, .hidden = HIDDEN, .encoder = i > 0, .classifier = i == 2};
        struct err e = {0};
        struct embedder m;
        if (!embedder_open(&m, dir, &c, &e)) {
            check(&m);
            embedder_free(&m);
        } else if (!e.msg[0]) {
            abort(); /* an error without a sentence */
        }
    }
    return 0;
}
