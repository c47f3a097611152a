/* CUDA graphs of decode steps. A step with the same number of rows enqueues the same work each time, so it is
 * captured once and then launched as a graph, which costs the host one call instead of some hundred. Before the
 * capture the ops run once without launching, to record the order of weights: a small GEMM prefetches the beginning
 * of the next weight while it waits. */
#include "kernels/cuda/device.h"

#include <cstdlib>

namespace GPU_NAMESPACE {
struct gpu_graph {
    uint64_t key, used_at;
    bool tried;           /* capture was attempted */
    cudaGraphExec_t exec; /* NULL: seen once, or cannot be captured */
    gpu_exchanges *held;
};

namespace {

gpu_graph *find(gpu_dev *d, uint64_t key)
{
    for (int i = 0; i < d->n_graphs; i++)
        if (d->graphs[i].key == key) return &d->graphs[i];
    return nullptr;
}

void forget(gpu_graph *g)
{
    if (g->exec) cudaGraphExecDestroy(g->exec);
    gpu_exchanges_free(g->held);
    g->exec = nullptr;
    g->held = nullptr;
}

/* A free slot, or that of the least recently used graph, which is no longer running. */
gpu_graph *place(gpu_dev *d)
{
    if (!d->graphs && !(d->graphs = static_cast<gpu_graph *>(calloc(GRAPHS_MAX, sizeof *d->graphs)))) return nullptr;
    if (d->n_graphs < GRAPHS_MAX) return &d->graphs[d->n_graphs++];
    gpu_graph *oldest = d->graphs;
    for (int i = 1; i < GRAPHS_MAX; i++)
        if (d->graphs[i].used_at < oldest->used_at) oldest = &d->graphs[i];
    forget(oldest);
    return oldest;
}

/* Records d->order for what fn enqueues. Restores the staging cursor, because the dry run advances it over memory
 * whose copies may still be running, without waiting for them. */
void note_order(gpu_dev *d, void (*fn)(void *), void *ctx)
{
    size_t stage_at = d->stage_at;
    d->n_order = 0;
    d->measuring = d->ordering = true;
    fn(ctx);
    d->measuring = d->ordering = false;
    d->stage_at = stage_at;
    d->prequantised.data = nullptr;
}

/* @return NULL when the work cannot be captured; nothing was enqueued then, and the device has not failed. */
cudaGraphExec_t record_once(gpu_dev *d, void (*fn)(void *), void *ctx)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    d->order_at = 0;
    gpu_comm_captures(d);
    if (cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        cudaGetLastError();
        return nullptr;
    }
    d->capturing = true;
    fn(ctx);
    d->capturing = false;
    d->prequantised.data = nullptr;
    cudaError_t e = cudaStreamEndCapture(d->stream, &graph);
    if (!e && graph && !d->head.error.op) e = cudaGraphInstantiate(&exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    /* an error of the capture: the ops are enqueued again and report their own */
    if (!d->lost) dev_clear_error(&d->head);
    return e ? nullptr : exec;
}

/* Likewise, with programmatic dependent launches (LAUNCH_EARLY), or without when CUDA does not support them in this
 * graph. After a failed capture weights_written is restored, because nothing has waited for written weights. */
cudaGraphExec_t record(gpu_dev *d, void (*fn)(void *), void *ctx)
{
    bool early = d->early, written = d->weights_written;
    note_order(d, fn, ctx);
    if (!d->lost) dev_clear_error(&d->head); /* as after the capture */
    cudaGraphExec_t exec = record_once(d, fn, ctx);
    if (!exec && early && !d->lost) {
        d->early = false;
        exec = record_once(d, fn, ctx);
        d->early = early;
    }
    if (!exec) d->weights_written = written;
    return exec;
}

void replay(gpu_dev *d, uint64_t key, void (*fn)(void *), void *ctx)
{
    gpu_graph *g = find(d, key);
    bool again = g != nullptr;
    if (!g && (g = place(d))) *g = {key, 0, false, nullptr, nullptr};
    if (g) g->used_at = ++d->graph_clock;
    if (again && !g->tried) {
        g->tried = true;
        g->exec = record(d, fn, ctx);
        if (!gpu_comm_captured(d, g->exec != nullptr, &g->held)) forget(g);
    }
    if (!g || !g->exec) {
        if (!d->lost) fn(ctx);
        return;
    }
    if (g->held) gpu_comm_replays(d, g->held);
    gpu_check(d, "replay", cudaGraphLaunch(g->exec, d->stream));
}

} // namespace

const gpu_weight *gpu_weight_after(gpu_dev *d, const gpu_weight *w)
{
    if (d->ordering) {
        if (d->n_order == d->cap_order) {
            int cap = d->cap_order ? 2 * d->cap_order : 256;
            void *p = realloc(d->order, (size_t)cap * sizeof *d->order);
            if (!p) return nullptr;
            d->order = static_cast<const gpu_weight **>(p);
            d->cap_order = cap;
        }
        d->order[d->n_order++] = w;
        return nullptr;
    }
    if (!d->capturing || d->order_at >= d->n_order) return nullptr;
    /* the sequence differs from the recorded one: stop prefetching */
    if (d->order[d->order_at++] != w) d->order_at = d->n_order;
    return d->order_at < d->n_order ? d->order[d->order_at] : nullptr;
}

/* Rows quantised by a norm before the step are not used inside it, because its kernels must be the same each time;
 * nor the reverse. */
void gpu_replay(struct dev *head, uint64_t key, void (*fn)(void *), void *ctx)
{
    gpu_dev *d = gpu_of(head);
    bool alive = gpu_alive(d, "replay"), others = d->comm && !d->lost && gpu_comm_alive(d, "replay");
    if (d->measuring || d->capturing) {
        if (alive) fn(ctx);
        return;
    }
    if (!alive && !others) return;
    struct dev_error before = head->error; /* the other ranks replay it, whether this one has failed or not */
    dev_clear_error(head);
    d->prequantised.data = nullptr;
    replay(d, key, fn, ctx);
    d->prequantised.data = nullptr;
    if (before.op) head->error = before;
}

void gpu_graphs_close(gpu_dev *d)
{
    /* also when the device is lost: graphs hold host memory too */
    for (int i = 0; i < d->n_graphs; i++) forget(&d->graphs[i]);
    free(d->graphs);
    free(d->order);
    d->graphs = nullptr;
    d->order = nullptr;
    d->n_graphs = d->n_order = d->cap_order = 0;
}

} // namespace GPU_NAMESPACE
