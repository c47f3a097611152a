/* Fuzzes server/hub/listing.c, and server/hub/repo.c with the same bytes as a name.  Whatever comes: what is read can
 * become a path and a request, and leads nowhere else; what is not has a reason in plain text. */
#include "engine/base/check.h"
#include "server/hub/listing.h"
#include "server/hub/repo.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void check_reason(const struct err *e)
{
    CHECK(e->code < 0 && e->msg[0]);
    for (const char *p = e->msg; *p; p++) CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void check_file(const struct hub_file *f)
{
    size_t digits = strlen(f->etag);
    CHECK(repo_file_good(f->name) && f->name[0] != '/' && !strstr(f->name, "/../") && strncmp(f->name, "../", 3) != 0);
    CHECK(f->size <= LISTING_FILE_BYTES && (digits == 0 || digits == 40 || digits == 64));
    CHECK(strspn(f->etag, "0123456789abcdef") == digits);
    CHECK(!repo_small_file(f->name) || !repo_weights_file(f->name));
}

static void check_gguf(const struct listing *l, const char *quant)
{
    struct err e = {0};
    const char **names = malloc(((size_t)l->n + 1) * sizeof *names);
    bool *chosen = malloc((size_t)l->n + 1);
    int first, count = 0;
    CHECK(names && chosen);
    for (int i = 0; i < l->n; i++) names[i] = l->v[i].name;
    int n = repo_gguf(names, l->n, quant, chosen, &first, &e);
    for (int i = 0; n > 0 && i < l->n; i++) count += chosen[i];
    if (n > 0)
        CHECK(first >= 0 && first < l->n && chosen[first] && count == n);
    else
        check_reason(&e);
    free(chosen);
    free(names);
}

static void check_listing(const char *p, size_t n)
{
    struct listing l;
    struct err e = {0};
    if (listing_parse(&l, p, n, &e)) {
        check_reason(&e);
        CHECK(!l.v && !l.n);
        return;
    }
    CHECK(repo_commit_good(l.commit));
    for (int i = 0; i < l.n; i++) check_file(&l.v[i]);
    check_gguf(&l, "");
    check_gguf(&l, "Q4_K_M");
    listing_free(&l);
}

static void check_name(const char *text)
{
    struct repo_name r;
    struct err e = {0};
    char id[REPO_NAME_MAX + 1];
    if (!repo_parse(&r, text, "http://127.0.0.1:8000", &e)) {
        if (e.code) check_reason(&e);
        return;
    }
    struct buf folder = {0};
    CHECK(strchr(r.id, '/') && !strstr(r.id, "..") && r.revision[0] && !strstr(r.revision, "..") &&
          r.revision[0] != '/');
    CHECK(!r.quant[0] || repo_file_good(r.quant));
    repo_folder(&folder, r.id);
    CHECK(!strchr(folder.data, '/') && repo_of_folder(folder.data, id) && strcmp(id, r.id) == 0);
    buf_free(&folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + 1); /* exactly as long as it is, so that reading past the end is seen */
    CHECK(copy);
    if (size) memcpy(copy, data, size);
    copy[size] = 0;
    check_name(copy);
    free(copy);
    copy = malloc(size ? size : 1);
    CHECK(copy);
    if (size) memcpy(copy, data, size);
    check_listing(copy, size);
    free(copy);
    return 0;
}
