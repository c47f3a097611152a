/* Families whose tensors are nothing but rows: their names, and what loading, adapters and full fine-tuning make of
 * them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/model/nf4.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights_read.h"
#include "engine/train/full.h"
#include "engine/train/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names and places -------------------------------------------------------------------------------------------- */

static struct model_config config_of(const struct model_family *family)
{
    return (struct model_config){.family = family,
                                 .layers = 2,
                                 .hidden = 8,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 4,
                                 .inter = 12,
                                 .vocab = 16,
                                 .max_len = 6,
                                 .block = {{.gated = true, .inter = 12}},
                                 .tied = true,
                                 .eps = 1e-6f};
}

/* Every tensor of the model in order, "NAME rows x cols" a line: stacks, then vectors. */
static char *listing(const struct model_config *c, char out[1 << 14])
{
    struct tensors t = tensors_of(c, NULL);
    struct vector_slot v[256];
    int n = tensors_vectors(&t, v);
    char *at = out;
    for (int i = 0; i < tensors_stacks(c); i++) {
        struct stack s;
        tensors_stack(&t, i, &s);
        for (int k = 0; k < s.n; k++)
            at += sprintf(at, "%s %dx%d%s\n", s.part[k].name, s.part[k].rows, s.part[k].cols,
                          s.part[k].transposed ? " transposed" : "");
    }
    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s %d+%d%s%s\n", v[i].name, v[i].at, v[i].cols, v[i].norm ? " norm" : "",
                      v[i].minus_one ? " minus one" : "");
    return out;
}

/* The order is that of optimizers' checkpoints and of random numbers: it must not change. */
static void test_order(void **state)
{
    (void)state;
    char out[1 << 14];
    struct model_config c = config_of(model_family_find("llama"));
    c.layers = 1, c.tied = false, c.qkv_bias = c.mlp_bias = true, c.block[0].qk_norm = QK_NORM_HEADS;
    assert_string_equal(listing(&c, out), "model.layers.0.self_attn.q_proj.weight 8x8\n"
                                          "model.layers.0.self_attn.k_proj.weight 4x8\n"
                                          "model.layers.0.self_attn.v_proj.weight 4x8\n"
                                          "model.layers.0.self_attn.o_proj.weight 8x8\n"
                                          "model.layers.0.mlp.gate_proj.weight 12x8\n"
                                          "model.layers.0.mlp.up_proj.weight 12x8\n"
                                          "model.layers.0.mlp.down_proj.weight 8x12\n"
                                          "lm_head.weight 16x8\n"
                                          "model.embed_tokens.weight 16x8\n"
                                          "model.layers.0.input_layernorm.weight 0+8 norm\n"
                                          "model.layers.0.post_attention_layernorm.weight 0+8 norm\n"
                                          "model.layers.0.self_attn.q_proj.bias 0+8\n"
                                          "model.layers.0.self_attn.k_proj.bias 8+4\n"
                                          "model.layers.0.self_attn.v_proj.bias 12+4\n"
                                          "model.layers.0.self_attn.q_norm.weight 0+4 norm\n"
                                          "model.layers.0.self_attn.k_norm.weight 0+4 norm\n"
                                          "model.layers.0.mlp.gate_proj.bias 0+12\n"
                                          "model.layers.0.mlp.up_proj.bias 12+12\n"
                                          "model.layers.0.mlp.down_proj.bias 0+8\n"
                                          "model.norm.weight 0+8 norm\n");
    c = config_of(model_family_find("gpt2"));
    c.layers = 1, c.kv_heads = 2;
    assert_string_equal(listing(&c, out), "transformer.h.0.attn.c_attn.weight 24x8 transposed\n"
                                          "transformer.h.0.attn.c_proj.weight 8x8 transposed\n"
                                          "transformer.h.0.mlp.c_fc.weight 12x8 transposed\n"
                                          "transformer.h.0.mlp.c_proj.weight 8x12 transposed\n"
                                          "transformer.wte.weight 16x8\n"
                                          "transformer.h.0.ln_1.weight 0+8 norm\n"
                                          "transformer.h.0.ln_1.bias 0+8\n"
                                          "transformer.h.0.ln_2.weight 0+8 norm\n"
                                          "transformer.h.0.ln_2.bias 0+8\n"
                                          "transformer.h.0.attn.c_attn.bias 0+24\n"
                                          "transformer.h.0.attn.c_proj.bias 0+8\n"
                                          "transformer.h.0.mlp.c_fc.bias 0+12\n"
                                          "transformer.h.0.mlp.c_proj.bias 0+8\n"
                                          "transformer.ln_f.weight 0+8 norm\n"
                                          "transformer.ln_f.bias 0+8\n"
                                          "transformer.wpe.weight 0+8\n");
    c = config_of(model_family_find("phi"));
    c.layers = 1, c.block[0].gated = c.tied = false;
    assert_string_equal(listing(&c, out), "model.layers.0.self_attn.q_proj.weight 8x8\n"
                                          "model.layers.0.self_attn.k_proj.weight 4x8\n"
                                          "model.layers.0.self_attn.v_proj.weight 4x8\n"
                                          "model.layers.0.self_attn.dense.weight 8x8\n"
                                          "model.layers.0.mlp.fc1.weight 12x8\n"
                                          "model.layers.0.mlp.fc2.weight 8x12\n"
                                          "lm_head.weight 16x8\n"
                                          "model.embed_tokens.weight 16x8\n"
                                          "model.layers.0.input_layernorm.weight 0+8 norm\n"
                                          "model.layers.0.input_layernorm.bias 0+8\n"
                                          "model.layers.0.self_attn.q_proj.bias 0+8\n"
                                          "model.layers.0.self_attn.k_proj.bias 8+4\n"
                                          "model.layers.0.self_attn.v_proj.bias 12+4\n"
                                          "model.layers.0.self_attn.dense.bias 0+8\n"
                                          "model.layers.0.mlp.fc1.bias 0+12\n"
                                          "model.layers.0.mlp.fc2.bias 0+8\n"
                                          "model.final_layernorm.weight 0+8 norm\n"
                                          "model.final_layernorm.bias 0+8\n"
                                          "lm_head.bias 0+16\n");
    c.block[0].qk_norm = QK_NORM_HEADS;
    assert_non_null(strstr(listing(&c, out), "model.layers.0.self_attn.q_layernorm.weight 0+4 norm\n"
                                             "model.layers.0.self_attn.q_layernorm.bias 0+4\n"
                                             "model.layers.0.self_attn.k_layernorm.weight 0+4 norm\n"
                                             "model.layers.0.self_attn.k_layernorm.bias 0+4\n"));
    c = config_of(model_family_find("stablelm"));
    c.layers = 1, c.block[0].qk_norm = QK_NORM_APART;
    assert_non_null(strstr(listing(&c, out), "model.layers.0.self_attn.q_layernorm.norms.0.weight 0+4 norm\n"
                                             "model.layers.0.self_attn.q_layernorm.norms.1.weight 4+4 norm\n"
                                             "model.layers.0.self_attn.k_layernorm.norms.0.weight 0+4 norm\n"
                                             "model.norm.weight"));
    static const struct model_family gemma3 = {.model_type = "gemma3_text", .tensors = &gemma3_tensors};
    c = config_of(&gemma3);
    c.layers = 1;
    assert_string_equal(strstr(listing(&c, out), "model.layers.0.input_layernorm"),
                        "model.layers.0.input_layernorm.weight 0+8 norm minus one\n"
                        "model.layers.0.post_attention_layernorm.weight 0+8 norm minus one\n"
                        "model.layers.0.pre_feedforward_layernorm.weight 0+8 norm minus one\n"
                        "model.layers.0.post_feedforward_layernorm.weight 0+8 norm minus one\n"
                        "model.layers.0.self_attn.q_norm.weight 0+4 norm minus one\n"
                        "model.layers.0.self_attn.k_norm.weight 0+4 norm minus one\n"
                        "model.norm.weight 0+8 norm minus one\n");
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* value i of a tensor: the same for the same name and i */
static float value_at(const char *name, size_t i)
{
    uint32_t h = (uint32_t)i * 2654435761u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return (float)(h >> 8) / (float)(1 << 24) - 0.5f;
}

static void add(struct st_writer *w, const char *prefix, const char *name, int rows, int cols)
{
    char full[256];
    size_t n = (size_t)rows * (size_t)cols;
    float *data = malloc(n * sizeof *data);
    struct err e = {0};
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (size_t i = 0; i < n; i++) data[i] = value_at(name, i);
    struct tensor t = {full, TENSOR_F32, rows > 1 ? 2 : 1, {rows > 1 ? rows : cols, cols}, data, n * sizeof *data};
    if (st_writer_add(w, &t, 1, &e)) fail_msg("%s", e.msg);
    free(data);
}

/* A model directory with all that the family has, and `prefix` before its names. */
static void write_model(const struct model_config *c, const char *prefix, const char *dir)
{
    struct tensors t = tensors_of(c, NULL);
    struct vector_slot v[256];
    struct err e = {0};
    char *path = file_join(dir, "model.safetensors");
    struct st_writer *w = st_writer_open(path, 256, 256 * TENSOR_NAME_MAX, 64, &e);
    if (!w) fail_msg("%s", e.msg);
    free(path);
    for (int i = 0; i < tensors_stacks(c); i++) {
        struct stack s;
        tensors_stack(&t, i, &s);
        for (int k = 0; k < s.n; k++)
            if (s.part[k].transposed)
                add(w, prefix, s.part[k].name, s.part[k].cols, s.part[k].rows);
            else
                add(w, prefix, s.part[k].name, s.part[k].rows, s.part[k].cols);
    }
    for (int i = 0, n = tensors_vectors(&t, v); i < n; i++) add(w, prefix, v[i].name, v[i].rows, v[i].cols);
    if (st_writer_finish(w, &e)) fail_msg("%s", e.msg);
}

static void remove_dir(const char *dir)
{
    char command[300];
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

static struct model open_model(const struct model_config *c, const char *dir)
{
    char why[160];
    struct err e = {0};
    struct model m = {.c = *c, .d = dev_open(&(struct dev_config){.name = "ref"}, why)};
    if (!m.d) fail_msg("%s", why);
    if (weights_load(&m.w, m.d, &m.c, dir, NULL, false, 1, NULL, NULL, &e)) fail_msg("%s", e.msg);
    return m;
}

static void close_model(struct model *m)
{
    weights_free(&m->w, m->d, &m->c);
    dev_close(m->d);
}

/* n floats on the device are value_at + more of the tensor's */
static void assert_values(const struct dev *d, const float *device, const char *name, int n, float more)
{
    float got[64];
    assert_true(n <= 64);
    d->ops->download((struct dev *)d, got, device, (size_t)n * sizeof *got);
    for (int i = 0; i < n; i++)
        if (got[i] != more + value_at(name, (size_t)i))
            fail_msg("%s: value %d is %g, not %g", name, i, (double)got[i], (double)(more + value_at(name, (size_t)i)));
}

/* ---- a made-up family -------------------------------------------------------------------------------------------- */

static const struct tensor_row odd_rows[] = {
    {"pre", PART_NORM1, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_MINUS_ONE},
    {"after", PART_POST1, TENSOR_ALWAYS},
    {"pre_ff", PART_NORM2, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    {"after_ff", PART_POST2, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    {"mix.all", PART_QKV, TENSOR_ALWAYS, TENSOR_ALWAYS, TENSOR_PEFT, TARGET_C_ATTN},
    {"mix.out", PART_O, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_TRANSPOSED, TARGET_O},
    {"ff.both", PART_GATE_UP, TENSOR_ALWAYS, TENSOR_IF_MLP_BIAS, 0, TARGET_UP},
    {"ff.down", PART_DOWN, TENSOR_ALWAYS},
    {"end", PART_NORM, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_MINUS_ONE},
    {"table", PART_EMBED, TENSOR_ALWAYS},
    {"out", PART_HEAD, TENSOR_ALWAYS, TENSOR_NEVER, TENSOR_BARE},
    {0},
};
static const struct tensor_table odd_tensors = {{"text.", "inner.text.", ""}, "blocks", odd_rows};
static const struct model_family odd = {.model_type = "odd", .tensors = &odd_tensors};

/* y of a weight of the model, for an x of ones and twos */
static void multiply(struct dev *d, const struct weight *w, int rows, int cols, float *y)
{
    float x[64];
    for (int i = 0; i < cols; i++) x[i] = (float)(1 + i % 2);
    float *dx = d->ops->alloc(d, sizeof x), *dy = d->ops->alloc(d, (size_t)rows * sizeof *y);
    d->ops->upload(d, dx, x, sizeof x);
    op_linear(d, (struct linear_args){.y = mat_f32(dy, 1, rows), .x = mat_f32(dx, 1, cols), .w = w});
    d->ops->download(d, y, dy, (size_t)rows * sizeof *y);
    if (d->error.op) fail_msg("%s: %s", d->error.op, d->error.msg);
    d->ops->free(d, dx);
    d->ops->free(d, dy);
}

static void test_loading(void **state)
{
    (void)state;
    char dir[] = "/tmp/tandem-tensors-XXXXXX", name[] = "text.blocks.1.ff.both.weight";
    struct model_config c = config_of(&odd);
    assert_non_null(mkdtemp(dir));
    write_model(&c, "inner.", dir);
    struct model m = open_model(&c, dir);
    const struct layer_weights *l = &m.w.layer[1];
    assert_values(m.d, l->norm1_w, "text.blocks.1.pre.weight", 8, 1);
    assert_values(m.d, l->norm1_b, "text.blocks.1.pre.bias", 8, 0);
    assert_values(m.d, l->post1_w, "text.blocks.1.after.weight", 8, 0);
    assert_values(m.d, l->norm2_w, "text.blocks.1.pre_ff.weight", 8, 1);
    assert_values(m.d, l->post2_w, "text.blocks.1.after_ff.weight", 8, 1);
    assert_values(m.d, l->qkv_b, "text.blocks.1.mix.all.bias", 16, 0);
    assert_values(m.d, m.w.norm_w, "text.end.weight", 8, 1);
    char head[TENSOR_NAME_MAX];
    struct tensors stored = tensors_of(&c, m.w.file);
    tensors_head_name(&stored, head);
    assert_string_equal(head, "out.weight");
    assert_true(!l->norm2_b && !l->post1_b && !l->o_b && !l->up_b && !l->down_b && !m.w.norm_b && !m.w.head_b);

    /* gate and up in one tensor: its rows in order, as a product of the two halves gives them */
    float y[24];
    multiply(m.d, l->up, 24, 8, y);
    for (int r = 0; r < 24; r++) {
        double sum = 0;
        for (int k = 0; k < 8; k++) sum += (1 + k % 2) * (double)value_at(name, (size_t)(8 * r + k));
        assert_true(y[r] == (float)sum);
    }
    close_model(&m);
    remove_dir(dir);
}

/* A head may be called as transformers 5 calls all of them. */
static void test_name_of_a_head(void **state)
{
    (void)state;
    char dir[] = "/tmp/tandem-tensors-XXXXXX", head[TENSOR_NAME_MAX];
    struct model_config c = config_of(&odd);
    struct err e = {0};
    assert_non_null(mkdtemp(dir));
    char *path = file_join(dir, "model.safetensors");
    struct st_writer *w = st_writer_open(path, 2, 2 * TENSOR_NAME_MAX, 64, &e);
    add(w, "", "text.end.weight", 1, 8);
    add(w, "", HEAD_NAME ".weight", 16, 8);
    if (st_writer_finish(w, &e)) fail_msg("%s", e.msg);
    struct tensor_source *source = safetensors_open(path, &e);
    assert_non_null(source);
    struct tensors t = tensors_of(&c, source);
    tensors_head_name(&t, head);
    assert_string_equal(head, "lm_head.weight");
    t = tensors_of(&c, NULL);
    tensors_head_name(&t, head);
    assert_string_equal(head, "out.weight");
    tensor_source_close(source);
    free(path);
    remove_dir(dir);
}

/* The halves of a matrix in every canonical form are where its later rows are. */
static void test_halves(void **state)
{
    (void)state;
    enum { ROWS = 6, COLS = 64 };
    static const int types[] = {DT_F32, DT_I8, DT_I4, DT_NF4};
    static float w[ROWS * COLS];
    for (size_t i = 0; i < sizeof w / sizeof *w; i++) w[i] = value_at("w", i);
    struct weight_src floats = {.t = DT_F32, .rows = ROWS, .cols = COLS, .data = w};
    struct halves half;
    struct weight_src lower = {.t = DT_F32, .rows = ROWS / 2, .cols = COLS, .data = w + ROWS / 2 * COLS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct quantize_fit fit = {.type = types[i]};
        struct err e = {0};
        struct weight_src all = floats, want = lower;
        if (types[i] != DT_F32 &&
            (quantize_matrix(&floats, &fit, 1, &all, &e) || quantize_matrix(&lower, &fit, 1, &want, &e)))
            fail_msg("%s", e.msg);
        assert_int_equal(weights_halves(&all, 1, &half), 1);
        all.gate_up = true;
        assert_int_equal(weights_halves(&all, 1, &half), 2);
        assert_int_equal(half.src[0].rows, ROWS / 2);
        assert_int_equal(half.src[1].rows, ROWS / 2);
        size_t bytes = types[i] == DT_F32  ? ROWS / 2 * COLS * sizeof *w
                       : types[i] == DT_I8 ? ROWS / 2 * COLS
                                           : ROWS / 2 * COLS / 2;
        size_t scales = types[i] == DT_I8   ? ROWS / 2 * sizeof(float)
                        : types[i] == DT_I4 ? ROWS / 2 * COLS / INT4_GROUP * sizeof(uint16_t)
                                            : 0;
        assert_ptr_equal(half.src[0].data, all.data);
        assert_memory_equal(half.src[1].data, want.data, bytes);
        if (scales) assert_memory_equal(half.src[1].scale, want.scale, scales);
        if (types[i] == DT_NF4) /* its scales are rounded together: the lower half alone has others */
            assert_ptr_equal(half.src[1].scale, (const float *)all.scale + ROWS / 2 * COLS / NF4_GROUP);
        if (types[i] == DT_F32) continue;
        free((void *)all.data), free((void *)all.scale);
        free((void *)want.data), free((void *)want.scale);
    }
}

static void test_modules(void **state)
{
    (void)state;
    struct model_config c = config_of(&odd);
    struct lora_module m[LORA_MODULES_MAX];
    char prefix[64];
    assert_int_equal(lora_modules(&c, m), 5); /* ff.down takes none; the table and the head are last */
    assert_string_equal(m[0].name, "all");
    assert_string_equal(m[0].path, "mix.all");
    assert_true(m[0].gemm == GEMM_QKV && m[0].col == 0 && m[0].n == 16 && m[0].k == 8 && m[0].peft);
    assert_true(m[2].gemm == GEMM_UP && m[2].col == 0 && m[2].n == 24 && m[2].k == 8 && !m[2].peft);
    lora_layer_prefix(&c, 1, prefix);
    assert_string_equal(prefix, "text.blocks.1.");
}

/* ---- full fine-tuning -------------------------------------------------------------------------------------------- */

static float *values_of(struct dev *d, const float *device, size_t n)
{
    float *host = malloc(n * sizeof *host);
    d->ops->download(d, host, device, n * sizeof *host);
    return host;
}

/* What is written without a step is what was read: norms as w, under the file's own names. */
static void assert_same_tensors(const char *a, const char *b)
{
    struct err e = {0};
    struct tensor_source *x = safetensors_open_dir(a, &e), *y = safetensors_open_dir(b, &e);
    if (!x || !y) fail_msg("%s", e.msg);
    assert_int_equal(tensor_source_count(x), tensor_source_count(y));
    for (size_t i = 0; i < tensor_source_count(x); i++) {
        const struct tensor *t = tensor_source_at(x, i), *u = tensor_source_find(y, t->name);
        if (!u || t->bytes != u->bytes || memcmp(t->data, u->data, t->bytes)) fail_msg("%s differs", t->name);
    }
    tensor_source_close(x);
    tensor_source_close(y);
}

static void train_family(const struct model_family *family, const char *prefix)
{
    char dir[] = "/tmp/tandem-tensors-XXXXXX", out[] = "/tmp/tandem-tensors-XXXXXX";
    struct model_config c = config_of(family);
    struct train_params p;
    struct train_full f;
    struct optim o;
    struct err e = {0};
    assert_true(mkdtemp(dir) && mkdtemp(out));
    write_model(&c, prefix, dir);
    struct model m = open_model(&c, dir);
    train_params_default(&p, TRAIN_FULL);
    p.f32 = true;
    optim_init(&o, m.d, NULL);
    if (train_full_open(&f, &m, &p, &o, &e) || optim_alloc(&o, false, &e) || train_full_bind(&f, &p, &o, &e))
        fail_msg("%s", e.msg);
    for (int i = 0; i < f.n_vectors; i++) {
        const struct vector_slot *v = &f.vector[i];
        if (!v->at) assert_values(m.d, *weights_vector_field(&f.w, v), v->name + strlen(prefix), v->cols, v->minus_one);
    }
    float *host = values_of(m.d, o.p, o.n);
    if (train_full_write(&f, train_full_host_values, host, NULL, out, &e)) fail_msg("%s", e.msg);
    assert_same_tensors(dir, out);

    /* a step that adds 0.25 to every parameter: what is applied follows */
    for (size_t i = 0; i < o.n; i++) host[i] += 0.25f;
    m.d->ops->upload(m.d, o.p, host, o.n * sizeof *host);
    train_full_use(&f, &o, o.p);
    float *applied = values_of(m.d, f.w.layer[1].post2_w, 8);
    for (int i = 0; i < f.n_vectors; i++)
        if (f.vector[i].layer == 1 && f.vector[i].field == offsetof(struct layer_weights, post2_w))
            for (int k = 0; k < 8; k++) assert_true(applied[k] == 1 + host[f.vector_at[i] + (size_t)k]);
    free(applied);
    free(host);
    train_full_close(&f);
    optim_free(&o);

    /* random initialisation: what is applied is one */
    p.random_init = true;
    optim_init(&o, m.d, NULL);
    if (train_full_open(&f, &m, &p, &o, &e) || optim_alloc(&o, false, &e) || train_full_bind(&f, &p, &o, &e))
        fail_msg("%s", e.msg);
    const float *norms[] = {f.w.layer[0].norm1_w, f.w.layer[0].post1_w, f.w.layer[1].post2_w, f.w.norm_w};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        float *norm = values_of(m.d, norms[i], 8);
        for (int k = 0; k < 8; k++) assert_true(norm[k] == 1);
        free(norm);
    }
    train_full_close(&f);
    optim_free(&o);
    close_model(&m);
    remove_dir(dir);
    remove_dir(out);
}

static void test_full_fine_tuning(void **state)
{
    (void)state;
    static const struct model_family gemma3 = {.model_type = "gemma3_text", .tensors = &gemma3_tensors};
    train_family(&odd, "inner.");
    train_family(&gemma3, "language_model.");
}

static bool has_row(const struct model_family *f, enum tensor_part part)
{
    for (const struct tensor_row *r = f->tensors->row; r->module; r++)
        if (r->part == part) return true;
    return false;
}

/* A family's tensors are those that its layers read: a row that is missing would be a norm that is never applied. */
static void test_rows_and_layers_agree(void **state)
{
    char names[384];
    model_family_names(names, sizeof names);
    int n = 0;
    for (char *rest = names, *name; (name = strtok_r(rest, ", ", &rest)); n++) {
        const struct model_family *f = model_family_find(name);
        assert_non_null(f);
        const struct block b = {.norms = f->layer.norms};
        bool before = block_norm_before(&b), after = block_norm_after(&b);
        assert_int_equal(has_row(f, PART_NORM1), before);
        assert_int_equal(has_row(f, PART_NORM2), before && f->layer.norms != NORMS_PARALLEL);
        assert_int_equal(has_row(f, PART_POST1), after);
        assert_int_equal(has_row(f, PART_POST2), after);
        assert_int_equal(has_row(f, PART_GATE) || has_row(f, PART_GATE_UP) || has_row(f, PART_EXPERT_GATE),
                         f->layer.gated);
        assert_int_equal(has_row(f, PART_ROUTER), f->experts.count != NULL);
        assert_true(!f->layer.qk_norm || (has_row(f, PART_Q_NORM) && has_row(f, PART_K_NORM)));
        for (const struct tensor_row *r = f->tensors->row; r->module; r++)
            if (r->part == PART_Q_NORM || r->part == PART_K_NORM)
                assert_int_equal(strstr(r->module, "%d") != NULL, f->layer.qk_norm == QK_NORM_APART);
        assert_true(has_row(f, PART_EMBED) && (has_row(f, PART_NORM) || has_row(f, PART_EMBED_NORM)));
        assert_int_equal(has_row(f, PART_NORM), f->layer.norms != NORMS_SUM);
        assert_int_equal(has_row(f, PART_HEAD), !f->encoder);
    }
    assert_true(n >= 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_and_layers_agree), cmocka_unit_test(test_order),  cmocka_unit_test(test_loading),
        cmocka_unit_test(test_name_of_a_head),        cmocka_unit_test(test_halves), cmocka_unit_test(test_modules),
        cmocka_unit_test(test_full_fine_tuning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
