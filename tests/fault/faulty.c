#include "tests/fault/faulty.h"

#include <stdint.h>

static struct faulty *faulty_of(struct dev *d)
{
    return (struct faulty *)(uintptr_t)d->ops;
}

#define X(op)                                                                                                          \
    static void faulty_##op(struct dev *d, const struct op##_args *a)                                                  \
    {                                                                                                                  \
        struct faulty *f = faulty_of(d);                                                                               \
        if (!f->depth && faulty_fails(FAULTY_OP)) {                                                                    \
            dev_fail(d, #op, "injected");                                                                              \
            return;                                                                                                    \
        }                                                                                                              \
        f->depth++;                                                                                                    \
        f->own->op(d, a);                                                                                              \
        f->depth--;                                                                                                    \
    }
OPS(X)
#undef X

static void *faulty_alloc(struct dev *d, size_t bytes)
{
    return faulty_fails(FAULTY_MEMORY) ? NULL : faulty_of(d)->own->alloc(d, bytes);
}

static struct weight *faulty_pack(struct dev *d, const struct weight_src *src, int n)
{
    return faulty_fails(FAULTY_MEMORY) ? NULL : faulty_of(d)->own->weight_pack(d, src, n);
}

void faulty_open(struct faulty *f, struct dev *d)
{
    *f = (struct faulty){.ops = *d->ops, .own = d->ops};
#define X(op) f->ops.op = faulty_##op;
    OPS(X)
#undef X
    f->ops.alloc = faulty_alloc;
    f->ops.weight_pack = faulty_pack;
    d->ops = &f->ops;
}

void faulty_close(struct faulty *f, struct dev *d)
{
    d->ops = f->own;
}
