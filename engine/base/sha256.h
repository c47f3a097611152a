/* SHA-256 (FIPS 180-4), for content keys; some hundreds of MB/s. */
#ifndef TANDEM_BASE_SHA256_H
#define TANDEM_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32 };

struct sha256 {
    uint32_t h[8];
    uint64_t n; /* bytes so far */
    unsigned char block[64];
};

void sha256_start(struct sha256 *);
void sha256_add(struct sha256 *, const void *p, size_t n);
void sha256_end(struct sha256 *, unsigned char digest[SHA256_BYTES]);

#endif
