#include "server/cli/serve_memory.h"

#include "engine/base/mem.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <uv.h>

static void *resize_bytes(void *old, size_t bytes)
{
    return mem_resize(old, 1, bytes);
}

/* Settings for jemalloc, where it is the allocator (mallctl(3)).  Its background thread returns freed memory to the
 * system after a second or two, and unmaps the addresses too, because under a limit of address space one arena cannot
 * use another's.  Slabs of small allocations are 16 pages, because jemalloc never frees its 128 bytes of metadata per
 * slab.  Each allocating thread has an arena; jemalloc 5.3 dereferences a null pointer when an arena cannot be created,
 * so all of them are created at start: one per such thread. */
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
