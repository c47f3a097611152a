/* What fails, and when: shared between tests/http/faults.py, which writes it, and preload.c, which obeys.
 *
 * A file of this layout is mapped by both; TANDEM_FAULT names it.  Everything is a 64-bit integer, so that Python's
 * struct module reads it as a list of numbers. */
#ifndef TANDEM_TESTS_FAULT_PRELOAD_H
#define TANDEM_TESTS_FAULT_PRELOAD_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum fault_kind {
    FAULT_MALLOC, /* malloc and its like, of at least `filter` bytes */
    FAULT_MAP,    /* anonymous mmap of at least `filter` bytes: the device's memory, thread stacks, the reserve */
    FAULT_OPEN,   /* open with any of the flags in `filter` (0: any); with O_CREAT also mkdir, rename, unlink */
    FAULT_WRITE,  /* write, pwrite to regular files */
    FAULT_SYNC,   /* fsync, fdatasync */
    FAULT_RENAME,
    FAULT_THREAD, /* pthread_create */
    /* not the library's, but faulty_daemon.c's: */
    FAULT_OP,     /* an op of the device */
    FAULT_PAGE,   /* a page of the key-value cache */
    FAULT_DEVICE, /* a piece of the device's memory */
    FAULT_KINDS
};

struct fault {
    _Atomic int64_t first;  /* calls from the first-th on fail, counted from the moment it is set; 0: none does */
    _Atomic int64_t count;  /* so many of them */
    _Atomic int64_t filter; /* see above: other calls are not counted */
    _Atomic int64_t error;  /* errno */
    _Atomic int64_t seen;   /* calls so far */
    _Atomic int64_t failed; /* of them */
};

struct fault_control {
    struct fault fault[FAULT_KINDS];
    _Atomic int64_t realtime_ns, monotonic_ns; /* added to the clocks */
};

/* The file that TANDEM_FAULT names, mapped for good; NULL: there is none. */
static inline struct fault_control *fault_open(void)
{
    const char *path = getenv("TANDEM_FAULT");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return NULL;
    void *p = mmap(NULL, sizeof(struct fault_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : (struct fault_control *)p;
}

/* Counts a call: does it fail?  By any thread. */
static inline bool fault_hits(struct fault *f)
{
    int64_t first = f->first;
    if (!first) return false;
    int64_t n = ++f->seen;
    if (n < first || n - first >= f->count) return false;
    f->failed++;
    return true;
}

#endif
