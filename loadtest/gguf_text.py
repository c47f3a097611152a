#!/usr/bin/env python3
"""Puts a model directory's tokenizer into a GGUF file that has none, so that llama.cpp's servers take text for it.

    gguf_text.py MODEL_DIR IN.gguf OUT.gguf

`compare_llamacpp.py make` writes files without one, since llama_decode takes ids. Only byte-level BPE (Qwen2, Llama 3, GPT-2), as
tokenizer.json has it; --pre names llama.cpp's splitting rule. Needs PyPI's gguf.
"""
import argparse
import json
import sys
from pathlib import Path


def texts(folder, size):
    """(tokens, types, merges): `size` tokens, types as gguf.TokenType: 1 normal, 3 control, 5 unused."""
    d = json.loads((Path(folder) / "tokenizer.json").read_text())
    if d["model"]["type"] != "BPE":
        sys.exit(f"gguf_text.py: a {d['model']['type']} tokenizer; only byte-level BPE is known")
    tokens, types = [f"[unused{i}]" for i in range(size)], [5] * size
    for text, i in d["model"]["vocab"].items():
        tokens[i], types[i] = text, 1
    for t in d.get("added_tokens", []):
        tokens[t["id"]], types[t["id"]] = t["content"], 3 if t["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in d["model"]["merges"]]
    return tokens, types, merges


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("model")
    p.add_argument("gguf")
    p.add_argument("out")
    p.add_argument("--pre", default="qwen2")
    a = p.parse_args()
    import gguf
    reader = gguf.GGUFReader(a.gguf)
    config = json.loads((Path(a.model) / "config.json").read_text())
    writer = gguf.GGUFWriter(a.out, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith(("GGUF.", "tokenizer.")) or field.name == "general.architecture":
            continue
        kind = field.types[0]
        writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    tokens, types, merges = texts(a.model, config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(a.pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    end = config.get("eos_token_id")
    writer.add_eos_token_id(end[0] if isinstance(end, list) else end)
    writer.add_add_bos_token(False)
    for t in reader.tensors:
        writer.add_tensor_info(t.name, t.data.shape, t.data.dtype, t.data.nbytes, t.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for t in reader.tensors:
        writer.write_tensor_data(t.data)
    writer.close()


if __name__ == "__main__":
    main()
