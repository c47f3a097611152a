#include "engine/model/files.h"

#include "engine/base/file.h"
#include "engine/files/model_file.h"

#include <stdlib.h>

int model_files_copy(const char *from, const char *to, bool config, struct err *e)
{
    enum { LIMIT = 256 << 20 };
    static const char *const names[] = {"config.json",         "generation_config.json",
                                        "tokenizer.json",      "tokenizer_config.json",
                                        "tokenizer.model",     "special_tokens_map.json",
                                        "added_tokens.json",   "vocab.json",
                                        "vocab.txt",           "merges.txt",
                                        "chat_template.jinja", "chat_template.json"};
    int rc = 0;
    for (size_t i = config ? 0 : 1; i < sizeof names / sizeof *names && !rc; i++) {
        char *out = file_join(to, names[i]), *data = NULL;
        size_t size = 0;
        struct err why = {0};
        rc = model_file_read(from, names[i], LIMIT, &data, &size, &why);
        if (rc == ERR_NOT_FOUND)
            rc = 0;
        else if (rc)
            err_set(e, rc, "%s", why.msg);
        else
            rc = file_write_sync(out, data, size, e);
        free(data);
        free(out);
    }
    return rc;
}
