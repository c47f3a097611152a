/* Typed reading of tokenizer.json (json.h). */
#include "engine/tokenizer/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct json_at json_member(const struct json_at *at, const char *key)
{
    struct json_at m = {.depth = at->depth};
    m.v = cJSON_IsObject(at->v) ? cJSON_GetObjectItemCaseSensitive(at->v, key) : NULL;
    if (cJSON_IsNull(m.v)) m.v = NULL;
    snprintf(m.place, sizeof m.place, "%.*s%s%s", JSON_PLACE_MAX - 40, at->place, *at->place ? "." : "", key);
    return m;
}

struct json_at json_element(const struct json_at *at, const cJSON *v, int index)
{
    struct json_at m = {.v = v, .depth = at->depth};
    snprintf(m.place, sizeof m.place, "%.*s[%d]", JSON_PLACE_MAX - 16, at->place, index);
    return m;
}

int json_fail(const struct json_at *at, struct err *e, int code, const char *fmt, ...)
{
    char why[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return err_set(e, code, "%s: %s", *at->place ? at->place : "top level", why);
}

int json_bool_or(const struct json_at *at, const char *key, bool otherwise, bool *out, struct err *e)
{
    struct json_at m = json_member(at, key);
    *out = otherwise;
    if (!m.v) return 0;
    if (!cJSON_IsBool(m.v)) return json_fail(&m, e, ERR_INVALID, "must be true or false");
    *out = cJSON_IsTrue(m.v);
    return 0;
}

int json_string_or(const struct json_at *at, const char *key, const char *otherwise, const char **out, struct err *e)
{
    struct json_at m = json_member(at, key);
    *out = otherwise;
    if (!m.v) return 0;
    if (!cJSON_IsString(m.v)) return json_fail(&m, e, ERR_INVALID, "must be a string");
    *out = m.v->valuestring;
    return 0;
}

int json_string(const struct json_at *at, const char *key, const char **out, struct err *e)
{
    int rc = json_string_or(at, key, NULL, out, e);
    if (rc || *out) return rc;
    struct json_at m = json_member(at, key);
    return json_fail(&m, e, ERR_INVALID, "missing");
}

int json_integer(const struct json_at *at, int32_t max, int32_t *out, struct err *e)
{
    if (!cJSON_IsNumber(at->v)) return json_fail(at, e, ERR_INVALID, "must be an integer");
    double d = at->v->valuedouble;
    if (!(d >= 0 && d <= max) || d != floor(d))
        return json_fail(at, e, ERR_INVALID, "must be an integer in 0..%d", max);
    *out = (int32_t)d;
    return 0;
}

int json_array(const struct json_at *at, const cJSON **first, size_t *n, struct err *e)
{
    *first = NULL;
    *n = 0;
    if (!at->v) return json_fail(at, e, ERR_INVALID, "missing");
    if (!cJSON_IsArray(at->v)) return json_fail(at, e, ERR_INVALID, "must be an array");
    *first = at->v->child;
    for (const cJSON *v = *first; v; v = v->next) ++*n;
    return 0;
}

int json_type(const struct json_at *at, const char **out, struct err *e)
{
    if (!cJSON_IsObject(at->v)) return json_fail(at, e, ERR_INVALID, "must be an object");
    return json_string(at, "type", out, e);
}

int json_each(const struct json_at *at, const char *key, int (*read)(void *, const struct json_at *, struct err *),
              void *arg, struct err *e)
{
    struct json_at list = json_member(at, key);
    const cJSON *v;
    size_t n;
    int rc = json_array(&list, &v, &n, e);
    for (int i = 0; !rc && v; v = v->next, i++) {
        struct json_at step = json_element(&list, v, i);
        if (++step.depth > JSON_NESTED_MAX) return json_fail(&step, e, ERR_INVALID, "nested too deep");
        rc = read(arg, &step, e);
    }
    return rc;
}
