/* Internals of the cuda device: its state, its weights and cache, and the functions that its files share.
 *
 * Ops run on the engine's thread and only enqueue into one stream. They allocate nothing: memory beside their
 * arguments comes from scratch, whose areas belong to the op's kernels until its work is done; stream order makes
 * the reuse safe. Device pointers are never read on the host: a launcher knows only what is in the args. */
#ifndef TANDEM_KERNELS_CUDA_DEVICE_H
#define TANDEM_KERNELS_CUDA_DEVICE_H

#include "kernels/cuda/gpu.h"

#include <cassert>

namespace GPU_NAMESPACE {

/* Areas of scratch, one for each use that must not share memory with the others. */
enum area { AREA_X, AREA_Y, AREA_W, AREA_ATTN, AREA_SAMPLE, AREA_SUM, AREA_NORM, AREA_EXCHANGE, AREA_COUNT };

struct gpu_pending; /* results that finish copies to the caller's memory */
struct gpu_block;
struct block_run;
struct gpu_held; /* memory reserved by hold, from which allocations are made */
struct gpu_graph;
struct gpu_comm;      /* exchanges with the devices of other ranks */
struct gpu_exchanges; /* those that a graph holds */

/* What the last norm quantised of its output for the next GEMM (quantise.cu): the rows of x, in the order even_odd,
 * are in AREA_NORM at `data`; NULL: nothing. Dropped by whatever may overwrite x or move AREA_NORM: the table of
 * ops (device.cu), copies and memory (memory.cu), replay. */
struct gpu_prequantised {
    struct mat x;
    bool even_odd;
    void *data;
};

struct gpu_dev {
    struct dev head;
    struct dev_ops ops;
    cudaStream_t stream;
    int index, n_sm;
    size_t shared_max;    /* most shared memory of a block, in bytes */
    bool early;           /* programmatic dependent launch is available: LAUNCH_EARLY */
    bool weights_written; /* a kernel has written weights: the next launch must wait for its end */
    bool lost;            /* after a permanent error: CUDA is not called any more */
    bool measuring;       /* in reserve (dry run): ops record scratch sizes and launch nothing */
    bool capturing;       /* in replay: a graph is being captured */
    bool sealed;          /* scratch may not grow any more */
    size_t memory_bytes;  /* as opened */
    double memory_fraction;
    size_t total, budget;               /* of the device's memory */
    size_t used, scratch_used, largest; /* as in dev_memory: read by any thread */
    struct gpu_block *blocks;
    size_t n_blocks, cap_blocks;
    struct gpu_held *held; /* NULL: not yet */
    struct {
        void *p;
        size_t bytes, wanted; /* wanted: the largest request seen in reserve */
        void *more;           /* until trim: for requests larger than p */
        size_t more_bytes;
    } scratch[AREA_COUNT];
    /* Staging for transfers from and to the host: pinned memory and as much device memory, allocated from the front. */
    uint8_t *pinned, *staged;
    size_t stage_at;
    cudaEvent_t half_read[2]; /* recorded when a half is left: the copies out of its pinned memory have completed */
    struct gpu_pending *pending;
    int n_pending;
    struct gpu_prequantised prequantised;
    struct gpu_graph *graphs;
    int n_graphs;
    uint64_t graph_clock;
    const struct gpu_weight **order; /* weights of the GEMMs of the step being captured, in order */
    int n_order, cap_order, order_at;
    bool ordering; /* measuring, only to record `order` */
    size_t l2_bytes;
    void *lt;       /* cuBLASLt state: lt.h */
    gpu_comm *comm; /* NULL: none */
};

static inline gpu_dev *gpu_of(struct dev *d)
{
    return reinterpret_cast<gpu_dev *>(d);
}

/* Device memory of an area; it holds what an earlier op left there. NULL: the device has failed. In reserve the
 * result is some other address that may only be passed to LAUNCH; whatever enqueues by other means (cudaMemsetAsync,
 * a library) must check d->measuring first. */
void *gpu_scratch(gpu_dev *, const char *op, enum area, size_t bytes);

enum { GPU_STAGE_MOST = 16 << 20 }; /* bytes that gpu_stage takes at once */

/* A device copy of host memory, in stream order; valid for what is enqueued before the next finish. NULL: the device
 * has failed. */
const void *gpu_stage(gpu_dev *, const char *op, const void *host, size_t bytes);
/* Device memory that will be copied to `host`, at the latest in finish. NULL: the device has failed. */
void *gpu_stage_out(gpu_dev *, const char *op, void *host, size_t bytes);
/* Enqueues the copies of the memory that gpu_stage_out gave; call after the kernels that write it. */
void gpu_send_outs(gpu_dev *);

/* @return false, and the device fails with op's name, when e is an error. */
bool gpu_check(gpu_dev *, const char *op, cudaError_t e);

/* @return false when the device has failed; otherwise makes it the calling thread's current device. */
bool gpu_alive(gpu_dev *, const char *op);
/* Called before a launch. @return false when the device has failed or nothing is to be launched. Raises the kernel's
 * limit of shared memory when it needs more than 48 KiB. */
bool gpu_ready(gpu_dev *, const char *op, const void *kernel, size_t smem);

/* Whether the next launch may use programmatic dependent launch. */
bool gpu_early(gpu_dev *);

/* LAUNCH(d, "op", kernel, grid, block, bytes of shared memory, arguments...); a template-id in parentheses. Launches
 * nothing when the device has failed. The grid must not be empty. */
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

/* Like LAUNCH, for a kernel that may begin before the preceding kernels have ended (CUDA's programmatic dependent
 * launch), where the device supports that: from sm_90 on, unless TANDEM_GPU_EARLY=0 forbids it.
 *
 * Every thread of such a kernel calls wait_for_previous() (ptx.cuh) before it ends, and before it reads or writes
 * anything that another kernel may have written or may still read; simt checks the first. Before the wait it may
 * read packed weights, which no kernel of a step writes, and what only the host writes, because copies are waited
 * for. Every thread must wait, not only those that need to: the next kernel waits for the end of this one alone,
 * which must imply the end of all before. For the same reason a kernel launched by LAUNCH, which begins when
 * everything before it has ended, needs no wait. launch_next() belongs at the beginning of a kernel: the next
 * kernel then takes only resources that are free. launch_next_and_wait() is both calls. */
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

/* Rows in their order, outputs of gate before those of up, padded with zeros to `row_bytes`, a multiple of 16:
 *   f32, bf16, f16: values.  int8: values, scale f32 [rows].  nf4: as in weight_src, scale f32 [rows][cols / 64].
 *   int4: as in weight_src, groups of the last columns padded; scale f16 [rows][n_groups].
 *   block: see gemm/block.h; group, n_groups, row_bytes and scale are 0. */
struct gpu_weight {
    enum dtype t;
    int rows, cols, group, n_groups; /* group: of int4, nf4 and fp8, else 0; n_groups: scales of a row, 0 for floats */
    bool gate_up;
    size_t row_bytes, bytes; /* bytes: of the whole allocation */
    uint8_t *data;           /* (rows, row_bytes) */
    const void *scale;       /* within data */
    struct block_run *runs;  /* of block: in host memory, owned; data begins with a copy of them */
    int n_runs;
    const uint32_t *order; /* of block with an order of columns: (cols), within data; else NULL */
};

static inline const gpu_weight *weight_of(const struct weight *w)
{
    return reinterpret_cast<const gpu_weight *>(w);
}

/* The weight of the GEMM that follows the GEMM with w in the step being captured; NULL: none, or not known. Called
 * once by each GEMM. */
const gpu_weight *gpu_weight_after(gpu_dev *, const gpu_weight *w);

struct weight *gpu_weight_pack(struct dev *, const struct weight_src *parts, int n_parts);
void gpu_weight_free(struct dev *, struct weight *);
void gpu_weight_update(struct dev *, struct weight *, const struct weight_src *parts, int n_parts, int chunk,
                       int chunks);
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
void gpu_kv_save(struct dev *, const struct kv *, int page, void *host);
void gpu_kv_load(struct dev *, struct kv *, int page, const void *host);

/* ---- memory and ops -------------------------------------------------------------------------------------------- */

void *gpu_alloc(struct dev *, size_t bytes);
void gpu_free(struct dev *, void *);
void *gpu_alloc_host(struct dev *, size_t bytes);
void gpu_free_host(struct dev *, void *);
void gpu_upload(struct dev *, void *device, const void *host, size_t bytes);
void gpu_download(struct dev *, void *host, const void *device, size_t bytes);
void gpu_memory(struct dev *, struct dev_memory *);
void gpu_zero(struct dev *, void *, size_t bytes);
int gpu_reserve(struct dev *, void (*fn)(void *), void *ctx);
void gpu_hold(struct dev *);
void gpu_trim(struct dev *);
void gpu_replay(struct dev *, uint64_t key, void (*fn)(void *), void *ctx);

/* Waits for the device and copies results to the caller's memory. @return false when the device has failed. */
bool gpu_settle(gpu_dev *, const char *op);
void gpu_forget_staged(gpu_dev *); /* after a failure: drops pending results */
bool gpu_memory_open(gpu_dev *, char why[160]);
void gpu_memory_close(gpu_dev *); /* also frees everything allocated from it */
void gpu_graphs_close(gpu_dev *);
enum {
    GRAPHS_MAX = 128
}; /* graphs kept: about twenty batch sizes of a step (engine/model/step_batch.h) for six context lengths */

/* ---- exchanges (exchange.cu, nccl.cu): comm_device.h ----------------------------------------------------------- */

bool gpu_comm_prepare(struct dev *, struct comm_device_id *, char why[COMM_WHY_BYTES]);
bool gpu_comm_open(struct dev *, struct comm *, const struct comm_device_id *, char why[COMM_WHY_BYTES]);
void gpu_comm_close(struct dev *);
const char *gpu_comm_name(const struct dev *);
void gpu_comm_join(struct dev *, struct mat part, struct mat whole);
void gpu_comm_collect(struct dev *, struct mat part, struct mat whole);

/* @return false when the exchanges have failed, and the device with them. gpu_comm_ended: also asks the library whether
 * those have that were waited for. */
bool gpu_comm_alive(gpu_dev *, const char *op);
bool gpu_comm_ended(gpu_dev *, const char *op);
void gpu_comm_captures(gpu_dev *); /* at the beginning of a capture */
/* Each rank calls it at the end of a capture. @return whether all have captured; then *held, to be freed by
 * gpu_exchanges_free, are the graph's exchanges, NULL without. */
bool gpu_comm_captured(gpu_dev *, bool ok, gpu_exchanges **held);
void gpu_comm_replays(gpu_dev *, const gpu_exchanges *); /* before the graph with them is launched */
void gpu_exchanges_free(gpu_exchanges *);

#define X(op) void gpu_##op(struct dev *, const struct op##_args *);
OPS(X)
#undef X

} // namespace GPU_NAMESPACE

#endif
