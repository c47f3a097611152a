/* What the op tests share: random data, moving it to a device and back, comparing, counting failures. */
#ifndef TANDEM_TESTS_OPS_HARNESS_H
#define TANDEM_TESTS_OPS_HARNESS_H

#include "kernels/ops.h"

extern int n_checks, n_failures;

/* A failure: counted, and printed while there are few. */
__attribute__((format(printf, 1, 2))) void fail(const char *fmt, ...);

#define CHECK(ok, ...)                                                                                                 \
    do {                                                                                                               \
        n_checks++;                                                                                                    \
        if (!(ok)) fail(__VA_ARGS__);                                                                                  \
    } while (0)

enum { LABEL = 200 };

/* The same stream in every run. */
void random_seed(uint64_t seed);
uint32_t random_u32(void);
int random_below(int n);
float random_float(void);                    /* about normal */
float *random_floats(size_t n, float scale); /* malloc */

/* dev memory with a copy of the host's (which may be NULL: zeros) */
void *put(struct dev *, const void *host, size_t bytes);
float *get(struct dev *, const void *device, size_t n); /* n floats, malloc */

/* How far a result may be from ref: every element within atol + rtol |want|, and all of them within nmse of the
 * signal's power. */
struct tolerance {
    double atol, rtol, nmse;
};
void compare(const char *label, const float *got, const float *want, size_t n, struct tolerance);
void compare_bits(const char *label, const float *got, const float *want, size_t n);
void check_device(const char *label, struct dev *); /* no error */

/* A weight matrix in canonical form with random contents; rows of zeros and large values included. */
struct weight_case {
    struct weight_src src;
    void *data, *scale;
    struct weight_block *block; /* DT_BLOCK */
};
/* group: of DT_BLOCK, which of block_kinds. */
struct weight_case weight_random(enum dtype t, int rows, int cols, int group);

/* The shapes of DT_BLOCK that the tests use: what checkpoints store, and some that none does. */
struct block_kind {
    const char *name;
    int bits, group, super;
    const int8_t *value; /* NULL: code + zero */
    int zero;
    int sub_from, sub_to; /* range of sub_scale; 0, 0: none */
    int min_most;         /* of sub_min; 0: none */
    bool min, half;       /* has super_min; floats of the super groups are exact in f16 */
    bool ordered;         /* columns in an order that depends on their number alone */
};
enum { BLOCK_KINDS = 14, BLOCK_ALL = 16 }; /* those from BLOCK_KINDS on are ordered */
extern const struct block_kind block_kinds[BLOCK_ALL];
void weight_case_free(struct weight_case *);
struct weight *weight_put(struct dev *, const struct weight_case *);
/* The largest magnitude of a DT_BLOCK weight. */
double block_largest(const struct weight_src *);

/* Which ops a device that is no cpu level is tested of, NULL at the end; none: all.  Looked at by the tests of bits. */
extern const char *const *wanted_ops;
bool op_wanted(const char *op);

/* Of the cases of an op's test, one in `thin` runs (1: all), from the one that thin_from says: for runs under many
 * schedules, each with cases of its own.  A case asks once, first of all. */
extern int thin, thin_from;
bool case_left_out(void);

extern bool with_bf16_x;                                 /* how open_checked opens */
/* Whether the level has an order of its own for sums of bf16 products, as devices are opened now: its rows are compared
 * with each other, not with those of other levels. */
bool own_bf16_sums(const char *level);
struct dev *open_checked(const char *name, int threads); /* aborts when it cannot */

void norms_prequantise(struct dev *dev, struct dev *ref,
                       bool add);                  /* prequantise_test.c: a part of test_norm and test_add_norm */
void post_norms(struct dev *dev, struct dev *ref); /* post_norm_test.c: a part of test_add_norm */

/* The groups of tests.  `ref` is the oracle. */
#define X(op) void test_##op(struct dev *dev, struct dev *ref);
OPS(X)
#undef X
void test_rows_alone(const char *const *levels, int n_levels); /* dense_test.c: M, threads, levels */
void test_row_classes(const char *name);                       /* dense_test.c: a device that is no cpu level */
void test_row_bounds(const char *name);                        /* dense_test.c: likewise */
void test_outliers(struct dev *dev);                           /* dense_test.c */
void test_int8_many(struct dev *dev);                          /* dense_test.c */
void test_prequantise(const char *name);                       /* prequantise_test.c: what ends what a norm did ahead */
void test_nf4_values(const char *const *levels, int n_levels); /* dense_test.c */
void test_f8_values(const char *const *levels, int n_levels);  /* f8_test.c */
void test_blocks(const char *name);                            /* block_test.c */
void test_rounds_more(const char *name);                       /* rounds_test.c */
void test_chunks(const char *const *levels, int n_levels);     /* attn_test.c: chunking, threads, levels */
void test_train_gemm(const char *const *levels, int n_levels); /* train_gemm_test.c: rows alone, threads */
void test_train_bits(const char *const *levels, int n_levels); /* train_ops_test.c: threads, levels, alone */
void test_sample_meaning(struct dev *dev);                     /* sample_test.c: without an oracle */
void test_checked(const char *name);                           /* checked_test.c */
void test_numbers(void);                                       /* num_test.c */
void test_pool(void);                                          /* pool_test.c */
void test_trace(void);                                         /* trace_test.c */

#endif
