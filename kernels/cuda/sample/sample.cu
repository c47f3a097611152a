/* Chooses the next token of each row, on the device from logits to ids.
 *
 * Kernels over chunks of 2048 tokens, and between them kernels with one block per row:
 *   adjust  (chunks)  reads the logits once: their maximum and sum of exponentials, and for rows with masks, additions
 *                     or penalties writes the adjusted copy;
 *   weigh   (chunks)  for rows that draw: the masses of the chunks, and with cuts a histogram of the distances to the
 *                     maximum;
 *   limit   (rows)    with cuts: the bins that hold everything that the cuts can keep;
 *   gather  (chunks)  the tokens of those bins, if they are few;
 *   choose  (rows)    the most likely token, a draw from all, or cuts and a draw from the gathered tokens;
 *   cut     (rows)    rows whose cuts may keep many tokens, or which use typical_p: select.cuh;
 *   report  (rows)    the most likely tokens.
 * Which kernels run depends on what the rows request, never on the logits. The order of blocks does not matter, and
 * a row's result depends on that row alone. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/sample/select.cuh"
#include "kernels/rng.h"

#include <cstdlib>
#include <cstring>

namespace GPU_NAMESPACE {
namespace {

enum { CHUNK = DIGITS, CHUNK_THREADS = 256, CHUNKS_MAX = DIGITS };

/* A row in the kernels' form; lists are offsets into the staged bytes, -1: none. */
struct row_in {
    float temperature, top_p, min_p, typical_p, repetition, frequency, presence;
    int top_k, forced, top_n, n_adds, n_counts;
    int adds, counts, allowed;
    int copy;        /* index of its adjusted copy; -1: none, the logits are used as they are */
    bool adds_apart; /* the ids of adds are distinct */
    double u;        /* uniform random number of the draw */
};

/* State of a row that its blocks accumulate; zero at first. */
struct row_state {
    u64 best, best_z; /* maxima of the logits and of the adjusted: (rising, ~id), so that the lowest id wins a tie */
    u64 total;        /* total mass of the row */
    double lse;       /* of the logits */
    unsigned nan, nan_z;
    enum { ALL, FEW_LEFT, MANY_LEFT } path; /* the set that a draw is made from */
    int last, n;                            /* of FEW_LEFT: the last bin; number of gathered tokens */
    arrival first_cut;                      /* of top_k, or of top_p when that comes first */
    unsigned count[BINS];
    u64 mass[BINS];
};

struct chunk_sum {
    double sum; /* of exp(logit - max) */
    float max;
};

struct sample_call {
    const float *logits;
    size_t ld;
    int V, chunks;
    double unit;
    const uint8_t *staged;
    const row_in *row;
    float *z; /* (copies, z_ld) */
    size_t z_ld;
    row_state *state;
    chunk_sum *sums; /* (rows, chunks) */
    u64 *masses;     /* (rows, chunks) */
    u64 *few;        /* (rows, FEW) gathered: order_of << 32 | id */
    struct sample_out *out;
};

__device__ inline const float *adjusted(const sample_call &c, const row_in &r, int row)
{
    return r.copy < 0 ? c.logits + (size_t)row * c.ld : c.z + (size_t)r.copy * c.z_ld;
}

__device__ inline bool cuts_top_k(const row_in &r, int V)
{
    return r.top_k > 0 && r.top_k < V;
}

__device__ inline bool cuts_top_p(const row_in &r)
{
    return r.top_p > 0 && r.top_p < 1;
}

__device__ inline bool cuts_typical(const row_in &r)
{
    return r.typical_p > 0 && r.typical_p < 1;
}

__device__ inline bool has_cuts(const row_in &r, int V)
{
    return cuts_top_k(r, V) || cuts_typical(r) || cuts_top_p(r) || r.min_p > 0;
}

/* ---- adjust ------------------------------------------------------------------------------------------------------ */

struct adjust_smem {
    block_part<float> max;
    block_part<double> sum;
    block_part<u64> best;
};

/* Applies additions, then penalties, to the ids [from, to) of z. */
__device__ inline void apply_lists(const sample_call &c, const row_in &r, float *z, int from, int to)
{
    const auto *adds = reinterpret_cast<const struct token_add *>(c.staged + r.adds);
    const auto *counts = reinterpret_cast<const struct token_count *>(c.staged + r.counts);
    int me = (int)threadIdx.x, all = (int)blockDim.x;
    __syncthreads();
    for (int i = r.adds_apart ? me : 0; i < r.n_adds;
         i += r.adds_apart ? all : 1) { /* repeated ids: one thread, in order */
        int id = adds[i].id;
        if (id >= from && id < to && (r.adds_apart || id % all == me)) z[id] += adds[i].add;
    }
    __syncthreads();
    for (int i = me; i < r.n_counts; i += all) {
        int id = counts[i].id, n = counts[i].generated;
        if (id < from || id >= to) continue;
        float l = z[id];
        if (r.repetition != 1) l = l < 0 ? l * r.repetition : l / r.repetition;
        z[id] = l - (r.frequency * (float)n + (n > 0 ? r.presence : 0));
    }
    __syncthreads();
}

/* The maximum of a thread's values with its id, as (rising, ~id); nan: whether one is NaN. */
__device__ inline u64 best_of(const vec4 &a, int id, int left, bool &nan)
{
    u64 best = 0;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u64 me = (u64)rising(a.v[k]) << 32 | (unsigned)~(id + k);
        if (k >= left) continue;
        if (a.v[k] != a.v[k])
            nan = true;
        else
            best = me > best ? me : best;
    }
    return best;
}

/* grid (chunks, rows) */
template <bool VEC> __global__ void __launch_bounds__(CHUNK_THREADS) adjust_kernel(sample_call c)
{
    SMEM(adjust_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.y, from = (int)blockIdx.x * CHUNK, to = from + CHUNK < c.V ? from + CHUNK : c.V;
    const row_in &r = c.row[row];
    row_state &state = c.state[row];
    const float *logits = c.logits + (size_t)row * c.ld;
    float *z = r.copy < 0 ? nullptr : c.z + (size_t)r.copy * c.z_ld;
    const auto *allowed = r.allowed < 0 ? nullptr : reinterpret_cast<const uint32_t *>(c.staged + r.allowed);
    vec4 a[2];
    float max = -INFINITY;
    u64 best = 0;
    bool nan = false;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int i = from + (int)(threadIdx.x + (unsigned)j * blockDim.x) * 4;
        a[j] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (i >= to) continue;
        a[j] = load4<VEC>(logits + i, to - i);
        u64 b = best_of(a[j], i, to - i, nan);
        best = b > best ? b : best;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (i + k >= to) a[j].v[k] = -INFINITY;
            max = fmaxf(max, a[j].v[k]);
            if (z && i + k < to) z[i + k] = !allowed || allowed[i / 32] >> (i % 32 + k) & 1 ? a[j].v[k] : -INFINITY;
        }
    }
    max = block_max(max, s.max);
    double sum = 0;
    if (max > -INFINITY)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) sum += (double)expf(a[j].v[k] - max);
    sum = block_sum(sum, s.sum);
    best = block_largest(best, s.best);
    if (nan) atomicOr(&state.nan, 1u);
    if (threadIdx.x == 0) {
        c.sums[(size_t)row * (size_t)c.chunks + blockIdx.x] = {sum, max};
        atomicMax(&state.best, best);
    }
    if (!z) return;
    apply_lists(c, r, z, from, to);
    best = 0;
    nan = false;
    for (int i = from + (int)threadIdx.x * 4; i < to; i += (int)blockDim.x * 4) {
        u64 b = best_of(load4<false>(z + i, to - i), i, to - i, nan);
        best = b > best ? b : best;
    }
    best = block_largest(best, s.best);
    if (nan) atomicOr(&state.nan_z, 1u);
    if (threadIdx.x == 0) atomicMax(&state.best_z, best);
}

/* ---- weigh ------------------------------------------------------------------------------------------------------- */

struct weigh_smem {
    unsigned count[BINS];
    u64 mass[BINS];
    block_part<u64> part;
};

/* The maximum, or a non-finite value when no token can be chosen. */
__device__ inline float best_value(u64 best, unsigned nan)
{
    return nan || best == 0 ? NAN : from_rising((unsigned)(best >> 32));
}

__device__ inline bool is_finite(float x)
{
    return x > -INFINITY && x < INFINITY;
}

__device__ inline row_view view_of(const sample_call &c, const row_in &r, int row)
{
    const row_state &s = c.state[row];
    float max = r.copy < 0 ? best_value(s.best, s.nan) : best_value(s.best_z, s.nan_z);
    double inv_t = r.temperature > 0 ? 1 / (double)r.temperature : 0;
    const float *z = adjusted(c, r, row);
    bool vectors = reinterpret_cast<uintptr_t>(z) % 16 == 0;
    return {z, c.V, max, (float)fmin((double)BINS_PER_NAT * inv_t, 1e30), vectors, inv_t, c.unit};
}

/* For a row whose maximum is `max` before and `max_z` after mask, additions and penalties: a token (0 stands for
 * any) if one may be chosen, else SAMPLE_NONE or SAMPLE_BROKEN. */
__device__ inline int verdict_of(const row_in &r, float max, float max_z)
{
    if (!is_finite(max)) return SAMPLE_BROKEN;
    if (r.forced >= 0 || is_finite(max_z)) return 0;
    return max_z == -INFINITY ? SAMPLE_NONE : SAMPLE_BROKEN;
}

/* Whether a token is drawn. Every kernel before `choose` tests this, so that all skip the same rows. */
__device__ inline bool draws(const sample_call &c, const row_in &r, int row, const row_view &v)
{
    const row_state &s = c.state[row];
    return r.forced < 0 && r.temperature > 0 && verdict_of(r, best_value(s.best, s.nan), v.max) == 0;
}

/* grid (chunks, rows) */
__global__ void __launch_bounds__(CHUNK_THREADS) weigh_kernel(sample_call c)
{
    SMEM(weigh_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.y, from = (int)blockIdx.x * CHUNK, to = from + CHUNK < c.V ? from + CHUNK : c.V;
    const row_in &r = c.row[row];
    row_view v = view_of(c, r, row);
    if (!draws(c, r, row, v)) return; /* uniform over the block */
    bool cuts = has_cuts(r, c.V);
    if (cuts) {
        for (int i = (int)threadIdx.x; i < BINS; i += (int)blockDim.x) s.count[i] = 0, s.mass[i] = 0;
        __syncthreads();
    }
    u64 all = 0;
    each(v, from, to, [&](int id, float z) {
        u64 mass = mass_of(v, z);
        int bin = bin_of(v, z);
        all += mass;
        if (!cuts) return;
        if (bin < BINS - 1) atomicAdd(&s.count[bin], 1u); /* the last bin, often the fullest, follows from the others */
        if (mass) atomicAdd(&s.mass[bin], mass);
    });
    all = block_sum(all, s.part);
    if (threadIdx.x == 0) c.masses[(size_t)row * (size_t)c.chunks + blockIdx.x] = all;
    if (!cuts) return;
    row_state &state = c.state[row];
    for (int i = (int)threadIdx.x; i < BINS; i += (int)blockDim.x) {
        if (s.count[i]) atomicAdd(&state.count[i], s.count[i]);
        if (s.mass[i]) atomicAdd(&state.mass[i], s.mass[i]);
    }
}

/* ---- limit and gather -------------------------------------------------------------------------------------------- */

/* The bins 0 .. *last of which the cuts may keep tokens. The row's histogram is in s.h. */
__device__ inline arrival limit_bins(select_smem &s, const row_in &r, int V, u64 total, int *last)
{
    bool top_k = cuts_top_k(r, V), top_p = cuts_top_p(r);
    arrival in = {0, BINS - 1, 0};
    if (top_k)
        find(s, BINS, 0, {(double)r.top_k, false}, [&](int j) { return (u64)s.h.count[j]; });
    else if (top_p && !cuts_typical(r))
        find(s, BINS, 0, {(double)r.top_p * (double)total, false}, [&](int j) { return s.h.amount[j]; });
    if (top_k || (top_p && !cuts_typical(r))) in = {s.before, s.digit, (int)s.h.count[s.digit]};
    *last = in.bin;
    if (r.min_p > 0 && !(top_k && top_p)) { /* after top_k, top_p is relative to the sum of the kept tokens */
        /* 1 of the 2 for rounding */
        int bins = (int)fmin(-log((double)r.min_p) * (double)BINS_PER_NAT + 2, (double)(BINS - 1));
        bins = bins < 0 ? 0 : bins;
        *last = bins < in.bin ? bins : in.bin;
    }
    return in;
}

/* one block a row */
__global__ void __launch_bounds__(CHUNK_THREADS) limit_kernel(sample_call c)
{
    SMEM(select_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.x, counted = 0, n = 0, last;
    const row_in &r = c.row[row];
    row_state &state = c.state[row];
    u64 total = 0;
    if (!draws(c, r, row, view_of(c, r, row)) || !has_cuts(r, c.V)) return; /* uniform over the block */
    for (int i = (int)threadIdx.x; i < BINS; i += (int)blockDim.x) {
        s.h.amount[i] = state.mass[i];
        s.h.count[i] = state.count[i];
        counted += (int)state.count[i];
        total += state.mass[i];
    }
    counted = block_sum(counted, s.part_int);
    total = block_sum(total, s.part);
    if (threadIdx.x == 0) s.h.count[BINS - 1] = (unsigned)(c.V - counted);
    __syncthreads();
    arrival in = limit_bins(s, r, c.V, total, &last);
    for (int i = (int)threadIdx.x; i <= last; i += (int)blockDim.x) n += (int)s.h.count[i];
    n = block_sum(n, s.part_int);
    if (threadIdx.x) return;
    state.total = total;
    state.last = last;
    state.first_cut = in;
    state.path = n <= FEW && !cuts_typical(r) ? row_state::FEW_LEFT : row_state::MANY_LEFT;
}

/* grid (chunks, rows) */
__global__ void __launch_bounds__(CHUNK_THREADS) gather_kernel(sample_call c)
{
    launch_next_and_wait();
    int row = (int)blockIdx.y, from = (int)blockIdx.x * CHUNK, to = from + CHUNK < c.V ? from + CHUNK : c.V;
    row_state &state = c.state[row];
    if (state.path != row_state::FEW_LEFT) return;
    row_view v = view_of(c, c.row[row], row);
    int last = state.last;
    u64 *few = c.few + (size_t)row * FEW;
    each(v, from, to, [&](int id, float z) {
        if (bin_of(v, z) <= last) few[atomicAdd(&state.n, 1)] = order_of(z) << 32 | (unsigned)id;
    });
}

/* ---- choose ------------------------------------------------------------------------------------------------------ */

/* log of the sum of exp(logit) */
__device__ inline double log_sum(const sample_call &c, int row, float max, select_smem &s)
{
    const chunk_sum *p = c.sums + (size_t)row * (size_t)c.chunks;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < c.chunks; i += (int)blockDim.x)
        if (p[i].max > -INFINITY) sum += p[i].sum * exp((double)p[i].max - (double)max);
    return (double)max + log(block_sum(sum, s.part_real));
}

__device__ inline members all_tokens()
{
    return {{~(u64)0, INT_MAX}, {~(u64)0, INT_MAX}, 0, 0, false};
}

/* Chooses among the gathered tokens: all that the cuts can keep, and all more likely ones. s.chosen: the choice if
 * rounding leaves none. */
__device__ inline int choose_among_few(select_smem &s, const row_view &v, const row_in &r, const u64 *few, int n,
                                       u64 total)
{
    few_tokens &f = s.few;
    int me = (int)threadIdx.x, all = (int)blockDim.x;
    bool top_k = r.top_k > 0 && r.top_k<v.V, top_p = r.top_p> 0 && r.top_p < 1;
    int most = top_k && r.top_k < n ? r.top_k : n;
    for (int i = me; i < n; i += all) {
        f.key[i] = few[i];
        f.mass[i] = mass_of(v, from_rising(~(unsigned)(few[i] >> 32)));
    }
    __syncthreads();
    for (int i = me; i < n; i += all) { /* the sum up to and including it, and its rank */
        u64 key = f.key[i], sum = 0;
        int rank = -1;
        for (int j = 0; j < n; j++)
            if (f.key[j] <= key) sum += f.mass[j], rank++;
        f.sum[i] = sum;
        f.id[i] = rank;
        if (rank == most - 1) s.total = sum;
        if (rank == 0) s.first = from_rising(~(unsigned)(key >> 32));
    }
    __syncthreads();
    double target = (double)r.top_p * (double)(top_k ? s.total : total);
    double least = r.min_p > 0 ? (double)r.min_p * exp(nats_of(v, s.first)) : 0;
    u64 kept = 0;
    for (int i = me; i < n; i += all) {
        int rank = f.id[i];
        bool keep = rank < most && !(top_p && (double)(f.sum[i] - f.mass[i]) >= target);
        if (keep && rank > 0 && r.min_p > 0) keep = exp(nats_of(v, from_rising(~(unsigned)(f.key[i] >> 32)))) >= least;
        f.sum[i] = keep ? f.mass[i] : 0;
        kept += f.sum[i];
    }
    kept = block_sum(kept, s.part);
    goal g = {r.u * (double)kept, true};
    for (int i = me; i < n; i += all) {
        if (f.sum[i] == 0) continue;
        unsigned id = (unsigned)f.key[i];
        u64 run = 0;
        for (int j = 0; j < n; j++)
            if ((unsigned)f.key[j] <= id) run += f.sum[j];
        if (arrived(g, run) && !arrived(g, run - f.sum[i])) s.chosen = (int)id;
    }
    __syncthreads();
    return s.chosen;
}

/* The sum of the members' masses; with `entropy` also of mass * -log(mass / unit). */
__device__ inline u64 sum_members(select_smem &s, const row_view &v, const members &m, u64 *entropy)
{
    u64 mass = 0, nats = 0;
    each(v, 0, v.V, [&](int id, float z) {
        if (!is_member(v, m, id, z)) return;
        u64 w = mass_of(v, z);
        double x = nats_of(v, z);
        mass += w;
        if (w) nats += (u64)(exp(x) * -x * v.unit + 0.5); /* not negative: NOLINT(bugprone-incorrect-roundings) */
    });
    mass = block_sum(mass, s.part);
    if (entropy) *entropy = block_sum(nats, s.part);
    return mass;
}

/* Applies all cuts one after the other to a set of any size; returns the members that are left. */
__device__ inline members cut_one_by_one(select_smem &s, const row_view &v, const row_in &r, const row_state &state)
{
    members m = all_tokens();
    float first = v.max;
    bool top_k = cuts_top_k(r, v.V);
    u64 mass = state.total;
    if (top_k) m.likely = select_in<BY_ORDER>(s, v, m, true, {(double)r.top_k, false}, state.first_cut);
    if (cuts_typical(r)) {
        u64 nats;
        mass = sum_members(s, v, m, &nats);
        m.entropy = (double)nats / (double)mass;
        m.typical = select<BY_DISTANCE>(s, v, m, false, {(double)r.typical_p * (double)mass, false});
        m.is_typical = true;
        first = -INFINITY;
        each(v, 0, v.V, [&](int id, float z) {
            if (is_member(v, m, id, z)) first = fmaxf(first, z);
        });
        first = block_max(first, s.part_float);
    }
    if (cuts_top_p(r)) {
        bool whole = !top_k && !m.is_typical;
        if (!whole) mass = sum_members(s, v, m, nullptr);
        goal g = {(double)r.top_p * (double)mass, false};
        m.likely =
            whole ? select_in<BY_ORDER>(s, v, m, false, g, state.first_cut) : select<BY_ORDER>(s, v, m, false, g);
    }
    if (r.min_p > 1)
        m.likely = select<BY_ORDER>(s, v, m, true, {1, false});
    else if (r.min_p > 0)
        m.least = (double)r.min_p * exp(nats_of(v, first));
    return m;
}

__device__ inline int choose_among_many(select_smem &s, const row_view &v, const row_in &r, const row_state &state)
{
    members m = cut_one_by_one(s, v, r, state);
    u64 mass = sum_chunks(s, v, m);
    goal g = {r.u * (double)mass, true};
    find(s, (v.V + CHUNK - 1) / CHUNK, 0, g, [&](int j) { return s.h.amount[j]; });
    int chunk = s.digit;
    u64 before = s.before;
    return select_in_chunk(s, v, m, chunk, before, g);
}

/* No cuts: `weigh` has summed the chunks. */
__device__ inline int choose_among_all(select_smem &s, const row_view &v, const row_in &r, const u64 *masses,
                                       int chunks)
{
    u64 mass = 0;
    for (int i = (int)threadIdx.x; i < chunks; i += (int)blockDim.x) mass += masses[i];
    mass = block_sum(mass, s.part);
    goal g = {r.u * (double)mass, true};
    find(s, chunks, 0, g, [&](int j) { return masses[j]; });
    int chunk = s.digit;
    u64 before = s.before;
    return select_in_chunk(s, v, all_tokens(), chunk, before, g);
}

__device__ inline void finish_row(const sample_call &c, int row, int id, double lse)
{
    struct sample_out &out = c.out[row];
    out.id = id;
    out.logprob = id < 0 ? NAN : (float)((double)c.logits[(size_t)row * c.ld + (size_t)id] - lse);
}

/* one block a row */
__global__ void __launch_bounds__(CHUNK_THREADS, 2) choose_kernel(sample_call c)
{
    SMEM(select_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.x;
    const row_in &r = c.row[row];
    row_state &state = c.state[row];
    float max = best_value(state.best, state.nan);
    double lse = NAN;
    for (int i = (int)threadIdx.x; i < SAMPLE_TOP_MAX; i += (int)blockDim.x) {
        c.out[row].top_id[i] = -1;
        c.out[row].top_logprob[i] = NAN;
    }
    row_view v = view_of(c, r, row);
    int id = verdict_of(r, max, v.max), rank = 0;
    if (is_finite(max)) lse = log_sum(c, row, max, s);
    if (id >= 0) {
        u64 best = r.copy < 0 ? state.best : state.best_z;
        if (threadIdx.x == 0) s.chosen = (int)~(unsigned)best;
        __syncthreads();
        if (r.forced >= 0)
            id = r.forced, rank = rank_of(s, v, id);
        else if (r.temperature <= 0 || state.path == row_state::MANY_LEFT)
            id = s.chosen; /* with MANY_LEFT `cut` chooses */
        else if (state.path == row_state::ALL)
            id = choose_among_all(s, v, r, c.masses + (size_t)row * (size_t)c.chunks, c.chunks);
        else
            id = choose_among_few(s, v, r, c.few + (size_t)row * FEW, state.n, state.total);
    }
    if (threadIdx.x) return;
    state.lse = lse;
    c.out[row].rank = rank;
    finish_row(c, row, id, lse); /* repeated by `cut`, with MANY_LEFT */
}

/* One block per row: the rows with cuts that `choose` left. */
__global__ void __launch_bounds__(CHUNK_THREADS) cut_kernel(sample_call c)
{
    SMEM(select_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.x;
    if (c.state[row].path != row_state::MANY_LEFT) return; /* uniform over the block */
    const row_in &r = c.row[row];
    int id = choose_among_many(s, view_of(c, r, row), r, c.state[row]);
    if (threadIdx.x == 0) finish_row(c, row, id, c.state[row].lse);
}

/* Gathers into s.few the tokens whose logits are at least the n-th largest of the chunks' maxima; s.n: their number.
 * The n most likely tokens are among them, and only chunks with such a maximum need to be read. Requires n chunks or
 * more. */
__device__ inline void gather_top(select_smem &s, const row_view &v, const chunk_sum *p, int chunks, int n)
{
    if (threadIdx.x == 0) s.n = 0;
    for (int i = (int)threadIdx.x; i < chunks; i += (int)blockDim.x) {
        int rank = 0;
        for (int j = 0; j < chunks; j++) rank += p[j].max > p[i].max || (p[j].max == p[i].max && j < i);
        if (rank == n - 1) s.first = p[i].max;
    }
    __syncthreads();
    float least = s.first;
    for (int i = 0; i < chunks; i++) {
        if (p[i].max < least) continue;
        int lo = i * CHUNK, hi = lo + CHUNK < v.V ? lo + CHUNK : v.V;
        each(v, lo, hi, [&](int id, float z) {
            if (z < least) return;
            int at = atomicAdd(&s.n, 1);
            if (at >= FEW) return;
            s.few.key[at] = order_of(z);
            s.few.id[at] = id;
        });
    }
    __syncthreads();
}

/* One block per row: the top_n most likely tokens by the model's logits, in order. */
__global__ void __launch_bounds__(CHUNK_THREADS) report_kernel(sample_call c)
{
    SMEM(select_smem, s);
    launch_next_and_wait();
    int row = (int)blockIdx.x;
    const row_in &r = c.row[row];
    const row_state &state = c.state[row];
    struct sample_out &out = c.out[row];
    float max = best_value(state.best, state.nan);
    if (r.top_n == 0 || !is_finite(max)) return; /* uniform over the block */
    const float *z = c.logits + (size_t)row * c.ld;
    row_view v = {z, c.V, max, BINS_PER_NAT, reinterpret_cast<uintptr_t>(z) % 16 == 0, 1, c.unit};
    int n = r.top_n < c.V ? r.top_n : c.V, got = FEW + 1;
    if (n <= c.chunks) {
        gather_top(s, v, c.sums + (size_t)row * (size_t)c.chunks, c.chunks, n);
        got = s.n;
        __syncthreads();
    }
    if (got > FEW) {
        cut top = select<BY_ORDER>(s, v, all_tokens(), true, {(double)n, false});
        __syncthreads();
        if (threadIdx.x == 0) s.n = 0;
        __syncthreads();
        each(v, 0, v.V, [&](int id, float value) {
            if (!within(top, order_of(value), id)) return;
            int at = atomicAdd(&s.n, 1);
            s.few.key[at] = order_of(value);
            s.few.id[at] = id;
        });
        __syncthreads();
        got = n;
    }
    for (int i = (int)threadIdx.x; i < got; i += (int)blockDim.x) {
        int rank = -1; /* starts below 0, because the token counts itself */
        for (int j = 0; j < got; j++) rank += within({s.few.key[i], s.few.id[i]}, s.few.key[j], s.few.id[j]);
        if (rank >= n) continue;
        out.top_id[rank] = s.few.id[i];
        out.top_logprob[rank] = (float)((double)z[s.few.id[i]] - state.lse);
    }
}

/* ---- the host's side --------------------------------------------------------------------------------------------- */

enum { PASS_BYTES = 4 << 20, COPY_BYTES = 64 << 20 }; /* limits of a pass, unless a single row needs more */

/* How many adjusted rows a pass of n rows may have. There is room for all of them, whatever the rows request, so
 * that the scratch reserved for n rows always suffices. */
int copies_of(int n, int V)
{
    int fit = (int)(COPY_BYTES / ((size_t)V * 4));
    return n < fit ? n : fit > 1 ? fit : 1;
}

size_t list_bytes(const struct sample_row *r, int V)
{
    return (size_t)r->n_adds * sizeof *r->adds + (size_t)r->n_counts * sizeof *r->counts +
           (r->allowed ? ((size_t)V + 31) / 32 * 4 : 0);
}

bool is_adjusted(const struct sample_row *r)
{
    return r->forced < 0 && (r->n_adds || r->n_counts || r->allowed);
}

/* Appends n bytes; returns their offset. */
int append(uint8_t *to, size_t *at, const void *from, size_t n)
{
    size_t begin = *at;
    if (n) memcpy(to + begin, from, n);
    *at += n;
    return (int)begin;
}

/* Writes the rows, followed by their lists. */
void write_rows(uint8_t *to, const struct sample_row *rows, int n, int V)
{
    size_t at = (size_t)n * sizeof(row_in);
    int copies = 0;
    for (int i = 0; i < n; i++) {
        const struct sample_row *s = rows + i;
        row_in r = {s->temperature,
                    s->top_p,
                    s->min_p,
                    s->typical_p,
                    s->repetition,
                    s->frequency,
                    s->presence,
                    s->top_k,
                    s->forced,
                    s->top_n,
                    s->n_adds,
                    s->n_counts,
                    -1,
                    -1,
                    -1,
                    -1,
                    true,
                    rng_uniform(s->seed, s->step)};
        for (int k = 1; k < s->n_adds; k++) r.adds_apart = r.adds_apart && s->adds[k - 1].id < s->adds[k].id;
        if (is_adjusted(s)) {
            r.copy = copies++;
            r.adds = append(to, &at, s->adds, (size_t)s->n_adds * sizeof *s->adds);
            r.counts = append(to, &at, s->counts, (size_t)s->n_counts * sizeof *s->counts);
            if (s->allowed) r.allowed = append(to, &at, s->allowed, ((size_t)V + 31) / 32 * 4);
        }
        memcpy(to + (size_t)i * sizeof r, &r, sizeof r);
    }
}

/* Number of rows from `row` on that fit one pass, and in *bytes their staged size. */
int pass_rows(const struct sample_args *a, int row, size_t *bytes)
{
    int n = 0, V = a->logits.cols, copies = 0;
    *bytes = 0;
    for (; row + n < a->logits.rows && n < 65535; n++) {
        const struct sample_row *r = a->row + row + n;
        bool copy = is_adjusted(r);
        size_t more = sizeof(row_in) + (copy ? list_bytes(r, V) : 0), all = *bytes + more;
        if (n &&
            (all + (size_t)(n + 1) * sizeof(struct sample_out) > PASS_BYTES || copies + copy > copies_of(n + 1, V)))
            break;
        *bytes = all;
        copies += copy;
    }
    return n;
}

/* Stages the rows and the memory for the results; c.row NULL: the device has failed. */
void stage_pass(gpu_dev *d, const struct sample_args *a, int row, int n, size_t bytes, sample_call *c)
{
    auto *host = static_cast<uint8_t *>(malloc(bytes));
    size_t out_bytes = (size_t)n * sizeof(struct sample_out);
    if (!host) {
        dev_fail(&d->head, "sample", "out of memory");
        return;
    }
    write_rows(host, a->row + row, n, a->logits.cols);
    void *out = gpu_stage_out(d, "sample", a->out + row, out_bytes);
    c->staged = static_cast<const uint8_t *>(gpu_stage(d, "sample", host, bytes));
    /* Allocating the second may have flushed what was pending, and the first with it. */
    if (d->n_pending == 0) out = gpu_stage_out(d, "sample", a->out + row, out_bytes);
    free(host);
    c->out = static_cast<struct sample_out *>(out);
    c->row = out ? reinterpret_cast<const row_in *>(c->staged) : nullptr;
}

/* Allocates scratch: states, masses, sums, adjusted rows. @return false when the device has failed. */
bool pass_scratch(gpu_dev *d, int n, sample_call *c)
{
    size_t chunks = (size_t)n * (size_t)c->chunks, state = (size_t)n * sizeof(row_state);
    c->z_ld = ((size_t)c->V + 3) / 4 * 4;
    size_t few = (size_t)n * FEW * sizeof(u64), at[3] = {state, state + few, state + few + chunks * sizeof(u64)};
    size_t z_at = (at[2] + chunks * sizeof(chunk_sum) + 15) / 16 * 16;
    auto *p =
        static_cast<uint8_t *>(gpu_scratch(d, "sample", AREA_SAMPLE, z_at + (size_t)copies_of(n, c->V) * c->z_ld * 4));
    if (!p) return false;
    c->state = reinterpret_cast<row_state *>(p);
    c->few = reinterpret_cast<u64 *>(p + at[0]);
    c->masses = reinterpret_cast<u64 *>(p + at[1]);
    c->sums = reinterpret_cast<chunk_sum *>(p + at[2]);
    c->z = reinterpret_cast<float *>(p + z_at);
    gpu_zero(&d->head, p, state);
    return !d->head.error.op;
}

/* What any of the rows requests. */
struct row_features {
    bool draw, cut, report;
};

row_features row_features_of(const struct sample_row *r, int n, int V)
{
    row_features w = {};
    for (int i = 0; i < n; i++, r++) {
        bool draw = r->forced < 0 && r->temperature > 0;
        w.draw |= draw;
        w.cut |= draw && ((r->top_k > 0 && r->top_k < V) || (r->typical_p > 0 && r->typical_p < 1) ||
                          (r->top_p > 0 && r->top_p < 1) || r->min_p > 0);
        w.report |= r->top_n > 0;
    }
    return w;
}

void run_pass(gpu_dev *d, const sample_call &c, int n, bool vec, row_features w)
{
    dim3 chunks((unsigned)c.chunks, (unsigned)n), rows((unsigned)n), threads((unsigned)row_threads(c.V));
    if (vec)
        LAUNCH_EARLY(d, "sample", adjust_kernel<true>, chunks, threads, sizeof(adjust_smem), c);
    else
        LAUNCH_EARLY(d, "sample", adjust_kernel<false>, chunks, threads, sizeof(adjust_smem), c);
    if (w.draw) LAUNCH_EARLY(d, "sample", weigh_kernel, chunks, threads, sizeof(weigh_smem), c);
    if (w.cut) {
        LAUNCH_EARLY(d, "sample", limit_kernel, rows, threads, sizeof(select_smem), c);
        LAUNCH_EARLY(d, "sample", gather_kernel, chunks, threads, 0, c);
    }
    LAUNCH_EARLY(d, "sample", choose_kernel, rows, threads, sizeof(select_smem), c);
    if (w.cut) LAUNCH_EARLY(d, "sample", cut_kernel, rows, threads, sizeof(select_smem), c);
    if (w.report) LAUNCH_EARLY(d, "sample", report_kernel, rows, threads, sizeof(select_smem), c);
}

} // namespace

void gpu_sample(struct dev *head, const struct sample_args *a)
{
    gpu_dev *d = gpu_of(head);
    int V = a->logits.cols, bits = 0;
    while ((int64_t)1 << bits < V) bits++;
    bool vec = row_vectors(a->logits.p, V, a->logits.ld);
    if ((V + CHUNK - 1) / CHUNK > CHUNKS_MAX) {
        dev_fail(head, "sample", "%d tokens are more than %d", V, CHUNKS_MAX * CHUNK);
        return;
    }
    size_t bytes;
    for (int row = 0, n; row < a->logits.rows; row += n) {
        n = pass_rows(a, row, &bytes);
        sample_call c = {};
        c.logits = static_cast<const float *>(a->logits.p) + (size_t)row * (size_t)a->logits.ld;
        c.ld = (size_t)a->logits.ld;
        c.V = V;
        c.chunks = (V + CHUNK - 1) / CHUNK;
        c.unit = ldexp(1.0, 62 - bits);
        stage_pass(d, a, row, n, bytes, &c);
        if (!c.row || !pass_scratch(d, n, &c)) return;
        run_pass(d, c, n, vec, row_features_of(a->row + row, n, V));
        gpu_send_outs(d);
    }
}

} // namespace GPU_NAMESPACE
