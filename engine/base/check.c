#include "engine/base/check.h"

#include <stdatomic.h>

static char message[512]; /* written once: by the first thread that fails */
static _Atomic int failed;

_Noreturn void check_failed(const char *file, int line, const char *func, const char *cond)
{
    fprintf(stderr, "tandem: %s:%d: %s: impossible state: %s\n", file, line, func, cond);
    if (!atomic_fetch_add(&failed, 1))
        snprintf(message, sizeof message, "%s:%d: %s: impossible state: %s", file, line, func, cond);
    abort();
}

const char *check_message(void)
{
    return message;
}
