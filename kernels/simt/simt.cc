/* The scheduler of simt.h: fibers, barriers, collectives. A host thread runs one grid at a time; host threads share
 * nothing. */
#include "kernels/simt/simt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
extern "C" {
#ifdef SIMT_ASAN
void __sanitizer_start_switch_fiber(void **, const void *, size_t);
void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
#endif
#ifdef SIMT_TSAN
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_destroy_fiber(void *);
void __tsan_switch_to_fiber(void *, unsigned); /* flag 1: no happens-before */
void __tsan_acquire(void *);
void __tsan_release(void *);
#endif
void simt_swap(void **save, void *load);
}

namespace simt {
namespace {

const size_t STACK = (64 << 10) + 5 * 64; /* an odd stride: equal offsets would share cache sets */
const int COPIES_MAX = 512;
const int NAMED_BARRIERS = 16;

/* Objects on which TSan's happens-before is recorded: one for each of the last uses of a barrier. With a single one,
 * a thread that wakes late from one use would also acquire what others did after it, up to their next arrival, and a
 * race would be hidden. */
const int USES = 4;
struct tokens {
    unsigned use; /* completed uses */
    char of_use[USES];
    char *now()
    {
        return &of_use[use % USES];
    }
};

struct warp {
    void *args[WARP];
    Collective fn;
    unsigned mask, arrived;
    struct tokens tokens;
};

struct lane {
    void *sp; /* while suspended */
    char *stack;
    uint3 tid;
    int id, in_warp;
    struct warp *warp;
    enum { READY, AT_BARRIER, AT_WARP, AT_BEFORE, DONE } state;
    int site;        /* source line of the wait, for reports */
    int bar;         /* id of a named barrier */
    bool waited;     /* has called wait_for_previous */
    copy_op *copies; /* (COPIES_MAX) ring of copies issued and not yet waited for */
    unsigned head, tail, group;
    void *asan_fake, *tsan;
};

struct machine {
    /* Looked at in every round of the scheduler: without the copies they stay in the cache. */
    struct lane lanes[THREADS_MAX];
    copy_op copies[THREADS_MAX][COPIES_MAX];
    struct warp warps[THREADS_MAX / WARP];
    int n, live, waiting;
    int bar_waiting[NAMED_BARRIERS];
    struct tokens barrier_tokens, named_tokens[NAMED_BARRIERS];
    char launch_token, done_token;
    char *stacks;
    unsigned char *smem; /* a heap block of the exact size, so that ASan sees every overrun */
    size_t smem_bytes;
    uint3 block;
    dim3 block_dim, grid_dim;
    void (*body)(void *);
    void *ctx;
    void *sched_sp;
    void *asan_fake, *tsan;
    const void *asan_bottom;
    size_t asan_size;
    bool running, early;
    const std::function<void()> *before; /* a preceding kernel, to be run when this block waits for it */
};

/* Two: one for a kernel that has begun early, one for the kernel before it. */
struct owner {
    machine *m[2] = {};
    ~owner()
    {
        for (machine *one : m) {
            if (!one) continue;
            munmap(one->stacks, STACK * THREADS_MAX);
            free(one);
        }
    }
};
thread_local owner mine;
thread_local machine *blk;
thread_local lane *self;

machine *machine_of_thread()
{
    int i = mine.m[0] && mine.m[0]->running;
    if (mine.m[i]) return mine.m[i];
    machine *m = (machine *)calloc(1, sizeof *m);
    if (!m) abort();
    void *p =
        mmap(nullptr, STACK * THREADS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) abort();
    m->stacks = (char *)p;
    return mine.m[i] = m;
}

SIMT_HIDE void to_lane(lane *l)
{
    self = l;
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(&blk->asan_fake, l->stack, STACK);
#endif
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(l->tsan, 1);
#endif
    simt_swap(&blk->sched_sp, l->sp);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(blk->asan_fake, nullptr, nullptr);
#endif
}

SIMT_HIDE void to_scheduler(bool last)
{
    lane *l = self;
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(last ? nullptr : &l->asan_fake, blk->asan_bottom, blk->asan_size);
#endif
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(blk->tsan, 1);
#endif
    simt_swap(&l->sp, blk->sched_sp);
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(l->asan_fake, nullptr, nullptr);
#endif
    (void)last;
}

SIMT_HIDE void release_barrier_if_full()
{
    if (blk->waiting == 0 || blk->waiting != blk->live) return;
    int site = 0;
    for (int i = 0; i < blk->n; i++) {
        lane &l = blk->lanes[i];
        if (l.state != lane::AT_BARRIER || l.bar >= 0) continue;
        if (site && l.site != site) die("divergent __syncthreads: threads wait at different lines");
        site = l.site;
    }
    for (int i = 0; i < blk->n; i++)
        if (blk->lanes[i].state == lane::AT_BARRIER && blk->lanes[i].bar < 0) blk->lanes[i].state = lane::READY;
    blk->waiting = 0;
    blk->barrier_tokens.use++;
}

SIMT_HIDE void lane_main()
{
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &blk->asan_bottom, &blk->asan_size);
#endif
#ifdef SIMT_TSAN
    __tsan_acquire(&blk->launch_token);
#endif
    blk->body(blk->ctx);
    if (blk->early && !self->waited) die("a thread of a kernel launched early ends without having waited");
#ifdef SIMT_TSAN
    __tsan_release(&blk->done_token);
#endif
    self->state = lane::DONE;
    blk->live--;
    release_barrier_if_full();
    to_scheduler(true);
    abort();
}

SIMT_HIDE void lane_start(lane &l, int i)
{
    machine &b = *blk;
    unsigned u = (unsigned)i;
    l.id = i;
    l.in_warp = i % WARP;
    l.warp = &b.warps[i / WARP];
    l.tid = {u % b.block_dim.x, u / b.block_dim.x % b.block_dim.y, u / (b.block_dim.x * b.block_dim.y)};
    l.state = lane::READY;
    l.copies = b.copies[u];
    l.head = l.tail = l.group = 0;
    l.waited = false;
    l.stack = b.stacks + STACK * u;
    void **top = (void **)(l.stack + STACK - 64);
    *--top = nullptr;
    *--top = (void *)lane_main;
    for (int r = 0; r < 6; r++) *--top = nullptr;
    l.sp = top;
#ifdef SIMT_TSAN
    l.tsan = __tsan_create_fiber(0);
#endif
}

/* Called when no thread can continue: runs the preceding kernels, after which the threads that wait for them
 * continue. */
SIMT_HIDE bool run_before()
{
    machine &b = *blk;
    if (!b.before) return false;
    (*b.before)();
    blk = &b;
    b.before = nullptr;
#ifdef SIMT_TSAN
    __tsan_release(&b.launch_token); /* makes their writes visible to the threads of this kernel */
#endif
    for (int i = 0; i < b.n; i++)
        if (b.lanes[i].state == lane::AT_BEFORE) b.lanes[i].state = lane::READY;
    return true;
}

SIMT_HIDE void run_block(const std::vector<int> &order)
{
    machine &b = *blk;
    b.live = b.n;
    b.waiting = 0;
    memset(b.bar_waiting, 0, sizeof b.bar_waiting);
#ifdef SIMT_TSAN /* fresh memory for each block: reuse would look like a race between blocks */
    mmap(b.stacks, STACK * THREADS_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
         -1, 0);
    size_t mapped = b.smem_bytes + 4096;
    b.smem = (unsigned char *)mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
#endif
    memset(b.smem, 0xFF, b.smem_bytes); /* NaN in every float format, so that reads of unwritten memory show */
    for (int i = 0; i < b.n; i++) lane_start(b.lanes[i], i);
    for (auto &w : b.warps) w.arrived = 0;
    while (b.live) {
        bool progress = false;
        for (int i : order)
            if (b.lanes[i].state == lane::READY) {
                to_lane(&b.lanes[i]);
                progress = true;
            }
        if (!progress && !run_before()) die("deadlock");
    }
#ifdef SIMT_TSAN
    for (int i = 0; i < b.n; i++) __tsan_destroy_fiber(b.lanes[i].tsan);
    munmap(b.smem, mapped);
#endif
}

} // namespace

/* ---- calls of a running lane ------------------------------------------------------------------------------------ */

void die(const char *what)
{
    static const char *const names[] = {"ready", "a barrier", "a warp collective", "the kernels before", "its end"};
    fprintf(stderr, "simt: %s in block (%u,%u,%u)\n", what, blk->block.x, blk->block.y, blk->block.z);
    for (int i = 0; i < blk->n; i++) {
        lane &l = blk->lanes[i];
        if (i && l.state == blk->lanes[i - 1].state && l.site == blk->lanes[i - 1].site) continue;
        fprintf(stderr, "  from thread %d on: at %s, line %d\n", i, names[l.state], l.site);
    }
    abort();
}

SIMT_HIDE uint3 thread_idx()
{
    return self->tid;
}
SIMT_HIDE uint3 block_idx()
{
    return blk->block;
}
SIMT_HIDE dim3 block_dim()
{
    return blk->block_dim;
}
SIMT_HIDE dim3 grid_dim()
{
    return blk->grid_dim;
}
SIMT_HIDE int lane_id()
{
    return self->in_warp;
}
SIMT_HIDE unsigned char *shared_memory()
{
    return blk->smem;
}

SIMT_HIDE __attribute__((noinline)) void barrier(int line)
{
#ifdef SIMT_TSAN
    char *token = blk->barrier_tokens.now();
    __tsan_release(token);
#endif
    self->site = line;
    self->bar = -1;
    self->state = lane::AT_BARRIER;
    blk->waiting++;
    release_barrier_if_full();
    to_scheduler(false);
#ifdef SIMT_TSAN
    __tsan_acquire(token);
#endif
}

SIMT_HIDE __attribute__((noinline)) void named_barrier(int id, int threads, int line)
{
    if (id < 0 || id >= NAMED_BARRIERS) die("no such named barrier");
#ifdef SIMT_TSAN
    char *token = blk->named_tokens[id].now();
    __tsan_release(token);
#endif
    self->site = line;
    self->bar = id;
    self->state = lane::AT_BARRIER;
    if (++blk->bar_waiting[id] == threads) {
        for (int i = 0; i < blk->n; i++)
            if (blk->lanes[i].state == lane::AT_BARRIER && blk->lanes[i].bar == id) blk->lanes[i].state = lane::READY;
        blk->bar_waiting[id] = 0;
        blk->named_tokens[id].use++;
    }
    to_scheduler(false);
#ifdef SIMT_TSAN
    __tsan_acquire(token);
#endif
}

SIMT_HIDE __attribute__((noinline)) void collective(unsigned mask, Collective fn, void *arg)
{
    struct warp *w = self->warp;
    int in_warp = self->in_warp;
    if (!(mask >> in_warp & 1)) die("a lane calls a collective whose mask leaves it out");
    if (w->arrived == 0) {
        w->fn = fn;
        w->mask = mask;
    }
    if (w->fn != fn || w->mask != mask) die("divergent warp collective: another function or mask");
    w->args[in_warp] = arg;
    w->arrived |= 1u << in_warp;
    if (w->arrived == mask) {
        void *a[WARP];
        for (int i = 0; i < WARP; i++) a[i] = mask >> i & 1 ? w->args[i] : nullptr;
        fn(a, mask);
        w->arrived = 0;
        w->tokens.use++;
        lane *base = self - in_warp;
        for (int i = 0; i < WARP; i++)
            if (mask >> i & 1) base[i].state = lane::READY;
        return; /* the last lane continues without suspending */
    }
    self->state = lane::AT_WARP;
    to_scheduler(false);
}

SIMT_HIDE void syncwarp(unsigned mask)
{
#ifdef SIMT_TSAN
    char *token = self->warp->tokens.now();
    __tsan_release(token);
#endif
    char nothing;
    collective(
        mask, [](void **, unsigned) SIMT_HIDE {}, &nothing);
#ifdef SIMT_TSAN
    __tsan_acquire(token);
#endif
}

SIMT_HIDE __attribute__((noinline)) void wait_for_previous()
{
    self->waited = true;
    if (!blk->before) return;
    self->state = lane::AT_BEFORE;
    to_scheduler(false);
#ifdef SIMT_TSAN
    __tsan_acquire(&blk->launch_token);
#endif
}

SIMT_HIDE void cp_async(void *dst, const void *src, unsigned bytes, unsigned total)
{
    if (((uintptr_t)dst | (uintptr_t)src) % total) die("misaligned cp.async");
    if (self->tail - self->head == COPIES_MAX) die("too many cp.async in flight");
    self->copies[self->tail++ % COPIES_MAX] = {dst, src, bytes, total - bytes, self->group};
}

SIMT_HIDE void cp_commit()
{
    self->group++;
}

SIMT_HIDE bool cp_pop(unsigned keep, copy_op *c)
{
    if (self->head == self->tail || self->copies[self->head % COPIES_MAX].group + keep >= self->group) return false;
    *c = self->copies[self->head++ % COPIES_MAX];
    return true;
}

/* ---- launching -----------------------------------------------------------------------------------------------------
 */

uint64_t schedule_seed()
{
    const char *s = getenv("SIMT_SEED");
    return s ? strtoull(s, nullptr, 10) : 0;
}

namespace {

thread_local const std::function<void()> *run_first; /* to be run before the next grid */

}

void run_early(const std::function<void()> &before, const std::function<void()> &kernel)
{
    run_first = &before;
    kernel();
}

void run_grid(dim3 grid, dim3 block, size_t smem, bool early, void (*body)(void *), void *ctx)
{
    machine &b = *(blk = machine_of_thread());
    if (b.running) abort(); /* a kernel must not launch a kernel */
    b.running = true;
    b.block_dim = block;
    b.grid_dim = grid;
    b.n = (int)(block.x * block.y * block.z);
    b.early = early;
    b.before = run_first;
    run_first = nullptr;
    b.body = body;
    b.ctx = ctx;
    b.smem_bytes = smem;
#ifdef SIMT_TSAN
    b.tsan = __tsan_get_current_fiber();
    __tsan_release(&b.launch_token);
#else
    void *p;
    if (posix_memalign(&p, 128, smem ? smem : 1)) abort();
    b.smem = (unsigned char *)p;
#endif
    std::vector<int> order((size_t)b.n);
    for (int i = 0; i < b.n; i++) order[(size_t)i] = i;
    uint64_t seed = schedule_seed(), rng = seed * 0x9E3779B97F4A7C15ull + 1;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                b.block = {x, y, z};
                for (int i = b.n - 1; seed && i > 0; i--) {
                    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
                    std::swap(order[(size_t)i], order[(rng >> 33) % (unsigned)(i + 1)]);
                }
                run_block(order);
            }
#ifdef SIMT_TSAN
    __tsan_acquire(&b.done_token);
#else
    free(b.smem);
#endif
    b.running = false;
}

} // namespace simt

#if defined(__x86_64__)
asm(R"(
.text
.globl simt_swap
.type simt_swap,@function
simt_swap:
    pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
    ret
.size simt_swap,.-simt_swap
)");
#elif defined(__aarch64__)
#error "simt_swap has to be written for aarch64"
#endif
