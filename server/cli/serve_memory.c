#include "server/cli/serve_memory.h"

#include "engine/base/mem.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <uv.h>

static void *resize_bytes(void *old, size_t bytes)
{
    return mem_resize(old, 1, bytes);
}

/* jemalloc, where it is the allocator (mallctl(3)).  Memory that was freed goes back to the system after a second or
 * two, by jemalloc's own thread, and its addresses with it: under a limit of address space one arena's are of no use to
 * another.  Slabs of small pieces are 16 pages: jemalloc never gives back its notes on each, 128 bytes.  Each thread
 * that allocates has an arena; one whose arena cannot be made makes jemalloc 5.3 follow a null pointer, so all of them
 * are made now: as many as there are such threads. */
extern const char *malloc_conf;
const char *malloc_conf =
    "narenas:8,background_thread:true,dirty_decay_ms:1000,muzzy_decay_ms:0,retain:false,slab_sizes:1-256:16";
int mallctl(const char *name, void *old, size_t *old_size, void *new, size_t new_size) __attribute__((weak));

static void open_arenas(void)
{
    unsigned n = 0, own = 0;
    size_t size = sizeof n;
    if (!mallctl || mallctl("opt.narenas", &n, &size, NULL, 0) || mallctl("thread.arena", &own, &size, NULL, 0)) return;
    for (unsigned i = 0; i < n; i++) mallctl("thread.arena", NULL, NULL, &i, sizeof i);
    mallctl("thread.arena", NULL, NULL, &own, sizeof own);
}

void serve_memory_open(void)
{
    open_arenas();
    mem_reserve_open();
    uv_replace_allocator(mem_alloc, resize_bytes, mem_array, free);
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = mem_alloc, .free_fn = free});
}
