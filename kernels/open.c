/* Opens devices by name: the only file that knows which devices exist. */
#include "kernels/dev.h"
#include "kernels/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number after a word of four letters and a colon, 0 without; -1: no number. */
static int number_of(const char *name, char why[160])
{
    char *end = NULL;
    long index = name[4] ? strtol(name + 5, &end, 10) : 0;
    if (!name[4] || (end != name + 5 && !*end && index >= 0 && index <= 1023)) return (int)index;
    snprintf(why, 160, "after \"%.5s\" comes the number of a GPU, not \"%.60s\"", name, name + 5);
    return -1;
}

/* "cuda" or "cuda:N" */
static struct dev *open_cuda(const char *name, const struct dev_config *c, char why[160])
{
    int index = number_of(name, why);
    if (index < 0) return NULL;
#ifdef TANDEM_CUDA
    return cuda_open(index, c, why);
#else
    (void)c;
    snprintf(why, 160,
             "this program was built without CUDA; with nvcc on the build machine: meson setup -Dcuda=enabled");
    return NULL;
#endif
}

/* "auto" or "auto:N": the cpu where the GPU cannot be used */
static struct dev *open_auto(const char *name, const struct dev_config *c, char why[160])
{
    char failed[160] = "";
    struct dev *d = open_cuda(name, c, why); /* both are words of four letters, and the number is behind them */
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
    else if (is_kind(name, "auto"))
        d = open_auto(name, c, why);
    else if (is_kind(name, "cpu"))
        d = cpu_open(name[3] ? name + 4 : NULL, c->threads, why);
    else if (is_kind(name, "cuda"))
        d = open_cuda(name, c, why);
#ifdef TANDEM_SIMT
    else if (is_kind(name, "simt"))
        d = number_of(name, why) < 0 ? NULL : simt_open(number_of(name, why), c, why);
#endif
    else
        snprintf(why, 160,
                 "no device is called \"%.60s\"; there are auto, cpu, cuda, cuda:N, levels such as cpu:avx2, ref",
                 name);
    if (d) d->bf16_x = c->bf16_x;
    return d;
}
