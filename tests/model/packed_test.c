/* Directories of `tandem quantize` give, bit for bit, the logits of the same model quantised while loading: packed and
 * canonical, for every family and every level of the cpu device.
 *
 *   packed_test MODELS_DIR...
 *
 * Without calibration, which devices that sum in another order would do differently.  A MODELS_DIR is a model, or holds
 * some.  One line per model, type and layout; exit status 1 when any differs. */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/bench/eval.h"
#include "engine/model/config.h"
#include "engine/model/quantize.h"
#include "kernels/ops.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT = 24 };

static int models, failed;

/* whether this machine has it; if not, says so once */
static bool have(const char *device)
{
    static const char *told[8];
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = device, .threads = 1}, why);
    dev_close(d);
    size_t i = 0;
    while (i < sizeof told / sizeof *told && told[i] && strcmp(told[i], device)) i++;
    if (!d && i < sizeof told / sizeof *told && !told[i]) printf("skip %s: %s\n", told[i] = device, why);
    return d != NULL;
}

struct rows {
    float *v; /* (TEXT, V) */
    int vocab;
};

static void keep(void *arg, int pos, const float *logits)
{
    struct rows *r = arg;
    memcpy(r->v + (size_t)pos * (size_t)r->vocab, logits, (size_t)r->vocab * sizeof *logits);
}

/* the logits of one text; NULL and *e */
static float *logits(const char *dir, const char *device, const char *quantize, size_t *n, struct err *e)
{
    struct eval *v = eval_open(&(struct engine_config){.model = dir,
                                                       .device = device,
                                                       .quantize = quantize,
                                                       .no_calibration = true,
                                                       .kv_type = "f32",
                                                       .threads = 2,
                                                       .kv_cache_bytes = 16 << 20},
                               e);
    if (!v) return NULL;
    int32_t ids[TEXT];
    struct rows r = {.vocab = eval_vocab(v)};
    *n = (size_t)TEXT * (size_t)r.vocab;
    r.v = mem_array(*n, sizeof *r.v);
    for (int i = 0; i < TEXT; i++) ids[i] = (7 + i * 13) % r.vocab;
    if (eval_logits(v, ids, TEXT, keep, &r, e)) free(r.v), r.v = NULL;
    eval_close(v);
    return r.v;
}

static bool same(const char *model, const char *written, const char *type, const char *device, struct err *e)
{
    size_t n = 0, m = 0;
    float *want = logits(model, device, type, &n, e), *got = want ? logits(written, device, "none", &m, e) : NULL;
    bool ok = got && n == m && memcmp(want, got, n * sizeof *got) == 0;
    if (got && !ok) err_set(e, ERR_INVALID, "logits differ on %s", device);
    free(want);
    free(got);
    return ok;
}

static void check(const char *dir, const char *name, const char *type, const char *layout, const char *const *devices)
{
    char tmp[] = "/tmp/tandem-packed-XXXXXX", out[64], command[80];
    struct err e = {0};
    if (!mkdtemp(tmp)) exit(1);
    snprintf(out, sizeof out, "%s/q", tmp);
    bool ok =
        quantize_model(dir, out, &(struct quantize_options){.type = type, .layout = layout, .no_calibration = true},
                       &e) == 0;
    if (ok) ok = quantize_verify(out, &e) == 0;
    for (int i = 0; devices[i] && ok; i++)
        if (have(devices[i])) ok = same(dir, out, type, devices[i], &e);
    printf("%s %-20s %s %s%s%s\n", ok ? "ok  " : "FAIL", name, type, layout, ok ? "" : ": ", ok ? "" : e.msg);
    failed += !ok;
    snprintf(command, sizeof command, "rm -r %s", tmp);
    if (system(command)) failed++;
}

static void check_model(const char *dir)
{
#ifdef TANDEM_SANITIZED
    static const char *const levels[] = {"cpu", NULL};
    bool ref = false; /* slow enough */
#else
    static const char *const levels[] = {
        "cpu:amx",  "cpu:avx512bf16", "cpu:avx512",   "cpu:avxvnni", "cpu:avx2", "cpu:neonbf16",
        "cpu:i8mm", "cpu:neon",       "cpu:portable", "cpu",         NULL};
    bool ref = true;
#endif
    static const char *const cpu[] = {"cpu", NULL}, *const ref_too[] = {"cpu", "ref", NULL};
    const char *slash = strrchr(dir, '/'), *name = slash ? slash + 1 : dir;
    models++;
    check(dir, name, "int8", "packed", levels);
    check(dir, name, "int4", "packed", levels);
    check(dir, name, "int8", "canonical", ref ? ref_too : cpu);
    check(dir, name, "int4", "canonical", ref ? ref_too : cpu);
}

/* one that can be quantised */
static bool is_model(const char *dir)
{
    struct model_config c;
    struct err e;
    return model_config_read(dir, &c, &e) == 0 && !c.quant.name[0];
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (is_model(argv[i])) {
            check_model(argv[i]);
            continue;
        }
        DIR *d = opendir(argv[i]);
        for (struct dirent *f; d && (f = readdir(d));) {
            char *dir = file_join(argv[i], f->d_name);
            if (f->d_name[0] != '.' && is_model(dir)) check_model(dir);
            free(dir);
        }
        if (d) closedir(d);
    }
    printf("%d models, %d failures\n", models, failed);
    return failed || models < 11; /* the fixtures and the demo model */
}
