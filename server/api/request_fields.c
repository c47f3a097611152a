#include "server/api/request_fields.h"

#include "engine/base/clock.h"
#include "engine/base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MAX_BIAS = 1024, MAX_MEMBERS = 1000, TIMEOUT_MS_MAX = 24 * 60 * 60 * 1000 };

/* ---- one field ------------------------------------------------------------------------------------------------- */

bool fields_few(const cJSON *obj, struct err *e)
{
    if (!cJSON_IsObject(obj) || cJSON_GetArraySize(obj) <= MAX_MEMBERS) return true;
    err_set(e, ERR_INVALID, "an object of more than %d members", MAX_MEMBERS);
    return false;
}

/* After a getter: attributes a new error to this field. */
static bool settle(struct request_fields *f, const char *name)
{
    if (!f->e->code) return true;
    if (!f->param) f->param = name;
    return false;
}

bool fields_bool(struct request_fields *f, const char *name, bool *out)
{
    json_get_bool(&f->at, name, out);
    return settle(f, name);
}

bool fields_string(struct request_fields *f, const char *name, const char **out)
{
    json_get_string(&f->at, name, out);
    return settle(f, name);
}

bool fields_object(struct request_fields *f, const char *name, const cJSON **out)
{
    json_get_object(&f->at, name, out);
    return settle(f, name);
}

bool fields_int(struct request_fields *f, const char *name, int64_t min, int64_t max, int64_t *out, bool *given)
{
    bool there = json_get_int(&f->at, name, min, max, out);
    if (given) *given = there;
    return settle(f, name);
}

bool fields_u64(struct request_fields *f, const char *name, uint64_t *out, bool *given)
{
    *given = json_get_u64(&f->at, name, out);
    return settle(f, name);
}

bool fields_float(struct request_fields *f, const char *name, float *out, bool *given)
{
    double v;
    bool there = json_get_number(&f->at, name, &v);
    if (given) *given = there;
    if (!there) return settle(f, name);
    *out = (float)v;
    if (!isfinite(*out)) return fields_refuse(f, name, "`%s` is too large", name);
    return true;
}

const cJSON *fields_find(const struct request_fields *f, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = f->at.obj ? f->at.obj->child : NULL; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

bool fields_refuse(struct request_fields *f, const char *param, const char *fmt, ...)
{
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    err_set(f->e, ERR_INVALID, "%s", msg);
    f->param = param;
    return false;
}

struct field_path fields_path(const struct request_fields *f, const char *name)
{
    struct field_path p;
    const char *lead = f->at.path ? f->at.path : "";
    snprintf(p.text, sizeof p.text, "%s%s%s", lead, *lead ? "." : "", name);
    return p;
}

/* ---- sampling -------------------------------------------------------------------------------------------------- */

float fields_clamp(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

bool fields_penalties(struct request_fields *f, struct sampling_params *s)
{
    bool given;
    if (!fields_float(f, "repetition_penalty", &s->repetition, &given)) return false;
    if (given && !(s->repetition > 0))
        return fields_refuse(f, "repetition_penalty", "`repetition_penalty` must be strictly positive");
    /* the engine's range; beyond it the scaled logits overflow a float, and the result no longer changes */
    s->repetition = fields_clamp(s->repetition, 1e-3f, 1e3f);
    if (!fields_float(f, "frequency_penalty", &s->frequency, NULL)) return false;
    if (!(s->frequency >= -2 && s->frequency <= 2))
        return fields_refuse(f, "frequency_penalty", "`frequency_penalty` must be >= -2.0 and <= 2.0");
    if (!fields_float(f, "presence_penalty", &s->presence, NULL)) return false;
    if (!(s->presence >= -2 && s->presence <= 2))
        return fields_refuse(f, "presence_penalty", "`presence_penalty` must be >= -2.0 and <= 2.0");
    return true;
}

bool fields_bias(struct request_fields *f, struct gen_request *r, struct logit_bias **owned)
{
    const char *name = "logit_bias";
    const cJSON *map = NULL;
    if (!fields_object(f, name, &map)) return false;
    if (!map) return true;
    int n = cJSON_GetArraySize(map);
    if (n > MAX_BIAS) return fields_refuse(f, name, "`logit_bias` supports up to %d tokens. Given: %d", MAX_BIAS, n);
    struct logit_bias *v = *owned = mem_array((size_t)n, sizeof *v);
    r->sampling.bias = v;
    for (const cJSON *item = map->child; item; item = item->next) {
        char *end;
        long id = strtol(item->string, &end, 10);
        if (*item->string < '0' || *item->string > '9' || *end || id >= f->vocab)
            return fields_refuse(f, name, "%s: \"%.40s\" is not a token id from 0 to %d", fields_path(f, name).text,
                                 item->string, f->vocab - 1);
        if (!cJSON_IsNumber(item) || !(fabs(item->valuedouble) <= 100))
            return fields_refuse(f, name, "%s.%ld: expected a number from -100 to 100", fields_path(f, name).text, id);
        v[r->sampling.n_bias++] = (struct logit_bias){(int32_t)id, (float)item->valuedouble};
    }
    return true;
}

/* ---- how the text ends ----------------------------------------------------------------------------------------- */

static bool add_stop(struct request_fields *f, const cJSON *item, const char *name, int i, struct gen_request *r,
                     const char **texts)
{
    if (!cJSON_IsString(item)) return fields_refuse(f, name, "%s[%d]: expected a string", fields_path(f, name).text, i);
    size_t n = strlen(item->valuestring);
    if (n < 1 || n > ENGINE_STOP_BYTES)
        return fields_refuse(f, name, "`%s` texts must have 1 to %d bytes. Given: %zu", name, ENGINE_STOP_BYTES, n);
    texts[r->n_stop++] = item->valuestring;
    return true;
}

bool fields_stop(struct request_fields *f, const char *name, int max, struct gen_request *r, const char **texts)
{
    const cJSON *item = fields_find(f, name);
    if (f->e->code) return false;
    if (!item) return true;
    r->stop = texts;
    int n = cJSON_IsArray(item) ? cJSON_GetArraySize(item) : 1, i = 0;
    if (n > max && (cJSON_IsArray(item) || cJSON_IsString(item)))
        return fields_refuse(f, name, "`%s` supports up to %d stop sequences. Given: %d", name, max, n);
    if (cJSON_IsString(item)) return add_stop(f, item, name, 0, r, texts);
    if (!cJSON_IsArray(item)) return fields_refuse(f, name, "%s: expected an array", fields_path(f, name).text);
    for (item = item->child; item; item = item->next)
        if (!add_stop(f, item, name, i++, r, texts)) return false;
    return true;
}

bool fields_is_token(const struct request_fields *f, const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble < f->vocab &&
           item->valuedouble == floor(item->valuedouble);
}

bool fields_stop_ids(struct request_fields *f, struct gen_request *r, int32_t *ids)
{
    const char *name = "stop_token_ids";
    const cJSON *list = NULL;
    json_get_array(&f->at, name, &list);
    if (!settle(f, name)) return false;
    if (!list) return true;
    r->stop_ids = ids;
    int n = cJSON_GetArraySize(list), i = 0;
    if (n > ENGINE_STOP_MAX)
        return fields_refuse(f, name, "`stop_token_ids` supports up to %d ids. Given: %d", ENGINE_STOP_MAX, n);
    for (const cJSON *item = list->child; item; item = item->next, i++) {
        if (!fields_is_token(f, item))
            return fields_refuse(f, name, "%s[%d]: expected a token id from 0 to %d", fields_path(f, name).text, i,
                                 f->vocab - 1);
        ids[r->n_stop_ids++] = (int32_t)item->valuedouble;
    }
    return true;
}

bool fields_extras(struct request_fields *f, struct gen_request *r)
{
    int64_t priority = r->priority;
    if (!fields_bool(f, "ignore_eos", &r->ignore_eos)) return false;
    if (!fields_int(f, "priority", INT32_MIN, INT32_MAX, &priority, NULL)) return false;
    r->priority = (int)priority;
    if (!fields_string(f, "cache_salt", &r->cache_salt)) return false;
    size_t n = r->cache_salt ? strlen(r->cache_salt) : 1;
    if (n < 1 || n > ENGINE_SALT_BYTES)
        return fields_refuse(f, "cache_salt", "`cache_salt` must have 1 to %d bytes. Given: %zu", ENGINE_SALT_BYTES, n);
    return true;
}

bool fields_timeout(struct request_fields *f, int64_t *out)
{
    return fields_int(f, "timeout_ms", 1, TIMEOUT_MS_MAX, out, NULL);
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

bool text_may_fit(size_t bytes, int max_total_tokens, size_t longest_token)
{
    return bytes <= (size_t)max_total_tokens * longest_token;
}

uint64_t seed_random(void)
{
    uint64_t v = 0;
    if (getrandom(&v, sizeof v, GRND_NONBLOCK) != sizeof v) v = clock_now() * 0x9e3779b97f4a7c15u;
    return v >> 11;
}

uint64_t seed_derive(uint64_t base, int i)
{
    uint64_t z = base + (uint64_t)i * 0x9e3779b97f4a7c15u;
    if (i == 0) return base;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) >> 11;
}
