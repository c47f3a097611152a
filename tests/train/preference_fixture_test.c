/* The gradients and ten steps of preference training are those of TRL's trainers (make_preference_fixtures.py,
 * make_reward_fixtures.py, make_distill_fixtures.py, make_grpo_fixtures.py): losses, gradients and what TRL calls
 * rewards to 1e-4, the adapter to 1e-4 of its size and 2e-3 of what the steps changed; in one micro-batch, and in
 * several, which only differ in the last bits.
 *
 *     preference_fixture_test MODELS_DIR TRAIN_DIR [DEVICE] */
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/adapter.h"
#include "engine/model/safetensors.h"
#include "engine/train/ckpt.h"
#include "engine/train/train_state.h"
#include "tests/train/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PREFERENCES = 4, STEPS = 10, SPLITS = 3, SAMPLES = 4, ACCURACIES = 2, MARGINS = 3 };
static const struct {
    const char *name;
    enum train_method method;
    const char *file; /* of the fixture, and of the adapter that it begins with */
} methods[] = {{"dpo", TRAIN_DPO, "preference"},
               {"orpo", TRAIN_ORPO, "preference"},
               {"simpo", TRAIN_SIMPO, "preference"},
               {"kto", TRAIN_KTO, "preference"},
               {"reward", TRAIN_REWARD, "reward"},
               {"reward-centred", TRAIN_REWARD, "reward"},
               {"distill-forward", TRAIN_DISTILL, "distill"},
               {"distill-half", TRAIN_DISTILL, "distill"},
               {"distill-reverse", TRAIN_DISTILL, "distill"},
               {"distill-few", TRAIN_DISTILL, "distill"},
               {"distill-few-forward", TRAIN_DISTILL, "distill"},
               {"grpo", TRAIN_GRPO, "grpo"},
               {"dapo", TRAIN_GRPO, "grpo"},
               {"dr_grpo", TRAIN_GRPO, "grpo"}};

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

static int32_t i32(const struct tensor *t, size_t i)
{
    int32_t v;
    memcpy(&v, (const char *)t->data + 4 * i, 4);
    return v;
}

/* Pairs, or their answers one by one. */
static struct dataset *fixture_rows(const struct tensor_source *f, bool singles, bool labels)
{
    struct dataset *s = mem_zalloc(sizeof *s);
    const struct tensor *ids = find(f, "ids", ""), *trained = find(f, "trained", ""), *start = find(f, "start", "");
    size_t each = singles ? 1 : 2;
    for (size_t i = 0; i + 1 < start->bytes / 4; i += each) {
        int from = i32(start, i), middle = i32(start, i + 1), to = i32(start, i + each);
        int32_t id[ROW_TOKENS_MAX];
        for (int k = from; k < to; k++) id[k - from] = i32(ids, (size_t)k);
        rows_add_preference(s, id, (const uint8_t *)trained->data + from, to - from, singles ? 0 : middle - from,
                            !labels ? DATASET_UNLABELLED
                            : i % 2 ? DATASET_UNDESIRABLE
                                    : DATASET_DESIRABLE);
    }
    return s;
}

/* Each prompt once. */
static struct dataset *fixture_prompts(const struct tensor_source *f)
{
    struct dataset *s = mem_zalloc(sizeof *s);
    const struct tensor *ids = find(f, "ids", ""), *start = find(f, "start", ""), *prompt = find(f, "prompt", "");
    for (size_t i = 0; i + 1 < start->bytes / 4; i += SAMPLES) {
        int32_t id[ROW_TOKENS_MAX];
        for (int k = 0; k < i32(prompt, i); k++) id[k] = i32(ids, (size_t)(i32(start, i) + k));
        rows_add_prompt(s, id, i32(prompt, i));
    }
    return s;
}

/* The texts of the fixture, whatever the policy is by now. */
static int fixture_texts(void *arg, struct train_rollout *r, struct err *e)
{
    const struct tensor_source *f = arg;
    const struct tensor *ids = find(f, "ids", ""), *start = find(f, "start", ""), *sampled = find(f, "sampled", "");
    for (int i = 0; i < r->n; i++) {
        struct train_text *x = &r->text[i];
        size_t which = (size_t)x->row * SAMPLES + (size_t)(i % SAMPLES);
        int from = i32(start, which) + x->n_prompt;
        x->n = i32(start, which + 1) - from;
        if (x->n > x->room) return err_set(e, ERR_INVALID, "no room for text %zu", which);
        for (int k = 0; k < x->n; k++) {
            x->id[x->n_prompt + k] = i32(ids, (size_t)(from + k));
            x->logprob[k] = f32(sampled, (size_t)(from + k));
        }
        x->reward = (double)f32(find(f, "judged", ""), which);
    }
    return 0;
}

static void policy(const char *name, struct train_params *p)
{
    p->samples = SAMPLES;
    p->prompts_per_step = 3;
    p->max_new_tokens = 12;
    p->clip_high = 0.28;
    p->beta = 0.04;
    p->schedule = SCHEDULE_COSINE;
    p->loss_type = strcmp(name, "dapo") == 0 ? LOSS_DAPO : strcmp(name, "dr_grpo") == 0 ? LOSS_DR_GRPO : LOSS_GRPO;
}

struct seen {
    struct train *t;
    const char *grads; /* where those of the first step are written */
    int steps;
    double loss[STEPS], norm[STEPS];
    struct train_rewards rewards[STEPS];
    char text[256];
};

static void on_event(void *arg, const struct train_event *ev)
{
    struct seen *s = arg;
    struct err e = {0};
    if (ev->kind == TRAIN_STEP && !s->steps) {
        float *g = mem_array(s->t->o.n, sizeof *g);
        chunked_download(train_chunks(s->t), g, s->t->o.g, s->t->o.n);
        if (train_lora_write(&s->t->lora, g, "base", s->grads, &e)) FAIL("%s", e.msg);
        free(g);
    }
    if (ev->kind == TRAIN_STEP && s->steps < STEPS) {
        s->loss[s->steps] = ev->loss;
        s->rewards[s->steps] = ev->rewards;
        s->norm[s->steps++] = ev->grad_norm;
    }
    if (ev->kind == TRAIN_FAILED || ev->kind == TRAIN_WARNING) snprintf(s->text, sizeof s->text, "%s", ev->text);
}

/* The whole vocabulary is less than the most that are told apart. */
static void distillation(const char *name, struct train_params *p)
{
    bool few = strstr(name, "few") != NULL;
    p->teacher_top_k = few ? 16 : 1024;
    p->beta = strstr(name, "forward") ? 0 : strstr(name, "half") ? 0.5 : few ? 0.3 : 1;
}

static struct train_params params(const char *name, enum train_method method)
{
    struct train_params p;
    train_params_default(&p, method);
    p.epochs = STEPS; /* every step sees all rows */
    p.batch_tokens = 1024;
    p.max_length = 64;
    p.learning_rate = 5e-3;
    p.warmup_steps = 3;
    p.epsilon = 1e-5;
    p.f32 = true;
    if (method == TRAIN_SIMPO) p.label_smoothing = 0.1;
    if (method == TRAIN_KTO) p.undesirable_weight = 0.5;
    if (method == TRAIN_DISTILL) distillation(name, &p);
    if (method == TRAIN_GRPO) policy(name, &p);
    if (strcmp(name, "reward-centred") == 0) p.center = 0.05, p.gamma = 0.5;
    return p;
}

static void near(const char *label, const char *what, int step, double got, double want, double tolerance)
{
    if (isnan(got) && isnan(want)) return;
    if (!(fabs(got - want) <= tolerance * (1 + fabs(want))))
        FAIL("%s: %s of step %d is %.8g, not %.8g", label, what, step, got, want);
}

static void compare_steps(const char *label, const char *name, const struct seen *s, const struct tensor_source *f)
{
    const struct tensor *loss = find(f, name, ".loss"), *norm = find(f, name, ".norm"),
                        *rewards = find(f, name, ".rewards");
    if (s->steps != STEPS) FAIL("%s: %d steps: %s", label, s->steps, s->text);
    for (int i = 0; i < s->steps; i++) {
        const struct train_rewards *r = &s->rewards[i];
        const double got[] = {r->chosen, r->rejected, r->accuracies, r->margins, r->kl};
        enum { N = sizeof got / sizeof *got };
        size_t at = (size_t)i * N;
        near(label, "loss", i, s->loss[i], (double)f32(loss, (size_t)i), 1e-4);
        near(label, "gradient norm", i, s->norm[i], (double)f32(norm, (size_t)i), 1e-4);
        /* where the policy is still the reference, the last bits say which answer is preferred */
        bool tie = fabs((double)f32(rewards, at + MARGINS)) < 1e-6;
        for (int k = 0; k < N; k++)
            if (k != ACCURACIES || !tie) near(label, "a reward", i, got[k], (double)f32(rewards, at + (size_t)k), 1e-4);
    }
}

/* Of each tensor in a PEFT directory, the distance from the fixture's "PREFIX.NAME", relative to the size of that, or
 * of how far it is from what is in `from`. */
static double compare(const char *label, const char *prefix, const char *dir, const char *from,
                      const struct tensor_source *want, double most)
{
    struct err e = {0};
    char *path = file_join(dir, ADAPTER_WEIGHTS), *before = from ? file_join(from, ADAPTER_WEIGHTS) : NULL;
    struct tensor_source *got = safetensors_open(path, &e), *was = before ? safetensors_open(before, &e) : NULL;
    double worst = 0;
    size_t compared = 0, all = 0;
    for (size_t i = 0; got && i < tensor_source_count(got); i++) {
        const struct tensor *t = tensor_source_at(got, i), *w, *b = NULL;
        if (!strstr(t->name, ".lora_") && !strstr(t->name, ".score.")) continue; /* padding */
        w = find(want, prefix, t->name);
        if (was) b = find(was, t->name, "");
        double off = 0, size = 0;
        if (w->bytes != t->bytes) FAIL("%s: %s has another size", label, t->name);
        for (size_t k = 0; k < t->bytes / 4; k++) {
            double d = (double)f32(t, k) - (double)f32(w, k), s = (double)f32(w, k) - (b ? (double)f32(b, k) : 0);
            off += d * d;
            size += s * s;
        }
        double relative = sqrt(off / (size + 1e-30));
        worst = fmax(worst, relative);
        if (!(relative <= most)) FAIL("%s: %s%s is off by %.2g", label, prefix, t->name, relative);
        compared++;
    }
    for (size_t i = 0; i < tensor_source_count(want); i++) {
        const char *name = tensor_source_at(want, i)->name;
        all += strncmp(name, prefix, strlen(prefix)) == 0 && strncmp(name + strlen(prefix), "base_model", 10) == 0;
    }
    if (!got || compared != all || !all) FAIL("%s: %zu tensors, not %zu", label, compared, all);
    tensor_source_close(got);
    tensor_source_close(was);
    free(path);
    free(before);
    return worst;
}

/* split 0: in one micro-batch; 1: in several; 2: with auto, whose one unit has all rows, activations recomputed. */
static void run(const char *models, const char *fixtures, const char *device, int which, int split)
{
    struct err e = {0};
    const char *name = methods[which].name;
    enum train_method method = methods[which].method;
    char label[64], dir[64], out[96], grads[96], prefix[32], of_grads[32], file[64], begin[64];
    snprintf(label, sizeof label, "%s on %s, split %d", name, device, split);
    snprintf(dir, sizeof dir, "/tmp/tandem-preference-%d", (int)getpid());
    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(grads, sizeof grads, "%s/grads", dir);
    snprintf(prefix, sizeof prefix, "%s.", name);
    snprintf(of_grads, sizeof of_grads, "%s.grad.", name);
    snprintf(file, sizeof file, "%s.safetensors", methods[which].file);
    bool distill = method == TRAIN_DISTILL;
    snprintf(begin, sizeof begin, "%s-adapter", distill || method == TRAIN_GRPO ? "preference" : methods[which].file);
    char *path = file_join(fixtures, file), *model = file_join(models, "llama-gqa"), *from = file_join(fixtures, begin),
         *teacher = file_join(fixtures, "llama-gqa-adapter");
    struct tensor_source *want = safetensors_open(path, &e);
    struct model m;
    if (!want || model_load(&m, model, device, 1, NULL, false, &e) || dir_make(grads, &e)) {
        FAIL("%s: %s", label, e.msg);
        exit(1);
    }
    struct dataset *rows = method == TRAIN_GRPO
                               ? fixture_prompts(want)
                               : fixture_rows(want, method == TRAIN_KTO || distill, method == TRAIN_KTO);
    struct train_job job = {.p = params(name, method),
                            .data = rows,
                            .from = from,
                            .teacher = distill ? teacher : NULL,
                            .base_name = "base",
                            .dir = dir,
                            .out = out};
    m.kv_type = DT_F32, m.d->bf16_x = false; /* grpo computes as serving does: without rounding */
    job.rollout = fixture_texts, job.rollout_arg = want;
    if (split == 1) job.p.micro_tokens = 64;
    if (split == 2) job.p.micro_tokens = MICRO_TOKENS_AUTO, job.p.recompute = RECOMPUTE_ON;
    struct seen seen = {.grads = grads};
    double of_grad = 0, of_change = 0;
    seen.t = train_open(&job, &m, NULL, &e);
    if (seen.t) {
        train_run(seen.t, on_event, &seen);
        train_free(seen.t);
        compare_steps(label, name, &seen, want);
        of_grad = compare(label, of_grads, grads, NULL, want, 1e-4);
        compare(label, prefix, out, NULL, want, 1e-4);
        of_change = compare(label, prefix, out, from, want, 2e-3);
    } else {
        FAIL("%s: %s", label, e.msg);
    }
    printf("%-24s loss %.4f to %.4f; gradients within %.1e, changes within %.1e\n", label, seen.loss[0],
           seen.loss[STEPS - 1], of_grad, of_change);
    static const char *const parts[] = {"out", "grads", "checkpoints", "reference"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *part = file_join(dir, parts[i]);
        ckpt_prune(part, 0, -1);
        dir_remove(part);
        free(part);
    }
    if (rmdir(dir)) FAIL("%s: %s stays", label, dir);
    free(rows);
    free(path), free(model), free(from), free(teacher);
    tensor_source_close(want);
    model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    const char *device = argc > 3 ? argv[3] : "cpu", *before = "";
    for (int which = 0; which < (int)(sizeof methods / sizeof *methods); which++) {
        bool fast = strcmp(device, "cpu") == 0, another = strcmp(before, methods[which].file) != 0;
        int splits = methods[which].method == TRAIN_GRPO ? 2 : SPLITS; /* grpo has no auto */
        before = methods[which].file;
        if (!fast && methods[which].method == TRAIN_DISTILL)
            splits = 0; /* minutes there; tests/http/test_distill.py has it */
        if (!fast && which >= PREFERENCES && splits) splits = another; /* a simulated device: one of each kind */
        int first = 0;
        if (!fast && which < PREFERENCES)
            first = which % SPLITS, splits = first + 1; /* there, each split of some method */
        for (int split = first; split < splits; split++) run(argv[1], argv[2], device, which, split);
    }
    return failures > 0;
}
