/* TLS as a filter between two byte streams: encrypted bytes of the socket and plain bytes of the connection.  It has no
 * socket, no clock and no libuv: sock.c moves the bytes, so conn.c does not depend on TLS.  Uses OpenSSL.
 *
 *      socket --tls_feed, tls_read--> conn_input            sock_write --tls_write, tls_seal--> socket
 *
 * TLS 1.2 and 1.3, forward secret ciphers with authentication only; ALPN is http/1.1 (or 1.0), refused where a client
 * offers only others; no renegotiation, no compression, no early data, session tickets instead of a session cache.  The
 * handshake counts towards the timeout of the first request's head (header-timeout).
 *
 * Loop thread only. */
#ifndef TANDEM_SERVER_NET_TLS_H
#define TANDEM_SERVER_NET_TLS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- the certificate ------------------------------------------------------------------------------------------- */

struct tls;

/* Reads the certificate with its chain, and its key: PEM, no passphrase.  NULL with *e. */
struct tls *tls_open(const char *cert, const char *key, struct err *e);
/* Reads both files again, for new connections.  An error in them changes nothing. */
int tls_reload(struct tls *, struct err *e);
void tls_close(struct tls *);                /* after its last connection */
const char *tls_expires(const struct tls *); /* of the certificate: "2027-01-31T12:00:00Z" */
int64_t tls_expires_at(const struct tls *);  /* the same in seconds since the epoch; 0: unknown */

/* ---- a connection ---------------------------------------------------------------------------------------------- */

struct tls_link;

enum tls_state {
    TLS_MORE = 0,   /* all fed bytes are consumed: more are needed */
    TLS_END = -1,   /* the client has closed its sending side */
    TLS_BAD = -2,   /* not TLS, or a protocol error; the sealed bytes are the alert for the client */
    TLS_PLAIN = -3, /* a plain HTTP request: the sealed bytes are a plain HTTP answer */
};

struct tls_link *tls_link_new(struct tls *); /* NULL: no memory */
void tls_link_free(struct tls_link *);

/* Feeds bytes from the socket.  Not copied: call tls_read until it returns <= 0, before p becomes invalid. */
void tls_feed(struct tls_link *, const void *p, size_t n);
/* @return > 0: decrypted bytes written to out; otherwise an enum tls_state. */
int tls_read(struct tls_link *, void *out, size_t size);

/* Moves the bytes out of *plain, which is left empty; tls_seal encrypts them. */
void tls_write(struct tls_link *, struct buf *plain);
size_t tls_waiting(const struct tls_link *); /* bytes not yet encrypted */
/* Appends encrypted output to *out: TLS protocol messages, and up to about 64 KiB of the queued bytes.  @return false
 * when there was none, or none can be sent yet. */
bool tls_seal(struct tls_link *, struct buf *out);
bool tls_pending(const struct tls_link *); /* tls_seal has output */
bool tls_broken(const struct tls_link *);  /* only the sealed bytes can still be sent */
/* Queues close_notify after all queued bytes. */
void tls_close_notify(struct tls_link *);

#endif
