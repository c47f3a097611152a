/* `tandem merge` against PEFT: the models that merge_adapter writes from the fixtures of tests/adapter/make_fixtures.py
 * give PEFT's logits of model and adapter.
 *
 *   adapter_merge_test MODELS ADAPTERS
 *
 * One line per adapter; exit status 1 when any differs. */
#include "engine/base/file.h"
#include "engine/bench/eval.h"
#include "engine/model/merge.h"
#include "engine/model/safetensors.h"
#include "tests/adapter/compare_row.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const double TOLERANCE = 1e-3; /* on logits, absolute */

static double disk = -1; /* free bytes that statvfs reports; < 0: the truth */

int __real_statvfs64(const char *path, struct statvfs *v);
int __wrap_statvfs64(const char *path, struct statvfs *v);
int __wrap_statvfs64(const char *path, struct statvfs *v)
{
    int rc = __real_statvfs64(path, v);
    if (disk >= 0) v->f_bavail = (fsblkcnt_t)disk, v->f_frsize = 1;
    return rc;
}

static struct eval *open_model(const char *dir, struct err *e)
{
    return eval_open(&(struct engine_config){.model = dir,
                                             .device = "cpu",
                                             .kv_type = "f32",
                                             .activations = "f32",
                                             .threads = 2,
                                             .kv_cache_bytes = 16 << 20},
                     e);
}

/* The model's logits against those of the fixture. */
static bool compare_logits(const char *model, const char *fixture, double *worst, struct err *e)
{
    char *path = file_join(fixture, "expected.safetensors");
    struct tensor_source *f = safetensors_open(path, e);
    const struct tensor *ids = f ? tensor_source_find(f, "ids") : NULL, *t = f ? tensor_source_find(f, "logits") : NULL;
    struct eval *v = ids && t ? open_model(model, e) : NULL;
    bool ok = v != NULL;
    if (ok) {
        struct compare c = {.want = t->data, .vocab = eval_vocab(v)};
        int n = (int)ids->dims[0];
        ok = t->dims[1] == c.vocab && eval_logits(v, ids->data, n, compare_row, &c, e) == 0 && c.rows == n;
        *worst = c.worst;
    }
    eval_close(v);
    tensor_source_close(f);
    free(path);
    return ok;
}

static bool merge(const char *model, const char *adapter, const char *out, const char *type, struct merge_summary *s,
                  struct err *e)
{
    struct merge_options o = {.type = type, .summary = s};
    return merge_adapter(model, adapter, out, &o, e) == 0;
}

static bool check(const char *models, const char *base, const char *adapters, const char *name, const char *tmp,
                  int *untied)
{
    char *model = file_join(models, base), *adapter = file_join(adapters, name), *out = file_join(tmp, "merged");
    struct err e = {0};
    struct merge_summary s;
    double worst = NAN;
    bool merged = merge(model, adapter, out, "auto", &s, &e);
    bool ok =
        merged && compare_logits(out, adapter, &worst, &e) && worst <= TOLERANCE && s.matrices > 0 && !s.dequantised;
    printf("%s %-30s %3d matrices, worst logit difference %.2e%s %s\n", ok ? "ok  " : "FAIL", name, s.matrices, worst,
           s.untied ? ", head and table apart" : "", e.msg);
    *untied += s.untied;
    dir_remove(out);
    free(out), free(adapter), free(model);
    return ok;
}

/* Nothing is written where there is no room, and the error says how much is missing. */
static bool check_room(const char *models, const char *adapters, const char *tmp)
{
    static const char *const types[] = {"auto", "f32", "q8_0"};
    char *model = file_join(models, "llama-gqa"), *adapter = file_join(adapters, "llama-gqa--qv");
    char *out = file_join(tmp, "full");
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        struct merge_summary s;
        struct err e = {0};
        disk = 1 << 20;
        ok &= !merge(model, adapter, out, types[i], &s, &e) && strstr(e.msg, "not enough room") && access(out, F_OK);
        printf("%s no room for %s: %s\n", ok ? "ok  " : "FAIL", types[i], e.msg);
    }
    disk = -1;
    ok &= rmdir(tmp) == 0; /* empty: nothing half written stays */
    free(out), free(adapter), free(model);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "usage: adapter_merge_test MODELS ADAPTERS\n"), 2;
    char tmp[] = "/tmp/tandem-test-XXXXXX", base[64];
    int merged = 0, failed = 0, untied = 0;
    if (!mkdtemp(tmp)) return 1;
    DIR *d = opendir(argv[2]);
    for (struct dirent *f; d && (f = readdir(d));) {
        const char *end = strstr(f->d_name, "--");
        if (!end || strstr(end, "--refused-")) continue;
        snprintf(base, sizeof base, "%.*s", (int)(end - f->d_name), f->d_name);
        failed += !check(argv[1], base, argv[2], f->d_name, tmp, &untied);
        merged++;
    }
    if (d) closedir(d);
    failed += !check_room(argv[1], argv[2], tmp);
    printf("%d merged, %d failures\n", merged, failed);
    return failed || merged < 35 || untied < 3;
}
