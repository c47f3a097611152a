/* Adapters against PEFT (tests/adapter/make_fixtures.py): its files read here give its logits, files written here give
 * its logits there, what tandem does not support is refused by name.
 *
 *   adapter_golden_test MODELS ADAPTERS
 *   adapter_golden_test --write MODELS NAME OUT     for the script
 *
 * One line per adapter and device; exit status 1 when any differs. */
#include "engine/base/file.h"
#include "engine/bench/eval.h"
#include "engine/model/adapter.h"
#include "engine/model/safetensors.h"
#include "engine/train/train.h"
#include "tests/adapter/compare_row.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double TOLERANCE = 1e-3; /* on logits, absolute */

/* ---- ours ---- */

static const struct ours {
    const char *name;
    int r;
    double alpha;
    bool rslora, odd; /* odd: another rank in each module, none in some */
} ours[] = {
    {"llama-gqa--ours-all", 4, 8, false, false},  {"gpt2--ours-rslora", 3, 2, true, false},
    {"phi--ours-all", 4, 6.5, false, false},      {"qwen2--ours-patterns", 4, 4, false, true},
    {"mixtral--ours-experts", 2, 4, true, false}, {"qwen2-moe--ours-experts", 3, 4, false, true},
};

static const struct ours *find_ours(const char *name)
{
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strcmp(ours[i].name, name) == 0) return &ours[i];
    return NULL;
}

static void fill(struct adapter *a)
{
    uint32_t x = 12345;
    for (int i = 0; i < a->layers * a->n_modules; i++) {
        const struct lora_module *m = &a->module[i % a->n_modules];
        for (int half = 0; half < 2; half++) {
            float *p = half ? a->pair[i].b : a->pair[i].a;
            for (int k = 0; k < a->pair[i].r * (half ? m->n : m->k) * lora_copies(m); k++) {
                x = x * 1664525 + 1013904223;
                p[k] = (float)(int32_t)x * 0x1p-32f;
            }
        }
    }
}

static void base_of(const char *name, char out[64])
{
    snprintf(out, 64, "%.*s", (int)strcspn(name, "-"), name);
    const char *end = strstr(name, "--");
    if (end) snprintf(out, 64, "%.*s", (int)(end - name), name);
}

static int write_ours(const char *models, const struct ours *o, const char *out, struct err *e)
{
    char base[64];
    base_of(o->name, base);
    char *dir = file_join(models, base);
    struct model_config c;
    int rc = model_config_read(dir, &c, e);
    free(dir);
    if (rc) return rc;
    struct adapter *a;
    if (o->odd) {
        struct lora_module m[LORA_MODULES_MAX];
        int n_modules = lora_modules(&c, m), rank[1024] = {0}, inner = 0;
        while (inner < n_modules && !m[inner].end) inner++;
        for (int l = 0; l < c.layers; l++)
            for (int k = 0; k < inner; k++) rank[l * n_modules + k] = ((l * inner + k) * 5 + 3) % 6;
        a = adapter_of_ranks(&c, rank);
        a->r = o->r;
        a->alpha = o->alpha;
        for (int i = 0; i < c.layers * n_modules; i++)
            if (rank[i])
                a->pair[i].scale = (i / n_modules * inner + i % n_modules) % 3 ? (float)(o->alpha / rank[i]) : 0.7f;
    } else {
        a = adapter_new(&c, TARGET_ALL | TARGET_PARAMETERS, o->r, o->alpha, o->rslora);
    }
    fill(a);
    rc = adapter_write(a, &c, base, out, e);
    adapter_free(a);
    return rc;
}

static bool same_file(const char *a, const char *b, const char *name)
{
    char *pa = file_join(a, name), *pb = file_join(b, name), *x = NULL, *y = NULL;
    size_t n = 0, m = 1;
    struct err e;
    bool same =
        !file_read(pa, 1 << 24, &x, &n, &e) && !file_read(pb, 1 << 24, &y, &m, &e) && n == m && memcmp(x, y, n) == 0;
    unlink(pb);
    free(x), free(y), free(pa), free(pb);
    return same;
}

/* what adapter_write writes today is what PEFT has read */
static bool check_written(const char *models, const char *adapters, const struct ours *o)
{
    char dir[] = "/tmp/tandem-test-XXXXXX";
    struct err e = {0};
    char *committed = file_join(adapters, o->name);
    bool ok = mkdtemp(dir) && write_ours(models, o, dir, &e) == 0;
    bool config = ok && same_file(committed, dir, ADAPTER_CONFIG),
         weights = ok && same_file(committed, dir, ADAPTER_WEIGHTS);
    printf("%s %-30s written again: configuration %s, weights %s %s\n", config && weights ? "ok  " : "FAIL", o->name,
           config ? "equal" : "differs", weights ? "equal" : "differs", e.msg);
    rmdir(dir);
    free(committed);
    return config && weights;
}

/* ---- logits ---- */

static bool check_logits(struct eval *v, const char *dir, const char *name, const char *device)
{
    char *path = file_join(dir, "expected.safetensors");
    struct err e = {0};
    struct tensor_source *f = safetensors_open(path, &e);
    const struct tensor *ids = f ? tensor_source_find(f, "ids") : NULL, *t = f ? tensor_source_find(f, "logits") : NULL;
    bool ok = false;
    struct compare with = {.vocab = eval_vocab(v)}, without = with;
    if (ids && t && t->dims[1] == with.vocab) {
        with.want = without.want = t->data;
        int n = (int)ids->dims[0];
        ok = eval_logits(v, ids->data, n, compare_row, &without, &e) == 0 && eval_adapter(v, dir, &e) == 0 &&
             eval_logits(v, ids->data, n, compare_row, &with, &e) == 0 && eval_adapter(v, NULL, &e) == 0 &&
             with.rows == n && with.worst <= TOLERANCE && without.worst > 100 * TOLERANCE;
    }
    printf("%s %-30s %-14s worst logit difference %.2e (without the adapter %.2e) %s\n", ok ? "ok  " : "FAIL", name,
           device, with.worst, without.worst, e.msg);
    tensor_source_close(f);
    free(path);
    return ok;
}

static bool check_refused(const char *models, const char *dir, const char *name)
{
    static const char *const says[][2] = {{"dora", "DoRA"},   {"bias", "lora_bias"},
                                          {"biases", "bias"}, {"whole", "modules_to_save"},
                                          {"alora", "aLoRA"}, {"parameters", "target_parameters"}};
    char base[64];
    struct model_config c;
    struct err e = {0};
    base_of(name, base);
    char *path = file_join(models, base);
    struct adapter *a = model_config_read(path, &c, &e) ? NULL : adapter_read(dir, &c, &e);
    const char *what = strstr(name, "--refused-") + strlen("--refused-");
    bool ok = false;
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        ok |= !a && strcmp(what, says[i][0]) == 0 && strstr(e.msg, says[i][1]);
    printf("%s %-30s %s\n", ok ? "ok  " : "FAIL", name, a ? "accepted" : e.msg);
    adapter_free(a);
    free(path);
    return ok;
}

static int check_base(const char *models, const char *adapters, const char *base, const char *device, bool *any)
{
    char *dir = file_join(models, base);
    struct err e = {0};
    struct eval *v = NULL;
    int failed = 0;
    DIR *d = opendir(adapters);
    for (struct dirent *f; (f = readdir(d));) {
        char mine[64];
        base_of(f->d_name, mine);
        if (!strstr(f->d_name, "--") || strcmp(mine, base) || strstr(f->d_name, "--refused-")) continue;
        if (!v)
            v = eval_open(&(struct engine_config){.model = dir,
                                                  .device = device,
                                                  .kv_type = "f32",
                                                  .activations = "f32",
                                                  .threads = 2,
                                                  .kv_cache_bytes = 16 << 20},
                          &e);
        if (!v) {
            printf("FAIL %s: %s\n", base, e.msg);
            failed++;
            break;
        }
        char *adapter = file_join(adapters, f->d_name);
        failed += !check_logits(v, adapter, f->d_name, device);
        free(adapter);
        *any = true;
    }
    closedir(d);
    eval_close(v);
    free(dir);
    return failed;
}

static int check_all(const char *models, const char *adapters)
{
#ifdef TANDEM_SANITIZED
    const char *devices[] = {"cpu"}; /* slow enough; the others run in the release build */
#else
    const char *devices[] = {"ref", "cpu:portable", "cpu"};
#endif
    int failed = 0, refused = 0, bases = 0;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) failed += !check_written(models, adapters, &ours[i]);
    DIR *d = opendir(adapters);
    for (struct dirent *f; d && (f = readdir(d));) {
        if (!strstr(f->d_name, "--refused-")) continue;
        char *dir = file_join(adapters, f->d_name);
        failed += !check_refused(models, dir, f->d_name);
        refused++;
        free(dir);
    }
    if (d) closedir(d);
    d = opendir(models);
    for (struct dirent *f; d && (f = readdir(d));) {
        bool any = false;
        for (size_t i = 0; i < sizeof devices / sizeof *devices && f->d_name[0] != '.'; i++)
            failed += check_base(models, adapters, f->d_name, devices[i], &any);
        bases += any;
    }
    if (d) closedir(d);
    printf("%d models with adapters, %d refused, %d failures\n", bases, refused, failed);
    return failed || refused < 6 || bases < 6;
}

int main(int argc, char **argv)
{
    struct err e;
    if (argc == 3) return check_all(argv[1], argv[2]);
    if (argc == 5 && strcmp(argv[1], "--write") == 0 && find_ours(argv[3])) {
        int rc = write_ours(argv[2], find_ours(argv[3]), argv[4], &e);
        if (rc) fprintf(stderr, "%s\n", e.msg);
        return rc != 0;
    }
    fprintf(stderr, "usage: adapter_golden_test MODELS ADAPTERS, or --write MODELS NAME OUT\n");
    return 2;
}
