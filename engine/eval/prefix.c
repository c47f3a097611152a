#include "engine/eval/prefix.h"

#include "engine/data/json.h"
#include "engine/files/model_file.h"

#include <stdlib.h>

enum { FILE_MAX = 64 << 20 };

/* The id of a special token: in the file a string, or an object with "content".  @return -1: the file has none. */
static int32_t find_named(const char *model, const char *file, const char *name, const struct tokenizer *tk)
{
    char *text = NULL;
    size_t n = 0;
    cJSON *tree = model_file_read(model, file, FILE_MAX, &text, &n, NULL) == 0 ? row_parse(text, n, NULL) : NULL;
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(tree, name);
    if (cJSON_IsObject(token)) token = cJSON_GetObjectItemCaseSensitive(token, "content");
    const char *spelling = cJSON_GetStringValue(token);
    int32_t id = spelling ? tokenizer_find(tk, spelling) : -1;
    cJSON_Delete(tree);
    free(text);
    return id;
}

int32_t evaluation_prefix(const char *model, const struct engine *engine)
{
    static const char *const names[] = {"bos_token", "eos_token"};
    static const char *const files[] = {"tokenizer_config.json", "special_tokens_map.json"};
    const struct tokenizer *tk = engine_tokenizer(engine);
    const struct engine_info *info = engine_info(engine);
    const int32_t *before;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++) {
            int32_t id = find_named(model, files[k], names[i], tk);
            if (id >= 0 && id < info->vocab) return id;
        }
    if (tokenizer_before(tk, &before)) return before[0];
    return info->n_eos ? info->eos[0] : -1;
}
