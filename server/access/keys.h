/* API keys: reading the file of --api-keys, and looking keys up.
 *
 * The file contains only the SHA-256 of each key.  A key is 43 random letters and digits, 256 bits, so its hash cannot
 * be reversed and needs no salt.  One line per key, comments with '#':
 *
 *      NAME ROLE sha256:HEX [expires=TIME] [revoked=TIME] [requests-per-minute=N] [tokens-per-minute=N]
 *                           [max-concurrent=N] [priority-max=N]
 *
 *      keys.c       what is known now: look-up, reload           keys_file.c  the text, read and edited
 *      auth.c       the check of a request (auth.h)              cli/key.c    tandem key new | list | revoke
 *
 * Loop thread only, except keys_parse, keys_hash and the edits of keys_file.c, which any thread may call. */
#ifndef TANDEM_SERVER_ACCESS_KEYS_H
#define TANDEM_SERVER_ACCESS_KEYS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum key_role { KEY_USER, KEY_TRAIN, KEY_ADMIN }; /* ascending: each may do what those before it may */

enum {
    KEY_HASH = 32,     /* bytes */
    KEY_NAME = 64,     /* maximum length, of letters, digits, '.', '_', '-' */
    KEYS_MAX = 10000,  /* in one file: every request is compared with all of them */
    KEY_TEXT = 4 + 43, /* "tdm_" and the random part */
};

struct key_set;

struct key {
    const char *name; /* valid while the key is held */
    enum key_role role;
    /* limits, enforced by admission control per name; 0: none */
    double requests_per_minute, tokens_per_minute;
    int max_concurrent;
    int priority_max; /* most urgent (lowest) priority that a request may have; INT_MIN: any */
    /* time() from which on it is refused; 0: never */
    int64_t expires, revoked;
    unsigned char hash[KEY_HASH];
    struct key_set *set; /* private to keys.c */
};

/* ---- a file's keys --------------------------------------------------------------------------------------------- */

struct key_set {
    struct key *v; /* n, in the file's order */
    size_t n;
    int users; /* references: a struct keys, requests */
};

/* Reads n bytes of text.  @return NULL and *e as "path:line: reason", which never quotes the file: the text might be a
 * key. */
struct key_set *keys_parse(const char *text, size_t n, const char *path, struct err *e);
void key_set_release(struct key_set *);
/* Hashes a key text sent by a client. */
void keys_hash(const char *text, size_t n, unsigned char hash[KEY_HASH]);
/* Finds the key with this hash in constant time.  @return NULL when there is none. */
const struct key *key_set_find(const struct key_set *, const unsigned char hash[KEY_HASH]);

/* ---- the keys of a running daemon ------------------------------------------------------------------------------ */

struct keys;

struct keys *keys_open(const char *path, struct err *e); /* NULL with *e */
void keys_close(struct keys *);                          /* held keys remain valid */
/* Reads the file again.  A file that cannot be read or has an error changes nothing; *e has the reason. */
int keys_reload(struct keys *, struct err *e);
size_t keys_count(const struct keys *); /* neither revoked nor expired now */

enum key_verdict { KEY_GOOD, KEY_WRONG, KEY_REVOKED, KEY_EXPIRED };

/* Looks up a key text sent by a client, at the time `now` (time()).  *out: the key unless KEY_WRONG; release it with
 * key_release. */
enum key_verdict keys_check(const struct keys *, const char *text, int64_t now, const struct key **out);
/* Adds a reference; the key stays unchanged until every reference is released, also across a reload.  NULL is
 * allowed. */
void key_acquire(const struct key *);
void key_release(const struct key *);

/* ---- the file's text (keys_file.c) ----------------------------------------------------------------------------- */

extern const char *const key_roles[]; /* "user", "train", "admin" */

/* Parses "2027-01-31" (midnight, UTC) or "2027-01-31T12:00:00Z".  @return false for anything else. */
bool key_time_parse(const char *text, int64_t *out);
void key_time_print(int64_t t, char out[static 32]); /* "2027-01-31T12:00:00Z" */
bool key_name_good(const char *name);
/* A new key, NUL-terminated; false when the system has no random bytes. */
bool key_make(char out[static KEY_TEXT + 1]);
void key_print(const struct key *, struct buf *line); /* appends its line, with the line feed */

/* Adds a line, replacing a revoked key of the same name; creates the file if missing (0644, less the umask).  Atomic,
 * and locked against concurrent edits.  @return ERR_INVALID when the file has an error, or would have one afterwards,
 * or the name is in use. */
int keys_file_add(const char *path, const struct key *, struct err *e);
/* Marks the key of that name as revoked at `now`.  @return ERR_NOT_FOUND when no unrevoked key has the name;
 * ERR_INVALID as above. */
int keys_file_revoke(const char *path, const char *name, int64_t now, struct err *e);

#endif
