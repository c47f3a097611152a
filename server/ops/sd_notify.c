#include "server/ops/sd_notify.h"

#include "engine/base/clock.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct {
    int fd; /* 0: no service manager */
    struct sockaddr_un to;
    socklen_t to_len;
    uint64_t watchdog_us;
} manager;

/* "/run/x" or "@x"; other addresses (vsock, for example) are not supported. */
static bool parse_address(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    if (n < 2 || n >= sizeof manager.to.sun_path || (text[0] != '/' && text[0] != '@')) return false;
    manager.to.sun_family = AF_UNIX;
    memcpy(manager.to.sun_path, text, n + 1);
    if (text[0] == '@') manager.to.sun_path[0] = 0;
    /* the length of an abstract name ends it; a path includes its NUL */
    manager.to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (text[0] == '/'));
    return true;
}

static uint64_t watchdog_of_environment(void)
{
    const char *us = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!us || (pid && strtoll(pid, NULL, 10) != (long long)getpid())) return 0;
    return strtoull(us, NULL, 10);
}

void sd_notify_open(void)
{
    if (manager.fd) return;
    if (!parse_address(getenv("NOTIFY_SOCKET"))) return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    manager.fd = fd;
    manager.watchdog_us = watchdog_of_environment();
}

bool sd_notify_wanted(void)
{
    return manager.fd != 0;
}

uint64_t sd_notify_watchdog_us(void)
{
    return manager.watchdog_us;
}

static void tell(const char *text)
{
    if (!manager.fd) return;
    while (sendto(manager.fd, text, strlen(text), MSG_NOSIGNAL, (struct sockaddr *)&manager.to, manager.to_len) < 0 &&
           errno == EINTR) {
    }
}

void sd_notify_status(const char *fmt, ...)
{
    char text[256] = "STATUS=";
    size_t at = strlen(text);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text + at, sizeof text - at, fmt, ap);
    va_end(ap);
    for (char *p = text + at; *p; p++)
        if ((unsigned char)*p < 0x20) *p = ' ';
    tell(text);
}

void sd_notify_ready(void)
{
    tell("READY=1");
}

void sd_notify_reloading(void)
{
    char text[64];
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(clock_now() / 1000));
    tell(text);
}

void sd_notify_stopping(double seconds)
{
    char text[64];
    snprintf(text, sizeof text, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%.0f", seconds * 1e6);
    tell(text);
}

void sd_notify_alive(void)
{
    tell("WATCHDOG=1");
}

void sd_notify_more_time(double seconds)
{
    char text[64];
    snprintf(text, sizeof text, "EXTEND_TIMEOUT_USEC=%.0f", seconds * 1e6);
    tell(text);
}
