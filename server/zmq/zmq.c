/* KV events over ZeroMQ, as vLLM publishes them: a PUB socket with messages of topic, sequence number and payload, and
 * a ROUTER socket that sends earlier ones again.  It is an XPUB socket, which is the same but for saying who
 * subscribes. A module of its own (server/kvevents/module.c), so that only a daemon that publishes has ZeroMQ in it.
 *
 * Neither socket ever waits: XPUB drops for a subscriber that is too far behind, which then asks for what it missed. */
#include "server/zmq/pack.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

/* Messages for each subscriber.  What is sent to several is in memory once; those of an engine that posts everything
 * have some 90 KB each. */
enum { QUEUE = 1000, ANSWERS = 64 };
enum { FROM_PEERS = 1024 /* bytes of a part */, AT_ONCE = 64 /* of their messages */, LINGER_MS = 500, SEQUENCE = 8 };

struct sockets {
    void *context, *publish, *replay;
    bool listens;
};

static void close_all(void *state)
{
    struct sockets *s = state;
    if (s->publish) zmq_close(s->publish);
    if (s->replay) zmq_close(s->replay);
    if (s->context) zmq_ctx_term(s->context);
    free(s);
}

static bool failed(const char *what, const char *endpoint, char why[KV_WIRE_WHY])
{
    snprintf(why, KV_WIRE_WHY, "%.100s: %s: %s", endpoint, what, zmq_strerror(zmq_errno()));
    return false;
}

static bool set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

/* Peers send subscriptions and requests only: without a limit, one of them could fill the memory. */
static bool limit_size(void *socket)
{
    const int64_t size = FROM_PEERS;
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &size, sizeof size) == 0;
}

static bool skip(const char **text, const char *prefix)
{
    size_t n = strlen(prefix);
    if (strncmp(*text, prefix, n) != 0) return false;
    *text += n;
    return true;
}

/* vLLM's rule, where no prefix says it. */
static bool is_bound(const char **endpoint)
{
    if (skip(endpoint, "listen:")) return true;
    if (skip(endpoint, "connect:")) return false;
    return strchr(*endpoint, '*') || strstr(*endpoint, "::") || strncmp(*endpoint, "ipc://", 6) == 0;
}

/* With ZMQ_IPV6, the IPv6 address of a name that has both is connected to, though its machine may listen on IPv4 only.
 * @return whether there is no IPv4 address. */
static bool needs_ipv6(const char *endpoint)
{
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[256];
    const char *end = strrchr(endpoint, ':');
    if (!skip(&endpoint, "tcp://") || *endpoint == '[' || end < endpoint || (size_t)(end - endpoint) >= sizeof host)
        return true;
    memcpy(host, endpoint, (size_t)(end - endpoint));
    host[end - endpoint] = 0;
    if (getaddrinfo(host, NULL, &hints, &found)) return true;
    freeaddrinfo(found);
    return false;
}

/* IPv4 and IPv6, where the machine has both. */
static bool listens(void *socket, const char *endpoint)
{
    set(socket, ZMQ_IPV6, 1);
    if (zmq_bind(socket, endpoint) == 0) return true;
    set(socket, ZMQ_IPV6, 0);
    return zmq_bind(socket, endpoint) == 0;
}

static bool open_publish(struct sockets *s, const char *endpoint, char why[KV_WIRE_WHY])
{
    s->publish = zmq_socket(s->context, ZMQ_XPUB);
    if (!s->publish || !set(s->publish, ZMQ_XPUB_VERBOSE, 1) || !set(s->publish, ZMQ_SNDHWM, QUEUE) ||
        !limit_size(s->publish) || !set(s->publish, ZMQ_LINGER, LINGER_MS))
        return failed("a ZeroMQ socket", endpoint, why);
    s->listens = is_bound(&endpoint);
    if (s->listens) return listens(s->publish, endpoint) || failed("cannot listen", endpoint, why);
    if (strncmp(endpoint, "tcp://0.0.0.0:", 14) == 0) {
        snprintf(why, KV_WIRE_WHY,
                 "%.100s: nobody can be connected to there; tcp://*:PORT listens on all addresses, and "
                 "listen:tcp://ADDRESS:PORT on one",
                 endpoint);
        return false;
    }
    set(s->publish, ZMQ_IPV6, needs_ipv6(endpoint));
    return zmq_connect(s->publish, endpoint) == 0 || failed("cannot connect", endpoint, why);
}

static bool open_replay(struct sockets *s, const char *endpoint, char why[KV_WIRE_WHY])
{
    if (!*endpoint) return true;
    skip(&endpoint, "listen:");
    s->replay = zmq_socket(s->context, ZMQ_ROUTER);
    if (!s->replay || !set(s->replay, ZMQ_SNDHWM, ANSWERS) || !set(s->replay, ZMQ_RCVHWM, ANSWERS) ||
        !set(s->replay, ZMQ_ROUTER_MANDATORY, 1) || !set(s->replay, ZMQ_LINGER, LINGER_MS) || !limit_size(s->replay))
        return failed("a ZeroMQ socket", endpoint, why);
    return listens(s->replay, endpoint) || failed("cannot listen", endpoint, why);
}

static void put_sequence(unsigned char out[SEQUENCE], uint64_t n)
{
    for (int i = 0; i < SEQUENCE; i++) out[i] = (unsigned char)(n >> (8 * (SEQUENCE - 1 - i)));
}

static void send_event(void *state, const char *topic, uint64_t sequence, const void *payload, size_t n)
{
    struct sockets *s = state;
    unsigned char number[SEQUENCE];
    put_sequence(number, sequence);
    if (zmq_send(s->publish, topic, strlen(topic), ZMQ_SNDMORE) >= 0 &&
        zmq_send(s->publish, number, sizeof number, ZMQ_SNDMORE) >= 0)
        zmq_send(s->publish, payload, n, 0);
}

static void wait_for(void *state, int fd, bool requests, int ms)
{
    struct sockets *s = state;
    zmq_pollitem_t v[] = {{.fd = fd, .events = ZMQ_POLLIN},
                          {.socket = s->publish, .events = ZMQ_POLLIN},
                          {.socket = s->replay, .events = ZMQ_POLLIN}};
    zmq_poll(v, s->replay && requests ? 3 : 2, ms);
}

/* @return the bytes of the next part, of which at most `cap` are kept; -1: none is there. */
static int receive(void *socket, void *data, size_t cap, int *more)
{
    size_t size = sizeof *more;
    int n = zmq_recv(socket, data, cap, ZMQ_DONTWAIT);
    if (n < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, more, &size)) *more = 0;
    return n;
}

/* A message is 1 and the topic, or 0 and the topic of one that has gone. */
static bool subscribed(void *state)
{
    struct sockets *s = state;
    unsigned char first;
    bool any = false;
    for (int i = 0, n; i < AT_ONCE && (n = zmq_recv(s->publish, &first, 1, ZMQ_DONTWAIT)) >= 0; i++)
        any |= n > 0 && first == 1;
    return any;
}

/* A client's id, an empty part, a sequence number.  Other messages are dropped. */
static bool take(void *state, struct kv_wire_request *r)
{
    struct sockets *s = state;
    unsigned char number[SEQUENCE], rest[1];
    int more = 0;
    for (int tries = 0; s->replay && tries < AT_ONCE; tries++) {
        int n = receive(s->replay, r->client, sizeof r->client, &more), empty = -1, bytes = -1;
        if (n < 0) return false;
        bool good = n > 0 && (size_t)n <= sizeof r->client && more;
        if (good) empty = receive(s->replay, rest, sizeof rest, &more);
        if (good && more) bytes = receive(s->replay, number, sizeof number, &more);
        good = good && empty == 0 && bytes == SEQUENCE && !more;
        while (more) receive(s->replay, rest, sizeof rest, &more);
        if (!good) continue;
        r->n_client = (size_t)n;
        r->from = 0;
        for (int i = 0; i < SEQUENCE; i++) r->from = r->from << 8 | number[i];
        return true;
    }
    return false;
}

static enum kv_wire_sent answer(void *state, const struct kv_wire_request *r, uint64_t sequence, const void *payload,
                                size_t n, const char *topic)
{
    struct sockets *s = state;
    unsigned char number[SEQUENCE];
    put_sequence(number, sequence);
    /* only the first part can be refused: what follows belongs to the same message */
    if (zmq_send(s->replay, r->client, r->n_client, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return zmq_errno() == EAGAIN ? KV_WIRE_FULL : KV_WIRE_GONE;
    zmq_send(s->replay, "", 0, ZMQ_SNDMORE);
    zmq_send(s->replay, number, sizeof number, ZMQ_SNDMORE);
    zmq_send(s->replay, payload ? payload : "", payload ? n : 0, topic ? ZMQ_SNDMORE : 0);
    if (topic) zmq_send(s->replay, topic, strlen(topic), 0);
    return KV_WIRE_SENT;
}

__attribute__((visibility("default"))) kv_wire_open_fn tandem_zmq_open;

bool tandem_zmq_open(int version, const struct kv_wire_config *c, struct kv_wire *out, char why[KV_WIRE_WHY])
{
    if (version != KV_WIRE_VERSION)
        return snprintf(why, KV_WIRE_WHY, "the module for ZeroMQ is of another version of tandem"), false;
    struct sockets *s = calloc(1, sizeof *s);
    if (!s || !(s->context = zmq_ctx_new())) {
        free(s);
        return snprintf(why, KV_WIRE_WHY, "no memory for ZeroMQ"), false;
    }
    if (!open_publish(s, c->endpoint, why) || !open_replay(s, c->replay, why)) {
        close_all(s);
        return false;
    }
    *out = (struct kv_wire){.state = s,
                            .listens = s->listens,
                            .pack = kv_pack,
                            .send = send_event,
                            .subscribed = subscribed,
                            .wait = wait_for,
                            .take = take,
                            .answer = answer,
                            .close = close_all};
    return true;
}
