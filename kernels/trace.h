/* Counts what a device does: calls, time, multiply-adds and bytes of every op, for `tandem bench`.
 *
 * A trace replaces the device's table of ops by one that counts and calls the device's own. The device stays the
 * same object, so whatever was made with it before stays valid. Costs two clock reads per op and allocates nothing.
 * Used on the device's thread. */
#ifndef TANDEM_KERNELS_TRACE_H
#define TANDEM_KERNELS_TRACE_H

#include "kernels/ops.h"

struct trace_count {
    uint64_t calls, ns;
    double macs;  /* linear: T N K.  attn: q k and p v of what each token sees, 2 head_dim per position and head */
    double bytes; /* minimum to be read: linear: the packed weight. attn: keys and values of the positions seen */
};

enum { TRACE_HEAD = OP_COUNT, TRACE_COUNT }; /* beside one row for each op: the linear of `head` */

struct dev_trace;

/* head: a weight whose GEMMs are counted separately, or NULL. kv_token_bytes: of one token's key and value in one
 * layer. @return NULL when out of memory. On a device that only enqueues, the trace waits for each op. */
struct dev_trace *dev_trace_open(struct dev *, const struct weight *head, double kv_token_bytes);
void dev_trace_close(struct dev_trace *); /* restores the device's own table; call before dev_close; NULL is allowed */

void dev_trace_clear(struct dev_trace *);
const struct trace_count *dev_trace_counts(const struct dev_trace *); /* [TRACE_COUNT] */
const char *trace_name(int row);                                      /* op_name, or "head" */

/* Sets a callback that is called after every op, with its row and start and end in CLOCK_MONOTONIC nanoseconds, on
 * the thread that ran it; NULL: none. */
void dev_trace_on_op(struct dev_trace *, void (*fn)(void *arg, int row, uint64_t start, uint64_t end), void *arg);
/* Restores the device's own table (off) or installs the trace's again (on). Call while no op runs. The trace stays
 * valid, so another thread may meanwhile read the table by dev_host_memory, though not run an op. */
void dev_trace_switch(struct dev_trace *, bool on);
/* The table's host_memory, for threads other than the device's: safe while that one switches a trace. */
bool dev_host_memory(const struct dev *);
/* Likewise: the bytes that may still be allocated on the device, and in *largest (unless NULL) the largest single
 * allocation. Only for a device that has its own memory. */
size_t dev_memory_left(struct dev *, size_t *largest);

#endif
