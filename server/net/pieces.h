/* An answer that is made and sent piece by piece, one a turn of the loop, and no further ahead of the client than the
 * connection's output limit: neither the loop's time nor memory grows with it.  Loop thread only. */
#ifndef TANDEM_SERVER_NET_PIECES_H
#define TANDEM_SERVER_NET_PIECES_H

#include "engine/base/buf.h"

#include <stdbool.h>

struct http_req;

enum { PIECE_BYTES = 16 * 1024 }; /* about so much in a piece: less than a millisecond's work */

/* Appends the next PIECE_BYTES or so.  False: that was the last. */
typedef bool piece_fn(void *arg, struct buf *out);

struct pieces {
    struct http_req *req;
    piece_fn *next;
    void *arg;
};

/* Answers 200.  One piece is a whole answer with its length; more are a stream, and req->on_drain then has to call
 * pieces_more.  arg must live until on_close. */
void pieces_begin(struct pieces *, struct http_req *, const char *type, piece_fn *next, void *arg);
void pieces_more(struct pieces *);

#endif
