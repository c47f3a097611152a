/* CHECK aborts on a state that no input can cause.  It states an invariant and stays enabled in release builds.  Errors
 * in untrusted input are reported as error values instead (base/err.h). */
#ifndef TANDEM_BASE_CHECK_H
#define TANDEM_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) check_failed(__FILE__, __LINE__, __func__, #cond);                           \
    } while (0)

/* Writes the message to stderr, keeps it for the crash report, and aborts.  Any thread. */
_Noreturn void check_failed(const char *file, int line, const char *func, const char *cond);
/* The message of check_failed, or ""; fixed memory, for the crash report (base/crash.h). */
const char *check_message(void);

#endif
