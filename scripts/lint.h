/* What scripts/lint tells clang's analyzer, which sees one file at a time, of functions of other files.  Included
 * before every file there and nowhere else. */
#ifndef TANDEM_SCRIPTS_LINT_H
#define TANDEM_SCRIPTS_LINT_H

#include "engine/base/err.h"

#if __has_include(<cjson/cJSON.h>)
#include <cjson/cJSON.h>
#endif

#define LINT_IF(cond)                                                                                                  \
    if (!(cond)) __builtin_unreachable()

/* These return a code that is an error's: err_set the one it is given. */
#define err_set(e, code, ...)                                                                                          \
    ({                                                                                                                 \
        (void)err_set(e, code, __VA_ARGS__);                                                                           \
        int lint_code = (code);                                                                                        \
        LINT_IF(lint_code < 0);                                                                                        \
        lint_code;                                                                                                     \
    })
#define err_prefix(e, ...)                                                                                             \
    ({                                                                                                                 \
        int lint_code = err_prefix(e, __VA_ARGS__);                                                                    \
        LINT_IF(lint_code < 0);                                                                                        \
        lint_code;                                                                                                     \
    })

/* These are false for NULL. */
#define LINT_IS(is, item)                                                                                              \
    ({                                                                                                                 \
        const void *lint_item = (item);                                                                                \
        int lint_is = is(lint_item);                                                                                   \
        LINT_IF(!lint_is || lint_item);                                                                                \
        lint_is;                                                                                                       \
    })
#define cJSON_IsArray(item) LINT_IS(cJSON_IsArray, item)
#define cJSON_IsNumber(item) LINT_IS(cJSON_IsNumber, item)
#define cJSON_IsObject(item) LINT_IS(cJSON_IsObject, item)
#define cJSON_IsString(item) LINT_IS(cJSON_IsString, item)

#endif
