#include "engine/kvstore/store.h"

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/kvstore/dir.h"
#include "engine/kvstore/index.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SLOT_UNIT = 512,
    GROW_BYTES = 64 << 20, /* asked of the directory's limit at a time */
    RETRY_SECONDS = 10,    /* after the disk was full, and between attempts to grow */
    SWEEP_SECONDS = 60,
    EVICT_SHARE = 64, /* of all pages that are evicted together */
};

struct kv_store {
    struct kv_store_config c;
    char name[KV_FOLDER_NAME];
    struct kv_folder folder;
    struct index x;
    size_t slot_bytes;
    int granted;             /* slots that the directory's limit has room for */
    uint64_t grow_at;        /* seconds: no attempt to grow before */
    uint64_t write_at;       /* seconds: nothing is written before */
    uint64_t swept, expires; /* seconds; expires: the first page, 0: none */
    _Atomic uint64_t limit;  /* bytes this store may take, as far as is known */
    _Atomic uint64_t read, written, evicted, expired, corrupt, write_errors;
};

static uint64_t seconds(const struct kv_store *s)
{
    return (s->c.now ? s->c.now() : clock_unix()) / UINT64_C(1000000000);
}

/* ---- the files ---- */

static bool read_at(int fd, void *to, size_t n, uint64_t at)
{
    for (char *p = to; n;) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        p += got;
        at += (size_t)got;
        n -= (size_t)got;
    }
    return true;
}

/* Both parts, one behind the other. */
static bool write_at(int fd, const void *a, size_t na, const void *b, size_t nb, uint64_t at)
{
    struct iovec v[2] = {{(void *)a, na}, {(void *)b, nb}};
    for (int i = 0; i < 2;) {
        ssize_t put = pwritev(fd, v + i, 2 - i, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        at += (size_t)put;
        for (size_t left = (size_t)put; i < 2; i++) {
            size_t n = left < v[i].iov_len ? left : v[i].iov_len;
            if (n) v[i].iov_base = (char *)v[i].iov_base + n;
            v[i].iov_len -= n;
            left -= n;
            if (v[i].iov_len) break;
        }
    }
    return true;
}

static bool write_entry(struct kv_store *s, int32_t slot, const struct index_entry *e)
{
    return write_at(s->folder.index, e, sizeof *e, NULL, 0, (uint64_t)(slot + 1) * sizeof *e);
}

static struct index_entry entry_of(const struct kv_name *name, const struct kv_name *parent, uint32_t depth,
                                   uint64_t used, uint32_t uses)
{
    struct index_entry e = {.name = *name, .parent = *parent, .used = used, .depth = depth, .uses = uses};
    e.crc = crc32c(0, &e, offsetof(struct index_entry, crc));
    return e;
}

static struct slot_head head_of(const struct kv_store *s, const struct kv_name *name, const void *page)
{
    struct slot_head h = {.name = *name, .page_bytes = s->c.page_bytes};
    memcpy(h.magic, SLOT_MAGIC, sizeof h.magic);
    h.page_crc = crc32c(crc32c(0, name, sizeof *name), page, s->c.page_bytes);
    h.crc = crc32c(0, &h, offsetof(struct slot_head, crc));
    return h;
}

/* ---- opening ---- */

static struct index_head index_head_of(const struct kv_store *s)
{
    struct index_head h = {
        .version = INDEX_VERSION, .order = INDEX_ORDER, .model = s->c.model, .page_bytes = s->c.page_bytes};
    memcpy(h.magic, INDEX_MAGIC, sizeof h.magic);
    h.crc = crc32c(0, &h, offsetof(struct index_head, crc));
    return h;
}

/* An entry of the file becomes slot x.n of the index. */
static void load_entry(struct kv_store *s, const struct index_entry *e, uint64_t now)
{
    static const struct index_entry none;
    int32_t i = index_extend(&s->x);
    bool right = e->crc == crc32c(0, e, offsetof(struct index_entry, crc)) && e->depth < INDEX_SLOTS_MAX && e->uses > 0;
    if (!right && memcmp(e, &none, sizeof none)) s->corrupt++;
    if (!right || index_find(&s->x, &e->name) >= 0) {
        index_give(&s->x, i);
        return;
    }
    struct index_entry in = *e;
    if (in.used > now) in.used = now; /* the clock was set back */
    index_add(&s->x, i, &in);
}

/* Reads the index; one of another format or model, which only a damaged file can be, is begun anew. */
static int load(struct kv_store *s, struct err *e)
{
    enum { AT_ONCE = 512 };
    struct index_head want = index_head_of(s), have;
    struct stat st, data;
    if (fstat(s->folder.index, &st) || fstat(s->folder.pages, &data))
        return err_set(e, ERR_IO, "--kv-disk: %s: %s", s->folder.path, strerror(errno));
    bool known = st.st_size >= (off_t)sizeof have && read_at(s->folder.index, &have, sizeof have, 0) &&
                 !memcmp(&have, &want, sizeof want);
    if (!known) {
        if (st.st_size) {
            log_write(LOG_WARN, "kv-disk: the index is damaged, its pages are given up file=%s/index", s->folder.path);
            s->corrupt++;
        }
        if (ftruncate(s->folder.index, 0) || ftruncate(s->folder.pages, 0) ||
            !write_at(s->folder.index, &want, sizeof want, NULL, 0, 0))
            return err_set(e, ERR_IO, "--kv-disk: %s: %s", s->folder.path, strerror(errno));
        return 0;
    }
    uint64_t n = (uint64_t)st.st_size / sizeof(struct index_entry) - 1, now = seconds(s);
    uint64_t most = s->c.limit / (s->slot_bytes + sizeof(struct index_entry));
    uint64_t behind = ((uint64_t)data.st_size + s->slot_bytes - 1) / s->slot_bytes; /* no page can be in later slots */
    if (n > most) n = most;
    if (n > behind) n = behind;
    if (n > INDEX_SLOTS_MAX) n = INDEX_SLOTS_MAX;
    struct index_entry *part = mem_array(AT_ONCE, sizeof *part);
    for (uint64_t i = 0; i < n; i += AT_ONCE) {
        uint64_t k = n - i < AT_ONCE ? n - i : AT_ONCE;
        if (!read_at(s->folder.index, part, k * sizeof *part, (i + 1) * sizeof *part)) break;
        for (uint64_t j = 0; j < k; j++) load_entry(s, part + j, now);
    }
    free(part);
    /* what is behind is of no use; on failure it stays and is overwritten */
    int cut = ftruncate(s->folder.index, (off_t)((uint64_t)(s->x.n + 1) * sizeof(struct index_entry)));
    if ((uint64_t)s->x.n < behind) cut |= ftruncate(s->folder.pages, (off_t)((uint64_t)s->x.n * s->slot_bytes));
    if (cut) log_write(LOG_WARN, "kv-disk: cannot shorten the files of %s", s->folder.path);
    s->granted = s->x.n;
    return 0;
}

struct kv_store *kv_store_open(const struct kv_store_config *c, struct err *e)
{
    struct kv_store *s = mem_zalloc(sizeof *s);
    s->c = *c;
    s->c.dir = NULL; /* the caller's */
    index_init(&s->x);
    if (c->page_bytes < 1 || c->page_bytes > KV_STORE_PAGE_MAX) {
        err_set(e, ERR_UNSUPPORTED, "--kv-disk: pages of %zu bytes", c->page_bytes);
        kv_store_close(s);
        return NULL;
    }
    s->slot_bytes = (c->page_bytes + sizeof(struct slot_head) + SLOT_UNIT - 1) / SLOT_UNIT * SLOT_UNIT;
    for (int i = 0; i < (KV_FOLDER_NAME - 1) / 2; i++) snprintf(s->name + 2 * i, 3, "%02x", c->model.b[i]);
    struct err why = {0};
    int rc = kv_folder_open(&s->folder, c->dir, s->name, &why);
    if (!rc) {
        s->c.dir = mem_strdup(c->dir);
        rc = load(s, &why);
    }
    s->limit = s->c.limit;
    if (!rc) return s;
    if (e) *e = why;
    kv_store_close(s);
    return NULL;
}

void kv_store_close(struct kv_store *s)
{
    if (!s) return;
    if (s->folder.path) {
        s->swept = 0;
        kv_store_sweep(s); /* what was used */
        kv_folder_close(&s->folder);
    }
    index_destroy(&s->x);
    free((char *)s->c.dir);
    free(s);
}

/* ---- any thread ---- */

int kv_store_prefix(struct kv_store *s, const struct kv_name *names, int n)
{
    int k = 0;
    pthread_mutex_lock(&s->x.lock);
    while (k < n && index_find(&s->x, names + k) >= 0) k++;
    pthread_mutex_unlock(&s->x.lock);
    return k;
}

bool kv_store_use(struct kv_store *s, const struct kv_name *name)
{
    uint64_t now = seconds(s);
    pthread_mutex_lock(&s->x.lock);
    int32_t i = index_find(&s->x, name);
    if (i >= 0) {
        struct index_slot *p = &s->x.slot[i];
        p->used = now;
        if (p->uses < UINT32_MAX) p->uses++;
        p->marked = true;
    }
    pthread_mutex_unlock(&s->x.lock);
    return i >= 0;
}

void kv_store_stats(struct kv_store *s, struct kv_store_stats *out)
{
    pthread_mutex_lock(&s->x.lock);
    uint64_t pages = (uint64_t)s->x.n_live;
    pthread_mutex_unlock(&s->x.lock);
    *out = (struct kv_store_stats){pages,          pages * (s->slot_bytes + sizeof(struct index_entry)),
                                   s->limit,       s->read,
                                   s->written,     s->evicted,
                                   s->expired,     s->corrupt,
                                   s->write_errors};
}

/* ---- the one thread ---- */

/* Forgets the page of a slot, on the disk first.  erase: its bytes too, where the file system can. */
static void drop(struct kv_store *s, int32_t i, bool erase)
{
    static const struct index_entry none;
    if (!write_entry(s, i, &none)) s->write_errors++; /* its name will not be that of the slot */
    if (erase)
        fallocate(s->folder.pages, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)((uint64_t)i * s->slot_bytes),
                  (off_t)s->slot_bytes);
    pthread_mutex_lock(&s->x.lock);
    index_remove(&s->x, i);
    pthread_mutex_unlock(&s->x.lock);
}

bool kv_store_get(struct kv_store *s, const struct kv_name *name, void *page)
{
    int32_t i = index_find(&s->x, name);
    struct slot_head h;
    uint64_t at = (uint64_t)i * s->slot_bytes;
    if (i < 0) return false;
    bool right = read_at(s->folder.pages, &h, sizeof h, at) && !memcmp(h.magic, SLOT_MAGIC, sizeof h.magic) &&
                 h.crc == crc32c(0, &h, offsetof(struct slot_head, crc)) && !memcmp(&h.name, name, sizeof *name) &&
                 h.page_bytes == s->c.page_bytes && read_at(s->folder.pages, page, s->c.page_bytes, at + sizeof h) &&
                 h.page_crc == crc32c(crc32c(0, name, sizeof *name), page, s->c.page_bytes);
    if (right) {
        s->read++;
        return true;
    }
    if (s->corrupt++ == 0)
        log_write(LOG_WARN,
                  "kv-disk: a page is damaged and is computed again; later ones are only counted file=%s/pages",
                  s->folder.path);
    drop(s, i, false);
    return false;
}

/* Tries to get room for more slots. */
static void grow(struct kv_store *s, uint64_t now)
{
    uint64_t each = s->slot_bytes + sizeof(struct index_entry), more = GROW_BYTES / each + 16;
    if (s->x.n < s->granted || now < s->grow_at) return;
    uint64_t room = kv_dir_room(s->c.dir, s->name, s->c.limit, ((uint64_t)s->x.n + more) * each) / each;
    if (room > INDEX_SLOTS_MAX) room = INDEX_SLOTS_MAX;
    s->granted = (int)room;
    if (s->x.n < s->granted) {
        s->limit = s->c.limit;
        return;
    }
    s->grow_at = now + RETRY_SECONDS;
    s->limit = (uint64_t)s->x.n * each;
}

static void evict(struct kv_store *s, uint64_t now)
{
    int most = s->x.n_live / EVICT_SHARE + 1;
    int32_t *worst = mem_array((size_t)most, sizeof *worst);
    int n = index_worst(&s->x, now, worst, most);
    for (int i = 0; i < n; i++) drop(s, worst[i], false);
    s->evicted += (uint64_t)n;
    free(worst);
}

/* @return a slot that is in no list, -1: there is no room. */
static int32_t take_slot(struct kv_store *s, uint64_t now)
{
    pthread_mutex_lock(&s->x.lock);
    int32_t i = index_take(&s->x);
    pthread_mutex_unlock(&s->x.lock);
    if (i >= 0) return i;
    grow(s, now);
    if (s->x.n >= s->granted) evict(s, now);
    pthread_mutex_lock(&s->x.lock);
    i = s->x.n < s->granted ? index_extend(&s->x) : index_take(&s->x);
    pthread_mutex_unlock(&s->x.lock);
    return i;
}

static void cannot_write(struct kv_store *s, uint64_t now)
{
    if (s->write_errors++ == 0)
        log_write(LOG_WARN,
                  "kv-disk: cannot write, tries again every %d s; later errors are only counted dir=%s error=\"%s\"",
                  RETRY_SECONDS, s->folder.path, strerror(errno));
    s->write_at = now + RETRY_SECONDS;
}

bool kv_store_put(struct kv_store *s, const struct kv_name *name, const struct kv_name *parent, uint32_t depth,
                  const void *page)
{
    uint64_t now = seconds(s);
    if (depth >= INDEX_SLOTS_MAX || now < s->write_at) return false;
    if (index_find(&s->x, name) >= 0) return true;
    int32_t i = take_slot(s, now);
    if (i < 0) return false;
    struct slot_head h = head_of(s, name, page);
    struct index_entry e = entry_of(name, parent, depth, now, 1);
    bool done = write_at(s->folder.pages, &h, sizeof h, page, s->c.page_bytes, (uint64_t)i * s->slot_bytes) &&
                write_entry(s, i, &e);
    if (!done) cannot_write(s, now);
    pthread_mutex_lock(&s->x.lock);
    if (done)
        index_add(&s->x, i, &e);
    else
        index_give(&s->x, i);
    pthread_mutex_unlock(&s->x.lock);
    s->written += done;
    if (done && s->c.ttl > 0 && !s->expires) s->expires = now + (uint64_t)ceil(s->c.ttl);
    return done;
}

/* Writes a slot's use to the index. */
static void note_use(struct kv_store *s, int32_t i)
{
    struct index_slot *p = &s->x.slot[i];
    if (!atomic_exchange(&p->marked, false)) return;
    struct index_entry e = entry_of(&p->name, &p->parent, p->depth, p->used, p->uses);
    if (!write_entry(s, i, &e)) s->write_errors++;
}

uint64_t kv_store_sweep(struct kv_store *s)
{
    uint64_t now = seconds(s), ttl = s->c.ttl > 0 ? (uint64_t)ceil(s->c.ttl) : 0, next = 0;
    if (now >= s->swept && now < s->swept + SWEEP_SECONDS && (!s->expires || now < s->expires))
        return s->expires ? (s->expires - now) * UINT64_C(1000000000) : 0;
    s->swept = now;
    for (int32_t i = 0; i < s->x.n; i++) {
        if (!s->x.slot[i].live) continue;
        uint64_t used = s->x.slot[i].used, end = used + ttl;
        if (ttl && end <= now) {
            drop(s, i, true);
            s->expired++;
            continue;
        }
        if (ttl && (!next || end < next)) next = end;
        note_use(s, i);
    }
    s->expires = next;
    return next ? (next - now) * UINT64_C(1000000000) : 0;
}
