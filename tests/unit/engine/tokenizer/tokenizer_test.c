/* The tokenizer on hand-written descriptions: what each part does, and what a bad file is told.  Equality with the
 * reference implementation, on real files, is tests/tokenizer's business. */
#include "engine/tokenizer/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* a byte-level model: ids 0..9 */
#define BYTE_VOCAB                                                                                                     \
    "\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3,\"\xc4\xa0"                                                               \
    "ab\":4,\"\xc3\xa9\":5,\"\xc3\x83\":6,\"\xc2\xa9\":7,\"\xc3\x83\xc2\xa9\":8,\"\xc4\x8a\":9"
#define BYTE_MERGES "\"a b\",\"\xc4\xa0 ab\",[\"\xc3\x83\",\"\xc2\xa9\"]"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":true}"
#define BYTE_FILE(added, more)                                                                                         \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" BYTE_VOCAB "},\"merges\":[" BYTE_MERGES                                 \
    "]},\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL ",\"added_tokens\":[" added "]" more "}"

/* a SentencePiece-style model with byte tokens for U+00E9 alone */
#define SPM_FILE(more)                                                                                                 \
    "{\"model\":{\"vocab\":{\"<unk>\":0,\"<s>\":1,\"\xe2\x96\x81\":2,\"a\":3,\"\xe2\x96\x81"                           \
    "a\":4,\"<0xC3>\":5,\"<0xA9>\":6,\"<0x0A>\":7,\"aa\":8},\"merges\":[\"\xe2\x96\x81 a\",\"a a\"],"                  \
    "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true},"                                               \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"},"      \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},"                            \
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}" \
    "},"                                                                                                               \
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1]" \
    ","                                                                                                                \
    "\"tokens\":[\"<s>\"]}}},\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":false}]," \
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"}" \
    ","                                                                                                                \
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","        \
    "\"start\":1,\"stop\":0}]}" more "}"

static struct tokenizer *parse(const char *json)
{
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, strlen(json), &e);
    if (!t) fail_msg("%s", e.msg);
    return t;
}

/* "id:start-end ..." */
static void check_encode_n(const struct tokenizer *t, const char *text, size_t n, unsigned flags, const char *expected)
{
    struct tokens got = {0};
    struct err e = {0};
    if (tokenizer_encode(t, text, n, flags, &got, &e)) fail_msg("%s", e.msg);
    struct buf b = {0};
    buf_str(&b, "");
    for (size_t i = 0; i < got.n; i++)
        buf_printf(&b, "%s%d:%u-%u", i ? " " : "", (int)got.v[i].id, got.v[i].start, got.v[i].end);
    assert_string_equal(b.data, expected);
    buf_free(&b);
    tokens_free(&got);
}

static void check_encode(const struct tokenizer *t, const char *text, unsigned flags, const char *expected)
{
    check_encode_n(t, text, strlen(text), flags, expected);
}

static void check_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip, const char *expected)
{
    struct buf b = {0};
    buf_str(&b, "");
    tokenizer_decode(t, ids, n, skip, &b);
    assert_string_equal(b.data, expected);
    buf_free(&b);
}

#define IDS(...) (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4

static void test_byte_level(void **state)
{
    struct tokenizer *t = parse(BYTE_FILE("", ""));
    assert_int_equal(tokenizer_size(t), 10);
    check_encode(t, "", 0, "");
    check_encode(t, "ab ab", 0, "2:0-2 4:2-5");
    check_encode(t, "abab a", 0, "2:0-2 2:2-4 3:4-5 0:5-6");
    check_encode(t, "\xc3\xa9", 0, "8:0-1");
    check_encode(t, "a\n\xc3\xa9", 0, "0:0-1 9:1-2 8:2-3");
    /* without an unknown token z leaves nothing behind, as in the reference */
    check_encode(t, "azb", 0, "2:0-2");
    check_decode(t, IDS(2, 4, 8, 9), false, "ab ab\xc3\xa9\n");
    check_decode(t, IDS(6, 0), false,
                 "\xef\xbf\xbd"
                 "a");
    check_decode(t, IDS(99, -1, 0), false, "a");
    tokenizer_close(t);
}

static void test_names(void **state)
{
    struct tokenizer *t = parse(BYTE_FILE("{\"id\":10,\"content\":\"<end>\",\"special\":true}", ""));
    assert_int_equal(tokenizer_size(t), 11);
    assert_int_equal(tokenizer_find(t, "<end>"), 10);
    assert_int_equal(tokenizer_find(t, "\xc4\xa0"
                                       "ab"),
                     4);
    assert_int_equal(tokenizer_find(t, "nothing"), -1);
    assert_true(tokenizer_is_special(t, 10));
    assert_false(tokenizer_is_special(t, 4));
    assert_false(tokenizer_is_special(t, -1));
    assert_string_equal(tokenizer_spelling(t, 10), "<end>");
    assert_null(tokenizer_spelling(t, 11));
    check_encode(t, "a<end>b<end", 0, "0:0-1 10:1-6 1:6-7");
    check_decode(t, IDS(0, 10, 1), false, "a<end>b");
    check_decode(t, IDS(0, 10, 1), true, "ab");
    tokenizer_close(t);
}

static void test_added_tokens(void **state)
{
    struct tokenizer *t = parse(BYTE_FILE("{\"id\":10,\"content\":\"<l>\",\"lstrip\":true,\"normalized\":false},"
                                          "{\"id\":11,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false},"
                                          "{\"id\":12,\"content\":\"ba\",\"single_word\":true,\"normalized\":false},"
                                          "{\"id\":13,\"content\":\"<r><l>\",\"normalized\":false}",
                                          ""));
    check_encode(t, "a  <l> a", 0, "0:0-1 10:1-6 3:6-7 0:7-8");
    check_encode(t, "a <r>  a", 0, "0:0-1 3:1-2 11:2-7 0:7-8");
    check_encode(t, "ba aba ba", 0, "12:0-2 4:2-5 0:5-6 3:6-7 12:7-9");
    check_encode(t, "<r><l><r>", 0, "13:0-6 11:6-9"); /* the longest of those that start first */
    tokenizer_close(t);
}

static void test_sentencepiece(void **state)
{
    struct tokenizer *t = parse(SPM_FILE(""));
    check_encode(t, "a aa", TOKENIZE_SPECIAL, "1:0-0 4:0-1 4:1-3 3:3-4");
    check_encode(t, "", TOKENIZE_SPECIAL, "1:0-0");
    check_encode(t, "\xc3\xa9zza", 0, "2:0-1 5:0-1 6:0-1 0:1-3 3:3-4");
    check_encode(t, "<s>a", 0, "1:0-3 4:3-4");
    check_decode(t, IDS(1, 4, 4), true, "a a");
    check_decode(t, IDS(4, 5, 6, 7), false, "a\xc3\xa9\n");
    check_decode(t, IDS(5, 3), false,
                 "\xef\xbf\xbd"
                 "a");
    tokenizer_close(t);
}

static void test_broken_utf8(void **state)
{
    struct tokenizer *t = parse(SPM_FILE(""));
    check_encode_n(t, "a\xff\xc3\x61", 4, 0, "4:0-1 0:1-3 3:3-4");
    check_encode_n(t, "a\xe2\x96", 3, 0, "4:0-1 0:1-2"); /* cut off: one bad sequence */
    check_encode_n(t, "a\xed\xa0\x80", 4, 0, "4:0-1 0:1-4");
    check_encode_n(t, "a\0a", 3, 0, "4:0-1 0:1-2 3:2-3");
    tokenizer_close(t);
}

/* Pushes ids one by one; joins the pieces with '|', the flush last. */
static void check_stream(const struct tokenizer *t, bool mid, const int32_t *ids, size_t n, const char *expected)
{
    struct detok d = {.mid_context = mid};
    struct buf all = {0};
    for (size_t i = 0; i < n; i++) {
        detok_push(&d, t, ids[i], &all);
        buf_char(&all, '|');
    }
    detok_flush(&d, t, &all);
    buf_str(&all, "");
    assert_string_equal(all.data, expected);
    buf_free(&all);
}

static void test_stream(void **state)
{
    struct tokenizer *t = parse(BYTE_FILE("{\"id\":10,\"content\":\"<end>\",\"special\":true}", ""));
    check_stream(t, false, IDS(2, 6, 7, 4), "ab||\xc3\xa9| ab|");
    check_stream(t, false, IDS(6, 0),
                 "|\xef\xbf\xbd"
                 "a|");
    check_stream(t, false, IDS(6, 10, 6), "|\xef\xbf\xbd<end>||\xef\xbf\xbd");
    tokenizer_close(t);
    t = parse(SPM_FILE(""));
    check_stream(t, false, IDS(4, 4, 5, 6), "a| a||\xc3\xa9|");
    check_stream(t, true, IDS(4, 4), " a| a|");
    check_stream(t, false, IDS(2, 4), "| a|"); /* one space is taken, not two */
    check_stream(t, false, IDS(5, 5, 3),
                 "|\xef\xbf\xbd|\xef\xbf\xbd"
                 "a|");
    tokenizer_close(t);
}

static void check_refused(const char *json, const char *expected)
{
    struct err e = {0};
    struct tokenizer *t = tokenizer_parse(json, strlen(json), &e);
    assert_null(t);
    assert_true(e.code < 0);
    if (!strstr(e.msg, expected)) fail_msg("\"%s\" is not in \"%s\"", expected, e.msg);
}

static void test_refusals(void **state)
{
    check_refused("", "not JSON");
    check_refused("{} x", "behind the JSON");
    check_refused("[]", "top level: must be an object");
    check_refused("{}", "model: missing");
    check_refused("{\"model\":{\"vocab\":[]}}", "model.vocab: must be an object");
    check_refused("{\"model\":{\"vocab\":{\"a\":0.5}}}", "model.vocab: \"a\": the id must be an integer");
    check_refused("{\"model\":{\"vocab\":{\"a\":99999999999}}}", "model.vocab: \"a\"");
    check_refused("{\"model\":{\"vocab\":{\"a\":0,\"b\":0}}}", "model.vocab: \"b\": id 0 is already \"a\"");
    check_refused("{\"model\":{\"vocab\":{\"a\":0,\"a\":1}}}", "model.vocab: \"a\": listed twice");
    check_refused("{\"model\":{\"vocab\":{\"a\":0}}}", "model.merges: missing");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "model.merges[0]: \"aa\" is not in");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "model.merges[0]: must be");
    check_refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}", "model: unk_token \"u\"");
    check_refused("{\"model\":{\"type\":\"Quadgram\"}}", "model: type \"Quadgram\"");
    check_refused("{\"model\":{\"vocab\":{\"\\u0000\":0}}}", "byte 20: a NUL");
    check_refused("{\"model\":{\"vocab\":{\"\xff\":0}}}", "byte 20: not UTF-8");
    check_refused(BYTE_FILE("{}", ""), "added_tokens[0].id: must be an integer");
    check_refused(BYTE_FILE("{\"id\":1}", ""), "added_tokens[0].content: missing");
    check_refused(BYTE_FILE("", ",\"normalizer\":{\"type\":\"Quadnorm\"}"), "normalizer: normalizer type \"Quadnorm\"");
    check_refused(BYTE_FILE("", ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}"), "normalizer.pattern");
}

static void test_recursion(void **state)
{
    struct buf b = {0};
    buf_str(&b, "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":");
    for (int i = 0; i < 50; i++) buf_str(&b, "{\"type\":\"Sequence\",\"normalizers\":[");
    buf_str(&b, "{\"type\":\"NFC\"}");
    for (int i = 0; i < 50; i++) buf_str(&b, "]}");
    buf_str(&b, "}");
    check_refused(b.data, "nested too deep");
    buf_clear(&b);
    for (int i = 0; i < 100000; i++) buf_char(&b, '[');
    check_refused(b.data, "not JSON");
    buf_free(&b);
}

/* Replace may lengthen a text, Sequence may repeat it: growth must end in an error, not in all the memory. */
static void test_growth(void **state)
{
    struct buf b = {0};
    buf_str(&b,
            "{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 40; i++)
        buf_printf(&b, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaa\"}",
                   i ? "," : "");
    buf_str(&b, "]}}");
    struct tokenizer *t = parse(b.data);
    struct tokens out = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, "a", 1, 0, &out, &e), ERR_NOMEM);
    assert_non_null(strstr(e.msg, "too large"));
    tokens_free(&out);
    tokenizer_close(t);
    buf_free(&b);
}

static void *encode_many(void *arg)
{
    for (int i = 0; i < 300; i++) check_encode(arg, "ab ab<end>\xc3\xa9", 0, "2:0-2 4:2-5 10:5-10 8:10-11");
    return NULL;
}

static void test_threads(void **state)
{
    struct tokenizer *t = parse(BYTE_FILE("{\"id\":10,\"content\":\"<end>\",\"special\":true}", ""));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_many, t), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    tokenizer_close(t);
}

static void test_open(void **state)
{
    struct err e = {0};
    assert_null(tokenizer_open("/nonexistent/tokenizer.json", &e));
    assert_int_equal(e.code, ERR_NOT_FOUND);
    assert_non_null(strstr(e.msg, "/nonexistent/tokenizer.json"));
    tokenizer_close(NULL);
}

#define BERT_TEMPLATE "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",2],\"cls\":[\"[CLS]\",1]}"
#define BERT_FILE                                                                                                      \
    "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"[UNK]\":0,\"[CLS]\":1,\"[SEP]\":2,\"un\":3,\"##able\":4,\"##a\":" \
    "5,"                                                                                                               \
    "\"a\":6,\"##b\":7}},\"normalizer\":{\"type\":\"BertNormalizer\"},\"pre_tokenizer\":{\"type\":"                    \
    "\"BertPreTokenizer\"},"                                                                                           \
    "\"decoder\":{\"type\":\"WordPiece\"}," BERT_TEMPLATE "}"

/* "id/type ..." */
static void check_input(const struct tokenizer *t, struct encode_input in, const char *expected)
{
    struct tokens got = {0};
    struct buf types = {0}, b = {0};
    struct err e = {0};
    in.n_text = strlen(in.text);
    in.n_pair = in.pair ? strlen(in.pair) : 0;
    buf_str(&b, "");
    if (tokenizer_encode_input(t, &in, TOKENIZE_SPECIAL, &got, &types, &e)) buf_str(&b, e.msg);
    for (size_t i = 0; i < got.n; i++) buf_printf(&b, "%s%d/%d", i ? " " : "", (int)got.v[i].id, types.data[i]);
    assert_string_equal(b.data, expected);
    buf_free(&b);
    buf_free(&types);
    tokens_free(&got);
}

static void test_wordpiece(void **state)
{
    struct tokenizer *t = parse(BERT_FILE);
    check_encode(t,
                 "Un\xc3\xa1"
                 "ble una x A",
                 TOKENIZE_SPECIAL, "1:0-0 3:0-2 4:2-6 3:7-9 5:9-10 0:11-12 6:13-14 2:0-0");
    check_decode(t, IDS(3, 4, 6, 5), false, "unable aa");
    check_input(t, (struct encode_input){.text = "una", .pair = "a a"}, "1/0 3/0 5/0 2/0 6/1 6/1 2/1");
    check_input(t, (struct encode_input){.text = "una", .pair = "a a", .max = 6}, "1/0 3/0 2/0 6/1 6/1 2/1");
    check_input(t, (struct encode_input){.text = "una", .max = 3, .cut_left = true}, "1/0 5/0 2/0");
    check_input(t, (struct encode_input){.text = "una", .max = 1},
                "2 tokens are added to every text, more than the limit of 1");
    tokenizer_close(t);
}

static void test_unigram(void **state)
{
    struct tokenizer *t =
        parse("{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1],"
              "[\"ab\",-1.5],[\"ba\",-1.5],[\"aba\",-4]]}}");
    check_encode(t, "aba", 0, "1:0-1 4:1-3"); /* equal sums: the one found first */
    check_encode(t, "abxyab", 0, "3:0-2 0:2-4 3:4-6");
    tokenizer_close(t);
    t = parse("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",-1]]}}");
    struct tokens out = {0};
    struct err e = {0};
    assert_int_equal(tokenizer_encode(t, "ab", 2, 0, &out, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "U+0062 is in no piece"));
    tokens_free(&out);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_byte_level),    cmocka_unit_test(test_names),       cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_sentencepiece), cmocka_unit_test(test_broken_utf8), cmocka_unit_test(test_stream),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_recursion),   cmocka_unit_test(test_growth),
        cmocka_unit_test(test_threads),       cmocka_unit_test(test_open),        cmocka_unit_test(test_wordpiece),
        cmocka_unit_test(test_unigram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
