/* Device memory: allocation and budget, scratch, and copies from and to the host. */
#include "kernels/arena.h"
#include "kernels/cuda/gemm/lt.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE {

/* An allocation of gpu_alloc, so that freeing knows its size. */
struct gpu_block {
    void *p;
    size_t bytes;
};

enum { HELD_MAX = 16, HELD_MIN = 1 << 20 }; /* most ranges; least bytes of a range */

/* Bytes that hold leaves to CUDA outside the budget: CUDA allocates memory later, when a kernel is first launched
 * (its code is loaded lazily) and when graphs are captured. */
const size_t SYSTEM_MARGIN = (size_t)512 << 20;

struct gpu_held {
    int n;
    size_t bytes, used; /* of all ranges */
    uint8_t *p[HELD_MAX];
    struct arena arena[HELD_MAX];
};

struct gpu_pending {
    void *host;
    size_t at, bytes; /* at: offset in the staging memory */
    bool sent;
};

namespace {

/* Staging memory is used in halves: while the host fills one, the device may still read the other. */
enum { STAGE_HALF = GPU_STAGE_MOST, STAGE_BYTES = 2 * STAGE_HALF, STAGE_ALIGN = 256, PENDING_MAX = 64 };

/* Seconds of autotuning in reserve: at start-up, and later, while requests are served, for training. */
const double TUNE_AT_START = 20, TUNE_BESIDE = 0.5;

void count(gpu_dev *d, size_t more, size_t less)
{
    __atomic_store_n(&d->used, d->used + more - less, __ATOMIC_RELAXED);
}

bool note_block(gpu_dev *d, void *p, size_t bytes)
{
    if (d->n_blocks == d->cap_blocks) {
        size_t cap = d->cap_blocks ? d->cap_blocks * 2 : 256;
        gpu_block *v = static_cast<gpu_block *>(realloc(d->blocks, cap * sizeof *v));
        if (!v) return false;
        d->blocks = v;
        d->cap_blocks = cap;
    }
    d->blocks[d->n_blocks++] = {p, bytes};
    return true;
}

/* The part of the budget that is neither reserved by hold nor allocated. */
size_t left_outside(const gpu_dev *d)
{
    return d->budget - d->used - (d->held ? d->held->bytes - d->held->used : 0);
}

void note_largest(gpu_dev *d)
{
    size_t most = left_outside(d);
    for (int i = 0; d->held && i < d->held->n; i++) {
        size_t one = arena_largest(&d->held->arena[i]);
        most = one > most ? one : most;
    }
    __atomic_store_n(&d->largest, most, __ATOMIC_RELAXED);
}

void note_scratch(gpu_dev *d)
{
    size_t bytes = STAGE_BYTES;
    for (auto &s : d->scratch) bytes += s.bytes + s.more_bytes;
    __atomic_store_n(&d->scratch_used, bytes, __ATOMIC_RELAXED);
}

/* Allocates from the ranges reserved by hold; NULL when none has room. */
void *held_take(gpu_dev *d, size_t bytes)
{
    gpu_held *h = d->held;
    for (int i = 0; h && i < h->n; i++) {
        size_t before = h->arena[i].used, at, more;
        if (!arena_take(&h->arena[i], bytes, &at)) continue;
        more = h->arena[i].used - before;
        h->used += more;
        count(d, more, 0);
        return h->p[i] + at;
    }
    return nullptr;
}

/* Frees a block of a reserved range. @return false when p is in none. Needs no synchronisation: in the single
 * stream, whatever still uses the block runs before its next use. */
bool held_give(gpu_dev *d, void *p)
{
    gpu_held *h = d->held;
    for (int i = 0; h && i < h->n; i++) {
        size_t at = (size_t)((uintptr_t)p - (uintptr_t)h->p[i]); /* wraps around for addresses below the range */
        if (at >= h->arena[i].bytes) continue;
        size_t bytes = arena_give(&h->arena[i], at);
        if (!bytes) return false;
        h->used -= bytes;
        count(d, 0, bytes);
        return true;
    }
    return false;
}

/* Allocates from the system (cudaMalloc). */
void *system_take(gpu_dev *d, size_t bytes)
{
    void *p = nullptr;
    if (bytes > left_outside(d)) return nullptr;
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* out of memory is not a failure of the device */
        return nullptr;
    }
    if (!note_block(d, p, bytes)) {
        cudaFree(p);
        return nullptr;
    }
    count(d, bytes, 0);
    return p;
}

/* Searches the newest first: most frees are of recent allocations. */
bool system_give(gpu_dev *d, void *p)
{
    for (size_t i = d->n_blocks; i-- > 0;) {
        if (d->blocks[i].p != p) continue;
        count(d, 0, d->blocks[i].bytes);
        d->blocks[i] = d->blocks[--d->n_blocks];
        if (!d->lost) gpu_check(d, "free", cudaFree(p));
        return true;
    }
    return false;
}

} // namespace

/* ---- allocation ------------------------------------------------------------------------------------------------- */

void *gpu_alloc(struct dev *head, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    d->prequantised.data = nullptr; /* here and below: its rows, or their source, may become invalid */
    if (!gpu_alive(d, "alloc")) return nullptr;
    void *p = held_take(d, bytes);
    if (!p && !(p = system_take(d, bytes))) return nullptr;
    note_largest(d);
    gpu_check(d, "alloc", cudaMemsetAsync(p, 0, bytes, d->stream));
    return p;
}

void gpu_free(struct dev *head, void *p)
{
    gpu_dev *d = gpu_of(head);
    if (!p) return;
    d->prequantised.data = nullptr;
    if (!held_give(d, p) && !system_give(d, p)) dev_fail(head, "free", "of memory that this device did not give");
    note_largest(d);
}

/* With unified addressing the device reaches page-locked memory under the host's address. */
void *gpu_alloc_host(struct dev *head, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    void *p = nullptr;
    if (!gpu_alive(d, "alloc_host")) return nullptr;
    if (cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* out of memory is not a failure of the device */
        return nullptr;
    }
    return memset(p, 0, bytes);
}

void gpu_free_host(struct dev *head, void *p)
{
    gpu_dev *d = gpu_of(head);
    if (!p || d->lost) return;
    if (gpu_check(d, "free_host", cudaStreamSynchronize(d->stream))) gpu_check(d, "free_host", cudaFreeHost(p));
}

void gpu_memory(struct dev *head, struct dev_memory *m)
{
    const gpu_dev *d = gpu_of(head);
    *m = {d->total, d->budget, __atomic_load_n(&d->used, __ATOMIC_RELAXED),
          __atomic_load_n(&d->scratch_used, __ATOMIC_RELAXED), __atomic_load_n(&d->largest, __ATOMIC_RELAXED)};
}

namespace {

/* The bytes that hold may still reserve. */
size_t left_to_reserve(const gpu_dev *d)
{
    size_t left = left_outside(d), free_bytes = 0, total;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &total);
    if (e) cudaGetLastError(); /* unknown free memory counts as none */
    if (e || free_bytes <= SYSTEM_MARGIN) return 0;
    return left < free_bytes - SYSTEM_MARGIN ? left : free_bytes - SYSTEM_MARGIN;
}

} // namespace

/* When a range cannot be allocated, tries half of it. What could not be reserved is then removed from the budget. */
void gpu_hold(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    if (d->held || !gpu_alive(d, "hold") || !(d->held = static_cast<gpu_held *>(calloc(1, sizeof *d->held)))) return;
    gpu_held *h = d->held;
    for (size_t want = left_to_reserve(d), left; h->n < HELD_MAX && want >= HELD_MIN;) {
        void *p = nullptr;
        if (cudaMalloc(&p, want) != cudaSuccess) {
            cudaGetLastError();
            want /= 2;
            continue;
        }
        if (!arena_open(&h->arena[h->n], want)) {
            cudaFree(p);
            break;
        }
        h->p[h->n++] = static_cast<uint8_t *>(p);
        h->bytes += want;
        left = left_to_reserve(d);
        want = left < want ? left : want;
    }
    d->budget -= left_outside(d);
    note_largest(d);
}

/* ---- scratch -------------------------------------------------------------------------------------------------------
 */

namespace {

bool no_scratch(gpu_dev *d, const char *op, size_t bytes)
{
    dev_fail(&d->head, op,
             "no memory for %zu bytes of scratch: %zu of the budget of %zu are in use, the largest free block "
             "has %zu",
             bytes, d->used, d->budget, d->largest);
    return false;
}

/* Replaces memory, NULL: none, by more. The new memory is allocated before the old is freed, or after when both do not
 * fit; if it does not fit at all, the old size is allocated again, so that what fitted before still does: it may be
 * another user's. Kernels that still use the old memory are safe: cudaFree synchronises. */
bool replace(gpu_dev *d, const char *op, void **old, size_t *old_bytes, size_t bytes)
{
    size_t before = *old_bytes;
    void *p = gpu_alloc(&d->head, bytes);
    gpu_free(&d->head, *old);
    if (!p) p = gpu_alloc(&d->head, bytes);
    bool grown = p != nullptr;
    if (!p && before) p = gpu_alloc(&d->head, before);
    *old = p;
    *old_bytes = grown ? bytes : p ? before : 0;
    note_scratch(d);
    return grown || no_scratch(d, op, bytes);
}

bool scratch_grow(gpu_dev *d, const char *op, enum area area, size_t bytes)
{
    auto &s = d->scratch[area];
    gpu_graphs_close(d); /* captured graphs contain the old address */
    return replace(d, op, &s.p, &s.bytes, bytes);
}

/* Beside the existing area, whose address captured graphs keep using. */
bool scratch_add(gpu_dev *d, const char *op, enum area area, size_t bytes)
{
    auto &s = d->scratch[area];
    return replace(d, op, &s.more, &s.more_bytes, bytes);
}

} // namespace

void *gpu_scratch(gpu_dev *d, const char *op, enum area area, size_t bytes)
{
    auto &s = d->scratch[area];
    if (!gpu_alive(d, op)) return nullptr;
    if (d->measuring) {
        if (bytes > s.wanted) s.wanted = bytes;
        return d->staged; /* any address: nothing is launched */
    }
    if (bytes <= s.bytes) return s.p;
    if (bytes <= s.more_bytes && !d->capturing) return s.more;
    if (d->sealed || d->capturing) {
        dev_fail(&d->head, op, "wants %zu bytes of scratch, %zu were reserved at the start", bytes, s.bytes);
        return nullptr;
    }
    return scratch_grow(d, op, area, bytes + bytes / 4) ? s.p : nullptr;
}

int gpu_reserve(struct dev *head, void (*fn)(void *), void *ctx)
{
    gpu_dev *d = gpu_of(head);
    if (!gpu_alive(d, "reserve") || !gpu_settle(d, "reserve")) return -1;
    for (auto &s : d->scratch) s.wanted = 0; /* what an earlier call requested may not have fitted */
    lt_requests_clear(d);
    d->prequantised.data = nullptr; /* so that GEMMs record the scratch they need without it */
    d->measuring = true;
    fn(ctx);
    d->measuring = false;
    gpu_forget_staged(d);
    for (int i = 0; i < AREA_COUNT && !head->error.op; i++) {
        auto &s = d->scratch[i];
        enum area area = static_cast<enum area>(i);
        if (!d->held && s.wanted > s.bytes) scratch_grow(d, "reserve", area, s.wanted);
        if (d->held && s.wanted > s.bytes && s.wanted > s.more_bytes) scratch_add(d, "reserve", area, s.wanted);
    }
    lt_tune(d, d->sealed ? TUNE_BESIDE : TUNE_AT_START);
    d->sealed = true;
    return head->error.op ? -1 : 0;
}

void gpu_trim(struct dev *head)
{
    gpu_dev *d = gpu_of(head);
    for (auto &s : d->scratch) {
        gpu_free(head, s.more);
        s.more = nullptr;
        s.more_bytes = 0;
    }
    note_scratch(d);
}

/* ---- copies --------------------------------------------------------------------------------------------------------
 */

/* Copies the results that have arrived to the caller's memory; keeps those whose copies are not enqueued yet. */
bool gpu_settle(gpu_dev *d, const char *op)
{
    if (d->measuring) return true;
    if (!gpu_check(d, op, cudaStreamSynchronize(d->stream))) return false;
    if (d->comm && !gpu_comm_ended(d, op)) return false;
    int left = 0;
    for (int i = 0; i < d->n_pending; i++) {
        gpu_pending *o = &d->pending[i];
        if (o->sent)
            memcpy(o->host, d->pinned + o->at, o->bytes);
        else
            d->pending[left++] = *o;
    }
    d->n_pending = left;
    if (!left) d->stage_at = 0;
    return true;
}

void gpu_forget_staged(gpu_dev *d)
{
    if (d->stream && !d->measuring) cudaStreamSynchronize(d->stream);
    cudaGetLastError();
    d->n_pending = 0;
    d->stage_at = 0;
}

namespace {

bool has_pending(const gpu_dev *d, size_t half)
{
    for (int i = 0; i < d->n_pending; i++)
        if (d->pending[i].at / STAGE_HALF == half) return true;
    return false;
}

/* Switches staging from half `from` to the other. An event marks the last copy out of the half that is left; before
 * the host writes into the other half it waits for that half's event, and results that wait there are copied out
 * first. Staging memory on the device is protected by stream order. @return false when the device has failed. */
bool change_half(gpu_dev *d, const char *op, size_t from)
{
    size_t to = 1 - from;
    if (d->measuring) return true;
    if (!gpu_check(d, op, cudaEventRecord(d->half_read[from], d->stream))) return false;
    if (has_pending(d, to)) return gpu_settle(d, op);
    /* returns at once if the event was never recorded */
    return gpu_check(d, op, cudaEventSynchronize(d->half_read[to]));
}

/* Allocates aligned staging memory. @return its offset, or SIZE_MAX. What an op staged last, in the previous half,
 * stays valid. */
size_t stage_take(gpu_dev *d, const char *op, size_t bytes)
{
    size_t size = (bytes + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
    if (!gpu_alive(d, op)) return SIZE_MAX;
    if (d->capturing) {
        dev_fail(&d->head, op, "nothing may be sent from the host in a step that is recorded");
        return SIZE_MAX;
    }
    if (size > STAGE_HALF) {
        dev_fail(&d->head, op, "%zu bytes are more than the %d that an op may send", bytes, (int)STAGE_HALF);
        return SIZE_MAX;
    }
    /* A cursor at the exact end of the first half still belongs to that half. */
    size_t at = d->stage_at, half = at <= STAGE_HALF ? 0 : 1, end = (half + 1) * STAGE_HALF;
    if (at + size > end) {
        if (!change_half(d, op, half)) return SIZE_MAX;
        at = end % STAGE_BYTES;
    }
    d->stage_at = at + size;
    return at;
}

} // namespace

const void *gpu_stage(gpu_dev *d, const char *op, const void *host, size_t bytes)
{
    size_t at = stage_take(d, op, bytes);
    if (at == SIZE_MAX) return nullptr;
    if (d->measuring) return d->staged;
    if (bytes) memcpy(d->pinned + at, host, bytes);
    bool ok =
        gpu_check(d, op, cudaMemcpyAsync(d->staged + at, d->pinned + at, bytes, cudaMemcpyHostToDevice, d->stream));
    return ok ? d->staged + at : nullptr;
}

void *gpu_stage_out(gpu_dev *d, const char *op, void *host, size_t bytes)
{
    if (d->n_pending == PENDING_MAX && !gpu_settle(d, op)) return nullptr;
    if (d->n_pending == PENDING_MAX) return dev_fail(&d->head, op, "too many results wait to be sent"), nullptr;
    size_t at = stage_take(d, op, bytes);
    if (at == SIZE_MAX) return nullptr;
    if (!d->measuring) d->pending[d->n_pending++] = {host, at, bytes, false};
    return d->staged + at;
}

void gpu_send_outs(gpu_dev *d)
{
    for (int i = 0; i < d->n_pending; i++) {
        gpu_pending *o = &d->pending[i];
        if (o->sent) continue;
        o->sent = true;
        gpu_check(d, "copy",
                  cudaMemcpyAsync(d->pinned + o->at, d->staged + o->at, o->bytes, cudaMemcpyDeviceToHost, d->stream));
    }
}

/* Copies through staging memory, so that the caller may change his data on return: while the device copies one
 * chunk, the host writes the next into the other half. */
void gpu_upload(struct dev *head, void *device, const void *host, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (d->measuring) return;
    d->prequantised.data = nullptr;
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < STAGE_HALF / 4 ? bytes - done : STAGE_HALF / 4;
        size_t at = stage_take(d, "upload", n);
        if (at == SIZE_MAX) return;
        memcpy(d->pinned + at, static_cast<const uint8_t *>(host) + done, n);
        gpu_check(d, "upload",
                  cudaMemcpyAsync(static_cast<uint8_t *>(device) + done, d->pinned + at, n, cudaMemcpyHostToDevice,
                                  d->stream));
    }
}

void gpu_download(struct dev *head, void *host, const void *device, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (bytes == 0 || d->measuring || !gpu_alive(d, "download")) return;
    if (gpu_check(d, "download", cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, d->stream)))
        gpu_settle(d, "download");
}

void gpu_zero(struct dev *head, void *p, size_t bytes)
{
    gpu_dev *d = gpu_of(head);
    if (bytes == 0 || d->measuring || !gpu_alive(d, "zero")) return;
    d->prequantised.data = nullptr;
    gpu_check(d, "zero", cudaMemsetAsync(p, 0, bytes, d->stream));
}

/* ---- opening -------------------------------------------------------------------------------------------------------
 */

bool gpu_memory_open(gpu_dev *d, char why[160])
{
    size_t free_bytes = 0;
    void *pinned = nullptr, *staged = nullptr;
    cudaError_t e = cudaMemGetInfo(&free_bytes, &d->total);
    d->budget = d->memory_bytes ? d->memory_bytes : (size_t)(d->memory_fraction * (double)free_bytes);
    if (!e && d->budget > free_bytes) {
        snprintf(why, 160, "%zu bytes of its memory are asked for, %zu of %zu are free: lower --gpu-memory-bytes",
                 d->budget, free_bytes, d->total);
        return false;
    }
    if (!e && d->budget < STAGE_BYTES) {
        snprintf(why, 160, "%zu bytes of its memory are too few", d->budget);
        return false;
    }
    d->pending = static_cast<gpu_pending *>(calloc(PENDING_MAX, sizeof *d->pending));
    if (!d->pending) return snprintf(why, 160, "out of memory"), false;
    if (!e) e = cudaMallocHost(&pinned, STAGE_BYTES);
    d->pinned = static_cast<uint8_t *>(pinned);
    if (!e) e = cudaMalloc(&staged, STAGE_BYTES);
    d->staged = static_cast<uint8_t *>(staged);
    for (auto &half : d->half_read)
        if (!e) e = cudaEventCreateWithFlags(&half, cudaEventDisableTiming);
    if (e) return snprintf(why, 160, "CUDA device %d: %s", d->index, cudaGetErrorString(e)), false;
    d->used = d->scratch_used = STAGE_BYTES;
    note_largest(d);
    return true;
}

void gpu_memory_close(gpu_dev *d)
{
    for (size_t i = 0; i < d->n_blocks; i++)
        if (!d->lost) cudaFree(d->blocks[i].p);
    for (int i = 0; d->held && i < d->held->n; i++) {
        if (!d->lost) cudaFree(d->held->p[i]);
        arena_close(&d->held->arena[i]);
    }
    free(d->held);
    d->held = nullptr;
    if (d->staged) cudaFree(d->staged);
    if (d->pinned) cudaFreeHost(d->pinned);
    for (auto &half : d->half_read) {
        if (half) cudaEventDestroy(half);
        half = nullptr;
    }
    free(d->blocks);
    free(d->pending);
    for (auto &s : d->scratch) s = {};
    d->prequantised.data = nullptr;
    d->blocks = nullptr;
    d->pending = nullptr;
    d->staged = d->pinned = nullptr;
    d->n_blocks = d->cap_blocks = 0;
    d->n_pending = 0;
    d->stage_at = d->used = d->scratch_used = d->largest = 0;
    d->sealed = false;
}

} // namespace GPU_NAMESPACE
