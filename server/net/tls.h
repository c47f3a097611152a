/* TLS as a filter between two streams of bytes: what a socket brings goes in, requests come out, and back.  It has no
 * socket, no clock and no libuv: sock.c moves the bytes, so conn.c never knows.  OpenSSL does the work.
 *
 *      socket --tls_feed, tls_read--> conn_input            sock_write --tls_write, tls_seal--> socket
 *
 * TLS 1.2 and 1.3, forward secret ciphers with authentication only; ALPN is http/1.1 (or 1.0), or refused where a
 * client offers others only; no renegotiation, no compression, no early data, tickets instead of a cache of sessions.
 * A handshake has the time that a first request has (header-timeout): until it is over conn.c has not seen a byte.
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
/* Reads both again; connections from now on get them.  A fault in them changes nothing. */
int tls_reload(struct tls *, struct err *e);
void tls_close(struct tls *);                /* after its last connection */
const char *tls_expires(const struct tls *); /* when the certificate does: "2027-01-31T12:00:00Z" */
int64_t tls_expires_at(const struct tls *);  /* the same in seconds since the epoch; 0: unknown */

/* ---- a connection ---------------------------------------------------------------------------------------------- */

struct tls_link;

enum tls_state {
    TLS_MORE = 0,   /* all that was fed is used: more is needed */
    TLS_END = -1,   /* the client has said that it sends no more */
    TLS_BAD = -2,   /* no TLS, or a broken one; what is sealed says so to the client */
    TLS_PLAIN = -3, /* a request in plain HTTP: what is sealed answers it, in plain */
};

struct tls_link *tls_link_new(struct tls *); /* NULL: no memory */
void tls_link_free(struct tls_link *);

/* Bytes from the socket.  They are used, not copied: tls_read until it says other than "more to read". */
void tls_feed(struct tls_link *, const void *p, size_t n);
/* > 0: so many bytes of the client's are in out; otherwise an enum tls_state. */
int tls_read(struct tls_link *, void *out, size_t size);

/* Takes over what is in *plain, which is left empty; what is taken is encrypted when tls_seal asks for it. */
void tls_write(struct tls_link *, struct buf *plain);
size_t tls_waiting(const struct tls_link *); /* bytes taken over and not yet encrypted */
/* Appends to *out what is to go out: messages of TLS itself, and up to some 64 KiB of what waits, encrypted.  False
 * when there was nothing, or nothing can go out yet. */
bool tls_seal(struct tls_link *, struct buf *out);
bool tls_pending(const struct tls_link *); /* tls_seal has something */
bool tls_broken(const struct tls_link *);  /* nothing more can be read or sent, but what is sealed */
/* Our last word (close_notify), to be sealed after all that waits. */
void tls_bye(struct tls_link *);

#endif
