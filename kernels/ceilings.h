/* Measured peak rates of a device, with which everything else is compared.
 *
 * Reading is the machine's rate, multiplying that of the level's instructions: a device that was told to use a lower
 * level is measured against what these can do. Rates on shared machines drift, so measure in the same process as what
 * is compared, more than once, and take the mean.
 *
 * On a GPU: bytes read and written by device-to-device copies, and the rates of large GEMMs by cuBLASLt, all timed
 * by CUDA events. On simt the figures mean nothing. */
#ifndef TANDEM_KERNELS_CEILINGS_H
#define TANDEM_KERNELS_CEILINGS_H

#include <stddef.h>

struct ceilings {
    double read_bytes_per_s; /* memory, read by all of the device's threads at once */
    /* multiply-adds per second of all threads, on registers; 0: the machine has no such unit */
    double int8_macs_per_s; /* exact 32-bit sums: tdpbusd, vpdpbusd, or AVX2 instructions that do the same; smmla, sdot */
    double int4_macs_per_s; /* the same where one factor has four bits: AVX2 adds several products in 16 bits first */
    double bf16_macs_per_s; /* vdpbf16ps, tdpbf16ps; bfmmla, which rounds too differently for the kernels */
    double f32_macs_per_s;  /* fused multiply-adds; in plain C a multiplication and an addition */
    size_t read_bytes;      /* size of the buffer that was read */
};

enum { CEILINGS_READ_MIN = 256 << 20, CEILINGS_READ_WANTED = 1 << 30 }; /* bytes: well past any cache */

struct dev;

/* Measures for about a second on the device's threads, which must be idle. read_bytes: size of the buffer, see
 * above. @return 0, or -1 when there is no memory for it. A rate that the device does not measure is 0. */
int dev_ceilings(struct dev *, size_t read_bytes, struct ceilings *out);

/* Adds `share` times each rate of *c to *sum; the buffer's size is copied from *c. */
void ceilings_add(struct ceilings *sum, const struct ceilings *c, double share);

/* The mean of n > 0 measurements, rate by rate. */
struct ceilings ceilings_mean(const struct ceilings *v, int n);

#endif
