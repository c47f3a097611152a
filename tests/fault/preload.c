/* A library to be preloaded (LD_PRELOAD) into the daemon: makes the n-th call of a kind fail, and moves the clocks.
 * preload.h says how.  For tests only; it knows nothing of tandem.
 *
 * While dlsym looks for the real malloc it may itself allocate: that comes from a small block that is never freed. */
#undef _FILE_OFFSET_BITS /* or open would be another name for open64, and both are defined here */
#include "tests/fault/preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* none of libc's headers may declare these with attributes that our definitions lack */
#define REAL(name) ((__typeof__(&name))real(#name, &real_##name))

static struct fault_control *control;

static void *real(const char *name, void **slot)
{
    if (!*slot) *slot = dlsym(RTLD_NEXT, name);
    return *slot;
}

__attribute__((constructor)) static void open_control(void)
{
    control = fault_open();
    if (control) unsetenv("LD_PRELOAD"); /* this process only */
}

/* Does this call fail?  Then errno is set. */
static bool fails(enum fault_kind kind)
{
    if (!control || !fault_hits(&control->fault[kind])) return false;
    errno = (int)control->fault[kind].error;
    return true;
}

static bool wanted(enum fault_kind kind, int64_t bytes)
{
    return control && control->fault[kind].first && bytes >= control->fault[kind].filter;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static char early[16384];
static size_t early_used;
static __thread bool looking;

static bool is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *early_get(size_t bytes)
{
    size_t at = (early_used + 15) / 16 * 16;
    if (at + bytes > sizeof early) return NULL;
    early_used = at + bytes;
    return early + at;
}

static void *real_malloc, *real_calloc, *real_realloc, *real_free, *real_posix_memalign, *real_aligned_alloc;

/* all at once, before any is used */
static bool ready(void)
{
    if (real_free) return true;
    if (looking) return false;
    looking = true;
    real("malloc", &real_malloc);
    real("calloc", &real_calloc);
    real("realloc", &real_realloc);
    real("posix_memalign", &real_posix_memalign);
    real("aligned_alloc", &real_aligned_alloc);
    real("free", &real_free);
    looking = false;
    return true;
}

void *malloc(size_t bytes)
{
    if (!ready()) return early_get(bytes);
    if (wanted(FAULT_MALLOC, (int64_t)bytes) && fails(FAULT_MALLOC)) return NULL;
    return REAL(malloc)(bytes);
}

void *calloc(size_t n, size_t size)
{
    if (!ready()) return early_get(n * size);
    if (wanted(FAULT_MALLOC, (int64_t)(n * size)) && fails(FAULT_MALLOC)) return NULL;
    return REAL(calloc)(n, size);
}

void *realloc(void *old, size_t bytes)
{
    if (is_early(old)) {
        void *p = malloc(bytes);
        size_t most = (size_t)(early + sizeof early - (char *)old);
        return p ? memcpy(p, old, bytes < most ? bytes : most) : NULL;
    }
    if (!ready()) return early_get(bytes);
    if (wanted(FAULT_MALLOC, (int64_t)bytes) && fails(FAULT_MALLOC)) return NULL;
    return REAL(realloc)(old, bytes);
}

void free(void *p)
{
    if (p && !is_early(p) && ready()) REAL(free)(p);
}

int posix_memalign(void **p, size_t alignment, size_t bytes)
{
    if (!ready()) return ENOMEM;
    if (wanted(FAULT_MALLOC, (int64_t)bytes) && fails(FAULT_MALLOC)) return ENOMEM;
    return REAL(posix_memalign)(p, alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (!ready() || (wanted(FAULT_MALLOC, (int64_t)bytes) && fails(FAULT_MALLOC))) return NULL;
    return REAL(aligned_alloc)(alignment, bytes);
}

static void *real_mmap, *real_mmap64;

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if ((flags & MAP_ANONYMOUS) && wanted(FAULT_MAP, (int64_t)bytes) && fails(FAULT_MAP)) return MAP_FAILED;
    return REAL(mmap)(at, bytes, prot, flags, fd, offset);
}

void *mmap64(void *at, size_t bytes, int prot, int flags, int fd, off64_t offset)
{
    if ((flags & MAP_ANONYMOUS) && wanted(FAULT_MAP, (int64_t)bytes) && fails(FAULT_MAP)) return MAP_FAILED;
    return REAL(mmap64)(at, bytes, prot, flags, fd, offset);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void *real_open, *real_open64, *real_openat, *real_openat64, *real_mkdir, *real_unlink, *real_rename,
    *real_write, *real_pwrite, *real_pwrite64, *real_fsync, *real_fdatasync;

static bool open_fails(int flags)
{
    if (!control || !control->fault[FAULT_OPEN].first) return false;
    int64_t mask = control->fault[FAULT_OPEN].filter;
    return (!mask || (flags & mask)) && fails(FAULT_OPEN);
}

static mode_t mode_of(int flags, va_list ap)
{
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode_t mode = mode_of(flags, ap);                                                                              \
        va_end(ap);                                                                                                    \
        return open_fails(flags) ? -1 : REAL(name)(path, flags, mode);                                                 \
    }
#define OPENAT(name)                                                                                                   \
    int name(int dir, const char *path, int flags, ...)                                                                \
    {                                                                                                                  \
        va_list ap;                                                                                                    \
        va_start(ap, flags);                                                                                           \
        mode_t mode = mode_of(flags, ap);                                                                              \
        va_end(ap);                                                                                                    \
        return open_fails(flags) ? -1 : REAL(name)(dir, path, flags, mode);                                            \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int mkdir(const char *path, mode_t mode)
{
    return open_fails(O_CREAT) ? -1 : REAL(mkdir)(path, mode);
}

int unlink(const char *path)
{
    return open_fails(O_CREAT) ? -1 : REAL(unlink)(path);
}

int rename(const char *from, const char *to)
{
    return open_fails(O_CREAT) || fails(FAULT_RENAME) ? -1 : REAL(rename)(from, to);
}

/* sockets, pipes and event descriptors stay whole, and so does the log */
static bool write_fails(int fd)
{
    struct stat st;
    if (fd <= 2 || !control || !control->fault[FAULT_WRITE].first) return false;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && fails(FAULT_WRITE);
}

ssize_t write(int fd, const void *p, size_t n)
{
    return write_fails(fd) ? -1 : REAL(write)(fd, p, n);
}

ssize_t pwrite(int fd, const void *p, size_t n, off_t at)
{
    return write_fails(fd) ? -1 : REAL(pwrite)(fd, p, n, at);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at)
{
    return write_fails(fd) ? -1 : REAL(pwrite64)(fd, p, n, at);
}

int fsync(int fd)
{
    return fails(FAULT_SYNC) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd)
{
    return fails(FAULT_SYNC) ? -1 : REAL(fdatasync)(fd);
}

/* ---- threads and clocks ------------------------------------------------------------------------------------------ */

static void *real_pthread_create, *real_clock_gettime;

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    return fails(FAULT_THREAD) ? errno : REAL(pthread_create)(thread, attr, fn, arg);
}

static void shift(struct timespec *t, int64_t ns)
{
    int64_t all = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + ns;
    t->tv_sec = all / 1000000000;
    t->tv_nsec = all % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int rc = REAL(clock_gettime)(clock, t);
    if (rc || !control) return rc;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) shift(t, control->realtime_ns);
    if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE) shift(t, control->monotonic_ns);
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    *t = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
