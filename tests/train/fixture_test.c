/* Ten optimizer steps, of all weights (by AdamW, or by Muon with an average) and of an adapter, are those of torch and
 * PEFT (make_fixtures.py): losses and gradient norms to 1e-3, weights to 1e-4 of their size, and to 2e-3 of what the
 * steps changed.
 *
 *     fixture_test MODELS_DIR TRAIN_DIR [DEVICE [MODEL]] */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/train/train.h"
#include "tests/train/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 10, SAMPLES = 64 };
enum method { FULL, MUON, LORA, METHODS };
static const char *const methods[] = {"full", "muon", "lora"};

static int failures;

#define FAIL(...) (failures++, printf("FAILED "), printf(__VA_ARGS__), printf("\n"))

static const struct tensor *find(const struct tensor_source *f, const char *a, const char *b)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", a, b);
    const struct tensor *t = tensor_source_find(f, name);
    if (!t) {
        printf("no tensor %s\n", name);
        exit(1);
    }
    return t;
}

static float f32(const struct tensor *t, size_t i)
{
    float v;
    memcpy(&v, (const char *)t->data + 4 * i, 4);
    return v;
}

static struct dataset *fixture_rows(const struct tensor_source *f)
{
    struct dataset *s = mem_zalloc(sizeof *s);
    const struct tensor *ids = find(f, "ids", ""), *trained = find(f, "trained", ""), *start = find(f, "start", "");
    for (size_t i = 0; i + 1 < start->bytes / 4; i++) {
        int32_t from, to;
        memcpy(&from, (const char *)start->data + 4 * i, 4);
        memcpy(&to, (const char *)start->data + 4 * i + 4, 4);
        int32_t id[ROW_TOKENS_MAX];
        memcpy(id, (const char *)ids->data + 4 * from, 4 * (size_t)(to - from));
        rows_add(s, id, (const uint8_t *)trained->data + from, to - from);
    }
    return s;
}

struct seen {
    int steps;
    double loss[STEPS], norm[STEPS];
    char text[256];
};

static void on_event(void *arg, const struct train_event *e)
{
    struct seen *s = arg;
    if (e->kind == TRAIN_STEP && s->steps < STEPS) {
        s->loss[s->steps] = e->loss;
        s->norm[s->steps++] = e->grad_norm;
    }
    if (e->kind == TRAIN_FAILED || e->kind == TRAIN_WARNING) snprintf(s->text, sizeof s->text, "%s", e->text);
}

static struct train_params params(enum method method)
{
    bool full = method != LORA;
    struct train_params p;
    train_params_default(&p, full ? TRAIN_FULL : TRAIN_LORA);
    p.epochs = STEPS; /* every step sees all rows */
    p.batch_tokens = 1024;
    p.max_length = 64;
    p.learning_rate = full ? 2e-3 : 1e-2;
    p.warmup_steps = 3;
    p.weight_decay = full ? 0.05 : 0;
    p.epsilon = 1e-5;
    p.optimizer = method == MUON ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
    p.ema_decay = method == MUON ? 0.5 : 0;
    p.f32 = true;
    return p;
}

static void compare_losses(const char *label, const struct seen *s, const struct tensor_source *f, const char *method)
{
    const struct tensor *loss = find(f, method, ".loss"), *norm = find(f, method, ".norm");
    if (s->steps != STEPS) FAIL("%s: %d steps: %s", label, s->steps, s->text);
    for (int i = 0; i < s->steps; i++) {
        double want = (double)f32(loss, (size_t)i), want_norm = (double)f32(norm, (size_t)i);
        if (!(fabs(s->loss[i] - want) <= 1e-3)) FAIL("%s: loss of step %d is %g, not %g", label, i, s->loss[i], want);
        if (!(fabs(s->norm[i] - want_norm) <= 1e-3 * want_norm))
            FAIL("%s: gradient norm of step %d is %g, not %g", label, i, s->norm[i], want_norm);
    }
}

static double worst, worst_change; /* over all tensors, for the summary */

/* Values after training against torch's; before: what they were. */
static void compare_values(const char *label, const char *name, const float *got, const float *want,
                           const float *before, size_t n)
{
    double size = 0, off = 0, change = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i], c = (double)want[i] - (double)before[i];
        size += (double)want[i] * (double)want[i];
        off += d * d;
        change += c * c;
    }
    double relative = sqrt(off / (size + 1e-30)), of_change = sqrt(off / (change + 1e-30));
    worst = fmax(worst, relative);
    worst_change = fmax(worst_change, of_change);
    if (!(relative <= 1e-4)) FAIL("%s: %s is off by %.2g of its size", label, name, relative);
    if (!(of_change <= 2e-3)) FAIL("%s: %s is off by %.2g of what training changed", label, name, of_change);
}

static size_t sample_at(size_t i, size_t n)
{
    return n < SAMPLES ? i : i * n / SAMPLES;
}

static void compare_full(const char *label, enum method method, const char *model, const char *out,
                         const struct tensor_source *want)
{
    struct err e = {0};
    struct tensor_source *got = safetensors_open_dir(out, &e), *before = safetensors_open_dir(model, &e);
    if (!got || !before) {
        FAIL("%s: %s", label, e.msg);
        return;
    }
    if (tensor_source_count(got) != tensor_source_count(before)) FAIL("%s: tensors are missing", label);
    for (size_t i = 0; i < tensor_source_count(got); i++) {
        const struct tensor *t = tensor_source_at(got, i), *b = find(before, t->name, "");
        char name[256];
        snprintf(name, sizeof name, "%s.%s", methods[method], t->name);
        const struct tensor *w = tensor_source_find(want, name);
        if (!w) { /* a mask that GPT-2 files keep */
            if (t->bytes != b->bytes || memcmp(t->data, b->data, t->bytes)) FAIL("%s: %s has changed", label, t->name);
            continue;
        }
        float ours[SAMPLES], theirs[SAMPLES], was[SAMPLES];
        size_t n = t->bytes / 4, k = n < SAMPLES ? n : SAMPLES;
        if (t->type != b->type || t->bytes != b->bytes) FAIL("%s: %s has another shape", label, t->name);
        for (size_t j = 0; j < k; j++) {
            ours[j] = f32(t, sample_at(j, n));
            was[j] = b->type == TENSOR_F32 ? f32(b, sample_at(j, n)) : 0;
            theirs[j] = f32(w, j);
        }
        compare_values(label, t->name, ours, theirs, was, k);
    }
    tensor_source_close(got);
    tensor_source_close(before);
}

/* Every tensor of the adapter's file, under PEFT's name for it. */
static void compare_lora(const char *label, const char *from, const char *out, const struct tensor_source *want)
{
    struct err e = {0};
    char *paths[2] = {file_join(out, ADAPTER_WEIGHTS), file_join(from, ADAPTER_WEIGHTS)};
    struct tensor_source *got = safetensors_open(paths[0], &e), *before = got ? safetensors_open(paths[1], &e) : NULL;
    size_t compared = 0, all = 0;
    if (!got || !before) {
        FAIL("%s: %s", label, e.msg);
        return;
    }
    for (size_t i = 0; i < tensor_source_count(got); i++) {
        const struct tensor *t = tensor_source_at(got, i);
        if (!strstr(t->name, ".lora_")) continue; /* padding */
        char name[256];
        snprintf(name, sizeof name, "lora.%s", t->name);
        const struct tensor *all_of[3] = {t, find(want, name, ""), find(before, t->name, "")};
        float *v[3];
        for (int k = 0; k < 3; k++) {
            if (all_of[k]->bytes != t->bytes) FAIL("%s: %s has another size", label, name);
            v[k] = mem_alloc(t->bytes);
            memcpy(v[k], all_of[k]->data, t->bytes);
        }
        compare_values(label, name, v[0], v[1], v[2], t->bytes / 4);
        for (int k = 0; k < 3; k++) free(v[k]);
        compared++;
    }
    for (size_t i = 0; i < tensor_source_count(want); i++)
        all += strstr(tensor_source_at(want, i)->name, ".lora_") != NULL;
    if (compared != all) FAIL("%s: %zu tensors, not %zu", label, compared, all);
    tensor_source_close(got);
    tensor_source_close(before);
    free(paths[0]), free(paths[1]);
}

static void run(const char *models, const char *fixtures, const char *name, const char *device, enum method method,
                bool recompute)
{
    struct err e = {0};
    char path[512], label[64], dir[64], out[96], from[600];
    snprintf(label, sizeof label, "%s %s on %s", name, methods[method], device);
    snprintf(dir, sizeof dir, "/tmp/tandem-fixture-%d", (int)getpid());
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(from, sizeof from, "%s/%s-adapter", fixtures, name);
    snprintf(path, sizeof path, "%s/%s.safetensors", fixtures, name);
    struct tensor_source *want = safetensors_open(path, &e);
    char *model = file_join(models, name);
    struct model m;
    if (!want || model_load(&m, model, device, 1, NULL, false, &e)) {
        FAIL("%s: %s", label, e.msg);
        exit(1);
    }
    struct dataset *rows = fixture_rows(want);
    struct seen seen = {0};
    struct train_job job = {.p = params(method),
                            .data = rows,
                            .from = method == LORA ? from : NULL,
                            .base_name = name,
                            .dir = dir,
                            .out = out};
    if (recompute) job.p.recompute = RECOMPUTE_ON;
    worst = worst_change = 0;
    struct train *t = train_open(&job, &m, NULL, &e);
    if (t) {
        train_run(t, on_event, &seen);
        train_free(t);
        compare_losses(label, &seen, want, methods[method]);
        if (method == LORA)
            compare_lora(label, from, out, want);
        else
            compare_full(label, method, model, out, want);
    } else {
        FAIL("%s: %s", label, e.msg);
    }
    printf("%-24s loss %.4f to %.4f; weights within %.1e, changes within %.1e\n", label, seen.loss[0],
           seen.loss[STEPS - 1], worst, worst_change);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    if (system(cmd)) FAIL("%s: %s stays", label, dir);
    free(rows);
    free(model);
    tensor_source_close(want);
    model_close(&m);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"llama-gqa",
                                        "mistral",
                                        "qwen2",
                                        "qwen3",
                                        "gpt2",
                                        "phi",
                                        "gemma2",
                                        "gemma3",
                                        "phi4-mini",
                                        "smollm3",
                                        "granite",
                                        "olmo2",
                                        "gpt-neox",
                                        "stablelm",
                                        "ministral",
                                        "olmo3",
                                        "gpt-neox-sequential",
                                        "stablelm-parallel",
                                        "smollm3-sliding",
                                        "phi-qk-norm",
                                        "stablelm-qk-norm",
                                        "mixtral",
                                        "qwen2-moe",
                                        "qwen3-moe",
                                        "olmoe",
                                        "gpt-oss"};
    enum { FIRST_MOE = 21, GPT_OSS = 25 }; /* of gpt-oss only adapters are trained */
    if (argc < 3) return 2;
    const char *device = argc > 3 ? argv[3] : "cpu";
    int models = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (argc > 4 && strcmp(argv[4], names[i]) != 0) continue;
        models++;
        for (int method = i < GPT_OSS ? 0 : LORA; method < METHODS; method++)
            for (int recompute = 0; recompute <= (i >= FIRST_MOE); recompute++) { /* experts are computed again */
                /* On simt, which is slow, Muon once for matrices and once for experts. */
                if (!strcmp(device, "simt") && method == MUON && (recompute || (i > 0 && i < FIRST_MOE))) continue;
                run(argv[1], argv[2], names[i], device, (enum method)method, recompute);
            }
    }
    return failures > 0 || !models;
}
