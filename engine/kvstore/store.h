/* KV pages on disk: one model's pages by name, in two files of a directory.
 *
 * A name is 32 bytes of a hash over everything that determines the bits of a page (engine/serve/kv_name.h), so a page
 * is right if and only if it is the one of its name.  File `pages` has equal slots, each a header with the page's name
 * and checksum, then the page.  File `index` has a header and an entry for each slot: its name, that of the page before
 * it in the text, and its use.  The entries only say where to look: a page is given out only if the header in its slot
 * has its name and both checksums hold.  So nothing depends on the order in which a crash leaves writes on the disk,
 * and nothing is synced.
 *
 * Both files are untrusted.  Whatever cannot be right is ignored, counted and overwritten later.
 *
 * When the slots are used up, the pages of least value go: a page's value is the time that it takes to compute, times
 * its uses, over the time since the last; a page that others of the text follow is worth at least what they are. */
#ifndef TANDEM_ENGINE_KVSTORE_STORE_H
#define TANDEM_ENGINE_KVSTORE_STORE_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_NAME_BYTES = 32 };

struct kv_name {
    unsigned char b[KV_NAME_BYTES];
};

struct kv_store_config {
    const char *dir;      /* shared by models: a folder for each, called by the first half of its name in hexadecimal */
    struct kv_name model; /* everything that all its pages depend on */
    size_t page_bytes;    /* 1 .. KV_STORE_PAGE_MAX */
    uint64_t limit;       /* bytes in dir, those of other models included */
    double ttl;           /* seconds: pages that were not used for so long are removed; 0: never */
    uint64_t (*now)(void); /* nanoseconds of the Unix clock; NULL: the system's */
};

#define KV_STORE_PAGE_MAX ((size_t)1 << 30)

struct kv_store_stats {
    uint64_t pages, bytes;                                           /* there now; the bytes they take on the disk */
    uint64_t limit;                                                  /* of bytes */
    uint64_t read, written, evicted, expired, corrupt, write_errors; /* pages, since the store was opened */
};

struct kv_store;

/* Creates what is missing.  ERR_FULL when another store has this model's folder open. */
struct kv_store *kv_store_open(const struct kv_store_config *, struct err *e);
void kv_store_close(struct kv_store *); /* NULL is allowed */

/* ---- any thread; these never wait for the disk ---- */

/* @return how many of the names there are in a row, from the first on. */
int kv_store_prefix(struct kv_store *, const struct kv_name *names, int n);
/* Marks the page as used now.  @return false: it is not there. */
bool kv_store_use(struct kv_store *, const struct kv_name *);
void kv_store_stats(struct kv_store *, struct kv_store_stats *);

/* ---- one thread ---- */

/* Reads a page of page_bytes.  @return false: it is not there, or was damaged and has been removed. */
bool kv_store_get(struct kv_store *, const struct kv_name *, void *page);
/* Writes a page unless it is there; `depth` pages of its text are before it, and `parent` is the last of them.
 * @return false: it could not be written. */
bool kv_store_put(struct kv_store *, const struct kv_name *, const struct kv_name *parent, uint32_t depth,
                  const void *page);
/* Removes what is older than the limit, and writes to the index what was used.  @return nanoseconds until it should be
 * called again; 0: not before something changes. */
uint64_t kv_store_sweep(struct kv_store *);

#endif
