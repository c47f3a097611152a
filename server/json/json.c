/* Reads requests and writes answers as JSON (json.h).  No state; any thread.
 *
 * Numbers that a double cannot represent keep their literals (json_literal.h), so the getters below are exact. */
#include "server/json/json.h"

#include "engine/base/json_literal.h"
#include "engine/base/mem.h"
#include "server/json/check.h"
#include "server/memory/reservation.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of bytes reserved for a tree is stored in its root, in a field that cJSON uses for numbers only; a root
 * that is a number has no reservation. */
size_t json_reserved(const cJSON *root)
{
    return !root || cJSON_IsNumber(root) ? 0 : (size_t)root->valuedouble;
}

void json_free(cJSON *root)
{
    struct reservation r = {json_reserved(root)};
    cJSON_Delete(root);
    reservation_free(&r);
}

/* Builds cJSON's tree of a valid text; numbers that must keep their literals need a copy of the text. */
static cJSON *build(const char *text, size_t n, const struct json_size *size, struct err *e)
{
    struct buf wrapped = {0};
    cJSON *tree = NULL;
    if (!size->wrapped)
        tree = cJSON_ParseWithLengthOpts(text, n, NULL, 0);
    else if (buf_try_room(&wrapped, n + 3 * size->wrapped) && json_check(text, n, &wrapped, e) == ERR_OK)
        tree = cJSON_ParseWithLengthOpts(wrapped.data, wrapped.len, NULL, 0);
    buf_free(&wrapped);
    json_literal_restore(tree);
    if (!tree) err_set(e, ERR_FULL, "no memory for JSON of %zu bytes", n);
    return tree;
}

cJSON *json_parse(const char *text, size_t n, struct err *e)
{
    struct json_size size;
    return json_measure(text, n, SIZE_MAX, &size, e) ? NULL : build(text, n, &size, e);
}

cJSON *json_parse_body(const char *text, size_t n, struct err *e)
{
    struct json_size size;
    struct reservation tree = {0}, copy = {0};
    cJSON *root = NULL;
    if (json_measure(text, n, reservation_tree_limit(), &size, e)) return NULL;
    if (!reserve(&tree, json_size_memory(&size), "the body's JSON", e)) return NULL;
    size_t extra = size.wrapped ? 2 * (n + 3 * size.wrapped) : 0; /* a buffer that doubles */
    if (reserve(&copy, extra, "the body's JSON", e)) root = build(text, n, &size, e);
    reservation_free(&copy);
    if (root && !cJSON_IsNumber(root))
        root->valuedouble = (double)tree.bytes;
    else
        reservation_free(&tree);
    return root;
}

/* ---- getters --------------------------------------------------------------------------------------------------- */

/* @return the last field of that name; NULL when absent, null, or an earlier getter has failed. */
static const cJSON *find_field(const struct json_at *at, const char *name)
{
    if (at->e->code != ERR_OK) return NULL;
    const cJSON *found = NULL;
    const cJSON *child = at->obj ? at->obj->child : NULL;
    for (; child; child = child->next) {
        if (child->string && strcmp(child->string, name) == 0) found = child;
    }
    return found && !cJSON_IsNull(found) ? found : NULL;
}

__attribute__((format(printf, 3, 4))) static bool field_wrong(struct json_at *at, const char *name, const char *fmt,
                                                              ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    const char *path = at->path ? at->path : "";
    err_set(at->e, ERR_INVALID, "%s%s%s: %s", path, *path ? "." : "", name, what);
    return false;
}

/* The exact value of a literal that is mathematically whole: 1.0 and 1e2 are, 1.5 is not.  False if it is not whole or
 * its magnitude exceeds 64 bits. */
static bool literal_whole(const char *literal, bool *negative, uint64_t *magnitude)
{
    char digits[JSON_MAX_NUMBER + 1];
    size_t n = 0;
    long point = 0; /* number of digits before the decimal point */
    const char *p = literal;
    bool behind = false;
    *negative = *p == '-';
    for (p += *negative; (*p >= '0' && *p <= '9') || *p == '.'; p++) {
        if (*p == '.') {
            behind = true;
            continue;
        }
        if (n == sizeof digits) return false;
        digits[n++] = *p;
        point += !behind;
    }
    while (n && digits[n - 1] == '0') n--;
    *magnitude = 0;
    if (n == 0) return true;
    if (*p) {
        long exponent = strtol(p + 1, NULL, 10); /* saturates, and is then out of range below */
        if (exponent > 2000 || exponent < -2000) return false;
        point += exponent;
    }
    if (point < (long)n) return false;
    for (long i = 0; i < point; i++) {
        uint64_t digit = i < (long)n ? (uint64_t)(digits[i] - '0') : 0;
        if (__builtin_mul_overflow(*magnitude, 10u, magnitude)) return false;
        if (__builtin_add_overflow(*magnitude, digit, magnitude)) return false;
    }
    return true;
}

static bool number_whole(const cJSON *item, bool *negative, uint64_t *magnitude)
{
    if (item->valuestring) return literal_whole(item->valuestring, negative, magnitude);
    /* A literal of at most 15 characters: the double is exact. */
    double v = item->valuedouble;
    *negative = v < 0;
    v = fabs(v);
    if (v != floor(v) || v >= 18446744073709551616.0) return false;
    *magnitude = (uint64_t)v;
    return true;
}

bool json_get_bool(struct json_at *at, const char *name, bool *out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsBool(item)) return field_wrong(at, name, "expected true or false");
    *out = cJSON_IsTrue(item);
    return true;
}

bool json_get_int(struct json_at *at, const char *name, int64_t min, int64_t max, int64_t *out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsNumber(item)) return field_wrong(at, name, "expected a whole number");
    bool negative;
    uint64_t magnitude;
    double v = item->valuedouble;
    if (!number_whole(item, &negative, &magnitude)) {
        if (v == floor(v))
            return field_wrong(at, name, "must be between %lld and %lld", (long long)min, (long long)max);
        return field_wrong(at, name, "expected a whole number");
    }
    bool fits = magnitude <= (uint64_t)INT64_MAX + negative;
    int64_t whole = !fits ? 0 : negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    if (!fits || whole < min || whole > max) {
        return field_wrong(at, name, "must be between %lld and %lld", (long long)min, (long long)max);
    }
    *out = whole;
    return true;
}

bool json_get_u64(struct json_at *at, const char *name, uint64_t *out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    bool negative;
    uint64_t magnitude;
    if (!cJSON_IsNumber(item) || !number_whole(item, &negative, &magnitude) || (negative && magnitude)) {
        return field_wrong(at, name, "expected a whole number between 0 and 18446744073709551615");
    }
    *out = magnitude;
    return true;
}

bool json_get_number(struct json_at *at, const char *name, double *out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsNumber(item)) return field_wrong(at, name, "expected a number");
    *out = item->valuedouble;
    return true;
}

bool json_get_string(struct json_at *at, const char *name, const char **out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsString(item)) return field_wrong(at, name, "expected a string");
    *out = item->valuestring;
    return true;
}

bool json_get_object(struct json_at *at, const char *name, const cJSON **out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsObject(item)) return field_wrong(at, name, "expected an object");
    *out = item;
    return true;
}

bool json_get_array(struct json_at *at, const char *name, const cJSON **out)
{
    const cJSON *item = find_field(at, name);
    if (!item) return false;
    if (!cJSON_IsArray(item)) return field_wrong(at, name, "expected an array");
    *out = item;
    return true;
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

struct member {
    const cJSON *item;
    size_t order;
};

static int by_name(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    int rc = strcmp(x->item->string, y->item->string);
    return rc ? rc : x->order < y->order ? -1 : x->order > y->order;
}

/* @return the object's members sorted by name, the last of duplicates; owned by the caller. */
static struct member *sort_members(const cJSON *object, size_t *n)
{
    size_t all = (size_t)cJSON_GetArraySize(object), k = 0;
    struct member *v = mem_array(all + 1, sizeof *v);
    for (const cJSON *i = object->child; i; i = i->next, k++) v[k] = (struct member){i, k};
    if (all) qsort(v, all, sizeof *v, by_name);
    *n = 0;
    for (k = 0; k < all; k++)
        if (k + 1 == all || strcmp(v[k].item->string, v[k + 1].item->string) != 0) v[(*n)++] = v[k];
    return v;
}

static bool objects_equal(const cJSON *a, const cJSON *b)
{
    size_t n, m;
    struct member *v = sort_members(a, &n), *w = sort_members(b, &m);
    bool same = n == m;
    for (size_t i = 0; i < n && same; i++) same = strcmp(v[i].item->string, w[i].item->string) == 0;
    for (size_t i = 0; i < n && same; i++)
        same = json_equal(v[i].item, w[i].item); /* as deep as json_check let it be */
    free(v);
    free(w);
    return same;
}

static bool numbers_equal(const cJSON *a, const cJSON *b)
{
    bool below[2];
    uint64_t size[2];
    if (a->valuedouble != b->valuedouble) return false;
    if (!number_whole(a, &below[0], &size[0]) || !number_whole(b, &below[1], &size[1])) return true;
    return size[0] == size[1] && (below[0] == below[1] || size[0] == 0);
}

bool json_equal(const cJSON *a, const cJSON *b)
{
    if (a == b) return true;
    if ((a->type & 0xff) != (b->type & 0xff)) return false;
    if (cJSON_IsString(a)) return strcmp(a->valuestring, b->valuestring) == 0;
    if (cJSON_IsNumber(a)) return numbers_equal(a, b);
    if (cJSON_IsObject(a)) return objects_equal(a, b);
    const cJSON *i = a->child, *k = b->child;
    for (; i && k && json_equal(i, k); i = i->next) k = k->next;
    return !i && !k;
}

long json_weight(const cJSON *v)
{
    long n = 1;
    if (v->valuestring) n += (long)(strlen(v->valuestring) / 16);
    for (const cJSON *i = v->child; i; i = i->next)
        n += json_weight(i) + (i->string ? (long)(strlen(i->string) / 16) : 0);
    return n;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void put_escaped(struct buf *b, unsigned char ch)
{
    static const char names[32] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    if (ch == '"' || ch == '\\') {
        buf_printf(b, "\\%c", ch);
    } else if (names[ch]) {
        buf_printf(b, "\\%c", names[ch]);
    } else {
        buf_printf(b, "\\u%04x", ch);
    }
}

void json_put_string(struct buf *b, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    buf_char(b, '"');
    size_t plain = 0; /* p[plain, i) needs no escaping and is not written yet */
    for (size_t i = 0; i < n;) {
        int len = utf8_length(p + i, n - i);
        if (len > 1 || (len == 1 && p[i] >= 0x20 && p[i] != '"' && p[i] != '\\')) {
            i += (size_t)len;
            continue;
        }
        buf_append(b, p + plain, i - plain);
        if (len == 0) {
            buf_str(b, "\xef\xbf\xbd");
        } else {
            put_escaped(b, p[i]);
        }
        plain = ++i;
    }
    buf_append(b, p + plain, n - plain);
    buf_char(b, '"');
}

void json_put_number(struct buf *b, double v)
{
    if (!isfinite(v)) {
        buf_str(b, "null");
        return;
    }
    if (v == floor(v) && fabs(v) < 1e15) {
        buf_printf(b, signbit(v) ? "-%.0f" : "%.0f", fabs(v)); /* 100000, not 1e+05 */
        return;
    }
    /* Most numbers in answers were floats, for which 0.1f is "0.1", not "0.10000000149011612". */
    bool is_float = fabs(v) <= 3.4028234663852886e38 && (double)(float)v == v;
    char text[40];
    /* %g drops trailing zeros, so numbers with fewer digits are short, too */
    for (int digits = is_float ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        double back = strtod(text, NULL);
        if (is_float ? (float)back == (float)v : back == v) break;
    }
    buf_str(b, text);
}

/* A number without its literal had at most 15 characters, no exponent and no empty fraction: %.15g reproduces it. */
static void put_literal(struct buf *b, const cJSON *v)
{
    if (cJSON_IsNumber(v) && v->valuestring)
        buf_str(b, v->valuestring);
    else if (cJSON_IsNumber(v))
        buf_printf(b, "%.15g", v->valuedouble);
    else
        buf_str(b, cJSON_IsTrue(v) ? "true" : cJSON_IsFalse(v) ? "false" : "null");
}

void json_put_value(struct buf *b, const cJSON *v, const char *comma, const char *colon)
{
    bool object = cJSON_IsObject(v);
    if (cJSON_IsString(v)) json_put_string(b, v->valuestring, strlen(v->valuestring));
    if (cJSON_IsString(v)) return;
    if (!object && !cJSON_IsArray(v)) {
        put_literal(b, v);
        return;
    }
    buf_char(b, object ? '{' : '[');
    for (const cJSON *i = v->child; i; i = i->next) {
        if (i != v->child) buf_str(b, comma);
        if (object) {
            json_put_string(b, i->string, strlen(i->string));
            buf_str(b, colon);
        }
        json_put_value(b, i, comma, colon); /* as deep as json_check let it be */
    }
    buf_char(b, object ? '}' : ']');
}
