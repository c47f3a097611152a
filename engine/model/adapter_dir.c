/* Reading an adapter's directory.
 *
 * A trainer may replace the directory, or the files in it, while it is read.  The configuration of one adapter can
 * match the shapes of another's weights and still be wrong for them.  So the directory is opened once and read through
 * its descriptor, and its files must be the same ones after reading as before. */
#include "engine/model/adapter.h"

#include "engine/base/file.h"
#include "engine/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_LIMIT = 4 << 20 };

struct directory {
    const char *name; /* the caller's path, for messages */
    int fd;
    char path[64]; /* path of the opened descriptor */
    char *config, *weights;
};

struct file_states {
    struct stat config, weights;
};

static int directory_open(struct directory *p, const char *dir, struct err *e)
{
    *p = (struct directory){.name = dir, .fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (p->fd < 0) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", dir, strerror(errno));
    snprintf(p->path, sizeof p->path, "/proc/self/fd/%d", p->fd);
    const char *base = access(p->path, F_OK) == 0 ? p->path : dir; /* no /proc: use the path itself */
    p->config = file_join(base, ADAPTER_CONFIG);
    p->weights = file_join(base, ADAPTER_WEIGHTS);
    return 0;
}

static void directory_close(struct directory *p)
{
    close(p->fd);
    free(p->config);
    free(p->weights);
}

/* Messages begin with the descriptor's path; replaces it with the caller's. */
static void name_directory(const struct directory *p, struct err *e)
{
    size_t n = strlen(p->path);
    struct err rest = *e;
    if (strncmp(e->msg, p->path, n) == 0) err_set(e, rest.code, "%.200s%s", p->name, rest.msg + n);
}

static void read_states(const struct directory *p, struct file_states *l)
{
    memset(l, 0, sizeof *l); /* fields of a missing file stay 0 */
    stat(p->config, &l->config);
    stat(p->weights, &l->weights);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static struct adapter *read_once(const struct directory *p, const struct model_config *c, struct err *e)
{
    char *config = NULL;
    size_t size;
    int rc = file_read(p->config, CONFIG_LIMIT, &config, &size, e);
    if (!rc && memchr(config, 0, size)) rc = err_set(e, ERR_INVALID, "%s: not a JSON object", p->config);
    struct tensor_source *f = rc ? NULL : safetensors_open(p->weights, e);
    struct adapter *a = f ? adapter_parse(config, f, c, e) : NULL;
    if (f && !a) err_prefix(e, "%.200s", p->name);
    if (!rc && !f && access(p->weights, F_OK)) {
        char *pickle = file_join(p->path, "adapter_model.bin");
        if (access(pickle, F_OK) == 0)
            err_set(e, ERR_UNSUPPORTED, "%.200s: only adapter_model.bin is there; tandem reads safetensors", p->name);
        free(pickle);
    }
    tensor_source_close(f);
    free(config);
    return a;
}

/* Reads the directory's present content.  *again: it changed while it was read. */
static struct adapter *try_read(const char *dir, const struct model_config *c, bool *again, struct err *e)
{
    struct directory p;
    struct file_states before, after;
    struct stat opened, now;
    *again = false;
    if (directory_open(&p, dir, e)) return NULL;
    read_states(&p, &before);
    struct adapter *a = read_once(&p, c, e);
    read_states(&p, &after);
    *again = !same_file(&before.config, &after.config) || !same_file(&before.weights, &after.weights);
    /* the directory was replaced and the old one is being removed: the error is not about the new one */
    bool replaced = fstat(p.fd, &opened) == 0 && stat(dir, &now) == 0 && opened.st_ino != now.st_ino;
    if (!a) name_directory(&p, e);
    if (!a && replaced) *again = true;
    directory_close(&p);
    return a;
}

struct adapter *adapter_read(const char *dir, const struct model_config *c, struct err *e)
{
    bool again = true;
    struct adapter *a = NULL;
    for (int tries = 0; tries < 5 && again; tries++) {
        adapter_free(a);
        a = try_read(dir, c, &again, e);
    }
    if (!again) return a;
    adapter_free(a);
    err_set(e, ERR_IO, "%.200s changes while it is read", dir);
    return NULL;
}
