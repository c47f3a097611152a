/* The experts' GEMMs: rows sorted by expert, each multiplied by the weight of its expert. How many rows an expert has
 * is only known on the device, so a grid covers every expert, and a block whose expert has no rows ends at once.
 *
 * A warp computes an output (with gate_up, gate and up of it) for the rows of its expert one after another; a row's
 * sums are in an order that depends on K alone. Made for few rows per expert; with many rows weights come from the
 * caches. */
#include "kernels/cuda/act.cuh"
#include "kernels/cuda/gemm/block.cuh"
#include "kernels/cuda/gemm/dot.cuh"
#include "kernels/cuda/gemm/nf4.cuh"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { EXPERT_THREADS = 256, EXPERT_WARPS = EXPERT_THREADS / 32, TABLE = 128 };

/* The weights of up to TABLE experts, in a kernel's parameters. Of block, `data` are the weight's runs: experts may
 * differ in their forms. */
struct expert_table {
    const uint8_t *data[TABLE];
    const void *scale[TABLE];
};

struct expert_args {
    struct mat y, x;
    const float *b;
    const int32_t *start;
    int first, N, K, group, n_groups; /* first: expert of the table's first entry; N: outputs of a weight */
    size_t row_bytes;
    bool gate, round_x;
    enum act_kind act;
    quantised q; /* of x, for int8, int4 and block */
};

/* Values c of a row of a float weight. */
template <enum dtype T>
__device__ inline float value_at(const uint8_t *row, const float *scale, int group, const nf4_table &code, int c)
{
    if constexpr (T == DT_NF4) {
        int nibble = row[c / 2] >> ((c % 2 ^ 1) * 4) & 15;
        return __fmul_rn(code.v[nibble], scale[c / group]);
    } else if constexpr (T == DT_F8) {
        return __fmul_rn(e4m3_to_f32(row[c]), scale[c / group]);
    } else {
        return load_float(row, T, (size_t)c);
    }
}

/* The dot product of output n with quantised values, without the activations' step; the same on every lane. */
template <enum dtype T>
__device__ inline float dot_quantised(const uint8_t *row, const void *scale, const expert_args &a, int n,
                                      const int8_t *q)
{
    int lane = (int)threadIdx.x % 32;
    if constexpr (T == DT_I8) {
        int sum = 0;
        for (int c = lane; c < a.K; c += 32) sum += (int)q[c] * (int)reinterpret_cast<const int8_t *>(row)[c];
        return (float)warp_sum(sum) * static_cast<const float *>(scale)[n];
    } else {
        const uint16_t *scales = static_cast<const uint16_t *>(scale) + (size_t)n * (size_t)a.n_groups;
        float sum = 0;
        for (int c = lane; c < a.K; c += 32) {
            int w = (row[c / 2] >> (c % 2 * 4) & 15) - 8;
            sum = fmaf((float)((int)q[c] * w), half_to_float(scales[c / a.group]), sum);
        }
        return warp_sum(sum);
    }
}

/* Likewise of block weights: a lane has eight columns of each 256, all in one group. */
__device__ inline float dot_block(const uint8_t *runs, const expert_args &a, int n, const int8_t *q)
{
    block_output from(reinterpret_cast<const block_run *>(runs), n);
    const uint8_t *codes = from.codes();
    float sum = 0;
#pragma unroll 1
    for (int v = (int)threadIdx.x % 32; v < a.q.ld / 8; v += 32) {
        uint2 x = reinterpret_cast<const uint2 *>(q)[v], w = block_unpack(*from.form, codes, v);
        block_scales by = from.scales(8 * v);
        int all = dot8({0x01010101u, 0x01010101u}, x), s = dot8(w, x, from.form->zero * all);
        sum = fmaf(-(float)all, by.minimum, fmaf((float)s, by.scale, sum));
    }
    return warp_sum(sum);
}

template <enum dtype T>
__device__ inline float dot_output(const uint8_t *data, const void *scale, const expert_args &a, const nf4_table &code,
                                   int n, int m)
{
    const uint8_t *row = data + (size_t)n * a.row_bytes;
    if constexpr (T == DT_BLOCK) {
        float v = 0;
#pragma unroll 1
        for (int pass = 0; pass <= a.q.outlier[m]; pass++)
            v += dot_block(data, a, n, (pass ? a.q.rest : a.q.q) + (size_t)m * (size_t)a.q.ld) *
                 (pass ? a.q.rest_step[m] : a.q.step[m]);
        return v;
    } else if constexpr (T == DT_I8 || T == DT_I4) {
        float v = dot_quantised<T>(row, scale, a, n, a.q.q + (size_t)m * (size_t)a.q.ld) * a.q.step[m];
        if (a.q.outlier[m])
            v += dot_quantised<T>(row, scale, a, n, a.q.rest + (size_t)m * (size_t)a.q.ld) * a.q.rest_step[m];
        return v;
    } else {
        const float *x = static_cast<const float *>(a.x.p) + (size_t)m * (size_t)a.x.ld;
        const float *scales = static_cast<const float *>(scale) + (size_t)n * (size_t)a.n_groups;
        float sum = 0;
#pragma unroll 2
        for (int c = (int)threadIdx.x % 32; c < a.K; c += 32) {
            float v = a.round_x ? round_to_bf16(x[c]) : x[c];
            sum = fmaf(v, value_at<T>(row, scales, a.group, code, c), sum);
        }
        return warp_sum(sum);
    }
}

/* Block (x, y): outputs x * EXPERT_WARPS ..., of the table's expert y. */
template <enum dtype T>
__global__ void __launch_bounds__(EXPERT_THREADS) experts_kernel(expert_args a, expert_table w, nf4_table codes)
{
    SMEM(nf4_table, code);
    if constexpr (T == DT_NF4) share_nf4(code, codes);
    int e = a.first + (int)blockIdx.y, n = (int)(blockIdx.x * EXPERT_WARPS + threadIdx.x / 32);
    int from = a.start[e], end = a.start[e + 1], outputs = a.gate ? a.N / 2 : a.N;
    if (from == end || n >= outputs) return;
    const uint8_t *data = w.data[blockIdx.y];
    const void *scale = w.scale[blockIdx.y];
    const float *b = a.b ? a.b + (size_t)e * (size_t)a.N : nullptr;
    for (int m = from; m < end; m++) {
        float v = 0, up = 0;
#pragma unroll 1
        for (int row = a.gate ? n + outputs : n; row >= n; row -= outputs) { /* up, then gate */
            up = v;
            v = dot_output<T>(data, scale, a, code, row, m) + (b ? b[row] : 0);
        }
        if (a.gate) v = act_value(v, a.act) * act_up(up, a.act);
        if (threadIdx.x % 32 == 0) static_cast<float *>(a.y.p)[(size_t)m * (size_t)a.y.ld + (size_t)n] = v;
    }
}

typedef void (*experts_fn)(expert_args, expert_table, nf4_table);

experts_fn kernel_of(enum dtype t)
{
    switch (t) {
    case DT_F32: return experts_kernel<DT_F32>;
    case DT_BF16: return experts_kernel<DT_BF16>;
    case DT_F16: return experts_kernel<DT_F16>;
    case DT_I8: return experts_kernel<DT_I8>;
    case DT_I4: return experts_kernel<DT_I4>;
    case DT_BLOCK: return experts_kernel<DT_BLOCK>;
    case DT_F8: return experts_kernel<DT_F8>;
    default: return experts_kernel<DT_NF4>;
    }
}

void run(gpu_dev *d, const char *op, const struct weight *const *w, int n, expert_args *a)
{
    const gpu_weight *shape = weight_of(w[0]);
    if (a->x.rows == 0 || d->head.error.op) return;
    assert(a->x.cols == shape->cols);
    a->N = shape->rows;
    a->K = shape->cols;
    a->group = shape->group;
    a->n_groups = shape->n_groups;
    a->row_bytes = shape->row_bytes;
    a->round_x = (shape->t == DT_BF16 || shape->t == DT_F8) && d->head.bf16_x;
    bool is_int = shape->t == DT_I8 || shape->t == DT_I4 || shape->t == DT_BLOCK;
    if (is_int && !quantise_rows(d, op, &a->x, false, nullptr, &a->q)) return;
    int outputs = a->gate ? a->N / 2 : a->N;
    for (a->first = 0; a->first < n; a->first += TABLE) {
        int some = n - a->first < TABLE ? n - a->first : TABLE;
        expert_table table = {};
        for (int i = 0; i < some; i++) {
            const gpu_weight *one = weight_of(w[a->first + i]);
            assert(!one->order);
            table.data[i] = one->data;
            table.scale[i] = one->scale;
        }
        LAUNCH(d, op, kernel_of(shape->t), dim3(blocks_for((size_t)outputs, EXPERT_WARPS), (unsigned)some),
               dim3(EXPERT_THREADS), shape->t == DT_NF4 ? sizeof(nf4_table) : 0, *a, table, nf4_values());
    }
}

} // namespace

void gpu_experts_linear(struct dev *head, const struct experts_linear_args *a)
{
    expert_args g = {};
    g.y = a->y;
    g.x = a->x;
    g.b = a->b;
    g.start = a->start;
    run(gpu_of(head), "experts_linear", a->w, a->n, &g);
}

void gpu_experts_gate_up(struct dev *head, const struct experts_gate_up_args *a)
{
    expert_args g = {};
    g.y = a->y;
    g.x = a->x;
    g.b = a->b;
    g.start = a->start;
    g.gate = true;
    g.act = a->act;
    run(gpu_of(head), "experts_gate_up", a->w, a->n, &g);
}

} // namespace GPU_NAMESPACE
