/* Socket activation: a socket that the service manager listens on and hands over when it starts us, as sd_listen_fds(3)
 * describes: $LISTEN_PID is this process, $LISTEN_FDS how many there are, from descriptor 3 on.  Main thread, before
 * there are others. */
#ifndef TANDEM_SERVER_OPS_SOCKET_ACTIVATION_H
#define TANDEM_SERVER_OPS_SOCKET_ACTIVATION_H

#include "engine/base/err.h"

#include <stddef.h>

/* The descriptor of the one listening TCP socket, now the caller's and closed on exec; -1 when none was handed over.
 * ERR_INVALID and *e when what was handed over is not that.  The variables are gone afterwards. */
int socket_activation_take(int *fd, struct err *e);
/* The address it listens on, as a number: "127.0.0.1", "::". */
void socket_activation_host(int fd, char *out, size_t size);

#endif
