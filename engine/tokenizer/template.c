/* Reading the post-processor (template.h). */
#include "engine/tokenizer/template.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MAX = 64 }; /* tokens on one side */

void template_free(struct template *z)
{
    free(z->before);
    free(z->after);
    *z = (struct template){0};
}

struct ids {
    int32_t v[TEMPLATE_MAX];
    size_t n;
};

/* The ids of special_tokens[name]. */
static int special_read(const struct json_at *at, const char *name, const struct json_at *piece, struct ids *out,
                        struct err *e)
{
    struct json_at tokens = json_member(at, "special_tokens");
    struct json_at token = json_member(&tokens, name);
    if (!token.v) return json_fail(piece, e, ERR_INVALID, "\"%.60s\" is not among special_tokens", name);
    struct json_at ids = json_member(&token, "ids");
    const cJSON *v;
    size_t n;
    int rc = json_array(&ids, &v, &n, e);
    for (int i = 0; v && !rc; v = v->next, i++) {
        struct json_at id = json_element(&ids, v, i);
        if (out->n == TEMPLATE_MAX) return json_fail(&id, e, ERR_UNSUPPORTED, "more than %d tokens", TEMPLATE_MAX);
        rc = json_integer(&id, TOKEN_ID_MAX, &out->v[out->n], e);
        out->n++;
    }
    return rc;
}

/* Puts more ids on the outer side of those already there: a later processor wraps what earlier ones made. */
static void ids_wrap(int32_t **v, size_t *n, const struct ids *more, bool in_front)
{
    *v = mem_resize(*v, *n + more->n, sizeof **v);
    size_t at = *n;
    if (in_front) {
        memmove(*v + more->n, *v, *n * sizeof **v);
        at = 0;
    }
    memcpy(*v + at, more->v, more->n * sizeof **v);
    *n += more->n;
}

static int processing_read(struct template *z, const struct json_at *at, struct err *e)
{
    struct json_at single = json_member(at, "single");
    const cJSON *v;
    size_t n;
    int rc = json_array(&single, &v, &n, e);
    struct ids before = {.n = 0}, after = {.n = 0};
    int sequences = 0;
    for (int i = 0; v && !rc; v = v->next, i++) {
        struct json_at piece = json_element(&single, v, i);
        struct json_at sequence = json_member(&piece, "Sequence");
        struct json_at special = json_member(&piece, "SpecialToken");
        const char *name;
        if (!sequence.v == !special.v) return json_fail(&piece, e, ERR_INVALID, "must be a Sequence or a SpecialToken");
        if ((rc = json_string(sequence.v ? &sequence : &special, "id", &name, e))) return rc;
        if (!sequence.v)
            rc = special_read(at, name, &piece, sequences ? &after : &before, e);
        else if (strcmp(name, "A") || sequences++)
            return json_fail(&piece, e, ERR_UNSUPPORTED, "a template of one text must hold sequence A once");
    }
    if (rc) return rc;
    if (!sequences) return json_fail(&single, e, ERR_UNSUPPORTED, "a template of one text must hold sequence A once");
    ids_wrap(&z->before, &z->n_before, &before, true);
    ids_wrap(&z->after, &z->n_after, &after, false);
    return 0;
}

static int read_any(void *arg, const struct json_at *at, struct err *e)
{
    return template_read(arg, at, e);
}

int template_read(struct template *z, const struct json_at *at, struct err *e)
{
    if (!at->v) return 0;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "TemplateProcessing")) return processing_read(z, at, e);
    if (!strcmp(type, "ByteLevel")) {
        bool prefix, trim;
        rc = json_bool_or(at, "trim_offsets", true, &trim, e);
        if (!rc) rc = json_bool_or(at, "add_prefix_space", true, &prefix, e);
        if (!rc && trim) z->trim = true, z->trim_prefix = prefix;
        return rc;
    }
    if (strcmp(type, "Sequence"))
        return json_fail(at, e, ERR_UNSUPPORTED, "post-processor \"%.40s\" is not known", type);
    return json_each(at, "processors", read_any, z, e);
}
