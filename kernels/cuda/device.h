/* Inside the cuda device: its state, its weights and cache, and what its files use of each other.
 *
 * Ops run on the engine's thread and only enqueue into one stream.  They allocate nothing: what they need beside their
 * arguments comes from scratch, whose areas belong to one op's kernels until that op's work is done, and stream order
 * makes that safe.  Device pointers are never read here: what a launcher must know, it takes from the args. */
#ifndef TANDEM_KERNELS_CUDA_DEVICE_H
#define TANDEM_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/gpu.h"

#include <cassert>

namespace GPU_NAMESPACE {

/* Areas of scratch, so that the pieces of one op do not share memory. */
enum area { AREA_X, AREA_Y, AREA_W, AREA_ATTN, AREA_SAMPLE, AREA_SUM, AREA_NORM, AREA_COUNT };

struct gpu_pending; /* results that finish hands to the caller's memory */
struct gpu_block;
struct gpu_held; /* pieces of memory that allocations are made of */
struct gpu_graph;

/* What the last norm quantised of its output for the product that comes next (quantise.cu): rows x, in the order
 * even_odd, lie in AREA_NORM at `place`; NULL: nothing.  Dropped by whatever may write over x or move AREA_NORM: the
 * table of ops (device.cu), copies and memory (memory.cu), replay. */
struct gpu_ahead {
    struct mat x;
    bool even_odd;
    void *place;
};

struct gpu_dev {
    struct dev head;
    struct dev_ops ops;
    cudaStream_t stream;
    int index, n_sm;
    size_t shared_max;    /* bytes that a block may ask for */
    bool early;           /* kernels may begin before those before them end: LAUNCH_EARLY */
    bool weights_written; /* by a kernel: the next launch waits for it whole */
    bool lost;            /* after an error that stays: nothing more is asked of it */
    bool measuring;       /* in reserve: ops ask for memory and launch nothing */
    bool capturing;       /* in replay: what is enqueued is recorded */
    bool sealed;          /* scratch grows no more */
    size_t memory_bytes;  /* as opened */
    double memory_fraction;
    size_t total, budget;               /* of the device's memory */
    size_t used, scratch_used, largest; /* as dev_memory says: read by any thread */
    struct gpu_block *blocks;
    size_t n_blocks, cap_blocks;
    struct gpu_held *held; /* NULL: not yet */
    struct {
        void *p;
        size_t bytes, wanted; /* wanted: the most that was seen in reserve */
        void *more;           /* until trim: for what p is too small for */
        size_t more_bytes;
    } scratch[AREA_COUNT];
    /* what the host sends and gets: pinned memory and as much device memory, handed out from the front */
    uint8_t *pinned, *staged;
    size_t stage_at;
    cudaEvent_t half_read[2]; /* recorded when a half is left: the copies out of its pinned memory are done */
    struct gpu_pending *pending;
    int n_pending;
    struct gpu_ahead ahead;
    struct gpu_graph *graphs;
    int n_graphs;
    uint64_t graph_clock;
    const struct gpu_weight **order; /* of a step that is recorded: the weights that its products take, in order */
    int n_order, cap_order, order_at;
    bool ordering; /* measuring, for the sake of that */
    size_t l2_bytes;
    void *lt; /* matrix products: lt.h */
};

static inline gpu_dev *gpu_of(struct dev *d)
{
    return reinterpret_cast<gpu_dev *>(d);
}

/* Bytes of device memory in an area; the contents are those of an earlier op.  NULL: the device has failed.  In reserve
 * some other address, and nothing may be done with it but by LAUNCH; what is enqueued otherwise (cudaMemsetAsync, a
 * library) first asks d->measuring. */
void *gpu_scratch(gpu_dev *, const char *op, enum area, size_t bytes);

/* A device copy of host memory, in stream order; good for what is enqueued before the next finish. NULL: failed. */
const void *gpu_stage(gpu_dev *, const char *op, const void *host, size_t bytes);
/* Device memory that is copied to `host` when the device has come there, at the latest in finish. NULL: failed. */
void *gpu_stage_out(gpu_dev *, const char *op, void *host, size_t bytes);
/* Enqueues the copies of what gpu_stage_out gave; after the kernels that write it. */
void gpu_send_outs(gpu_dev *);

/* false, and the device fails with op's name, when e is an error */
bool gpu_check(gpu_dev *, const char *op, cudaError_t e);

/* false when the device has failed; makes it the calling thread's otherwise */
bool gpu_alive(gpu_dev *, const char *op);
/* Before a launch: false when the device has failed, or nothing is to be launched.  Raises the kernel's limit of shared
 * memory when it needs more than 48 KiB. */
bool gpu_ready(gpu_dev *, const char *op, const void *kernel, size_t smem);

/* Whether the launch that comes now may be early. */
bool gpu_early(gpu_dev *);

/* LAUNCH(d, "op", kernel, grid, block, bytes of shared memory, arguments...); a template in parentheses.  Nothing is
 * launched by a device that has failed.  The grid may not be empty. */
#ifdef __CUDACC__
#define LAUNCH(d, op, kernel, grid, block, smem, ...)                                                                  \
    do {                                                                                                               \
        if (gpu_ready(d, op, reinterpret_cast<const void *>(kernel), smem)) {                                          \
            kernel<<<(grid), (block), (smem), (d)->stream>>>(__VA_ARGS__);                                             \
            gpu_check(d, op, cudaGetLastError());                                                                      \
        }                                                                                                              \
    } while (0)
#else
#define LAUNCH(d, op, kernel, grid, block, smem, ...)                                                                  \
    do {                                                                                                               \
        if (gpu_ready(d, op, reinterpret_cast<const void *>(kernel), smem)) {                                          \
            simt_runtime::launch((d)->stream, (grid), (block), (smem), kernel, __VA_ARGS__);                           \
            gpu_check(d, op, cudaGetLastError());                                                                      \
        }                                                                                                              \
    } while (0)
#endif

/* As LAUNCH, of a kernel that may begin before those before it have ended (CUDA's programmatic dependent launch), where
 * the device can do that: from sm_90 on, and unless TANDEM_GPU_EARLY=0 forbids it.
 *
 * Every thread of such a kernel calls wait_for_before() (ptx.cuh) before it ends, and before it reads or writes
 * anything that another kernel may have written or may still read; simt sees to the first.  Before it, packed weights
 * may be read, which no kernel of a step writes, and what only the host writes: copies are waited for.  Every thread,
 * and not only those that need it: the kernel after this one waits for this one's end alone, and that has to mean the
 * end of all before.  For the same reason a kernel launched by LAUNCH, which begins when what is before it has ended,
 * needs no wait.  let_next_begin() is for the beginning of a kernel: what then runs beside it takes only what is free.
 * take_turn() is both. */
#ifdef __CUDACC__
#define LAUNCH_EARLY(d, op, kernel, grid, block, smem, ...)                                                            \
    do {                                                                                                               \
        if (gpu_ready(d, op, reinterpret_cast<const void *>(kernel), smem))                                            \
            gpu_check(d, op, launch_early(d, (grid), (block), (smem), kernel, __VA_ARGS__));                           \
    } while (0)

template <class... P, class... A>
cudaError_t launch_early(gpu_dev *d, dim3 grid, dim3 block, size_t smem, void (*kernel)(P...), const A &...args)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute a = {};
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid;
    c.blockDim = block;
    c.dynamicSmemBytes = smem;
    c.stream = d->stream;
    c.attrs = &a;
    c.numAttrs = gpu_early(d) ? 1 : 0;
    cudaError_t e = cudaLaunchKernelEx(&c, kernel, P(args)...);
    cudaGetLastError();
    return e;
}
#else
#define LAUNCH_EARLY(d, op, kernel, grid, block, smem, ...)                                                            \
    do {                                                                                                               \
        if (gpu_ready(d, op, reinterpret_cast<const void *>(kernel), smem)) {                                          \
            simt_runtime::launch_as((d)->stream, gpu_early(d), (grid), (block), (smem), kernel, __VA_ARGS__);          \
            gpu_check(d, op, cudaGetLastError());                                                                      \
        }                                                                                                              \
    } while (0)
#endif

static inline unsigned blocks_for(size_t n, int per_block)
{
    return (unsigned)((n + (size_t)per_block - 1) / (size_t)per_block);
}

/* ---- weights (weight.cu) --------------------------------------------------------------------------------------- */

/* Rows as they come, outputs of gate before those of up, padded with zeros to `row_bytes`, a multiple of 16:
 *   f32, bf16, f16: values.  int8: values, scale f32 [rows].  nf4: as in weight_src, scale f32 [rows][cols / 64].
 *   int4: as in weight_src, groups of the last columns padded; scale f16 [rows][n_groups]. */
struct gpu_weight {
    enum dtype t;
    int rows, cols, group, n_groups; /* group: of int4 and nf4, else 0; n_groups: scales of a row, 0 for floats */
    bool gate_up;
    size_t row_bytes, bytes; /* bytes: of everything */
    uint8_t *data;           /* (rows, row_bytes) */
    const void *scale;       /* within data */
};

static inline const gpu_weight *weight_of(const struct weight *w)
{
    return reinterpret_cast<const gpu_weight *>(w);
}

/* The weight that the product after this one, which takes w, will take in the step that is being recorded; NULL: none,
 * or not known.  Called once by each product. */
const gpu_weight *gpu_weight_after(gpu_dev *, const gpu_weight *w);

struct weight *gpu_weight_pack(struct dev *, const struct weight_src *parts, int n_parts);
void gpu_weight_free(struct dev *, struct weight *);
void gpu_weight_update(struct dev *, struct weight *, const struct weight_src *parts, int n_parts, int piece,
                       int pieces);
size_t gpu_weight_bytes(const struct weight *);

/* ---- the KV cache (kv.cu) -------------------------------------------------------------------------------------- */

/* For each (layer, page, KV head) a block: K [KV_PAGE][dim_pad], V likewise, then for int8 their scales, f32 [2]
 * [KV_PAGE].  dim_pad: head_dim to a multiple of 16 bytes; the padding is zero. */
struct gpu_kv {
    struct kv_shape shape;
    int dim_pad;
    size_t v_at, scale_at, block_bytes; /* within a block; multiples of 16 */
    uint8_t *data;
    size_t bytes;
};

static inline const gpu_kv *kv_of(const struct kv *kv)
{
    return reinterpret_cast<const gpu_kv *>(kv);
}

size_t gpu_kv_page_bytes(const struct kv_shape *);
struct kv *gpu_kv_open(struct dev *, const struct kv_shape *);
void gpu_kv_close(struct dev *, struct kv *);

/* ---- memory and ops -------------------------------------------------------------------------------------------- */

void *gpu_alloc(struct dev *, size_t bytes);
void gpu_free(struct dev *, void *);
void gpu_upload(struct dev *, void *device, const void *host, size_t bytes);
void gpu_download(struct dev *, void *host, const void *device, size_t bytes);
void gpu_memory(struct dev *, struct dev_memory *);
void gpu_zero(struct dev *, void *, size_t bytes);
int gpu_reserve(struct dev *, void (*fn)(void *), void *ctx);
void gpu_hold(struct dev *);
void gpu_trim(struct dev *);
void gpu_replay(struct dev *, uint64_t key, void (*fn)(void *), void *ctx);

/* Waits for the device and hands results out.  false: it has failed. */
bool gpu_settle(gpu_dev *, const char *op);
void gpu_forget_staged(gpu_dev *); /* after a failure: no results */
bool gpu_memory_open(gpu_dev *, char why[160]);
void gpu_memory_close(gpu_dev *); /* everything it gave, too */
void gpu_graphs_close(gpu_dev *);
enum {
    GRAPHS_MAX = 128
}; /* kept: some twenty sizes of a step (engine/model/step_batch.h) for six lengths of contexts */

#define X(op) void gpu_##op(struct dev *, const struct op##_args *);
OPS(X)
#undef X

} // namespace GPU_NAMESPACE

#endif
