/* libFuzzer: a store of KV pages whose files were changed in any way.  Each four bytes of the input change one byte, or
 * the length, of the index or the pages; the first byte says whether the checksums of the index are then made right.  A
 * page that is given out must be the one of its name. */
#include "engine/base/crc32c.h"
#include "engine/base/log.h"
#include "engine/kvstore/index.h"
#include "engine/kvstore/store.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FOLDER "00000000000000000000000000000000" /* of a model whose name is zeros */

enum { PAGE = 40, PAGES = 6 };

static char dir[64], paths[2][128];

static void page_of(int i, struct kv_name *name, unsigned char page[PAGE])
{
    memset(name, 'a' + i, sizeof *name);
    memset(page, 'A' + i, PAGE);
}

static struct kv_store *open_store(struct err *e)
{
    struct kv_store_config c = {.dir = dir, .page_bytes = PAGE, .limit = 1 << 20};
    return kv_store_open(&c, e);
}

static void remove_dir(void)
{
    char path[128];
    unlink(paths[0]);
    unlink(paths[1]);
    snprintf(path, sizeof path, "%s/%s/lock", dir, FOLDER);
    unlink(path);
    snprintf(path, sizeof path, "%s/%s", dir, FOLDER);
    if (rmdir(path) || rmdir(dir)) perror(dir);
}

static void make_dir(void)
{
    snprintf(dir, sizeof dir, "/tmp/fuzz-kvstore-XXXXXX");
    if (!mkdtemp(dir)) abort();
    snprintf(paths[0], sizeof paths[0], "%s/%s/index", dir, FOLDER);
    snprintf(paths[1], sizeof paths[1], "%s/%s/pages", dir, FOLDER);
    atexit(remove_dir);
    log_set_level(LOG_ERROR);
}

static void change(const uint8_t *data, size_t size)
{
    int fd[2] = {open(paths[0], O_RDWR), open(paths[1], O_RDWR)};
    for (size_t i = 1; i + 4 <= size; i += 4) {
        int which = data[i] & 1;
        off_t at = data[i + 1] | data[i + 2] << 8;
        int rc = data[i] & 2 ? ftruncate(fd[which], at) : pwrite(fd[which], data + i + 3, 1, at) - 1;
        if (rc) abort();
    }
    struct index_entry e;
    for (off_t at = 0; data[0] & 1 && pread(fd[0], &e, sizeof e, at) == sizeof e; at += sizeof e) {
        e.crc = crc32c(0, &e, offsetof(struct index_entry, crc));
        if (pwrite(fd[0], &e, sizeof e, at) != sizeof e) abort();
    }
    close(fd[0]);
    close(fd[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_name name, parent;
    unsigned char page[PAGE], right[PAGE];
    struct err e = {0};
    if (!size || size > 1024) return 0;
    if (!*dir) make_dir();
    unlink(paths[0]);
    unlink(paths[1]);
    struct kv_store *s = open_store(&e);
    for (int i = 0; s && i < PAGES; i++) {
        page_of(i, &name, page);
        page_of(i ? i - 1 : 20, &parent, right);
        if (!kv_store_put(s, &name, &parent, (uint32_t)i, page)) abort();
    }
    kv_store_close(s);
    change(data, size);
    s = open_store(&e);
    if (!s) abort(); /* nothing in the files keeps it from opening */
    for (int i = 0; i < PAGES; i++) {
        page_of(i, &name, right);
        if (kv_store_get(s, &name, page) && memcmp(page, right, PAGE)) abort();
        if (!kv_store_put(s, &name, &name, 0, right) || !kv_store_get(s, &name, page)) abort();
    }
    kv_store_sweep(s);
    kv_store_close(s);
    return 0;
}
