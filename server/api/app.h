/* What the handlers share: http_req.app points to it.  Loop thread only. */
#ifndef TANDEM_SERVER_API_APP_H
#define TANDEM_SERVER_API_APP_H

#include "engine/serve/engine.h"
#include "server/access/admission.h"
#include "server/access/client.h"
#include "server/api/chat_format.h"
#include "server/bridge/bridge.h"
#include "server/config/settings.h"
#include "server/metrics/metrics.h"
#include "server/net/http.h"
#include "server/net/sse.h"

struct grammar_cache;
struct device_sample;
struct jobs;
struct keys;
struct nvml;
struct store;
struct tls;
struct uv_loop_s;
struct watchdog;

enum app_state { APP_LOADING, APP_READY, APP_DRAINING };

struct app {
    const struct settings *set;
    enum app_state state;
    struct engine *engine;          /* NULL while loading; the bridge owns it */
    const struct engine_info *info; /* likewise */
    size_t longest_token;           /* bytes of the longest spelling in the vocabulary */
    char *model_name;               /* what the base model is listed as; owned */
    char fingerprint[24];           /* OpenAI's system_fingerprint: another where texts may be others */
    int64_t ready_time;             /* time() when the model was loaded */
    struct chat_format chat;
    struct buf tokenizer_info; /* what GET /tokenizer_info answers; owned */
    struct admission *admission;
    struct grammar_cache *grammar_cache;
    struct bridge *bridge;
    struct sse_hub *sse;
    struct http_server *http;
    struct uv_loop_s *loop;
    struct store *store;
    struct jobs *jobs;
    struct watchdog *watchdog;
    struct metrics metrics;
    struct keys *keys;             /* NULL: none is needed */
    struct tls *tls;               /* NULL: plain HTTP */
    uint64_t refused_logged;       /* clock_now() of auth.c's latest line */
    unsigned refused_unlogged;     /* requests refused since */
    struct nvml *nvml;             /* NULL: no devices to watch; owned */
    struct device_sample *devices; /* of the last scrape; NULL with nvml; owned */
    bool sampling;                 /* a pool thread asks the driver */
    bool tracing;                  /* POST /debug/trace, one at a time */
    size_t call_bytes;             /* bodies that the store has (store_request.h) */
    int event_streams;             /* GET /train/{id}/events, open */
    int adapter_loads;             /* in progress */
    int validations;               /* POST /train/validate, likewise */
};

/* false when the engine has been in one step, or has left a message unread, for longer than --step-timeout */
bool app_healthy(const struct app *);
/* The calling thread, the loop's, runs as soon as it wakes, though compute threads fill the cores: clients wait for it,
 * and it is never busy for long.  Asks for short slices (Linux 6.12; earlier ones ignore it), which later threads do
 * not inherit. */
void app_hurry(void);

/* Makes the adapter in dir servable under its name, from the next request on.  Pool thread; waits for the engine. */
int app_publish_adapter(struct app *, const char *name, const char *dir, struct err *);
/* Reads what it answers.  Pool thread, once, after chat_open. */
void tokenizer_info_load(struct app *, struct engine *);
/* Looks for devices that can be watched, on the pool; and what ends it, after the bridge has closed. */
void app_watch_devices(struct app *);
void app_unwatch_devices(struct app *);

#endif
