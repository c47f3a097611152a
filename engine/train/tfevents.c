#include "engine/train/tfevents.h"

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tfevents {
    int fd;
    off_t end;       /* end of the last complete record */
    char *path;      /* owned, for messages */
    struct buf body; /* reused for each event */
    struct buf record;
};

/* ---- protobuf ---------------------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(struct buf *b, uint64_t v)
{
    for (; v >= 128; v >>= 7) buf_char(b, (char)(v | 128));
    buf_char(b, (char)v);
}

static void put_key(struct buf *b, int field, int type)
{
    put_varint(b, (uint64_t)field << 3 | (uint64_t)type);
}

static void put_bytes(struct buf *b, int field, const void *p, size_t n)
{
    put_key(b, field, BYTES);
    put_varint(b, n);
    buf_append(b, p, n);
}

static void put_le(struct buf *b, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++) buf_char(b, (char)(v >> 8 * i));
}

static void put_scalar(struct buf *b, const struct tfevents_scalar *s)
{
    struct buf value = {0};
    float v = (float)s->value;
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_bytes(&value, 1, s->tag, strlen(s->tag));
    put_key(&value, 2, FIXED32);
    put_le(&value, bits, 4);
    put_bytes(b, 1, value.data, value.len);
    buf_free(&value);
}

/* Begins an event in t->body. */
static void event_start(struct tfevents *t, int64_t step)
{
    double now = (double)clock_unix() / 1e9;
    uint64_t bits;
    memcpy(&bits, &now, sizeof bits);
    buf_clear(&t->body);
    put_key(&t->body, 1, FIXED64);
    put_le(&t->body, bits, 8);
    put_key(&t->body, 2, VARINT);
    put_varint(&t->body, (uint64_t)step);
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

static uint32_t masked(const void *p, size_t n)
{
    uint32_t crc = crc32c(0, p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static int record_write(struct tfevents *t, struct err *e)
{
    buf_clear(&t->record);
    put_le(&t->record, t->body.len, 8);
    put_le(&t->record, masked(t->record.data, 8), 4);
    buf_append(&t->record, t->body.data, t->body.len);
    put_le(&t->record, masked(t->body.data, t->body.len), 4);
    ssize_t n;
    do n = pwrite(t->fd, t->record.data, t->record.len, t->end);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)t->record.len) {
        t->end += n;
        return 0;
    }
    int why = n < 0 ? errno : ENOSPC;
    /* the next record overwrites the partial one */
    if (ftruncate(t->fd, t->end) < 0) why = errno;
    return err_set(e, ERR_IO, "%s: %s", t->path, strerror(why));
}

static const char prefix[] = "events.out.tfevents.";

/* Readers sort files by name.  So the seconds in a new name are greater than those of all existing files, even if it is
 * created in the same second or after the clock was set back. */
static unsigned long long next_second(const char *dir)
{
    unsigned long long second = clock_unix() / 1000000000u;
    DIR *d = opendir(dir);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (strncmp(entry->d_name, prefix, sizeof prefix - 1) != 0) continue;
        unsigned long long there = strtoull(entry->d_name + sizeof prefix - 1, NULL, 10);
        if (there >= second && there < 9999999999u) second = there + 1;
    }
    if (d) closedir(d);
    return second;
}

/* events.out.tfevents.SECONDS.HOST.PID */
static int file_make(struct tfevents *t, const char *dir, struct err *e)
{
    char host[64];
    if (mkdir(dir, 0777) < 0 && errno != EEXIST) return err_set(e, ERR_IO, "%s: %s", dir, strerror(errno));
    if (gethostname(host, sizeof host) < 0) host[0] = 0;
    host[sizeof host - 1] = 0;
    struct buf path = {0};
    buf_printf(&path, "%s/%s%010llu.%s.%ld", dir, prefix, next_second(dir), *host ? host : "host", (long)getpid());
    t->path = path.data;
    t->fd = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return t->fd >= 0 ? 0 : err_set(e, ERR_IO, "%s: %s", t->path, strerror(errno));
}

struct tfevents *tfevents_open(const char *dir, int64_t first_step, struct err *e)
{
    static const char version[] = "brain.Event:2";
    struct tfevents *t = mem_zalloc(sizeof *t);
    t->fd = -1;
    int rc = file_make(t, dir, e);
    if (!rc) {
        event_start(t, 0);
        put_bytes(&t->body, 3, version, sizeof version - 1);
        rc = record_write(t, e);
    }
    if (!rc) {
        event_start(t, first_step);
        put_bytes(&t->body, 7, "\x08\x01", 2); /* status: START */
        rc = record_write(t, e);
    }
    if (!rc) return t;
    if (t->fd >= 0) unlink(t->path);
    tfevents_close(t);
    return NULL;
}

int tfevents_add(struct tfevents *t, int64_t step, const struct tfevents_scalar *v, size_t n, struct err *e)
{
    struct buf summary = {0};
    event_start(t, step);
    for (size_t i = 0; i < n; i++) put_scalar(&summary, &v[i]);
    put_bytes(&t->body, 5, summary.data ? summary.data : "", summary.len);
    buf_free(&summary);
    return record_write(t, e);
}

void tfevents_close(struct tfevents *t)
{
    if (!t) return;
    if (t->fd >= 0) {
        fsync(t->fd);
        close(t->fd);
    }
    free(t->path);
    buf_free(&t->body);
    buf_free(&t->record);
    free(t);
}
