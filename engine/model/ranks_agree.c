#include "engine/model/ranks_agree.h"

#include "engine/base/mem.h"
#include "kernels/comm.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ranks_agree(struct comm *c, int rc, struct err *e)
{
    if (!c) return rc;
    int all[COMM_RANKS_MAX] = {0}, ranks = comm_ranks(c), first = 0;
    if (rc) e->code = rc;
    comm_all_gather(c, &rc, all, sizeof rc);
    while (first < ranks - 1 && !all[first]) first++;
    rc = all[first];
    if (comm_error(c)) return err_set(e, ERR_IO, "%s", comm_error(c));
    if (!rc) return 0;
    comm_broadcast(c, e, sizeof *e, first);
    if (comm_error(c)) return err_set(e, ERR_IO, "%s", comm_error(c));
    bool said = strncmp(e->msg, "rank ", 5) == 0;
    return said ? e->code : err_prefix(e, "rank %d", first);
}

struct rank_kind rank_kind_of(const struct dev *d)
{
    struct rank_kind k = {.bf16_x = d->bf16_x};
    snprintf(k.device, sizeof k.device, "%s", d->ops->name);
    snprintf(k.level, sizeof k.level, "%s", d->level);
    return k;
}

int ranks_compare(struct comm *c, const struct rank_kind *own, const char *const otherwise[2], struct err *e)
{
    struct rank_kind *all = mem_array((size_t)comm_ranks(c), sizeof *all);
    comm_all_gather(c, own, all, sizeof *own);
    int rc = comm_error(c) ? err_set(e, ERR_IO, "%s", comm_error(c)) : 0;
    for (int i = 1; i < comm_ranks(c) && !rc; i++) {
        const struct rank_kind *k = &all[i];
        if (strcmp(k->device, all->device) || strcmp(k->level, all->level) || k->bf16_x != all->bf16_x)
            rc =
                err_set(e, ERR_INVALID,
                        "rank %d computes on %s %s and rank 0 on %s %s, with other results: name one --device, and one "
                        "--activations",
                        i, k->device, k->level, all->device, all->level);
        for (int w = 0; w < 2 && !rc; w++)
            if (k->work[w] != all->work[w]) rc = err_set(e, ERR_INVALID, "rank %d %s", i, otherwise[w]);
    }
    free(all);
    return rc;
}
