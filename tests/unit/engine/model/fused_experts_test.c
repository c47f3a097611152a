/* Experts that a file has in one tensor (fused_experts.h): their values against transformers' (make_fixtures.py), and
 * shapes that are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/bench/eval.h"
#include "engine/model/files.h"
#include "engine/model/fused_experts.h"
#include "engine/model/gguf_source.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_read.h"
#include "engine/train/full.h"
#include "engine/train/optim.h"
#include "kernels/block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *models;

static struct tensor_source *open_model(const char *name, struct model_config *c)
{
    char dir[1200];
    struct err e = {0};
    snprintf(dir, sizeof dir, "%s/%s", models, name);
    if (model_config_read(dir, c, &e)) fail_msg("%s", e.msg);
    struct tensor_source *s = model_source_open(dir, c, &e);
    if (!s) fail_msg("%s", e.msg);
    return s;
}

static const struct tensor *find(const struct tensor_source *s, const char *name)
{
    const struct tensor *t = tensor_source_find(s, name);
    if (!t) fail_msg("no %s", name);
    return t;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The values of a matrix of an expert; rows and cols from its tensor. */
static float *matrix(const struct tensor_source *s, const struct model_config *c, int layer, int expert,
                     const char *module)
{
    struct matrix_slot slot = {0};
    struct weight_src src;
    struct err e = {0};
    void *owned;
    snprintf(slot.name, sizeof slot.name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, expert, module);
    const struct tensor *t = find(s, slot.name);
    slot.rows = (int)t->dims[0], slot.cols = (int)t->dims[1];
    if (weights_matrix(s, &c->quant, &slot, &src, &owned, &e)) fail_msg("%s", e.msg);
    size_t rows = (size_t)src.rows, cols = (size_t)src.cols;
    float *out = mem_array(rows * cols, sizeof *out);
    assert_true(src.t != DT_BLOCK || (!block_error(&src) && block_codes_ok(&src)));
    for (size_t r = 0; r < rows; r++)
        for (size_t k = 0; k < cols; k++) {
            size_t i = r * cols + k;
            if (src.t == DT_F32) out[i] = ((const float *)src.data)[i];
            if (src.t == DT_BF16) out[i] = bf16_to_f32(((const uint16_t *)src.data)[i]);
            if (src.t == DT_BLOCK && k == 0) block_row(&src, (int)r, out + i);
        }
    free(owned);
    return out;
}

/* A layer's experts against tensors in the layout of transformers' GptOssExperts. */
static void check_layer(const struct tensor_source *s, const struct model_config *c, int layer,
                        const struct tensor *gate_up, const struct tensor *down)
{
    struct block_experts x = model_experts(c);
    size_t C = (size_t)c->hidden, F = (size_t)x.inter;
    assert_true(C != F && C != 2 * F); /* or a transposed matrix would pass */
    for (size_t expert = 0; expert < (size_t)x.count; expert++) {
        float *gate = matrix(s, c, layer, (int)expert, "gate_proj"), *up = matrix(s, c, layer, (int)expert, "up_proj"),
              *out = matrix(s, c, layer, (int)expert, "down_proj");
        for (size_t f = 0; f < F; f++)
            for (size_t k = 0; k < C; k++) {
                size_t in = (expert * C + k) * 2 * F + 2 * f;
                assert_true(gate[f * C + k] == tensor_element(gate_up, in));
                assert_true(up[f * C + k] == tensor_element(gate_up, in + 1));
                assert_true(out[k * F + f] == tensor_element(down, (expert * F + f) * C + k));
            }
        free(gate), free(up), free(out);
    }
}

static void test_floats(void **state)
{
    (void)state;
    char dir[1200];
    struct err e;
    struct model_config c;
    struct tensor_source *s = open_model("gpt-oss", &c);
    snprintf(dir, sizeof dir, "%s/gpt-oss", models);
    struct tensor_source *file = safetensors_open_dir(dir, &e);
    assert_non_null(file);
    check_layer(s, &c, 2, find(file, "model.layers.2.mlp.experts.gate_up_proj"),
                find(file, "model.layers.2.mlp.experts.down_proj"));
    const struct tensor *both = find(file, "model.layers.1.mlp.experts.gate_up_proj_bias"),
                        *down = find(file, "model.layers.1.mlp.experts.down_proj_bias"),
                        *gate = find(s, "model.layers.1.mlp.experts.3.gate_proj.bias"),
                        *up = find(s, "model.layers.1.mlp.experts.3.up_proj.bias"),
                        *out = find(s, "model.layers.1.mlp.experts.3.down_proj.bias");
    size_t F = (size_t)model_experts(&c).inter, C = (size_t)c.hidden;
    for (size_t f = 0; f < F; f++) {
        assert_true(tensor_element(gate, f) == tensor_element(both, 3 * 2 * F + 2 * f));
        assert_true(tensor_element(up, f) == tensor_element(both, 3 * 2 * F + 2 * f + 1));
    }
    for (size_t k = 0; k < C; k++) assert_true(tensor_element(out, k) == tensor_element(down, 3 * C + k));
    assert_null(tensor_source_find(s, "model.layers.1.mlp.experts.gate_up_proj_bias"));
    tensor_source_close(file);
    tensor_source_close(s);
}

static void test_mxfp4(void **state)
{
    (void)state;
    char path[1200];
    struct err e;
    struct model_config c;
    struct tensor_source *s = open_model("gpt-oss-mxfp4", &c);
    snprintf(path, sizeof path, "%s/gpt-oss-mxfp4/expected.safetensors", models);
    struct tensor_source *want = safetensors_open(path, &e);
    assert_non_null(want);
    check_layer(s, &c, c.layers - 1, find(want, "experts.gate_up_proj"), find(want, "experts.down_proj"));
    tensor_source_close(want);
    tensor_source_close(s);
}

/* ---- as transformers 5 has other families in memory ------------------------------------------------------------- */

/* One tensor of the matrices `module` of all experts of a layer; with `second` after each of them that module's. */
static void write_fused(struct st_writer *w, const struct tensor_source *f, const char *stored, const char *out,
                        int experts, const char *module, const char *second)
{
    char name[TENSOR_NAME_MAX], fused[TENSOR_NAME_MAX];
    struct err e;
    char *data = NULL;
    size_t bytes = 0;
    struct tensor t = {.name = fused, .type = TENSOR_F32, .n_dims = 3, .dims = {experts}};
    for (int i = 0; i < experts * 2; i++) {
        if (i % 2 && !second) continue;
        snprintf(name, sizeof name, "%s.experts.%d.%s.weight", stored, i / 2, i % 2 ? second : module);
        const struct tensor *part = find(f, name);
        data = mem_resize(data, bytes + part->bytes, 1);
        memcpy(data + bytes, part->data, part->bytes);
        bytes += part->bytes;
        t.dims[1] = part->dims[0] * (second ? 2 : 1), t.dims[2] = part->dims[1];
    }
    snprintf(fused, sizeof fused, "%s.experts.%s", out, second ? "gate_up_proj" : "down_proj");
    t.data = data, t.bytes = bytes;
    if (st_writer_add(w, &t, 1, &e)) fail_msg("%s", e.msg);
    free(data);
}

/* A copy with fused experts; the modules of the layers' feed-forward get the name mlp. */
static void write_copy(const char *from, const char *to, const char *ff, const char *const modules[3])
{
    struct err e;
    struct model_config c;
    char *path = file_join(to, "model.safetensors");
    struct tensor_source *f = safetensors_open_dir(from, &e);
    assert_non_null(f);
    assert_int_equal(model_config_read(from, &c, &e), 0);
    struct st_writer *w = st_writer_open(path, 256, 256 * TENSOR_NAME_MAX, 0, &e);
    for (size_t i = 0; i < tensor_source_count(f); i++) {
        struct tensor t = *tensor_source_at(f, i);
        char name[TENSOR_NAME_MAX];
        const char *mark = strstr(t.name, ff);
        if (strstr(t.name, ".experts.")) continue;
        snprintf(name, sizeof name, "%s", t.name);
        if (mark) snprintf(name, sizeof name, "%.*smlp%s", (int)(mark - t.name), t.name, mark + strlen(ff));
        t.name = name;
        if (st_writer_add(w, &t, 1, &e)) fail_msg("%s", e.msg);
    }
    for (int l = 0; l < c.layers; l++) {
        char stored[64], out[64];
        int experts = model_block(&c, l)->experts.count;
        snprintf(stored, sizeof stored, "model.layers.%d.%s", l, ff);
        snprintf(out, sizeof out, "model.layers.%d.mlp", l);
        if (!experts) continue;
        write_fused(w, f, stored, out, experts, modules[0], modules[1]);
        write_fused(w, f, stored, out, experts, modules[2], NULL);
    }
    assert_int_equal(st_writer_finish(w, &e), 0);
    assert_int_equal(model_files_copy(from, to, true, &e), 0);
    free(path);
    tensor_source_close(f);
}

struct rows {
    float *v;
    int vocab;
};

static void keep(void *arg, int pos, const float *logits)
{
    struct rows *r = arg;
    memcpy(r->v + (size_t)(pos * r->vocab), logits, (size_t)r->vocab * sizeof *logits);
}

static float *logits_of(const char *dir, int n, int *vocab)
{
    struct err e = {0};
    int32_t ids[64];
    struct engine_config how = {.model = dir,
                                .device = "cpu",
                                .kv_type = "f32",
                                .activations = "f32",
                                .threads = 1,
                                .kv_cache_bytes = 16 << 20};
    struct eval *v = eval_open(&how, &e);
    if (!v) fail_msg("%s", e.msg);
    struct rows r = {.vocab = *vocab = eval_vocab(v)};
    r.v = mem_array((size_t)n * (size_t)r.vocab, sizeof *r.v);
    for (int i = 0; i < n; i++) ids[i] = (7 + i * 13) % r.vocab;
    assert_int_equal(eval_logits(v, ids, n, keep, &r, &e), 0);
    eval_close(v);
    return r.v;
}

/* Method full without a step writes such a model as one whose file was never fused. */
static void written_as(const char *base, const char *want)
{
    char out[] = "/tmp/tandem-fused-XXXXXX";
    struct err e = {0};
    struct model m;
    struct optim o;
    struct train_full f;
    struct train_params p;
    assert_non_null(mkdtemp(out));
    train_params_default(&p, TRAIN_FULL);
    if (model_load(&m, base, "cpu", 1, NULL, false, &e)) fail_msg("%s", e.msg);
    optim_init(&o, m.d, NULL);
    assert_int_equal(train_full_open(&f, &m, &p, &o, &e), 0);
    assert_int_equal(optim_alloc(&o, false, &e), 0);
    if (train_full_bind(&f, &p, &o, &e) || train_full_write(&f, train_full_host_values, o.p, NULL, out, &e))
        fail_msg("%s", e.msg);
    train_full_close(&f);
    optim_free(&o);
    model_close(&m);
    struct tensor_source *a = safetensors_open_dir(out, &e), *b = safetensors_open_dir(want, &e);
    assert_true(a && b && tensor_source_count(a) == tensor_source_count(b));
    for (size_t i = 0; i < tensor_source_count(a); i++) {
        const struct tensor *x = tensor_source_at(a, i), *y = tensor_source_at(b, i);
        if (strcmp(x->name, y->name) || x->type != y->type || x->n_dims != y->n_dims || x->bytes != y->bytes ||
            memcmp(x->dims, y->dims, (size_t)x->n_dims * sizeof *x->dims) || memcmp(x->data, y->data, x->bytes))
            fail_msg("%s is written as %s, or with other values", y->name, x->name);
    }
    tensor_source_close(a);
    tensor_source_close(b);
    dir_remove(out);
}

static void test_renamed(void **state)
{
    (void)state;
    enum { TEXT = 20 };
    static const struct {
        const char *model, *ff, *modules[3];
    } cases[] = {{"mixtral", "block_sparse_moe", {"w1", "w3", "w2"}},
                 {"qwen3-moe", "mlp", {"gate_proj", "up_proj", "down_proj"}},
                 {"qwen2-moe", "mlp", {"gate_proj", "up_proj", "down_proj"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char from[1200], to[] = "/tmp/tandem-fused-XXXXXX";
        int vocab, other;
        snprintf(from, sizeof from, "%s/%s", models, cases[i].model);
        assert_non_null(mkdtemp(to));
        write_copy(from, to, cases[i].ff, cases[i].modules);
        float *want = logits_of(from, TEXT, &vocab), *got = logits_of(to, TEXT, &other);
        assert_int_equal(vocab, other);
        assert_memory_equal(got, want, (size_t)(TEXT * vocab) * sizeof *got);
        free(want), free(got);
        written_as(to, from);
        dir_remove(to);
    }
}

/* ---- refused ---------------------------------------------------------------------------------------------------- */

/* A source of tensors without a file. */
struct list {
    struct tensor_source source;
    struct tensor v[8];
    size_t n;
};

static size_t list_count(const struct tensor_source *s)
{
    return ((const struct list *)s)->n;
}

static const struct tensor *list_at(const struct tensor_source *s, size_t i)
{
    return &((const struct list *)s)->v[i];
}

static const struct tensor *list_find(const struct tensor_source *s, const char *name)
{
    const struct list *l = (const struct list *)s;
    return tensors_find(l->v, l->n, name);
}

static void list_close(struct tensor_source *s)
{
    (void)s;
}

static const struct tensor_source_ops list_ops = {
    .count = list_count, .at = list_at, .find = list_find, .close = list_close};

static uint8_t bytes[4 * 96 * 64 * 4];

#define AT "model.layers.0.mlp.experts."
#define GATE_UP AT "gate_up_proj"
#define DOWN AT "down_proj"

static void test_refused(void **state)
{
    (void)state;
    /* the model has 4 experts of 32, hidden 96 */
    static const struct {
        struct tensor t[2];
        const char *says;
        uint8_t fill;
    } cases[] = {
        {{{GATE_UP, TENSOR_F32, 3, {4, 96, 64}}}, NULL, 0},
        {{{DOWN, TENSOR_F32, 3, {4, 96, 32}}}, DOWN ": shape is not [4, 32, 96] as config.json says", 0},
        {{{DOWN, TENSOR_F32, 3, {5, 32, 96}}}, DOWN ": shape is not [4, 32, 96]", 0},
        {{{DOWN, TENSOR_F32, 2, {128, 96}}}, DOWN ": shape is not [4, 32, 96]", 0},
        {{{DOWN, TENSOR_I8, 3, {4, 32, 96}}}, DOWN ": type I8 is not F32, F16 or BF16", 0},
        {{{GATE_UP "_bias", TENSOR_F32, 2, {4, 32}}}, GATE_UP "_bias: shape is not [4, 64]", 0},
        {{{DOWN "_bias", TENSOR_I32, 2, {4, 96}}}, DOWN "_bias: type I32 is not F32", 0},
        {{{DOWN "_blocks", TENSOR_U8, 4, {4, 96, 1, 16}}, {DOWN "_scales", TENSOR_U8, 3, {4, 96, 1}}}, NULL, 0},
        {{{DOWN "_blocks", TENSOR_U8, 4, {4, 96, 1, 16}}}, DOWN "_scales is missing", 0},
        {{{DOWN "_blocks", TENSOR_U8, 4, {4, 96, 2, 16}}, {DOWN "_scales", TENSOR_U8, 3, {4, 96, 1}}},
         DOWN "_blocks: shape is not [4, 96, 1, 16]",
         0},
        {{{DOWN "_blocks", TENSOR_I8, 4, {4, 96, 1, 16}}, {DOWN "_scales", TENSOR_U8, 3, {4, 96, 1}}},
         DOWN "_blocks: type I8, not U8",
         0},
        {{{DOWN "_blocks", TENSOR_U8, 4, {4, 96, 1, 16}}, {DOWN "_scales", TENSOR_U8, 3, {4, 96, 2}}},
         DOWN "_scales: shape is not [4, 96, 1]",
         0},
        {{{DOWN "_blocks", TENSOR_U8, 4, {4, 96, 1, 16}}, {DOWN "_scales", TENSOR_U8, 3, {4, 96, 1}}},
         DOWN "_scales: scale 0 is no number",
         255},
        {{{DOWN, TENSOR_F32, 3, {4, 32, 96}}, {AT "2.down_proj.weight", TENSOR_F32, 2, {96, 32}}},
         AT "2.down_proj.weight is there fused and by itself",
         0},
    };
    struct model_config c;
    tensor_source_close(open_model("gpt-oss-mxfp4", &c));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct list l = {.source.ops = &list_ops};
        memset(bytes, cases[i].fill, sizeof bytes);
        for (int k = 0; k < 2 && cases[i].t[k].name; k++) {
            struct tensor *t = &l.v[l.n++];
            *t = cases[i].t[k];
            t->data = bytes;
            t->bytes = tensor_type_bytes(t->type);
            for (int d = 0; d < t->n_dims; d++) t->bytes *= (size_t)t->dims[d];
            assert_true(t->bytes <= sizeof bytes);
        }
        tensors_sort(l.v, l.n);
        struct tensor_source *s = fused_experts_source(&l.source, &c, &e);
        if (!s != !!cases[i].says) fail_msg("case %zu: %s", i, s ? "taken" : e.msg);
        if (cases[i].says && !strstr(e.msg, cases[i].says))
            fail_msg("\"%s\" does not say \"%s\"", e.msg, cases[i].says);
        tensor_source_close(s);
    }
}

/* MXFP4 rows that are not groups of 32. */
static void test_groups(void **state)
{
    (void)state;
    struct model_config c;
    struct err e = {0};
    struct list l = {.source.ops = &list_ops, .n = 1};
    tensor_source_close(open_model("gpt-oss", &c));
    l.v[0] = (struct tensor){DOWN "_blocks", TENSOR_U8, 4, {5, 48, 1, 10}, bytes, 5 * 48 * 10};
    assert_null(fused_experts_source(&l.source, &c, &e));
    if (!strstr(e.msg, DOWN "_blocks: rows of 20 are not groups of 32")) fail_msg("%s", e.msg);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_floats),  cmocka_unit_test(test_mxfp4),  cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_groups),
    };
    models = argc > 1 ? argv[1] : "tests/fixtures/models";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
