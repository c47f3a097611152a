/* Safetensors: what is right is read, what lies is refused with the tensor's name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/model/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* a file of `header` and n data bytes 0, 1, 2...; *size is set */
static char *make(const char *header, size_t n, size_t *size)
{
    size_t len = strlen(header);
    char *p = malloc(8 + len + n);
    for (int i = 0; i < 8; i++) p[i] = (char)(len >> (8 * i));
    memcpy(p + 8, header, len);
    for (size_t i = 0; i < n; i++) p[8 + len + i] = (char)i;
    *size = 8 + len + n;
    return p;
}

static void refuse(const char *header, size_t n, const char *says)
{
    size_t size;
    struct err e = {0};
    char *p = make(header, n, &size);
    struct tensor_source *s = safetensors_parse(p, size, &e);
    if (s || !strstr(e.msg, says))
        fail_msg("%s: expected an error with \"%s\", got \"%s\"", header, says, s ? "(accepted)" : e.msg);
    free(p);
}

static void test_reads_tensors(void **state)
{
    size_t size;
    struct err e;
    char *p =
        make("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
             "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
             "\"none\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[16,16]}}",
             16, &size);
    struct tensor_source *s = safetensors_parse(p, size, &e);
    assert_non_null(s);
    assert_int_equal(tensor_source_count(s), 3);
    const struct tensor *b = tensor_source_find(s, "b");
    assert_int_equal(b->type, TENSOR_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[1], 3);
    assert_int_equal(b->bytes, 12);
    assert_int_equal(*(const char *)b->data, 4);
    assert_int_equal(tensor_source_find(s, "a")->n_dims, 0);
    assert_null(tensor_source_find(s, "c"));
    tensor_source_close(s);
    free(p);
}

static void test_refuses_lies(void **state)
{
    struct err e;
    assert_null(safetensors_parse("", 0, &e));
    assert_null(safetensors_parse("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &e));
    assert_non_null(strstr(e.msg, "header length"));
    refuse("nonsense", 4, "not a JSON object");
    refuse("[]", 4, "not a JSON object");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 4, "tensor t: data_offsets");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "tensor t: data_offsets");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "tensor t: shape needs 8 bytes");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4,
           "tensor t: shape overflows");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
           "tensor t: shape has a bad dimension");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4,
           "tensor t: shape has a bad dimension");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "tensor t: shape is not a list");
    refuse("{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor t: no dtype");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775808]}}", 4,
           "tensor t: data_offsets");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4,
           "more than 8 dimensions");
    refuse("{\"t\":7}", 4, "tensor t");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"t\":{\"dtype\":\"F32\",\"shape\":[1],"
           "\"data_offsets\":[4,8]}}",
           8, "tensor t is there twice");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"u\":{\"dtype\":\"F32\",\"shape\":[2],"
           "\"data_offsets\":[4,12]}}",
           12, "overlap");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "before tensor t");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 5, "after the last tensor");
    refuse("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}} x", 4, "not a JSON object");
    refuse("{\"\\u001b[2J\\n\":7}", 4, "tensor ?[2J?");
}

static void test_truncation_at_every_byte(void **state)
{
    size_t size;
    char *p = make("{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, &size);
    for (size_t n = 0; n < size; n++) {
        struct err e = {0};
        char *cut = malloc(n ? n : 1); /* its own block, so that ASan sees a read past the end */
        memcpy(cut, p, n);
        assert_null(safetensors_parse(cut, n, &e));
        assert_true(e.msg[0]);
        free(cut);
    }
    free(p);
}

static void test_write_then_read(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX", path[64];
    struct err e;
    float f[] = {1, 2, 3};
    int8_t i[] = {-1, 7};
    struct tensor t[] = {{.name = "x.y", .type = TENSOR_F32, .n_dims = 2, .dims = {1, 3}, .data = f, .bytes = 12},
                         {.name = "q\"uote", .type = TENSOR_I8, .n_dims = 1, .dims = {2}, .data = i, .bytes = 2}};
    const char *meta[] = {"type", "int8", NULL};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    assert_int_equal(safetensors_write(path, t, 2, meta, &e), 0);
    struct tensor_source *s = safetensors_open(path, &e);
    assert_non_null(s);
    assert_memory_equal(tensor_source_find(s, "x.y")->data, f, 12);
    assert_int_equal((uintptr_t)tensor_source_find(s, "x.y")->data % 64, 0);
    assert_memory_equal(tensor_source_find(s, "q\"uote")->data, i, 2);
    tensor_source_close(s);
    remove(path);
    rmdir(dir);
}

/* Aligned tensors, the padding between them, checksums that notice any changed byte, and nothing left by an abort. */
static void test_writer(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX", path[64], tmp[72];
    struct err e = {0};
    char data[100];
    struct tensor a = {.name = "a", .type = TENSOR_U8, .n_dims = 1, .dims = {100}, .data = data, .bytes = 100}, b = a;
    memset(data, 5, sizeof data);
    b.name = "b";
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.safetensors", dir);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);

    struct st_writer *w = st_writer_open(path, 2, 2, 64, &e);
    assert_int_equal(st_writer_add(w, &a, 64, &e), 0);
    assert_int_equal(access(tmp, F_OK), 0);
    st_writer_abort(w);
    assert_int_not_equal(access(tmp, F_OK), 0);

    w = st_writer_open(path, 2, 2, 64, &e);
    st_writer_note(w, "format", "tandem");
    assert_int_equal(st_writer_add(w, &a, 64, &e), 0);
    assert_int_equal(st_writer_add(w, &b, 64, &e), 0);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(st_writer_finish(w, &e), 0);
    assert_int_not_equal(access(tmp, F_OK), 0);

    struct tensor_source *s = safetensors_open(path, &e);
    assert_non_null(s);
    assert_int_equal(tensor_source_count(s), 3);
    assert_int_equal(tensor_source_find(s, "padding.0")->bytes, 28);
    assert_int_equal((uintptr_t)tensor_source_find(s, "a")->data % ST_ALIGN, 0);
    assert_int_equal((uintptr_t)tensor_source_find(s, "b")->data % 64, 0);
    assert_string_equal(tensor_source_metadata(s, "format"), "tandem");
    assert_null(tensor_source_metadata(s, "version"));
    assert_int_equal(tensor_source_verify(s, &e), 0);
    tensor_source_close(s);

    char *bytes = NULL;
    size_t n;
    assert_int_equal(file_read(path, 1 << 20, &bytes, &n, &e), 0);
    for (size_t i = 0; i < n; i += i < 700 ? 1 : 37) { /* the header's beginning, its padding, the data */
        bytes[i] ^= 4;
        s = safetensors_parse(bytes, n, &e);
        if (s && !tensor_source_verify(s, &e)) fail_msg("byte %zu changed and nobody noticed", i);
        tensor_source_close(s);
        bytes[i] ^= 4;
    }
    free(bytes);
    remove(path);
    rmdir(dir);
}

static void test_writer_failures(void **state)
{
    char dir[] = "/tmp/tandem-test-XXXXXX", path[64];
    struct err e = {0};
    assert_null(st_writer_open("/no/such/folder/m.safetensors", 1, 1, 0, &e));
    assert_non_null(strstr(e.msg, "/no/such/folder/m.safetensors"));
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.safetensors", dir);

    /* a header that does not fit the room that was asked for */
    char name[8192];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    struct tensor t = {.name = name, .type = TENSOR_U8, .n_dims = 1, .dims = {1}, .data = "x", .bytes = 1};
    struct st_writer *w = st_writer_open(path, 1, 1, 0, &e);
    assert_int_equal(st_writer_add(w, &t, 64, &e), 0);
    assert_int_equal(st_writer_finish(w, &e), ERR_INVALID);
    assert_non_null(strstr(e.msg, "the header needs"));
    assert_int_equal(rmdir(dir), 0); /* nothing is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reads_tensors),
                                       cmocka_unit_test(test_refuses_lies),
                                       cmocka_unit_test(test_truncation_at_every_byte),
                                       cmocka_unit_test(test_write_then_read),
                                       cmocka_unit_test(test_writer),
                                       cmocka_unit_test(test_writer_failures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
