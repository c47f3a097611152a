/* Checkpoints: named arrays that are wholly on the disk or not at all.
 *
 * DIR/step-0000000120/ has one file for each array and `manifest`, which states the job they belong to and the CRC-32C
 * of each.  A checkpoint is written under another name, every file and the directory synced, and renamed; then all but
 * it, the one before and one that its owner names are deleted.  So after any crash there is a whole one, and when the
 * newest turns out damaged, the one before.  The trainer's thread. */
#ifndef TANDEM_ENGINE_TRAIN_CKPT_H
#define TANDEM_ENGINE_TRAIN_CKPT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { CKPT_KEEP = 2, CKPT_NAME_MAX = 32 };

struct ckpt_part {
    const char *name; /* a file name without suffix */
    void *data;       /* host; read by ckpt_write, written by ckpt_read */
    size_t bytes;
};

/* Durable when it returns 0.  dir and its parents are made.  Of the others the one before stays, and that of step
 * `keep` (-1: of none).  ERR_IO with the path and the system's reason; then what was there before is as it was. */
int ckpt_write(const char *dir, uint64_t job, int64_t step, int64_t keep, const struct ckpt_part *, int n,
               struct err *);

/* Reads the newest whole checkpoint of step `most` or before: *step, or -1 when there is none.  A damaged one is passed
 * over with a line in `warnings` and deleted; what was left unfinished is deleted too.  ERR_INVALID: a whole one is of
 * another job or has other arrays; the parts are as they were. */
int ckpt_read(const char *dir, uint64_t job, int64_t most, const struct ckpt_part *, int n, int64_t *step,
              struct buf *warnings, struct err *);

/* Deletes all but the newest `n`, and that of step `keep`. */
void ckpt_prune(const char *dir, int n, int64_t keep);
/* Deletes those of steps after `step`. */
void ckpt_forget(const char *dir, int64_t step);

/* "step-0000000120" */
void ckpt_name(int64_t step, char out[CKPT_NAME_MAX]);

#endif
