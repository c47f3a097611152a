/* The cache of the Hugging Face hub on the disk, as huggingface_hub 2.4.0 has it (file_download.py,
 * utils/_cache_manager.py):
 *
 *   CACHE/models--ORG--NAME/refs/main                    the commit that the branch was at, 40 hexadecimal digits
 *   CACHE/models--ORG--NAME/snapshots/COMMIT/config.json a relative link to
 *   CACHE/models--ORG--NAME/blobs/ETAG                   ETag: sha256 of an LFS file, git's sha1 of others
 *   CACHE/models--ORG--NAME/blobs/ETAG.incomplete        as far as it was downloaded
 *   CACHE/.locks/models--ORG--NAME/ETAG.lock             flock(2) while it is downloaded
 *
 * A blob may itself be a link, into CACHE/blobs, which several repositories share.  Contents are untrusted. */
#ifndef TANDEM_SERVER_HUB_CACHE_H
#define TANDEM_SERVER_HUB_CACHE_H

#include "server/hub/hub.h"
#include "server/hub/repo.h"

#include <time.h>

enum { COMMIT_DIGITS = 40 };
enum cache_state { CACHE_NONE, CACHE_PARTIAL, CACHE_WHOLE };

char *cache_repo(const struct hub *, const char *id); /* CACHE/models--ORG--NAME, owned by the caller */

/* The commit that a revision of the repository at that path is: a ref's, or it is one itself.  @return false: neither
 */
bool cache_commit(const char *repo, const char *revision, char commit[COMMIT_DIGITS + 1]);

/* Looks for what a name means.  CACHE_WHOLE: *path is a snapshot with all its files, or the GGUF file, or that
 * of a data set with the one file that is named; CACHE_PARTIAL:
 * *path is a snapshot where files are missing; *path is owned by the caller.  With *e set: several GGUF files match. */
enum cache_state cache_find(const struct hub *, const struct repo_name *, char **path, struct err *e);

/* The files of a snapshot, relative to it, in no order; zero-initialise, cache_names_free. */
struct cache_names {
    char **v; /* owned */
    int n;
    size_t cap;
};
void cache_collect(const char *snapshot, struct cache_names *out);
void cache_names_free(struct cache_names *);

/* ---- tandem models ---- */

struct cache_entry {
    char id[REPO_NAME_MAX + 1];
    uint64_t bytes;      /* of its blobs, each once */
    uint64_t incomplete; /* of downloads that were broken off */
    time_t changed;      /* its newest blob */
    int snapshots;
    bool whole; /* whether a snapshot has all that is needed to open it */
    const char *kind;
};

/* @return the models in the cache by name, *n of them, owned by the caller; NULL and *e when it cannot be read; no
 * cache: none. */
struct cache_entry *cache_list(const struct hub *, int *n, struct err *e);
/* Removes a model with all its revisions; *bytes were freed.  Refused while it is being downloaded.  Blobs that are
 * links into CACHE/blobs stay there: other repositories may have them. */
int cache_remove(const struct hub *, const char *id, uint64_t *bytes, struct err *e);
/* Removes the snapshot of one revision, the refs that name its commit, and the blobs that no other snapshot links to;
 * the whole model where it is the only one. */
int cache_remove_revision(const struct hub *, const struct repo_name *, uint64_t *bytes, struct err *e);

#endif
