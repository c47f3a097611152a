#include "server/rewards/check.h"

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "server/json/names.h"
#include "server/rewards/url.h"
#include "server/schema/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    PATTERN_MAX = 4096, /* bytes */
    TEXT_MAX = 16 << 10,
    FIELD_MAX = 200,
    TOKENS_MAX = 1 << 20,
    MATCH_LIMIT = 1000 * 1000,
    DEPTH_LIMIT = 100 * 1000,
    HEAP_LIMIT_KIB = 16 << 10,
};

const char *const check_names[CHECK_KINDS] = {"contains",    "exact",  "regex", "json",
                                              "json_schema", "length", "url",   "model"};

static bool wrong(struct json_at *at, const char *name, const char *what)
{
    err_set(at->e, ERR_INVALID, "%s%s%s: %.300s", at->path, *name ? "." : "", name, what);
    return false;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* A text of 1 to `most` bytes, copied; NULL: there is none, or *at->e. */
static char *read_text(struct json_at *at, const char *name, size_t most)
{
    const char *text;
    char why[60];
    if (!json_get_string(at, name, &text)) return NULL;
    snprintf(why, sizeof why, "must have from 1 to %zu bytes", most);
    if (!*text || strlen(text) > most) return wrong(at, name, why), NULL;
    return mem_strdup(text);
}

/* "text" or "field". */
static bool read_sought(struct json_at *at, struct check *c)
{
    c->text = read_text(at, "text", TEXT_MAX);
    c->field = read_text(at, "field", FIELD_MAX);
    json_get_bool(at, "ignore_case", &c->ignore_case);
    if (at->e->code) return false;
    return !c->text != !c->field || wrong(at, "", "needs one of `text`, `field` (of the row)");
}

static bool read_regex(struct json_at *at, struct check *c)
{
    int code;
    PCRE2_SIZE where;
    PCRE2_UCHAR why[160];
    char text[240];
    char *pattern = read_text(at, "pattern", PATTERN_MAX);
    if (!pattern) return at->e->code == 0 && wrong(at, "pattern", "is missing");
    c->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &where, NULL);
    free(pattern);
    if (!c->code) {
        pcre2_get_error_message(code, why, sizeof why);
        snprintf(text, sizeof text, "at byte %zu: %s", (size_t)where, (const char *)why);
        return wrong(at, "pattern", text);
    }
    pcre2_jit_compile(c->code, PCRE2_JIT_COMPLETE); /* without it is slower, that is all */
    c->found = pcre2_match_data_create(1, NULL);
    c->limits = pcre2_match_context_create(NULL);
    if (!c->found || !c->limits) return wrong(at, "pattern", "no memory for it");
    pcre2_set_match_limit(c->limits, MATCH_LIMIT);
    pcre2_set_depth_limit(c->limits, DEPTH_LIMIT);
    pcre2_set_heap_limit(c->limits, HEAP_LIMIT_KIB);
    return true;
}

static bool read_schema(struct json_at *at, struct check *c)
{
    const cJSON *schema;
    struct err why = {0};
    if (!json_get_object(at, "schema", &schema)) return at->e->code == 0 && wrong(at, "schema", "is missing");
    struct jpool *pool = jpool_new();
    c->grammar = jexpr_grammar(pool, json_schema(pool, schema), &why);
    jpool_free(pool);
    return c->grammar || wrong(at, "schema", why.msg);
}

static bool read_length(struct json_at *at, struct check *c)
{
    c->least = 0;
    c->most = TOKENS_MAX;
    bool least = json_get_int(at, "min", 0, TOKENS_MAX, &c->least);
    bool most = json_get_int(at, "max", 0, TOKENS_MAX, &c->most);
    c->falloff = most && c->most > c->least ? c->most - c->least : 1;
    json_get_int(at, "falloff", 1, TOKENS_MAX, &c->falloff);
    if (at->e->code) return false;
    if (!least && !most) return wrong(at, "", "needs `min`, `max` or both, in tokens");
    return c->least <= c->most || wrong(at, "max", "must be at least `min`");
}

static bool read_model(struct json_at *at, struct check *c)
{
    c->model = read_text(at, "model", FIELD_MAX);
    if (c->model || at->e->code) return c->model != NULL;
    return wrong(at, "model", "is missing: the name of an adapter of method reward");
}

static bool read_kind(struct json_at *at, struct check *c)
{
    const char *type;
    char text[120] = "must be one of";
    if (!json_get_string(at, "type", &type)) return at->e->code == 0 && wrong(at, "type", "is missing");
    for (int i = 0; i < CHECK_KINDS; i++) {
        if (strcmp(type, check_names[i]) == 0) return c->kind = (enum check_kind)i, true;
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s %s", i ? "," : "", check_names[i]);
    }
    return wrong(at, "type", text);
}

bool check_read(struct json_at *at, struct check *c)
{
    static const char *const names[CHECK_KINDS][8] = {
        [CHECK_CONTAINS] = {"type", "weight", "text", "field", "ignore_case"},
        [CHECK_EXACT] = {"type", "weight", "text", "field", "ignore_case"},
        [CHECK_REGEX] = {"type", "weight", "pattern"},
        [CHECK_JSON] = {"type", "weight"},
        [CHECK_SCHEMA] = {"type", "weight", "schema"},
        [CHECK_LENGTH] = {"type", "weight", "min", "max", "falloff"},
        [CHECK_URL] = {"type", "weight", "url", "timeout_s", "retries", "key_env"},
        [CHECK_MODEL] = {"type", "weight", "model"},
    };
    int n = 0;
    snprintf(c->path, sizeof c->path, "%s", at->path);
    if (!read_kind(at, c)) return false;
    while (n < 8 && names[c->kind][n]) n++;
    if (!json_only(at, names[c->kind], n)) return false;
    c->weight = 1;
    json_get_number(at, "weight", &c->weight);
    if (at->e->code) return false;
    if (!(c->weight >= -1000 && c->weight <= 1000)) return wrong(at, "weight", "must be from -1000 to 1000");
    switch (c->kind) {
    case CHECK_CONTAINS:
    case CHECK_EXACT: return read_sought(at, c);
    case CHECK_REGEX: return read_regex(at, c);
    case CHECK_SCHEMA: return read_schema(at, c);
    case CHECK_LENGTH: return read_length(at, c);
    case CHECK_URL: return (c->url = reward_url_read(at)) != NULL;
    case CHECK_MODEL: return read_model(at, c);
    default: return true;
    }
}

void check_free(struct check *c)
{
    free(c->text);
    free(c->field);
    free(c->model);
    pcre2_code_free(c->code);
    pcre2_match_data_free(c->found);
    pcre2_match_context_free(c->limits);
    reward_url_free(c->url);
    grammar_unref(c->grammar);
    *c = (struct check){0};
}

/* ---- scoring ----------------------------------------------------------------------------------------------------- */

/* A row's field as text; numbers and the like as the row has them.  Owned; NULL and *e. */
static char *field_text(const struct check *c, const cJSON *row, struct err *e)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, c->field);
    if (cJSON_IsString(v)) return mem_strdup(v->valuestring);
    struct buf text = {0};
    if (v && !cJSON_IsNull(v))
        json_put_value(&text, v, ",", ":");
    else
        err_set(e, ERR_INVALID, "%s.field: a row has no field `%.60s`", c->path, c->field);
    return text.data;
}

static size_t trimmed(const char **text, size_t n)
{
    static const char space[] = " \t\r\n\f\v";
    while (n && strchr(space, (*text)[n - 1])) n--;
    while (n && strchr(space, **text)) ++*text, n--;
    return n;
}

static bool equal(const struct check *c, const char *a, size_t n, const char *b, size_t m)
{
    n = trimmed(&a, n);
    m = trimmed(&b, m);
    return n == m && (c->ignore_case ? strncasecmp(a, b, n) == 0 : memcmp(a, b, n) == 0);
}

static double seek(const struct check *c, const struct reward_text *t, const cJSON *row, struct err *e)
{
    char *own = c->text ? NULL : field_text(c, row, e);
    const char *sought = c->text ? c->text : own;
    bool found = false;
    if (sought && c->kind == CHECK_EXACT)
        found = equal(c, t->text, t->n, sought, strlen(sought));
    else if (sought)
        found = c->ignore_case ? strcasestr(t->text, sought) != NULL : strstr(t->text, sought) != NULL;
    free(own);
    return found;
}

/* A pattern that takes too long does not match. */
static double match(const struct check *c, const struct reward_text *t)
{
    int n = pcre2_match(c->code, (PCRE2_SPTR)t->text, t->n, 0, 0, c->found, c->limits);
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter has its own stack, up to HEAP_LIMIT_KIB */
        n = pcre2_match(c->code, (PCRE2_SPTR)t->text, t->n, 0, PCRE2_NO_JIT, c->found, c->limits);
    return n >= 0;
}

static double is_json(const struct reward_text *t)
{
    struct err why = {0};
    const char *text = t->text;
    size_t n = trimmed(&text, t->n);
    cJSON *tree = json_parse(text, n, &why);
    double good = tree != NULL;
    json_free(tree);
    return good;
}

static double fits(const struct check *c, const struct reward_text *t)
{
    const char *text = t->text;
    size_t n = trimmed(&text, t->n);
    return grammar_matches(c->grammar, text, n, NULL) == 1;
}

static double within(const struct check *c, int tokens)
{
    int64_t off = tokens < c->least ? c->least - tokens : tokens > c->most ? tokens - c->most : 0;
    return off >= c->falloff ? 0 : 1 - (double)off / (double)c->falloff;
}

double check_score(const struct check *c, const struct reward_text *t, const cJSON *row, struct err *e)
{
    switch (c->kind) {
    case CHECK_CONTAINS:
    case CHECK_EXACT: return seek(c, t, row, e);
    case CHECK_REGEX: return match(c, t);
    case CHECK_JSON: return is_json(t);
    case CHECK_SCHEMA: return fits(c, t);
    case CHECK_LENGTH: return within(c, t->tokens);
    default: return 0;
    }
}
