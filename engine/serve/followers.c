#include "engine/serve/followers.h"

#include "engine/base/buf.h"
#include "engine/base/cpus.h"
#include "engine/base/crash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "kernels/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct follower {
    struct engine_config c;
    char device[FOLLOWER_DEVICE];
    pthread_t thread;
};

struct followers {
    int ranks;
    struct comm **comm;
    struct buf *cpus;   /* (ranks) */
    struct follower *v; /* (ranks), the first is unused */
};

static void *follow(void *arg)
{
    struct follower *f = arg;
    struct err e = {0};
    crash_thread_begin();
    bool failed = engine_follow(&f->c, &e) != 0,
         known = strncmp(e.msg, "rank 0:", 7) == 0 || strstr(e.msg, "another rank has failed");
    if (failed) log_write(known ? LOG_DEBUG : LOG_ERROR, "a rank of the model has ended: %s", e.msg);
    crash_thread_end();
    return NULL;
}

static const char *numbered_device(const char *device, int index, char out[FOLLOWER_DEVICE])
{
    if (!index) return device;
    snprintf(out, FOLLOWER_DEVICE, "%s:%d", device, index);
    return out;
}

static bool is_gpu(const char *device)
{
    return device && (strcmp(device, "cuda") == 0 || strcmp(device, "auto") == 0);
}

const char *follower_device(const char *device, char out[FOLLOWER_DEVICE])
{
    return numbered_device(device, is_gpu(device) ? comm_local_rank() : 0, out);
}

/* The part of a list of cores that is a rank's. */
static void share_cpus(const struct cpus *all, int rank, int ranks, struct buf *out)
{
    for (int i = all->n * rank / ranks; i < all->n * (rank + 1) / ranks; i++)
        buf_printf(out, "%s%d", out->len ? "," : "", all->v[i]);
}

/* Threads and cores of a rank. */
static void share(struct followers *f, const struct cpus *all, int threads, int rank, struct engine_config *c)
{
    int each = threads / f->ranks, more = rank < threads % f->ranks;
    share_cpus(all, rank, f->ranks, &f->cpus[rank]);
    c->comm = f->comm[rank];
    c->threads = each + more > 0 ? each + more : 1;
    c->cpus = f->cpus[rank].data;
}

static void free_all(struct followers *f)
{
    for (int i = 0; i < f->ranks; i++) buf_free(&f->cpus[i]);
    free(f->comm);
    free(f->cpus);
    free(f->v);
    free(f);
}

struct followers *followers_begin(struct engine_config *c, int ranks, double timeout_s, struct err *e)
{
    struct cpus all;
    struct engine_config config = *c;
    if (cpus_parse(&all, c->cpus, e)) return NULL;
    if (all.n && all.n < ranks) {
        err_set(e, ERR_INVALID, "--cpus has %d cores for %d ranks: each needs one", all.n, ranks);
        return NULL;
    }
    struct followers *f = mem_zalloc(sizeof *f);
    *f = (struct followers){.ranks = ranks,
                            .comm = mem_array((size_t)ranks, sizeof *f->comm),
                            .cpus = mem_array((size_t)ranks, sizeof *f->cpus),
                            .v = mem_array((size_t)ranks, sizeof *f->v)};
    if (!comm_open_local(ranks, timeout_s, f->comm)) {
        err_set(e, ERR_NOMEM, "no memory for %d ranks", ranks);
        free_all(f);
        return NULL;
    }
    int threads = c->threads ? c->threads : all.n ? all.n : cpus_available();
    share(f, &all, threads, 0, c);
    for (int i = 1; i < ranks; i++) {
        f->v[i].c = config;
        share(f, &all, threads, i, &f->v[i].c);
        bool own = is_gpu(config.device) || (config.device && strcmp(config.device, "simt") == 0);
        f->v[i].c.device = numbered_device(config.device, own ? i : 0, f->v[i].device);
        int rc = pthread_create(&f->v[i].thread, NULL, follow, &f->v[i]);
        if (!rc) continue;
        err_set(e, ERR_IO, "cannot start a thread for rank %d: %s", i, strerror(rc));
        *c = config;
        buf_free(&f->cpus[i]);
        for (int k = i; k < ranks; k++) comm_close(f->comm[k]), f->comm[k] = NULL;
        f->ranks = i;
        followers_end(f, false);
        return NULL;
    }
    return f;
}

void followers_end(struct followers *f, bool opened)
{
    if (!f) return;
    if (!opened) comm_fail(f->comm[0], "its engine could not be opened"); /* they may wait for it */
    for (int i = 1; i < f->ranks; i++) pthread_join(f->v[i].thread, NULL);
    for (int i = 0; i < f->ranks; i++) comm_close(f->comm[i]);
    free_all(f);
}
