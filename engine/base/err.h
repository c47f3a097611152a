/* An error as a value: a code for the program and one sentence for the user.
 *
 * Everything that reads untrusted bytes (files, requests) returns one of these codes and fills a `struct err`;
 * impossible states abort instead (base/check.h).  No allocation, no thread state. */
#ifndef TANDEM_BASE_ERR_H
#define TANDEM_BASE_ERR_H

enum err_code {
    ERR_OK = 0,
    ERR_INVALID = -1,     /* the input breaks a rule; the message names the field or the byte */
    ERR_NOT_FOUND = -2,   /* no such file, tensor, adapter */
    ERR_IO = -3,          /* the system refused: message carries strerror */
    ERR_NOMEM = -4,       /* does not fit in memory or in a budget */
    ERR_FULL = -5,        /* a queue or pool has no room now; try later */
    ERR_UNSUPPORTED = -6, /* well-formed, but tandem does not do this */
    ERR_LOST = -7,        /* the device has a permanent error: only a new process can use it */
};

struct err {
    int code;
    char msg[480]; /* one sentence, no trailing newline */
};

/* Fills *e (which may be NULL) and returns `code`, so that callers write `return err_set(e, ERR_IO, ...)`. */
__attribute__((format(printf, 3, 4))) int err_set(struct err *e, int code, const char *fmt, ...);

/* Puts "prefix: " before the message already in *e; returns e->code. */
__attribute__((format(printf, 2, 3))) int err_prefix(struct err *e, const char *fmt, ...);

#endif
