/* The text of a file of keys (keys.h): read, and edited line by line, so that comments and the order are preserved.
 *
 * Error messages never quote the text: a key pasted where its hash belongs must not end up in the log.  Any thread;
 * edits are made by the command line only. */
#include "server/access/keys.h"

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 1000, FILE_MAX = 16 << 20 };

const char *const key_roles[] = {"user", "train", "admin", NULL};

/* ---- words ----------------------------------------------------------------------------------------------------- */

bool key_name_good(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n <= KEY_NAME &&
           n == strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
}

/* Exactly n digits. */
static bool digits(const char **p, int n, int *out)
{
    *out = 0;
    for (; n > 0; n--, (*p)++) {
        if (**p < '0' || **p > '9') return false;
        *out = *out * 10 + (**p - '0');
    }
    return true;
}

static bool one(const char **p, char c)
{
    return **p == c && (*p)++;
}

bool key_time_parse(const char *text, int64_t *out)
{
    struct tm tm = {0};
    const char *p = text;
    if (!digits(&p, 4, &tm.tm_year) || !one(&p, '-') || !digits(&p, 2, &tm.tm_mon) || !one(&p, '-') ||
        !digits(&p, 2, &tm.tm_mday))
        return false;
    if (*p && (!one(&p, 'T') || !digits(&p, 2, &tm.tm_hour) || !one(&p, ':') || !digits(&p, 2, &tm.tm_min) ||
               !one(&p, ':') || !digits(&p, 2, &tm.tm_sec) || !one(&p, 'Z')))
        return false;
    if (*p || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 59 || tm.tm_year < 1971) return false;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    struct tm day = tm;
    *out = timegm(&day);
    return day.tm_mon == tm.tm_mon && day.tm_mday == tm.tm_mday; /* rejects February 31 */
}

void key_time_print(int64_t t, char out[static 32])
{
    time_t at = (time_t)t;
    struct tm tm;
    if (!gmtime_r(&at, &tm) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm)) snprintf(out, 32, "?");
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hash(const char *word, unsigned char hash[KEY_HASH])
{
    if (strncmp(word, "sha256:", 7) != 0) return false;
    word += 7;
    for (int i = 0; i < KEY_HASH; i++, word += 2) {
        int high = hex_digit(word[0]), low = high < 0 ? -1 : hex_digit(word[1]);
        if (low < 0) return false;
        hash[i] = (unsigned char)(high * 16 + low);
    }
    return !*word;
}

static bool read_role(const char *word, enum key_role *role)
{
    for (int i = 0; key_roles[i]; i++)
        if (strcmp(word, key_roles[i]) == 0) return *role = (enum key_role)i, true;
    return false;
}

static bool read_positive(const char *text, double *out)
{
    char *end;
    if (!*text || strspn(text, "0123456789.") != strlen(text)) return false;
    *out = strtod(text, &end);
    return !*end && isfinite(*out) && *out >= 0.001 && *out <= 1e12;
}

static bool read_int(const char *text, int min, int *out)
{
    char *end;
    const char *p = *text == '-' ? text + 1 : text;
    if (*p < '0' || *p > '9') return false;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (errno || *end || v < min || v > INT_MAX) return false;
    *out = (int)v;
    return true;
}

/* ---- a line ---------------------------------------------------------------------------------------------------- */

enum { OPTION_EXPIRES, OPTION_REVOKED, OPTION_REQUESTS, OPTION_TOKENS, OPTION_CONCURRENT, OPTION_PRIORITY, OPTIONS };

static const struct {
    const char *name, *fault;
} options[OPTIONS] = {
    {"expires", "expires= takes a date (2027-01-31) or a time (2027-01-31T12:00:00Z)"},
    {"revoked", "revoked= takes a date (2027-01-31) or a time (2027-01-31T12:00:00Z)"},
    {"requests-per-minute", "requests-per-minute= takes a number from 0.001"},
    {"tokens-per-minute", "tokens-per-minute= takes a number from 0.001"},
    {"max-concurrent", "max-concurrent= takes a whole number above 0"},
    {"priority-max", "priority-max= takes a whole number: the most urgent priority, and lower is more urgent"},
};

static bool set_option(struct key *key, int option, const char *value)
{
    switch (option) {
    case OPTION_EXPIRES: return key_time_parse(value, &key->expires);
    case OPTION_REVOKED: return key_time_parse(value, &key->revoked);
    case OPTION_REQUESTS: return read_positive(value, &key->requests_per_minute);
    case OPTION_TOKENS: return read_positive(value, &key->tokens_per_minute);
    case OPTION_CONCURRENT: return read_int(value, 1, &key->max_concurrent);
    default: return read_int(value, INT_MIN + 1, &key->priority_max);
    }
}

/* @return NULL, or the error in the word.  *seen: one bit per option. */
static const char *read_option(struct key *key, char *word, unsigned *seen)
{
    char *equals = strchr(word, '=');
    if (!equals) return "after the hash come options of the form name=value";
    *equals = 0;
    for (int i = 0; i < OPTIONS; i++) {
        if (strcmp(word, options[i].name) != 0) continue;
        if (*seen & 1u << i) return "an option is given twice";
        *seen |= 1u << i;
        return set_option(key, i, equals + 1) ? NULL : options[i].fault;
    }
    return "unknown option; there are expires, revoked, requests-per-minute, tokens-per-minute, max-concurrent and "
           "priority-max";
}

/* Fills *key from a line, which is split into words in place; key->name points into it, NULL for a comment or empty
 * line.  @return NULL, or the error. */
static const char *read_line(struct key *key, char *line)
{
    char *rest = NULL, *word = strtok_r(line, " \t", &rest);
    unsigned seen = 0;
    *key = (struct key){.priority_max = INT_MIN};
    if (!word || *word == '#') return NULL;
    if (strncmp(word, "tdm_", 4) == 0 && strlen(word) == KEY_TEXT)
        return "this is a key, not a line about one: nothing but its hash belongs here (tandem key new)";
    if (!key_name_good(word)) return "the name must be 1 to 64 letters, digits, '.', '_' or '-'";
    key->name = word;
    if (!(word = strtok_r(NULL, " \t", &rest)) || !read_role(word, &key->role))
        return "after the name must come its role: user, train or admin";
    if (!(word = strtok_r(NULL, " \t", &rest)) || !read_hash(word, key->hash))
        return "after the role must come the key's hash: sha256: and 64 hexadecimal digits (tandem key new)";
    while ((word = strtok_r(NULL, " \t", &rest)) && *word != '#') {
        const char *fault = read_option(key, word, &seen);
        if (fault) return fault;
    }
    return NULL;
}

static bool printable(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < 0x20 && p[i] != '\t') return false;
    return true;
}

/* Copies the line at *at, without its line feed, to `line` and advances *at.  @return NULL, or the error. */
static const char *next_line(const char **at, const char *end, char line[static LINE_MAX_BYTES + 1])
{
    const char *feed = memchr(*at, '\n', (size_t)(end - *at)), *p = *at;
    size_t n = (size_t)((feed ? feed : end) - p);
    *at = feed ? feed + 1 : end;
    if (n && p[n - 1] == '\r') n--;
    if (n > LINE_MAX_BYTES) return "the line is longer than 1000 bytes";
    if (!printable(p, n)) return "the line has a control character";
    memcpy(line, p, n);
    line[n] = 0;
    return NULL;
}

/* ---- a file ---------------------------------------------------------------------------------------------------- */

struct entry {
    const struct key *key;
    size_t line;
};

static int by_name(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = strcmp(x->key->name, y->key->name);
    return order ? order : x->line < y->line ? -1 : x->line > y->line;
}

static int by_hash(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int order = memcmp(x->key->hash, y->key->hash, KEY_HASH);
    return order ? order : x->line < y->line ? -1 : x->line > y->line;
}

/* @return the number of a line that duplicates the name or hash of an earlier one; 0: none. */
static size_t repeated(struct entry *v, size_t n, int (*order)(const void *, const void *), bool names)
{
    size_t found = 0;
    if (n) qsort(v, n, sizeof *v, order);
    for (size_t i = 1; i < n; i++) {
        const struct key *a = v[i - 1].key, *b = v[i].key;
        bool same = names ? strcmp(a->name, b->name) == 0 : memcmp(a->hash, b->hash, KEY_HASH) == 0;
        if (same && (!found || v[i].line < found)) found = v[i].line;
    }
    return found;
}

static int fail(struct err *e, const char *path, size_t line, const char *fault)
{
    return err_set(e, ERR_INVALID, "%.200s:%zu: %s", path, line, fault);
}

static int check_repeated(const struct key_set *set, const size_t *lines, const char *path, struct err *e)
{
    struct entry *v = mem_array(set->n, sizeof *v);
    CHECK(lines || !set->n);
    for (size_t i = 0; i < set->n; i++) v[i] = (struct entry){&set->v[i], lines[i]};
    size_t at = repeated(v, set->n, by_name, true);
    int rc = at ? fail(e, path, at, "the name is in use above") : 0;
    if (!rc && (at = repeated(v, set->n, by_hash, false))) rc = fail(e, path, at, "the hash is there above");
    free(v);
    return rc;
}

struct key_set *keys_parse(const char *text, size_t n, const char *path, struct err *e)
{
    struct key_set *set = mem_zalloc(sizeof *set);
    size_t *lines = NULL, cap = 0, lines_cap = 0, number = 0;
    const char *at = text, *end = text + n;
    int rc = 0;
    set->users = 1;
    while (!rc && at < end) {
        char line[LINE_MAX_BYTES + 1];
        struct key key = {0};
        number++;
        const char *fault = next_line(&at, end, line);
        if (!fault) fault = read_line(&key, line);
        if (!fault && key.name && set->n == KEYS_MAX) fault = "there are more than 10000 keys";
        if (fault) rc = fail(e, path, number, fault);
        if (fault || !key.name) continue;
        mem_grow(&set->v, &cap, set->n + 1, sizeof *set->v);
        mem_grow(&lines, &lines_cap, set->n + 1, sizeof *lines);
        key.name = mem_strdup(key.name);
        key.set = set;
        lines[set->n] = number;
        set->v[set->n++] = key;
    }
    if (!rc) rc = check_repeated(set, lines, path, e);
    free(lines);
    if (!rc) return set;
    key_set_release(set);
    return NULL;
}

/* ---- making ---------------------------------------------------------------------------------------------------- */

/* 43 of 62 letters and digits are 256 bits.  Bytes of 248 or more are discarded, because 62 does not divide 256. */
bool key_make(char out[static KEY_TEXT + 1])
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    size_t n = 4;
    memcpy(out, "tdm_", 4);
    while (n < KEY_TEXT) {
        unsigned char random[64];
        ssize_t got = getrandom(random, sizeof random, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        for (ssize_t i = 0; i < got && n < KEY_TEXT; i++)
            if (random[i] < 248) out[n++] = letters[random[i] % 62];
        explicit_bzero(random, sizeof random);
    }
    out[n] = 0;
    return true;
}

void key_print(const struct key *key, struct buf *line)
{
    char text[32];
    buf_printf(line, "%s %s sha256:", key->name, key_roles[key->role]);
    for (int i = 0; i < KEY_HASH; i++) buf_printf(line, "%02x", key->hash[i]);
    if (key->expires) key_time_print(key->expires, text), buf_printf(line, " expires=%s", text);
    if (key->revoked) key_time_print(key->revoked, text), buf_printf(line, " revoked=%s", text);
    if (key->requests_per_minute > 0) buf_printf(line, " requests-per-minute=%.15g", key->requests_per_minute);
    if (key->tokens_per_minute > 0) buf_printf(line, " tokens-per-minute=%.15g", key->tokens_per_minute);
    if (key->max_concurrent) buf_printf(line, " max-concurrent=%d", key->max_concurrent);
    if (key->priority_max != INT_MIN) buf_printf(line, " priority-max=%d", key->priority_max);
    buf_char(line, '\n');
}

/* ---- editing --------------------------------------------------------------------------------------------------- */

static const char heading[] = "# API keys of tandem, written by `tandem key`: NAME ROLE sha256:HASH [name=value...]\n";

struct edit {
    char *path; /* final symbolic link resolved, so that replacing the file keeps the link */
    int fd;     /* holds the lock */
    struct stat was;
    char *text;
    size_t n;
    struct key_set *set;
};

static void edit_end(struct edit *x)
{
    if (x->fd >= 0) close(x->fd);
    key_set_release(x->set);
    free(x->text);
    free(x->path);
}

/* Opens and locks the file; reopens it if it was replaced while waiting for the lock. */
static int lock_file(struct edit *x, bool make, struct err *e)
{
    for (;;) {
        struct stat now;
        x->fd = open(x->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | (make ? O_CREAT : 0), 0644);
        if (x->fd < 0) return err_set(e, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, "%s: %s", x->path, strerror(errno));
        while (flock(x->fd, LOCK_EX) != 0)
            if (errno != EINTR) return err_set(e, ERR_IO, "%s: cannot be locked: %s", x->path, strerror(errno));
        if (fstat(x->fd, &x->was) == 0 && stat(x->path, &now) == 0 && now.st_ino == x->was.st_ino &&
            now.st_dev == x->was.st_dev)
            return 0;
        close(x->fd);
    }
}

static int edit_begin(struct edit *x, const char *path, bool make, struct err *e)
{
    *x = (struct edit){.fd = -1};
    char *real = realpath(path, NULL);
    x->path = real ? real : mem_strdup(path);
    int rc = lock_file(x, make, e);
    if (!rc) rc = file_read(x->path, FILE_MAX, &x->text, &x->n, e);
    if (!rc && !(x->set = keys_parse(x->text, x->n, path, e))) rc = e->code;
    return rc;
}

static const struct key *edit_find(const struct edit *x, const char *name)
{
    for (size_t i = 0; i < x->set->n; i++)
        if (strcmp(x->set->v[i].name, name) == 0) return &x->set->v[i];
    return NULL;
}

/* @return the comment at the end of a line of n bytes; *len: its bytes. */
static const char *remark(const char *p, size_t n, size_t *len)
{
    for (size_t i = 1; i < n; i++) {
        if (p[i] != '#' || (p[i - 1] != ' ' && p[i - 1] != '\t')) continue;
        *len = n - i;
        return p + i;
    }
    *len = 0;
    return "";
}

/* Appends the file's text with the key's line replacing the one of its name, or added at the end. */
static void edit_put(const struct edit *x, const struct key *key, struct buf *out)
{
    const char *at = x->text, *end = x->text + x->n;
    bool done = false;
    if (!x->n) buf_str(out, heading);
    while (at < end) {
        const char *begin = at;
        char line[LINE_MAX_BYTES + 1] = "";
        struct key had;
        CHECK(!next_line(&at, end, line)); /* it was parsed before */
        size_t len;
        const char *rest = remark(line, strlen(line), &len);
        char *kept = mem_strndup(rest, len);
        read_line(&had, line);
        if (had.name && strcmp(had.name, key->name) == 0) {
            key_print(key, out);
            if (len) out->len--, buf_printf(out, " %s\n", kept);
            done = true;
        } else {
            buf_append(out, begin, (size_t)(at - begin));
        }
        free(kept);
    }
    if (out->len && out->data[out->len - 1] != '\n') buf_char(out, '\n');
    if (!done) key_print(key, out);
}

/* Replaces the old file with a new one of the same mode and, if permitted, the same owner. */
static int edit_write(const struct edit *x, const struct buf *text, struct err *e)
{
    struct buf tmp = {0};
    buf_printf(&tmp, "%s.tmp", x->path);
    unlink(tmp.data); /* left over from a crash */
    int fd = open(tmp.data, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), rc = 0;
    if (fd < 0 || file_write_all(fd, text->data, text->len) || fsync(fd) || fchmod(fd, x->was.st_mode & 0777))
        rc = err_set(e, ERR_IO, "%s: %s", tmp.data, strerror(errno));
    int ignored = fd < 0 ? 0 : fchown(fd, x->was.st_uid, x->was.st_gid);
    (void)ignored;
    if (fd >= 0 && close(fd) && !rc) rc = err_set(e, ERR_IO, "%s: %s", tmp.data, strerror(errno));
    if (!rc && rename(tmp.data, x->path)) rc = err_set(e, ERR_IO, "%s: %s", x->path, strerror(errno));
    if (rc && fd >= 0) unlink(tmp.data);
    if (!rc) dir_sync_parent(x->path);
    buf_free(&tmp);
    return rc;
}

/* Writes only what can be parsed again: a comment may make its line too long, or the clock may be at 1970. */
static int edit_finish(const struct edit *x, const char *path, const struct key *key, struct err *e)
{
    struct buf text = {0};
    edit_put(x, key, &text);
    struct key_set *set = keys_parse(text.data, text.len, path, e);
    int rc = set ? edit_write(x, &text, e) : e->code;
    key_set_release(set);
    buf_free(&text);
    return rc;
}

int keys_file_add(const char *path, const struct key *key, struct err *e)
{
    struct edit x;
    int rc = edit_begin(&x, path, true, e);
    const struct key *had = rc ? NULL : edit_find(&x, key->name);
    if (had && !had->revoked)
        rc = err_set(e, ERR_INVALID, "%.200s: there is a key with the name %s; revoke it first, or take another name",
                     path, key->name);
    if (!rc && !had && x.set->n == KEYS_MAX)
        rc = err_set(e, ERR_FULL, "%.200s: there are %d keys already", path, KEYS_MAX);
    if (!rc) rc = edit_finish(&x, path, key, e);
    edit_end(&x);
    return rc;
}

int keys_file_revoke(const char *path, const char *name, int64_t now, struct err *e)
{
    struct edit x;
    int rc = edit_begin(&x, path, false, e);
    const struct key *had = rc ? NULL : edit_find(&x, name);
    if (!rc && (!had || had->revoked))
        rc = err_set(e, ERR_NOT_FOUND,
                     had ? "%.200s: the key of %.64s is revoked already" : "%.200s: no key has the name %.64s", path,
                     name);
    if (!rc) {
        struct key key = *had;
        key.revoked = now;
        rc = edit_finish(&x, path, &key, e);
    }
    edit_end(&x);
    return rc;
}
