#include "server/jobs/published.h"

#include "engine/base/buf.h"
#include "engine/base/log.h"
#include "server/api/adapters.h"
#include "server/store/data_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;

static bool is_there(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Exchanges the directories a and b.  @return 0, or -1 with errno. */
static int exchange(const char *a, const char *b)
{
    int rc = renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
    if (!rc || (errno != EINVAL && errno != ENOSYS)) return rc;
    /* the file system has no atomic exchange: three steps.  No adapter has a name with a tilde. */
    struct buf aside = {0};
    buf_printf(&aside, "%s~aside", a);
    data_remove(aside.data);
    rc = rename(b, aside.data);
    if (!rc && rename(a, b)) {
        int why = errno;
        rc = -1;
        if (rename(aside.data, b)) log_error("%s: what was served is now in %s", b, aside.data);
        errno = why;
    } else if (!rc) {
        rc = rename(aside.data, a);
    }
    buf_free(&aside);
    return rc;
}

static int failed(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
}

static void keep(const char *out, const char *before)
{
    struct err e = {0};
    data_remove(before);
    if (rename(out, before) || data_sync_parent(before, &e))
        log_warn("%s: the version before is not kept: %s", before, e.code ? e.msg : strerror(errno));
}

void published_end(const char *out, const char *before)
{
    pthread_mutex_lock(&changing);
    if (before && is_there(out)) keep(out, before);
    data_remove(out);
    pthread_mutex_unlock(&changing);
}

static int put(const char *out, const char *target, struct err *e)
{
    if (is_there(target) ? exchange(out, target) : rename(out, target)) return failed(target, e);
    return data_sync_parent(target, e) || data_sync_parent(out, e) ? e->code : 0;
}

/* Loads the result before moving it to its name, so that one that cannot be served replaces nothing. */
int published_put(const struct served_model *m, const char *name, const char *out, const char *target,
                  const char *before, struct err *e)
{
    pthread_mutex_lock(&changing);
    int rc = m ? adapters_publish_dir(m, name, out, e) : 0;
    if (!rc) rc = put(out, target, e);
    pthread_mutex_unlock(&changing);
    if (!rc) published_end(out, before);
    return rc;
}

static int back(const struct served_model *m, const char *name, const char *target, const char *before, struct err *e)
{
    if (!is_there(target) || !is_there(before))
        return err_set(e, ERR_NOT_FOUND, "%.100s: no version before this one: a job that replaces an adapter keeps it",
                       name);
    if (adapters_publish_dir(m, name, before, e)) return e->code;
    if (exchange(before, target)) {
        struct err again = {0};
        failed(target, e);
        if (adapters_publish_dir(m, name, target, &again)) log_error("adapter %.100s: %s", name, again.msg);
        return e->code;
    }
    return data_sync_parent(target, e) || data_sync_parent(before, e) ? e->code : 0;
}

int published_back(const struct served_model *m, const char *name, const char *target, const char *before,
                   struct err *e)
{
    pthread_mutex_lock(&changing);
    int rc = back(m, name, target, before, e);
    pthread_mutex_unlock(&changing);
    return rc;
}
