/* The modules of all families that an adapter can target, as bits of a set. */
#ifndef TANDEM_ENGINE_MODEL_LORA_TARGETS_H
#define TANDEM_ENGINE_MODEL_LORA_TARGETS_H

/* Each family has a subset of them (lora_modules in adapter.h). */
enum lora_target {
    TARGET_Q = 1,
    TARGET_K = 2,
    TARGET_V = 4,
    TARGET_O = 8,
    TARGET_GATE = 16,
    TARGET_UP = 32,
    TARGET_DOWN = 64,
    TARGET_C_ATTN = 128,
    TARGET_C_PROJ = 256,
    TARGET_C_FC = 512,
    TARGET_FC1 = 1024,
    TARGET_FC2 = 2048,
    TARGET_DENSE = 4096,
    TARGET_QKV_PROJ = 8192,
    TARGET_GATE_UP_PROJ = 16384,
    TARGET_QUERY_KEY_VALUE = 32768,
    TARGET_DENSE_H_TO_4H = 65536,
    TARGET_DENSE_4H_TO_H = 131072,
    TARGET_SHARED_EXPERT_GATE = 262144,
    TARGET_ALL = 524287, /* all modules of the family */
    /* Parameters, not modules, for transformers 5 and PEFT: only where they are named. */
    TARGET_EXPERTS_GATE_UP = 524288,
    TARGET_EXPERTS_DOWN = 1048576,
    TARGET_ROUTER = 2097152,
    /* Outside the layers: only where they are named. */
    TARGET_EMBEDDING = 4194304,
    TARGET_HEAD = 8388608,
    TARGET_ENDS = TARGET_EMBEDDING | TARGET_HEAD,
    TARGET_PARAMETERS = TARGET_EXPERTS_GATE_UP | TARGET_EXPERTS_DOWN | TARGET_ROUTER
};

#endif
