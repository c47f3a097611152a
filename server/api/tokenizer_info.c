/* GET /tokenizer_info: vLLM's description of the tokenizer, for clients that have no copy of it (lm-eval's remote
 * tokenizer).
 *
 * The fields are those of the model's tokenizer_config.json, special tokens as their texts; bos_token, eos_token and
 * pad_token are always present, and chat_template is the template in use.  Built once, while the model loads. */
#include "server/api/tokenizer_info.h"
#include "engine/base/log.h"
#include "engine/files/model_file.h"
#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/api/routes.h"
#include "server/api/served_model.h"
#include "server/config/settings.h"
#include "server/json/json.h"
#include "server/net/http.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 64 << 20 };

/* @return the object in the file, or an empty one. */
static cJSON *read_object(const char *dir, const char *name)
{
    struct err e = {0};
    char *text = NULL;
    size_t n;
    cJSON *tree = NULL;
    if (model_file_read(dir, name, FILE_MAX, &text, &n, &e) == 0) tree = json_parse(text, n, &e);
    if (tree && !cJSON_IsObject(tree)) {
        err_set(&e, ERR_INVALID, "not a JSON object");
        cJSON_Delete(tree);
        tree = NULL;
    }
    if (e.code && e.code != ERR_NOT_FOUND) log_warn("GET /tokenizer_info is without %s/%s: %s", dir, name, e.msg);
    free(text);
    return tree ? tree : cJSON_CreateObject();
}

/* Replaces added tokens, which are objects with a content, by that content.  Recursion is bounded by json_parse. */
static void flatten_tokens(cJSON *parent)
{
    cJSON *next;
    for (cJSON *i = parent->child; i; i = next) {
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(i, "content"));
        next = i->next;
        if (!cJSON_IsObject(i) || !text)
            flatten_tokens(i);
        else if (cJSON_IsArray(parent))
            cJSON_ReplaceItemViaPointer(parent, i, cJSON_CreateString(text));
        else
            cJSON_ReplaceItemInObjectCaseSensitive(parent, i->string, cJSON_CreateString(text));
    }
}

static void set_item(cJSON *object, const char *name, cJSON *item)
{
    cJSON_DeleteItemFromObjectCaseSensitive(object, name);
    cJSON_AddItemToObject(object, name, item);
}

/* Sets the token of that name: from tokenizer_config.json, else special_tokens_map.json, else the spelling of id; null
 * when there is none (id -1). */
static void set_token(cJSON *info, const cJSON *map, const char *name, const struct tokenizer *tk, int32_t id)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(info, name));
    if (!text) text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(map, name));
    if (!text && id >= 0) text = tokenizer_spelling(tk, id);
    set_item(info, name, text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

void tokenizer_info_load(const struct settings *set, struct served_model *m, struct engine *engine)
{
    const struct engine_info *i = engine_info(engine);
    const struct tokenizer *tk = engine_tokenizer(engine);
    cJSON *info = read_object(settings_model_dir(set), "tokenizer_config.json");
    cJSON *map = read_object(settings_model_dir(set), "special_tokens_map.json");
    size_t n;
    const char *source = chat_template_source(m->chat.template, &n);
    flatten_tokens(info);
    flatten_tokens(map);
    cJSON_DeleteItemFromObjectCaseSensitive(info, "vocab_file"); /* paths on the machine that saved it */
    cJSON_DeleteItemFromObjectCaseSensitive(info, "merges_file");
    set_token(info, map, "bos_token", tk, -1);
    set_token(info, map, "eos_token", tk, i->n_eos ? i->eos[0] : -1);
    set_token(info, map, "pad_token", tk, -1);
    if (!cJSON_IsString(cJSON_GetObjectItemCaseSensitive(info, "tokenizer_class")))
        set_item(info, "tokenizer_class", cJSON_CreateString("PreTrainedTokenizerFast"));
    set_item(info, "chat_template", source ? cJSON_CreateString(source) : cJSON_CreateNull());
    json_put_value(&m->tokenizer_info, info, ",", ":");
    cJSON_Delete(info);
    cJSON_Delete(map);
}

void api_tokenizer_info(struct http_req *req)
{
    if (admission_refuses(req, NULL)) return;
    const struct buf *out = &served_model_of(req)->tokenizer_info;
    http_reply(req, 200, "application/json", out->data, out->len);
}
