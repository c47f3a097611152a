/* API keys: the file of --api-keys, read and looked up.
 *
 * The file has no keys in it but their SHA-256: a key is 43 random letters and digits, 256 bits, so its hash tells
 * nobody anything and needs no salt.  A line a key, comments with '#':
 *
 *      NAME ROLE sha256:HEX [expires=TIME] [revoked=TIME] [requests-per-minute=N] [tokens-per-minute=N]
 *                           [max-concurrent=N] [priority-max=N]
 *
 *      keys.c       what is known now: look-up, reload           keys_file.c  the text, read and edited
 *      auth.c       the check of a request (auth.h)              cli/key.c    tandem key new | list | revoke
 *
 * Loop thread only, but for keys_parse, keys_hash and keys_file.c's edits, which any thread may call. */
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
    KEY_NAME = 64,     /* letters, digits, '.', '_', '-'; at most so many */
    KEYS_MAX = 10000,  /* in one file: every request is compared with all of them */
    KEY_TEXT = 4 + 43, /* "tdm_" and the random part */
};

struct key_set;

struct key {
    const char *name; /* as long as the key is held */
    enum key_role role;
    /* limits, counted by whoever admits requests (by name); 0: none */
    double requests_per_minute, tokens_per_minute;
    int max_concurrent;
    int priority_max; /* no request may ask for a more urgent (lower) priority than this; INT_MIN: any */
    /* time(): from then on it is refused; 0: never */
    int64_t expires, revoked;
    unsigned char hash[KEY_HASH];
    struct key_set *set; /* keys.c's */
};

/* ---- a file's keys --------------------------------------------------------------------------------------------- */

struct key_set {
    struct key *v; /* n, in the file's order */
    size_t n;
    int users; /* who holds it: a struct keys, requests */
};

/* Reads n bytes of text.  NULL: *e says "path:line: why", never what stands there: it might be a key. */
struct key_set *keys_parse(const char *text, size_t n, const char *path, struct err *e);
void key_set_release(struct key_set *);
/* The hash of what a client presents. */
void keys_hash(const char *text, size_t n, unsigned char hash[KEY_HASH]);
/* Compares the hash with all of the set, whichever is the one: the time says nothing.  NULL: none. */
const struct key *key_set_find(const struct key_set *, const unsigned char hash[KEY_HASH]);

/* ---- the keys of a running daemon ------------------------------------------------------------------------------ */

struct keys;

struct keys *keys_open(const char *path, struct err *e); /* NULL with *e */
void keys_close(struct keys *);                          /* held keys stay */
/* Reads the file again.  A file that cannot be read, or has a fault, changes nothing: *e says why. */
int keys_reload(struct keys *, struct err *e);
size_t keys_count(const struct keys *); /* neither revoked nor expired now */

enum key_verdict { KEY_GOOD, KEY_WRONG, KEY_REVOKED, KEY_EXPIRED };

/* Looks up what a client presents, at the time `now` (time()).  *out: the key unless KEY_WRONG, held; key_release it.
 */
enum key_verdict keys_check(const struct keys *, const char *text, int64_t now, const struct key **out);
/* Until as often released as held the key stays as it is, also when the file is read again.  NULL is fine. */
void key_hold(const struct key *);
void key_release(const struct key *);

/* ---- the file's text (keys_file.c) ----------------------------------------------------------------------------- */

extern const char *const key_roles[]; /* "user", "train", "admin" */

/* "2027-01-31" (its first moment, UTC), "2027-01-31T12:00:00Z"; false: neither */
bool key_time_parse(const char *text, int64_t *out);
void key_time_print(int64_t t, char out[static 32]); /* "2027-01-31T12:00:00Z" */
bool key_name_good(const char *name);
/* A new key, NUL-terminated; false when the system has no random bytes. */
bool key_make(char out[static KEY_TEXT + 1]);
void key_print(const struct key *, struct buf *line); /* appends its line, with the line feed */

/* Adds a line, in the place of a revoked one of the same name if there is one; makes the file (0644, less the umask).
 * There is the old file or the whole new one, and two at a time wait for each other.  ERR_INVALID: the file has a
 * fault, or would have one with it, or the name is in use. */
int keys_file_add(const char *path, const struct key *, struct err *e);
/* Marks the key of that name as revoked at `now`; ERR_NOT_FOUND when there is none that is not; ERR_INVALID as above.
 */
int keys_file_revoke(const char *path, const char *name, int64_t now, struct err *e);

#endif
