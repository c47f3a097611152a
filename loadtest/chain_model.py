#!/usr/bin/env python3
"""A model whose greedy text is known, in the shape of a real one: for measurements that need texts which repeat.

    chain_model.py SHAPE_DIR OUT_DIR

Reads the shape and the tokenizer from SHAPE_DIR (a Qwen2 or Llama directory; its weights are not read). All matrices are
random but two: the outputs of attention and feed-forward are zero, so that the layers, which are computed in full, leave
the embedding as it is; and row t + 1 of the head is row t of the embedding table. So token t is followed by t + 1.
Needs numpy and safetensors."""
import json
import shutil
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file


def half(values):
    return values.astype(numpy.float16)


def main():
    shape, out = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((shape / "config.json").read_text())
    rng = numpy.random.default_rng(1)
    hidden, inter, vocab = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    size = config.get("head_dim", hidden // config["num_attention_heads"])
    heads, pairs = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows, columns, zero=False):
        values = numpy.zeros((rows, columns), numpy.float32)
        return half(values if zero else rng.standard_normal((rows, columns), numpy.float32) * 0.02)

    embed = matrix(vocab, hidden)
    weights = {"model.embed_tokens.weight": embed, "lm_head.weight": numpy.roll(embed, 1, axis=0),
               "model.norm.weight": half(numpy.ones(hidden))}
    for i in range(config["num_hidden_layers"]):
        name = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}{norm}.weight"] = half(numpy.ones(hidden))
        for part, rows in (("q", heads), ("k", pairs), ("v", pairs)):
            weights[f"{name}self_attn.{part}_proj.weight"] = matrix(rows, hidden)
            if config["model_type"] == "qwen2":
                weights[f"{name}self_attn.{part}_proj.bias"] = half(numpy.zeros(rows))
        weights[f"{name}self_attn.o_proj.weight"] = matrix(hidden, heads, zero=True)
        weights[f"{name}mlp.gate_proj.weight"] = matrix(inter, hidden)
        weights[f"{name}mlp.up_proj.weight"] = matrix(inter, hidden)
        weights[f"{name}mlp.down_proj.weight"] = matrix(hidden, inter, zero=True)
    out.mkdir(parents=True, exist_ok=True)
    for file in shape.glob("tokenizer*"):
        shutil.copy(file, out)
    config["tie_word_embeddings"] = False
    (out / "config.json").write_text(json.dumps(config, indent=2))
    save_file(weights, out / "model.safetensors")


if __name__ == "__main__":
    main()
