/* The op tests: every op of every cpu level this machine has, wrapped in dev_checked, against `ref`; then what
 * tolerances cannot show: bit equality over batches, threads, chunks and levels, what sampling means, and what the
 * checks catch.  The table is made from OPS: an op without a test does not compile.
 *
 *     ops_test --thin K
 *         of the table one in K of its cases, on several threads; of the rest that products of rows have the same bits
 *         alone, at every level
 *     ops_test --device NAME [OP...]
 *         another device: the table, or these ops of it, and what else is true of a device
 *     ops_test --device NAME --thin K [--schedules N] [OP...]
 *         only the table, one in K of its cases; N times, each with other cases and another order of threads
 *     ops_test --ops
 *         runs nothing: the names of the ops, a line each */
#include "tests/ops/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct op_test {
    const char *op;
    void (*run)(struct dev *dev, struct dev *ref);
};

static const struct op_test op_tests[] = {
#define X(op) {#op, test_##op},
    OPS(X)
#undef X
};

#ifdef TANDEM_SANITIZED /* absurd sizes are asked for on purpose */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}
#endif

static const char *const all_levels[] = {"cpu:portable", "cpu:avx2", "cpu:avxvnni", "cpu:avx512",  "cpu:avx512bf16",
                                         "cpu:amx",      "cpu:neon", "cpu:i8mm",    "cpu:neonbf16"};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool quiet;

/* Under TSan a level with one thread races with none: the table with three is enough. */
#ifdef TANDEM_SANITIZED_THREADS
static const bool with_one_thread = false;
#else
static const bool with_one_thread = true;
#endif

static void report(const char *what, double start, int failures_before)
{
    if (quiet && n_failures == failures_before) return;
    printf("%-40s %s  %.1f s\n", what, n_failures == failures_before ? "ok" : "FAILED", now() - start);
    fflush(stdout);
}

static void run_table(const char *name, int threads)
{
    struct dev *dev = open_checked(name, threads), *ref = open_checked("ref", 1);
    for (size_t i = 0; i < sizeof op_tests / sizeof *op_tests; i++) {
        if (!op_wanted(op_tests[i].op)) continue;
        char label[80];
        double start = now();
        int before = n_failures, checks = n_checks;
        random_seed(1000 + i);
        op_tests[i].run(dev, ref);
        CHECK(n_checks > checks || thin > 1, "%s: the test checked nothing", op_tests[i].op);
        snprintf(label, sizeof label, "%s %s threads=%d", op_tests[i].op, name, threads);
        report(label, start, before);
    }
    if (op_wanted("linear") && dev->ops->rounds_more) {
        double start = now();
        int before = n_failures;
        random_seed(1000 + OP_COUNT);
        test_rounds_more(name);
        report("linear, gate_up: f16, fp8, nf4 rounding x", start, before);
    }
    dev_close(dev);
    dev_close(ref);
}

/* the levels this machine has, under TSan the best one: all share work among threads alike; returns how many */
static int find_levels(const char **levels)
{
    int n = 0;
    for (size_t i = 0; i < sizeof all_levels / sizeof *all_levels; i++) {
        char why[160];
        struct dev *d = dev_open(&(struct dev_config){.name = all_levels[i], .threads = 1}, why);
        if (d)
            levels[n++] = all_levels[i];
        else
            printf("skip %s: %s\n", all_levels[i], why);
        dev_close(d);
    }
#ifdef TANDEM_SANITIZED_THREADS
    if (n) levels[0] = levels[n - 1];
    n = n > 0;
#endif
    return n;
}

static void test_open(void)
{
    char why[160];
    struct dev *d = dev_open(&(struct dev_config){.name = "gpu9"}, why);
    CHECK(!d && why[0], "an unknown device opened");
    d = dev_open(&(struct dev_config){.name = "cpu:avx9000"}, why);
    CHECK(!d && why[0], "an unknown level opened");
    d = dev_open(&(struct dev_config){.name = "cpu", .threads = -1}, why);
    CHECK(!d && why[0], "a negative number of threads opened");
    for (int op = 0; op < OP_COUNT; op++) CHECK(op_name((enum op_id)op)[0] != '?', "op %d has no name", op);
}

static int end(void)
{
    printf("%d checks, %d failures\n", n_checks, n_failures);
    return n_failures || !n_checks ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* The table again and again, every other time with bf16 x; simt looks at SIMT_SEED at each launch. */
static int test_schedules(const char *name, int schedules)
{
    for (int i = 1; i <= schedules; i++) {
        char seed[32];
        double start = now();
        int before = n_failures, checks = n_checks;
        snprintf(seed, sizeof seed, "%d", i);
        if (schedules > 1) setenv("SIMT_SEED", seed, 1);
        thin_from = i;
        quiet = schedules > 1;
        with_bf16_x = i % 2 == 0;
        run_table(name, 1);
        quiet = false;
        CHECK(n_checks > checks, "schedule %d: checked nothing", i);
        snprintf(seed, sizeof seed, "schedule %d", i);
        report(seed, start, before);
    }
    return end();
}

/* A device that is no cpu level. */
static int test_device(const char *name)
{
    double start = now();
    run_table(name, 1);
    if (op_wanted("sample")) {
        struct dev *d = open_checked(name, 1);
        test_sample_meaning(d);
        dev_close(d);
        report("sampling", start, 0);
    }
    if (op_wanted("norm")) {
        test_prequantise(name);
        report("work done ahead of a product", start, 0);
    }
    if (op_wanted("linear")) {
        struct dev *d = open_checked(name, 1);
        test_outliers(d);
        test_int8_many(d);
        dev_close(d);
        test_blocks(name);
        test_row_classes(name);
        if (strcmp(name, "simt") == 0) test_row_bounds(name);
        with_bf16_x = true;
        d = open_checked(name, 1);
        struct dev *ref = open_checked("ref", 1);
        test_linear(d, ref);
        dev_close(d);
        dev_close(ref);
        with_bf16_x = false;
        report("outliers, rows alone, bf16 x", start, 0);
    }
    if (op_wanted("linear_back")) {
        test_train_gemm(&name, 1);
        with_bf16_x = true;
        struct dev *d = open_checked(name, 1), *ref = open_checked("ref", 1);
        test_gemm(d, ref);
        test_linear_back(d, ref);
        dev_close(d);
        dev_close(ref);
        test_train_gemm(&name, 1);
        with_bf16_x = false;
        report("products of training, bits; bf16 x", start, 0);
    }
    if (op_wanted("experts_linear")) {
        int before = n_failures;
        double at = now();
        with_bf16_x = true;
        struct dev *d = open_checked(name, 1), *ref = open_checked("ref", 1);
        test_experts_linear(d, ref);
        test_experts_gate_up(d, ref);
        dev_close(d);
        dev_close(ref);
        with_bf16_x = false;
        report("experts, bf16 x", at, before);
    }
    if (op_wanted("attn_back")) {
        int before = n_failures;
        double at = now();
        with_bf16_x = true;
        struct dev *d = open_checked(name, 1), *ref = open_checked("ref", 1);
        test_attn_seq(d, ref);
        test_attn_back(d, ref);
        test_train_bits(&name, 1);
        dev_close(d);
        dev_close(ref);
        with_bf16_x = false;
        report("attention of training, bf16 x", at, before);
    }
    if (op_wanted("attn")) {
        test_chunks(&name, 1);
        report("chunks", start, 0);
    }
    test_train_bits(&name, 1);
    report("training: alone, head by head", start, 0);
    return end();
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--device")) {
        int at = 3, schedules = 1;
        for (; at + 1 < argc && !strncmp(argv[at], "--", 2); at += 2)
            *(strcmp(argv[at], "--thin") ? &schedules : &thin) = atoi(argv[at + 1]);
        if (thin < 1 || schedules < 1) return EXIT_FAILURE;
        wanted_ops = (const char *const *)argv + at;
        return at > 3 ? test_schedules(argv[2], schedules) : test_device(argv[2]);
    }
    if (argc == 2 && !strcmp(argv[1], "--ops")) {
        for (size_t i = 0; i < sizeof op_tests / sizeof *op_tests; i++) puts(op_tests[i].op);
        return EXIT_SUCCESS;
    }
    if (argc == 3 && !strcmp(argv[1], "--thin")) thin = atoi(argv[2]);
    if (argc != (thin > 1 ? 3 : 1)) return EXIT_FAILURE;
    const char *levels[sizeof all_levels / sizeof *all_levels];
    double start = now();
    int n = find_levels(levels);
    CHECK(n >= 1, "no level at all");
    test_open();
    test_numbers();
    report("numbers", start, 0);
    for (int i = 0; i < n; i++) {
        if (with_one_thread && thin == 1) run_table(levels[i], 1);
        run_table(levels[i], 3);
    }
    struct {
        const char *name;
        void (*run)(const char *const *, int);
    } wholes[] = {{"rows alone, threads, levels", test_rows_alone},
                  {"chunks, threads, levels", test_chunks},
                  {"nf4 as floats", test_nf4_values},
                  {"every fp8 code", test_f8_values},
                  {"products of training, bits", test_train_gemm},
                  {"training: threads, levels, alone", test_train_bits}};
    for (size_t i = 0; i < (thin > 1 ? 1 : sizeof wholes / sizeof *wholes); i++) {
        int before = n_failures;
        double at = now();
        random_seed(77);
        wholes[i].run(levels, n);
        report(wholes[i].name, at, before);
    }
    int before = n_failures;
    start = now();
    random_seed(78);
    with_bf16_x = true;
    if (thin > 1) {
        test_rows_alone(levels, n);
        report("bf16 x", start, before);
        return end();
    }
    for (int i = 0; i < n; i++) {
        struct dev *dev = open_checked(levels[i], 3), *exact = open_checked("ref", 1);
        test_linear(dev, exact);
        test_gemm(dev, exact);
        test_linear_back(dev, exact);
        test_experts_linear(dev, exact);
        test_experts_gate_up(dev, exact);
        dev_close(dev);
        dev_close(exact);
    }
    test_f8_values(levels, n);
    test_rows_alone(levels, n);
    test_train_gemm(levels, n);
    with_bf16_x = false;
    report("bf16 x", start, before);
    before = n_failures;
    start = now();
    struct dev *cpu = open_checked("cpu", 2), *ref = open_checked("ref", 1);
    test_sample_meaning(cpu);
    test_sample_meaning(ref);
    test_outliers(cpu);
    test_outliers(ref);
    dev_close(cpu);
    dev_close(ref);
    test_prequantise("cpu");
    test_blocks("ref");
    for (int i = 0; i < n; i++) test_blocks(levels[i]);
    test_checked("cpu");
    test_checked("ref");
    test_pool();
    report("sampling, outliers, checks, pool", start, before);
    before = n_failures;
    start = now();
    test_trace();
    report("trace, ceilings", start, before);
    return end();
}
