/* The keys of a running daemon (keys.h).  Loop thread.
 *
 * A set is immutable; a reload creates another one.  A running request that holds a key also holds its set, so a reload
 * does not affect it. */
#include "server/access/keys.h"

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILE_MAX = 16 << 20 };

struct keys {
    char *path;
    struct key_set *set;
};

/* ---- look-up --------------------------------------------------------------------------------------------------- */

/* Not OpenSSL's SHA256(): it allocates, so it can fail and leave `hash` unchanged, perhaps with the hash of an earlier
 * key. */
void keys_hash(const char *text, size_t n, unsigned char hash[KEY_HASH])
{
    _Static_assert((int)KEY_HASH == (int)SHA256_BYTES, "SHA-256");
    struct sha256 s;
    sha256_start(&s);
    sha256_add(&s, text, n);
    sha256_end(&s, hash);
    OPENSSL_cleanse(&s, sizeof s);
}

/* Constant time: no branch depends on the compared bytes, and every key is compared in full.  (Timing would reveal only
 * bytes of hashes, which a client cannot choose byte by byte; constant time makes that argument unnecessary.) */
const struct key *key_set_find(const struct key_set *set, const unsigned char hash[KEY_HASH])
{
    size_t found = 0; /* its index + 1; 0: none */
    for (size_t i = 0; i < set->n; i++) {
        unsigned differs = (unsigned)CRYPTO_memcmp(set->v[i].hash, hash, KEY_HASH);
        size_t same = ((size_t)differs - 1) >> (8 * sizeof(size_t) - 1); /* 1 where differs is 0 */
        found |= (0 - same) & (i + 1);                                   /* no two lines have the same hash */
    }
    return found ? &set->v[found - 1] : NULL;
}

enum key_verdict keys_check(const struct keys *keys, const char *text, int64_t now, const struct key **out)
{
    unsigned char hash[KEY_HASH];
    keys_hash(text, strlen(text), hash);
    const struct key *key = key_set_find(keys->set, hash);
    *out = key;
    if (!key) return KEY_WRONG;
    key_acquire(key);
    if (key->revoked) return KEY_REVOKED; /* regardless of the time: a wrong clock must not reactivate a key */
    return key->expires && now >= key->expires ? KEY_EXPIRED : KEY_GOOD;
}

size_t keys_count(const struct keys *keys)
{
    size_t n = 0;
    int64_t now = time(NULL);
    for (size_t i = 0; i < keys->set->n; i++) {
        const struct key *key = &keys->set->v[i];
        n += !key->revoked && (!key->expires || now < key->expires);
    }
    return n;
}

/* ---- references -------------------------------------------------------------------------------------------- */

void key_set_release(struct key_set *set)
{
    if (!set) return;
    CHECK(set->users > 0);
    if (--set->users) return;
    for (size_t i = 0; i < set->n; i++) free((char *)(uintptr_t)set->v[i].name);
    free(set->v);
    free(set);
}

void key_acquire(const struct key *key)
{
    if (key) key->set->users++;
}

void key_release(const struct key *key)
{
    if (key) key_set_release(key->set);
}

/* ---- the file -------------------------------------------------------------------------------------------------- */

static struct key_set *read_set(const char *path, struct err *e)
{
    char *text;
    size_t n;
    if (file_read(path, FILE_MAX, &text, &n, e)) return NULL;
    struct key_set *set = keys_parse(text, n, path, e);
    free(text);
    return set;
}

struct keys *keys_open(const char *path, struct err *e)
{
    struct key_set *set = read_set(path, e);
    if (!set) return NULL;
    struct keys *keys = mem_zalloc(sizeof *keys);
    keys->path = mem_strdup(path);
    keys->set = set;
    return keys;
}

void keys_close(struct keys *keys)
{
    if (!keys) return;
    key_set_release(keys->set);
    free(keys->path);
    free(keys);
}

int keys_reload(struct keys *keys, struct err *e)
{
    struct key_set *set = read_set(keys->path, e);
    if (!set) return e->code;
    key_set_release(keys->set);
    keys->set = set;
    return 0;
}
