/* The daemon on a device and a page pool that fail: linked with the daemon's own main, in tests only.  What fails is in
 * the file that TANDEM_FAULT names (preload.h), as for the preloaded library; the linker's --wrap puts these in the
 * places of dev_open and kv_alloc (tests/fault/meson.build). */
#include "engine/serve/kv.h"
#include "tests/fault/faulty.h"
#include "tests/fault/preload.h"

#include <stdlib.h>

static struct fault_control *control;

__attribute__((constructor)) static void open_control(void)
{
    control = fault_open();
}

static bool fails(enum fault_kind kind)
{
    return control && fault_hits(&control->fault[kind]);
}

bool faulty_fails(enum faulty_kind kind)
{
    return fails(kind == FAULTY_OP ? FAULT_OP : FAULT_DEVICE);
}

int32_t __real_kv_alloc(struct kv_pool *);
int32_t __wrap_kv_alloc(struct kv_pool *);
struct dev *__real_dev_open(const struct dev_config *, char why[160]);
struct dev *__wrap_dev_open(const struct dev_config *, char why[160]);

int32_t __wrap_kv_alloc(struct kv_pool *p)
{
    return fails(FAULT_PAGE) ? -1 : __real_kv_alloc(p);
}

struct dev *__wrap_dev_open(const struct dev_config *c, char why[160])
{
    struct dev *d = __real_dev_open(c, why);
    struct faulty *f = d ? malloc(sizeof *f) : NULL;
    if (f) faulty_open(f, d); /* for good: a device is closed through its table */
    return d;
}
