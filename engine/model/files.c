#include "engine/model/files.h"

#include "engine/base/file.h"

#include <stdlib.h>
#include <unistd.h>

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
        char *in = file_join(from, names[i]), *out = file_join(to, names[i]), *data = NULL;
        size_t size = 0;
        if (access(in, F_OK) == 0) {
            rc = file_read(in, LIMIT, &data, &size, e);
            if (!rc) rc = file_write_sync(out, data, size, e);
        }
        free(data);
        free(in);
        free(out);
    }
    return rc;
}
