/* The architectures of GGUF files that tandem reads (gguf_model.h). */
#include "engine/files/gguf_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Names: llama.cpp, src/llama-arch.cpp; which architecture stores q and k permuted: convert_hf_to_gguf.py. */
static const struct gguf_arch archs[] = {
    {"llama", "llama", GGUF_ROPE_PAIRS},         {"qwen2", "qwen2", GGUF_ROPE_HALVES},
    {"qwen3", "qwen3", GGUF_ROPE_HALVES},        {"gemma2", "gemma2", GGUF_ROPE_HALVES},
    {"gemma3", "gemma3_text", GGUF_ROPE_HALVES}, {"phi2", "phi", GGUF_ROPE_HALVES},
    {"gpt2", "gpt2", GGUF_ROPE_HALVES},          {"phi3", "phi3", GGUF_ROPE_HALVES},
    {"qwen2moe", "qwen2_moe", GGUF_ROPE_HALVES}, {"qwen3moe", "qwen3_moe", GGUF_ROPE_HALVES},
    {"olmoe", "olmoe", GGUF_ROPE_HALVES},        {"olmo2", "olmo2", GGUF_ROPE_HALVES},
    {"granite", "granite", GGUF_ROPE_PAIRS},     {"smollm3", "smollm3", GGUF_ROPE_PAIRS},
    {"stablelm", "stablelm", GGUF_ROPE_HALVES},  {"gptneox", "gpt_neox", GGUF_ROPE_HALVES},
    {"gpt-oss", "gpt_oss", GGUF_ROPE_HALVES},    {"mistral3", "ministral3", GGUF_ROPE_PAIRS},
};
enum { ARCHS = sizeof archs / sizeof *archs };

static int unknown_arch(struct gguf_text name, struct err *e)
{
    char names[256];
    size_t n = 0;
    for (int i = 0; i < ARCHS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", archs[i].name);
    return err_set(e, ERR_UNSUPPORTED, "GGUF: architecture \"%.*s\" is not one of %s", (int)(name.n < 40 ? name.n : 40),
                   name.s, names);
}

const struct gguf_arch *gguf_arch(const struct gguf *g, struct err *e)
{
    struct gguf_text name, type = {"", 0};
    gguf_text(g, "general.type", &type);
    if (!gguf_text(g, "general.architecture", &name)) {
        err_set(e, ERR_INVALID, "GGUF: key general.architecture is missing");
        return NULL;
    }
    if (gguf_text_is(type, "adapter")) {
        err_set(e, ERR_UNSUPPORTED,
                "GGUF: a LoRA adapter, not a model; tandem reads adapters as PEFT directories, with --adapters");
        return NULL;
    }
    if (gguf_text_is(name, "clip") || gguf_text_is(type, "mmproj")) {
        err_set(e, ERR_UNSUPPORTED, "GGUF: the image or audio part (mmproj) of a model, not its language model");
        return NULL;
    }
    if (gguf_text_is(type, "imatrix")) {
        err_set(e, ERR_UNSUPPORTED, "GGUF: statistics for quantising (imatrix), not a model");
        return NULL;
    }
    for (int i = 0; i < ARCHS; i++) {
        if (!gguf_text_is(name, archs[i].name)) continue;
        if (gguf_tensors(g)) return &archs[i];
        err_set(e, ERR_UNSUPPORTED, "GGUF: a vocabulary without tensors, not a model");
        return NULL;
    }
    unknown_arch(name, e);
    return NULL;
}

int gguf_heads(const struct gguf *g, const struct gguf_arch *arch, struct gguf_heads *out, struct err *e)
{
    struct gguf_keys keys = {g, arch, e, 0};
    double q = gguf_keys_needed(&keys, "attention.head_count"), width = gguf_keys_needed(&keys, "embedding_length");
    double kv = q, dim = q > 0 ? floor(width / q) : 0;
    gguf_keys_number(&keys, "attention.head_count_kv", &kv);
    gguf_keys_number(&keys, "attention.key_length", &dim);
    double value = dim;
    gguf_keys_number(&keys, "attention.value_length", &value);
    if (keys.rc) return keys.rc;
    if (!(q >= 1 && q <= 65536 && kv >= 1 && kv <= q && dim >= 1 && dim <= 65536))
        return err_set(e, ERR_INVALID,
                       "GGUF: attention.head_count %g, head_count_kv %g and heads of %g "
                       "features are not possible",
                       q, kv, dim);
    if (value != dim)
        return err_set(e, ERR_UNSUPPORTED, "GGUF: attention.value_length %g differs from key_length %g", value, dim);
    *out = (struct gguf_heads){(int)q, (int)kv, (int)dim};
    return 0;
}

const struct gguf_arch *gguf_arch_of(const char *model_type)
{
    static const struct {
        const char *model_type, *like;
    } variants[] = {{"mistral", "llama"}, {"mixtral", "llama"}, {"olmo3", "olmo2"}, {"ministral3", ""} /* read only */};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (strcmp(variants[i].model_type, model_type) == 0) model_type = variants[i].like;
    for (int i = 0; i < ARCHS; i++)
        if (strcmp(archs[i].model_type, model_type) == 0) return &archs[i];
    return NULL;
}
