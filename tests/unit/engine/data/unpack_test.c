/* Compressed data files: the same rows as without, in one member or many; cut off, damaged, too large. */
#include "tests/unit/engine/data/rows.h"

#include "engine/data/unpack.h"

#include <zlib.h>
#include <zstd.h>

static struct tokenizer *t;

static void pack(enum packing kind, const char *text, size_t n, struct buf *out)
{
    size_t size = ZSTD_compressBound(n) + compressBound(n) + 64;
    unsigned char *packed = malloc(size);
    size_t got;
    if (kind == PACKED_ZSTD) {
        got = ZSTD_compress(packed, size, text, n, 1);
        assert_false(ZSTD_isError(got));
    } else {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (unsigned char *)text;
        z.avail_in = (unsigned)n;
        z.next_out = packed;
        z.avail_out = (unsigned)size;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        got = z.total_out;
        deflateEnd(&z);
    }
    buf_append(out, packed, got);
    free(packed);
}

/* @return the hash of the rows, or 0 and *e. */
static uint64_t hash_of(const char *name, const char *bytes, size_t n, uint64_t max_bytes, struct err *e)
{
    char *path = file_of(name, bytes, n);
    struct dataset_source s = {.path = path, .name = name};
    struct dataset_options o = {.max_length = 64, .max_bytes = max_bytes};
    struct dataset *d = NULL;
    uint64_t hash = 0;
    *e = (struct err){0};
    if (!dataset_open(&d, &s, &o, t, NULL, -1, NULL, e)) hash = dataset_hash(d);
    dataset_free(d);
    unlink(path);
    free(path);
    return hash;
}

static void check_fails(const char *bytes, size_t n, uint64_t max_bytes, const char *text)
{
    struct err e;
    assert_int_equal(hash_of("x.jsonl.gz", bytes, n, max_bytes, &e), 0);
    if (!strstr(e.msg, text)) fail_msg("%s, not %s", e.msg, text);
}

static void rows_of(struct buf *b, int n)
{
    for (int i = 0; i < n; i++) buf_printf(b, "{\"prompt\": \"%d is\", \"completion\": \" %d\"}\n", i, i * i);
}

static void test_the_same_rows(void **state)
{
    struct buf plain = {0}, packed = {0};
    struct err e;
    (void)state;
    rows_of(&plain, 500);
    uint64_t hash = hash_of("x.jsonl", plain.data, plain.len, 0, &e);
    assert_true(hash);
    for (enum packing k = PACKED_GZIP; k <= PACKED_ZSTD; k++) {
        static const char *const names[] = {"x.jsonl", "x.jsonl.gz", "x", "x.zst"};
        buf_clear(&packed);
        pack(k, plain.data, plain.len, &packed);
        for (int i = 0; i < 4; i++) assert_true(hash_of(names[i], packed.data, packed.len, 0, &e) == hash);
        buf_clear(&packed);
        for (size_t at = 0; at < plain.len; at += 1000) /* members that end anywhere, one of them empty */
            pack(k, plain.data + at, plain.len - at < 1000 ? plain.len - at : 1000, &packed);
        pack(k, "", 0, &packed);
        assert_true(hash_of("x.jsonl", packed.data, packed.len, 0, &e) == hash);
        if (k == PACKED_GZIP) buf_append(&packed, "\0\0\0\0\0", 5); /* padding */
        assert_true(hash_of("x.jsonl", packed.data, packed.len, 0, &e) == hash);
    }
    buf_clear(&packed);
    pack(PACKED_GZIP, "ab\n\n{cd}", 8, &packed);
    hash = hash_of("x.txt", "ab\n\n{cd}", 8, 0, &e);
    assert_true(hash && hash_of("x.txt.gz", packed.data, packed.len, 0, &e) == hash); /* its name says text */
    buf_free(&plain);
    buf_free(&packed);
}

static void test_damage(void **state)
{
    struct buf plain = {0}, packed = {0}, twice = {0};
    struct err e;
    (void)state;
    rows_of(&plain, 40);
    for (enum packing k = PACKED_GZIP; k <= PACKED_ZSTD; k++) {
        buf_clear(&packed);
        pack(k, plain.data, plain.len, &packed);
        size_t n = packed.len;
        for (size_t cut = 5; cut < n; cut += 7) check_fails(packed.data, cut, 0, "data are damaged: they are cut off");
        for (size_t i = 5; i < n; i += 11) { /* a flipped bit is an error, or changes nothing (a header's flag) */
            packed.data[i] ^= 8;
            (void)hash_of("x", packed.data, n, 1 << 20, &e);
            packed.data[i] ^= 8;
        }
        if (k == PACKED_GZIP) { /* the checksum; zstd writes none unless it is told to */
            packed.data[n - 6] ^= 8;
            check_fails(packed.data, n, 0, "x.jsonl.gz: byte ");
            packed.data[n - 6] ^= 8;
        }
        buf_str(&packed, "{\"text\": \"not packed\"}");
        check_fails(packed.data, packed.len, 0,
                    k == PACKED_GZIP ? "the gzip data are damaged" : "the zstd data are damaged");
        packed.len = n;
        buf_clear(&twice);
        pack(PACKED_GZIP, packed.data, packed.len, &twice);
        check_fails(twice.data, twice.len, 0, "twice");
        buf_clear(&packed);
        pack(k, "", 0, &packed);
        check_fails(packed.data, packed.len, 0, "x.jsonl.gz: is empty");
    }
    buf_free(&plain);
    buf_free(&packed);
    buf_free(&twice);
}

static void test_limits(void **state)
{
    struct buf packed = {0};
    enum { BYTES = 4 << 20, MANY = 96 << 20 };
    char *zeros = calloc(1, MANY);
    (void)state;
    memset(zeros, ' ', MANY);
    for (enum packing k = PACKED_GZIP; k <= PACKED_ZSTD; k++) {
        buf_clear(&packed);
        pack(k, zeros, BYTES, &packed);
        check_fails(packed.data, packed.len, 1 << 20, "decompressed it has more than the limit of 1.0 MB");
    }
    buf_clear(&packed);
    pack(PACKED_ZSTD, zeros, MANY, &packed); /* a thousand times its size */
    check_fails(packed.data, packed.len, 0, "decompressed it has more than the limit of ");
    free(zeros);
    /* a frame that wants a window of 2 GB */
    check_fails("\x28\xb5\x2f\xfd\x04\xa8\x01\x00\x00", 9, 0, "memory");
    buf_free(&packed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_rows),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_limits),
    };
    if (argc < 2) return 2;
    fixtures = argv[1];
    t = byte_level();
    int rc = cmocka_run_group_tests(tests, scratch_make, scratch_remove);
    tokenizer_close(t);
    return rc;
}
