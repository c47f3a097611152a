"""The tokenizer of a model directory, written into a GGUF file: byte-level BPE (Qwen2, Llama 3, GPT-2), as tokenizer.json has it."""
import json
from pathlib import Path

PRE = {"llama": "llama-bpe", "qwen2": "qwen2"}  # llama.cpp's names of the rules that split a text, by architecture
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # gguf.TokenType


def texts(tokenizer, size):
    """(tokens, types, merges) of `size` tokens."""
    tokens, types = [f"[unused{i}]" for i in range(size)], [UNUSED] * size
    for text, i in tokenizer["model"]["vocab"].items():
        tokens[i], types[i] = text, NORMAL
    for t in tokenizer.get("added_tokens", []):
        tokens[t["id"]], types[t["id"]] = t["content"], CONTROL if t["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    return tokens, types, merges


def add_tokenizer(writer, folder, config, arch):
    """The keys tokenizer.*; a directory without a tokenizer of this kind gives a file that takes and gives ids only."""
    path = Path(folder) / "tokenizer.json"
    tokenizer = json.loads(path.read_text()) if path.exists() else {"model": {}}
    if tokenizer["model"].get("type") != "BPE" or tokenizer["model"].get("byte_fallback"):
        writer.add_tokenizer_model("none")
        return
    tokens, types, merges = texts(tokenizer, config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE[arch])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    end = config.get("eos_token_id")
    if end is not None:
        writer.add_eos_token_id(end[0] if isinstance(end, list) else end)
    writer.add_add_bos_token(False)
