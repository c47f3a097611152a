/* TensorBoard event files: scalars of a run, for the `tensorboard` program.
 *
 * A file is a list of records, TensorFlow's TFRecord: uint64 length, uint32 masked crc32c of the length's bytes, the
 * bytes, uint32 masked crc32c of them; all little-endian; masked: (crc >> 15 | crc << 17) + 0xa282ead8.  A record holds
 * an Event (tensorflow/core/util/event.proto), encoded here without a library:
 *   Event    1 wall_time double, 2 step int64, 3 file_version string, 5 summary Summary, 7 session_log SessionLog
 *   Summary  1 value { 1 tag string, 2 simple_value float }, repeated
 *   SessionLog  1 status enum (START = 1)
 *
 * Each record is one write, so a killed process leaves complete records.  A record torn by a power failure is the last
 * one, where readers stop.  Used by one thread at a time. */
#ifndef TANDEM_ENGINE_TRAIN_TFEVENTS_H
#define TANDEM_ENGINE_TRAIN_TFEVENTS_H

#include "engine/base/err.h"

#include <stddef.h>
#include <stdint.h>

struct tfevents;

/* Opens a new file in dir, which is created when missing.  first_step: readers discard data of this step and later ones
 * in older files of the directory, so that a resumed run replaces them.  @return NULL on failure, and *e is set. */
struct tfevents *tfevents_open(const char *dir, int64_t first_step, struct err *e);

struct tfevents_scalar {
    const char *tag; /* "train/loss" */
    double value;    /* stored as f32 */
};
/* Writes one event with n scalars and the current time.  After an error (a full disk) the file is unchanged; the next
 * call tries again. */
int tfevents_add(struct tfevents *, int64_t step, const struct tfevents_scalar *, size_t n, struct err *e);

void tfevents_close(struct tfevents *); /* syncs; NULL is allowed */

#endif
