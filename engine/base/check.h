/* CHECK aborts on a state that no input can cause: it states what the code relies on and stays on in release builds.
 * Untrusted bytes never reach one; they get an error value (base/err.h). */
#ifndef TANDEM_BASE_CHECK_H
#define TANDEM_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) check_failed(__FILE__, __LINE__, __func__, #cond);                           \
    } while (0)

/* Says so on stderr, keeps the line for the crash report, and aborts.  Any thread. */
_Noreturn void check_failed(const char *file, int line, const char *func, const char *cond);
/* What check_failed said, or ""; fixed memory, for the crash report (base/crash.h). */
const char *check_message(void);

#endif
