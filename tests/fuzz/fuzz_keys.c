/* Fuzzes server/access/keys_file.c's reader.  Whatever comes: a fault has its file, its line and a reason in one line
 * of plain text; what is read is in bounds, no name and no hash twice, each key is found by its hash; and printed again
 * it reads the same. */
#include "engine/base/check.h"
#include "server/access/keys.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static struct key_set *parse(const char *p, size_t n, struct err *e)
{
    char *copy = malloc(n ? n : 1); /* exactly as long as it is, so that reading past the end is seen */
    CHECK(copy);
    if (n) memcpy(copy, p, n);
    struct key_set *set = keys_parse(copy, n, "keys", e);
    free(copy);
    return set;
}

static void check_fault(const struct err *e, size_t n)
{
    char *end;
    CHECK(e->code == ERR_INVALID && strncmp(e->msg, "keys:", 5) == 0);
    unsigned long line = strtoul(e->msg + 5, &end, 10);
    CHECK(line >= 1 && line <= n + 1 && strncmp(end, ": ", 2) == 0 && end[2]);
    for (const char *p = e->msg; *p; p++) CHECK(*p >= 0x20 && *p < 0x7f);
}

static void check_key(const struct key_set *set, const struct key *k)
{
    CHECK(key_name_good(k->name) && k->role <= KEY_ADMIN && k->set == set);
    CHECK(k->requests_per_minute >= 0 && k->requests_per_minute <= 1e12);
    CHECK(k->tokens_per_minute >= 0 && k->tokens_per_minute <= 1e12 && k->max_concurrent >= 0);
    CHECK(key_set_find(set, k->hash) == k);
}

static void check_same(const struct key *a, const struct key *b)
{
    CHECK(strcmp(a->name, b->name) == 0 && a->role == b->role && memcmp(a->hash, b->hash, KEY_HASH) == 0);
    CHECK(a->expires == b->expires && a->revoked == b->revoked && a->max_concurrent == b->max_concurrent);
    CHECK(a->priority_max == b->priority_max);
    CHECK(a->requests_per_minute - b->requests_per_minute < 1e-9 * a->requests_per_minute + 1e-12);
    CHECK(a->tokens_per_minute - b->tokens_per_minute < 1e-9 * a->tokens_per_minute + 1e-12);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct buf text = {0};
    struct key_set *set = parse((const char *)data, size, &e);
    if (!set) {
        check_fault(&e, size);
        return 0;
    }
    for (size_t i = 0; i < set->n; i++) {
        check_key(set, &set->v[i]);
        key_print(&set->v[i], &text);
    }
    struct key_set *again = parse(text.data, text.len, &e);
    CHECK(again && again->n == set->n);
    for (size_t i = 0; i < set->n; i++) check_same(&set->v[i], &again->v[i]);
    key_set_release(again);
    key_set_release(set);
    buf_free(&text);
    return 0;
}
