/* Weights that clients saved under a name: directories below the data directory, which outlive sessions and the
 * process.
 *
 *     tinker/RUN/weights/NAME/            adapter, moments and steps of a run (tuner_files.h), for load_weights
 *     tinker/RUN/sampler_weights/NAME/    the adapter alone, to sample from
 *
 * checkpoint.json in each says whose it is, and when it is to be deleted, if ever; the file `expires`, in ms since
 * 1970, when that was changed.  Only the client that saved one sees it: by the name of its API key, or without keys by
 * its address.  Where there is a file `public`, others may read it too. */
#ifndef TANDEM_SERVER_TINKER_CHECKPOINTS_H
#define TANDEM_SERVER_TINKER_CHECKPOINTS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/access/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RUN_ID = 96, CHECKPOINT_NAME = 104, CHECKPOINTS_MAX = 1024 /* of a run */ };

struct tuner;

struct checkpoint {
    char run[RUN_ID], name[CHECKPOINT_NAME], owner[CLIENT_NAME];
    bool sampler;   /* of sampler_weights */
    char *base;     /* the model's name; owned */
    char *metadata; /* an object of texts, as JSON; owned; NULL: none */
    char *source;   /* the path of what it is a copy of; owned; NULL: it is none */
    int rank;
    bool attn, mlp, unembed, public;
    int64_t created, expires; /* ms since 1970; expires 0: never */
    int64_t bytes;
};

void checkpoint_free(struct checkpoint *);

/* ---- names.  Pure; any thread. ---- */

/* A letter or digit, then up to 99 of letters, digits, '.', '_', '-', ':'; not ".old" at the end. */
bool checkpoint_name_ok(const char *name);
/* "tinker://RUN/weights/NAME" or with sampler_weights: sets run, name and sampler.  @return 0; ERR_INVALID. */
int checkpoint_parse(struct checkpoint *, const char *path, struct err *e);
/* "weights/NAME" or "sampler_weights/NAME" of a run. */
int checkpoint_parse_id(struct checkpoint *, const char *run, const char *id, struct err *e);
void checkpoint_put_path(struct buf *, const struct checkpoint *);
/* As Tinker's client reads it, as JSON. */
void checkpoint_put(struct buf *, const struct checkpoint *);
/* "2026-11-26T13:04:58.120Z", with the quotes */
void checkpoint_put_time(struct buf *, int64_t ms);

/* ---- on the disk.  A thread that may wait for it: not the loop. ---- */

/* Its directory below the data directory `data`; to be freed. */
char *checkpoint_dir(const char *data, const struct checkpoint *);
/* Fills in the rest of one whose run, name and sampler are set.  ERR_NOT_FOUND: there is none that `owner` may read, or
 * with `to_change` none of its own. */
int checkpoint_read(const char *data, struct checkpoint *, const char *owner, bool to_change, struct err *e);
/* Saves the tuner under it, durably; replaces one of this name only with overwrite.  dir: of the base model.  most:
 * that its owner may have in all.  In a call of the trainer's thread. */
int checkpoint_save(const char *data, const struct checkpoint *, struct tuner *, const char *dir, bool overwrite,
                    size_t most, struct err *e);
/* Makes `copy`, of which run, name, sampler, owner, created and expires are set, of the one at `from`, of which run,
 * name and sampler are, and which its owner may read.  Fills in the rest of `from`, whose files it shares.  A copy of
 * the same that is there already stays.  most: see checkpoint_save.  ERR_NOT_FOUND; ERR_INVALID: other weights are
 * there, or too many. */
int checkpoint_copy(const char *data, struct checkpoint *from, const struct checkpoint *copy, size_t most,
                    struct err *e);
/* expires 0: never. */
int checkpoint_expire(const char *data, const struct checkpoint *, int64_t expires, struct err *e);
/* Whether others may read it. */
int checkpoint_publish(const char *data, const struct checkpoint *, bool public, struct err *e);
int checkpoint_delete(const char *data, const struct checkpoint *, struct err *e);
/* Those of `run`, NULL: of all runs, that owner may see, the oldest first.  (*n); each and the array are the caller's.
 */
struct checkpoint *checkpoint_list(const char *data, const char *run, const char *owner, size_t *n);
/* Deletes those that have expired, and what a process left unfinished that was killed. */
void checkpoints_sweep(const char *data);

#endif
