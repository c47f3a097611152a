/* A directory for a test's files, and numbers that are the same in every run. */
#ifndef TANDEM_TESTS_UNIT_ENGINE_KVSTORE_SCRATCH_H
#define TANDEM_TESTS_UNIT_ENGINE_KVSTORE_SCRATCH_H

#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[64]; /* made by set_up, removed by tear_down */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return remove(path);
}

static int set_up(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/kv-disk-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int tear_down(void **state)
{
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* 0 .. n - 1 */
static inline int64_t chance(int64_t n)
{
    static uint64_t z = 7;
    z = z * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((z >> 33) % (uint64_t)n);
}

#endif
