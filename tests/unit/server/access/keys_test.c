/* Keys: the file's text, look-up, reload, editing.  CRYPTO_memcmp is wrapped at the link (tests/meson.build), so that
 * comparisons can be counted: what takes the same time must be seen without a clock. */
#include "engine/base/buf.h"
#include "server/access/keys.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define HASH_A "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" /* of "a" */
#define HASH_B "3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d" /* of "b" */
#define HASH_C "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6" /* of "c" */

static struct err e;

/* ---- what is compared ------------------------------------------------------------------------------------------ */

static int compared, whole;

int __real_CRYPTO_memcmp(const void *a, const void *b, size_t n);
int __wrap_CRYPTO_memcmp(const void *a, const void *b, size_t n);
int __wrap_CRYPTO_memcmp(const void *a, const void *b, size_t n)
{
    compared++;
    whole += n == KEY_HASH;
    return __real_CRYPTO_memcmp(a, b, n);
}

/* ---- the text -------------------------------------------------------------------------------------------------- */

static struct key_set *parse(const char *text)
{
    e = (struct err){0};
    return keys_parse(text, strlen(text), "keys", &e);
}

static void test_a_line(void **state)
{
    (void)state;
    struct key_set *set = parse("# a comment\n"
                                "\n"
                                "alice user sha256:" HASH_A "\n"
                                "  b.o-b_2\tadmin  sha256:" HASH_B " expires=2027-01-31T12:00:00Z max-concurrent=4 "
                                "requests-per-minute=0.5 tokens-per-minute=60000 priority-max=-3 # remark=x\r\n"
                                "carol train sha256:" HASH_C " revoked=2026-02-28");
    assert_non_null(set);
    assert_int_equal(set->n, 3);
    const struct key *k = set->v;
    assert_string_equal(k[0].name, "alice");
    assert_true(k[0].role == KEY_USER && k[1].role == KEY_ADMIN && k[2].role == KEY_TRAIN);
    assert_true(k[0].expires == 0 && k[0].revoked == 0 && k[0].max_concurrent == 0 && k[0].priority_max == INT_MIN);
    assert_string_equal(k[1].name, "b.o-b_2");
    assert_true(k[1].expires == 1801396800 && k[1].max_concurrent == 4 && k[1].priority_max == -3);
    assert_true(k[1].requests_per_minute == 0.5 && k[1].tokens_per_minute == 60000);
    assert_true(k[2].revoked == 1772236800);
    assert_int_equal(k[0].hash[0], 0xca);
    assert_int_equal(k[0].hash[31], 0xbb);
    key_set_release(set);
}

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"a", "keys:1: after the name"},
        {"a/b user sha256:" HASH_A, "keys:1: the name"},
        {"# x\n\na root sha256:" HASH_A, "keys:3: after the name must come its role"},
        {"a user", "keys:1: after the role"},
        {"a user sha256:" HASH_A "0", "keys:1: after the role"},
        {"a user sha256:ABCD", "keys:1: after the role"},
        {"a user md5:" HASH_A, "keys:1: after the role"},
        {"a user sha256:" HASH_A " quickly", "keys:1: after the hash"},
        {"a user sha256:" HASH_A " speed=9", "keys:1: unknown option"},
        {"a user sha256:" HASH_A " expires=2026-02-29", "keys:1: expires= takes"},
        {"a user sha256:" HASH_A " expires=2026-02-28T24:00:00Z", "keys:1: expires= takes"},
        {"a user sha256:" HASH_A " expires=2026-02-28T23:00:00", "keys:1: expires= takes"},
        {"a user sha256:" HASH_A " expires=", "keys:1: expires= takes"},
        {"a user sha256:" HASH_A " requests-per-minute=0", "keys:1: requests-per-minute="},
        {"a user sha256:" HASH_A " requests-per-minute=1e3", "keys:1: requests-per-minute="},
        {"a user sha256:" HASH_A " tokens-per-minute=-1", "keys:1: tokens-per-minute="},
        {"a user sha256:" HASH_A " tokens-per-minute=1.2.3", "keys:1: tokens-per-minute="},
        {"a user sha256:" HASH_A " max-concurrent=1.5", "keys:1: max-concurrent="},
        {"a user sha256:" HASH_A " max-concurrent=99999999999", "keys:1: max-concurrent="},
        {"a user sha256:" HASH_A " priority-max=x", "keys:1: priority-max="},
        {"a user sha256:" HASH_A " max-concurrent=1 max-concurrent=2", "keys:1: an option is given twice"},
        {"a user sha256:" HASH_A "\nb user sha256:" HASH_B "\na user sha256:" HASH_C, "keys:3: the name is in use"},
        {"a user sha256:" HASH_A "\n\nb user sha256:" HASH_A, "keys:3: the hash is there"},
        {"tdm_0123456789abcdefghijklmnopqrstuvwxyzABCDEFG", "keys:1: this is a key"},
        {"a user \1", "keys:1: the line has a control"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(parse(cases[i].text));
        assert_int_equal(e.code, ERR_INVALID);
        if (strncmp(e.msg, cases[i].says, strlen(cases[i].says)) != 0) fail_msg("%s: %s", cases[i].text, e.msg);
        assert_null(strstr(e.msg, "0123456789abcdef")); /* nothing of the text */
    }
}

static void test_long_lines_and_none(void **state)
{
    (void)state;
    char text[1200];
    memset(text, '#', sizeof text);
    text[1000] = 0;
    struct key_set *set = parse(text);
    assert_non_null(set);
    assert_int_equal(set->n, 0);
    key_set_release(set);
    text[1000] = '#', text[1001] = 0;
    assert_null(parse(text));
    set = parse("");
    assert_non_null(set);
    key_set_release(set);
    assert_null(keys_parse("a user\0x", 8, "keys", &e)); /* a NUL does not end the text */
}

static void test_printed_as_read(void **state)
{
    (void)state;
    static const char line[] = "bob admin sha256:" HASH_B " expires=2027-01-31T12:00:00Z revoked=2026-12-01T00:00:01Z "
                               "requests-per-minute=0.25 tokens-per-minute=60000 max-concurrent=4 priority-max=-3\n";
    struct key_set *set = parse(line);
    struct buf out = {0};
    assert_non_null(set);
    key_print(set->v, &out);
    assert_string_equal(out.data, line);
    buf_free(&out);
    key_set_release(set);
}

/* ---- look-up --------------------------------------------------------------------------------------------------- */

enum { MANY = 50 };

static struct key_set *many(void)
{
    struct buf text = {0};
    for (int i = 0; i < MANY; i++) {
        unsigned char hash[KEY_HASH];
        char name[16];
        keys_hash(name, (size_t)snprintf(name, sizeof name, "key%d", i), hash);
        buf_printf(&text, "%s user sha256:", name);
        for (int j = 0; j < KEY_HASH; j++) buf_printf(&text, "%02x", hash[j]);
        buf_char(&text, '\n');
    }
    struct key_set *set = parse(text.data);
    buf_free(&text);
    assert_non_null(set);
    return set;
}

/* First, last, in the middle, not at all, or nearly: every look-up compares every hash, and all of it. */
static void test_every_lookup_compares_everything(void **state)
{
    (void)state;
    struct key_set *set = many();
    static const char *const keys[] = {"key0", "key49", "key25", "", "nothing", "key", "key4"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        unsigned char hash[KEY_HASH];
        keys_hash(keys[i], strlen(keys[i]), hash);
        compared = whole = 0;
        const struct key *found = key_set_find(set, hash);
        assert_int_equal(compared, MANY);
        assert_int_equal(whole, MANY);
        bool there = strlen(keys[i]) > 3 && keys[i][0] == 'k';
        assert_true(there == (found != NULL));
        if (there) assert_string_equal(found->name, keys[i]);
    }
    unsigned char hash[KEY_HASH];
    memcpy(hash, set->v[7].hash, KEY_HASH);
    hash[KEY_HASH - 1] ^= 1; /* all but a bit of it */
    compared = 0;
    assert_null(key_set_find(set, hash));
    assert_int_equal(compared, MANY);
    key_set_release(set);
}

/* ---- a daemon's keys ------------------------------------------------------------------------------------------- */

static char path[64];

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_path(void **state)
{
    (void)state;
    e = (struct err){0};
    snprintf(path, sizeof path, "/tmp/tandem-keys-%d", (int)getpid());
    return 0;
}

static int remove_path(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static enum key_verdict verdict(const struct keys *keys, const char *text, int64_t now)
{
    const struct key *key;
    enum key_verdict v = keys_check(keys, text, now, &key);
    assert_true((key == NULL) == (v == KEY_WRONG));
    key_release(key);
    return v;
}

static void test_verdicts(void **state)
{
    (void)state;
    write_file("a user sha256:" HASH_A " expires=2027-01-31\nb user sha256:" HASH_B " revoked=2030-01-01\n");
    struct keys *keys = keys_open(path, &e);
    assert_non_null(keys);
    assert_true(verdict(keys, "a", 1801353599) == KEY_GOOD); /* the second before */
    assert_true(verdict(keys, "a", 1801353600) == KEY_EXPIRED);
    assert_true(verdict(keys, "b", 0) == KEY_REVOKED); /* whatever the clock says */
    assert_true(verdict(keys, "c", 0) == KEY_WRONG);
    assert_true(verdict(keys, "", 0) == KEY_WRONG);
    keys_close(keys);
    unlink(path);
    assert_null(keys_open(path, &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
}

static void test_reload_keeps_what_is_held(void **state)
{
    (void)state;
    const struct key *held;
    write_file("a user sha256:" HASH_A "\n");
    struct keys *keys = keys_open(path, &e);
    assert_non_null(keys);
    assert_true(keys_check(keys, "a", 1, &held) == KEY_GOOD);

    write_file("b user sha256:" HASH_B "\nbroken\n");
    assert_int_equal(keys_reload(keys, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, ":2: after the name"));
    assert_true(verdict(keys, "a", 1) == KEY_GOOD && verdict(keys, "b", 1) == KEY_WRONG);

    write_file("b user sha256:" HASH_B "\n");
    assert_int_equal(keys_reload(keys, &e), 0);
    assert_true(verdict(keys, "a", 1) == KEY_WRONG && verdict(keys, "b", 1) == KEY_GOOD);
    assert_int_equal(keys_count(keys), 1);
    keys_close(keys);
    assert_string_equal(held->name, "a"); /* under ASan: still there */
    key_release(held);
}

/* ---- editing --------------------------------------------------------------------------------------------------- */

static const char *file_text(void)
{
    static char text[4096];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    return text;
}

static struct key key_of(const char *name, const char *text)
{
    struct key key = {.name = name, .role = KEY_TRAIN, .priority_max = INT_MIN};
    keys_hash(text, strlen(text), key.hash);
    return key;
}

static void test_add_and_revoke(void **state)
{
    (void)state;
    struct key a = key_of("a", "a"), b = key_of("b", "b"), c = key_of("a", "c");
    struct stat st;
    assert_int_equal(keys_file_add(path, &a, &e), 0);
    assert_non_null(strstr(file_text(), "\na train sha256:" HASH_A "\n"));
    assert_int_equal(keys_file_add(path, &c, &e), ERR_INVALID); /* the name is in use */
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(keys_file_add(path, &b, &e), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600); /* as it was */

    assert_int_equal(keys_file_revoke(path, "a", 1801396800, &e), 0);
    assert_non_null(
        strstr(file_text(), "\na train sha256:" HASH_A " revoked=2027-01-31T12:00:00Z\nb train sha256:" HASH_B "\n"));
    assert_int_equal(keys_file_revoke(path, "a", 1801396800, &e), ERR_NOT_FOUND);
    assert_int_equal(keys_file_revoke(path, "z", 1801396800, &e), ERR_NOT_FOUND);
    assert_int_equal(keys_file_add(path, &c, &e), 0); /* a revoked one's name is free, and its line goes */
    assert_non_null(strstr(file_text(), "\na train sha256:" HASH_C "\nb train sha256:" HASH_B "\n"));
}

static void test_edits_keep_the_rest(void **state)
{
    (void)state;
    struct key b = key_of("b", "b");
    write_file("# ours\n\n  a   user\tsha256:" HASH_A "   # Alice, room 7\n# end");
    assert_int_equal(keys_file_add(path, &b, &e), 0);
    assert_string_equal(file_text(), "# ours\n\n  a   user\tsha256:" HASH_A
                                     "   # Alice, room 7\n# end\nb train sha256:" HASH_B "\n");
    assert_int_equal(keys_file_revoke(path, "a", 1801396800, &e), 0);
    assert_string_equal(file_text(),
                        "# ours\n\na user sha256:" HASH_A
                        " revoked=2027-01-31T12:00:00Z # Alice, room 7\n# end\nb train sha256:" HASH_B "\n");
    write_file("broken\n");
    assert_int_equal(keys_file_add(path, &b, &e), ERR_INVALID);
    assert_string_equal(file_text(), "broken\n"); /* untouched */
}

/* What would not be read again is not written. */
static void test_edits_that_would_break_the_file(void **state)
{
    (void)state;
    struct key b = key_of("b", "b");
    char remark[960], text[1200];
    memset(remark, 'x', sizeof remark - 1);
    remark[sizeof remark - 1] = 0;
    snprintf(text, sizeof text, "a user sha256:" HASH_A " # %.*s\n", 900, remark);
    write_file(text);
    assert_int_equal(keys_file_revoke(path, "a", 1801396800, &e), ERR_INVALID); /* too long with the date */
    assert_string_equal(file_text(), text);

    write_file("a user sha256:" HASH_A "\n");
    assert_int_equal(keys_file_revoke(path, "a", 86400, &e), ERR_INVALID); /* a clock that was never set */
    b.requests_per_minute = 1e-5;
    assert_int_equal(keys_file_add(path, &b, &e), ERR_INVALID);
    assert_string_equal(file_text(), "a user sha256:" HASH_A "\n");
}

static void test_new_keys(void **state)
{
    (void)state;
    char a[KEY_TEXT + 1], b[KEY_TEXT + 1];
    assert_true(key_make(a) && key_make(b));
    assert_int_equal(strlen(a), KEY_TEXT);
    assert_memory_equal(a, "tdm_", 4);
    assert_int_equal(strspn(a + 4, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 43);
    assert_string_not_equal(a, b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_line),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_long_lines_and_none),
        cmocka_unit_test(test_printed_as_read),
        cmocka_unit_test(test_every_lookup_compares_everything),
        cmocka_unit_test_setup_teardown(test_verdicts, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_reload_keeps_what_is_held, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_add_and_revoke, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_edits_keep_the_rest, make_path, remove_path),
        cmocka_unit_test_setup_teardown(test_edits_that_would_break_the_file, make_path, remove_path),
        cmocka_unit_test(test_new_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
