/* Resolves OpenAI's `model`: the base model under its served names, or an adapter by its own.  Loop thread. */
#ifndef TANDEM_SERVER_API_MODELS_H
#define TANDEM_SERVER_API_MODELS_H

#include "engine/base/err.h"

#include <stdbool.h>

struct app;
struct engine_info;
struct served_model;
struct settings;

struct model_choice {
    const char *name;    /* name in answers; the request's or the server's string */
    const char *adapter; /* NULL: the base model */
};

/* The name the base model is listed under (owned by the caller): the first of --served-model-name, else the model
 * directory's. */
char *models_base_name(const struct settings *, const struct engine_info *);
/* @return whether the name is one of --served-model-name. */
bool models_is_served(const struct settings *, const char *name);
/* @return whether any model is meant: "tgi" and "dummy", which Hugging Face's clients send, and with --accept-any-model
 * every name. */
bool models_is_any(const struct settings *, const char *name);
/* @return whether the base model is served under this name; no adapter may have it. */
bool models_is_base(const struct settings *, const struct engine_info *, const char *name);
/* Of the served model.  NULL and "" mean the base model; so do "tgi" and "dummy", which Hugging Face's clients send,
 * and with
 * --accept-any-model every unknown name.  @return false with the known names in *e, to be answered with 404. */
bool models_find(const struct app *, const struct served_model *, const char *name, struct model_choice *,
                 struct err *e);

/* @return whether a model of the daemon has this name; no adapter may have it.  Any thread. */
bool models_is_taken(const struct app *, const char *name);
/* "The model `x` does not exist: this server has `demo`, `pirate`", with as many names as fit. */
void models_say_unknown(const struct app *, const char *name, struct err *e);

#endif
