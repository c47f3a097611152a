/* GEMMs of many rows with int8 weights by cuBLASLt, which uses newer GPUs better than the instructions of mma_int:
 * int32 sums into scratch, as many outputs at a time as stay in L2, then a kernel that computes y from them with the
 * operations of mma_int, and so with its bits. Which of the two is faster is measured with the algorithms (lt.h);
 * until then the library is used. */
#include "kernels/cuda/gemm/lt.h"
#include "kernels/cuda/gemm/packed_gemm.h"
#include "kernels/cuda/warp.cuh"

namespace GPU_NAMESPACE {
namespace {

enum { OWN, LIBRARY }; /* the two implementations of a race */

enum {
#ifdef __CUDACC__
    SUM_BYTES = 16 << 20,
#else
    SUM_BYTES = 64 << 10, /* small, so that small shapes are divided too */
#endif
    SLICE_COLS = 128, /* outputs of a slice are a multiple of this */
    LEAST_COLS = 64,  /* mma_int handles fewer outputs */
    THREADS = 256
};

/* y = sums * scales; a thread has columns 4 c .. 4 c + 3 of a row. Adds the bias too, unless residuals of outlier
 * rows will be added. VEC: y is written 16 bytes at a time. */
template <bool VEC>
__global__ void __launch_bounds__(THREADS)
    scale_kernel(packed_gemm p, const int *sums, int ld, const float *step, const int *outlier)
{
    int c = 4 * (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (c >= p.N) return;
    size_t m = blockIdx.x;
    int4 sum = *reinterpret_cast<const int4 *>(sums + m * (size_t)ld + c);
    const float *scale = static_cast<const float *>(p.scale) + c, by = step[m];
    const float *bias = p.bias && !outlier[m] ? p.bias + c : nullptr;
    int s[4] = {sum.x, sum.y, sum.z, sum.w};
    vec4 y;
    UNROLL for (int i = 0; i < 4; i++)
    {
        y.v[i] = __fmul_rn(__fmul_rn((float)s[i], scale[i]), by);
        if (bias) y.v[i] = __fadd_rn(y.v[i], bias[i]);
    }
    store4<VEC>(p.y + m * (size_t)p.ldy + c, y, 4);
}

/* The outputs first .. first + n - 1 of p. */
packed_gemm outputs(const packed_gemm *p, int first, int n)
{
    packed_gemm q = *p;
    q.w += (size_t)first * p->row_bytes;
    q.scale = static_cast<const float *>(p->scale) + first;
    q.bias = p->bias ? p->bias + first : nullptr;
    q.y += first;
    q.N = n;
    return q;
}

/* Number of outputs whose sums are in scratch at a time; divides N into slices of about equal size. */
int slice_cols(int M, int N)
{
    int most = SUM_BYTES / (int)sizeof(int) / M / SLICE_COLS * SLICE_COLS;
    if (most < SLICE_COLS) most = SLICE_COLS;
    int slices = (N + most - 1) / most;
    return (N + slices * SLICE_COLS - 1) / (slices * SLICE_COLS) * SLICE_COLS;
}

int *take_sums(gpu_dev *d, const char *op, int M, int cols)
{
    size_t bytes = (size_t)M * (size_t)cols * sizeof(int), least = (size_t)M * SLICE_COLS * sizeof(int);
    if (d->measuring)
        bytes = least > SUM_BYTES ? least : (size_t)SUM_BYTES; /* upper bound over all slices and smaller M */
    return static_cast<int *>(gpu_scratch(d, op, AREA_W, bytes));
}

/* K includes the zero padding: both operands have it, up to a weight's row. */
lt_args sums_of(const packed_gemm *p, const quantised *x, int *sums, int cols)
{
    lt_args a = {};
    a.t = DT_I8;
    a.M = p->M, a.N = p->N, a.K = (int)p->row_bytes;
    a.a = x->q, a.lda = x->ld;
    a.b = p->w, a.ldb = (int)p->row_bytes, a.tb = true;
    a.c = sums, a.ldc = cols;
    a.alpha = 1;
    a.whole = cols;
    return a;
}

/* Outputs in multiples of four, as the library demands; up to three remaining ones go to mma_int. @return false,
 * with nothing enqueued, when the library does not support the shape. */
bool by_library(gpu_dev *d, const char *op, const packed_gemm *p, const quantised *x)
{
    int N = p->N / 4 * 4, cols = slice_cols(p->M, N);
    int *sums = take_sums(d, op, p->M, cols);
    if (!sums) return true; /* the device has failed */
    for (int n = 0; n < N; n += cols) {
        packed_gemm some = outputs(p, n, N - n < cols ? N - n : cols);
        lt_args a = sums_of(&some, x, sums, cols);
        if (n == 0 && !lt_offers(d, op, &a)) return false;
        if (!lt_multiply(d, op, &a)) return true;
        int threads = row_threads(some.N);
        dim3 grid((unsigned)p->M, blocks_for((size_t)some.N, 4 * threads));
        bool vec = row_vectors(some.y, some.N, some.ldy);
        auto kernel = vec ? scale_kernel<true> : scale_kernel<false>;
        LAUNCH(d, op, kernel, grid, dim3((unsigned)threads), 0, some, sums, cols, x->step, x->outlier);
    }
    packed_gemm fours = outputs(p, 0, N), left = outputs(p, N, p->N - N);
    mma_int_rests(d, op, &fours, x);
    if (left.N) mma_int(d, op, DT_I8, &left, x);
    return true;
}

/* ---- choosing the implementation -------------------------------------------------------------------------------- */

size_t round256(size_t n)
{
    return (n + 255) / 256 * 256;
}

/* The shape of a race in memory of its own, without outliers; *bytes: the size of that memory. */
void shape_in(const lt_race *r, uint8_t *memory, packed_gemm *p, quantised *x, size_t *bytes)
{
    size_t at = 0, ld = ((size_t)r->K + 127) / 128 * 128, row_bytes = ((size_t)r->K + 15) / 16 * 16;
    auto take = [&](size_t n) {
        uint8_t *got = memory ? memory + at : nullptr;
        at += round256(n);
        return got;
    };
    size_t M = (size_t)r->M, N = (size_t)r->N;
    *p = {};
    p->w = take(N * row_bytes);
    p->row_bytes = row_bytes;
    p->scale = take(N * sizeof(float));
    p->M = r->M, p->N = p->whole = r->N, p->K = r->K;
    p->y = reinterpret_cast<float *>(take(M * N * sizeof(float)));
    p->ldy = r->N;
    int8_t *q = reinterpret_cast<int8_t *>(take(M * ld));
    float *step = reinterpret_cast<float *>(take(M * sizeof(float)));
    int *outlier = reinterpret_cast<int *>(take(M * sizeof(int)));
    *x = {q, q, step, step, outlier, (int)ld};
    *bytes = at;
}

void run_race(gpu_dev *d, const char *op, const lt_race *r, uint8_t *memory, int way)
{
    packed_gemm p;
    quantised x;
    size_t bytes;
    shape_in(r, memory, &p, &x, &bytes);
    if (!gpu_check(d, op, cudaMemsetAsync(const_cast<int *>(x.outlier), 0, (size_t)r->M * sizeof(int), d->stream)))
        return;
    if (way == OWN || !by_library(d, op, &p, &x)) mma_int(d, op, DT_I8, &p, &x);
}

} // namespace

void many_int(gpu_dev *d, const char *op, enum dtype t, const packed_gemm *p, const quantised *x)
{
    if (t == DT_I8 && p->M >= MANY_LT_ROWS && p->N >= LEAST_COLS) {
        lt_race r = {p->M, p->N, p->K, 0, run_race};
        packed_gemm shape;
        quantised rows;
        shape_in(&r, nullptr, &shape, &rows, &r.bytes);
        if (lt_faster(d, &r) != OWN && by_library(d, op, p, x)) return;
    }
    mma_int(d, op, t, p, x);
}

} // namespace GPU_NAMESPACE
