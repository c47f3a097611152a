/* FNV-1a, 64 bits: a quick hash, not for adversaries (http://www.isthe.com/chongo/tech/comp/fnv/).  Pure. */
#ifndef TANDEM_ENGINE_BASE_FNV_H
#define TANDEM_ENGINE_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV1A_START UINT64_C(0xcbf29ce484222325)

/* The hash of what `hash` is of, and these bytes behind it. */
static inline uint64_t fnv1a(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
    return hash;
}

#endif
