/* The cpu device: the choice of a level, memory, and the table of ops. */
#include "kernels/amx.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu_level.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* ---- memory -------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGE = 2 << 20 };

#ifdef TANDEM_SANITIZED /* from the heap, so that the sanitizer knows the bounds of each allocation */
void *cpu_map(size_t bytes)
{
    void *p;
    if (bytes > PTRDIFF_MAX / 2 || posix_memalign(&p, 64, bytes ? bytes : 1)) return NULL;
    return memset(p, 0, bytes);
}

void cpu_unmap(void *p, size_t bytes)
{
    free(p);
}

void cpu_populate(void *p, size_t bytes) {}
#else
void *cpu_map(size_t bytes)
{
    if (bytes > SIZE_MAX / 2) return NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE); /* 4 KB; 16 or 64 on some aarch64 */
    size_t pages = (bytes + page - 1) / page * page + (bytes == 0) * page, slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p = mmap(NULL, pages + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!slack) return p;
    /* Aligns to a huge page and unmaps what is before and after. */
    uint8_t *start = p + (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
    if (start > p) munmap(p, (size_t)(start - p));
    if (start - p < HUGE_PAGE) munmap(start + pages, slack - (size_t)(start - p));
    madvise(start, pages, MADV_HUGEPAGE);
    return start;
}

void cpu_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, bytes ? bytes : 1);
}

void cpu_populate(void *p, size_t bytes)
{
#ifdef MADV_POPULATE_WRITE /* Linux 5.14; before that, pages become resident on first touch */
    madvise(p, bytes, MADV_POPULATE_WRITE);
#endif
}
#endif

void *scratch_get(struct scratch *s, size_t bytes)
{
    if (bytes <= s->bytes) return s->p;
    cpu_unmap(s->p, s->bytes);
    bytes += bytes / 4;
    s->p = cpu_map(bytes);
    s->bytes = s->p ? bytes : 0;
    return s->p;
}

/* The memory that alloc returns is preceded by 64 bytes that hold the size of the mapping. It is made resident at
 * once, because the first touch of a huge page may take the kernel milliseconds. */
static void *cpu_alloc(struct dev *d, size_t bytes)
{
    if (bytes > SIZE_MAX - 64 - 4096) return NULL;
    size_t *p = cpu_map(bytes + 64);
    if (!p) return NULL;
    if (bytes >= HUGE_PAGE) cpu_populate(p, bytes + 64);
    *p = bytes + 64;
    return (char *)p + 64;
}

static void cpu_free(struct dev *d, void *p)
{
    if (!p) return;
    size_t *head = (size_t *)((char *)p - 64);
    cpu_unmap(head, *head);
}

static void cpu_copy(struct dev *d, void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
}

/* ---- tasks --------------------------------------------------------------------------------------------------- */

/* For less work than this, one core finishes about when a second one would start. */
static const double PARALLEL_NS = 8000;

void cpu_run(struct cpu_dev *d, pool_fn *fn, void *ctx, int n_tasks, double ns)
{
    if (ns < PARALLEL_NS)
        for (int i = 0; i < n_tasks; i++) fn(ctx, i, 0);
    else
        pool_run(d->pool, fn, ctx, n_tasks);
}

/* ---- the device ---------------------------------------------------------------------------------------------- */

static bool has_avx512(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

static bool has_avx2(void)
{
#if defined(__x86_64__)
    unsigned a, b, c = 0, d; /* f16c by cpuid: clang 14 does not know its name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & bit_F16C);
#else
    return false;
#endif
}

/* clang 14 and gcc 12 do not both know the names of these two features. */
static bool has_leaf7_1(unsigned bit)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> bit & 1);
#else
    return false;
#endif
}

static bool has_avxvnni(void)
{
    return has_avx2() && has_leaf7_1(4);
}

static bool has_avx512bf16(void)
{
    return has_avx512() && has_leaf7_1(5);
}

static bool has_amx(void)
{
    return has_avx512() && amx_permitted();
}

static bool has_neon(void)
{
#if defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return false;
#endif
}

static bool has_i8mm(void)
{
#if defined(__aarch64__)
    return has_neon() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
#else
    return false;
#endif
}

static bool has_neonbf16(void)
{
#if defined(__aarch64__)
    return has_i8mm() && (getauxval(AT_HWCAP2) & HWCAP2_BF16);
#else
    return false;
#endif
}

static bool is_intel(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

/* Intel's vector units do half as many multiply-adds a second with vdpbf16ps as with vfmadd (docs/performance.md), so
 * the level avx512, which widens bf16 to floats, is faster there. */
static bool multiplies_bf16_fast(void)
{
    return !is_intel();
}

static bool always(void)
{
    return true;
}

static const struct level {
    const char *name;
    bool (*available)(void);
    bool (*fast)(void); /* faster than the levels behind it; else it is only taken when it is named */
    const struct isa *isa;
    const struct tile_kernels *tiles;
} levels[] = {
    /* ISA_*: the level as built by meson; NULL when it was left out or is for another architecture. */
    {"amx", has_amx, always, ISA_AMX, TILES_AMX},
    {"avx512bf16", has_avx512bf16, multiplies_bf16_fast, ISA_AVX512BF16, NULL},
    {"avx512", has_avx512, always, ISA_AVX512, NULL},
    {"avxvnni", has_avxvnni, always, ISA_AVXVNNI, NULL},
    {"avx2", has_avx2, always, ISA_AVX2, NULL},
    {"neonbf16", has_neonbf16, always, ISA_NEONBF16, NULL},
    {"i8mm", has_i8mm, always, ISA_I8MM, NULL},
    {"neon", has_neon, always, ISA_NEON, NULL},
    {"portable", always, always, &isa_portable, NULL},
};

const char *cpu_best_level(void)
{
    size_t i = 0;
    while (!levels[i].available() || !levels[i].fast()) i++;
    return levels[i].name;
}

static const struct level *level_choose(const char *name, char why[160])
{
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (name ? strcmp(name, levels[i].name) != 0 : !levels[i].fast()) continue;
        if (levels[i].isa && levels[i].available()) return levels + i;
        if (name) {
            snprintf(why, 160,
                     levels[i].isa ? "this processor lacks what the %s level needs" : "this build has no %s level",
                     name);
            return NULL;
        }
    }
    snprintf(why, 160,
             "the cpu device has no level \"%.40s\"; there are amx, avx512bf16, avx512, avxvnni, avx2, neonbf16, i8mm, "
             "neon, portable",
             name);
    return NULL;
}

struct on_threads {
    void (*fn)(void *ctx, int thread);
    void *ctx;
};

/* As many tasks as threads: fn may wait for the others, because a worker that runs one task takes no second. */
static void on_threads_task(void *ctx, int task, int worker)
{
    const struct on_threads *o = ctx;
    o->fn(o->ctx, task);
}

static void cpu_on_threads(struct dev *d, void (*fn)(void *ctx, int thread), void *ctx)
{
    pool_run(cpu_of(d)->pool, on_threads_task, &(struct on_threads){fn, ctx}, d->threads);
}

static int cpu_pin(struct dev *d, const int *cpus, int n)
{
    return pool_pin(cpu_of(d)->pool, cpus, n);
}

static int cpu_finish(struct dev *d)
{
    return d->error.op ? -1 : 0;
}

static void cpu_close(struct dev *head)
{
    struct cpu_dev *d = cpu_of(head);
    pool_close(d->pool);
    cpu_unmap(d->quant.p, d->quant.bytes);
    cpu_unmap(d->outliers.p, d->outliers.bytes);
    cpu_unmap(d->experts.p, d->experts.bytes);
    cpu_unmap(d->attn.p, d->attn.bytes);
    cpu_unmap(d->panels.p, d->panels.bytes);
    cpu_unmap(d->transposed.p, d->transposed.bytes);
    cpu_unmap(d->ordered.p, d->ordered.bytes);
    cpu_unmap(d->train.p, d->train.bytes);
    for (int i = 0; d->worker && i < head->threads; i++) cpu_unmap(d->worker[i].p, d->worker[i].bytes);
    free(d->worker);
    free(d);
}

static const struct dev_ops cpu_ops = {
    .name = "cpu",
    .host_memory = true,
#define X(op) .op = cpu_##op,
    OPS(X)
#undef X
        .weight_pack = cpu_weight_pack,
    .weight_free = cpu_weight_free,
    .weight_update = cpu_weight_update,
    .weight_bytes = cpu_weight_bytes,
    .layout = "tandem-cpu-2",
    .weight_packed = cpu_weight_packed,
    .weight_open = cpu_weight_open,
    .kv_page_bytes = cpu_kv_page_bytes,
    .kv_open = cpu_kv_open,
    .kv_close = cpu_kv_close,
    .kv_save = cpu_kv_save,
    .kv_load = cpu_kv_load,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .on_threads = cpu_on_threads,
    .pin = cpu_pin,
    .finish = cpu_finish,
    .close = cpu_close,
};

struct dev *cpu_open(const char *level, int threads, char why[160])
{
    const struct level *chosen = level_choose(level, why);
    if (!chosen) return NULL;
    struct cpu_dev *d = calloc(1, sizeof *d);
    if (d) {
        d->ops = cpu_ops;
        compose_fill(&d->ops);
        d->head = (struct dev){.ops = &d->ops, .threads = threads ? threads : pool_cores()};
        snprintf(d->head.level, sizeof d->head.level, "%s", chosen->name);
        d->isa = chosen->isa;
        d->tiles = chosen->tiles;
        d->streams = !is_intel(); /* on Intel's, that reaches half of the memory's rate (docs/performance.md) */
        for (int i = 0; i < 2; i++) dynamic8_open(&d->tables[i], i == 0);
        d->ops.kv_type = d->isa->kv_type;
        d->ops.bf16_units = d->isa->bf16_units || d->tiles;
        d->worker = calloc((size_t)d->head.threads, sizeof *d->worker);
        d->pool = pool_open(d->head.threads);
        if (d->worker && d->pool) return &d->head;
        cpu_close(&d->head);
    }
    snprintf(why, 160, "not enough memory or threads for %d workers", threads);
    return NULL;
}
