#!/usr/bin/env python3
"""Makes the golden model fixtures: small random models of every family, and what transformers computes with them.

    python tests/model/make_fixtures.py --out tests/fixtures/models [--tinystories DIR]

Needs torch, transformers, tokenizers, safetensors (not a test dependency: the fixtures are committed). The same versions
give the same bytes: weights and prompts come from fixed seeds.

Each directory is a Hugging Face model directory plus expected.safetensors with
    ids            I32 [n]     a prompt
    logits         F32 [n, V]  float32, eager attention, CPU; 16-bit weights are widened to float32 first
    greedy_prompt  I32 [m]     another prompt
    greedy         I32 [64]    its greedy continuation; no end-of-text id occurs in it, and at every step the best logit
                               leads the second by more than MARGIN, so rounding cannot change it
and with MXFP4 experts, in the layout of transformers' GptOssExperts and as transformers dequantises them:
    experts.NAME   BF16        NAME of the last layer's experts
"""
import argparse
import copy
import json
import platform
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import tokenizers
import torch
import transformers
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

MARGIN = 5e-3      # least lead of the best logit along the greedy path
GREEDY_TOKENS = 64
GREEDY_PROMPT = 16
MATTERS = 1e-2     # least change of some logit when one parameter tensor is made neutral
VOCAB = 288        # of the shared tokenizer

# ---- the shared tokenizer --------------------------------------------------------------------------------------------

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TRAINING_TEXT = """Once upon a time there was a little girl. She had a cat and the cat had a hat.
One day they went to the park and saw a big dog. The dog was sad, so they gave it the ball and played all day.
Then the mother of the girl said that it was time to go home, and they were happy."""

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def make_tokenizer():
    """Byte-level BPE: three special tokens, 256 bytes and a few merges."""
    tok = tokenizers.Tokenizer(tokenizers.models.BPE())
    tok.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.post_processor = tokenizers.processors.ByteLevel(trim_offsets=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIALS, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(TRAINING_TEXT.splitlines(), trainer)
    assert tok.get_vocab_size() == VOCAB
    return tok


def write_tokenizer(directory, tok):
    tok.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", {
        "add_prefix_space": False, "bos_token": SPECIALS[0], "chat_template": CHATML, "clean_up_tokenization_spaces": False,
        "eos_token": SPECIALS[0], "model_max_length": 1024, "tokenizer_class": "PreTrainedTokenizerFast"})


# ---- the models ------------------------------------------------------------------------------------------------------

@dataclass
class Spec:
    """One fixture: a transformers config and how it is written to disk."""
    name: str
    model: type
    config: dict
    prompt: int = 48                       # length of ids
    dtype: torch.dtype = torch.float32     # of the file
    generation: dict = field(default_factory=dict)
    shard: str = "1GB"                     # max_shard_size
    modern_config: bool = False            # keep transformers 5 spelling (rope_parameters, dtype)
    prefix: bool = True                    # keep the "transformer." prefix of GPT-2 tensor names
    norm_offset: bool = False              # norms are stored as w and used as 1 + w
    respelled: dict = field(default_factory=dict)  # fields that only the old spelling has
    neox_rope: bool = False                # GPT-NeoX's names for rotary settings
    mxfp4: bool = False                    # the experts' matrices are stored as MXFP4
    routing: float = 0.0                   # least lead of the chosen experts' logits, where activations are rounded
    matters: list = field(default_factory=list)    # changes to the config, each of which must show in the logits


def llama_gqa():
    return Spec("llama-gqa", transformers.LlamaForCausalLM, dict(
        model_type="llama", vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=64),
        bos_token_id=0, eos_token_id=[0, 2]),
        prompt=80, shard="100KB", generation=dict(do_sample=True, temperature=0.6, top_p=0.9))


def llama_f16():
    return Spec("llama-f16", transformers.LlamaForCausalLM, dict(
        model_type="llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=0, eos_token_id=0),
        dtype=torch.float16)


def mistral():
    return Spec("mistral", transformers.MistralForCausalLM, dict(
        model_type="mistral", vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=16, max_position_embeddings=512, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=0, eos_token_id=0),
        prompt=96)


def qwen2(name, **changes):
    config = dict(
        model_type="qwen2", vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        use_sliding_window=False, rope_parameters=dict(rope_type="default", rope_theta=1000000.0), bos_token_id=0,
        eos_token_id=[2, 0])
    return Spec(name, transformers.Qwen2ForCausalLM, {**config, **changes})


def qwen2_bf16():
    spec = qwen2("qwen2-bf16", hidden_size=72, intermediate_size=120, num_attention_heads=6, num_key_value_heads=2)
    spec.dtype = torch.bfloat16
    return spec


def qwen3():
    return Spec("qwen3", transformers.Qwen3ForCausalLM, dict(
        model_type="qwen3", vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=20, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        attention_bias=False, use_sliding_window=False, rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
        bos_token_id=0, eos_token_id=2), modern_config=True)


def qwen3_sliding():
    """The first layer sees everything, the others a window: layer_types, as transformers 5 writes them."""
    spec = qwen3()
    spec.name, spec.prompt = "qwen3-sliding", 64
    spec.config = {**spec.config, "num_hidden_layers": 3, "head_dim": 16, "use_sliding_window": True,
                   "sliding_window": 12, "max_window_layers": 1}
    return spec


def gpt2(name, prefix, **changes):
    config = dict(
        model_type="gpt2", vocab_size=VOCAB, n_embd=40, n_head=4, n_layer=2, n_positions=96, activation_function="gelu_new",
        layer_norm_epsilon=1e-5, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True)
    return Spec(name, transformers.GPT2LMHeadModel, {**config, **changes}, prefix=prefix)


def phi():
    return Spec("phi", transformers.PhiForCausalLM, dict(
        model_type="phi", vocab_size=VOCAB, hidden_size=40, intermediate_size=88, num_hidden_layers=2, num_attention_heads=2,
        hidden_act="gelu_new", layer_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.4), bos_token_id=0, eos_token_id=0))


def phi_tied():
    """The table is shared, the head's bias is not; scaled positions of a part of each head."""
    spec = phi()
    spec.name = "phi-tied"
    spec.config = {**spec.config, "tie_word_embeddings": True, "rope_parameters": dict(
        rope_type="linear", rope_theta=10000.0, factor=4.0, partial_rotary_factor=0.4)}
    return spec


def phi_qk_norm():
    """q and k of each head are normalised, with one weight and one bias for all."""
    spec = phi()
    spec.name = "phi-qk-norm"
    spec.config = {**spec.config, "qk_layernorm": True}
    return spec


def gemma2():
    """Caps small enough to bend scores and logits, and a scale that is not one over the root of head_dim."""
    return Spec("gemma2", transformers.Gemma2ForCausalLM, dict(
        model_type="gemma2", vocab_size=VOCAB, hidden_size=48, intermediate_size=88, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=20, query_pre_attn_scalar=28, sliding_window=12, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh", attention_bias=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=0, eos_token_id=[2, 0],
        pad_token_id=None), prompt=64, norm_offset=True, respelled=dict(hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid"),
        matters=[dict(attn_logit_softcapping=None), dict(final_logit_softcapping=None), dict(query_pre_attn_scalar=20),
                 dict(sliding_window=64), dict(layer_types=["full_attention", "sliding_attention"] * 2)])


def gemma3():
    """Every third layer sees everything, with rotary tables of its own, linearly scaled: as transformers 4 wrote it."""
    return Spec("gemma3", transformers.Gemma3ForCausalLM, dict(
        model_type="gemma3_text", vocab_size=VOCAB, hidden_size=40, intermediate_size=72, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=1, head_dim=20, query_pre_attn_scalar=28, sliding_window=12,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2, max_position_embeddings=256,
        rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", attention_bias=False,
        rope_parameters=gemma3_rope(), bos_token_id=0, eos_token_id=[2, 0],
        pad_token_id=None), prompt=64, norm_offset=True, respelled=dict(sliding_window_pattern=3, cache_implementation="hybrid"),
        matters=[dict(query_pre_attn_scalar=20), dict(sliding_window=64),
                 dict(layer_types=["sliding_attention"] * 5 + ["full_attention"]), *gemma3_rope_changes()])


def gemma3_bf16():
    """Layers in no pattern, a capped head, and weights in bf16, to which the embedding's scale is rounded, too."""
    spec = gemma3()
    spec.name, spec.dtype, spec.modern_config, spec.respelled = "gemma3-bf16", torch.bfloat16, True, {}
    spec.config = {**spec.config, "hidden_size": 56, "intermediate_size": 88, "num_key_value_heads": 2, "num_hidden_layers": 4,
                   "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                   "head_dim": 16, "query_pre_attn_scalar": 20, "final_logit_softcapping": 3.0}
    spec.matters = [dict(final_logit_softcapping=None), dict(query_pre_attn_scalar=16), dict(sliding_window=64),
                    dict(layer_types=["sliding_attention"] * 3 + ["full_attention"]), *gemma3_rope_changes()]
    return spec


def gemma3_rope(factor=4.0, theta=1000000.0, sliding_theta=10000.0):
    return dict(full_attention=dict(rope_type="linear", factor=factor, rope_theta=theta),
                sliding_attention=dict(rope_type="default", rope_theta=sliding_theta))


def gemma3_rope_changes():
    return [dict(rope_parameters=gemma3_rope(factor=1.0)), dict(rope_parameters=gemma3_rope(theta=10000.0)),
            dict(rope_parameters=gemma3_rope(sliding_theta=1000000.0))]


SMALL = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0, pad_token_id=None)


def phi3(name="phi3", **changes):
    """longrope: the prompt has the short factors, and the greedy text grows into the long ones."""
    rope = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.2, 1.4], long_factor=[1.0, 2.0, 3.0, 5.0],
                partial_rotary_factor=1.0)
    return Spec(name, transformers.Phi3ForCausalLM, {**SMALL, **dict(
        model_type="phi3", rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=None, rope_parameters=rope,
        original_max_position_embeddings=48), **changes}, prompt=40,
        matters=[dict(rope_parameters={**rope, "short_factor": [1.0] * 4}), dict(original_max_position_embeddings=128),
                 dict(original_max_position_embeddings=32)])


def phi4_mini():
    """The prompt begins beyond the short factors; heads are rotated in part; a window."""
    rope = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.5, 2.0], long_factor=[1.0, 2.0, 4.0],
                partial_rotary_factor=0.75)
    spec = phi3("phi4-mini", tie_word_embeddings=True, sliding_window=40, rope_parameters=rope,
                original_max_position_embeddings=32)
    spec.prompt = 64
    spec.matters = [dict(rope_parameters={**rope, "long_factor": [1.0, 1.5, 2.0]}), dict(sliding_window=None),
                    dict(max_position_embeddings=512)]
    return spec


def qwen2_yarn():
    """As Qwen's model cards have their users write it: the positions that follow are four times those of the file."""
    rope = dict(rope_type="yarn", rope_theta=1000000.0, factor=4.0, original_max_position_embeddings=24)
    return Spec("qwen2-yarn", transformers.Qwen2ForCausalLM, {**SMALL, **dict(
        model_type="qwen2", rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=24, use_sliding_window=False,
        rope_parameters=rope)}, prompt=90,
        matters=[dict(rope_parameters={**rope, "rope_type": "linear"}), dict(rope_parameters={**rope, "attention_factor": 1.0})])


def llama_yarn():
    """Every setting of YaRN, in the spelling of transformers 5."""
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=0.5,
                mscale=2.0, mscale_all_dim=0.5, truncate=False)
    return Spec("llama-yarn", transformers.LlamaForCausalLM, {**SMALL, **dict(
        model_type="llama", rms_norm_eps=1e-5, tie_word_embeddings=True, head_dim=16, rope_parameters=rope)}, prompt=48,
        modern_config=True, matters=[dict(rope_parameters={**rope, **c}) for c in (
            dict(mscale=None), dict(beta_fast=2.0), dict(beta_slow=1.0), dict(truncate=True))])


def llama_dynamic():
    """The greedy text stays within the positions of the file; the prompt has all that the factor makes of them."""
    rope = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
    return Spec("llama-dynamic", transformers.LlamaForCausalLM, {**SMALL, **dict(
        model_type="llama", rms_norm_eps=1e-5, tie_word_embeddings=True, max_position_embeddings=80, rope_parameters=rope)},
        prompt=160, matters=[dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))])


def smollm3():
    """Every second layer has no positions."""
    return Spec("smollm3", transformers.SmolLM3ForCausalLM, {**SMALL, **dict(
        model_type="smollm3", num_hidden_layers=4, rms_norm_eps=1e-6, tie_word_embeddings=True, no_rope_layer_interval=2,
        rope_parameters=dict(rope_type="default", rope_theta=50000.0))},
        matters=[dict(no_rope_layers=[1, 1, 1, 0]), dict(no_rope_layers=[1, 1, 1, 1])])


def smollm3_sliding():
    """Layers without positions in no pattern, and those have a window."""
    spec = smollm3()
    spec.name, spec.modern_config = "smollm3-sliding", True
    spec.config = {**spec.config, "num_hidden_layers": 3, "no_rope_layers": [0, 1, 0], "use_sliding_window": True,
                   "sliding_window": 12}
    spec.matters = [dict(no_rope_layers=[1, 1, 0]), dict(sliding_window=64)]
    return spec


def granite():
    """All four multipliers; a partial_rotary_factor, which transformers ignores in this family."""
    return Spec("granite", transformers.GraniteForCausalLM, {**SMALL, **dict(
        model_type="granite", rms_norm_eps=1e-5, tie_word_embeddings=False, embedding_multiplier=3.0, attention_multiplier=0.2,
        residual_multiplier=0.8, logits_scaling=1.5, mlp_bias=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0))},
        respelled=dict(partial_rotary_factor=0.5),
        matters=[dict(embedding_multiplier=1.0), dict(attention_multiplier=1.0), dict(residual_multiplier=1.0),
                 dict(logits_scaling=1.0)])


def olmo2():
    """Norms after the branches, and of q and k before they are split into heads."""
    return Spec("olmo2", transformers.Olmo2ForCausalLM, {**SMALL, **dict(
        model_type="olmo2", rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=500000.0))})


def olmo3():
    """As OLMo 2, with windows, and yarn in the layers without."""
    rope = dict(rope_type="yarn", rope_theta=500000.0, factor=4.0, original_max_position_embeddings=24, attention_factor=1.3)
    return Spec("olmo3", transformers.Olmo3ForCausalLM, {**SMALL, **dict(
        model_type="olmo3", num_hidden_layers=4, rms_norm_eps=1e-6, tie_word_embeddings=False, sliding_window=14,
        rope_parameters=dict(full_attention=rope, sliding_attention=dict(rope_type="default", rope_theta=500000.0)))}, modern_config=True,
        matters=[dict(sliding_window=64), dict(layer_types=["full_attention"] + ["sliding_attention"] * 3)])


def gpt_neox(name="gpt-neox", parallel=True, **changes):
    return Spec(name, transformers.GPTNeoXForCausalLM, {**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, **dict(
        model_type="gpt_neox", hidden_act="gelu", layer_norm_eps=1e-5, tie_word_embeddings=False, use_parallel_residual=parallel,
        attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), **changes},
        neox_rope=True, matters=[dict(use_parallel_residual=not parallel)])


def stablelm(name="stablelm", **changes):
    return Spec(name, transformers.StableLmForCausalLM, {**SMALL, **dict(
        model_type="stablelm", layer_norm_eps=1e-5, tie_word_embeddings=False, use_qkv_bias=True, use_parallel_residual=False,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)), **changes})


def ministral():
    """A width of heads of its own, and windows where layer_types says so."""
    return Spec("ministral", transformers.MinistralForCausalLM, {**SMALL, **dict(
        model_type="ministral", num_hidden_layers=3, rms_norm_eps=1e-5, tie_word_embeddings=False, head_dim=12, sliding_window=14,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))}, modern_config=True,
        matters=[dict(sliding_window=64), dict(layer_types=["full_attention"] + ["sliding_attention"] * 2)])


def ministral3():
    """Within original_max_position_embeddings: beyond it queries are scaled."""
    return Spec("ministral3", transformers.Ministral3ForCausalLM, {**SMALL, **dict(
        model_type="ministral3", rms_norm_eps=1e-5, tie_word_embeddings=False, head_dim=12, max_position_embeddings=512,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=128, beta_fast=4.0,
                             beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))}, modern_config=True)


def with_images(name, text, model, model_type, vision, **beside):
    """The text model of one that also takes images; the rest of it is in the file, and must not matter."""
    spec = text
    spec.name, spec.model, spec.modern_config, spec.matters = name, model, True, []
    small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
    spec.config = dict(model_type=model_type, text_config=spec.config, vision_config=dict(model_type=vision, **small), **beside)
    return spec


def gemma3_images():
    return with_images("gemma3-images", gemma3(), transformers.Gemma3ForConditionalGeneration, "gemma3", "siglip_vision_model",
                       mm_tokens_per_image=4, image_token_index=3, boi_token_index=4, eoi_token_index=5, eos_token_id=[2, 0])


def mistral3_images():
    return with_images("mistral3-images", mistral(), transformers.Mistral3ForConditionalGeneration, "mistral3", "pixtral",
                       image_token_index=3, tie_word_embeddings=False, eos_token_id=0)


def mixtral():
    return Spec("mixtral", transformers.MixtralForCausalLM, dict(
        model_type="mixtral", vocab_size=VOCAB, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=256, rms_norm_eps=1e-5,
        tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1000000.0), bos_token_id=0,
        eos_token_id=0), matters=[dict(num_experts_per_tok=1)])


def qwen2_moe():
    """A shared expert with a gate, and weights that are not normalised."""
    return Spec("qwen2-moe", transformers.Qwen2MoeForCausalLM, dict(
        model_type="qwen2_moe", vocab_size=VOCAB, hidden_size=32, intermediate_size=48, moe_intermediate_size=20,
        shared_expert_intermediate_size=36, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, num_experts=6,
        num_experts_per_tok=2, norm_topk_prob=False, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0), bos_token_id=0, eos_token_id=[2, 0]),
        respelled=dict(sliding_window=4096),
        matters=[dict(num_experts_per_tok=3), dict(norm_topk_prob=True)])


def olmoe():
    """q and k are normalised before they are split into heads."""
    return Spec("olmoe", transformers.OlmoeForCausalLM, dict(
        model_type="olmoe", vocab_size=VOCAB, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0), bos_token_id=0,
        eos_token_id=0, pad_token_id=None), matters=[dict(num_experts_per_tok=2), dict(norm_topk_prob=True)])


def qwen3_moe():
    """Layers with experts, and a dense one among them."""
    return Spec("qwen3-moe", transformers.Qwen3MoeForCausalLM, dict(
        model_type="qwen3_moe", vocab_size=VOCAB, hidden_size=32, intermediate_size=40, moe_intermediate_size=16,
        num_hidden_layers=4, decoder_sparse_step=1, mlp_only_layers=[2], num_attention_heads=4, num_key_value_heads=2,
        head_dim=12, num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, max_position_embeddings=256, rms_norm_eps=1e-6,
        tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1000000.0), bos_token_id=0,
        eos_token_id=2), modern_config=True, matters=[dict(num_experts_per_tok=2), dict(norm_topk_prob=False)])


def gpt_oss():
    """Biases large enough to bring gates and values to the clamp."""
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=32, beta_fast=4.0,
                beta_slow=0.5, truncate=False)
    return Spec("gpt-oss", transformers.GptOssForCausalLM, dict(
        model_type="gpt_oss", vocab_size=VOCAB, hidden_size=48, intermediate_size=20, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=5, num_experts_per_tok=2, sliding_window=12,
        max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=rope, bos_token_id=0,
        eos_token_id=[0, 2], pad_token_id=1), prompt=40, modern_config=True, routing=0.02,
        matters=[dict(num_experts_per_tok=3), dict(sliding_window=64), dict(swiglu_limit=50.0), dict(swiglu_alpha=1.0),
                 dict(layer_types=["full_attention", "sliding_attention"] * 2),
                 *(dict(rope_parameters={**rope, **c}) for c in (dict(truncate=True), dict(beta_fast=2.0), dict(factor=4.0)))])


def gpt_oss_mxfp4():
    """As the published directories: bf16 with experts in MXFP4, and the spelling of transformers 4."""
    spec = gpt_oss()
    spec.name, spec.dtype, spec.mxfp4, spec.modern_config = "gpt-oss-mxfp4", torch.bfloat16, True, False
    spec.config = {**spec.config, "hidden_size": 96, "intermediate_size": 32, "num_local_experts": 4, "num_hidden_layers": 2}
    spec.respelled = dict(
        experts_per_token=2, initial_context_length=32, hidden_act="silu", layer_types=["sliding_attention", "full_attention"],
        quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=[
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]))
    spec.matters, spec.prompt = [dict(num_experts_per_tok=3), dict(sliding_window=64), dict(swiglu_limit=50.0)], 24
    spec.routing = 0.06
    return spec


def specs():
    # qwen2: 304 rows in the table but 288 words, as the published Qwen files pad theirs
    return [llama_gqa(), llama_f16(), mistral(), qwen2("qwen2", vocab_size=304), qwen2_bf16(), qwen3(),
            gpt2("gpt2", prefix=False), gpt2("distilgpt2-prefixed", prefix=True, n_inner=88, n_layer=3), phi(), qwen3_sliding(),
            phi_tied(), gemma2(), gemma3(), gemma3_bf16(), phi3(), phi4_mini(), qwen2_yarn(), llama_yarn(), llama_dynamic(),
            smollm3(), smollm3_sliding(), granite(), olmo2(), olmo3(), gpt_neox(), gpt_neox("gpt-neox-sequential", False), stablelm(),
            stablelm("stablelm-parallel", use_qkv_bias=False, use_parallel_residual=True), ministral(),
            phi_qk_norm(), stablelm("stablelm-qk-norm", use_qkv_bias=False, use_parallel_residual=True, qk_layernorm=True),
            mixtral(), qwen2_moe(), qwen3_moe(), olmoe(), gpt_oss(), gpt_oss_mxfp4(), ministral3(), gemma3_images(), mistral3_images()]


def is_norm(name):
    return "norm" in name or ".ln_" in name


def randomize(model, seed, norm_offset):
    """Weights large enough for lively logits, norms around 1, biases around 0 but not small.

    Gemma multiplies its embeddings by the root of the hidden size: only with more of what the layers add does the tied
    head give another token than the last one."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=g)
            if is_norm(name) and name.endswith("weight"):
                p.copy_((2 if "post_" in name else 0) + 0.2 * noise if norm_offset else 1 + 0.2 * noise)
            elif name.endswith("gate_up_proj_bias"):
                p.copy_(4 * noise)
            elif name.endswith("sinks") or name.endswith("router.bias"):
                p.copy_(2 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            else:
                p.copy_((0.3 if any(n in name for n in ("q_proj", "k_proj", "c_attn", "qkv_proj", "query_key_value")) else 0.18) * noise)


def legacy_config(config, respelled, neox_rope=False):
    """The spelling of transformers 4, which nearly all published directories have."""
    old = {k: v for k, v in config.items() if k != "layer_types" and not k.startswith("_")}
    if "dtype" in old:
        old["torch_dtype"] = old.pop("dtype")
    rope = old.pop("rope_parameters", None)
    if rope and "sliding_attention" in rope:  # one for each type of layer
        old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    if rope:
        old["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        old["rope_scaling"] = None if rope.get("rope_type", "default") == "default" else rope
        if old.get("rope_scaling"):
            old["rope_scaling"]["type"] = old["rope_scaling"].pop("rope_type")
            if "original_max_position_embeddings" in old:
                old["rope_scaling"].pop("original_max_position_embeddings", None)
    if neox_rope:
        old["rotary_emb_base"], old["rotary_pct"] = old.pop("rope_theta"), old.pop("partial_rotary_factor")
    old = {**old, **respelled}
    return dict(sorted(old.items()))


def as_hub_gpt2(path, n_positions):
    """The published gpt2 file: no "transformer." prefix, and the causal masks stored as tensors to be ignored."""
    tensors = safetensors.torch.load_file(path)
    tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
    mask = torch.tril(torch.ones(1, 1, n_positions, n_positions))
    for layer in range(sum(k.endswith("c_attn.weight") for k in tensors)):
        tensors[f"h.{layer}.attn.bias"] = mask.clone()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def to_mxfp4(w):
    """w [E, inputs, outputs] -> blocks U8 [E, outputs, inputs / 32, 16], scales U8 [E, outputs, inputs / 32]"""
    groups = w.float().transpose(1, 2).unflatten(2, (-1, 32))
    exponent = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True))) - 2  # that of the largest value, 4 or 6
    codes = ((groups / 2 ** exponent).unsqueeze(-1) - torch.tensor(FP4_VALUES)).abs().argmin(-1).to(torch.uint8)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous(), (exponent.squeeze(-1) + 127).to(torch.uint8)


def as_mxfp4(path, model):
    """Stores the experts' matrices as MXFP4, and gives the model the values that they then have."""
    tensors = safetensors.torch.load_file(path)
    for name, p in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            blocks, scales = to_mxfp4(tensors.pop(name))
            tensors.update({name + "_blocks": blocks, name + "_scales": scales})
            p.data = convert_moe_packed_tensors(blocks, scales, dtype=p.dtype)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


def write_model(directory, spec, seed, tok):
    config = transformers.AutoConfig.for_model(**copy.deepcopy(spec.config))
    model = spec.model(config)
    randomize(model, seed, spec.norm_offset)
    model.generation_config.update(**spec.generation)
    shutil.rmtree(directory, ignore_errors=True)
    for p in model.parameters():  # not model.to(): the rotary frequencies stay float32, as when loading
        p.data = p.data.to(spec.dtype)
    model.config.dtype = spec.dtype
    model.save_pretrained(directory, max_shard_size=spec.shard)
    if not spec.modern_config:
        path = directory / "config.json"
        write_json(path, legacy_config(json.loads(path.read_text()), spec.respelled, spec.neox_rope))
    if not spec.prefix:
        as_hub_gpt2(directory / "model.safetensors", spec.config["n_positions"])
    if spec.mxfp4:
        as_mxfp4(directory / "model.safetensors", model)
    write_tokenizer(directory, tok)
    for file in directory.iterdir():
        file.chmod(0o644)
    round_embedding_scale(model)
    return model.float().eval()


# ---- what is expected ------------------------------------------------------------------------------------------------

def load(directory):
    config = json.loads((directory / "config.json").read_text())
    how = dict(quantization_config=transformers.Mxfp4Config(dequantize=True)) if "quantization_config" in config else {}
    kind = transformers.AutoModelForImageTextToText if "text_config" in config else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(directory, attn_implementation="eager", experts_implementation="eager", **how)
    round_embedding_scale(model)
    return model.float().eval()


def round_embedding_scale(model):
    """Gemma rounds the scale to the type of the weights: it stays rounded when these are widened."""
    embed = model.get_input_embeddings()
    if hasattr(embed, "embed_scale"):
        embed.embed_scale = embed.embed_scale.to(embed.weight.dtype)


@torch.no_grad()
def logits_of(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy_of(model, prompt, n):
    """The continuation and the least lead of the best logit on the way; every step computes everything anew."""
    ids, margin = list(prompt), float("inf")
    for _ in range(n):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt):], margin


def random_ids(n, vocab, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIALS), vocab, (n,), generator=g).tolist()


@torch.no_grad()
def routing_margin(model, ids):
    """The least lead of the last chosen expert over the first of the others."""
    margins = []

    def lead(router, inputs, output):
        best = torch.topk(output[0], router.top_k + 1).values
        margins.append(float((best[:, -2] - best[:, -1]).min()))
    hooks = [layer.mlp.router.register_forward_hook(lead) for layer in model.model.layers]
    logits_of(model, ids)
    for hook in hooks:
        hook.remove()
    return min(margins)


@torch.no_grad()
def check_everything_matters(model, ids, spec):
    """Every parameter tensor and setting must show in the logits: otherwise the fixture could not catch its loss."""
    before = logits_of(model, ids)
    for name, p in model.named_parameters():
        if "vision" in name or "projector" in name:
            continue
        saved = p.clone()
        p.fill_(1.0 if is_norm(name) and name.endswith("weight") and not spec.norm_offset else 0.0)
        change = float((logits_of(model, ids) - before).abs().max())
        p.copy_(saved)
        assert change > MATTERS, f"{name}: only changes the logits by {change:.2g}"
    for setting in spec.matters:
        config = transformers.AutoConfig.for_model(**copy.deepcopy({**spec.config, **setting}), attn_implementation="eager")
        other = spec.model(config).eval()
        other.load_state_dict(model.state_dict())
        if hasattr(model.get_input_embeddings(), "embed_scale"):
            other.get_input_embeddings().embed_scale.copy_(model.get_input_embeddings().embed_scale)
        change = float((logits_of(other, ids) - before).abs().max())
        assert change > MATTERS, f"{setting}: only changes the logits by {change:.2g}"


def last_experts(model):
    experts = model.model.layers[-1].mlp.experts
    return {f"experts.{name}": getattr(experts, name).detach().bfloat16() for name in ("gate_up_proj", "down_proj")}


def write_expected(path, ids, logits, prompt, greedy, experts):
    def i32(v):
        return torch.tensor(v, dtype=torch.int32)
    safetensors.torch.save_file({"ids": i32(ids), "logits": logits.contiguous(), "greedy_prompt": i32(prompt),
                                 "greedy": i32(greedy), **experts}, path)
    path.chmod(0o644)


def lively(tokens):
    return len(set(tokens)) >= 12


def eos_ids(model):
    eos = model.config.get_text_config().eos_token_id
    return set(eos if isinstance(eos, list) else [eos])


def make_random(out, spec, tok):
    """Tries seeds until the greedy path is safe from rounding, varied, and free of end-of-text."""
    for seed in range(1, 100):
        directory = out / spec.name
        written = write_model(directory, spec, seed, tok)
        model = load(directory)
        prompt = random_ids(GREEDY_PROMPT, VOCAB, 1000 + seed)
        ids = random_ids(spec.prompt, VOCAB, 2000 + seed)
        if spec.routing and routing_margin(model, ids) < spec.routing:
            continue
        greedy, margin = greedy_of(model, prompt, GREEDY_TOKENS)
        if margin > MARGIN and lively(greedy) and not eos_ids(model) & set(greedy) and max(greedy) < VOCAB:
            break
    else:
        raise SystemExit(f"{spec.name}: no seed gave a safe greedy path")
    # what was loaded back, through the respelled config and names, is what was written
    torch.testing.assert_close(logits_of(model, ids), logits_of(written, ids), atol=1e-4, rtol=1e-4)
    check_everything_matters(model, ids, spec)
    logits = logits_of(model, ids)
    write_expected(directory / "expected.safetensors", ids, logits, prompt, greedy, last_experts(model) if spec.mxfp4 else {})
    report(directory, f"seed {seed}, margin {margin:.4f}, {len(set(greedy))} different greedy tokens, logits std {logits.std():.2f}")


TINY_FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
              "special_tokens_map.json"]
TINY_STORY = ("Once upon a time, there was a little boy named Tim. Tim had a big red ball. He liked to play with "
              "his ball in the park. One day, he saw a small dog near a tree. The dog looked sad, so Tim gave the ball to the dog. "
              "The dog was happy and they played together all day. They became good "
              "friends. When the sun went down, Tim took the dog home. His mom smiled and said, \"What a nice dog! Can he stay with "
              "us?\" Tim jumped up and down. He was so happy. From that day on, Tim and the dog shared the red ball.")
TINY_README = """# tinystories-656k

The weights and the tokenizer of raincandy-u/TinyStories-656K (Apache-2.0), as found in the repository
LearningInfiniTensor/learning-lm-rs under models/story. `expected.safetensors` is ours: see tests/model/make_fixtures.py.
"""
TINY_PROMPTS = ["Once upon a time", "Lily and Tom", "The cat sat", "One day, a girl"]


def make_tinystories(out, source):
    directory = out / "tinystories-656k"
    directory.mkdir(parents=True, exist_ok=True)
    for name in TINY_FILES:
        if source != directory:
            (directory / name).unlink(missing_ok=True)
            shutil.copyfile(source / name, directory / name)
    (directory / "README.md").write_text(TINY_README)
    tok = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    model = load(directory)
    ids = tok.encode(TINY_STORY).ids[:64]
    assert len(ids) == 64, len(ids)
    for text in TINY_PROMPTS:
        prompt = tok.encode(text).ids
        greedy, margin = greedy_of(model, prompt, GREEDY_TOKENS)
        if margin > MARGIN and not eos_ids(model) & set(greedy):
            break
    else:
        raise SystemExit("tinystories-656k: no prompt gave a safe greedy path")
    write_expected(directory / "expected.safetensors", ids, logits_of(model, ids), prompt, greedy, {})
    report(directory, f"margin {margin:.4f}: {text!r} -> {tok.decode(greedy)!r}")


# ---- main ------------------------------------------------------------------------------------------------------------

def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def report(directory, text):
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{directory.name}: {size // 1024} KiB, {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tinystories", type=Path, help="a TinyStories-656K directory (default: the one in --out, if there)")
    parser.add_argument("--only", help="one fixture by name")
    args = parser.parse_args()
    print(f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
          f"tokenizers {tokenizers.__version__}, safetensors {safetensors.__version__}")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    tok = make_tokenizer()
    for spec in specs():
        if args.only in (None, spec.name):
            make_random(args.out, spec, tok)
    tiny = args.tinystories or args.out / "tinystories-656k"
    if args.only in (None, "tinystories-656k") and (tiny / "model.safetensors").exists():
        make_tinystories(args.out, tiny)


if __name__ == "__main__":
    main()
