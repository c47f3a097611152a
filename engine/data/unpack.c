#include "engine/data/unpack.h"

#include "engine/base/mem.h"

#include <stdlib.h>
#include <string.h>
#define ZLIB_CONST
#include <zlib.h>
#include <zstd.h>

enum { GZIP_WINDOW = 15 + 16 /* zlib: the largest window, gzip's header */, ZSTD_WINDOW = 27, STEP_MAX = 1 << 30 };

struct unpack {
    enum packing kind;
    z_stream z;
    ZSTD_DCtx *zstd; /* owned */
    bool whole;      /* the last byte that was consumed ended a member or frame */
};

static const struct {
    const char *name;
    unsigned char magic[PACKING_HEAD];
    size_t n;
} kinds[] = {
    [PACKED_NOT] = {"plain", {0}, 0},
    [PACKED_GZIP] = {"gzip", {0x1f, 0x8b}, 2},
    [PACKED_ZSTD] = {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 4},
};

const char *packing_name(enum packing kind)
{
    return kinds[kind].name;
}

enum packing packing_of(const unsigned char *p, size_t n)
{
    for (int k = PACKED_GZIP; k <= PACKED_ZSTD; k++)
        if (n >= kinds[k].n && !memcmp(p, kinds[k].magic, kinds[k].n)) return (enum packing)k;
    return PACKED_NOT;
}

struct unpack *unpack_new(enum packing kind)
{
    struct unpack *u = mem_zalloc(sizeof *u);
    bool good;
    u->kind = kind;
    if (kind == PACKED_GZIP) {
        good = inflateInit2(&u->z, GZIP_WINDOW) == Z_OK;
    } else {
        u->zstd = ZSTD_createDCtx();
        good = u->zstd && !ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW));
    }
    if (good) return u;
    unpack_free(u);
    return NULL;
}

void unpack_free(struct unpack *u)
{
    if (!u) return;
    if (u->kind == PACKED_GZIP) inflateEnd(&u->z);
    ZSTD_freeDCtx(u->zstd);
    free(u);
}

void unpack_restart(struct unpack *u)
{
    u->whole = false;
    if (u->kind == PACKED_GZIP)
        inflateReset(&u->z);
    else
        ZSTD_DCtx_reset(u->zstd, ZSTD_reset_session_only);
}

bool unpack_is_whole(const struct unpack *u)
{
    return u->whole;
}

static const char *gzip_step(struct unpack *u, const unsigned char **in, size_t *n_in, unsigned char *out, size_t n_out,
                             size_t *made)
{
    while (u->whole && *n_in && !**in) ++*in, --*n_in; /* zeros behind a member, from a tape or a block device */
    if (!*n_in && u->whole) return NULL;
    if (u->whole) inflateReset(&u->z);
    u->whole = false;
    u->z.next_in = *in;
    u->z.avail_in = *n_in < STEP_MAX ? (unsigned)*n_in : STEP_MAX;
    u->z.next_out = out;
    u->z.avail_out = n_out < STEP_MAX ? (unsigned)n_out : STEP_MAX;
    int rc = inflate(&u->z, Z_NO_FLUSH);
    *n_in -= (size_t)(u->z.next_in - *in);
    *in = u->z.next_in;
    *made = (size_t)(u->z.next_out - out);
    u->whole = rc == Z_STREAM_END;
    if (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) return NULL;
    return rc == Z_NEED_DICT ? "it needs a dictionary" : rc == Z_MEM_ERROR ? "no memory" : u->z.msg ? u->z.msg : "?";
}

static const char *zstd_step(struct unpack *u, const unsigned char **in, size_t *n_in, unsigned char *out, size_t n_out,
                             size_t *made)
{
    ZSTD_inBuffer from = {*in, *n_in, 0};
    ZSTD_outBuffer to = {out, n_out, 0};
    if (u->whole && !*n_in) return NULL;
    size_t rc = ZSTD_decompressStream(u->zstd, &to, &from);
    *in += from.pos;
    *n_in -= from.pos;
    *made = to.pos;
    u->whole = rc == 0;
    return ZSTD_isError(rc) ? ZSTD_getErrorName(rc) : NULL;
}

const char *unpack_step(struct unpack *u, const unsigned char **in, size_t *n_in, unsigned char *out, size_t n_out,
                        size_t *made)
{
    *made = 0;
    return u->kind == PACKED_GZIP ? gzip_step(u, in, n_in, out, n_out, made) : zstd_step(u, in, n_in, out, n_out, made);
}
