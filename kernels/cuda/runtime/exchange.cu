/* Exchanges between devices, enqueued like ops: parts go to scratch memory by NCCL, side by side as blocks, and a
 * kernel puts their rows together. It also counts the exchange, which is how the host sees that it has ended. */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/runtime/exchange.h"

#include <cstdlib>
#include <ctime>

namespace GPU_NAMESPACE {
namespace {

enum { JOIN_THREADS = 256 };

/* The first column of rank r's part. */
__host__ __device__ inline int part_from(int cols, int ranks, int r)
{
    return (int)((long long)cols * r / ranks);
}

__device__ inline void count_one(uint64_t *ended, uint64_t *seen)
{
    *ended += 1;
    store_seen(seen, *ended);
}

/* Row x, part y: whole[x, part] = row x of block y. Blocks follow each other, each (rows, columns of its part). WIDE:
 * all is aligned to 16 bytes. With no rows it only counts. */
template <bool WIDE>
__global__ void __launch_bounds__(JOIN_THREADS)
    join_kernel(struct mat whole, const float *blocks, int ranks, uint64_t *ended, uint64_t *seen)
{
    launch_next_and_wait();
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) count_one(ended, seen);
    if ((int)blockIdx.x >= whole.rows) return;
    int from = part_from(whole.cols, ranks, (int)blockIdx.y);
    int n = part_from(whole.cols, ranks, (int)blockIdx.y + 1) - from;
    const float *in = blocks + (size_t)whole.rows * (size_t)from + (size_t)blockIdx.x * (size_t)n;
    float *out = static_cast<float *>(whole.p) + (size_t)blockIdx.x * (size_t)whole.ld + from;
    int step = (int)blockDim.x;
    if constexpr (WIDE)
        for (int i = (int)threadIdx.x; i < n / 4; i += step)
            reinterpret_cast<float4 *>(out)[i] = reinterpret_cast<const float4 *>(in)[i];
    else
        for (int i = (int)threadIdx.x; i < n; i += step) out[i] = in[i];
}

uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool append(gpu_exchanges *x, const gpu_exchange *one)
{
    if (x->n == x->cap) {
        int cap = x->cap ? 2 * x->cap : 256;
        void *v = realloc(x->v, (size_t)cap * sizeof *x->v);
        if (!v) return false;
        x->v = static_cast<gpu_exchange *>(v);
        x->cap = cap;
    }
    x->v[x->n++] = *one;
    return true;
}

void enqueue_join(gpu_dev *d, const char *op, struct mat whole, const float *blocks)
{
    gpu_comm *c = d->comm;
    int each = whole.cols / c->ranks;
    dim3 grid((unsigned)(whole.rows ? whole.rows : 1), (unsigned)(whole.rows ? c->ranks : 1));
    bool wide = whole.cols % c->ranks == 0 && each % 4 == 0 && whole.ld % 4 == 0 &&
                reinterpret_cast<uintptr_t>(whole.p) % 16 == 0;
    if (wide)
        LAUNCH_EARLY(d, op, (join_kernel<true>), grid, JOIN_THREADS, 0, whole, blocks, c->ranks, c->ended, c->seen);
    else
        LAUNCH_EARLY(d, op, (join_kernel<false>), grid, JOIN_THREADS, 0, whole, blocks, c->ranks, c->ended, c->seen);
}

struct call {
    enum comm_op op;
    struct mat part, whole;
    float *blocks;
    uint64_t sent;
};

/* Of a part whose rows are not adjacent, a copy of which they are, in the rank's block. */
const float *adjacent(gpu_dev *d, const char *op, const call *x)
{
    const struct mat &m = x->part;
    size_t n = (size_t)m.cols * sizeof(float), ld = (size_t)m.ld * sizeof(float);
    if (m.ld == m.cols) return static_cast<const float *>(m.p);
    float *own = x->blocks + (size_t)d->comm->rank * (size_t)m.rows * (size_t)m.cols;
    gpu_check(d, op, cudaMemcpy2DAsync(own, n, m.p, ld, n, (size_t)m.rows, cudaMemcpyDeviceToDevice, d->stream));
    return own;
}

ncclResult_t gather(gpu_dev *d, const call *x, const float *own)
{
    gpu_comm *c = d->comm;
    size_t n = (size_t)x->part.rows * (size_t)x->part.cols;
    return c->f.AllGather(own, x->blocks, n, ncclFloat32, c->nccl, d->stream);
}

ncclResult_t to_first(gpu_dev *d, const call *x)
{
    gpu_comm *c = d->comm;
    size_t rows = (size_t)x->part.rows, n = rows * (size_t)x->part.cols;
    if (c->rank) return c->f.Send(x->part.p, n, ncclFloat32, 0, c->nccl, d->stream);
    ncclResult_t r = c->f.GroupStart(), end;
    for (int i = 1; i < c->ranks && r == ncclSuccess; i++) {
        size_t from = (size_t)part_from(x->whole.cols, c->ranks, i),
               to = (size_t)part_from(x->whole.cols, c->ranks, i + 1);
        r = c->f.Recv(x->blocks + rows * from, rows * (to - from), ncclFloat32, i, c->nccl, d->stream);
    }
    end = c->f.GroupEnd();
    return r == ncclSuccess ? end : r;
}

/* Counts it, or notes it for the graph that is being captured. @return false: the capture cannot count it. */
bool begin(gpu_dev *d, const call *x)
{
    gpu_comm *c = d->comm;
    gpu_exchange one = {x->op, (size_t)x->part.rows * (size_t)x->part.cols * sizeof(float), x->sent};
    if (d->capturing) return append(&c->captured, &one);
    comm_count(c, &one, 1);
    return true;
}

/* The device's error is put aside meanwhile: the other ranks exchange whether this one has failed or not. */
void exchange(gpu_dev *d, call *x)
{
    gpu_comm *c = d->comm;
    const char *op = comm_op_name(x->op);
    size_t bytes = (size_t)x->whole.rows * (size_t)x->whole.cols * sizeof(float);
    bool blocks = x->op != COMM_SEND, measuring = d->measuring, fine = true;
    if (d->lost || !gpu_comm_alive(d, op)) return;
    struct dev_error before = d->head.error;
    dev_clear_error(&d->head);
    d->prequantised.data = nullptr;
    if (d->ordering) c->expected = true;
    if (blocks) x->blocks = static_cast<float *>(gpu_scratch(d, op, AREA_EXCHANGE, bytes));
    if (blocks && !x->blocks) comm_fail(c->host, d->head.error.msg); /* it cannot take part */
    if (!measuring && (x->blocks || !blocks)) {
        uint64_t start = now_ns();
        fine = begin(d, x);
        const float *own = x->op == COMM_ALL_GATHER ? adjacent(d, op, x) : nullptr;
        if (x->op == COMM_RECEIVE)
            gpu_check(d, op,
                      cudaMemcpyAsync(x->blocks, x->part.p, (size_t)x->part.rows * (size_t)x->part.cols * sizeof(float),
                                      cudaMemcpyDeviceToDevice, d->stream));
        if (comm_enter(c)) comm_leave(c, own ? gather(d, x, own) : to_first(d, x));
        if (x->op == COMM_SEND) x->whole.rows = 0;
        enqueue_join(d, op, x->whole, x->blocks);
        if (!fine) dev_fail(&d->head, op, "no memory for a list of exchanges");
        /* a trace waits for every op, by its own table of ops */
        if (!d->capturing && d->head.ops != &d->ops) gpu_settle(d, op);
        if (!d->capturing) comm_note(c->host, x->op, x->sent, start, now_ns());
    }
    if (before.op) d->head.error = before;
}

} // namespace

void gpu_comm_join(struct dev *head, struct mat part, struct mat whole)
{
    gpu_dev *d = gpu_of(head);
    uint64_t bytes = (uint64_t)part.rows * (uint64_t)part.cols * sizeof(float);
    call x = {COMM_ALL_GATHER, part, whole, nullptr, bytes * (uint64_t)(d->comm->ranks - 1)};
    exchange(d, &x);
}

void gpu_comm_collect(struct dev *head, struct mat part, struct mat whole)
{
    gpu_dev *d = gpu_of(head);
    uint64_t bytes = (uint64_t)part.rows * (uint64_t)part.cols * sizeof(float);
    call x = {d->comm->rank ? COMM_SEND : COMM_RECEIVE, part, whole, nullptr, d->comm->rank ? bytes : 0};
    exchange(d, &x);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* NCCL requires that an operation is captured by all ranks or by none. */
bool gpu_comm_captured(gpu_dev *d, bool ok, gpu_exchanges **held)
{
    gpu_comm *c = d->comm;
    *held = nullptr;
    if (!c || !c->expected) return ok;
    c->expected = false;
    if (ok && (*held = static_cast<gpu_exchanges *>(malloc(sizeof **held)))) **held = c->captured;
    if (*held) c->captured = {};
    c->captured.n = 0;
    return comm_all_ok(c->host, *held != nullptr);
}

void gpu_comm_captures(gpu_dev *d)
{
    if (d->comm) d->comm->captured.n = 0;
}

void gpu_comm_replays(gpu_dev *d, const gpu_exchanges *held)
{
    uint64_t now = now_ns();
    comm_count(d->comm, held->v, held->n);
    for (int i = 0; i < held->n; i++) comm_note(d->comm->host, held->v[i].op, held->v[i].sent, now, now);
}

void gpu_exchanges_free(gpu_exchanges *x)
{
    if (x) free(x->v);
    free(x);
}

} // namespace GPU_NAMESPACE
