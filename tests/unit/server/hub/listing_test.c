/* The hub's JSON of a repository: what is read of it, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/hub/listing.h"

#include <stdio.h>
#include <string.h>

#define SHA "0123456789abcdef0123456789abcdef01234567"
#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void test_files(void **state)
{
    (void)state;
    static const char text[] = "{\"id\":\"a/b\",\"sha\":\"" SHA "\",\"gated\":false,\"siblings\":["
                               "{\"rfilename\":\"config.json\",\"size\":7,\"blobId\":\"" SHA "\"},"
                               "{\"rfilename\":\"model.safetensors\",\"size\":130,\"blobId\":\"" SHA
                               "\",\"lfs\":{\"sha256\":\"" SHA256 "\",\"size\":70368744177664,\"pointerSize\":130}},"
                               "{\"rfilename\":\"a/b/c.txt\"}]}";
    struct listing l;
    struct err e = {0};
    if (listing_parse(&l, text, sizeof text - 1, &e)) fail_msg("%s", e.msg);
    assert_string_equal(l.commit, SHA);
    assert_int_equal(l.n, 3);
    assert_string_equal(l.v[0].etag, SHA);
    assert_true(l.v[0].size == 7);
    assert_string_equal(l.v[1].etag, SHA256);
    assert_true(l.v[1].size == LISTING_FILE_BYTES);
    assert_string_equal(l.v[2].etag, "");
    assert_ptr_equal(listing_find(&l, "a/b/c.txt"), &l.v[2]);
    assert_null(listing_find(&l, "README.md"));
    assert_false(listing_describe(&l.v[2], -1, SHA));
    assert_false(listing_describe(&l.v[2], 1, "../../etc/passwd"));
    assert_false(listing_describe(&l.v[2], 1, ""));
    assert_false(listing_describe(&l.v[2], (int64_t)LISTING_FILE_BYTES + 1, SHA));
    assert_true(listing_describe(&l.v[2], 1, SHA256) && l.v[2].size == 1);
    listing_free(&l);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "malformed JSON"},
        {"{", "malformed JSON"},
        {"{}{}", "malformed JSON"},
        {"3", "expected an object"},
        {"{}", "sha: expected 40"},
        {"{\"sha\":3}", "sha"},
        {"{\"sha\":\"" SHA "0\",\"siblings\":[]}", "sha: expected 40"},
        {"{\"sha\":\"" SHA "\"}", "siblings is missing"},
        {"{\"sha\":\"" SHA "\",\"siblings\":{}}", "siblings"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[3]}", "siblings[0]: expected an object"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{}]}", "siblings[0].rfilename is missing"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\"},{\"rfilename\":\"\"}]}",
         "siblings[1].rfilename: \"\""},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a/../../b\"}]}", "is no name of a file"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\\nb\"}]}", "is no name of a file"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"size\":1.5}]}", "siblings[0].size"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"size\":70368744177665}]}", "siblings[0].size"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"size\":1e300}]}", "siblings[0].size"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"blobId\":\"/etc/passwd\"}]}", "siblings[0].blobId"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"blobId\":[]}]}", "siblings[0].blobId"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"lfs\":{}}]}", "siblings[0].lfs.sha256"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"lfs\":{\"sha256\":\"" SHA "\"}}]}",
         "siblings[0].lfs.sha256"},
        {"{\"sha\":\"" SHA "\",\"siblings\":[{\"rfilename\":\"a\",\"lfs\":{\"sha256\":\"" SHA256 "\",\"size\":-1}}]}",
         "siblings[0].lfs.size"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct listing l;
        struct err e = {0};
        int rc = listing_parse(&l, cases[i].text, strlen(cases[i].text), &e);
        if (rc != ERR_INVALID || !strstr(e.msg, cases[i].says) || l.n || l.v)
            fail_msg("%s: %d, \"%s\" does not say \"%s\"", cases[i].text, rc, e.msg, cases[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
