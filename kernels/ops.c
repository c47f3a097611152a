/* The names of ops, and a device's sticky error. Used on the thread that owns the device. */
#include "kernels/ops.h"

#include "kernels/dev.h"

#include <stdarg.h>
#include <stdio.h>

void dev_close(struct dev *d)
{
    if (d) d->ops->close(d);
}

const char *op_name(enum op_id op)
{
    static const char *const names[OP_COUNT] = {
#define X(op) #op,
        OPS(X)
#undef X
    };
    return (unsigned)op < OP_COUNT ? names[op] : "?";
}

void dev_fail(struct dev *d, const char *op, const char *fmt, ...)
{
    if (d->error.op) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(d->error.msg, sizeof d->error.msg, fmt, ap);
    va_end(ap);
    d->error.op = op;
}

void dev_clear_error(struct dev *d)
{
    d->error.op = NULL;
    d->error.msg[0] = 0;
    d->error.lost = false;
}
