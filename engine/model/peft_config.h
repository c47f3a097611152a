/* adapter_config.json, as PEFT's save_pretrained writes it: what it says of each module.  Untrusted: what changes an
 * adapter's arithmetic and is not implemented is refused by name. */
#ifndef TANDEM_ENGINE_MODEL_PEFT_CONFIG_H
#define TANDEM_ENGINE_MODEL_PEFT_CONFIG_H

#include "engine/base/err.h"
#include "engine/model/adapter_match.h"
#include "engine/model/config.h"

#include <cjson/cJSON.h>
#include <stdbool.h>

struct peft_config {
    cJSON *json;
    double r, alpha, dropout;
    bool rslora;
    const cJSON *targets, *exclude; /* lists, or NULL where the rule below is used */
    bool all_linear;
    struct rule target, excluded; /* text NULL: none */
    const cJSON *layers;          /* layers_to_transform; NULL: all */
    struct rule_table ranks, alphas;
};

int peft_config_open(struct peft_config *, const char *text, const struct model_config *, struct err *);
void peft_config_close(struct peft_config *);

/* 1, 0 or an error: has the module an adapter?  layer -1: it belongs to none. */
int peft_config_targets(const struct peft_config *, int layer, const char *name, struct err *);
/* The rank and alpha of a module that has one. */
int peft_config_rank(const struct peft_config *, const char *name, int *rank, double *alpha, struct err *);

#endif
