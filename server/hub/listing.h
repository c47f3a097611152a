/* What the hub says of a repository: the JSON of GET /api/models/ORG/NAME/revision/REVISION?blobs=true, as
 * huggingface_hub 2.4.0 reads it (hf_api.py: ModelInfo, RepoSibling, BlobLfsInfo).  Untrusted: every name, size and
 * digest is checked, for they become paths and requests.  Pure; any thread. */
#ifndef TANDEM_SERVER_HUB_LISTING_H
#define TANDEM_SERVER_HUB_LISTING_H

#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ETAG_MAX = 64, LISTING_FILES = 100000, LISTING_BYTES = 64 << 20 };
#define LISTING_FILE_BYTES (UINT64_C(1) << 46)

struct hub_file {
    char *name;              /* owned; good as repo_file_good says */
    uint64_t size;           /* bytes */
    char etag[ETAG_MAX + 1]; /* sha256 of an LFS file, git's sha1 of others; "": the listing has none */
};

struct listing {
    char commit[41];
    struct hub_file *v; /* owned */
    int n;
};

/* @return 0, or ERR_INVALID and *e ("siblings[3].size: ..."); *l is freed then. */
int listing_parse(struct listing *l, const char *text, size_t n, struct err *e);
void listing_free(struct listing *);
const struct hub_file *listing_find(const struct listing *, const char *name); /* NULL: there is none */
/* Sets size and etag from a size and a digest that come from headers.  @return false: they are not valid */
bool listing_describe(struct hub_file *, int64_t size, const char *etag);

#endif
