/* Limits of control groups, of both versions, in a made-up /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/cgroup.h"

#include "tests/unit/made_up_root.h"

#include <string.h>

static void test_none(void **state)
{
    (void)state;
    assert_true(cgroup_memory_limit(root) == 0);
    assert_true(cgroup_processor_limit(root) == 0);
    assert_int_equal(cgroup_oom_kills(root), -1);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_true(cgroup_memory_limit(root) == 0);
    assert_true(cgroup_processor_limit(root) == 0);
}

static void test_least_of_the_groups_above(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/tandem.service\n");
    put("/sys/fs/cgroup/system.slice/tandem.service/memory.max", "max\n");
    put("/sys/fs/cgroup/system.slice/memory.max", "5000000\n");
    put("/sys/fs/cgroup/memory.max", "7000000\n");
    put("/sys/fs/cgroup/system.slice/tandem.service/cpu.max", "150000 100000\n");
    put("/sys/fs/cgroup/system.slice/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/system.slice/tandem.service/memory.events", "low 0\nhigh 3\noom 2\noom_kill 1\n");
    put("/sys/fs/cgroup/system.slice/memory.events", "oom 9\noom_kill 7\n");
    assert_true(cgroup_memory_limit(root) == 5000000);
    assert_true(cgroup_processor_limit(root) == 1.5);
    assert_int_equal(cgroup_oom_kills(root), 1);
}

static void test_version_1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "12:cpuset:/x\n4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n1:name=systemd:/\n");
    put("/sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "1000\n");
    put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_processor_limit(root) == 0);
    put("/sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "250000\n");
    put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "1048576\n");
    assert_true(cgroup_processor_limit(root) == 2.5);
    assert_true(cgroup_memory_limit(root) == 1048576);
    assert_int_equal(cgroup_oom_kills(root), -1);
}

static void test_memory_left(void **state)
{
    (void)state;
    assert_true(cgroup_memory_left(root) == -1);
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/memory.max", "1000\n");
    put("/sys/fs/cgroup/a/memory.current", "900\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 300\ninactive_file 350\nactive_file 50\nfile_mapped 7\n");
    assert_true(cgroup_memory_left(root) == 500);
    put("/sys/fs/cgroup/a/b/memory.max", "300\n");
    put("/sys/fs/cgroup/a/b/memory.current", "400\n");
    assert_true(cgroup_memory_left(root) == 0);
    put("/proc/self/cgroup", "3:memory:/c\n");
    put("/sys/fs/cgroup/memory/c/memory.limit_in_bytes", "100\n");
    put("/sys/fs/cgroup/memory/c/memory.usage_in_bytes", "60\n");
    put("/sys/fs/cgroup/memory/c/memory.stat", "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 5\n");
    assert_true(cgroup_memory_left(root) == 65);
}

static void test_odd_lines(void **state)
{
    (void)state;
    char line[700];
    memset(line, 'a', sizeof line);
    memcpy(line, "0::/", 4);
    line[sizeof line - 1] = 0;
    put("/proc/self/cgroup", line);
    assert_true(cgroup_memory_limit(root) == 0);
    put("/proc/self/cgroup", "memory\n:\n0:\n::\n5:memory\n");
    assert_true(cgroup_memory_limit(root) == 0);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cpu.max", "100000 0\n");
    put("/sys/fs/cgroup/memory.max", "-5\n");
    assert_true(cgroup_processor_limit(root) == 0);
    assert_true(cgroup_memory_limit(root) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_least_of_the_groups_above, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_1, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_memory_left, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_odd_lines, make_root, remove_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
