/* Opening the models of tandem serve.  On a thread of the pool, or of the model table. */
#ifndef TANDEM_SERVER_CLI_SERVE_MODEL_H
#define TANDEM_SERVER_CLI_SERVE_MODEL_H

#include "engine/base/err.h"

struct app;
struct engine_memory;
struct hub;
struct model_loading;
struct served_model;
struct settings;

/* Adds the models of --model, --models and --models-dir to the app's table.  Main thread; reads the disk. */
int serve_models_add(struct app *, struct err *e);

/* model_table_config's. */
char *serve_model_find(struct app *, const struct served_model *, struct err *e);
void serve_model_estimate(struct app *, struct served_model *, struct engine_memory *, struct err *e);
void serve_model_load(struct app *, struct model_loading *);

/* The same for --model at the start, whose directory is known; hub: for its adapters. */
void serve_model_load_first(struct app *, struct model_loading *, const struct hub *);

#endif
