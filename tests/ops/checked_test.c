/* What dev_checked catches: each breach fails the device with the op's name, the op is not run, and the process lives.
 */
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_error(struct dev *d, const char *op, const char *what)
{
    CHECK(d->error.op && !strcmp(d->error.op, op), "%s: %s: not caught (%s)", op, what,
          d->error.op ? d->error.msg : "no error");
    CHECK(d->ops->finish(d) == -1, "%s: %s: finish did not say so", op, what);
    dev_clear_error(d);
}

static void check_dense(struct dev *d)
{
    enum { T = 3, C = 8, V = 5 };
    float *x = put(d, NULL, 4096), *y = put(d, NULL, 4096), *w = put(d, NULL, 4096);
    int32_t ids[T] = {0, 4, 5}, *id = put(d, ids, sizeof ids);
    struct mat mx = mat_f32(x, T, C), my = mat_f32(y, T, C), table = mat_f32(w, V, C), bad = mx;
    op_embed(d, (struct embed_args){.out = mx, .table = table, .id = id});
    expect_error(d, "embed", "id 5 of 5");
    ids[2] = -1;
    d->ops->upload(d, id, ids, sizeof ids);
    op_embed(d, (struct embed_args){.out = mx, .table = table, .id = id});
    expect_error(d, "embed", "id -1");
    op_embed(d, (struct embed_args){.out = mx, .id = id, .w = (struct weight *)(void *)x});
    expect_error(d, "embed", "not a weight");
    bad.ld = C - 1;
    op_norm(d, (struct norm_args){my, bad, w, NULL, 1e-5f, NORM_RMS});
    expect_error(d, "norm", "ld below cols");
    bad = mat_f32(x + 1, T, C);
    op_norm(d, (struct norm_args){bad, mx, w, NULL, 1e-5f, NORM_RMS});
    expect_error(d, "norm", "overlap");
    bad = mx, bad.t = DT_BF16;
    op_add(d, (struct add_args){bad, my});
    expect_error(d, "add", "type");
    op_add(d, (struct add_args){mx, mat_f32(y, T, C + 1)});
    expect_error(d, "add", "shape");
    op_add(d, (struct add_args){mx, mx});
    expect_error(d, "add", "alias");
    op_rows(d, (struct rows_args){my, mx, id});
    expect_error(d, "rows", "row -1");
    op_head_norm(d, (struct head_norm_args){mx, 0, 2, 4, w, 1e-5f, (enum norm_kind)2});
    expect_error(d, "head_norm", "kind");
    op_head_norm(d, (struct head_norm_args){mx, 1, 2, 4, w, 1e-5f});
    expect_error(d, "head_norm", "past the end");
    op_act_mul(d, (struct act_mul_args){my, mx, ACT_SILU});
    expect_error(d, "act_mul", "width");
    op_act(d, (struct act_args){mx, (enum act_kind)9});
    expect_error(d, "act", "kind");
    op_act(d, (struct act_args){mx, ACT_SWIGLU_CLAMPED});
    expect_error(d, "act", "a kind of gated ops");
    op_act_mul(d, (struct act_mul_args){mat_f32(y, T, C / 2), mx, (enum act_kind)(ACT_SWIGLU_CLAMPED + 1)});
    expect_error(d, "act_mul", "kind");
    op_softcap(d, (struct softcap_args){mx, 1, -1});
    expect_error(d, "softcap", "cap below 0");
    op_softcap(d, (struct softcap_args){mx, NAN, 1});
    expect_error(d, "softcap", "scale nan");
    op_add_norm(d, (struct add_norm_args){.out = mat_f32(w, T, C), .x = mx, .y = my, .w = x, .post_b = x});
    expect_error(d, "add_norm", "post_b without post_w");
    float src[4 * C] = {0};
    struct weight *wt = d->ops->weight_pack(d, &(struct weight_src){.t = DT_F32, .rows = 4, .cols = C, .data = src}, 1);
    op_norm(d, (struct norm_args){mat_f32(y, T, C - 1), mat_f32(x, T, C - 1), w, NULL, 1e-5f, NORM_RMS, wt});
    expect_error(d, "norm", "next of other columns");
    op_norm(d, (struct norm_args){my, mx, w, NULL, 1e-5f, NORM_RMS, (struct weight *)x});
    expect_error(d, "norm", "next is not a weight");
    op_linear(d, (struct linear_args){my, mx, wt, NULL});
    expect_error(d, "linear", "y too wide");
    op_linear(d, (struct linear_args){mat_f32(y, T, 4), mx, (struct weight *)x, NULL});
    expect_error(d, "linear", "not a weight");
    op_linear(d, (struct linear_args){mat_f32(y, T, 2), mx, wt, NULL, 2});
    expect_error(d, "linear", "a slice from 2 on");
    op_linear(d, (struct linear_args){mat_f32(y, T, 4), mx, wt, NULL});
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    d->ops->weight_free(d, wt);
    void *all[] = {x, y, w, id};
    for (size_t i = 0; i < 4; i++) d->ops->free(d, all[i]);
}

static void check_cache(struct dev *d)
{
    enum { T = 2, H = 2, D = 4, W = (H + 2) * D };
    struct kv *kv = d->ops->kv_open(d, &(struct kv_shape){1, 2, 1, D, DT_F16});
    float *x = put(d, NULL, 4096), *out = put(d, NULL, 4096);
    int32_t host[5][4] = {{0, 1}, {3, 40}, {0, 2}, {2}, {0, 7}}, *i[5];
    for (int k = 0; k < 5; k++) i[k] = put(d, host[k], sizeof host[k]);
    struct mat qkv = mat_f32(x, T, W), o = mat_f32(out, T, H * D);
    struct rope_kv_args r = {qkv, H, 1, D, 0, NULL, NULL, i[0], i[1], kv, 0};
    op_rope_kv(d, r);
    expect_error(d, "rope_kv", "slot 40 of 32");
    host[1][1] = 3;
    d->ops->upload(d, i[1], host[1], sizeof host[1]);
    op_rope_kv(d, r);
    expect_error(d, "rope_kv", "a slot twice");
    r.slot = i[0], r.layer = 1;
    op_rope_kv(d, r);
    expect_error(d, "rope_kv", "layer");
    r.layer = 0, r.rot = 6;
    op_rope_kv(d, r);
    expect_error(d, "rope_kv", "rot");
    struct attn_args a = {o, qkv, H, 1, D, 0, 1, 1, i[2], i[3], i[4], 1, kv, 0};
    op_attn(d, a);
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    a.pages = i[4] + 1;
    op_attn(d, a);
    expect_error(d, "attn", "page 7 of 2");
    a.pages = i[4], a.softcap = -1;
    op_attn(d, a);
    expect_error(d, "attn", "softcap below 0");
    a.softcap = 0, a.sinks = (const float *)(const void *)((const char *)x + 1);
    op_attn(d, a);
    expect_error(d, "attn", "sinks that are not aligned");
    a.sinks = NULL, a.q_start = i[4]; /* 0, 7 */
    op_attn(d, a);
    expect_error(d, "attn", "q_start");
    a.q_start = i[2], a.kv_len = i[0] + 1; /* 1 */
    op_attn(d, a);
    expect_error(d, "attn", "kv_len below the rows");
    a.kv_len = i[3], a.head_dim = D + 1;
    op_attn(d, a);
    expect_error(d, "attn", "head_dim");
    d->ops->kv_close(d, kv);
    for (int k = 0; k < 5; k++) d->ops->free(d, i[k]);
    d->ops->free(d, x), d->ops->free(d, out);
}

static void check_experts(struct dev *d)
{
    enum { T = 2, E = 3, K = 2, C = 4 };
    static const float src[C * C];
    int32_t *i[4], starts[E + 1] = {0, 3, 1, 4};
    for (int k = 0; k < 4; k++) i[k] = put(d, NULL, 64);
    float *l = put(d, NULL, 64), *w = put(d, NULL, 64), *x = put(d, NULL, 256), *y = put(d, NULL, 256);
    struct route_args r = {mat_f32(l, T, E), mat_f32(w, T, K), i[0], i[1], i[2], i[3], false};
    r.weight.cols = E + 1;
    op_route(d, r);
    expect_error(d, "route", "more chosen than there are");
    r.weight.cols = K, r.start = NULL;
    op_route(d, r);
    expect_error(d, "route", "no start");
    r.start = i[3];
    op_route(d, r);
    struct weight *one =
        d->ops->weight_pack(d, &(struct weight_src){.t = DT_F32, .rows = C, .cols = C, .data = src}, 1);
    struct weight *two =
        d->ops->weight_pack(d, &(struct weight_src){.t = DT_F32, .rows = 2, .cols = C, .data = src}, 1);
    const struct weight *good[E] = {one, one, one}, *mixed[E] = {one, two, one};
    struct experts_linear_args a = {mat_f32(y, T * K, C), mat_f32(x, T * K, C), good, NULL, i[3], E};
    op_experts_linear(d, a);
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    a.w = mixed;
    op_experts_linear(d, a);
    expect_error(d, "experts_linear", "experts of two shapes");
    a.w = good, a.x.rows = a.y.rows = T * K + 1;
    op_experts_linear(d, a);
    expect_error(d, "experts_linear", "start ends before the last row");
    a.x.rows = a.y.rows = T * K;
    d->ops->upload(d, i[3], starts, sizeof starts);
    op_experts_linear(d, a);
    expect_error(d, "experts_linear", "start descends");
    op_experts_gate_up(d, (struct experts_gate_up_args){.y = a.y, .x = a.x, .w = good, .start = i[3], .n = E});
    expect_error(d, "experts_gate_up", "no gate_up weights");
    struct combine_args c = {.y = mat_f32(y, T, C), .x = mat_f32(x, T * K, C), .place = i[1], .k = K};
    op_combine(d, c);
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    c.x.rows = T;
    op_combine(d, c);
    expect_error(d, "combine", "a place past x");
    d->ops->weight_free(d, one), d->ops->weight_free(d, two);
    for (int k = 0; k < 4; k++) d->ops->free(d, i[k]);
    d->ops->free(d, l), d->ops->free(d, w), d->ops->free(d, x), d->ops->free(d, y);
}

static void check_sampling(struct dev *d)
{
    float *z = put(d, NULL, 64);
    struct sample_out *out = put(d, NULL, sizeof *out);
    struct sample_row good = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1, .forced = -1}, r = good;
    struct token_add add = {16, 1};
    r.forced = 16;
    op_sample(d, (struct sample_args){mat_f32(z, 1, 16), &r, out});
    expect_error(d, "sample", "forced 16 of 16");
    r = good, r.n_adds = 1, r.adds = &add;
    op_sample(d, (struct sample_args){mat_f32(z, 1, 16), &r, out});
    expect_error(d, "sample", "add 16 of 16");
    r = good, r.temperature = NAN;
    op_sample(d, (struct sample_args){mat_f32(z, 1, 16), &r, out});
    expect_error(d, "sample", "temperature");
    d->ops->free(d, z), d->ops->free(d, out);
}

static void check_training(struct dev *d)
{
    enum { T = 3, C = 8, H = 2, D = 2 }; /* qkv is 8 wide */
    float *p[5];
    for (int i = 0; i < 5; i++) p[i] = put(d, NULL, 4096);
    int32_t host[] = {0, 2, T, C, 0}, *index = put(d, host, sizeof host);
    struct mat x = mat_f32(p[0], T, C), y = mat_f32(p[1], T, C), z = mat_f32(p[2], T, C);
    struct mat head = mat_f32(p[3], T, H * D), lse = mat_f32(p[4], T, H);
    op_norm_back(d, (struct norm_back_args){y, x, y, p[3], 1e-5f, NORM_RMS, true, NULL, NULL});
    expect_error(d, "norm_back", "accumulates in place");
    op_norm_back(d, (struct norm_back_args){x, x, y, p[3], 1e-5f, NORM_RMS, false, NULL, NULL});
    expect_error(d, "norm_back", "dx is x");
    op_norm_back(d, (struct norm_back_args){y, x, y, NULL, 1e-5f, NORM_RMS, false, NULL, NULL});
    expect_error(d, "norm_back", "w");
    op_head_norm_back(d, (struct head_norm_back_args){y, x, 1, H, 4, p[3], 1e-5f, NULL});
    expect_error(d, "head_norm_back", "past the end");
    op_rope(d, (struct rope_args){x, H, 1, D, 4, p[1], p[2], index, false});
    expect_error(d, "rope", "rot 4 of 2");
    struct attn_seq_args a = {head, lse, x, H, 1, D, 0, 1, 2, index};
    op_attn_seq(d, a);
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    a.n_seqs = 1;
    op_attn_seq(d, a);
    expect_error(d, "attn_seq", "q_start ends early");
    a.n_seqs = 2, a.out = y;
    op_attn_seq(d, a);
    expect_error(d, "attn_seq", "out too wide");
    a.out = head, a.head0 = H - 1, a.n_heads = 2;
    op_attn_seq(d, a);
    expect_error(d, "attn_seq", "a head too many");
    a.head0 = a.n_heads = 0, a.sinks = (const float *)(const void *)((const char *)p[0] + 2);
    op_attn_seq(d, a);
    expect_error(d, "attn_seq", "sinks that are not aligned");
    struct attn_back_args back = {x, head, head, lse, x, H, 1, D, 0, 1, 2, index};
    op_attn_back(d, back);
    expect_error(d, "attn_back", "dqkv is qkv");
    back.dqkv = y, back.window = -1;
    op_attn_back(d, back);
    expect_error(d, "attn_back", "window");
    back.window = 0, back.softcap = NAN;
    op_attn_back(d, back);
    expect_error(d, "attn_back", "softcap nan");
    op_act_mul_back(d, (struct act_mul_back_args){y, x, z, ACT_SILU});
    expect_error(d, "act_mul_back", "width");
    op_act_back(d, (struct act_back_args){x, x, y, ACT_SILU});
    expect_error(d, "act_back", "dx is x");
    op_act_back(d, (struct act_back_args){y, x, z, ACT_SWIGLU_CLAMPED});
    expect_error(d, "act_back", "a kind of gated ops");
    op_cross_entropy(d, (struct cross_entropy_args){x, index + 1, p[1], p[2], (int32_t *)p[3], true});
    expect_error(d, "cross_entropy", "target 8 of 8");
    op_cross_entropy(d, (struct cross_entropy_args){x, index, NULL, p[2], (int32_t *)p[3], true});
    expect_error(d, "cross_entropy", "no scale");
    op_dropout(d, (struct dropout_args){x, 1, 0, 0});
    expect_error(d, "dropout", "p is 1");
    op_square_sum(d, (struct square_sum_args){p[0], 4, NULL});
    expect_error(d, "square_sum", "sum");
    op_adamw(d, (struct adamw_args){.p = p[0], .m = p[1], .v = p[2], .g = p[3], .n = 4, .bias1 = 1});
    expect_error(d, "adamw", "bias2 is 0");
    struct adamw_8bit_args eight = {.p = p[0], .g = p[1], .m_scale = p[2], .v_scale = p[3], .n = 4, .bias1 = 1};
    op_adamw_8bit(d, eight);
    expect_error(d, "adamw_8bit", "bias2 is 0");
    eight.bias2 = 1;
    op_adamw_8bit(d, eight);
    expect_error(d, "adamw_8bit", "m is NULL");
    op_axpby(d, (struct axpby_args){p[0], p[0] + 1, 4, 1, 1});
    expect_error(d, "axpby", "x is partly y");
    op_axpby(d, (struct axpby_args){p[0], p[1], 4, NAN, 1});
    expect_error(d, "axpby", "alpha nan");
    for (int i = 0; i < 5; i++) d->ops->free(d, p[i]);
    d->ops->free(d, index);
}

static void check_products(struct dev *d)
{
    enum { T = 3, C = 8, N = 4 };
    float *p[4];
    for (int i = 0; i < 4; i++) p[i] = put(d, NULL, 4096);
    int32_t host[] = {0, N, 1}, *index = put(d, host, sizeof host);
    struct mat x = mat_f32(p[0], T, C), y = mat_f32(p[1], T, N), z = mat_f32(p[2], N, C), none = {0};
    struct gemm_args g = {.c = y, .a = x, .b = z, .alpha = 1};
    op_gemm(d, g);
    expect_error(d, "gemm", "b not transposed");
    g.tb = true;
    op_gemm(d, g);
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    g.c = mat_f32(p[0] + C, T, N);
    op_gemm(d, g);
    expect_error(d, "gemm", "c is in a");
    float src[N * C] = {0};
    struct weight *w = d->ops->weight_pack(d, &(struct weight_src){.t = DT_F32, .rows = N, .cols = C, .data = src}, 1);
    op_linear_back(d, (struct linear_back_args){y, x, w, false});
    expect_error(d, "linear_back", "dx and dy in turn");
    op_linear_back(d, (struct linear_back_args){x, y, (struct weight *)(void *)p[0], false});
    expect_error(d, "linear_back", "not a weight");
    op_linear_back(d, (struct linear_back_args){x, mat_f32(p[1], T, 2), w, false});
    expect_error(d, "linear_back", "half a slice");
    d->ops->weight_free(d, w);
    struct lora_part part = {p[2], p[3], 2, 1, N, 1}, fits = part;
    struct lora_group group[] = {{0, 2, 1, &part}, {1, 1, 1, &fits}};
    fits.col = 0;
    op_lora(d, (struct lora_args){y, x, group, 1});
    expect_error(d, "lora", "past the columns");
    part.col = 0;
    op_lora(d, (struct lora_args){y, x, group, 1});
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    op_lora(d, (struct lora_args){y, x, group, 2});
    expect_error(d, "lora", "two groups share a row");
    group[0].rows = T + 1;
    op_lora(d, (struct lora_args){y, x, group, 1});
    expect_error(d, "lora", "past the rows");
    op_embed_back(d, (struct embed_back_args){z, none, x, index, NULL});
    expect_error(d, "embed_back", "id 4 of 4");
    op_embed_back(d, (struct embed_back_args){z, none, mat_f32(p[0], 1, C), index, NULL});
    CHECK(!d->error.op, "a good call failed: %s", d->error.msg);
    op_col_sum(d, (struct col_sum_args){x, NULL});
    expect_error(d, "col_sum", "no out");
    for (int i = 0; i < 4; i++) d->ops->free(d, p[i]);
    d->ops->free(d, index);
}

static void check_memory(struct dev *d)
{
    float one = 1;
    CHECK(!d->ops->weight_pack(d, &(struct weight_src){.t = DT_F32, .rows = INT32_MAX, .cols = INT32_MAX, .data = &one},
                               1),
          "an absurd weight was packed");
    struct weight_case c = weight_random(DT_NF4, 2, 64, 64);
    struct weight_src odd = c.src, ungrouped = c.src, unscaled = c.src;
    odd.rows = 4, odd.cols = 32; /* a block would reach into the next row */
    ungrouped.group = 32;
    unscaled.scale = NULL;
    CHECK(!d->ops->weight_pack(d, &odd, 1), "nf4 with 32 columns was packed");
    CHECK(!d->ops->weight_pack(d, &ungrouped, 1), "nf4 in groups of 32 was packed");
    CHECK(!d->ops->weight_pack(d, &unscaled, 1), "nf4 without scales was packed");
    weight_case_free(&c);
    c = weight_random(DT_F8, 2, 64, 16);
    ungrouped = unscaled = c.src;
    ungrouped.group = 24;
    unscaled.scale = NULL;
    CHECK(!d->ops->weight_pack(d, &ungrouped, 1), "fp8 in groups of 24 was packed");
    CHECK(!d->ops->weight_pack(d, &unscaled, 1), "fp8 without scales was packed");
    ((uint8_t *)c.data)[77] = 0xff;
    CHECK(!d->ops->weight_pack(d, &c.src, 1), "fp8 with a NaN was packed");
    weight_case_free(&c);
    CHECK(!d->ops->kv_open(d, &(struct kv_shape){INT32_MAX, INT32_MAX, INT32_MAX, 128, DT_F32}),
          "an absurd cache opened");
    CHECK(!d->ops->alloc(d, SIZE_MAX - 10), "an absurd allocation succeeded");
    unsigned char *p = d->ops->alloc(d, 3 << 20);
    size_t sum = 0;
    for (size_t i = 0; i < 3 << 20; i++) sum += p[i];
    CHECK(p && (uintptr_t)p % 64 == 0 && sum == 0, "memory is not aligned or not zero");
    d->ops->free(d, p);
    d->ops->free(d, NULL);
    dev_clear_error(d);
}

void test_checked(const char *name)
{
    struct dev *d = open_checked(name, 2);
    check_dense(d);
    check_cache(d);
    check_experts(d);
    check_sampling(d);
    check_training(d);
    check_products(d);
    check_memory(d);
    dev_close(d);
}
