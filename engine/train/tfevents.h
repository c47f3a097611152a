/* TensorBoard event files: scalars of a run, for the `tensorboard` program.
 *
 * A file is a list of records, TensorFlow's TFRecord: uint64 length, uint32 masked crc32c of the length's bytes, the
 * bytes, uint32 masked crc32c of them; all little-endian; masked: (crc >> 15 | crc << 17) + 0xa282ead8.  A record holds
 * an Event (tensorflow/core/util/event.proto), written here by hand:
 *   Event    1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary, 7 session_log SessionLog
 *   Summary  1 value { 1 tag string, 2 simple_value float }, repeated
 *   SessionLog  1 status enum (START = 1)
 *
 * Each record is one write, so a killed process leaves whole records; what a power cut tears is at the end, and readers
 * stop there.  Used by one thread at a time. */
#ifndef TANDEM_ENGINE_TRAIN_TFEVENTS_H
#define TANDEM_ENGINE_TRAIN_TFEVENTS_H

#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct tfevents;

/* Opens a new file in dir, which is made when missing.  first_step: readers forget what older files of the directory
 * say of this step and later ones, so that a run that was resumed does not go back in time.  NULL and *e. */
struct tfevents *tfevents_open(const char *dir, int64_t first_step, struct err *e);

struct tfevents_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* kept as a float */
};
/* One event with n scalars, now.  An error (a full disk) leaves the file as it was before; the next call tries again.
 */
int tfevents_add(struct tfevents *, int64_t step, const struct tfevents_scalar *, size_t n, struct err *e);

void tfevents_close(struct tfevents *); /* syncs; NULL is allowed */

#endif
