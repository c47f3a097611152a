#include "server/hub/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(ERR_INVALID == -1, "lock_try's -1 is no code of its errors");

int lock_try(const char *path, struct err *e)
{
    struct stat st;
    /* group-writable, for users who share a cache; not truncated: it may be another's */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0664);
    if (fd < 0) return err_set(e, ERR_IO, "%.300s: %s", path, strerror(errno));
    int rc = flock(fd, LOCK_EX | LOCK_NB), why = errno;
    /* a file system without flock: as with locks that do not work, the digest of the file decides */
    if (rc && (why == ENOSYS || why == EOPNOTSUPP || why == ENOLCK)) rc = 0;
    if (rc == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0) return fd;
    close(fd);
    if (rc == 0 || why == EWOULDBLOCK || why == EACCES || why == EINTR) return -1;
    return err_set(e, ERR_IO, "%.300s: %s", path, strerror(why));
}
