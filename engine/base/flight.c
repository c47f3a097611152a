#include "engine/base/flight.h"

#include <stdatomic.h>

/* Relaxed atomics: as cheap as plain stores, but a reader never sees a torn word. */
#define PUT(field, v) atomic_store_explicit(&(field), (v), memory_order_relaxed)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

static struct {
    _Atomic uint64_t number; /* of the newest step; its index in the ring is number % FLIGHT_STEPS */
    struct {
        _Atomic uint64_t started, ended;
        _Atomic int requests, tokens, rows, preempted;
    } ring[FLIGHT_STEPS];
    struct {
        _Atomic uint64_t id;
        _Atomic int start, tokens;
    } request[FLIGHT_REQUESTS];
    _Atomic int waiting, running, paused;
} flight;

void flight_begin(uint64_t now, int requests, int tokens, int rows, int preempted)
{
    uint64_t number = GET(flight.number) + 1, at = number % FLIGHT_STEPS;
    PUT(flight.ring[at].started, now);
    PUT(flight.ring[at].ended, 0);
    PUT(flight.ring[at].requests, requests);
    PUT(flight.ring[at].tokens, tokens);
    PUT(flight.ring[at].rows, rows);
    PUT(flight.ring[at].preempted, preempted);
    PUT(flight.number, number);
}

void flight_request(int i, uint64_t id, int start, int tokens)
{
    if (i >= FLIGHT_REQUESTS) return;
    PUT(flight.request[i].id, id);
    PUT(flight.request[i].start, start);
    PUT(flight.request[i].tokens, tokens);
}

void flight_end(uint64_t now)
{
    PUT(flight.ring[GET(flight.number) % FLIGHT_STEPS].ended, now);
}

void flight_counts(int waiting, int running, int paused)
{
    PUT(flight.waiting, waiting);
    PUT(flight.running, running);
    PUT(flight.paused, paused);
}

bool flight_step(int i, struct flight_step *out)
{
    uint64_t newest = GET(flight.number);
    if (i < 0 || i >= FLIGHT_STEPS || (uint64_t)i >= newest) return false;
    uint64_t number = newest - (uint64_t)i, at = number % FLIGHT_STEPS;
    *out = (struct flight_step){.number = number,
                                .started = GET(flight.ring[at].started),
                                .ended = GET(flight.ring[at].ended),
                                .requests = GET(flight.ring[at].requests),
                                .tokens = GET(flight.ring[at].tokens),
                                .rows = GET(flight.ring[at].rows),
                                .preempted = GET(flight.ring[at].preempted)};
    return true;
}

bool flight_request_at(int i, struct flight_request *out)
{
    struct flight_step newest;
    if (i < 0 || i >= FLIGHT_REQUESTS || !flight_step(0, &newest) || i >= newest.requests) return false;
    *out = (struct flight_request){.id = GET(flight.request[i].id),
                                   .start = GET(flight.request[i].start),
                                   .tokens = GET(flight.request[i].tokens)};
    return true;
}

void flight_counts_read(int out[static 3])
{
    out[0] = GET(flight.waiting);
    out[1] = GET(flight.running);
    out[2] = GET(flight.paused);
}
