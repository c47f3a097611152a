#include "server/ops/socket_activation.h"

#include <fcntl.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST_FD = 3 }; /* SD_LISTEN_FDS_START */

static int option_of(int fd, int name)
{
    int v = -1;
    socklen_t n = sizeof v;
    return getsockopt(fd, SOL_SOCKET, name, &v, &n) ? -1 : v;
}

int socket_activation_take(int *fd, struct err *e)
{
    const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
    bool ours = pid && count && strtoll(pid, NULL, 10) == (long long)getpid();
    long n = ours ? strtol(count, NULL, 10) : 0;
    *fd = -1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    if (n <= 0) return 0;
    if (n > 1)
        return err_set(e, ERR_INVALID,
                       "the service manager hands over %ld sockets; one is served (an IPv6 socket takes "
                       "IPv4 too: BindIPv6Only=both)",
                       n);
    int domain = option_of(FIRST_FD, SO_DOMAIN);
    if ((domain != AF_INET && domain != AF_INET6) || option_of(FIRST_FD, SO_TYPE) != SOCK_STREAM ||
        option_of(FIRST_FD, SO_ACCEPTCONN) != 1)
        return err_set(e, ERR_INVALID, "what the service manager hands over is no listening TCP socket");
    fcntl(FIRST_FD, F_SETFD, FD_CLOEXEC);
    *fd = FIRST_FD;
    return 0;
}

void socket_activation_host(int fd, char *out, size_t size)
{
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n) ||
        getnameinfo((struct sockaddr *)&at, n, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST))
        snprintf(out, size, "?");
}
