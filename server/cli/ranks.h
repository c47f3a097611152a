/* The ranks that a command divides its model over: threads of this process (--tensor-parallel), or the processes that
 * mpirun started, of which the first is the command and the others follow it.  Main thread. */
#ifndef TANDEM_SERVER_CLI_RANKS_H
#define TANDEM_SERVER_CLI_RANKS_H

#include "engine/serve/followers.h"
#include "server/config/settings.h"

struct comm;

struct ranks {
    const struct settings *set;
    struct comm *comm;           /* of mpirun's processes; NULL: there is only this one */
    struct followers *followers; /* threads of this one */
    bool begun;
    bool opened; /* the engine is open, or was: whoever opens it says so */
};

/* Joins the processes that mpirun started, if it did. */
int ranks_open(struct ranks *, const struct settings *, struct err *e);
/* Whether this process follows the first one: then ranks_follow is all that it does. */
bool ranks_follows(const struct ranks *);
/* @return the exit status of the process. */
int ranks_follow(struct ranks *);
/* Before engine_open: sets the config's comm, where the model is divided.  The strings of the config are borrowed until
 * ranks_close. */
int ranks_begin(struct ranks *, struct engine_config *, struct err *e);
/* After engine_close. */
void ranks_close(struct ranks *);

#endif
