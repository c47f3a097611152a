/* Selection among the tokens of one row, by a whole block.
 *
 * The probability of a token is an integer, its `mass`: exp((z - max) / T) in units of 2^-s, where 2^s times the
 * vocabulary's size is at most 2^62. Sums of integers do not depend on order, so histograms may use atomics and rows
 * may be divided into chunks without effect on a choice; and cuts are exact, because everything that is compared is
 * a sum of the same integers.
 *
 * A selection refines a histogram: over coarse bins, then over the digits of the keys in the bin where the sum
 * reaches its goal. Once few tokens are left they are compared pairwise. */
#ifndef TANDEM_KERNELS_CUDA_SAMPLE_SELECT_CUH
#define TANDEM_KERNELS_CUDA_SAMPLE_SELECT_CUH

#include "kernels/cuda/warp.cuh"

#include <climits>

namespace GPU_NAMESPACE {

typedef unsigned long long u64;

enum {
    DIGIT_BITS = 11,
    DIGITS = 1 << DIGIT_BITS, /* buckets of a histogram over digits */
    BINS = 1024,              /* of the coarsest histogram of z */
    BINS_PER_NAT = 16,
    FEW = 1024, /* most tokens that are compared pairwise */
};

/* one row */
struct row_view {
    const float *z;
    int V;
    float max, bins_per; /* of z; bins per unit of z */
    bool vectors;        /* z is 16-byte aligned */
    double inv_t, unit;  /* 1 / temperature; 2^s */
};

/* ---- a token's keys ---------------------------------------------------------------------------------------------- */

/* Maps floats to unsigned integers in the same order; both zeros give the same. */
__device__ inline unsigned rising(float z)
{
    unsigned u = __float_as_uint(z == 0 ? 0 : z);
    return u >> 31 ? ~u : u | 0x80000000u;
}

__device__ inline float from_rising(unsigned u)
{
    return __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

/* Sort key: smaller for more likely tokens. */
__device__ inline u64 order_of(float z)
{
    return ~rising(z);
}

/* Monotonic: never smaller for a smaller z, despite rounding. */
__device__ inline int bin_of(const row_view &v, float z)
{
    return (int)fminf((v.max - z) * v.bins_per, (float)(BINS - 1));
}

__device__ inline double nats_of(const row_view &v, float z)
{
    return ((double)z - (double)v.max) * v.inv_t;
}

__device__ inline u64 mass_of(const row_view &v, float z)
{
    double x = nats_of(v, z);
    /* exp(-44) is below half of 2^-62; nothing is negative: NOLINTNEXTLINE(bugprone-incorrect-roundings) */
    return x < -44 ? 0 : (u64)(exp(x) * v.unit + 0.5);
}

/* ---- which tokens are left --------------------------------------------------------------------------------------- */

/* A cut keeps a token and all that precede it, in order of key and then of id. */
struct cut {
    u64 key;
    int id;
};

__device__ inline bool within(const cut &c, u64 key, int id)
{
    return key < c.key || (key == c.key && id <= c.id);
}

struct members {
    cut likely;      /* by order_of */
    cut typical;     /* by distance_of; only with is_typical */
    double entropy;  /* without the logarithm of the sum, which cancels out in the distance */
    double least;    /* exp(nats) at least */
    bool is_typical; /* `typical` applies */
};

/* | -log p - entropy | as bits in the same order. */
__device__ inline u64 distance_of(const row_view &v, double entropy, float z)
{
    double d = mass_of(v, z) ? fabs(-nats_of(v, z) - entropy) : (double)INFINITY;
    u64 bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

__device__ inline bool is_member(const row_view &v, const members &m, int id, float z)
{
    if (!within(m.likely, order_of(z), id)) return false;
    if (m.is_typical && !within(m.typical, distance_of(v, m.entropy, z), id)) return false;
    return m.least <= 0 || exp(nats_of(v, z)) >= m.least;
}

/* Four consecutive tokens from id i on; 0 past the end. */
__device__ inline vec4 load_tokens(const row_view &v, int i, int hi)
{
    if (i >= hi) return {};
    return v.vectors && hi - i >= 4 ? load4<true>(v.z + i, 4) : load4<false>(v.z + i, hi - i);
}

/* Calls f(id, z) for the ids lo .. hi - 1 of a row, with two loads in flight; lo is a multiple of four. */
template <class F> __device__ inline void each(const row_view &v, int lo, int hi, F f)
{
    int step = (int)blockDim.x * 4;
    for (int i = lo + (int)threadIdx.x * 4; i < hi; i += 2 * step) {
        vec4 a[2] = {load_tokens(v, i, hi), load_tokens(v, i + step, hi)};
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (i + j * step + k < hi) f(i + j * step + k, a[j].v[k]);
    }
}

/* ---- shared memory ----------------------------------------------------------------------------------------------- */

struct few_tokens {
    u64 key[FEW], mass[FEW], sum[FEW];
    int id[FEW];
};

struct histogram {
    u64 amount[DIGITS];
    unsigned count[DIGITS];
};

struct select_smem {
    union {
        histogram h;
        few_tokens few;
    };
    block_part<u64> part;
    block_part<double> part_real;
    block_part<int> part_int;
    block_part<float> part_float;
    u64 before; /* result of find: the sum before the digit */
    int digit;
    int n;
    cut found;
    u64 total;
    float first;
    int chosen;
};

/* The maximum over the block, on every thread. */
__device__ inline u64 block_largest(u64 v, block_part<u64> &s)
{
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    for (int round = 0; round < 2; round++) {
        for (int m = 16; m; m >>= 1) {
            u64 other = __shfl_xor_sync(FULL_WARP, v, m);
            v = other > v ? other : v;
        }
        if (round) break;
        if (lane == 0) s.warp[warp] = v;
        __syncthreads();
        v = lane < warps ? s.warp[lane] : 0;
    }
    __syncthreads();
    return v;
}

/* ---- finding where a running sum reaches its goal --------------------------------------------------------------- */

struct goal {
    double amount;
    bool beyond; /* the sum must exceed the goal; otherwise reach it */
};

__device__ inline bool arrived(const goal &g, u64 sum)
{
    return g.beyond ? (double)sum > g.amount : (double)sum >= g.amount;
}

/* Sets s.digit to the first j < n at which before + get(0) + .. + get(j) reaches the goal, or the last that is not
 * empty; s.before to the sum before it. Run by the first warp; barriers before and after. */
template <class F> __device__ inline void find(select_smem &s, int n, u64 before, goal g, F get)
{
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = (int)threadIdx.x, per = (n + 31) / 32, from = lane * per;
        u64 mine = 0;
        for (int k = 0; k < per; k++) { /* lanes start at different offsets: no bank conflicts */
            int j = from + (k + lane) % per;
            if (j < n) mine += get(j);
        }
        u64 upto = mine;
        for (int by = 1; by < 32; by *= 2) {
            u64 below = __shfl_up_sync(FULL_WARP, upto, by);
            if (lane >= by) upto += below;
        }
        unsigned here = __ballot_sync(FULL_WARP, arrived(g, before + upto)), any = __ballot_sync(FULL_WARP, mine > 0);
        int first = here ? __ffs((int)here) - 1 : any ? 31 - __clz((int)any) : 0;
        if (lane == first) {
            u64 sum = before + upto - mine, at = sum;
            int digit = from < n ? from : 0;
            for (int j = from; j < from + per && j < n; j++) {
                u64 a = get(j);
                if (a) digit = j, at = sum;
                sum += a;
                if (a && arrived(g, sum)) break;
            }
            s.digit = digit;
            s.before = at;
        }
    }
    __syncthreads();
}

/* ---- selecting --------------------------------------------------------------------------------------------------- */

enum select_by { BY_ORDER, BY_DISTANCE };

template <select_by BY> __device__ inline u64 key_of(const row_view &v, const members &m, float z)
{
    return BY == BY_ORDER ? order_of(z) : distance_of(v, m.entropy, z);
}

template <select_by BY> __device__ inline int coarse_of(const row_view &v, u64 key, float z)
{
    if (BY == BY_ORDER) return bin_of(v, z);
    double d;
    memcpy(&d, &key, sizeof d);
    return (int)fmin(d * (double)BINS_PER_NAT, (double)(BINS - 1));
}

/* The tokens under consideration: all; those of a bin whose key begins with `prefix`; or those of one key whose id
 * begins with it. */
struct bucket {
    enum { ALL, KEY, ID } stage;
    int bin, shift; /* shift: of the current digit in key or id */
    u64 prefix, key;
};

__device__ inline u64 above(u64 x, int bits)
{
    return bits < 64 ? x >> bits : 0;
}

/* The token's digit in the bucket, or -1 when it is not in the bucket. */
__device__ inline int digit_of(const bucket &b, u64 key, int bin, int id)
{
    if (b.stage == bucket::ALL) return bin;
    if (b.stage == bucket::KEY)
        return bin == b.bin && above(key, b.shift + DIGIT_BITS) == b.prefix ? (int)(key >> b.shift) & (DIGITS - 1) : -1;
    return key == b.key && above((u64)id, b.shift + DIGIT_BITS) == b.prefix ? id >> b.shift & (DIGITS - 1) : -1;
}

/* Narrows the bucket to the digit. @return false when that leaves one token, whose id is (prefix, digit). */
__device__ inline bool narrow(bucket &b, int digit, int top_shift)
{
    if (b.stage == bucket::ALL) {
        b = {bucket::KEY, digit, top_shift, 0, 0};
        return true;
    }
    b.prefix = b.prefix << DIGIT_BITS | (u64)digit;
    if (b.shift > 0) {
        b.shift -= DIGIT_BITS;
        return true;
    }
    if (b.stage == bucket::ID) return false;
    b = {bucket::ID, b.bin, DIGIT_BITS, 0, b.prefix};
    return true;
}

/* Finds where the sum over s.few reaches the goal, in order of key and id; sets s.found, or leaves it when it is not
 * reached. */
__device__ inline void find_among_few(select_smem &s, int n, u64 before, goal g)
{
    const few_tokens &f = s.few;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        cut me = {f.key[i], f.id[i]};
        u64 sum = before;
        for (int j = 0; j < n; j++)
            if (within(me, f.key[j], f.id[j])) sum += f.mass[j];
        if (arrived(g, sum) && !arrived(g, sum - f.mass[i])) s.found = me;
    }
    __syncthreads();
}

__device__ inline void clear_histogram(select_smem &s)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < DIGITS; i += (int)blockDim.x) s.h.amount[i] = 0, s.h.count[i] = 0;
    __syncthreads();
}

/* Histogram of the members in bucket b by their digits. */
template <select_by BY>
__device__ inline void count_digits(select_smem &s, const row_view &v, const members &m, bool counting, const bucket &b)
{
    clear_histogram(s);
    each(v, 0, v.V, [&](int id, float z) {
        if (!is_member(v, m, id, z)) return;
        u64 key = key_of<BY>(v, m, z);
        int digit = digit_of(b, key, coarse_of<BY>(v, key, z), id);
        if (digit < 0) return;
        atomicAdd(&s.h.amount[digit], counting ? 1 : mass_of(v, z));
        atomicAdd(&s.h.count[digit], 1u);
    });
}

/* Gathers the members in bucket b with this digit, FEW at most, into s.few. */
template <select_by BY>
__device__ inline void gather_digit(select_smem &s, const row_view &v, const members &m, bool counting, const bucket &b,
                                    int digit)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        s.n = 0;
        s.found = {~(u64)0, INT_MAX};
    }
    __syncthreads();
    each(v, 0, v.V, [&](int id, float z) {
        if (!is_member(v, m, id, z)) return;
        u64 key = key_of<BY>(v, m, z);
        if (digit_of(b, key, coarse_of<BY>(v, key, z), id) != digit) return;
        int at = atomicAdd(&s.n, 1);
        s.few.key[at] = key;
        s.few.id[at] = id;
        s.few.mass[at] = counting ? 1 : mass_of(v, z);
    });
    __syncthreads();
}

/* The bin in which a sum reaches its goal: the sum before it, and its number of tokens. */
struct arrival {
    u64 before;
    int bin, count;
};

/* The token of that bin at which the sum over the members reaches the goal: of their masses, or with `counting` of
 * ones. */
template <select_by BY>
__device__ inline cut select_in(select_smem &s, const row_view &v, const members &m, bool counting, goal g, arrival in)
{
    const int top_shift = BY == BY_ORDER ? 2 * DIGIT_BITS : 5 * DIGIT_BITS;
    bucket b = {bucket::ALL, 0, 0, 0, 0};
    int digit = in.bin, count = in.count;
    u64 before = in.before;
    while (count > FEW) {
        if (!narrow(b, digit, top_shift)) return {b.key, (int)b.prefix};
        count_digits<BY>(s, v, m, counting, b);
        find(s, DIGITS, before, g, [&](int j) { return s.h.amount[j]; });
        digit = s.digit;
        count = (int)s.h.count[digit];
        before = s.before;
    }
    gather_digit<BY>(s, v, m, counting, b, digit);
    find_among_few(s, s.n, before, g);
    return s.found;
}

/* Likewise, among all bins. */
template <select_by BY>
__device__ inline cut select(select_smem &s, const row_view &v, const members &m, bool counting, goal g)
{
    count_digits<BY>(s, v, m, counting, {bucket::ALL, 0, 0, 0, 0});
    find(s, BINS, 0, g, [&](int j) { return s.h.amount[j]; });
    arrival in = {s.before, s.digit, (int)s.h.count[s.digit]};
    return select_in<BY>(s, v, m, counting, g, in);
}

/* ---- by id ------------------------------------------------------------------------------------------------------- */

/* Among the members with ids [2048 p, 2048 p + 2048): the first at which the sum of masses, in order of id, reaches
 * the goal. */
__device__ inline int select_in_chunk(select_smem &s, const row_view &v, const members &m, int chunk, u64 before,
                                      goal g)
{
    int lo = chunk << DIGIT_BITS, hi = lo + DIGITS < v.V ? lo + DIGITS : v.V;
    __syncthreads();
    each(v, lo, hi, [&](int id, float z) { s.h.amount[id - lo] = is_member(v, m, id, z) ? mass_of(v, z) : 0; });
    find(s, hi - lo, before, g, [&](int j) { return s.h.amount[j]; });
    return lo + s.digit;
}

/* The masses of the members in each chunk of 2048 ids, into s.h.amount; returns their sum. */
__device__ inline u64 sum_chunks(select_smem &s, const row_view &v, const members &m)
{
    int chunks = (v.V + DIGITS - 1) / DIGITS;
    u64 all = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < chunks; i += (int)blockDim.x) s.h.amount[i] = 0;
    __syncthreads();
    for (int base = 0; base < v.V; base += (int)blockDim.x * 4) { /* the 128 ids of a warp are in one chunk */
        int id = base + (int)threadIdx.x * 4;
        vec4 z = load_tokens(v, id, v.V);
        u64 mass = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (id + k < v.V && is_member(v, m, id + k, z.v[k])) mass += mass_of(v, z.v[k]);
        all += mass;
        mass = warp_sum(mass);
        if (threadIdx.x % 32 == 0 && mass) atomicAdd(&s.h.amount[id >> DIGIT_BITS], mass);
    }
    return block_sum(all, s.part);
}

/* A token's place among all: 1 is the likeliest; ties by ascending id. */
__device__ inline int rank_of(select_smem &s, const row_view &v, int id)
{
    float own = v.z[id];
    u64 above = 0;
    each(v, 0, v.V, [&](int i, float z) { above += z > own || (z == own && i < id); });
    return 1 + (int)block_sum(above, s.part);
}

} // namespace GPU_NAMESPACE

#endif
