/* The checked body of POST /api/v1/asample.  Pure; any thread. */
#ifndef TANDEM_SERVER_TINKER_SAMPLE_PARAMS_H
#define TANDEM_SERVER_TINKER_SAMPLE_PARAMS_H

#include "engine/serve/engine.h"
#include "server/json/json.h"
#include "server/memory/reservation.h"
#include "server/tinker/sample_answer.h"

enum { SAMPLES_MAX = 512 };

struct sample_params {
    struct gen_request gen; /* points into what follows; max_new_tokens 0: as many as there is room for */
    struct sample_shape shape;
    int64_t seq;
    int n; /* texts */
    bool has_seed;
    int32_t *prompt;             /* owned */
    char *stop[ENGINE_STOP_MAX]; /* owned */
    int32_t stop_ids[ENGINE_STOP_MAX];
    struct reservation held;
};

/* @return 0, or *e, which names the field.  To be freed either way. */
int sample_params_read(struct sample_params *, const cJSON *body, struct err *e);
void sample_params_free(struct sample_params *);

#endif
