/* Where a step broke: a NaN among the weights, and a value that overflows in one row of the data. */
#include "tests/unit/engine/train/train_rig.h"

/* simt has memory of its own, which the search has to copy from; a sanitizer takes minutes for its arithmetic. */
static const char *const devices[] = {"cpu", "ref",
#ifndef TANDEM_SANITIZED
                                      "simt"
#endif
};

/* Copies a fixture to scratch/name and sets n floats of a tensor of its file, which is f32. */
static void break_tensor(const char *fixture, const char *name, const char *tensor, size_t at, size_t n, float value)
{
    struct err e = {0};
    char cmd[512], quoted[160], *data = NULL, *dir = path_to(name), *file = file_join(dir, "model.safetensors");
    size_t size, begin;
    snprintf(cmd, sizeof cmd, "mkdir -p '%s' && cp -r '%s/%s' '%s'", scratch, fixtures, fixture, dir);
    assert_int_equal(system(cmd), 0);
    if (file_read(file, 1 << 24, &data, &size, &e)) fail_msg("%s", e.msg);
    uint64_t header;
    memcpy(&header, data, sizeof header);
    snprintf(quoted, sizeof quoted, "\"%s\"", tensor);
    char *found = memmem(data + 8, header, quoted, strlen(quoted));
    assert_non_null(found);
    char *offsets = strstr(found, "\"data_offsets\":[");
    assert_non_null(offsets);
    assert_non_null(memmem(found, (size_t)(offsets - found), "F32", 3));
    begin = strtoull(offsets + strlen("\"data_offsets\":["), NULL, 10);
    for (size_t i = 0; i < n; i++) memcpy(data + 8 + header + begin + 4 * (at + i), &value, sizeof value);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    free(data);
    free(file);
    free(dir);
}

static bool open_broken(struct model *m, const char *name, const char *device)
{
    struct err e = {0};
    char *dir = path_to(name);
    int rc = model_load(m, dir, device, 1, NULL, false, &e);
    free(dir);
    return rc == 0;
}

/* Runs until the job fails; *first gets the first warning. */
static struct run run_broken(const char *name, const char *device, struct dataset *data, struct train_params *p)
{
    struct model m;
    struct run r = {.pause_at = -1, .last = TRAIN_PLAN};
    if (!open_broken(&m, name, device)) return r;
    char *dir = path_to("job");
    struct err e = {0};
    struct train_job job = {.p = *p, .data = data, .dir = dir};
    if (!(r.t = train_open(&job, &m, NULL, &e))) fail_msg("%s", e.msg);
    train_run(r.t, on_event, &r);
    train_free(r.t);
    model_close(&m);
    remove_tree(dir);
    free(dir);
    return r;
}

static void says(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(text, *words)) fail_msg("\"%s\" does not say \"%s\"", text, *words);
}

/* A NaN in a weight: found at the GEMM that reads it, in each of its outputs' rows. */
static void test_weight(void **state)
{
    (void)state;
    break_tensor("mistral", "weight", "model.layers.1.mlp.up_proj.weight", 48 * 5 + 3, 1, NAN);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        for (int method = TRAIN_LORA; method <= TRAIN_FULL; method += TRAIN_FULL - TRAIN_LORA) {
            struct dataset *data = rows_make(i == 2 ? 2 : 6, 288, 3); /* few for simt */
            struct train_params p = params((enum train_method)method);
            p.epochs = 10;
            p.recompute = method == TRAIN_LORA ? RECOMPUTE_ON : RECOMPUTE_OFF;
            struct run r = run_broken("weight", devices[i], data, &p);
            free(data);
            if (r.last == TRAIN_PLAN) continue; /* no such device here */
            assert_int_equal(r.last, TRAIN_FAILED);
            says(r.text, (const char *[]){"without a finite loss", "is NaN, in layer 1, forward pass, op linear of ",
                                          "model.layers.1.mlp.up_proj.weight, in the row of line ", NULL});
        }
    remove_tree(scratch);
}

/* One row alone has the token whose embedding overflows. */
static void test_row(void **state)
{
    (void)state;
    break_tensor("gemma2", "row", "model.embed_tokens.weight", 48 * 287, 48, 3e38f);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        int line = i == 2 ? 2 : 14; /* few rows for simt */
        char where[80];
        struct dataset *data = rows_make(i == 2 ? 3 : 20, 280, 3);
        data->id[line - 1][2] = 287;
        data->source = i ? NULL : "b.jsonl";
        struct train_params p = params(TRAIN_LORA);
        p.epochs = 10;
        p.batch_tokens = p.micro_tokens = 1024;
        struct run r = run_broken("row", devices[i], data, &p);
        free(data);
        if (r.last == TRAIN_PLAN) continue;
        assert_int_equal(r.last, TRAIN_FAILED);
        snprintf(where, sizeof where, "in the row of line %d of %s (its token 3; 1 of ", line,
                 i ? "the data" : "b.jsonl");
        says(r.text, (const char *[]){"infinity, in the embeddings, forward pass, op embed", where, NULL});
    }
    remove_tree(scratch);
}

/* Scores that overflow: no weight is to blame, and no tensor is named. */
static void test_attention(void **state)
{
    (void)state;
    break_tensor("mistral", "scores", "model.layers.0.input_layernorm.weight", 0, 48, 1e30f);
    struct dataset *data = rows_make(6, 280, 3);
    struct train_params p = params(TRAIN_FULL);
    p.epochs = 10;
    struct run r = run_broken("scores", "cpu", data, &p);
    free(data);
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_int_equal(r.steps, 6);
    says(r.text, (const char *[]){"is NaN, in layer 0, forward pass, op attn_seq, in the row of line ", NULL});
    says(r.warning, (const char *[]){"is skipped: its loss is not finite", NULL});
    remove_tree(scratch);
}

static struct dev_ops own;
static const struct dev_ops *real;
static const struct weight *bad;

static void linear_back(struct dev *d, const struct linear_back_args *a)
{
    real->linear_back(d, a);
    if (a->w == bad) ((float *)a->dx.p)[3 * a->dx.ld + 1] = -INFINITY;
}

/* The loss is finite, a gradient is not. */
static void test_backward(void **state)
{
    (void)state;
    struct model m = open_model("mistral", "cpu", 1);
    struct dataset *data = rows_make(6, 280, 3);
    real = m.d->ops;
    own = *real;
    own.linear_back = linear_back;
    bad = m.w.layer[1].up;
    m.d->ops = &own;
    struct train_params p = params(TRAIN_LORA);
    p.epochs = 10;
    struct run r = run_job(&m, data, &p, "back", -1);
    assert_int_equal(r.last, TRAIN_FAILED);
    assert_true(isfinite(r.loss[0]));
    says(r.text, (const char *[]){"is -infinity, in layer 1, backward pass, op linear_back of ",
                                  "mlp.gate_proj.weight, in the row of line ", "(its token 4; 1 of ", NULL});
    says(r.warning, (const char *[]){"its gradient is not finite", NULL});
    m.d->ops = real;
    free(data);
    model_close(&m);
    remove_tree(scratch);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weight),
        cmocka_unit_test(test_row),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_backward),
    };
    rig_begin(argc, argv);
    int failed = cmocka_run_group_tests_name("locate", tests, NULL, NULL);
    remove_tree(scratch);
    return failed;
}
