/* Checkpoints: sets of named arrays, written atomically.
 *
 * DIR/step-0000000120/ has a file for each array and `manifest`, with the job they belong to and the CRC-32C of each. A
 * checkpoint is written under another name, each file and the directory are synced, and it is renamed.  Then all others
 * are deleted except the previous one and one that the caller names.  So a complete one exists after any crash, and the
 * previous one if the newest is damaged.  Trainer thread. */
#ifndef TANDEM_ENGINE_TRAIN_CKPT_H
#define TANDEM_ENGINE_TRAIN_CKPT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CKPT_KEEP = 2, CKPT_NAME_MAX = 32 };

/* A part that is not in one place.  Both are called for stretches of at most CKPT_STRETCH bytes, in their order. */
enum { CKPT_STRETCH = 1 << 22 };
struct ckpt_remote {
    int (*get)(void *arg, size_t at, size_t n, void *out, struct err *);
    int (*put)(void *arg, size_t at, size_t n, const void *, struct err *);
    void *arg;
};

struct ckpt_part {
    const char *name; /* a file name without suffix */
    void *data;       /* host; read by ckpt_write, written by ckpt_read; NULL: remote */
    size_t bytes;
    struct ckpt_remote remote;
};

/* Creates dir and its parents.  Keeps the previous checkpoint and that of step `keep` (-1: none).  @return 0 when the
 * checkpoint is durable; ERR_IO with the path and the system's reason, and the earlier checkpoints are unchanged. */
int ckpt_write(const char *dir, uint64_t job, int64_t step, int64_t keep, const struct ckpt_part *, int n,
               struct err *);

/* Reads the newest complete checkpoint of step `most` or earlier; *step: its step, -1: there is none.  A damaged one is
 * skipped with a line in `warnings` and deleted, as are unfinished ones.  ERR_INVALID: the checkpoint is of another job
 * or has other arrays; the parts are unchanged. */
int ckpt_read(const char *dir, uint64_t job, int64_t most, const struct ckpt_part *, int n, int64_t *step,
              struct buf *warnings, struct err *);

/* Deletes all but the newest `n`, and that of step `keep`. */
void ckpt_prune(const char *dir, int n, int64_t keep);
/* Deletes those of steps after `step`. */
void ckpt_delete_after(const char *dir, int64_t step);

/* "step-0000000120" */
void ckpt_name(int64_t step, char out[CKPT_NAME_MAX]);

#endif
