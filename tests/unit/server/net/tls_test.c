/* server/net/tls.c against OpenSSL's client, both in memory: handshakes in one piece and byte by byte, large texts both
 * ways, the end, and what is refused. */
#include "engine/base/buf.h"
#include "server/net/tls.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char pem[64], other_pem[64];
static struct tls *tls;
static struct err e;

/* ---- memory: the n-th allocation of OpenSSL fails ------------------------------------------------------------------
 */

static long fail_in; /* 1: the next one; 0: none */

static bool fails(void)
{
    return fail_in > 0 && --fail_in == 0;
}

static void *weak_malloc(size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return fails() ? NULL : malloc(n);
}

static void *weak_realloc(void *p, size_t n, const char *file, int line)
{
    (void)file, (void)line;
    return fails() ? NULL : realloc(p, n);
}

static void weak_free(void *p, const char *file, int line)
{
    (void)file, (void)line;
    free(p);
}

/* Whether it went off. */
static bool disarm(void)
{
    bool fired = fail_in == 0;
    fail_in = 0;
    return fired;
}

/* ---- certificates ---------------------------------------------------------------------------------------------- */

/* A P-256 key and a certificate for it, signed by itself, good for so many seconds; both in one file. */
static void make_pem(char out[static 64], const char *name, long seconds)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    assert_true(key && cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), seconds);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    X509_set_pubkey(cert, key);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    snprintf(out, 64, "/tmp/tandem-tls-%d-%s.pem", (int)getpid(), name);
    FILE *f = fopen(out, "w");
    assert_non_null(f);
    PEM_write_X509(f, cert);
    PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL);
    fclose(f);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static int setup(void **state)
{
    (void)state;
    make_pem(pem, "one", 86400 * 365);
    make_pem(other_pem, "two", -60);
    tls = tls_open(pem, pem, &e);
    assert_non_null(tls);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tls_close(tls);
    unlink(pem);
    unlink(other_pem);
    return 0;
}

/* ---- the client ------------------------------------------------------------------------------------------------ */

struct client {
    SSL_CTX *ctx;
    SSL *ssl;
    BIO *in, *out; /* the SSL's */
};

static struct client client_new(int version, const char *alpn)
{
    struct client c = {
        .ctx = SSL_CTX_new(TLS_client_method()), .in = BIO_new(BIO_s_mem()), .out = BIO_new(BIO_s_mem())};
    assert_non_null(c.ctx);
    SSL_CTX_set_security_level(c.ctx, 0);
    SSL_CTX_set_min_proto_version(c.ctx, version);
    SSL_CTX_set_max_proto_version(c.ctx, version);
    c.ssl = SSL_new(c.ctx);
    if (alpn) SSL_set_alpn_protos(c.ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn));
    SSL_set_bio(c.ssl, c.in, c.out);
    SSL_set_connect_state(c.ssl);
    return c;
}

static void client_free(struct client *c)
{
    SSL_free(c->ssl);
    SSL_CTX_free(c->ctx);
    ERR_clear_error();
}

/* Gives the link what the client has to say, `piece` bytes at a time; what comes out is appended to *got.  The link's
 * opinion after the last piece. */
static int to_link(struct client *c, struct tls_link *l, size_t piece, struct buf *got)
{
    char bytes[40000], text[5000];
    int n, state = TLS_MORE;
    while ((n = BIO_read(c->out, bytes, sizeof bytes)) > 0) {
        for (size_t at = 0; at < (size_t)n && state == TLS_MORE; at += piece) {
            size_t k = (size_t)n - at < piece ? (size_t)n - at : piece;
            char *copy = malloc(k); /* what is fed may be gone afterwards */
            memcpy(copy, bytes + at, k);
            tls_feed(l, copy, k);
            while ((state = tls_read(l, text, sizeof text)) > 0) buf_append(got, text, (size_t)state);
            free(copy);
        }
    }
    return state;
}

static size_t to_client(struct client *c, struct tls_link *l)
{
    struct buf out = {0};
    while (tls_seal(l, &out)) {
        /* more may follow */
    }
    if (out.len) assert_int_equal(BIO_write(c->in, out.data, (int)out.len), out.len);
    size_t n = out.len;
    buf_free(&out);
    return n;
}

/* Until neither has anything to say; -> the link's last opinion. */
static int shake(struct client *c, struct tls_link *l, size_t piece)
{
    struct buf got = {0};
    int state = TLS_MORE;
    for (int i = 0; i < 20 && state == TLS_MORE; i++) {
        SSL_do_handshake(c->ssl);
        state = to_link(c, l, piece, &got);
        to_client(c, l);
    }
    assert_int_equal(got.len, 0);
    buf_free(&got);
    return state;
}

static void check_both_ways(struct client *c, struct tls_link *l, size_t piece)
{
    struct buf got = {0}, sent = {0};
    char text[20000];
    assert_true(SSL_write(c->ssl, "hello", 5) == 5);
    assert_int_equal(to_link(c, l, piece, &got), TLS_MORE);
    assert_string_equal(got.data, "hello");
    for (int i = 0; i < 300000; i++) buf_char(&sent, (char)('a' + i % 23));
    buf_clear(&got);
    struct buf copy = {0};
    buf_append(&copy, sent.data, sent.len);
    tls_write(l, &copy);
    assert_int_equal(copy.len, 0);
    assert_int_equal(tls_waiting(l), 300000);
    struct buf out = {0};
    assert_true(tls_pending(l) && tls_seal(l, &out));
    assert_true(out.len < 80000 && tls_waiting(l) > 200000); /* a piece at a time */
    BIO_write(c->in, out.data, (int)out.len);
    buf_append(&copy, "the end", 7);
    tls_write(l, &copy); /* behind what waits */
    to_client(c, l);
    assert_true(tls_waiting(l) == 0 && !tls_pending(l));
    for (int n; (n = SSL_read(c->ssl, text, sizeof text)) > 0;) buf_append(&got, text, (size_t)n);
    buf_append(&sent, "the end", 7);
    assert_int_equal(got.len, sent.len);
    assert_memory_equal(got.data, sent.data, sent.len);
    buf_free(&got);
    buf_free(&sent);
    buf_free(&copy);
    buf_free(&out);
}

static void test_both_versions_in_pieces(void **state)
{
    (void)state;
    static const int versions[] = {TLS1_2_VERSION, TLS1_3_VERSION};
    static const size_t pieces[] = {1, 7, 40000};
    for (int v = 0; v < 2; v++) {
        for (int p = 0; p < 3; p++) {
            struct client c = client_new(versions[v], "\x02h2\x08http/1.1");
            struct tls_link *l = tls_link_new(tls);
            const unsigned char *chosen;
            unsigned n;
            assert_false(tls_seal(l, &(struct buf){0})); /* the client speaks first */
            assert_int_equal(shake(&c, l, pieces[p]), TLS_MORE);
            assert_int_equal(SSL_version(c.ssl), versions[v]);
            SSL_get0_alpn_selected(c.ssl, &chosen, &n);
            assert_true(n == 8 && memcmp(chosen, "http/1.1", 8) == 0);
            check_both_ways(&c, l, pieces[p]);
            tls_link_free(l);
            client_free(&c);
        }
    }
}

static void test_the_end(void **state)
{
    (void)state;
    struct client c = client_new(TLS1_3_VERSION, NULL);
    struct tls_link *l = tls_link_new(tls);
    struct buf got = {0}, last = {0};
    char text[100];
    shake(&c, l, 1000);
    buf_str(&last, "last");
    tls_write(l, &last);
    tls_close_notify(l);
    to_client(&c, l);
    assert_int_equal(SSL_read(c.ssl, text, sizeof text), 4); /* what waited goes first */
    assert_int_equal(SSL_get_error(c.ssl, SSL_read(c.ssl, text, sizeof text)), SSL_ERROR_ZERO_RETURN);
    SSL_write(c.ssl, "bye", 3);
    SSL_shutdown(c.ssl);
    assert_int_equal(to_link(&c, l, 1, &got), TLS_END); /* it may still talk until it says so too */
    assert_string_equal(got.data, "bye");
    tls_feed(l, "more", 4);
    assert_int_equal(tls_read(l, text, sizeof text), TLS_END);
    buf_free(&got);
    buf_free(&last);
    tls_link_free(l);
    client_free(&c);
}

static void test_what_is_refused(void **state)
{
    (void)state;
    struct {
        int version;
        const char *alpn;
    } cases[] = {{TLS1_1_VERSION, NULL}, {TLS1_3_VERSION, "\x02h2"}};
    for (int i = 0; i < 2; i++) {
        struct client c = client_new(cases[i].version, cases[i].alpn);
        struct tls_link *l = tls_link_new(tls);
        assert_int_equal(shake(&c, l, 1000), TLS_BAD);
        assert_true(tls_broken(l));
        assert_int_equal(SSL_do_handshake(c.ssl), -1); /* an alert said so */
        assert_int_equal(ERR_GET_LIB(ERR_peek_error()), ERR_LIB_SSL);
        tls_link_free(l);
        client_free(&c);
    }
}

static void test_garbage(void **state)
{
    (void)state;
    static const char *const texts[] = {"\x16\x03\x01\xff\xff????", "SSH-2.0-OpenSSH_9\r\n", "\x17\x03\x03\x7f\x7f?"};
    char text[100];
    struct buf out = {0};
    for (int i = 0; i < 3; i++) {
        struct tls_link *l = tls_link_new(tls);
        tls_feed(l, texts[i], strlen(texts[i]));
        int opinion = tls_read(l, text, sizeof text);
        if (opinion != TLS_BAD) fail_msg("text %d: %d", i, opinion);
        assert_int_equal(tls_read(l, text, sizeof text), TLS_BAD);
        buf_str(&out, "never sent");
        tls_write(l, &out);
        while (tls_seal(l, &out)) buf_clear(&out);
        assert_false(tls_pending(l));
        tls_link_free(l);
    }
    struct tls_link *l = tls_link_new(tls);
    tls_feed(l, "GET / HTTP/1.1\r\n\r\n", 18);
    assert_int_equal(tls_read(l, text, sizeof text), TLS_PLAIN);
    buf_clear(&out);
    assert_true(tls_seal(l, &out));
    assert_non_null(strstr(out.data, "HTTP/1.1 400 "));
    buf_free(&out);
    tls_link_free(l);
}

static void test_no_renegotiation(void **state)
{
    (void)state;
    struct client c = client_new(TLS1_2_VERSION, NULL);
    struct tls_link *l = tls_link_new(tls);
    struct buf got = {0};
    char text[10];
    assert_int_equal(shake(&c, l, 1000), TLS_MORE);
    for (int i = 0; i < 3; i++) {
        if (SSL_renegotiate(c.ssl) != 1) break;
        SSL_do_handshake(c.ssl);
        to_link(&c, l, 1000, &got);
        to_client(&c, l);
        SSL_read(c.ssl, text, sizeof text); /* the refusal */
        ERR_clear_error();
    }
    assert_int_equal(got.len, 0);
    assert_int_equal(SSL_num_renegotiations(c.ssl), SSL_total_renegotiations(c.ssl));
    assert_true(SSL_renegotiate_pending(c.ssl) || SSL_get_error(c.ssl, -1) == SSL_ERROR_SSL);
    buf_free(&got);
    tls_link_free(l);
    client_free(&c);
}

static void test_files(void **state)
{
    (void)state;
    assert_null(tls_open("/nonexistent", pem, &e));
    assert_non_null(strstr(e.msg, "/nonexistent: no certificate"));
    assert_null(tls_open(pem, "/nonexistent", &e));
    assert_non_null(strstr(e.msg, "/nonexistent: no private key"));
    assert_null(tls_open(pem, other_pem, &e));
    assert_non_null(strstr(e.msg, "private key"));
    struct tls *old = tls_open(other_pem, other_pem, &e); /* expired: said in the log, and the clients' to refuse */
    assert_non_null(old);
    tls_close(old);
}

/* New connections get the new certificate, those that are there go on; a fault changes nothing. */
static void test_reload(void **state)
{
    (void)state;
    char name[64];
    make_pem(name, "three", 86400 * 30);
    struct tls *t = tls_open(name, name, &e);
    assert_non_null(t);
    char before[32];
    snprintf(before, sizeof before, "%s", tls_expires(t));
    struct client c = client_new(TLS1_3_VERSION, NULL);
    struct tls_link *l = tls_link_new(t);
    assert_int_equal(shake(&c, l, 1000), TLS_MORE);

    FILE *f = fopen(name, "w");
    fputs("broken", f);
    fclose(f);
    assert_int_equal(tls_reload(t, &e), ERR_INVALID);
    assert_string_equal(tls_expires(t), before);
    make_pem(name, "three", 86400 * 60);
    assert_int_equal(tls_reload(t, &e), 0);
    assert_string_not_equal(tls_expires(t), before);

    check_both_ways(&c, l, 1000);
    tls_link_free(l);
    client_free(&c);
    tls_close(t);
    unlink(name);
}

/* Opening and reading again with the n-th allocation failing: an error, or success in spite of it; the old certificate
 * stays.  n grows by a part of itself, which is enough to visit every stage. */
static void test_open_without_memory(void **state)
{
    (void)state;
    int failed = 0;
    bool fired = true;
    for (long n = 1; fired; n += 1 + n / 8) {
        fail_in = n;
        struct tls *t = tls_open(pem, pem, &e);
        fired = disarm();
        if (!t) {
            failed++;
            assert_true(e.code == ERR_NOMEM || e.code == ERR_INVALID);
        }
        tls_close(t);
        fail_in = n;
        tls_reload(tls, &e);
        disarm();
    }
    assert_true(failed > 10);
    struct client c = client_new(TLS1_3_VERSION, NULL);
    struct tls_link *l = tls_link_new(tls);
    assert_int_equal(shake(&c, l, 1000), TLS_MORE); /* as if nothing had been */
    tls_link_free(l);
    client_free(&c);
}

/* A connection: it is lost, or lives. */
static void test_connect_without_memory(void **state)
{
    (void)state;
    int lost = 0;
    bool fired = true;
    for (long n = 1; fired; n += 1 + n / 8) {
        struct client c = client_new(n % 2 ? TLS1_2_VERSION : TLS1_3_VERSION, NULL);
        SSL_do_handshake(c.ssl);
        char hello[2000], text[100];
        int size = BIO_read(c.out, hello, sizeof hello);
        assert_true(size > 0);
        fail_in = n;
        struct tls_link *l = tls_link_new(tls);
        if (l) {
            struct buf out = {0};
            tls_feed(l, hello, (size_t)size);
            int opinion = tls_read(l, text, sizeof text);
            assert_true(opinion == TLS_MORE || opinion == TLS_BAD);
            lost += opinion == TLS_BAD;
            tls_seal(l, &out);
            buf_free(&out);
        }
        fired = disarm();
        lost += !l;
        tls_link_free(l);
        client_free(&c);
    }
    assert_true(lost > 5);
}

int main(void)
{
    CRYPTO_set_mem_functions(weak_malloc, weak_realloc, weak_free); /* before anything else of OpenSSL */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_versions_in_pieces),
        cmocka_unit_test(test_the_end),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_no_renegotiation),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_reload),
        cmocka_unit_test(test_open_without_memory),
        cmocka_unit_test(test_connect_without_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
