/* State shared by the handlers: http_req.app points to it.  Loop thread, unless stated otherwise. */
#ifndef TANDEM_SERVER_API_APP_H
#define TANDEM_SERVER_API_APP_H

#include "server/access/admission.h"
#include "server/access/credentials.h"
#include "server/metrics/metrics.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answered_ring;
struct batches;
struct bridge;
struct device_turn;
struct device_watch;
struct evaluations;
struct http_server;
struct jobs;
struct kv_publisher;
struct model_table;
struct served_model;
struct settings;
struct sse_hub;
struct store;
struct tinker;
struct uv_loop_s;
struct watchdog;

struct ranks;

struct app {
    const struct settings *set;
    enum serving_state state;
    struct served_model *model;     /* the default one */
    struct model_table *models;     /* NULL: there is only that one, as in tandem batch */
    struct ranks *ranks;            /* cli/ranks.h; NULL: the models are not divided */
    struct device_turn *turn;       /* of the engines; NULL: there is only one */
    struct kv_publisher *kv_events; /* NULL: no --kv-events */
    struct admission *admission;
    struct admission *background; /* of local exchanges (net/local.h): a queue of its own, behind all others */
    struct bridge *bridge;
    struct sse_hub *sse;
    struct http_server *http;
    struct uv_loop_s *loop;
    struct store *store;
    struct jobs *jobs;
    struct batches *batches;
    struct evaluations *evaluations;
    struct tinker *tinker;
    struct answered_ring *answered; /* NULL: no feedback is collected */
    struct watchdog *watchdog;
    struct metrics metrics;
    struct credentials credentials;
    struct device_watch *device_watch; /* owned */
    bool tracing;                      /* POST /debug/trace, one at a time */
    size_t call_bytes;                 /* bytes of bodies queued for the store (store_request.h) */
    int event_streams;                 /* GET /train/{id}/events, open */
    int adapter_loads;                 /* in progress */
    atomic_bool downloading;           /* an adapter, by a thread of the pool; any thread */
    atomic_bool stopping;              /* the daemon ends: downloads do too; any thread */
    int validations;                   /* POST /train/validate, likewise */
};

#endif
