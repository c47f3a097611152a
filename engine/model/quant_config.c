#include "engine/model/quant_config.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define WHERE "config.json: quantization_config"

static const char *text(const cJSON *q, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(q, name);
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

static bool is(const char *a, const char *b)
{
    return a && strcasecmp(a, b) == 0;
}

static int unsupported(struct err *e, const char *field, const char *value, const char *known)
{
    return err_set(e, ERR_UNSUPPORTED, WHERE ": %s \"%.40s\" is not supported, only %s", field, value ? value : "",
                   known);
}

static int bitsandbytes(const cJSON *q, struct quant_config *c, struct err *e)
{
    const cJSON *four = cJSON_GetObjectItemCaseSensitive(q, "load_in_4bit"),
                *eight = cJSON_GetObjectItemCaseSensitive(q, "load_in_8bit");
    const char *type = text(q, "bnb_4bit_quant_type");
    if (!type && cJSON_HasObjectItem(q, "bnb_4bit_quant_type"))
        return err_set(e, ERR_INVALID, WHERE ": bnb_4bit_quant_type must be a string");
    if (four && !cJSON_IsBool(four)) return err_set(e, ERR_INVALID, WHERE ": load_in_4bit must be true or false");
    bool int8 = cJSON_IsTrue(eight) && !cJSON_IsTrue(four);
    if (!int8 && !cJSON_IsTrue(four))
        return err_set(e, ERR_INVALID, WHERE ": neither load_in_4bit nor load_in_8bit is true");
    if (!int8 && !is(type, "nf4")) return unsupported(e, "bnb_4bit_quant_type", type ? type : "fp4", "nf4");
    snprintf(c->name, sizeof c->name, "%s", int8 ? "int8" : "nf4");
    return 0;
}

static int gptq(const cJSON *q, struct quant_config *c, struct err *e)
{
    const char *format = text(q, "checkpoint_format");
    if (!format) format = text(q, "format");
    if (!format) format = "gptq";
    if (!is(format, "gptq") && !is(format, "gptq_v2"))
        return unsupported(e, "checkpoint_format", format, "gptq, gptq_v2");
    c->zero_less_one = is(format, "gptq");
    return 0;
}

static int awq(const cJSON *q, struct quant_config *c, struct err *e)
{
    const cJSON *bits = cJSON_GetObjectItemCaseSensitive(q, "bits");
    const char *version = text(q, "version"), *format = text(q, "format");
    (void)c;
    if (!bits) bits = cJSON_GetObjectItemCaseSensitive(q, "w_bit");
    if (bits && bits->valuedouble != 4)
        return err_set(e, ERR_UNSUPPORTED, WHERE ": bits of AWQ are supported as 4 only");
    if (version && !is(version, "gemm")) return unsupported(e, "version", version, "gemm");
    if (format && !is(format, "gemm")) return unsupported(e, "format", format, "gemm");
    return 0;
}

static int auto_round(const cJSON *q, struct quant_config *c, struct err *e)
{
    const char *packing = text(q, "packing_format");
    if (is(packing, "auto_round:auto_gptq") || is(packing, "auto_round:gptq")) {
        c->method = QUANT_GPTQ;
        c->zero_less_one = true;
    } else if (is(packing, "auto_round:auto_awq") || is(packing, "auto_round:awq")) {
        c->method = QUANT_AWQ;
    } else {
        return unsupported(e, "packing_format", packing, "auto_round:auto_gptq, auto_round:auto_awq");
    }
    return 0;
}

static int compressed(const cJSON *q, struct quant_config *c, struct err *e)
{
    static const char *const known[] = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                                        "mixed-precision"};
    const char *format = text(q, "format");
    const cJSON *transform = cJSON_GetObjectItemCaseSensitive(q, "transform_config");
    const cJSON *sparse = cJSON_GetObjectItemCaseSensitive(q, "sparsity_config");
    const char *sparsity = text(sparse, "format");
    (void)c;
    if (cJSON_IsObject(transform) && cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(transform, "config_groups")))
        return err_set(e, ERR_UNSUPPORTED, WHERE ": transform_config is not supported");
    if (sparsity && !is(sparsity, "dense")) return unsupported(e, "sparsity_config.format", sparsity, "dense");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(format, known[i])) return 0;
    return unsupported(e, "format", format,
                       "pack-quantized, int-quantized, float-quantized, naive-quantized, mixed-precision");
}

static int fp8(const cJSON *q, struct quant_config *c, struct err *e)
{
    const cJSON *block = cJSON_GetObjectItemCaseSensitive(q, "weight_block_size"), *v;
    const char *algorithm = text(q, "quant_algo"), *fmt = text(q, "fmt");
    if (algorithm && !is(algorithm, "FP8")) return unsupported(e, "quant_algo", algorithm, "FP8");
    if (fmt && !is(fmt, "e4m3")) return unsupported(e, "fmt", fmt, "e4m3");
    if (!block || cJSON_IsNull(block)) return 0;
    int n = 0;
    cJSON_ArrayForEach(v, block)
    {
        bool ok = cJSON_IsNumber(v) && v->valuedouble >= 1 && v->valuedouble <= 1 << 20 &&
                  v->valuedouble == (int)v->valuedouble && n < 2;
        if (!ok) break;
        c->block[n++] = (int)v->valuedouble;
    }
    if (v || n != 2) return err_set(e, ERR_INVALID, WHERE ": weight_block_size must be two whole numbers");
    return 0;
}

/* What is quantised shows in the tensors' names. */
static int mxfp4(const cJSON *q, struct quant_config *c, struct err *e)
{
    (void)q;
    (void)c;
    (void)e;
    return 0;
}

static int tandem(const cJSON *q, struct quant_config *c, struct err *e)
{
    const char *type = text(q, "type");
    if (!type) return err_set(e, ERR_INVALID, WHERE ": type is missing");
    snprintf(c->name, sizeof c->name, "%.15s", type);
    return 0;
}

static const struct {
    const char *name; /* quant_method */
    enum quant_method method;
    int (*parse)(const cJSON *q, struct quant_config *, struct err *);
} methods[] = {
    {"tandem", QUANT_TANDEM, tandem},
    {"bitsandbytes", QUANT_BNB, bitsandbytes},
    {"gptq", QUANT_GPTQ, gptq},
    {"awq", QUANT_AWQ, awq},
    {"auto-round", QUANT_NONE, auto_round},
    {"compressed-tensors", QUANT_COMPRESSED, compressed},
    {"fp8", QUANT_FP8, fp8},
    {"fbgemm_fp8", QUANT_FP8, fp8},
    {"modelopt", QUANT_FP8, fp8},
    {"mxfp4", QUANT_MXFP4, mxfp4},
};

int quant_config_mlx(struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED,
                   "config.json: quantised by MLX, whose format is not read; use the unquantised model and --quantize, "
                   "or a GGUF file of it");
}

int quant_config_parse(const cJSON *q, struct quant_config *c, struct err *e)
{
    const char *method = text(q, "quant_method");
    /* the oldest files of bitsandbytes and AutoGPTQ have no quant_method */
    if (!method && (cJSON_HasObjectItem(q, "load_in_4bit") || cJSON_HasObjectItem(q, "load_in_8bit")))
        method = "bitsandbytes";
    if (!cJSON_IsObject(q)) return err_set(e, ERR_INVALID, WHERE " must be an object");
    if (!method && cJSON_HasObjectItem(q, "group_size")) return quant_config_mlx(e);
    if (!method) return err_set(e, ERR_INVALID, WHERE ": quant_method is missing");
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (!is(method, methods[i].name)) continue;
        c->method = methods[i].method;
        snprintf(c->name, sizeof c->name, "%s", methods[i].name);
        return methods[i].parse(q, c, e);
    }
    return err_set(e, ERR_UNSUPPORTED,
                   WHERE
                   ": quant_method \"%.40s\" is not one of tandem, bitsandbytes, gptq, awq, auto-round, "
                   "compressed-tensors, fp8, fbgemm_fp8, modelopt, mxfp4; use the unquantised model and --quantize",
                   method);
}
