/* The state of a loaded model that requests read, for tandem serve and tandem batch.  Loop thread. */
#ifndef TANDEM_SERVER_CLI_SERVE_MODEL_H
#define TANDEM_SERVER_CLI_SERVE_MODEL_H

struct app;
struct bridge;
struct engine;
struct served_model;

/* The bridge has started the engine, and the model's chat format is open.  Not the state (serving_state). */
void serve_model_set(struct app *, struct served_model *, struct bridge *, struct engine *);
/* Once the bridge has closed the engine. */
void serve_model_clear(struct app *, struct served_model *);

#endif
