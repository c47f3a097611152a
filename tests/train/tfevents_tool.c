/* The C side of test_tfevents.py: tfevents_tool DIR FIRST_STEP, then lines "STEP TAG=VALUE..." on stdin; after each it
 * prints "ok" or the error.  A line "limit BYTES" lets no file grow past so many. */
#include "engine/train/tfevents.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { SCALARS_MAX = 16 };

static int add(struct tfevents *t, char *line, struct err *e)
{
    struct tfevents_scalar v[SCALARS_MAX];
    size_t n = 0;
    char *rest = NULL;
    long long step = atoll(strtok_r(line, " \n", &rest));
    for (char *word; n < SCALARS_MAX && (word = strtok_r(NULL, " \n", &rest)); n++) {
        char *value = strchr(word, '=');
        if (!value) return err_set(e, ERR_INVALID, "no value: %s", word);
        *value++ = 0;
        v[n] = (struct tfevents_scalar){word, strtod(value, NULL)};
    }
    return tfevents_add(t, step, v, n, e);
}

int main(int argc, char **argv)
{
    char line[4096];
    struct err e = {0};
    if (argc < 3) return 2;
    signal(SIGXFSZ, SIG_IGN);
    struct tfevents *t = tfevents_open(argv[1], atoll(argv[2]), &e);
    if (!t) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    puts("ok");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct rlimit r;
        if (strncmp(line, "limit ", 6) == 0) {
            getrlimit(RLIMIT_FSIZE, &r);
            r.rlim_cur = strtoull(line + 6, NULL, 10);
            puts(setrlimit(RLIMIT_FSIZE, &r) ? "no limit" : "ok");
        } else {
            puts(add(t, line, &e) ? e.msg : "ok");
        }
        fflush(stdout);
    }
    tfevents_close(t);
    return 0;
}
