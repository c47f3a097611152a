#include "server/kvevents/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "libtandem_zmq.so"

/* The file beside the program; false: there is none. */
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

int kv_wire_load(const struct kv_wire_config *c, struct kv_wire *out, struct err *e)
{
    char path[4096], why[KV_WIRE_WHY] = "";
    kv_wire_open_fn *open = NULL;
    void *module = dlopen(beside_program(path, sizeof path) ? path : TANDEM_MODULE_DIR "/" MODULE, RTLD_NOW);
    if (!module)
        return err_set(
            e, ERR_UNSUPPORTED,
            "--kv-events needs the module for ZeroMQ, which cannot be loaded: %.300s; a build with libzmq3-dev "
            "and libmsgpack-dev has it, and libzmq5 must be installed",
            dlerror());
    void *symbol = dlsym(module, "tandem_zmq_open");
    if (!symbol) return err_set(e, ERR_UNSUPPORTED, "--kv-events: %s is of another program", MODULE);
    memcpy(&open, &symbol, sizeof open); /* C has no conversion from data to function pointers */
    if (!open(KV_WIRE_VERSION, c, out, why)) return err_set(e, ERR_INVALID, "--kv-events: %s", why);
    return 0;
}
