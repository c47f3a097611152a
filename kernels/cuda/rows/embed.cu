/* Op embed over a packed table of any weight type: dequantises rows to floats. */
#include "kernels/cuda/gemm/block.cuh"
#include "kernels/cuda/gemm/nf4.cuh"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { EMBED_THREADS = 256 };

/* A packed table, passed to the kernel by value; of block, `data` are the weight's runs. */
struct table {
    enum dtype t;
    const uint8_t *data;
    size_t row_bytes;
    const void *scale;
    int group, n_groups;
    const uint32_t *order; /* of block: the input of each column; NULL: its own number */
};

/* The value of column c, rounded as struct weight_src says; not of block. */
__device__ inline float table_value(const table &w, const nf4_table &code, size_t row, int c)
{
    const uint8_t *data = w.data + row * w.row_bytes;
    size_t scale = row * (size_t)w.n_groups;
    if (w.t == DT_I8)
        return __fmul_rn((float)reinterpret_cast<const int8_t *>(data)[c], static_cast<const float *>(w.scale)[scale]);
    if (w.t == DT_I4) {
        int nibble = data[c / 2] >> (c % 2 * 4) & 15;
        return __fmul_rn((float)(nibble - 8),
                         half_to_float(static_cast<const uint16_t *>(w.scale)[scale + (size_t)(c / w.group)]));
    }
    if (w.t == DT_NF4) {
        int nibble = data[c / 2] >> ((c % 2 ^ 1) * 4) & 15;
        return __fmul_rn(code.v[nibble], static_cast<const float *>(w.scale)[scale + (size_t)(c / w.group)]);
    }
    if (w.t == DT_F8)
        return __fmul_rn(e4m3_to_f32(data[c]), static_cast<const float *>(w.scale)[scale + (size_t)(c / w.group)]);
    return load_float(data, w.t, (size_t)c);
}

template <bool BLOCK>
__global__ void __launch_bounds__(EMBED_THREADS)
    embed_packed_kernel(struct mat out, table w, nf4_table codes, struct mat pos_table, const int32_t *id,
                        const int32_t *pos, float scale)
{
    SMEM(nf4_table, s);
    launch_next_and_wait();
    if constexpr (!BLOCK) share_nf4(s, codes);
    size_t t = blockIdx.x;
    int c = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= out.cols) return;
    float v;
    if constexpr (BLOCK)
        v = block_output(reinterpret_cast<const block_run *>(w.data), id[t]).value(c);
    else
        v = table_value(w, s, (size_t)id[t], c);
    if (BLOCK && w.order) c = (int)w.order[c];
    v = __fmul_rn(v, scale);
    if (pos_table.p) {
        size_t at = (size_t)pos[t] * (size_t)pos_table.ld + (size_t)c;
        v = __fadd_rn(v, load_float(pos_table.p, pos_table.t, at));
    }
    static_cast<float *>(out.p)[t * (size_t)out.ld + (size_t)c] = v;
}

} // namespace

void embed_packed(gpu_dev *d, const struct embed_args *a)
{
    const gpu_weight *w = weight_of(a->w);
    assert(w->cols == a->out.cols);
    table v = {w->t, w->data, w->row_bytes, w->scale, w->group, w->n_groups, w->order};
    nf4_table codes = nf4_values();
    auto kernel = w->t == DT_BLOCK ? embed_packed_kernel<true> : embed_packed_kernel<false>;
    LAUNCH_EARLY(d, "embed", kernel, dim3((unsigned)a->out.rows, blocks_for((size_t)a->out.cols, EMBED_THREADS)),
                 dim3(EMBED_THREADS), sizeof(nf4_table), a->out, v, codes, a->pos_table, a->id, a->pos,
                 a->scale == 0 ? 1.0f : a->scale);
}

} // namespace GPU_NAMESPACE
