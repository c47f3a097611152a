/* The lock of a blob while it is downloaded: flock(2) on CACHE/.locks/models--ORG--NAME/ETAG.lock, as huggingface_hub
 * takes it (utils/_fixes.py: WeakFileLock, with the package filelock).  The file stays after release: to unlink it
 * would let two processes lock two files of one name. */
#ifndef TANDEM_SERVER_HUB_LOCK_H
#define TANDEM_SERVER_HUB_LOCK_H

#include "engine/base/err.h"

/* @return a descriptor, to be closed to release the lock; -1: another process has it; < -1: an error code and *e */
int lock_try(const char *path, struct err *e);

#endif
