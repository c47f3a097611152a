/* What carries KV events to routers, between the program and the module that has the libraries for it (server/zmq). */
#ifndef TANDEM_SERVER_KVEVENTS_WIRE_H
#define TANDEM_SERVER_KVEVENTS_WIRE_H

#include "engine/serve/kv_events.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KV_WIRE_VERSION = 2 /* of this struct */, KV_WIRE_WHY = 256, KV_WIRE_CLIENT = 256 };

struct kv_wire_config {
    /* Of the events: bound if it begins with "listen:", connected to if with "connect:".  Without these, which are no
     * part of it: bound if it has '*' or "::" in it or is ipc://, else connected to. */
    const char *endpoint;
    const char *replay; /* bound; "": none */
};

/* What a subscriber missed, and asks for. */
struct kv_wire_request {
    unsigned char client[KV_WIRE_CLIENT];
    size_t n_client;
    uint64_t from; /* the first sequence number */
};

enum kv_wire_sent { KV_WIRE_SENT, KV_WIRE_FULL /* not now */, KV_WIRE_GONE };

/* One thread's. */
struct kv_wire {
    void *state;
    bool listens; /* on the endpoint; else it connects to it */
    /* A batch as msgpack, to be freed.  maps: events are maps, not arrays.  NULL: no memory.  Any thread. */
    char *(*pack)(const struct kv_event_batch *, double unix_time, bool maps, size_t *n);
    /* To all who are connected; one whose queue is full misses it. */
    void (*send)(void *state, const char *topic, uint64_t sequence, const void *payload, size_t n);
    /* @return whether somebody has subscribed since the last call. */
    bool (*subscribed)(void *state);
    /* Waits until fd can be read, somebody has subscribed, a request may be there if they are wanted, or so many
     * milliseconds are over; -1: no limit. */
    void (*wait)(void *state, int fd, bool requests, int ms);
    /* @return false: none is there, or many that are wrong: then wait returns at once. */
    bool (*take)(void *state, struct kv_wire_request *);
    /* topic NULL: none is sent.  payload NULL: the end of the answer. */
    enum kv_wire_sent (*answer)(void *state, const struct kv_wire_request *, uint64_t sequence, const void *payload,
                                size_t n, const char *topic);
    void (*close)(void *state); /* waits for what was sent to leave, half a second at most */
};

/* The one symbol of the module: "tandem_zmq_open".  @return false, with a sentence in why[]. */
typedef bool kv_wire_open_fn(int version, const struct kv_wire_config *, struct kv_wire *out, char why[KV_WIRE_WHY]);

#endif
