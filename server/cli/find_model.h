/* Finding and downloading models for a command in the foreground: progress on stderr, Ctrl-C ends a download so that it
 * can be continued.  Main thread. */
#ifndef TANDEM_SERVER_CLI_FIND_MODEL_H
#define TANDEM_SERVER_CLI_FIND_MODEL_H

#include "server/hub/hub.h"

#include <signal.h>

enum { EXIT_STOPPED = 130 }; /* as a shell says of SIGINT */

struct hub_session {
    struct hub hub;
    struct hub_printer printer;
    struct sigaction was_int, was_term;
};

void hub_session_open(struct hub_session *);
/* Gives the signals back.  rc: of what was done; *e: its error.  @return the process's exit status */
int hub_session_close(struct hub_session *, int rc, const struct err *e);

#endif
