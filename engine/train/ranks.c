#include "engine/train/ranks.h"

#include "engine/train/train.h"
#include "kernels/comm.h"

#include <string.h>

int train_ranks_open(const char *how, double timeout_s, struct comm **out, struct err *e)
{
    char why[COMM_WHY_BYTES] = "";
    *out = NULL;
    if (strcmp(how, "none") == 0 || (strcmp(how, "auto") == 0 && !comm_launched())) return 0;
    if ((*out = comm_open_mpi(timeout_s, why))) return 0;
    return err_set(e, ERR_UNSUPPORTED, "--comm: the ranks of mpirun cannot be joined: %s", why);
}

int train_ranks_count(const struct comm *c)
{
    return c ? comm_ranks(c) : 1;
}

bool train_ranks_first(const struct comm *c)
{
    return !c || comm_rank(c) == 0;
}

int train_ranks_slots(int ranks)
{
    return ranks > GRAD_SLOTS_OF_RANKS ? ranks : GRAD_SLOTS_OF_RANKS;
}

const char *train_ranks_error(const struct comm *c)
{
    return c ? comm_error(c) : NULL;
}

void train_ranks_fail(struct comm *c, const char *why)
{
    if (c) comm_fail(c, why);
}

void train_ranks_close(struct comm *c)
{
    comm_close(c);
}
