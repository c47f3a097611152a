#include "server/cli/hyperparameters.h"

#include "server/jobs/train_aliases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64 };

/* --learning-rate=1e-4 -> learning_rate; false: not a hyperparameter's flag.  *value: after '=', or NULL. */
static bool flag_name(const char *word, char name[NAME_BYTES], const char **value, bool *is_bool)
{
    if (strncmp(word, "--", 2)) return false;
    size_t n = strcspn(word + 2, "=");
    if (n == 0 || n >= NAME_BYTES) return false;
    for (size_t i = 0; i < n; i++) name[i] = word[2 + i] == '-' ? '_' : word[2 + i];
    name[n] = 0;
    *value = word[2 + n] ? word + 3 + n : NULL;
    return train_hyperparameter_known(name, is_bool);
}

/* Converts a flag's text to JSON: a comma-separated list of modules to an array, a number to a number, the rest to a
 * string. */
static cJSON *json_value(const char *name, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (strcmp(name, "target_modules") == 0 && strchr(text, ',')) {
        cJSON *list = cJSON_CreateArray();
        for (const char *p = text; *p;) {
            char one[NAME_BYTES];
            size_t n = strcspn(p, ",");
            snprintf(one, sizeof one, "%.*s", (int)n, p);
            if (*one) cJSON_AddItemToArray(list, cJSON_CreateString(one));
            p += n + (p[n] == ',');
        }
        return list;
    }
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) return cJSON_CreateBool(*text == 't');
    if (*text && !*end) return strlen(text) > 15 ? cJSON_CreateRaw(text) : cJSON_CreateNumber(v);
    return cJSON_CreateString(text);
}

cJSON *hyperparameters_take(int *argc, char **argv, struct err *e)
{
    cJSON *out = cJSON_CreateObject();
    int kept = 0;
    for (int i = 0; i < *argc; i++) {
        char name[NAME_BYTES];
        const char *value;
        bool is_bool;
        if (!flag_name(argv[i], name, &value, &is_bool)) {
            argv[kept++] = argv[i];
            continue;
        }
        bool has_next = i + 1 < *argc && strncmp(argv[i + 1], "--", 2);
        bool next_is_bool = has_next && (strcmp(argv[i + 1], "true") == 0 || strcmp(argv[i + 1], "false") == 0);
        if (!value && is_bool && !next_is_bool) value = "true";
        if (!value && has_next) value = argv[++i];
        if (!value) {
            err_set(e, ERR_INVALID, "%s wants a value", argv[i]);
            cJSON_Delete(out);
            return NULL;
        }
        cJSON_DeleteItemFromObjectCaseSensitive(out, name);
        cJSON_AddItemToObject(out, name, json_value(name, value));
    }
    *argc = kept;
    char *text = cJSON_PrintUnformatted(out); /* parsed again like a request, so that integers keep all digits */
    cJSON_Delete(out);
    out = text ? json_parse(text, strlen(text), e) : NULL;
    cJSON_free(text);
    return out;
}

/* Those of the method, with its defaults; without those that `besides` has. */
static void print_help(enum train_method method, enum train_method besides)
{
    struct train_params p;
    struct buf b = {0}, other = {0};
    char name[NAME_BYTES + 4];
    train_params_default(&p, besides);
    train_params_put(&other, &p);
    train_params_default(&p, method);
    train_params_put(&b, &p);
    char *at = b.data;
    for (char *q = at; *q; q++) { /* {"a":1,"b":2}: no value contains a comma */
        if (*q == '{' || *q == '"' || *q == '}') continue;
        if (*q == '_') {
            *at++ = '-';
            continue;
        }
        *at++ = *q;
    }
    *at = 0;
    for (char *save, *one = strtok_r(b.data, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        char *colon = strchr(one, ':');
        if (!colon) continue;
        *colon = 0;
        snprintf(name, sizeof name, "\"%s\":", one);
        for (char *c = name; *c; c++) *c = *c == '-' ? '_' : *c;
        if (method == besides || !strstr(other.data, name)) printf("  --%-26s %s\n", one, colon + 1);
    }
    buf_free(&b);
    buf_free(&other);
}

void hyperparameters_help(void)
{
    printf("\nHyperparameters, as in POST /train, with their defaults for lora\n");
    print_help(TRAIN_LORA, TRAIN_LORA);
    printf("\nFor grpo only\n");
    print_help(TRAIN_GRPO, TRAIN_LORA);
}
