/* Measuring a model: prefill and decoding at several batch sizes through the engine's own step, on the caller's thread,
 * compared with the machine's limits.  docs/bench.md has the formulae.  Used by one thread. */
#ifndef TANDEM_ENGINE_BENCH_BENCH_H
#define TANDEM_ENGINE_BENCH_BENCH_H

#include "engine/serve/engine.h"
#include "kernels/ceilings.h"

/* ---- the machine ----------------------------------------------------------------------------------------------- */

struct bench_system {
    char cpu[96], kernel[96], flags[160]; /* flags: those relevant here, separated by spaces */
    char huge_pages[16];                  /* transparent huge pages: "always", "madvise", "never"; "" unknown */
    char best_level[16];                  /* fastest level of the cpu device on this machine, of those built */
    char fastest_level[16];               /* of all */
    int cores;                            /* cores that this process may use */
    size_t memory_bytes;
    double load; /* runnable processes, mean of the last minute, when it was read */
};

void bench_system_read(struct bench_system *);

/* @return whether a device opens; false: why says why not. */
bool bench_opens(const char *device, char why[160]);

struct dev;

/* dev_ceilings with the largest buffer that fits in memory.  @return 0 or ERR_NOMEM. */
int bench_measure(struct dev *, struct ceilings *, struct err *e);

/* The rate of products of bf16 numbers: every bf16 is a float, so the faster of the two units counts. */
double bench_bf16_rate(const struct ceilings *);

/* ---- results of a phase ---------------------------------------------------------------------------------------- */

enum { BENCH_OPS_MAX = 64, BENCH_ADVICE_MAX = 6, BENCH_ADVICE_BYTES = 200 };

enum bench_phase { BENCH_PREFILL, BENCH_DECODE };
enum bench_bound { BOUND_MEMORY, BOUND_MULTIPLIER, BOUND_OVERHEAD };

const char *bench_phase_name(enum bench_phase); /* "prefill", "decode" */
const char *bench_bound_name(enum bench_bound); /* "memory", "multiplier", "overhead" */

struct bench_op {
    const char *name; /* static: an op, "head" (the GEMM of the logits), "ranks" (rank 0 exchanges, and waits), "engine"
                         (the rest) */
    uint64_t calls;
    double seconds, share; /* over all repeats; fraction of their total time */
    double macs, bytes;    /* over all repeats */
};

/* Work per step, the mean over a repeat's steps. */
struct bench_work {
    double weight_macs, attention_macs; /* multiply-adds */
    double weight_bytes, kv_bytes;      /* bytes that must be read once per step */
};

struct bench_ratios {
    double read;       /* time to read the bytes at the read ceiling / time taken */
    double compute;    /* time of the multiply-adds on the unit of their type / time taken */
    double multiplier; /* time of the weights' multiply-adds at the int8 ceiling / time taken */
    double ceiling;    /* the larger of read and compute: 1 is as fast as the machine can be */
    enum bench_bound bound;
};

struct bench_result {
    enum bench_phase phase;
    int batch, prompt_tokens, generate_tokens; /* generate_tokens: 0 for prefill */
    int repeats, steps;                        /* steps: of one repeat */
    double seconds;                            /* of one repeat: the median */
    double tokens_per_s, tokens_per_s_min, tokens_per_s_max;
    double step_p50, step_p95, step_p99; /* seconds, over the steps of all repeats */
    struct bench_work work;
    struct ceilings ceilings;   /* filled by bench_judge: around this phase */
    struct bench_ratios ratios; /* likewise */
    int n_ops;
    struct bench_op ops[BENCH_OPS_MAX]; /* longest first */
    size_t peak_bytes;                  /* resident, up to the end of this phase */
    int n_advice;
    char advice[BENCH_ADVICE_MAX][BENCH_ADVICE_BYTES]; /* filled by bench_judge */
};

/* ---- pure pieces ----------------------------------------------------------------------------------------------- */

/* The value that at least the fraction q of v[0, n) does not exceed (nearest rank).  v ascending, n > 0. */
double bench_percentile(const double *v, int n, double q);

/* seconds: of a step that did `work` with weights of the named type. */
struct bench_ratios bench_ratios_of(const struct bench_work *, const char *weight_type, double seconds,
                                    const struct ceilings *);

struct bench_facts {
    enum bench_phase phase;
    int batch;
    const char *weight_type, *kv_type, *level; /* level: "avx512"...  */
    int threads;
    bool gpu; /* advice about cores, levels and huge pages does not apply */
    const struct bench_system *system;
    struct bench_ratios ratios;
    int ranks;                                         /* that the model is divided over */
    double attention_share, engine_share, ranks_share; /* of the phase's time */
    double ceiling_drift; /* largest relative difference between the ceilings before and after */
};

/* Advice on what to change, most useful first.  @return the number of lines written. */
int bench_advise(const struct bench_facts *, char out[BENCH_ADVICE_MAX][BENCH_ADVICE_BYTES]);

/* ---- a run ----------------------------------------------------------------------------------------------------- */

struct bench_config {
    struct engine_config engine; /* model, device, threads, quantize, kv_type, max_batch_tokens are used */
    int prompt_tokens;           /* 0: 512, or what the model has room for */
    int generate_tokens;         /* 0: 64, or what the model has room for */
    int max_batch, repeat;
    /* called at each step with what is being done; false stops the run with ERR_FULL.  NULL: none. */
    bool (*progress)(void *arg, const char *what, int done, int total);
    void *arg;
};

struct bench;

/* Loads the model, with room for max_batch sequences.  NULL and *e; ERR_NOMEM says how much memory it needs. */
struct bench *bench_open(const struct bench_config *, struct err *e);
void bench_close(struct bench *); /* NULL is allowed */

const struct engine_info *bench_info(const struct bench *);
int bench_prompt_tokens(const struct bench *);
int bench_generate_tokens(const struct bench *);
size_t bench_load_peak(const struct bench *); /* peak of resident bytes until the model was loaded */

/* The machine's ceilings, measured with the model's threads. */
int bench_ceilings(struct bench *, struct ceilings *, struct err *e);

/* One phase; batch is 1 for prefill, 1 .. max_batch for decoding. */
int bench_run(struct bench *, enum bench_phase, int batch, struct bench_result *, struct err *e);

/* Ratios and advice, from the ceilings measured right before and right after the phase. */
void bench_judge(const struct bench *, const struct bench_system *, const struct ceilings *before,
                 const struct ceilings *after, struct bench_result *);
/* The mean over the n phases' ceilings, n > 0. */
struct ceilings bench_overall_ceilings(const struct bench_result *, int n);

/* ---- single ops ------------------------------------------------------------------------------------------------ */

struct bench_op_row {
    char name[72];
    double seconds;      /* of one call: the best */
    double macs, bytes;  /* of one call; 0: not counted */
    double macs_ceiling; /* multiply-adds/s of the unit for this type; 0: none */
};

/* Every op in Qwen2.5-0.5B's shapes; rows whose name contains `filter` ("" or NULL: all).  Measures the ceilings first
 * and hands them to begin.  row returns false to stop (ERR_FULL). */
struct bench_ops_sink {
    void (*begin)(void *arg, const char *device, int threads, const struct ceilings *);
    bool (*row)(void *arg, const struct bench_op_row *);
    void *arg;
};

int bench_ops(const char *device, int threads, const char *filter, const struct bench_ops_sink *, struct err *e);

#endif
