/* A device around a device, as kernels/trace.c does it, whose ops and memory fail when the program says so. */
#ifndef TANDEM_TESTS_FAULT_FAULTY_H
#define TANDEM_TESTS_FAULT_FAULTY_H

#include "kernels/ops.h"

#include <stdbool.h>

enum faulty_kind {
    FAULTY_OP,     /* an op; those that it is composed of do not count */
    FAULTY_MEMORY, /* alloc, weight_pack */
};

/* The program's: does this call fail? */
bool faulty_fails(enum faulty_kind);

struct faulty {
    struct dev_ops ops; /* first: what the device's `ops` points to */
    const struct dev_ops *own;
    int depth;
};

/* Puts *f around the device, which it must outlive. */
void faulty_open(struct faulty *f, struct dev *);
void faulty_close(struct faulty *f, struct dev *);

#endif
