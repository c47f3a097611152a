/* Counting what a device does: calls, time, multiply-adds and bytes of every op, for `tandem bench`.
 *
 * A trace replaces the device's table of ops by one that counts and calls the device's own; the device stays the same
 * object, so whatever was made with it before stays good.  Two clock reads an op; nothing is allocated.  Used by the
 * device's thread. */
#ifndef TANDEM_KERNELS_TRACE_H
#define TANDEM_KERNELS_TRACE_H

#include "kernels/ops.h"

struct trace_count {
    uint64_t calls, ns;
    double macs;  /* linear: T N K.  attn: q k and p v of what each token sees, 2 head_dim per position and head */
    double bytes; /* that must be read: linear: the packed weight.  attn: keys and values of the positions seen */
};

enum { TRACE_HEAD = OP_COUNT, TRACE_COUNT }; /* beside one row for each op: the linear of `head` */

struct dev_trace;

/* head: a weight whose products are counted apart, or NULL.  kv_token_bytes: of one token's key and value in one layer.
 * NULL: out of memory.  On a device that only enqueues, each op is waited for. */
struct dev_trace *dev_trace_open(struct dev *, const struct weight *head, double kv_token_bytes);
void dev_trace_close(struct dev_trace *); /* gives the device its own table back; before dev_close; NULL is allowed */

void dev_trace_clear(struct dev_trace *);
const struct trace_count *dev_trace_counts(const struct dev_trace *); /* [TRACE_COUNT] */
const char *trace_name(int row);                                      /* op_name, or "head" */

/* fn is told of every op when it has ended, with its row and CLOCK_MONOTONIC's nanoseconds, on the thread that ran it;
 * NULL: nobody is. */
void dev_trace_listen(struct dev_trace *, void (*fn)(void *arg, int row, uint64_t start, uint64_t end), void *arg);
/* Gives the device its own table back (off), or takes it again.  While no op runs; the trace stays good, so a thread
 * that just reads the table for something else than an op may do so, by dev_host_memory. */
void dev_trace_switch(struct dev_trace *, bool on);
/* The table's host_memory, for a thread that may not compute just now: another may switch a trace meanwhile. */
bool dev_host_memory(const struct dev *);
/* Likewise, for its memory: what it may take more, and (NULL: not asked for) what of that in one piece, in bytes.  Only
 * of a device whose memory is not the host's. */
size_t dev_memory_left(struct dev *, size_t *piece);

#endif
