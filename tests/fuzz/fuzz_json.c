/* Fuzzes server/json/json.c and json/check.c.  What json_parse accepts must
 *   - be accepted by cJSON as it stands (ours is the stricter reader);
 *   - be the same after printing with our writer and parsing again;
 *   - be what json_scan accepts, byte by byte, but for numbers;
 *   - answer every getter with a value or an error that names the field, and 64-bit integers exactly.
 *   - have the string that json_find_string finds, if it has no escapes in its names.
 * And any bytes, written as a string, must come back (bad UTF-8 as U+FFFD). */
#include "engine/base/check.h"
#include "server/json/check.h"
#include "server/json/find.h"
#include "server/json/json.h"
#include "server/json/scan.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void print(struct buf *b, const cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        buf_char(b, cJSON_IsObject(item) ? '{' : '[');
        for (const cJSON *child = item->child; child; child = child->next) {
            if (child != item->child) buf_char(b, ',');
            if (cJSON_IsObject(item)) {
                json_put_string(b, child->string, strlen(child->string));
                buf_char(b, ':');
            }
            print(b, child);
        }
        buf_char(b, cJSON_IsObject(item) ? '}' : ']');
    } else if (cJSON_IsString(item)) {
        json_put_string(b, item->valuestring, strlen(item->valuestring));
    } else if (cJSON_IsNumber(item)) {
        if (item->valuestring) {
            buf_str(b, item->valuestring);
        } else {
            json_put_number(b, item->valuedouble);
        }
    } else {
        buf_str(b, cJSON_IsNull(item) ? "null" : cJSON_IsTrue(item) ? "true" : "false");
    }
}

static bool same(const cJSON *a, const cJSON *b)
{
    for (; a && b; a = a->next, b = b->next) {
        if ((a->type & 0xff) != (b->type & 0xff)) return false;
        if ((a->string != NULL) != (b->string != NULL) || (a->string && strcmp(a->string, b->string) != 0))
            return false;
        if (cJSON_IsString(a) && strcmp(a->valuestring, b->valuestring) != 0) return false;
        if (cJSON_IsNumber(a) && a->valuedouble != b->valuedouble && (float)a->valuedouble != (float)b->valuedouble)
            return false;
        if (!same(a->child, b->child)) return false;
    }
    return !a && !b;
}

/* Against strtoull, where the literal is one that it understands. */
static void check_exact(const cJSON *field, bool found, uint64_t got)
{
    const char *literal = field->valuestring;
    if (!literal || literal[strspn(literal, "0123456789")] != 0) return;
    bool fits = strlen(literal) < 20 || (strlen(literal) == 20 && strcmp(literal, "18446744073709551615") <= 0);
    CHECK(found == fits);
    CHECK(!fits || got == strtoull(literal, NULL, 10));
}

static void check_getters(const cJSON *object)
{
    for (const cJSON *child = object->child; child; child = child->next) {
        struct err errors[7] = {0};
        bool b;
        int64_t i = 0;
        uint64_t u = 0;
        double d;
        const char *s;
        const cJSON *item, *last = child;
        for (const cJSON *other = child->next; other; other = other->next) {
            if (strcmp(other->string, child->string) == 0) last = other;
        }
        struct json_at at[7];
        for (int k = 0; k < 7; k++) at[k] = (struct json_at){object, "top", &errors[k]};
        bool found[7] = {
            json_get_bool(&at[0], child->string, &b),     json_get_int(&at[1], child->string, -100, 100, &i),
            json_get_u64(&at[2], child->string, &u),      json_get_number(&at[3], child->string, &d),
            json_get_string(&at[4], child->string, &s),   json_get_object(&at[5], child->string, &item),
            json_get_array(&at[6], child->string, &item),
        };
        int n = 0;
        for (int k = 0; k < 7; k++) {
            CHECK(found[k] == (errors[k].code == ERR_OK && !cJSON_IsNull(last)));
            CHECK(errors[k].code == ERR_OK || strncmp(errors[k].msg, "top.", 4) == 0);
            if (k != 1 && k != 2) n += found[k];
        }
        CHECK(n == !cJSON_IsNull(last)); /* exactly one type fits */
        CHECK(!found[1] || (i >= -100 && i <= 100 && last->valuedouble == (double)i));
        CHECK(!found[2] || last->valuedouble == (double)u);
        if (cJSON_IsNumber(last)) check_exact(last, found[2], u);
    }
}

/* Whether json_scan finds a value, and behind it only white space. */
static bool scans(const char *text, size_t n)
{
    struct json_scan s = {0};
    enum scan_result r = SCAN_MORE;
    size_t i = 0;
    while (i < n && r == SCAN_MORE) r = json_scan_byte(&s, (unsigned char)text[i++]);
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r')) i++;
    return r == SCAN_DONE && i == n;
}

static void check_text(const char *text, size_t n)
{
    struct err e = {0};
    cJSON *tree = json_parse(text, n, &e);
    CHECK(scans(text, n) == (tree && !cJSON_IsNumber(tree)) || strstr(e.msg, "out of range"));
    if (!tree) {
        CHECK(e.code == ERR_INVALID && strncmp(e.msg, "malformed JSON at byte ", 23) == 0);
        return;
    }
    CHECK(e.code == ERR_OK);
    /* cJSON cuts numbers at 63 characters; those are the ones it may stumble over. */
    cJSON *plain = cJSON_ParseWithLength(text, n);
    size_t digits = 0, longest = 0;
    for (size_t i = 0; i < n; i++) {
        digits = strchr("0123456789+-.eE", text[i]) && text[i] ? digits + 1 : 0;
        if (digits > longest) longest = digits;
    }
    CHECK(plain || longest >= 63);
    CHECK(!plain || longest >= 63 || same(tree, plain));
    cJSON_Delete(plain);

    struct buf printed = {0};
    print(&printed, tree);
    cJSON *again = json_parse(printed.data, printed.len, &e);
    CHECK(again && same(tree, again));
    cJSON_Delete(again);
    buf_free(&printed);
    if (cJSON_IsObject(tree)) check_getters(tree);
    cJSON_Delete(tree);
}

static void check_string(const char *s, size_t n)
{
    struct buf b = {0};
    json_put_string(&b, s, n);
    bool valid = true;
    for (size_t i = 0; i < n && valid;) {
        int len = utf8_length((const unsigned char *)s + i, n - i);
        valid = len > 0 && s[i] != 0;
        i += (size_t)len;
    }
    cJSON *back = json_parse(b.data, b.len, NULL);
    if (memchr(s, 0, n)) {
        CHECK(!back);
    } else {
        CHECK(cJSON_IsString(back));
        CHECK(!valid || (strlen(back->valuestring) == n && memcmp(back->valuestring, s, n) == 0));
    }
    cJSON_Delete(back);
    buf_free(&b);
}

/* The last value of the name at the top of a valid text; any text may be searched. */
static void check_find(const char *s, size_t n)
{
    char found[16];
    bool any = json_find_string(s, n, "a", found, sizeof found);
    json_find_string(s, n, "a.b", found, 2);
    cJSON *tree = json_parse(s, n, NULL);
    if (tree && cJSON_IsObject(tree) && !memchr(s, '\\', n)) {
        json_find_string(s, n, "a", found, sizeof found);
        const cJSON *last = NULL;
        for (const cJSON *v = tree->child; v; v = v->next)
            if (strcmp(v->string, "a") == 0) last = v;
        const char *text = cJSON_GetStringValue(last);
        CHECK(any == (text && *text && strlen(text) < sizeof found));
        CHECK(!any || strcmp(text, found) == 0);
    }
    cJSON_Delete(tree);
}

static void check_number(const char *p)
{
    double v;
    memcpy(&v, p, sizeof v);
    struct buf b = {0};
    json_put_number(&b, v);
    cJSON *back = json_parse(b.data, b.len, NULL);
    CHECK(back);
    CHECK(isfinite(v) ? cJSON_IsNumber(back) : cJSON_IsNull(back));
    if (isfinite(v)) CHECK(back->valuedouble == v || ((double)(float)v == v && (float)back->valuedouble == (float)v));
    cJSON_Delete(back);
    buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* exactly as long as it is, so that reading past the end is seen */
    char *text = malloc(size ? size : 1);
    memcpy(text, data, size);
    check_text(text, size);
    check_string(text, size);
    check_find(text, size);
    if (size >= sizeof(double)) check_number(text);
    free(text);
    return 0;
}
