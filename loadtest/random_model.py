#!/usr/bin/env python3
"""A model directory of a known shape with random bf16 weights, for measurements: speed does not depend on the values.

    random_model.py SHAPE OUT_DIR [--layers N] [--tokenizer DIR] [--small]

SHAPE is one of the table below. The tokenizer is that of the demo model unless another directory is given; the rows of the
vocabulary beyond it are never chosen. --small divides every size, to try this script. Needs numpy.
"""
import argparse
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
QWEN3 = dict(model_type="qwen3", hidden_size=2048, intermediate_size=6144, num_hidden_layers=4, num_attention_heads=32, num_key_value_heads=4,
             head_dim=128, vocab_size=151936, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=40960, tie_word_embeddings=False)
SHAPES = {
    "qwen2.5-0.5b": dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                         num_key_value_heads=2, vocab_size=151936, rope_theta=1e6, rms_norm_eps=1e-6, max_position_embeddings=32768,
                         tie_word_embeddings=True),
    "llama-3.2-1b": dict(model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=64, vocab_size=128256, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131072, tie_word_embeddings=True),
    "llama-3.1-8b": dict(model_type="llama", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                         num_key_value_heads=8, head_dim=128, vocab_size=128256, rope_theta=5e5, rms_norm_eps=1e-5,
                         max_position_embeddings=131072, tie_word_embeddings=False),
    # layers of Qwen3-30B-A3B, fewer of them; and a dense model of as much work for a token: 8 experts of 768 are 6144
    "qwen3-30b-a3b": {**QWEN3, "model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                      "norm_topk_prob": True},
    "qwen3-dense": QWEN3,
}
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 2048, "num_experts": 8, "moe_intermediate_size": 24,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts_per_tok": 4}


def feed_forward(c, layer):
    mlp, hidden, inter = f"{layer}.mlp", c["hidden_size"], c["intermediate_size"]
    parts, experts = [mlp], c.get("num_experts", 0)
    if experts:
        yield f"{mlp}.gate.weight", (experts, hidden)
        parts, inter = [f"{mlp}.experts.{e}" for e in range(experts)], c["moe_intermediate_size"]
    for part in parts:
        yield f"{part}.gate_proj.weight", (inter, hidden)
        yield f"{part}.up_proj.weight", (inter, hidden)
        yield f"{part}.down_proj.weight", (hidden, inter)


def tensors(c):
    """(name, shape) of every tensor, as transformers names them."""
    hidden, vocab, kind = c["hidden_size"], c["vocab_size"], c["model_type"]
    head = c.get("head_dim", hidden // c["num_attention_heads"])
    widths = {"q": c["num_attention_heads"] * head, "k": c["num_key_value_heads"] * head, "v": c["num_key_value_heads"] * head}
    yield "model.embed_tokens.weight", (vocab, hidden)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (hidden,)
        for name, width in widths.items():
            yield f"{layer}.self_attn.{name}_proj.weight", (width, hidden)
            if kind == "qwen2":
                yield f"{layer}.self_attn.{name}_proj.bias", (width,)
        if kind.startswith("qwen3"):
            yield f"{layer}.self_attn.q_norm.weight", (head,)
            yield f"{layer}.self_attn.k_norm.weight", (head,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, widths["q"])
        yield from feed_forward(c, layer)
    yield "model.norm.weight", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden)


class Noise:
    """bf16 as uint16: norms about 1, the rest with the deviation that keeps the size of what goes through it.

    Each deviation has one block of noise, and a tensor is slices of it, each from another place: the generator would take
    minutes for 16 GB, which are written in seconds."""

    def __init__(self, largest):
        self.rng, self.blocks = np.random.default_rng(1), {}
        self.size = min(largest, 1 << 24)
        self.normal = self.rng.standard_normal(self.size + self.size // 4, np.float32)  # a quarter: the places a slice may begin at

    def slices(self, name, shape):
        """Arrays that are the tensor, one after the other."""
        norm, left = name.endswith("norm.weight"), int(np.prod(shape))
        scale = 0.02 if len(shape) < 2 else shape[1] ** -0.5
        if (norm, scale) not in self.blocks:
            x = self.normal * np.float32(scale) + np.float32(norm)
            self.blocks[norm, scale] = (x.view(np.uint32) >> 16).astype(np.uint16)
        block = self.blocks[norm, scale]
        while left:
            n = min(left, self.size)
            start = self.rng.integers(len(block) - n + 1)
            yield block[start:start + n]
            left -= n


def put(descriptor, piece, place):
    while piece:  # a write may take less than all
        n = os.pwrite(descriptor, piece, place)
        piece, place = piece[n:], place + n


def write(c, path):
    header, at, plan = {"__metadata__": {"format": "pt"}}, 0, list(tensors(c))
    for name, shape in plan:
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise, writes, place = Noise(max(int(np.prod(shape)) for _, shape in plan)), [], 8 + len(text)
    for name, shape in plan:
        for piece in noise.slices(name, shape):
            writes.append((memoryview(piece).cast("B"), place))
            place += 2 * len(piece)
    with open(path, "wb", buffering=0) as f:
        f.write(len(text).to_bytes(8, "little") + text)
        with ThreadPoolExecutor() as pool:  # one thread alone fills the page cache slower than memory could
            list(pool.map(lambda w: put(f.fileno(), *w), writes))
    return at


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("out", type=Path)
    p.add_argument("--layers", type=int)
    p.add_argument("--tokenizer", type=Path, default=ROOT / "models" / "demo")
    p.add_argument("--small", action="store_true")
    args = p.parse_args()
    c = dict(SHAPES[args.shape])
    if args.small:
        c.update({k: v for k, v in SMALL.items() if k in c})
    if args.layers:
        c["num_hidden_layers"] = args.layers
    c.update(torch_dtype="bfloat16", hidden_act="silu")
    if args.out.exists():
        sys.exit(f"random_model.py: {args.out} exists already")
    args.out.mkdir(parents=True)
    for file in args.tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, args.out)
    (args.out / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    print(f"{args.out}: {write(c, args.out / 'model.safetensors') / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
