/* Socket activation: takes over a listening socket from the service manager, as in sd_listen_fds(3): $LISTEN_PID is
 * this process, $LISTEN_FDS the number of sockets, from descriptor 3 on.  Main thread, before any other thread
 * exists. */
#ifndef TANDEM_SERVER_OPS_SOCKET_ACTIVATION_H
#define TANDEM_SERVER_OPS_SOCKET_ACTIVATION_H

#include "engine/base/err.h"

#include <stddef.h>

/* *fd: the descriptor of the one listening TCP socket, now owned by the caller and close-on-exec; -1 when none was
 * passed. @return ERR_INVALID and *e when anything else was passed.  Removes the variables from the environment. */
int socket_activation_take(int *fd, struct err *e);
/* Writes the numeric address that it listens on: "127.0.0.1", "::". */
void socket_activation_host(int fd, char *out, size_t size);

#endif
