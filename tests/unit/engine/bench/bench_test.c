/* The pure half of bench: percentiles, ratios against ceilings, and which advice follows from which facts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/bench/bench.h"

#include <stdio.h>
#include <string.h>

static void near(double got, double want)
{
    if (!(got > want - 1e-9 && got < want + 1e-9)) fail_msg("%g, not %g", got, want);
}

static void test_percentiles(void **state)
{
    double v[100];
    for (int i = 0; i < 100; i++) v[i] = i + 1;
    near(bench_percentile(v, 100, 0.5), 50);
    near(bench_percentile(v, 100, 0.95), 95);
    near(bench_percentile(v, 100, 0.99), 99);
    near(bench_percentile(v, 100, 1), 100);
    near(bench_percentile(v, 1, 0.99), 1);
    near(bench_percentile(v, 3, 0.5), 2);
    near(bench_percentile(v, 2, 0.5), 1);
    near(bench_percentile(v, 2, 0), 1);
}

/* ---- ratios ---------------------------------------------------------------------------------------------------- */

static const struct ceilings machine = {.read_bytes_per_s = 100,
                                        .int8_macs_per_s = 1000,
                                        .int4_macs_per_s = 2000,
                                        .bf16_macs_per_s = 500,
                                        .f32_macs_per_s = 250};

static void test_ratios(void **state)
{
    /* 80 bytes at 100/s and 200 products at 1000/s in one second: memory */
    struct bench_work w = {.weight_macs = 200, .attention_macs = 50, .weight_bytes = 60, .kv_bytes = 20};
    struct bench_ratios r = bench_ratios_of(&w, "int8", 1, &machine);
    near(r.read, 0.8);
    near(r.compute, 0.2 + 0.1); /* attention on the bf16 unit */
    near(r.multiplier, 0.2);
    near(r.ceiling, 0.8);
    assert_int_equal(r.bound, BOUND_MEMORY);
    r = bench_ratios_of(&w, "int8", 4, &machine);
    near(r.ceiling, 0.2);
    assert_int_equal(r.bound, BOUND_OVERHEAD);
    r = bench_ratios_of(&w, "bf16", 0.5, &machine);
    near(r.compute, (0.4 + 0.1) / 0.5);
    near(r.read, 1.6); /* it came out of a cache */
    r = bench_ratios_of(&w, "f32", 1, &machine);
    near(r.compute, 0.8 + 0.1);
    near(r.ceiling, 0.9);
    assert_int_equal(r.bound, BOUND_MULTIPLIER);
    near(bench_ratios_of(&w, "int4", 1, &machine).compute, 0.1 + 0.1);
    near(bench_ratios_of(&w, "f16", 1, &machine).compute, 0.9);
}

static void test_ratios_without_a_unit(void **state)
{
    struct ceilings no_bf16 = machine;
    no_bf16.bf16_macs_per_s = 0;
    struct bench_work w = {.weight_macs = 100, .attention_macs = 50, .weight_bytes = 1};
    near(bench_ratios_of(&w, "bf16", 1, &no_bf16).compute, 0.4 + 0.2);
    struct ceilings none = {0};
    struct bench_ratios r = bench_ratios_of(&w, "int8", 1, &none);
    near(r.ceiling, 0);
    r = bench_ratios_of(&w, "int8", 0, &machine);
    near(r.ceiling, 0);
    assert_int_equal(r.bound, BOUND_OVERHEAD);
}

/* ---- advice ---------------------------------------------------------------------------------------------------- */

static struct bench_system quiet;

/* int8 at the multiplier's ceiling on all of four quiet cores: nothing to say but "more cores" */
static struct bench_facts good(void)
{
    quiet = (struct bench_system){.cores = 4, .load = 0.1, .huge_pages = "madvise", .best_level = "avx512"};
    return (struct bench_facts){.phase = BENCH_PREFILL,
                                .batch = 1,
                                .weight_type = "int8",
                                .kv_type = "f16",
                                .level = "avx512",
                                .threads = 4,
                                .system = &quiet,
                                .ratios = {.read = 0.1, .compute = 0.9, .ceiling = 0.9, .bound = BOUND_MULTIPLIER}};
}

static struct bench_facts from_memory(void)
{
    struct bench_facts f = good();
    f.phase = BENCH_DECODE;
    f.ratios = (struct bench_ratios){.read = 0.9, .compute = 0.1, .ceiling = 0.9, .bound = BOUND_MEMORY};
    return f;
}

static bool says(const struct bench_facts *f, const char *part)
{
    char out[BENCH_ADVICE_MAX][BENCH_ADVICE_BYTES];
    int n = bench_advise(f, out);
    assert_in_range(n, 0, BENCH_ADVICE_MAX);
    for (int i = 0; i < n; i++)
        if (strstr(out[i], part)) return true;
    return false;
}

#define SAYS(f, part)                                                                                                  \
    if (!says(&(f), part)) fail_msg("no advice has \"%s\"", part)
#define SILENT(f, part)                                                                                                \
    if (says(&(f), part)) fail_msg("advice has \"%s\"", part)

static void test_advice_on_threads_and_machine(void **state)
{
    struct bench_facts f = good();
    SAYS(f, "more cores");
    SILENT(f, "--");
    SILENT(f, "busy");
    f.threads = 3;
    SAYS(f, "raise --threads");
    SILENT(f, "more cores");
    f.threads = 5;
    SAYS(f, "lower --threads");
    f = good();
    f.level = "avx2";
    SAYS(f, "--device");
    f = good();
    f.ratios.ceiling = 0.5;
    SILENT(f, "busy");
    f.ceiling_drift = 0.3;
    SAYS(f, "busy");
    f.ceiling_drift = 0;
    quiet.load = 3;
    SAYS(f, "busy");
    f.ratios.ceiling = 0.9; /* no harm was done */
    SILENT(f, "busy");
}

static void test_advice_on_types(void **state)
{
    struct bench_facts f = from_memory();
    SAYS(f, "--quantize int4");
    SILENT(f, "--quantize int8");
    SAYS(f, "more of them at once");
    f.weight_type = "bf16";
    SAYS(f, "--quantize int8");
    f.weight_type = "int4";
    SILENT(f, "--quantize");
    f.batch = 8;
    SILENT(f, "more of them at once");
    snprintf(quiet.huge_pages, sizeof quiet.huge_pages, "never");
    SAYS(f, "huge pages");
    f = from_memory();
    f.attention_share = 0.3;
    SAYS(f, "--kv-cache int8");
    f.kv_type = "int8";
    SILENT(f, "--kv-cache");
    f = good();
    f.attention_share = 0.2;
    SILENT(f, "--kv-cache");
}

static void test_advice_on_overhead(void **state)
{
    struct bench_facts f = from_memory();
    f.ratios = (struct bench_ratios){.read = 0.1, .compute = 0.1, .ceiling = 0.1, .bound = BOUND_OVERHEAD};
    f.engine_share = 0.3;
    SAYS(f, "too short");
    SAYS(f, "between the operations");
    SILENT(f, "--quantize");
    f.batch = 32;
    SILENT(f, "too short");
}

static void test_system(void **state)
{
    struct bench_system s;
    bench_system_read(&s);
    assert_true(s.cores >= 1 && s.memory_bytes > 1 << 20 && s.load >= 0);
    assert_true(strncmp(s.kernel, "Linux ", 6) == 0);
    assert_true(*s.best_level);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_ratios),
        cmocka_unit_test(test_ratios_without_a_unit),
        cmocka_unit_test(test_advice_on_threads_and_machine),
        cmocka_unit_test(test_advice_on_types),
        cmocka_unit_test(test_advice_on_overhead),
        cmocka_unit_test(test_system),
    };
    return cmocka_run_group_tests_name("bench", tests, NULL, NULL);
}
