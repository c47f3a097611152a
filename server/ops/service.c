#include "server/ops/service.h"

#include "engine/base/buf.h"
#include "engine/base/crash.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "server/ops/sd_notify.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { REPORTS_KEPT = 16, RECENT_SECONDS = 24 * 3600 };

static int is_report(const struct dirent *d)
{
    size_t n = strlen(d->d_name);
    return n > 4 && d->d_name[0] != '.' && strcmp(d->d_name + n - 4, ".txt") == 0;
}

/* the names begin with the time */
static int newest_first(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*b)->d_name, (*a)->d_name);
}

static void look_at_reports(const char *data_dir)
{
    struct dirent **v = NULL;
    char *dir = file_join(data_dir, "crashes");
    int n = scandir(dir, &v, is_report, newest_first);
    for (int i = 0; i < n; i++) {
        char *path = file_join(dir, v[i]->d_name);
        struct stat st;
        if (i == 0 && stat(path, &st) == 0 && time(NULL) - st.st_mtime < RECENT_SECONDS)
            log_warn("an earlier process crashed report=%s", path);
        if (i >= REPORTS_KEPT) unlink(path);
        free(path);
        free(v[i]);
    }
    free(v);
    free(dir);
}

/* The data directory is created only when needed; checks whether it could be, in its nearest existing parent. */
static void look_at_data_dir(const struct settings *set)
{
    const char *dir = settings_data_dir(set);
    char *at = mem_strdup(dir);
    struct stat st;
    bool there = true;
    while (stat(at, &st) && errno == ENOENT) {
        char *slash = strrchr(at, '/');
        there = false;
        if (slash && slash != at)
            *slash = 0;
        else
            snprintf(at, 2, "%s", slash ? "/" : ".");
        if (!slash || slash == at) break;
    }
    bool is_dir = stat(at, &st) == 0 && S_ISDIR(st.st_mode);
    if (!is_dir || access(at, W_OK | X_OK))
        log_warn("the data directory cannot be used: jobs and uploads will fail dir=%s reason=\"%s: %s\"", dir, at,
                 strerror(is_dir ? errno : ENOTDIR));
    else if (!set->data_dir || !*set->data_dir)
        log_info("no --data-dir is given: jobs, files and adapters will be kept here dir=%s exists=%s", dir,
                 there ? "true" : "false");
    free(at);
}

void service_settings(const struct settings *set)
{
    struct buf text = {0};
    settings_describe(set, CMD_SERVE, &text);
    crash_config(text.data ? text.data : "");
    buf_free(&text);
}

void service_begin(const struct settings *set)
{
    crash_open(settings_data_dir(set), TANDEM_VERSION);
    service_settings(set);
    look_at_data_dir(set);
    look_at_reports(settings_data_dir(set));
    sd_notify_open();
    sd_notify_status("loading the model");
}
