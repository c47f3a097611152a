/* What is read of a machine, in a made-up /proc and /sys; and each rule, planted on a machine with nothing to change.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/ops/machine.h"

#include "tests/unit/made_up_root.h"

#include <string.h>

static void test_read_nothing(void **state)
{
    (void)state;
    static struct machine m;
    static struct finding f[MACHINE_FINDINGS_MAX];
    machine_read(&m, root, "/no/such/library.so");
    assert_true(m.throttled == -1 && m.stolen == -1 && m.load == -1 && m.memory == -1);
    assert_int_equal(m.overcommit, -1);
    assert_int_equal(m.killed, -1);
    strcpy(m.level, "avx2");
    int n = machine_judge(&m, f);
    for (int i = 0; i < n; i++) assert_true(*f[i].found && (f[i].state == FINDING_CHANGE) == (*f[i].advice != 0));
}

static void test_read(void **state)
{
    (void)state;
    static struct machine m;
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
    put("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n");
    put("/sys/devices/system/cpu/cpu10/cpufreq/scaling_governor", "powersave\n");
    put("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "3\n");
    put("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "4\n");
    put("/sys/devices/system/cpu/cpufreq/x", "not a processor\n");
    put("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       100 kB\n");
    put("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       0 kB\n");
    put("/proc/sys/kernel/numa_balancing", "1\n");
    put("/proc/stat", "cpu  50 0 20 20 0 0 0 10 0 0\ncpu0 1 1 1 1 1 1 1 1\n");
    put("/proc/loadavg", "1.25 1.00 0.50 1/100 42\n");
    put("/proc/pressure/cpu", "some avg10=1.00 avg60=37.50 avg300=0.10 total=1\n");
    put("/proc/pressure/memory", "some avg10=0.00 avg60=2.00 avg300=0.00 total=1\nfull avg60=1.00\n");
    put("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n");
    put("/proc/meminfo",
        "MemTotal:     1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nSwapTotal: 100 kB\nSwapFree: 70 kB\n");
    put("/proc/sys/vm/overcommit_memory", "2\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    put("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    put("/sys/bus/pci/devices/0000:01:00.0/class", "0x030200\n");
    put("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n"); /* its sound */
    put("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    put("/sys/fs/cgroup/memory.max", "2048\n");
    put("/sys/fs/cgroup/memory.events", "oom_kill 2\n");
    machine_read(&m, root, "/no/such/library.so");
    assert_int_equal(m.processors, 3);
    assert_int_equal(m.governed, 2);
    assert_string_equal(m.governor, "powersave");
    assert_true(m.throttled == 7);
    assert_int_equal(m.nodes, 1);
    assert_int_equal(m.balancing, 1);
    assert_true(m.stolen == 0.1);
    assert_true(m.load == 1.25);
    assert_true(m.processor_pressure == 0.375 && m.memory_pressure == 0.02);
    assert_string_equal(m.clock_source, "hpet");
    assert_true(m.memory == 1024000 && m.memory_available == 409600 && m.swap_used == 30 * 1024);
    assert_int_equal(m.overcommit, 2);
    assert_string_equal(m.huge_pages, "never");
    assert_int_equal(m.gpus_seen, 1);
    assert_true(m.time_limit == 0.5 && m.memory_limit == 2048);
    assert_int_equal(m.killed, 2);
}

/* ---- rules ---------------------------------------------------------------------------------------------------------
 */

static struct machine good(void)
{
    struct machine m = {.processor = "A processor",
                        .level = "avx2",
                        .best_level = "avx2",
                        .processors = 8,
                        .cores = 8,
                        .governor = "performance",
                        .nodes = 1,
                        .huge_pages = "madvise",
                        .clock_source = "tsc",
                        .load = 0.5,
                        .memory = 64e9,
                        .memory_available = 60e9,
                        .files = 1e18,
                        .gpus_seen = 1,
                        .gpu_tried = true,
                        .driver = "580.1",
                        .n_devices = 1};
    m.devices[0] = (struct device_condition){.name = "A GPU",
                                             .celsius = 40,
                                             .slowdown_celsius = 90,
                                             .power_limit = 300,
                                             .power_default = 300,
                                             .memory_total = 80e9,
                                             .memory_used = 1e9,
                                             .link_width = 16,
                                             .link_width_max = 16,
                                             .persistence = 1};
    return m;
}

/* The names of the findings with something to change, each followed by a space. */
static const char *changes(const struct machine *m)
{
    static struct finding f[MACHINE_FINDINGS_MAX];
    static char out[1000];
    int n = machine_judge(m, f);
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(*f[i].advice != 0, f[i].state == FINDING_CHANGE);
        if (f[i].state == FINDING_CHANGE) snprintf(out + strlen(out), sizeof out - strlen(out), "%s ", f[i].name);
    }
    return out;
}

#define PLANT(says, ...)                                                                                               \
    do {                                                                                                               \
        struct machine m = good();                                                                                     \
        __VA_ARGS__;                                                                                                   \
        assert_string_equal(changes(&m), says);                                                                        \
    } while (0)

static void test_nothing_to_change(void **state)
{
    (void)state;
    PLANT("", (void)m);
}

static void test_rules(void **state)
{
    (void)state;
    PLANT("instructions ", strcpy(m.best_level, "avx512"));
    PLANT("threads ", m.threads = 9);
    PLANT("threads ", m.threads = 4; m.time_limit = 2.5);
    PLANT("", m.threads = 3; m.time_limit = 2.5);
    PLANT("", m.time_limit = 2.5);
    PLANT("clock governor ", strcpy(m.governor, "powersave"); m.governed = 1);
    PLANT("processor heat ", m.throttled = 1);
    PLANT("time of the host ", m.stolen = 0.03);
    PLANT("other work ", m.load = 13);
    PLANT("other work ", m.processor_pressure = 0.3);
    PLANT("NUMA nodes ", m.nodes = 2);
    PLANT("NUMA nodes NUMA balancing ", m.nodes = 2; m.balancing = 1);
    PLANT("", m.balancing = 1);
    PLANT("huge pages ", strcpy(m.huge_pages, "never"));
    PLANT("clock source ", strcpy(m.clock_source, "acpi_pm"));
    PLANT("memory ", m.memory_available = 5e9);
    PLANT("memory limit ", m.killed = 1);
    PLANT("", m.memory_limit = 8e9);
    PLANT("swap ", m.swap_used = 1e9);
    PLANT("wait for memory ", m.memory_pressure = 0.1);
    PLANT("overcommit ", m.overcommit = 2);
    PLANT("open files ", m.files = 1024);
    PLANT("NVIDIA GPUs ", m.n_devices = 0; m.gpu_tried = false);
    PLANT("", m.n_devices = m.gpus_seen = 0; m.gpu_tried = false);
    PLANT("device cuda ", strcpy(m.gpu_refusal, "this program was built without CUDA"));
}

static void test_rules_of_a_gpu(void **state)
{
    (void)state;
    PLANT("GPU memory ", m.devices[0].memory_used = 10e9);
    PLANT("GPU memory ", m.devices[0].memory_used = 70e9; m.devices[0].memory_own = 60e9);
    PLANT("", m.devices[0].memory_used = 70e9; m.devices[0].memory_own = 65e9);
    PLANT("GPU clock ", m.devices[0].slowed = 0x40);
    PLANT("GPU clock ", m.devices[0].slowed = 0x04);
    PLANT("GPU clock ", m.devices[0].slowed = 0x08);
    PLANT("", m.devices[0].slowed = 0x03); /* idle, and the clock that was asked for */
    PLANT("GPU temperature ", m.devices[0].celsius = 86);
    PLANT("GPU power ", m.devices[0].power_limit = 250);
    PLANT("GPU link ", m.devices[0].link_width = 8);
    PLANT("GPU persistence ", m.devices[0].persistence = 0);
    PLANT("GPU memory errors ", m.devices[0].errors = 1);
    PLANT("GPU memory ", for (int i = 1; i < NVML_DEVICES; i++) m.devices[i] = m.devices[0]; m.n_devices = NVML_DEVICES;
          m.devices[NVML_DEVICES - 1].memory_used = 10e9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_read_nothing, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_read, make_root, remove_root),
        cmocka_unit_test(test_nothing_to_change),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rules_of_a_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
