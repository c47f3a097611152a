"""Models of Hugging Face's layout as GGUF files, for the tests.

Written with the `gguf` package's GGUFWriter; names, permutations and offsets as llama.cpp's convert_hf_to_gguf.py has them.
Made with gguf 0.19.0, numpy 2.4.6.
"""
import json
import re
import struct
from pathlib import Path

import gguf
import numpy as np

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

LLAMA = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
GEMMA = LLAMA | {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}
PHI = LLAMA | {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
GPT2 = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down"}
PHI3 = LLAMA | {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
EXPERTS = {"gate": "ffn_gate_inp", "experts.w1": "ffn_gate_exps", "experts.w3": "ffn_up_exps", "experts.w2": "ffn_down_exps",
           "experts.gate_proj": "ffn_gate_exps", "experts.up_proj": "ffn_up_exps", "experts.down_proj": "ffn_down_exps",
           "shared_expert.gate_proj": "ffn_gate_shexp", "shared_expert.up_proj": "ffn_up_shexp",
           "shared_expert.down_proj": "ffn_down_shexp", "shared_expert_gate": "ffn_gate_inp_shexp"}
MIXTURE = LLAMA | {f"{part}.{k}": v for part in ("mlp", "block_sparse_moe") for k, v in EXPERTS.items()}
GPT_OSS = MIXTURE | {"self_attn.sinks": "attn_sinks", "post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
OLMO2 = LLAMA | {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
STABLELM = LLAMA | {f"self_attn.{x}_layernorm.norms": f"attn_{x}_norm" for x in "qk"}
NEOX = LLAMA | {"attention.query_key_value": "attn_qkv", "attention.dense": "attn_output", "mlp.dense_h_to_4h": "ffn_up",
                "mlp.dense_4h_to_h": "ffn_down"}
MODEL = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output", "final_layernorm": "output_norm", "wte": "token_embd",
         "wpe": "position_embd", "ln_f": "output_norm", "embed_in": "token_embd", "final_layer_norm": "output_norm", "embed_out": "output"}
ARCHS = {"llama": ("llama", LLAMA), "mistral": ("llama", LLAMA), "qwen2": ("qwen2", LLAMA), "qwen3": ("qwen3", LLAMA),
         "gemma2": ("gemma2", GEMMA), "gemma3_text": ("gemma3", GEMMA), "phi": ("phi2", PHI), "phi3": ("phi3", PHI3), "gpt2": ("gpt2", GPT2),
         "mixtral": ("llama", MIXTURE), "qwen2_moe": ("qwen2moe", MIXTURE), "qwen3_moe": ("qwen3moe", MIXTURE), "olmoe": ("olmoe", MIXTURE),
         "olmo2": ("olmo2", OLMO2), "olmo3": ("olmo2", OLMO2), "granite": ("granite", LLAMA), "smollm3": ("smollm3", LLAMA),
         "stablelm": ("stablelm", STABLELM), "gpt_neox": ("gptneox", NEOX), "gpt_oss": ("gpt-oss", GPT_OSS),
         "ministral3": ("mistral3", LLAMA)}
PERMUTED = ("llama", "granite", "smollm3", "mistral3")


def tensors(directory):
    """name -> (array, type); bf16 as uint16"""
    out = {}
    for path in sorted(Path(directory).glob("model*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            kind = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8}[entry["dtype"]]
            out[name] = np.frombuffer(data[8 + size + begin : 8 + size + end], kind).reshape(entry["shape"]), entry["dtype"]
    return out


def floats(array, kind):
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else array.astype(np.float32)


def renamed(name, names):
    stem, suffix = name.rsplit(".", 1)
    for prefix in ("model.", "transformer.", "gpt_neox."):
        stem = stem.removeprefix(prefix)
    if stem.startswith(("layers.", "h.")):
        _, layer, module = stem.split(".", 2)
        return f"blk.{layer}.{names[module]}.{suffix}"
    return f"{MODEL[stem]}.{suffix}"


def permuted(array, heads):
    """The rows of each head: those of features i and i + D/2 beside each other."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def thirds(array, heads):
    """Rows of q, k and v of each head as the q of all heads, then k, then v."""
    return array.reshape(heads, 3, array.shape[0] // heads // 3, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


def stacked(tensors):
    """The matrices of a layer's experts as one tensor, "experts.w1" for "experts.0.w1" and the others; likewise the norms of heads."""
    out, experts = {}, {}
    for name, value in tensors.items():
        match = re.fullmatch(r"(.*\.(?:experts|norms))\.(\d+)(\..*)", name)
        if match:
            experts.setdefault(match[1] + match[3], {})[int(match[2])] = value
        else:
            out[name] = value
    for name, of in experts.items():
        out[name] = np.stack([of[i][0] for i in range(len(of))]), of[0][1]
    return out


def mxfp4(blocks, scales):
    """gpt-oss's blocks, whose bytes have codes beside each other, as ggml's, whose bytes have a code of each half: [E, rows, bytes]"""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    return np.concatenate([scales[..., None], codes[..., :16] | codes[..., 16:] << 4], -1).reshape(*scales.shape[:2], -1)


def unfused(tensors):
    """gpt-oss's tensors of all experts, stacked as GGUF files have them: gate and up apart, outputs before inputs."""
    out = {}
    for name, (array, kind) in tensors.items():
        match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias|_blocks|)", name)
        if name.endswith("_scales"):
            continue
        if not match:
            out[name + ".weight" * name.endswith("sinks")] = array, kind
            continue
        if match[3] == "_blocks":
            array, kind = mxfp4(array, tensors[name.replace("_blocks", "_scales")][0]), "MXFP4"
        elif match[3] == "":
            array = array.swapaxes(1, 2)
        suffix = "bias" if match[3] == "_bias" else "weight"
        if match[2] == "down":
            out[f"{match[1]}.down_proj.{suffix}"] = array, kind
        else:
            out[f"{match[1]}.gate_proj.{suffix}"] = array[:, 0::2], kind
            out[f"{match[1]}.up_proj.{suffix}"] = array[:, 1::2], kind
    return out


def config(directory):
    c = json.loads((Path(directory) / "config.json").read_text())
    renames = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
               "layer_norm_epsilon": "layer_norm_eps", "rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta",
               "num_local_experts": "num_experts"}
    for old, new in renames.items():
        if old in c:
            c[new] = c[old]
    c.setdefault("intermediate_size", 4 * c["hidden_size"])
    c["head_dim"] = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    c.setdefault("num_key_value_heads", c["num_attention_heads"])
    return c


def llama3_divisors(scaling, theta, dim):
    low, high, old, factor = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "factor"))
    out = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * theta ** (i / dim)
        smooth = min(max((old / wavelength - low) / (high - low), 0), 1)
        out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def write_config(w, c):
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        w.add_layer_norm_eps(c["layer_norm_eps"])
    if c["model_type"] == "gpt2":
        return
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    rope = c.get("rope_parameters") or c
    w.add_rope_freq_base((rope.get("full_attention") or rope)["rope_theta"])
    partial = c.get("partial_rotary_factor", 1) if c["model_type"] in ("phi", "phi3", "stablelm", "gpt_neox") else 1
    w.add_rope_dimension_count(int(c["head_dim"] * partial))
    scaling = c.get("rope_scaling") or rope.get("full_attention") or rope
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        for beta in ("beta_fast", "beta_slow"):
            if beta in scaling:
                w.add_float32(f"{w.arch}.rope.scaling.yarn_{beta}", scaling[beta])
        if "llama_4_scaling_beta" in scaling:  # as convert_hf_to_gguf.py writes Ministral 3
            w.add_rope_scaling_yarn_log_mul(scaling["mscale_all_dim"])
            w.add_attn_temperature_scale(scaling["llama_4_scaling_beta"])
        if "attention_factor" in scaling:  # llama.cpp multiplies its own with that of the file
            w.add_float32(f"{w.arch}.rope.scaling.attn_factor", scaling["attention_factor"] / (1 + 0.1 * np.log(scaling["factor"])))
    write_family(w, c)
    if c.get("sliding_window") and not c.get("use_sliding_window") is False:
        w.add_sliding_window(c["sliding_window"])
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if "query_pre_attn_scalar" in c:
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
    if c["model_type"] in ("gemma3_text", "olmo3"):
        if "layer_types" in c:
            w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        else:
            w.add_uint32(f"{w.arch}.attention.sliding_window_pattern", c["sliding_window_pattern"])


def write_family(w, c):
    if c["model_type"] == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if "use_parallel_residual" in c:
        w.add_parallel_residual(c["use_parallel_residual"])
    if "num_experts" in c:
        w.add_expert_count(c["num_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in c:
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def write_tokenizer(w, t, settings, pre=None):
    """t: a tokenizer.json; pre: the name of the pre-tokenizer of a byte-level model, None: SentencePiece"""
    model, added = t["model"], {a["content"]: a for a in t["added_tokens"]}
    ids = model["vocab"] | {a["content"]: a["id"] for a in t["added_tokens"]}
    size = max(ids.values()) + 1
    tokens, types = [f"[PAD{i}]" for i in range(size)], [UNUSED] * size
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    for token, i in ids.items():
        tokens[i] = token
        types[i] = NORMAL
        if pre is None and len(token) == 6 and token.startswith("<0x"):
            types[i] = BYTE
        if token in added:
            types[i] = CONTROL if added[token]["special"] else USER_DEFINED
        if token == model.get("unk_token"):
            types[i] = UNKNOWN
    w.add_tokenizer_model("gpt2" if pre else "llama")
    if pre:
        w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    if pre:
        w.add_token_merges(merges)
    else:
        scores = [-1e6] * size
        for rank, merge in reversed(list(enumerate(merges))):
            if merge.replace(" ", "") in ids:  # a merge of spaces themselves makes no piece
                scores[ids[merge.replace(" ", "")]] = float(-rank)
        w.add_token_scores(scores)
        w.add_unk_token_id(ids[model["unk_token"]])
        w.add_add_space_prefix(any(n["type"] == "Prepend" for n in t["normalizer"].get("normalizers", [])))
    w.add_token_types(types)
    for key in ("bos", "eos"):  # the beginning may be known from the post-processor only
        token = settings.get(f"{key}_token")
        token = token["content"] if isinstance(token, dict) else token
        if token in ids:
            getattr(w, f"add_{key}_token_id")(ids[token])
    post = t.get("post_processor") or {}
    for p in post.get("processors", [post]):
        first = p.get("single", [{}])[0].get("SpecialToken")
        if first:
            w.add_bos_token_id(ids[first["id"]])
            w.add_add_bos_token(True)
            break
    else:
        w.add_add_bos_token(False)
    if settings.get("chat_template"):
        w.add_chat_template(settings["chat_template"])


def convert(directory, out, quantise=None, pre="gpt-2", spoil=None):
    """quantise: a GGMLQuantizationType for matrices whose rows are whole blocks; spoil: called with the writer last"""
    c = config(directory)
    arch, names = ARCHS[c["model_type"]]
    w = gguf.GGUFWriter(out, arch)
    write_config(w, c)
    t, settings = (json.loads((Path(directory) / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    write_tokenizer(w, t, settings, pre)
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_divisors(scaling, c["rope_theta"], c["head_dim"]))
    if "long_factor" in scaling:
        for length in ("short", "long"):
            w.add_tensor(f"rope_factors_{length}.weight", np.array(scaling[f"{length}_factor"], np.float32))
        w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
    all_tensors = stacked(tensors(directory)) if c["model_type"] != "gpt_oss" else unfused(tensors(directory))
    tied = c.get("tie_word_embeddings", c["model_type"] == "gpt2")
    for name, (array, kind) in all_tensors.items():
        if tied and name == "lm_head.weight" and "model.embed_tokens.weight" not in all_tensors:
            name = "model.embed_tokens.weight"  # stored once, under either name
        if name.endswith((".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq")):
            continue
        if name == "lm_head.weight" and tied:
            continue
        to = renamed(name, names)
        if arch in PERMUTED and ".attn_q." in to:
            array = permuted(array, c["num_attention_heads"])
        if arch in PERMUTED and ".attn_k." in to:
            array = permuted(array, c["num_key_value_heads"])
        if c["model_type"] == "gpt_neox" and ".attn_qkv." in to:
            array = thirds(array, c["num_attention_heads"])
        if to.endswith("ffn_gate_inp_shexp.weight"):
            array = array.squeeze(0)
        if c["model_type"] == "gpt2" and array.ndim == 2 and "c_" in name:
            array = array.T
        if kind == "MXFP4":
            w.add_tensor(to, np.ascontiguousarray(array), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        elif array.ndim == 1 or to.endswith(".bias"):
            array = floats(array, kind)
            w.add_tensor(to, array + np.float32(1) if arch.startswith("gemma") and "norm" in to else array)
        elif quantise is not None and "_inp" not in to and array.shape[-1] % gguf.GGML_QUANT_SIZES[quantise][0] == 0:
            w.add_tensor(to, gguf.quants.quantize(floats(array, kind), quantise), raw_dtype=quantise)
        elif kind == "BF16":
            w.add_tensor(to, np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            w.add_tensor(to, np.ascontiguousarray(array))
    if spoil:
        spoil(w)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def random_matrix(rng, kind, rows, cols):
    """Random blocks of a type, with scales that make the values about 0.05 large."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, cols // elements, size), np.uint8)
    scales = {"Q2_K": [80, 82], "Q3_K": [108], "Q6_K": [208]}.get(kind.name, [0, 2] if kind.name in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [0])
    for step in (1.0, None):
        if step is None:
            step = 0.05 / gguf.quants.dequantize(blocks.reshape(rows, -1), kind).std()
        if kind.name == "MXFP4":
            blocks[:, :, 0] = 127 + round(np.log2(step))
        for i, at in enumerate(scales if kind.name != "MXFP4" else []):
            # Q4_1 and Q5_1 have a lowest value, the others a minimum that is subtracted
            value = np.float16(-8 * step if i and kind.name.endswith("_1") else step)
            blocks[:, :, at : at + 2] = np.frombuffer(value.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def random_model(out, kind, floats, tokenizer, mixture=False, seed=1):
    """A model of two layers and width 256 whose matrices are random blocks of a type, or the floats that these stand for: of
    architecture llama, or qwen2moe with four experts and a shared one."""
    rng = np.random.default_rng(seed)
    t, settings = (json.loads((Path(tokenizer) / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    w = gguf.GGUFWriter(out, "qwen2moe" if mixture else "llama")
    c = {"model_type": "llama", "num_hidden_layers": 2, "max_position_embeddings": 256, "hidden_size": 256, "head_dim": 32,
         "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 512}
    write_config(w, c | experts if mixture else c)
    write_tokenizer(w, t, settings, "gpt-2")
    shapes = {"token_embd": (288, 256), "output": (288, 256)}
    forward = {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}
    if mixture:
        forward = {f"{name}_shexp": shape for name, shape in forward.items()} | {f"{name}_exps": (4, 256, 256) for name in forward}
    for i in range(2):
        shapes |= {f"blk.{i}.{name}": shape for name, shape in {
            "attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256), **forward}.items()}
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(256, np.float32))
        w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(256, np.float32))
        if mixture:
            w.add_tensor(f"blk.{i}.ffn_gate_inp.weight", rng.standard_normal((4, 256), np.float32))
            w.add_tensor(f"blk.{i}.ffn_gate_inp_shexp.weight", rng.standard_normal(256, np.float32))
    w.add_tensor("output_norm.weight", np.ones(256, np.float32))
    for name, shape in shapes.items():
        blocks = random_matrix(rng, kind, int(np.prod(shape[:-1])), shape[-1])
        if floats:
            w.add_tensor(name + ".weight", gguf.quants.dequantize(blocks, kind).reshape(shape))
        else:
            w.add_tensor(name + ".weight", blocks.reshape(*shape[:-1], -1), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
