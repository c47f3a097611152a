/* Decompresses a stream of gzip (RFC 1952) or zstd (RFC 8878) piece by piece; several members or frames one after the
 * other are one stream, as for gzip and zstd themselves.  Memory is bounded: the window of zstd is at most 128 MiB. */
#ifndef TANDEM_ENGINE_DATA_UNPACK_H
#define TANDEM_ENGINE_DATA_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

enum packing { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD };

enum { PACKING_HEAD = 4 /* bytes that tell it */ };

/* By the first bytes of a file. */
enum packing packing_of(const unsigned char *p, size_t n);
const char *packing_name(enum packing); /* "gzip", "zstd" */

struct unpack;

/* @return NULL: no memory. */
struct unpack *unpack_new(enum packing);
void unpack_free(struct unpack *); /* NULL is allowed */
void unpack_restart(struct unpack *);

/* Consumes input and writes at most n_out bytes.  Progresses when it has both input and room.  @return what is wrong
 * with the data (text of the library's or this file's), or NULL. */
const char *unpack_step(struct unpack *, const unsigned char **in, size_t *n_in, unsigned char *out, size_t n_out,
                        size_t *made);
/* @return whether the data may end here: after a whole member or frame. */
bool unpack_is_whole(const struct unpack *);

#endif
