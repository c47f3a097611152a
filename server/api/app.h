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

/* handlers: generate.c */
void api_generate(struct http_req *);        /* POST /generate: an object, or a stream when asked */
void api_generate_compat(struct http_req *); /* POST /: an array of one object, or a stream when asked */
void api_generate_stream(struct http_req *); /* POST /generate_stream */
/* handlers: openai.c, models.c */
void api_completions(struct http_req *);
void api_chat_completions(struct http_req *);
void api_models_list(struct http_req *);
void api_models_get(struct http_req *);
void api_models_delete(struct http_req *); /* adapters.c */
/* handlers: adapters.c */
void api_adapters_list(struct http_req *);
void api_adapters_load(struct http_req *);
void api_adapters_get(struct http_req *);
void api_adapters_delete(struct http_req *);
void api_lora_load(struct http_req *);   /* vLLM's POST /v1/load_lora_adapter */
void api_lora_unload(struct http_req *); /* and /v1/unload_lora_adapter */
/* Makes the adapter in dir servable under its name, from the next request on.  Pool thread; waits for the engine. */
int app_publish_adapter(struct app *, const char *name, const char *dir, struct err *);

/* handlers: embeddings.c, tokenize.c */
void api_embeddings(struct http_req *);
void api_tokenize(struct http_req *);
void api_detokenize(struct http_req *);
void api_embed(struct http_req *);      /* POST /embed: TEI's; also that of POST / */
void api_similarity(struct http_req *); /* POST /similarity: likewise */
/* handlers: tokenizer_info.c */
void api_tokenizer_info(struct http_req *);
/* Reads what it answers.  Pool thread, once, after chat_open. */
void tokenizer_info_load(struct app *, struct engine *);
/* handlers: api_info.c */
void api_root(struct http_req *);
void api_info(struct http_req *);
void api_health(struct http_req *);
void api_ready(struct http_req *);
/* handlers: api_metrics.c */
void api_metrics(struct http_req *);
/* Looks for devices that can be watched, on the pool; and what ends it, after the bridge has closed. */
void app_watch_devices(struct app *);
void app_unwatch_devices(struct app *);
/* handlers: api_debug.c, api_trace.c */
void api_debug_state(struct http_req *);
void api_debug_trace(struct http_req *);
/* handlers: console.c */
void api_console_file(struct http_req *); /* GET /console/{file} */
/* handlers: api_train.c, api_train_events.c */
void api_train_create(struct http_req *);
void api_train_validate(struct http_req *);
void api_train_list(struct http_req *);
void api_train_get(struct http_req *);
void api_train_delete(struct http_req *);
void api_train_events(struct http_req *);
void api_train_metrics(struct http_req *);
void api_train_checkpoints(struct http_req *);
void api_train_cancel(struct http_req *);
void api_train_pause(struct http_req *);
void api_train_resume(struct http_req *);
/* handlers: api_finetune.c */
void api_finetune_create(struct http_req *);
void api_finetune_list(struct http_req *);
void api_finetune_get(struct http_req *);
void api_finetune_events(struct http_req *);
void api_finetune_checkpoints(struct http_req *);
void api_finetune_cancel(struct http_req *);
void api_finetune_pause(struct http_req *);
void api_finetune_resume(struct http_req *);
/* handlers: api_files.c */
void api_files_begin(struct http_req *);
void api_files_create(struct http_req *);
void api_files_list(struct http_req *);
void api_files_get(struct http_req *);
void api_files_delete(struct http_req *);
void api_files_content(struct http_req *);

#endif
