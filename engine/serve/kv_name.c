#include "engine/serve/kv_name.h"

#include "engine/base/buf.h"
#include "engine/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a change of names must change: the layout of what is hashed. */
static const char scheme[] = "tandem KV pages 1";

static void add_text(struct sha256 *s, const char *text)
{
    if (!text) text = "";
    sha256_add(s, text, strlen(text) + 1);
}

static void add_number(struct sha256 *s, int64_t v)
{
    sha256_add(s, &v, sizeof v);
}

static struct kv_name name_of(struct sha256 *s)
{
    struct kv_name n = {0};
    sha256_end(s, n.b);
    return n;
}

/* The processor as the C library and the kernels see it, who choose by it how a function is computed. */
static void add_processor(struct sha256 *s)
{
    static const char *const lines[] = {"vendor_id",       "cpu family", "model\t", "flags",
                                        "CPU implementer", "CPU part",   "Features"};
    FILE *f = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t cap = 0;
    while (f && getline(&line, &cap, f) > 1) /* the first processor's, up to an empty line */
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            if (strncmp(line, lines[i], strlen(lines[i])) == 0) add_text(s, line);
    free(line);
    if (f) fclose(f);
    char libc[64] = "";
    confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc);
    add_text(s, libc);
}

/* The program: other code may round differently. */
static int add_executable(struct sha256 *s, const struct engine_config *c, int threads, struct err *e)
{
    char self[] = "/proc/self/exe", *path = self; /* which is there when the file has been replaced, too */
    return content_add(s, &(struct content_files){&path, 1}, c->kv_disk, threads, e);
}

int kv_model_name(struct kv_name *out, const struct setup *m, const struct engine_config *c,
                  const struct content_files *files, struct err *e)
{
    const struct dev *d = m->model.d;
    struct sha256 s;
    sha256_start(&s);
    add_text(&s, scheme);
    add_text(&s, d->ops->name);
    add_text(&s, d->level);
    add_text(&s, m->info.weight_type);
    add_text(&s, m->info.kv_type);
    add_text(&s, c->quantize);
    add_number(&s, c->no_calibration);
    add_number(&s, d->bf16_x);
    add_number(&s, (int64_t)m->info.page_bytes);
    add_number(&s, m->model.c.near_len);
    add_number(&s, m->model.c.near_len ? m->model.max_len : 0); /* tables of rope may depend on it */
    add_processor(&s);
    int rc = add_executable(&s, c, d->threads, e);
    if (!rc) rc = content_add(&s, files, c->kv_disk, d->threads, e);
    *out = name_of(&s);
    return rc;
}

struct kv_name kv_root_name(const unsigned char secret[KV_SECRET_BYTES], const struct kv_name *model,
                            const unsigned char *adapter, uint64_t salt, bool far)
{
    static const unsigned char none[SHA256_BYTES];
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, secret, KV_SECRET_BYTES);
    sha256_add(&s, model, sizeof *model);
    sha256_add(&s, adapter ? adapter : none, SHA256_BYTES);
    add_number(&s, adapter != NULL);
    add_number(&s, far);
    sha256_add(&s, &salt, sizeof salt);
    return name_of(&s);
}

struct kv_name kv_next_name(const struct kv_name *parent, const int32_t *tokens)
{
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, parent, sizeof *parent);
    sha256_add(&s, tokens, KV_PAGE * sizeof *tokens);
    return name_of(&s);
}

void kv_adapter_content(const struct adapter *a, unsigned char out[SHA256_BYTES])
{
    struct sha256 s;
    sha256_start(&s);
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_pair *p = &a->pair[i];
        const struct lora_module *m = &a->module[i % a->n_modules];
        size_t copies = (size_t)lora_copies(m);
        add_number(&s, p->r);
        if (!p->r) continue;
        sha256_add(&s, &p->scale, sizeof p->scale);
        sha256_add(&s, p->a, copies * (size_t)p->r * (size_t)m->k * sizeof *p->a);
        sha256_add(&s, p->b, copies * (size_t)m->n * (size_t)p->r * sizeof *p->b);
    }
    sha256_end(&s, out);
}
