/* A model that is served, as requests and jobs use it.  Loop thread, unless stated otherwise; while it is loaded, what
 * it points to is constant or guards itself. */
#ifndef TANDEM_SERVER_API_SERVED_MODEL_H
#define TANDEM_SERVER_API_SERVED_MODEL_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "server/api/chat_format.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct app;
struct bridge;
struct engine;
struct engine_info;
struct grammar_cache;
struct http_req;

enum model_state { MODEL_UNLOADED, MODEL_LOADING, MODEL_LOADED, MODEL_UNLOADING, MODEL_FAILED, MODEL_STATES };

extern const char *const model_state_names[MODEL_STATES];

/* An adapter that a client loaded, to be loaded again with its model. */
struct served_adapter {
    char *name, *dir; /* owned; dir NULL: one of the folders that are searched at every load */
};

struct served_model {
    struct engine *engine;          /* NULL while it is not loaded; the bridge owns it */
    const struct engine_info *info; /* likewise */
    struct bridge *bridge;          /* likewise */
    struct grammar_cache *grammar_cache;
    struct chat_format chat;
    struct buf tokenizer_info; /* answer of GET /tokenizer_info; owned */
    size_t longest_token;      /* bytes of the longest token in the vocabulary */
    char *name;                /* under which it is listed; owned; NULL: not known before it was loaded once */
    char *id;                  /* engine_info.model_id; owned; NULL likewise, and then never changed */
    char *where;               /* what was given for it: a directory, a file, a name on the hub; owned */
    char *dir;                 /* what the engine opens; owned; NULL likewise */
    bool main;                 /* of --model: the options of one model are its own */
    char fingerprint[24];      /* OpenAI's system_fingerprint: differs where generated texts may differ */
    int64_t ready_time;        /* time() when it was loaded last; before, when it was found */
    const char *kind;          /* what it gives: "generate", "embed", "classify"; static; NULL: not known before it was
                                  loaded once */
    int max_total_tokens;      /* of one request; 0: likewise */

    /* the table's (model_table.h) */
    enum model_state state;
    int users;   /* requests, jobs and evaluations; it is not unloaded before they have ended */
    int holds;   /* those that may last for hours */
    bool yields; /* it is to be unloaded: new requests wait */
    bool estimated;
    size_t need;                            /* bytes that it takes, as estimated, or as it was loaded last */
    size_t bytes;                           /* while it is loaded */
    uint64_t loaded_at, last_used, load_ns; /* clock_now(); load_ns: what loading took */
    uint64_t retry_at;                      /* MODEL_FAILED */
    int back_off;                           /* seconds */
    struct err failure;
    uint64_t loads, unloads;
    struct served_adapter *adapters; /* (n_adapters) as of the last unloading, and those that clients loaded; owned */
    size_t n_adapters, cap_adapters;
};

/* @return the model chosen for the request; the default one where none was. */
struct served_model *served_model_of(const struct http_req *);
/* @return whether an engine of the daemon lost its device. */
bool served_models_lost(const struct app *);

/* Makes what takes a look at the whole vocabulary.  The thread that opened the engine. */
void served_model_prepare(struct served_model *, const struct engine *);
/* Sets what requests read, once the bridge has started the engine, the chat format is open and it is prepared. */
void served_model_set(struct app *, struct served_model *, struct bridge *, struct engine *);
/* Clears it, before the engine is closed, or after. */
void served_model_clear(struct app *, struct served_model *);
/* Frees what was opened for a load that came to nothing. */
void served_model_drop(struct served_model *);
void served_model_free(struct served_model *); /* that is not loaded */

/* Its adapters while it is not loaded.  dir NULL: as above. */
void served_adapter_keep(struct served_model *, const char *name, const char *dir);
void served_adapter_forget(struct served_model *, const char *name);
const struct served_adapter *served_adapter_find(const struct served_model *, const char *name);

#endif
