/* The adapters of routers and experts in an adapter's file, under the names of both generations:
 *
 *   transformers 5: parameters that PEFT wraps (target_parameters; peft/tuners/lora/layer.py, ParamWrapper): of the
 *     experts mlp.experts.lora_A.weight (E r, inputs), expert by expert, and lora_B.weight (outputs, r E), rank by
 * rank; of two adapted parameters the names of gate_up_proj begin with mlp.experts.base_layer.  mlp.gate for the router
 *   before: a linear layer per expert and matrix, mlp.experts.3.gate_proj.lora_A.weight.  Gate and up become one pair,
 *     whose rank is the sum of theirs (as in peft/utils/transformers_weight_conversion.py)
 *
 * Any thread; the tensors are borrowed. */
#ifndef TANDEM_ENGINE_MODEL_ADAPTER_EXPERTS_H
#define TANDEM_ENGINE_MODEL_ADAPTER_EXPERTS_H

#include "engine/model/adapter.h"
#include "engine/model/peft_config.h"

struct adapter_experts;

/* @return NULL where the model has no experts that can have adapters */
struct adapter_experts *adapter_experts_new(const struct model_config *);
void adapter_experts_free(struct adapter_experts *); /* NULL is allowed */
/* Takes the tensor whose name after the layer's number is `rest`.  @return 1; 0 when it is no router's or expert's;
 * an error code when the same was there before. */
int adapter_experts_place(struct adapter_experts *, int layer, const char *rest, const struct tensor *, struct err *);
/* Whether the configuration names the module in this layer, under any of its names.  @return 1, 0 or an error code */
int adapter_experts_named(const struct model_config *, const struct peft_config *, const struct lora_module *,
                          int layer, struct err *);
/* The pair's rank and scale from the tensors that are there and the configuration; rank 0: none.  Checks the shapes. */
int adapter_experts_shape(const struct adapter_experts *, const struct peft_config *, const struct lora_module *,
                          int layer, int *rank, float *scale, struct err *);
/* Reads the matrices into a pair of that rank. */
int adapter_experts_read(const struct adapter_experts *, const struct peft_config *, const struct tensor_source *,
                         const struct lora_module *, int layer, const struct lora_pair *, struct err *);
/* Every entry of target_parameters must name a parameter that can have an adapter. */
int adapter_experts_check_names(const struct model_config *, const struct peft_config *, const struct lora_module *,
                                int n_modules, struct err *);

#endif
