/* quantization_config of config.json: who quantised the directory, and what the tensors' names and shapes do not say of
 * their format (weights_bnb.h, weights_gptq.h, weights_compressed.h). */
#ifndef TANDEM_ENGINE_MODEL_QUANT_CONFIG_H
#define TANDEM_ENGINE_MODEL_QUANT_CONFIG_H

#include "engine/base/err.h"

#include <stdbool.h>

struct cJSON;

enum quant_method {
    QUANT_NONE,
    QUANT_TANDEM, /* tandem quantize */
    QUANT_BNB,    /* bitsandbytes: nf4 and int8 */
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_COMPRESSED, /* compressed-tensors */
    QUANT_FP8,        /* fp8 and fbgemm_fp8 of transformers, FP8 of modelopt */
    QUANT_MXFP4,      /* of fused experts (fused_experts.h) */
};

struct quant_config {
    enum quant_method method;
    char name[20];      /* for messages: "int8", "nf4", "gptq"...; "" when the directory is not quantised */
    bool zero_less_one; /* GPTQ's first format stores zero points less one */
    int block[2];       /* of fp8: rows and columns that share a scale; 0, 0: not named */
};

/* q: the object, untrusted; out is all zero before.  ERR_INVALID or ERR_UNSUPPORTED, with the field's name. */
int quant_config_parse(const struct cJSON *q, struct quant_config *out, struct err *e);
/* @return ERR_UNSUPPORTED: what a model in MLX's format is told. */
int quant_config_mlx(struct err *e);

#endif
