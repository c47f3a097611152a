/* The checkers check: kernels with a bug each, and the same kernels without it.  Every bug must be reported, by the
 * scheduler itself, by poison (a NaN in the result), by ASan or by TSan, whichever this build has; no sound kernel may
 * be.
 *
 *     planted               runs every case that this build can see, each in a process of its own
 *     planted CASE [sound]  one case, here */
#include "kernels/cuda/ptx.cuh"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN true
#endif
#endif
#ifndef WITH_ASAN
#define WITH_ASAN false
#endif
#ifdef SIMT_TSAN
#define WITH_TSAN true
#else
#define WITH_TSAN false
#endif

using namespace simt_device;

namespace {

enum { BLOCK = 64, BLOCKS = 2 };

struct reduce_memory {
    float part[BLOCK];
};

/* The sum over the block; bug: nobody waits for the other half's values. */
template <bool BUG> void sum_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    s.part[t] = x[t];
    for (int m = BLOCK / 2; m; m /= 2) {
        if (!BUG) __syncthreads();
        if (t < m) s.part[t] += s.part[t + m];
    }
    __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = s.part[0];
}

/* A shared array serves twice; bug: it is filled again while others still read. */
template <bool BUG> void twice_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        s.part[t] = x[t] + (float)round;
        __syncthreads();
        sum += s.part[BLOCK - 1 - t];
        if (!BUG) __syncthreads();
    }
    out[(int)blockIdx.x * BLOCK + t] = sum;
}

/* bug: both blocks write the same rows */
template <bool BUG> void same_tile_kernel(float *out, const float *x)
{
    out[(BUG ? 0 : (int)blockIdx.x * BLOCK) + (int)threadIdx.x] = x[threadIdx.x];
}

/* bug: neighbours in a warp exchange through shared memory without __syncwarp */
template <bool BUG> void in_warp_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    s.part[t] = x[t];
    if (!BUG) __syncwarp();
    out[(int)blockIdx.x * BLOCK + t] = s.part[t ^ 1];
}

/* The same within a warp, with __syncwarp. */
template <bool BUG> void twice_in_warp_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    float sum = 0;
    for (int round = 0; round < 2; round++) {
        s.part[t] = x[t] + (float)round;
        __syncwarp();
        sum += s.part[t ^ 31];
        if (!BUG) __syncwarp();
    }
    out[(int)blockIdx.x * BLOCK + t] = sum;
}

/* bug: one element past the struct that the launch asked for */
template <bool BUG> void shared_overrun_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    float *part = s.part;
    part[t + (BUG ? 1 : 0)] = x[t];
    __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = x[t];
}

/* bug: one element past the input */
template <bool BUG> void global_overrun_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    out[(int)blockIdx.x * BLOCK + t] = x[t + (BUG ? 1 : 0)];
}

/* bug: the halves of the block wait at different barriers */
template <bool BUG> void divergent_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    if (!BUG || t < BLOCK / 2)
        __syncthreads();
    else
        __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = x[t];
}

/* bug: a lane returns before a collective whose mask has it */
template <bool BUG> void left_lane_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    if (BUG && t % 32 == 5) return;
    out[(int)blockIdx.x * BLOCK + t] = __shfl_xor_sync(FULL_WARP, x[t], 1);
}

/* bug: a shuffle reads a lane outside its mask */
template <bool BUG> void outside_mask_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    float v = x[t];
    if (t % 32 < 16) v = __shfl_xor_sync(0xffffu, v, BUG ? 16 : 1);
    out[(int)blockIdx.x * BLOCK + t] = v;
}

struct copy_memory {
    alignas(16) float stage[2][BLOCK];
};

/* Two groups of copies in flight; bug: the wait leaves both in flight. */
template <bool BUG> void copy_kernel(float *out, const float *x)
{
    SMEM(copy_memory, s);
    int t = (int)threadIdx.x;
    for (int g = 0; g < 2; g++) {
        if (t % 4 == 0) cp_async16(&s.stage[g][t], x + t, true);
        cp_async_commit();
    }
    cp_async_wait<BUG ? 2 : 1>();
    __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = s.stage[0][BLOCK - 1 - t];
    cp_async_wait<0>();
}

/* bug: shared memory is read that nobody wrote */
template <bool BUG> void unwritten_kernel(float *out, const float *x)
{
    SMEM(reduce_memory, s);
    int t = (int)threadIdx.x;
    if (!BUG || t) s.part[t] = x[t];
    __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = s.part[BLOCK - 1 - t];
}

/* bug: 16 bytes from an address that is a multiple of 4 only */
template <bool BUG> void misaligned_kernel(float *out, const float *x)
{
    SMEM(copy_memory, s);
    int t = (int)threadIdx.x;
    if (t % 4 == 0 && t < BLOCK - 4) cp_async16(&s.stage[0][t], x + t + (BUG ? 1 : 0), true);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[(int)blockIdx.x * BLOCK + t] = t < BLOCK - 4 ? s.stage[0][t] : 0.0f;
}

/* bug: in a kernel launched early one thread does not wait for the kernels before it */
template <bool BUG> void early_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    if (!BUG || t != BLOCK - 1) wait_for_previous();
    out[(int)blockIdx.x * BLOCK + t] = x[t];
}

/* bug: in a kernel launched early something is read before the kernels before it have written it */
template <bool BUG> void too_early_kernel(float *out, const float *x)
{
    int t = (int)threadIdx.x;
    float y = BUG ? x[t] : 0;
    wait_for_previous();
    out[(int)blockIdx.x * BLOCK + t] = BUG ? y : x[t];
}

/* before each case's: x, which has nothing yet */
void fill_kernel(float *x)
{
    x[(int)threadIdx.x] = (float)(int)threadIdx.x;
}

typedef void kernel_fn(float *, const float *);

enum seen_by { BY_SIMT, BY_POISON, BY_SCHEDULE, BY_ASAN, BY_TSAN };

const struct planted {
    const char *name;
    kernel_fn *bug, *sound;
    size_t smem;
    enum seen_by by;
    const char *report; /* what the process says before it dies */
    bool early;         /* launched early */
} cases[] = {
#define CASE(name, smem, by, report)                                                                                   \
    {                                                                                                                  \
#name, name##_kernel < true>, name##_kernel < false>, smem, by, report, false                                  \
    }
    CASE(divergent, 0, BY_SIMT, "divergent __syncthreads"),
    CASE(left_lane, 0, BY_SIMT, "deadlock"),
    CASE(outside_mask, 0, BY_SIMT, "a shuffle reads a lane outside its mask"),
    CASE(misaligned, sizeof(copy_memory), BY_SIMT, "misaligned cp.async"),
    CASE(copy, sizeof(copy_memory), BY_POISON, "a NaN"),
    CASE(unwritten, sizeof(reduce_memory), BY_POISON, "a NaN"),
    CASE(twice, sizeof(reduce_memory), BY_SCHEDULE, "another result"),
    CASE(shared_overrun, sizeof(reduce_memory), BY_ASAN, "heap-buffer-overflow"),
    CASE(global_overrun, 0, BY_ASAN, "heap-buffer-overflow"),
    CASE(sum, sizeof(reduce_memory), BY_TSAN, "data race"),
    CASE(twice, sizeof(reduce_memory), BY_TSAN, "data race"),
    CASE(twice_in_warp, sizeof(reduce_memory), BY_TSAN, "data race"),
    CASE(in_warp, sizeof(reduce_memory), BY_TSAN, "data race"),
    CASE(same_tile, 0, BY_TSAN, "data race"),
    {"early", early_kernel<true>, early_kernel<false>, 0, BY_SIMT, "ends without having waited", true},
    {"too_early", too_early_kernel<true>, too_early_kernel<false>, 0, BY_POISON, "a NaN", true},
    {"too_early", too_early_kernel<true>, too_early_kernel<false>, 0, BY_TSAN, "data race", true},
};

[[noreturn]] void quit(const char *what)
{
    fprintf(stderr, "planted: %s\n", what);
    exit(3);
}

/* Launches the kernel under a schedule and gives its results in out[BLOCKS * BLOCK]. */
void run_once(kernel_fn *kernel, const planted *c, int seed, float *out)
{
    char text[16];
    void *in, *device;
    snprintf(text, sizeof text, "%d", seed);
    setenv("SIMT_SEED", text, 1);
    size_t bytes = BLOCK * sizeof(float);
    cudaStream_t s;
    cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (cudaMalloc(&in, bytes) || cudaMalloc(&device, BLOCKS * bytes)) quit("no memory");
    simt_runtime::launch(s, dim3(1), dim3(BLOCK), 0, fill_kernel, static_cast<float *>(in));
    simt_runtime::launch_as(s, c->early, dim3(BLOCKS), dim3(BLOCK), c->smem, kernel, static_cast<float *>(device),
                            static_cast<const float *>(in));
    cudaMemcpyAsync(out, device, BLOCKS * bytes, cudaMemcpyDeviceToHost, s);
    if (cudaStreamSynchronize(s) || cudaFree(in) || cudaFree(device) || cudaStreamDestroy(s)) quit("an error");
}

/* Under 20 schedules: no NaN, and every time the same. */
int run_case(const planted *c, bool sound)
{
    float first[BLOCKS * BLOCK], out[BLOCKS * BLOCK];
    for (int seed = 0; seed <= 20; seed++) {
        run_once(sound ? c->sound : c->bug, c, seed, seed ? out : first);
        for (int i = 0; i < BLOCKS * BLOCK; i++)
            if (first[i] != first[i]) quit("a NaN");
        if (seed && memcmp(first, out, sizeof out)) quit("another result under another schedule");
    }
    return 0;
}

bool visible(enum seen_by by)
{
    return by == BY_ASAN ? WITH_ASAN : by == BY_TSAN ? WITH_TSAN : !WITH_TSAN && !WITH_ASAN;
}

/* The case in a process of its own; *said: what it wrote to stderr.  Its exit status, or -1 for a signal. */
int run_apart(const planted *c, int index, bool sound, std::string *said)
{
    int pipe_of[2], status;
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    if (pipe(pipe_of)) quit("no pipe");
    pid_t pid = fork();
    if (pid < 0) quit("no process");
    if (pid == 0) {
        dup2(pipe_of[1], 2);
        close(pipe_of[0]);
        close(pipe_of[1]);
        setenv("TSAN_OPTIONS", "halt_on_error=1:exitcode=66", 1);
        setenv("ASAN_OPTIONS", "detect_stack_use_after_return=0:symbolize=0", 1);
        execl("/proc/self/exe", "planted", number, sound ? "sound" : "bug", static_cast<char *>(nullptr));
        _exit(127);
    }
    close(pipe_of[1]);
    char buf[4096];
    for (ssize_t n; (n = read(pipe_of[0], buf, sizeof buf)) > 0;) said->append(buf, (size_t)n);
    close(pipe_of[0]);
    waitpid(pid, &status, 0);
    (void)c;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

} // namespace

int main(int argc, char **argv)
{
    const int n = sizeof cases / sizeof *cases;
    if (argc == 3) {
        int i = atoi(argv[1]);
        return i >= 0 && i < n ? run_case(&cases[i], argv[2][0] == 's') : 2;
    }
    int failures = 0, ran = 0;
    for (int i = 0; i < n; i++) {
        std::string bug, sound;
        if (!visible(cases[i].by)) continue;
        ran++;
        int status = run_apart(&cases[i], i, false, &bug);
        bool found = status != 0 && bug.find(cases[i].report) != std::string::npos;
        int clean = run_apart(&cases[i], i, true, &sound);
        printf("%-16s bug %s, sound %s\n", cases[i].name, found ? "found" : "NOT FOUND",
               clean == 0 ? "passes" : "REPORTED");
        if (!found) printf("  status %d, said: %.2000s\n", status, bug.c_str());
        if (clean) printf("  status %d, said: %.2000s\n", clean, sound.c_str());
        failures += !found + (clean != 0);
    }
    printf("%d cases, %d failures\n", ran, failures);
    return failures || !ran;
}
