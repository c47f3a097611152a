/* CRC-32C (Castagnoli, reflected 0x82f63b78; RFC 3720 appendix B.4), at about memory bandwidth on processors with the
 * instruction. */
#ifndef TANDEM_BASE_CRC32C_H
#define TANDEM_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* the checksum of the bytes with checksum `before` (0: none) followed by these */
uint32_t crc32c(uint32_t before, const void *p, size_t n);

/* the same without the instruction, for tests */
uint32_t crc32c_portable(uint32_t before, const void *p, size_t n);

#endif
