#include "engine/model/adapter_match.h"

#include "engine/base/buf.h"
#include "engine/base/mem.h"
#include "engine/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

/* Limits for hostile configurations, far above those of any real one. */
enum { TEXT_MAX = 8192, RULES_MAX = 16384, REGEXES_MAX = 256, MATCH_LIMIT = 100000, HEAP_LIMIT_KB = 4096 };

static bool plain(const char *s)
{
    return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") == strlen(s);
}

int rule_open(struct rule *r, const char *text, enum rule_kind kind, const char *key, struct err *e)
{
    *r = (struct rule){.text = text, .kind = kind};
    if (strlen(text) > TEXT_MAX) return err_set(e, ERR_INVALID, "%s: a pattern of more than %d bytes", key, TEXT_MAX);
    if (plain(text)) return 0;
    struct buf b = {0};
    buf_printf(&b, kind == RULE_TAIL ? "(?:.*\\.)?(?:%s)" : "%s", text);
    int code;
    PCRE2_SIZE where;
    pcre2_compile_context *c = pcre2_compile_context_create(regex_memory());
    pcre2_set_parens_nest_limit(c, 100);
    r->code =
        pcre2_compile((PCRE2_SPTR)b.data, b.len, PCRE2_UTF | PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &where, c);
    pcre2_compile_context_free(c);
    buf_free(&b);
    if (!r->code) {
        char why[160] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return err_set(e, ERR_INVALID, "%s: \"%.60s\" is no regular expression: %s", key, text, why);
    }
    r->match = pcre2_match_data_create_from_pattern(r->code, regex_memory());
    return 0;
}

void rule_close(struct rule *r)
{
    pcre2_match_data_free(r->match);
    pcre2_code_free(r->code);
    *r = (struct rule){0};
}

/* dots match any character */
static bool plain_matches(const struct rule *r, const char *name)
{
    size_t n = strlen(r->text), len = strlen(name);
    if (n > len || (r->kind == RULE_WHOLE && n != len)) return false;
    const char *at = name + (len - n);
    for (size_t i = 0; i < n; i++)
        if (r->text[i] != '.' && r->text[i] != at[i]) return false;
    return at == name || at[-1] == '.';
}

int rule_matches(const struct rule *r, const char *name, struct err *e)
{
    if (!r->code) return plain_matches(r, name);
    pcre2_match_context *limits = pcre2_match_context_create(regex_memory());
    pcre2_set_match_limit(limits, MATCH_LIMIT);
    pcre2_set_heap_limit(limits, HEAP_LIMIT_KB);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)name, strlen(name), 0, 0, r->match, limits);
    pcre2_match_context_free(limits);
    if (rc >= 0) return 1;
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    return err_set(e, ERR_INVALID, "the pattern \"%.60s\" takes too long on %s", r->text, name);
}

int rule_table_open(struct rule_table *t, const cJSON *object, const char *key, struct err *e)
{
    *t = (struct rule_table){0};
    if (!object || cJSON_IsNull(object)) return 0;
    if (!cJSON_IsObject(object)) return err_set(e, ERR_INVALID, "%s must be an object", key);
    int n = cJSON_GetArraySize(object), regexes = 0, rc = 0;
    if (n > RULES_MAX) return err_set(e, ERR_INVALID, "%s has more than %d entries", key, RULES_MAX);
    t->rule = mem_array((size_t)n + 1, sizeof *t->rule);
    t->value = mem_array((size_t)n + 1, sizeof *t->value);
    for (const cJSON *v = object->child; v && !rc; v = v->next) {
        if (!cJSON_IsNumber(v)) {
            rc = err_set(e, ERR_INVALID, "%s: %.80s must be a number", key, v->string);
            break;
        }
        t->value[t->n] = v->valuedouble;
        rc = rule_open(&t->rule[t->n], v->string, RULE_TAIL, key, e);
        if (!rc && t->rule[t->n].code && ++regexes > REGEXES_MAX)
            rc = err_set(e, ERR_INVALID, "%s has more than %d regular expressions", key, REGEXES_MAX);
        t->n++;
    }
    if (rc) rule_table_close(t);
    return rc;
}

int rule_table_find(const struct rule_table *t, const char *name, double *value, struct err *e)
{
    for (int i = 0; i < t->n; i++) {
        int rc = rule_matches(&t->rule[i], name, e);
        if (rc < 0) return rc;
        if (!rc) continue;
        *value = t->value[i];
        return 0;
    }
    return 0;
}

void rule_table_close(struct rule_table *t)
{
    for (int i = 0; i < t->n; i++) rule_close(&t->rule[i]);
    free(t->rule);
    free(t->value);
    *t = (struct rule_table){0};
}

bool list_matches(const cJSON *list, const char *name, bool *exact)
{
    size_t len = strlen(name);
    *exact = false;
    for (const cJSON *v = list->child; v; v = v->next) {
        size_t n = strlen(v->valuestring);
        if (n > len || strcmp(name + (len - n), v->valuestring)) continue;
        *exact = n == len;
        if (*exact || name[len - n - 1] == '.') return true;
    }
    return false;
}
