/* Which page is in which slot: the index of a store in memory, and what an entry and a header are on the disk.
 *
 * Changed by the store's one thread, under the lock; read by others under the lock, by that thread without it. */
#ifndef TANDEM_ENGINE_KVSTORE_INDEX_H
#define TANDEM_ENGINE_KVSTORE_INDEX_H

#include "engine/kvstore/store.h"

#include <pthread.h>

/* ---- on the disk, in the machine's byte order ---- */

/* at the beginning of the file `index`, in the place of an entry */
struct index_head {
    char magic[8];
    uint32_t version, order; /* order: INDEX_ORDER as this machine writes it */
    struct kv_name model;
    uint64_t page_bytes;
    char zero[68];
    uint32_t crc; /* of all before */
};

/* entry i is at (i + 1) * sizeof(struct index_entry); one of zeros is empty */
struct index_entry {
    struct kv_name name, parent;
    uint64_t used; /* seconds of the Unix clock */
    uint32_t depth, uses;
    char zero[44];
    uint32_t crc; /* of all before */
};

/* at the beginning of a slot */
struct slot_head {
    char magic[8];
    struct kv_name name;
    uint64_t page_bytes;
    uint32_t page_crc; /* of the name, then the page */
    char zero[8];
    uint32_t crc; /* of all before */
};

#define INDEX_MAGIC "tandemKV"
#define SLOT_MAGIC "KV page\n"
enum { INDEX_VERSION = 1, INDEX_ORDER = 0x01020304 };

_Static_assert(sizeof(struct index_head) == 128 && sizeof(struct index_entry) == 128, "they take each other's place");
_Static_assert(sizeof(struct slot_head) == 64, "no padding");

/* ---- in memory ---- */

enum { INDEX_SLOTS_MAX = 1 << 22 };

struct index_slot {
    struct kv_name name, parent;
    _Atomic uint64_t used; /* seconds */
    _Atomic uint32_t uses;
    uint32_t depth;
    int32_t next;        /* in the chain of a bucket, or in the list of free slots; -1: last */
    bool live;           /* false: free */
    _Atomic bool marked; /* used and uses are not in the file yet */
};

struct index {
    pthread_mutex_t lock;
    struct index_slot *slot; /* (n) */
    size_t cap;
    int n, n_live;
    int32_t free; /* head of the list of free slots, -1: none */
    int32_t *bucket;
    uint32_t mask;
    uint64_t seed; /* so that a file cannot choose names of one bucket */
};

void index_init(struct index *);
void index_destroy(struct index *);
int32_t index_find(const struct index *, const struct kv_name *); /* -1: none */
/* Adds a free slot at the end.  @return its number. */
int32_t index_extend(struct index *);
int32_t index_take(struct index *); /* a free slot, which is not in the list any more; -1: none */
void index_give(struct index *, int32_t slot);
/* Makes the slot, which was taken, one of the name. */
void index_add(struct index *, int32_t slot, const struct index_entry *);
void index_remove(struct index *, int32_t slot); /* and gives it */

/* Writes the numbers of up to `most` pages that are worth least, the least first, so that none is before one that
 * follows it.  @return how many. */
int index_worst(const struct index *, uint64_t now, int32_t *out, int most);

#endif
