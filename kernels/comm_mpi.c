/* Finds the module that speaks MPI, and loads it: only a process that is one of several ranks has MPI in it. */
#include "kernels/comm_transport.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libtandem_mpi.so"

bool comm_launched(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *size = getenv("PMI_SIZE");
    if (getenv("OMPI_COMM_WORLD_SIZE")) return true;
    if (tasks) return getenv("SLURM_PROCID") && atoi(tasks) > 1; /* also of one task srun sets the variables below */
    return getenv("PMIX_RANK") || (size && atoi(size) > 1);
}

int comm_local_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        int rank = value ? atoi(value) : 0;
        if (value) return rank > 0 && rank < COMM_RANKS_MAX ? rank : 0;
    }
    return 0;
}

/* The file beside the program; false: the program's place is unknown. */
static bool beside_program(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - sizeof MODULE);
    if (n <= 0) return false;
    path[n] = 0;
    char *name = strrchr(path, '/');
    if (!name) return false;
    memcpy(name + 1, MODULE, sizeof MODULE);
    return access(path, R_OK) == 0;
}

/* Its symbols are global, since the parts that MPI loads later look for theirs there. */
static void *load(char why[COMM_WHY_BYTES])
{
    char path[4096];
    const char *named = getenv("TANDEM_MPI_MODULE");
    if (!named || !*named) named = beside_program(path, sizeof path) ? path : TANDEM_MODULE_DIR "/" MODULE;
    void *module = dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    if (!module) snprintf(why, COMM_WHY_BYTES, "the module for MPI cannot be loaded: %s", dlerror());
    return module;
}

struct comm *comm_open_mpi(double timeout_s, char why[COMM_WHY_BYTES])
{
    struct comm_transport t = {0};
    comm_module_open *open = NULL;
    void *module = load(why), *symbol = module ? dlsym(module, "tandem_mpi_open") : NULL;
    if (!module) return NULL;
    if (!symbol) return snprintf(why, COMM_WHY_BYTES, "the module for MPI is of another program"), NULL;
    memcpy(&open, &symbol, sizeof open); /* C has no conversion from data to function pointers */
    if (!open(COMM_TRANSPORT_VERSION, &t, why)) return NULL;
    struct comm *c = comm_new(&t, timeout_s);
    if (!c) snprintf(why, COMM_WHY_BYTES, "no memory for %d ranks", t.ranks);
    return c;
}
