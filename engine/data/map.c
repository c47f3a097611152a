#include "engine/data/map.h"

#include <string.h>

static const char *const fields[] = {
    "text",     "prompt",        "completion",   "instruction",    "input",      "output",       "system",   "history",
    "tools",    "conversations", "conversation", "input_ids",      "labels",     "logprobs",     "messages", "chosen",
    "rejected", "label",         "prompt_ids",   "completion_ids", "chosen_ids", "rejected_ids", NULL};

static bool is_field(const char *name)
{
    for (int i = 0; fields[i]; i++)
        if (strcmp(name, fields[i]) == 0) return true;
    return false;
}

int dataset_map_check(const struct dataset_field *map, int n, struct err *e)
{
    if (n > DATASET_MAP_MAX) return err_set(e, ERR_INVALID, "more than %d fields", DATASET_MAP_MAX);
    for (int i = 0; i < n; i++) {
        if (!is_field(map[i].to))
            return err_set(
                e, ERR_INVALID,
                "%.60s is not a field of a row: these are text, prompt, completion, instruction, input, output, "
                "system, history, messages, tools, conversations, input_ids, labels, logprobs, chosen, rejected, "
                "label, "
                "prompt_ids, completion_ids, chosen_ids, rejected_ids",
                map[i].to);
        if (!*map[i].from) return err_set(e, ERR_INVALID, "%s: its name in the data is empty", map[i].to);
        for (int k = 0; k < i; k++)
            if (strcmp(map[k].to, map[i].to) == 0) return err_set(e, ERR_INVALID, "%s occurs twice", map[i].to);
    }
    return 0;
}

void map_row(cJSON *row, const struct dataset_options *o)
{
    cJSON *found[DATASET_MAP_MAX];
    if (!cJSON_IsObject(row)) return;
    /* all are looked up before any is renamed: names may be exchanged; and one may stand for several */
    for (int i = 0; i < o->n_map; i++) {
        found[i] = cJSON_GetObjectItemCaseSensitive(row, o->map[i].from);
        if (found[i]) found[i] = cJSON_Duplicate(found[i], true);
    }
    for (int i = 0; i < o->n_map; i++)
        if (found[i]) cJSON_DeleteItemFromObjectCaseSensitive(row, o->map[i].from);
    for (int i = 0; i < o->n_map; i++) {
        if (!found[i]) continue;
        while (cJSON_GetObjectItemCaseSensitive(row, o->map[i].to))
            cJSON_DeleteItemFromObjectCaseSensitive(row, o->map[i].to);
        cJSON_AddItemToObject(row, o->map[i].to, found[i]);
    }
}

void map_hash(struct sha256 *h, const struct dataset_options *o)
{
    for (int i = 0; i < o->n_map; i++) {
        sha256_add(h, o->map[i].to, strlen(o->map[i].to) + 1);
        sha256_add(h, o->map[i].from, strlen(o->map[i].from) + 1);
    }
}
