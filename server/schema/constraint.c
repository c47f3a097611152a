/* Reads constraints from requests and compiles them: see constraint.h; grammar_cache.c caches the results. */
#include "server/schema/constraint.h"

#include "server/json/json.h"
#include "server/schema/answer.h"
#include "server/schema/calls.h"
#include "server/schema/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* @return the field of that name (the last of duplicates); NULL when absent or null. */
static const cJSON *field(const cJSON *obj, const char *name)
{
    const cJSON *found = NULL;
    for (const cJSON *i = cJSON_IsObject(obj) ? obj->child : NULL; i; i = i->next)
        if (strcmp(i->string, name) == 0) found = i;
    return found && !cJSON_IsNull(found) ? found : NULL;
}

/* @return false always, so that a reader can end with `return wrong(...)`. */
__attribute__((format(printf, 2, 3))) static bool wrong(struct err *e, const char *fmt, ...)
{
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    err_set(e, ERR_INVALID, "%s", what);
    return false;
}

void constraint_request_free(struct constraint_request *request)
{
    buf_free(&request->text);
    buf_free(&request->before);
    buf_free(&request->after);
    *request = (struct constraint_request){0};
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static bool take_schema(struct constraint_request *request, const cJSON *schema, struct err *e)
{
    if (!cJSON_IsObject(schema) && !cJSON_IsBool(schema)) return wrong(e, "the schema must be an object");
    request->kind = CONSTRAINT_JSON_SCHEMA;
    json_put_value(&request->text, schema, ",", ":");
    if (request->text.len <= CONSTRAINT_TEXT_MAX) return true;
    return wrong(e, "the schema is longer than %d bytes", CONSTRAINT_TEXT_MAX);
}

/* Reads a schema, or a string that contains one as JSON. */
static bool take_schema_or_text(struct constraint_request *request, const cJSON *v, struct err *e)
{
    struct err inner = {0};
    if (!v) return wrong(e, "there is no schema");
    if (!cJSON_IsString(v)) return take_schema(request, v, e);
    cJSON *tree = json_parse_body(v->valuestring, strlen(v->valuestring), &inner);
    bool good = tree ? take_schema(request, tree, e) : wrong(e, "the schema: %.200s", inner.msg);
    json_free(tree);
    return good;
}

static bool take_regex(struct constraint_request *request, const cJSON *v, struct err *e)
{
    if (!cJSON_IsString(v)) return wrong(e, "the regular expression must be a string");
    if (strlen(v->valuestring) > CONSTRAINT_REGEX_MAX)
        return wrong(e, "the regular expression is longer than %d bytes", CONSTRAINT_REGEX_MAX);
    request->kind = CONSTRAINT_REGEX;
    buf_str(&request->text, v->valuestring);
    return true;
}

static bool take_choice(struct constraint_request *request, const cJSON *v, struct err *e)
{
    int n = 0;
    if (!cJSON_IsArray(v) || !v->child) return wrong(e, "the choice must be a list of strings");
    for (const cJSON *i = v->child; i; i = i->next, n++)
        if (!cJSON_IsString(i)) return wrong(e, "the choice must be a list of strings");
    if (n > CONSTRAINT_CHOICE_MAX) return wrong(e, "the choice has more than %d strings", CONSTRAINT_CHOICE_MAX);
    request->kind = CONSTRAINT_CHOICE;
    json_put_value(&request->text, v, ",", ":");
    if (request->text.len <= CONSTRAINT_TEXT_MAX) return true;
    return wrong(e, "the choice is longer than %d bytes", CONSTRAINT_TEXT_MAX);
}

static bool take_json_schema(struct constraint_request *request, const cJSON *v, struct err *e)
{
    if (!cJSON_IsObject(v)) return wrong(e, "expected an object with the field `schema`");
    const cJSON *schema = field(v, "schema");
    return schema ? take_schema_or_text(request, schema, e) : wrong(e, "the field `schema` is missing");
}

/* Reads the forms common to TGI's grammar and the response formats. */
static bool take_typed(struct constraint_request *request, const char *type, const cJSON *value, struct err *e)
{
    if (strcmp(type, "json_object") == 0 && !value) {
        request->kind = CONSTRAINT_JSON_OBJECT;
        return true;
    }
    if (strcmp(type, "json") == 0 || strcmp(type, "json_object") == 0) return take_schema_or_text(request, value, e);
    if (strcmp(type, "json_schema") == 0) return take_json_schema(request, value, e);
    if (strcmp(type, "regex") == 0) return take_regex(request, value, e);
    return wrong(e, "the type %.40s is not supported", type);
}

bool constraint_read_tgi(struct constraint_request *request, const cJSON *grammar, struct err *e)
{
    if (!grammar || cJSON_IsNull(grammar)) return true;
    const cJSON *type = field(grammar, "type");
    request->field = "grammar";
    if (!cJSON_IsString(type)) return wrong(e, "expected an object with the fields `type` and `value`");
    return take_typed(request, type->valuestring, field(grammar, "value"), e);
}

static bool read_response_format(struct constraint_request *request, const cJSON *v, struct err *e)
{
    const cJSON *type = field(v, "type");
    if (!cJSON_IsString(type)) return wrong(e, "expected an object with the field `type`");
    if (strcmp(type->valuestring, "text") == 0) return true;
    const char *name = strcmp(type->valuestring, "json_schema") == 0 ? "json_schema" : "value";
    const cJSON *value = field(v, name);
    if (!value && name[0] == 'v') value = field(v, "schema");
    if (take_typed(request, type->valuestring, value, e)) return true;
    if (name[0] == 'j') err_prefix(e, "json_schema");
    return false;
}

static bool read_structured(struct constraint_request *request, const cJSON *v, struct err *e)
{
    static const char *const refused[] = {"grammar", "structural_tag", "whitespace_pattern",
                                          "disable_additional_properties"};
    static const char *const ways[] = {"json", "regex", "choice", "json_object"};
    const cJSON *given = NULL;
    if (!cJSON_IsObject(v)) return wrong(e, "expected an object");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const cJSON *item = field(v, refused[i]);
        if (item && !cJSON_IsFalse(item)) return wrong(e, "`%s` is not supported", refused[i]);
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const cJSON *item = field(v, ways[i]);
        if (!item || (i == 3 && cJSON_IsFalse(item))) continue;
        if (given) return wrong(e, "exactly one of `json`, `regex`, `choice` and `json_object` is allowed");
        given = item;
    }
    if (!given) return wrong(e, "one of `json`, `regex`, `choice` and `json_object` is needed");
    if (given == field(v, "json")) return take_schema_or_text(request, given, e);
    if (given == field(v, "regex")) return take_regex(request, given, e);
    if (given == field(v, "choice")) return take_choice(request, given, e);
    if (!cJSON_IsTrue(given)) return wrong(e, "`json_object` must be true or false");
    request->kind = CONSTRAINT_JSON_OBJECT;
    return true;
}

static bool refuse_field(struct constraint_request *request, const cJSON *v, struct err *e)
{
    (void)request, (void)v;
    return wrong(e, "not supported");
}

bool constraint_read_openai(struct constraint_request *request, const cJSON *top, struct err *e)
{
    static const struct {
        const char *name;
        bool (*read)(struct constraint_request *, const cJSON *, struct err *);
    } rows[] = {
        {"response_format", read_response_format},
        {"structured_outputs", read_structured},
        {"guided_json", take_schema_or_text},
        {"guided_regex", take_regex},
        {"guided_choice", take_choice},
        {"guided_grammar", refuse_field},
        {"guided_whitespace_pattern", refuse_field},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const cJSON *v = field(top, rows[i].name);
        enum constraint_kind before = request->kind;
        struct constraint_request one = {.field = rows[i].name};
        if (!v) continue;
        bool good = rows[i].read(&one, v, e);
        if (good && before && one.kind) good = wrong(e, "the form of the output is asked for twice");
        if (good && one.kind) {
            constraint_request_free(request);
            *request = one;
            continue;
        }
        constraint_request_free(&one);
        if (good) continue;
        err_prefix(e, "%s", rows[i].name);
        return false;
    }
    return true;
}

bool constraint_set_schema(struct constraint_request *request, const char *name, const char *before,
                           const cJSON *schema, const char *after, struct err *e)
{
    constraint_request_free(request);
    request->field = name;
    if (before) buf_str(&request->before, before);
    if (after) buf_str(&request->after, after);
    return take_schema(request, schema, e);
}

void constraint_set_lead(struct constraint_request *request, const char *text)
{
    buf_clear(&request->before);
    for (; *text; text++) buf_char(&request->before, *text == CALLS_SPECIAL ? (char)GRAM_SPECIAL : *text);
}

bool constraint_set_calls(struct constraint_request *request, const char *name, const cJSON *calls, struct err *e)
{
    constraint_request_free(request);
    request->field = name;
    if (!take_schema(request, calls, e)) return false;
    request->kind = field(calls, "free") ? CONSTRAINT_MAY_CALL : CONSTRAINT_CALLS;
    return true;
}

/* ---- compiling ------------------------------------------------------------------------------------------------- */

static struct grammar *build_json(const struct constraint_request *request, struct err *e)
{
    struct jpool *p = jpool_new();
    struct grammar *g = NULL;
    cJSON *schema = NULL;
    jx root = JX_NONE;
    if (request->kind == CONSTRAINT_JSON_OBJECT) {
        root = json_any_object(p);
    } else {
        schema = json_parse(request->text.data, request->text.len, e);
        bool calls = request->kind == CONSTRAINT_CALLS || request->kind == CONSTRAINT_MAY_CALL;
        if (schema) root = calls ? calls_expression(p, schema) : json_schema(p, schema);
        if (schema && request->kind == CONSTRAINT_MAY_CALL) root = answer_expression(p, field(schema, "free"), root);
    }
    if (schema || request->kind == CONSTRAINT_JSON_OBJECT) {
        jx before = jx_bytes(p, request->before.data, request->before.len),
           after = jx_bytes(p, request->after.data, request->after.len);
        g = jexpr_grammar(p, jx_seq3(p, before, root, after), e);
    }
    json_free(schema);
    jpool_free(p);
    return g;
}

static gexpr choice(struct grammar_builder *b, const cJSON *list)
{
    gexpr out = -1;
    gexpr v[CONSTRAINT_CHOICE_MAX];
    size_t n = 0;
    for (const cJSON *i = list->child; i && n < CONSTRAINT_CHOICE_MAX; i = i->next)
        v[n++] = gram_bytes(b, i->valuestring, strlen(i->valuestring));
    if (n) out = gram_alt(b, v, n);
    return out;
}

static struct grammar *build_text(const struct constraint_request *request, struct err *e)
{
    struct grammar_builder *b = grammar_builder_new();
    struct grammar *g = NULL;
    cJSON *list = NULL;
    gexpr root = -1;
    if (request->kind == CONSTRAINT_REGEX)
        root = gram_regex(b, request->text.data ? request->text.data : "", request->text.len);
    else if ((list = json_parse(request->text.data, request->text.len, e)))
        root = choice(b, list);
    if (request->kind == CONSTRAINT_REGEX || list) {
        gexpr parts[3] = {gram_bytes(b, request->before.data ? request->before.data : "", request->before.len), root,
                          gram_bytes(b, request->after.data ? request->after.data : "", request->after.len)};
        bool bare = !request->before.len && !request->after.len;
        g = grammar_build(b, bare ? root : gram_seq(b, parts, 3), e);
    }
    json_free(list);
    grammar_builder_free(b);
    return g;
}

struct grammar *constraint_build(const struct constraint_request *request, struct err *e)
{
    bool text = request->kind == CONSTRAINT_REGEX || request->kind == CONSTRAINT_CHOICE;
    return text ? build_text(request, e) : build_json(request, e);
}
