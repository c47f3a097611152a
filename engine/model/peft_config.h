/* adapter_config.json, as PEFT's save_pretrained writes it: the rank and alpha of each module.  The file is untrusted;
 * options that change an adapter's arithmetic and are not implemented are refused by name. */
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
    bool scores;                    /* the head of scores is saved with it: SEQ_CLS */
    const cJSON *targets, *exclude; /* lists, or NULL when the rule below is used */
    bool all_linear;
    struct rule target, excluded; /* text NULL: none */
    const cJSON *parameters;      /* target_parameters; NULL: none */
    const cJSON *layers;          /* layers_to_transform; NULL: all */
    struct rule_table ranks, alphas;
};

int peft_config_open(struct peft_config *, const char *text, const struct model_config *, struct err *);
void peft_config_close(struct peft_config *);

/* @return 1 when the module has an adapter, 0 when not, or an error code.  layer -1: the module is outside the layers.
 */
int peft_config_targets(const struct peft_config *, int layer, const char *name, struct err *);
/* Whether target_parameters names the parameter, "model.layers.3.mlp.experts.down_proj". */
bool peft_config_parameter(const struct peft_config *, const char *name);
/* The rank and alpha of a module with an adapter. */
int peft_config_rank(const struct peft_config *, const char *name, int *rank, double *alpha, struct err *);

#endif
