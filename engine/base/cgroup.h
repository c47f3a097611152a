/* The limits that control groups, of version 1 or 2, set on this process: the least of its group's and of those around it
 * (https://docs.kernel.org/admin-guide/cgroup-v2.html, .../cgroup-v1/).  Any thread; reads /proc and /sys. */
#ifndef TANDEM_ENGINE_BASE_CGROUP_H
#define TANDEM_ENGINE_BASE_CGROUP_H

/* root: put before the paths, "" but in tests. */

double cgroup_memory_limit(const char *root);   /* bytes; 0: none */
double cgroup_processor_limit(const char *root); /* processors' worth of time; 0: none */
/* Bytes below the memory limit that the group does not use; its page cache, which the kernel gives up, is not counted as
 * used.  -1: no limit. */
double cgroup_memory_left(const char *root);
long long cgroup_oom_kills(const char *root);   /* processes of the group killed for memory; -1: unknown (version 1) */

#endif
