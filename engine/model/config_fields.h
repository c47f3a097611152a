/* What the files that read config.json share: typed fields of a JSON object, and limits.  A missing field, or name
 * NULL, leaves *out unchanged; a wrong value is the first error, after which nothing more is read. */
#ifndef TANDEM_ENGINE_MODEL_CONFIG_FIELDS_H
#define TANDEM_ENGINE_MODEL_CONFIG_FIELDS_H

#include "engine/model/config.h"

#include <cjson/cJSON.h>
#include <math.h>

/* Ranges that every real model is within; they ensure that two sizes multiplied fit in 64 bits and a dimension in 31.
 */
enum { MAX_WIDTH = 1 << 18, MAX_HEADS = 4096, MAX_HEAD_DIM = 1024, MAX_VOCAB = 1 << 24, MAX_POSITIONS = 1 << 24 };

struct fields {
    const cJSON *j;
    struct err *e;
    const char *file;
    int rc;
};

static inline const cJSON *get(const struct fields *f, const char *name)
{
    const cJSON *v = name ? cJSON_GetObjectItemCaseSensitive(f->j, name) : NULL;
    return v && !cJSON_IsNull(v) ? v : NULL;
}

static inline void get_int(struct fields *f, const char *name, int min, int max, int *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    double d = v->valuedouble;
    if (!cJSON_IsNumber(v) || !(d >= min && d <= max) || d != floor(d))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a whole number from %d to %d", f->file, name, min, max);
    else
        *out = (int)d;
}

static inline void get_real(struct fields *f, const char *name, double min, double max, double *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= min && v->valuedouble <= max))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a number from %g to %g", f->file, name, min, max);
    else
        *out = v->valuedouble;
}

static inline void get_bool(struct fields *f, const char *name, bool *out)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return;
    if (!cJSON_IsBool(v))
        f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be true or false", f->file, name);
    else
        *out = cJSON_IsTrue(v);
}

static inline const char *get_text(struct fields *f, const char *name)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return NULL;
    if (cJSON_IsString(v)) return v->valuestring;
    f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be a string", f->file, name);
    return NULL;
}

static inline void need(struct fields *f, const char *name)
{
    if (!f->rc && !get(f, name)) f->rc = err_set(f->e, ERR_INVALID, "%s: %s is missing", f->file, name);
}

/* A non-empty object of the file, or NULL. */
static inline const cJSON *object(struct fields *f, const char *name)
{
    const cJSON *v = get(f, name);
    if (!v || f->rc) return NULL;
    if (cJSON_IsObject(v)) return v->child ? v : NULL;
    f->rc = err_set(f->e, ERR_INVALID, "%s: %s must be an object", f->file, name);
    return NULL;
}

/* The rotary embeddings: config.n_ropes, rope, near_len; may raise max_len. */
void config_read_rope(struct fields *, struct model_config *);

#endif
