/* tandem health: queries the health of a running daemon, for a container's HEALTHCHECK and on the command line: exit
 * status 0 for the answer 200, otherwise 1.  Finds the daemon through the options, environment and file that `tandem
 * serve` reads.  With TLS the certificate is not verified: the daemon is local, and no secret is sent.  Main thread;
 * plain sockets. */
#include "server/cli/cmd.h"

#include "engine/base/clock.h"

#include <errno.h>
#include <netdb.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static const char usage[] = "tandem health [--host ADDRESS] [--port N] [--ready] [--within SECONDS]";
static const char about[] = "Asks a running daemon whether it lives (or takes requests); exit status 0: yes, 1: no.";

/* @return an address to connect to: loopback for the wildcard. */
static const char *reachable(const char *host)
{
    if (strcmp(host, "0.0.0.0") == 0) return "127.0.0.1";
    return strcmp(host, "::") == 0 ? "::1" : host;
}

/* Sets the socket's timeouts to the time left until `end`; @return false when it has passed. */
static bool limit_wait(int fd, uint64_t end)
{
    uint64_t now = clock_now();
    if (now >= end) return false;
    uint64_t us = (end - now) / 1000 + 1;
    struct timeval t = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0;
}

static const char *reason(void)
{
    return errno == EAGAIN || errno == EINPROGRESS ? "no answer in time" : strerror(errno);
}

static int connect_to(const struct settings *set, uint64_t end, struct err *e)
{
    char port[16];
    const char *host = reachable(set->host);
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", set->port);
    int rc = getaddrinfo(host, port, &hints, &found), fd = -1;
    if (rc) {
        err_set(e, ERR_INVALID, "%s: %s", host, gai_strerror(rc));
        return -1;
    }
    err_set(e, ERR_IO, "%s port %d: no answer in time", host, set->port);
    for (struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && limit_wait(fd, end) && connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
        err_set(e, ERR_IO, "%s port %d: %s", host, set->port, reason());
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

/* ---- the exchange, plain or by TLS ------------------------------------------------------------------------------ */

struct link {
    int fd;
    uint64_t end; /* clock_now(): deadline of the answer */
    SSL_CTX *context;
    SSL *ssl; /* NULL: plain */
};

static bool link_secure(struct link *l)
{
    l->context = SSL_CTX_new(TLS_client_method());
    l->ssl = l->context ? SSL_new(l->context) : NULL;
    errno = EAGAIN;
    return l->ssl && limit_wait(l->fd, l->end) && SSL_set_fd(l->ssl, l->fd) == 1 && SSL_connect(l->ssl) == 1;
}

static void link_close(struct link *l)
{
    SSL_free(l->ssl);
    SSL_CTX_free(l->context);
    if (l->fd >= 0) close(l->fd);
}

static bool link_send(struct link *l, const char *p, int n)
{
    errno = EAGAIN;
    if (!limit_wait(l->fd, l->end)) return false;
    return l->ssl ? SSL_write(l->ssl, p, n) == n : send(l->fd, p, (size_t)n, MSG_NOSIGNAL) == n;
}

/* @return bytes received; 0: end of stream; -1: error or timeout */
static int link_receive(struct link *l, char *p, size_t n)
{
    errno = EAGAIN;
    if (!limit_wait(l->fd, l->end)) return -1;
    if (!l->ssl) return (int)recv(l->fd, p, n, 0);
    int got = SSL_read(l->ssl, p, (int)n);
    return got > 0 ? got : SSL_get_error(l->ssl, got) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

/* @return the answer's status, or 0 and *e.  body: receives the last bytes of the answer. */
static int ask(struct link *l, const char *path, char *body, size_t size, struct err *e)
{
    char request[128], answer[4096];
    size_t n = 0;
    int status = 0, len = snprintf(request, sizeof request,
                                   "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    if (!link_send(l, request, len)) {
        err_set(e, ERR_IO, "%s", reason());
        return 0;
    }
    while (n < sizeof answer - 1) {
        int got = link_receive(l, answer + n, sizeof answer - 1 - n);
        if (got < 0) {
            err_set(e, ERR_IO, "%s", reason());
            return 0;
        }
        if (got == 0) break;
        n += (size_t)got;
    }
    answer[n] = 0;
    const char *text = strstr(answer, "\r\n\r\n");
    snprintf(body, size, "%s", text ? text + 4 : "");
    if (!text || sscanf(answer, "HTTP/1.%*d %d", &status) != 1)
        err_set(e, ERR_INVALID, "what answers is no HTTP server");
    return text ? status : 0;
}

/* @return the status of GET path, or 0 and *e. */
static int ask_daemon(const struct settings *set, const char *path, char *body, size_t size, struct err *e)
{
    struct link l = {.end = clock_now() + (uint64_t)(set->within * 1e9)};
    int status = 0;
    l.fd = connect_to(set, l.end, e);
    if (l.fd >= 0 && *set->tls_cert && !link_secure(&l))
        err_set(e, ERR_IO, "%s port %d: no TLS", reachable(set->host), set->port);
    else if (l.fd >= 0)
        status = ask(&l, path, body, size, e);
    link_close(&l);
    return status;
}

int cmd_health(int argc, char **argv)
{
    struct settings set;
    int status;
    if (cmd_settings(&set, CMD_HEALTH, argc, argv, usage, about, &status)) {
        struct err e = {0};
        char body[512];
        const char *path = set.ready ? "/ready" : "/health";
        int code = ask_daemon(&set, path, body, sizeof body, &e);
        status = code == 200 ? 0 : 1;
        if (code == 200)
            printf("%s\n", set.ready ? "ready" : "healthy");
        else if (code)
            fprintf(stderr, "tandem: %s answers %d %s\n", path, code, body);
        else
            cmd_fail(&e);
    }
    settings_free(&set);
    return status;
}
