/* CHECK aborts on a state that no input can cause: it states what the code relies on and stays on in release builds.
 * Untrusted bytes never reach one; they get an error value (base/err.h). */
#ifndef TANDEM_BASE_CHECK_H
#define TANDEM_BASE_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (__builtin_expect(!(cond), 0)) {                                                                            \
            fprintf(stderr, "tandem: %s:%d: %s: impossible state: %s\n", __FILE__, __LINE__, __func__, #cond);         \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#endif
