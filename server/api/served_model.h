/* A model that is served, as requests and jobs use it.  Loop thread, unless stated otherwise; while it is loaded, what
 * it points to is constant or guards itself. */
#ifndef TANDEM_SERVER_API_SERVED_MODEL_H
#define TANDEM_SERVER_API_SERVED_MODEL_H

#include "engine/base/buf.h"
#include "server/api/chat_format.h"

#include <stddef.h>
#include <stdint.h>

struct bridge;
struct engine;
struct engine_info;
struct grammar_cache;
struct http_req;

struct served_model {
    struct engine *engine;          /* NULL while it is not loaded; the bridge owns it */
    const struct engine_info *info; /* likewise */
    struct bridge *bridge;          /* likewise */
    struct grammar_cache *grammar_cache;
    struct chat_format chat;
    struct buf tokenizer_info; /* answer of GET /tokenizer_info; owned */
    size_t longest_token;      /* bytes of the longest token in the vocabulary */
    char *name;                /* under which it is listed; owned */
    char fingerprint[24];      /* OpenAI's system_fingerprint: differs where generated texts may differ */
    int64_t ready_time;        /* time() when it was loaded */
};

/* @return the model chosen for the request; the default one where none was. */
struct served_model *served_model_of(const struct http_req *);

#endif
