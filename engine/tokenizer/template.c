/* Reading the post-processor (template.h).
 *
 * Processors of a Sequence apply one behind the other: where a template says "the text", there is all that the ones
 * before it made. */
#include "engine/tokenizer/template.h"

#include "engine/base/mem.h"
#include "engine/tokenizer/vocab.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MAX = 128, TYPE_MAX = 255 }; /* items of one list */

void template_free(struct template *z)
{
    free(z->single.v);
    free(z->pair.v);
    free(z->before);
    free(z->after);
    *z = (struct template){0};
}

struct items {
    struct template_item v[TEMPLATE_MAX];
    size_t n;
};

static int item_add(struct items *to, int32_t id, int32_t type, const struct json_at *at, struct err *e)
{
    if (to->n == TEMPLATE_MAX) return json_fail(at, e, ERR_UNSUPPORTED, "more than %d tokens", TEMPLATE_MAX);
    to->v[to->n++] = (struct template_item){id, (unsigned char)type};
    return 0;
}

/* The ids of special_tokens[name]. */
static int special_read(const struct json_at *at, const char *name, int32_t type, const struct json_at *piece,
                        struct items *out, struct err *e)
{
    struct json_at tokens = json_member(at, "special_tokens");
    struct json_at token = json_member(&tokens, name);
    if (!token.v) return json_fail(piece, e, ERR_INVALID, "\"%.60s\" is not among special_tokens", name);
    struct json_at ids = json_member(&token, "ids");
    const cJSON *v;
    size_t n;
    int rc = json_array(&ids, &v, &n, e);
    for (int i = 0; v && !rc; v = v->next, i++) {
        struct json_at place = json_element(&ids, v, i);
        int32_t id;
        rc = json_integer(&place, TOKEN_ID_MAX, &id, e);
        if (!rc) rc = item_add(out, id, type, &place, e);
    }
    return rc;
}

/* Replaces *list by `items`, in which the old list stands for the text. */
static void list_wrap(struct template_list *list, const struct items *items)
{
    struct template_list now = {.v = mem_array(items->n + list->n, sizeof *now.v)};
    for (size_t i = 0; i < items->n; i++) {
        struct template_item item = items->v[i];
        bool nested = item.id == TEMPLATE_TEXT && list->n;
        for (size_t k = 0; k < (nested ? list->n : 1); k++) {
            if (nested) item.id = list->v[k].id;
            now.n_added += item.id >= 0;
            now.v[now.n++] = item;
        }
    }
    free(list->v);
    *list = now;
}

static int piece_read(const struct json_at *at, const struct json_at *piece, struct items *out, struct err *e)
{
    struct json_at sequence = json_member(piece, "Sequence"), special = json_member(piece, "SpecialToken");
    if (!sequence.v == !special.v) return json_fail(piece, e, ERR_INVALID, "must be a Sequence or a SpecialToken");
    const struct json_at *what = sequence.v ? &sequence : &special;
    struct json_at type_at = json_member(what, "type_id");
    int32_t type = 0;
    const char *name;
    int rc = json_string(what, "id", &name, e);
    if (!rc && type_at.v) rc = json_integer(&type_at, TYPE_MAX, &type, e);
    if (rc) return rc;
    if (!sequence.v) return special_read(at, name, type, piece, out, e);
    if (strcmp(name, "A") && strcmp(name, "B"))
        return json_fail(piece, e, ERR_INVALID, "\"%.40s\": a sequence is A or B", name);
    return item_add(out, *name == 'A' ? TEMPLATE_TEXT : TEMPLATE_PAIR, type, piece, e);
}

/* The list at `key`; how often each text is in it. */
static int list_read(const struct json_at *at, const char *key, struct items *out, int times[2], struct err *e)
{
    struct json_at list = json_member(at, key);
    const cJSON *v;
    size_t n;
    int rc = json_array(&list, &v, &n, e);
    for (int i = 0; v && !rc; v = v->next, i++) {
        struct json_at piece = json_element(&list, v, i);
        rc = piece_read(at, &piece, out, e);
    }
    for (size_t i = 0; i < out->n && !rc; i++)
        if (out->v[i].id < 0) times[out->v[i].id == TEMPLATE_PAIR]++;
    return rc;
}

static void templates_set(struct template *z, const struct items *single, const struct items *pair)
{
    bool nested = z->single.n > 0;
    list_wrap(&z->single, single);
    free(z->pair.v);
    z->pair = (struct template_list){0};
    /* the reference has no meaning for a pair in a template within a template */
    if (pair->n && !nested) list_wrap(&z->pair, pair);
}

static int processing_read(struct template *z, const struct json_at *at, struct err *e)
{
    struct items single = {.n = 0}, pair = {.n = 0};
    struct json_at single_at = json_member(at, "single"), pair_at = json_member(at, "pair");
    int times[2] = {0}, both[2] = {0};
    int rc = list_read(at, "single", &single, times, e);
    if (!rc && (times[0] != 1 || times[1]))
        return json_fail(&single_at, e, ERR_UNSUPPORTED, "a template of one text must hold sequence A once");
    if (!rc && pair_at.v) rc = list_read(at, "pair", &pair, both, e);
    if (!rc && pair.n && (both[0] != 1 || both[1] != 1))
        return json_fail(&pair_at, e, ERR_UNSUPPORTED, "a template of two texts must hold sequences A and B once");
    if (!rc) templates_set(z, &single, &pair);
    return rc;
}

/* ["[CLS]", 101] */
static int named_id_read(const struct json_at *at, const char *key, int32_t *id, struct err *e)
{
    struct json_at m = json_member(at, key);
    const cJSON *name = cJSON_IsArray(m.v) ? m.v->child : NULL, *v = name ? name->next : NULL;
    if (!cJSON_IsString(name) || !v || v->next) return json_fail(&m, e, ERR_INVALID, "must be [\"token\", id]");
    struct json_at place = json_element(&m, v, 1);
    return json_integer(&place, TOKEN_ID_MAX, id, e);
}

/* BertProcessing: [CLS] A [SEP] B [SEP].  RobertaProcessing: <s> A </s></s> B </s>, and all types are 0. */
static int pair_processing_read(struct template *z, const struct json_at *at, bool roberta, struct err *e)
{
    int32_t sep = 0, cls = 0;
    int rc = named_id_read(at, "sep", &sep, e);
    if (!rc) rc = named_id_read(at, "cls", &cls, e);
    if (rc) return rc;
    struct items single = {.v = {{cls, 0}, {TEMPLATE_TEXT, 0}, {sep, 0}}, .n = 3}, pair = single;
    unsigned char type = roberta ? 0 : 1;
    if (roberta) pair.v[pair.n++] = (struct template_item){sep, type};
    pair.v[pair.n++] = (struct template_item){TEMPLATE_PAIR, type};
    pair.v[pair.n++] = (struct template_item){sep, type};
    templates_set(z, &single, &pair);
    return 0;
}

static int trim_read(struct template *z, const struct json_at *at, struct err *e)
{
    bool prefix, trim;
    int rc = json_bool_or(at, "trim_offsets", true, &trim, e);
    if (!rc) rc = json_bool_or(at, "add_prefix_space", true, &prefix, e);
    if (!rc && trim) z->trim = true, z->trim_prefix = prefix;
    return rc;
}

static int processor_read(void *arg, const struct json_at *at, struct err *e)
{
    struct template *z = arg;
    const char *type;
    int rc = json_type(at, &type, e);
    if (rc) return rc;
    if (!strcmp(type, "TemplateProcessing")) return processing_read(z, at, e);
    if (!strcmp(type, "ByteLevel")) return trim_read(z, at, e);
    if (!strcmp(type, "BertProcessing")) return pair_processing_read(z, at, false, e);
    if (!strcmp(type, "RobertaProcessing")) {
        rc = trim_read(z, at, e);
        return rc ? rc : pair_processing_read(z, at, true, e);
    }
    if (strcmp(type, "Sequence"))
        return json_fail(at, e, ERR_UNSUPPORTED, "post-processor \"%.40s\" is not known", type);
    return json_each(at, "processors", processor_read, z, e);
}

/* Without a template, texts follow each other. */
static void templates_complete(struct template *z)
{
    static const struct items single = {.v = {{TEMPLATE_TEXT, 0}}, .n = 1};
    static const struct items pair = {.v = {{TEMPLATE_TEXT, 0}, {TEMPLATE_PAIR, 1}}, .n = 2};
    if (!z->single.n) templates_set(z, &single, &pair);
    z->before = mem_array(z->single.n, sizeof *z->before);
    z->after = mem_array(z->single.n, sizeof *z->after);
    bool behind = false;
    for (size_t i = 0; i < z->single.n; i++) {
        int32_t id = z->single.v[i].id;
        if (id == TEMPLATE_TEXT)
            behind = true;
        else if (behind)
            z->after[z->n_after++] = id;
        else
            z->before[z->n_before++] = id;
    }
}

int template_read(struct template *z, const struct json_at *at, struct err *e)
{
    int rc = at->v ? processor_read(z, at, e) : 0;
    if (!rc) templates_complete(z);
    return rc;
}
