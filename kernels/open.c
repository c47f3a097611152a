/* Opens devices by name: the only file that knows which devices exist. */
#include "kernels/dev.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "cuda" or "cuda:N" */
static struct dev *open_cuda(const char *name, const struct dev_config *c, char why[160])
{
    char *end = NULL;
    long index = name[4] ? strtol(name + 5, &end, 10) : 0;
    if (name[4] && (end == name + 5 || *end || index < 0 || index > 1023))
        return snprintf(why, 160, "after \"cuda:\" comes the number of a GPU, not \"%.60s\"", name + 5), NULL;
#ifdef TANDEM_CUDA
    return cuda_open((int)index, c, why);
#else
    (void)c;
    snprintf(why, 160,
             "this program was built without CUDA; with nvcc on the build machine: meson setup -Dcuda=enabled");
    return NULL;
#endif
}

static struct dev *open_auto(const struct dev_config *c, char why[160])
{
    char failed[160] = "";
    struct dev *d = open_cuda("cuda", c, why);
    if (!d && !(d = cpu_open(NULL, c->threads, failed))) snprintf(why, 160, "%s", failed);
    return d;
}

static bool is_kind(const char *name, const char *kind)
{
    size_t n = strlen(kind);
    return !strncmp(name, kind, n) && (!name[n] || name[n] == ':');
}

struct dev *dev_open(const struct dev_config *c, char why[160])
{
    const char *name = c->name ? c->name : "cpu";
    why[0] = 0;
    if (c->threads < 0 || c->threads > 1024) {
        snprintf(why, 160, "threads must be 0..1024, not %d", c->threads);
        return NULL;
    }
    struct dev *d = NULL;
    if (!strcmp(name, "ref"))
        d = ref_open(why);
    else if (!strcmp(name, "auto"))
        d = open_auto(c, why);
    else if (is_kind(name, "cpu"))
        d = cpu_open(name[3] ? name + 4 : NULL, c->threads, why);
    else if (is_kind(name, "cuda"))
        d = open_cuda(name, c, why);
#ifdef TANDEM_SIMT
    else if (!strcmp(name, "simt"))
        d = simt_open(c, why);
#endif
    else
        snprintf(why, 160,
                 "no device is called \"%.60s\"; there are auto, cpu, cuda, cuda:N, levels such as cpu:avx2, ref",
                 name);
    if (d) d->bf16_x = c->bf16_x;
    return d;
}
