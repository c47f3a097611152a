/* TLS with OpenSSL, between buffers (tls.h).
 *
 * An SSL reads and writes through a BIO of ours: it reads directly from the fed bytes and writes directly into
 * `sealed`, so that an idle connection keeps no buffers (SSL_MODE_RELEASE_BUFFERS frees OpenSSL's own).  OpenSSL
 * buffers an incomplete record itself, so fed bytes are always consumed.
 *
 * Handshakes are computed on the loop thread: 0.6 ms for a new connection with a P-256 key, 0.9 ms with RSA 2048. */
#include "server/net/tls.h"

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

#include <limits.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/sslerr.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SEAL_BYTES = 64 * 1024,  /* encrypted at once */
    KEEP_SEALED = 16 * 1024, /* an emptied buffer up to this size is kept */
    SEALED_MAX = 256 * 1024, /* limit of TLS messages queued for a client that sends but does not read */
    EXPIRES_SOON_S = 14 * 86400,
};

struct tls {
    char *cert, *key;
    BIO_METHOD *method;
    SSL_CTX *ctx;
    char expires[32];
    int64_t expires_at; /* seconds since the epoch; 0: unknown */
};

struct tls_link {
    SSL *ssl;
    const char *in; /* in_len bytes fed but not yet consumed; owned by the caller of tls_feed */
    size_t in_len;
    struct buf sealed; /* for the socket */
    struct buf plain;  /* plain.data[plain_at, plain.len) waits for encryption */
    size_t plain_at;
    bool ready;        /* the handshake is over */
    bool close_notify; /* tls_close_notify was called */
    bool broken;       /* nothing more is read or written */
};

/* ---- the BIO --------------------------------------------------------------------------------------------------- */

static int bio_read(BIO *bio, char *out, int size)
{
    struct tls_link *l = BIO_get_data(bio);
    size_t n = l->in_len < (size_t)size ? l->in_len : (size_t)size;
    BIO_clear_retry_flags(bio);
    if (!n) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(out, l->in, n);
    l->in += n;
    l->in_len -= n;
    return (int)n;
}

static int bio_write(BIO *bio, const char *p, int n)
{
    struct tls_link *l = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    buf_append(&l->sealed, p, (size_t)n);
    return n;
}

static long bio_ctrl(BIO *bio, int command, long a, void *b)
{
    (void)bio, (void)a, (void)b;
    return command == BIO_CTRL_FLUSH; /* no other command is supported, in particular not kernel TLS */
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

/* NULL: no memory. */
static BIO_METHOD *new_method(void)
{
    BIO_METHOD *m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tandem");
    if (m && BIO_meth_set_read(m, bio_read) && BIO_meth_set_write(m, bio_write) && BIO_meth_set_ctrl(m, bio_ctrl) &&
        BIO_meth_set_create(m, bio_create))
        return m;
    BIO_meth_free(m);
    return NULL;
}

/* ---- the certificate ------------------------------------------------------------------------------------------- */

/* Sets *e from OpenSSL's latest error, and clears its error queue. */
static int fail(struct err *e, const char *path, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return err_set(e, ERR_INVALID, "%.200s: %s%s%s", path, what, reason ? ": " : "", reason ? reason : "");
}

/* OpenSSL would prompt for a passphrase on the terminal, which a daemon does not have. */
static int no_passphrase(char *out, int size, int writing, void *arg)
{
    (void)out, (void)size, (void)writing, (void)arg;
    return -1;
}

/* RFC 7301: refuses a client whose list has no supported protocol. */
static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_len, const unsigned char *list,
                           unsigned n, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1\x08http/1.0";
    (void)ssl, (void)arg;
    unsigned char *found;
    int rc = SSL_select_next_proto(&found, out_len, ours, sizeof ours - 1, list, n);
    *out = found;
    return rc == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

/* NULL: no memory. */
static SSL_CTX *new_context(void)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (!ctx || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(ctx, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1) { /* TLS 1.2; all of 1.3 qualify */
        SSL_CTX_free(ctx);
        return NULL;
    }
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(ctx,
                     SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_default_passwd_cb(ctx, no_passphrase);
    SSL_CTX_set_alpn_select_cb(ctx, choose_protocol, NULL);
    return ctx;
}

/* Reads when the context's certificate expires: as text, in seconds since the epoch, and in seconds from now. */
static void read_expiry(const SSL_CTX *ctx, char out[static 32], int64_t *at, double *left)
{
    struct tm tm;
    int days = 0, seconds = 0;
    const X509 *cert = SSL_CTX_get0_certificate(ctx);
    snprintf(out, 32, "unknown");
    *left = 1e9;
    *at = 0;
    if (!cert || !ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm)) return;
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
    *at = timegm(&tm);
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(cert))) *left = days * 86400.0 + seconds;
}

/* OpenSSL opens the file itself, and would block on a FIFO. */
static int check_regular(const char *path, struct err *e)
{
    size_t size;
    int fd = file_open(path, &size, e);
    if (fd >= 0) close(fd);
    return fd >= 0 || fd == ERR_NOT_FOUND ? 0 : fd; /* OpenSSL reports a missing file */
}

static int load(struct tls *tls, struct err *e)
{
    if (check_regular(tls->cert, e) || check_regular(tls->key, e)) return e->code;
    SSL_CTX *ctx = new_context();
    int rc = 0;
    if (!ctx) {
        ERR_clear_error();
        return err_set(e, ERR_NOMEM, "no memory for TLS");
    }
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(ctx, tls->cert) != 1)
        rc = fail(e, tls->cert, "no certificate in PEM");
    else if (SSL_CTX_use_PrivateKey_file(ctx, tls->key, SSL_FILETYPE_PEM) != 1)
        rc = fail(e, tls->key, "no private key in PEM for this certificate (without a passphrase)");
    else if (SSL_CTX_check_private_key(ctx) != 1)
        rc = fail(e, tls->key, "not the private key of this certificate");
    if (rc) {
        SSL_CTX_free(ctx);
        return rc;
    }
    SSL_CTX_free(tls->ctx); /* connections hold references to it */
    tls->ctx = ctx;
    double left;
    read_expiry(ctx, tls->expires, &tls->expires_at, &left);
    if (left < EXPIRES_SOON_S)
        log_warn("the certificate %s file=%s expires=%s", left < 0 ? "has expired" : "expires soon", tls->cert,
                 tls->expires);
    return 0;
}

struct tls *tls_open(const char *cert, const char *key, struct err *e)
{
    struct tls *tls = mem_zalloc(sizeof *tls);
    tls->cert = mem_strdup(cert);
    tls->key = mem_strdup(key);
    tls->method = new_method();
    if (!tls->method) err_set(e, ERR_NOMEM, "no memory for TLS");
    if (tls->method && load(tls, e) == 0) return tls;
    tls_close(tls);
    return NULL;
}

int tls_reload(struct tls *tls, struct err *e)
{
    return load(tls, e);
}

void tls_close(struct tls *tls)
{
    if (!tls) return;
    SSL_CTX_free(tls->ctx);
    BIO_meth_free(tls->method);
    free(tls->cert);
    free(tls->key);
    free(tls);
}

const char *tls_expires(const struct tls *tls)
{
    return tls->expires;
}

int64_t tls_expires_at(const struct tls *tls)
{
    return tls->expires_at;
}

/* ---- a connection ---------------------------------------------------------------------------------------------- */

struct tls_link *tls_link_new(struct tls *tls)
{
    struct tls_link *l = mem_zalloc(sizeof *l);
    BIO *bio = BIO_new(tls->method);
    l->ssl = SSL_new(tls->ctx);
    if (!bio || !l->ssl) {
        BIO_free(bio);
        tls_link_free(l);
        ERR_clear_error();
        return NULL;
    }
    BIO_set_data(bio, l);
    SSL_set_bio(l->ssl, bio, bio); /* takes ownership, of one reference */
    SSL_set_accept_state(l->ssl);
    return l;
}

void tls_link_free(struct tls_link *l)
{
    if (!l) return;
    SSL_free(l->ssl);
    buf_free(&l->sealed);
    buf_free(&l->plain);
    free(l);
}

void tls_feed(struct tls_link *l, const void *p, size_t n)
{
    l->in = p;
    l->in_len = n;
}

/* Answers a plain-HTTP client in plain HTTP, which tells its user more than a TLS alert. */
static int answer_plain(struct tls_link *l)
{
    static const char body[] = "this port speaks HTTPS\n";
    buf_clear(&l->sealed);
    buf_printf(
        &l->sealed,
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
        sizeof body - 1, body);
    return TLS_PLAIN;
}

static int broken(struct tls_link *l, int rc)
{
    int error = SSL_get_error(l->ssl, rc);
    if (error == SSL_ERROR_WANT_READ) return TLS_MORE;
    l->in_len = 0;
    if (error == SSL_ERROR_ZERO_RETURN) return TLS_END;
    unsigned long code = ERR_peek_error();
    bool plain = ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST;
    ERR_clear_error();
    l->broken = true;
    return plain ? answer_plain(l) : TLS_BAD;
}

int tls_read(struct tls_link *l, void *out, size_t size)
{
    if (l->broken) return TLS_BAD;
    ERR_clear_error(); /* the queue is per thread, and SSL_get_error reads it */
    if (!l->ready) {
        int rc = SSL_do_handshake(l->ssl);
        if (rc != 1) return broken(l, rc);
        l->ready = true;
    }
    int n = SSL_read(l->ssl, out, size < INT_MAX ? (int)size : INT_MAX);
    if (l->sealed.len > SEALED_MAX) { /* the peer sends but never reads: output limit exceeded */
        l->broken = true;
        l->in_len = 0;
        buf_free(&l->sealed);
        return TLS_BAD;
    }
    return n > 0 ? n : broken(l, n);
}

void tls_write(struct tls_link *l, struct buf *plain)
{
    if (tls_waiting(l)) {
        buf_append(&l->plain, plain->data, plain->len);
        buf_clear(plain);
        return;
    }
    struct buf empty = l->plain;
    buf_clear(&empty);
    l->plain = *plain;
    l->plain_at = 0;
    *plain = empty;
}

size_t tls_waiting(const struct tls_link *l)
{
    return l->plain.len - l->plain_at;
}

/* Encrypts up to SEAL_BYTES of the queued bytes. */
static void encrypt(struct tls_link *l)
{
    size_t room = SEAL_BYTES;
    while (room && tls_waiting(l)) {
        size_t n = tls_waiting(l) < room ? tls_waiting(l) : room;
        ERR_clear_error();
        int put = SSL_write(l->ssl, l->plain.data + l->plain_at, (int)n);
        if (put <= 0) { /* the BIO accepts everything, so the connection was shut down, or failed while reading */
            ERR_clear_error();
            l->broken = true;
            return;
        }
        l->plain_at += (size_t)put;
        room -= (size_t)put;
    }
}

/* Frees large buffers once nothing is queued. */
static void tidy(struct tls_link *l)
{
    if (tls_waiting(l)) return;
    l->plain_at = 0;
    buf_clear(&l->plain);
    if (l->plain.cap > SEAL_BYTES) buf_free(&l->plain);
}

bool tls_seal(struct tls_link *l, struct buf *out)
{
    if (l->ready && !l->broken) {
        encrypt(l);
        tidy(l);
        if (l->close_notify && !tls_waiting(l) && !l->broken) {
            l->close_notify = false;
            ERR_clear_error();
            SSL_shutdown(l->ssl);
            ERR_clear_error();
        }
    }
    if (!l->sealed.len) return false;
    if (!out->len) {
        struct buf spare = *out;
        *out = l->sealed;
        l->sealed = spare;
        buf_clear(&l->sealed);
        if (spare.cap > KEEP_SEALED) buf_free(&l->sealed);
        return true;
    }
    buf_append(out, l->sealed.data, l->sealed.len);
    buf_clear(&l->sealed);
    return true;
}

bool tls_pending(const struct tls_link *l)
{
    return l->sealed.len || (l->ready && !l->broken && (l->close_notify || tls_waiting(l)));
}

bool tls_broken(const struct tls_link *l)
{
    return l->broken;
}

void tls_close_notify(struct tls_link *l)
{
    l->close_notify = true;
}
