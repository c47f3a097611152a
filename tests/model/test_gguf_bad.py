"""A bad GGUF file is one clear line and exit status 1: never a crash, a hang, or silence."""
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
BASE = TESTS / "fixtures" / "models" / "llama-f16"
sys.path.insert(0, str(TESTS / "model"))
import gguf_models  # noqa: E402

pytestmark = pytest.mark.smoke


def generate(model):
    command = [TANDEM, "generate", "--model", model, "--prompt", "x", "--max-new-tokens", "1"]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf_models.convert(BASE, path)
    return path.read_bytes()


def refused(path, says):
    done = generate(path)
    message = done.stderr.decode(errors="replace")
    assert done.returncode == 1, f"exit status {done.returncode}: {message}"
    assert len(message.splitlines()) == 1 and message.startswith("tandem:") and len(message) < 1000, message
    assert re.search(says, message), message


def test_unspoilt(whole, tmp_path):
    (tmp_path / "m.gguf").write_bytes(whole)
    for model in (tmp_path, tmp_path / "m.gguf"):
        done = generate(model)
        assert done.returncode == 0, done.stderr.decode()


def u32(n):
    return struct.pack("<I", n)


def u64(n):
    return struct.pack("<Q", n)


def patched(at, new):
    return lambda b: b[:at] + new + b[at + len(new) :]


def behind(text, skip, new):
    """new at `skip` bytes behind the first place of a text"""

    def patch(b):
        at = b.index(text) + len(text) + skip
        return b[:at] + new + b[at + len(new) :]

    return patch


ARCH = b"general.architecture"
BYTES = {
    "empty": (lambda b: b"", "byte 0: not a GGUF file"),
    "magic": (patched(0, b"GGML"), "byte 0: not a GGUF file"),
    "head cut": (lambda b: b[:10], "byte 10: the file ends in the header"),
    "version 1": (patched(4, u32(1)), "version 1 is not supported; versions 2 and 3 are"),
    "version 4": (patched(4, u32(4)), "version 4 is not supported"),
    "big-endian": (patched(4, struct.pack(">I", 3)), "big-endian"),
    "many tensors": (patched(8, u64(1 << 40)), "byte 8: 1099511627776 tensors"),
    "more tensors than bytes": (patched(8, u64(900000)), "the file ends before its"),
    "many keys": (patched(16, u64(1 << 60)), "byte 8: .* keys; at most"),
    "long key": (patched(24, u64(1 << 50)), "byte 24: the name of a key of 1125899906842624 bytes"),
    "key type": (behind(ARCH, 0, u32(77)), "key general.architecture has the unknown type 77"),
    "long text": (behind(ARCH, 4, u64(1 << 62)), "key general.architecture of 4611686018427387904 bytes"),
    "text past the end": (behind(ARCH, 4, u64(1 << 18)), "key general.architecture of 262144 bytes"),
    "array past the end": (behind(b"tokenizer.ggml.token_type", 8, u64(1 << 61)), "the file ends in key tokenizer.ggml.token_type"),
    "array of arrays": (behind(b"tokenizer.ggml.token_type", 4, u32(9)), "array of arrays"),
    "array of unknown": (behind(b"tokenizer.ggml.token_type", 4, u32(13)), "unknown type 13"),
    "cut in the keys": (lambda b: b[: b.index(b"tokenizer.ggml.tokens") + 200], "byte [0-9]+: .*key tokenizer.ggml.tokens"),
    "cut in the tensors' list": (lambda b: b[: b.rindex(b"output_norm.weight") + 5], "byte [0-9]+: "),
    "cut in the data": (lambda b: b[:-1000], "byte [0-9]+: the file ends in tensor .*downloaded"),
    "no data": (lambda b: b[: b.rindex(b"output_norm.weight") + 42], "the file ends in tensor"),
    "no dimensions": (behind(b"token_embd.weight", 0, u32(0)), "tensor token_embd.weight: 0 dimensions"),
    "many dimensions": (behind(b"token_embd.weight", 0, u32(5)), "tensor token_embd.weight: 5 dimensions"),
    "empty shape": (behind(b"token_embd.weight", 4, u64(0)), "token_embd.weight: the shape overflows or is empty"),
    "huge shape": (behind(b"token_embd.weight", 4, u64(1 << 62)), "token_embd.weight: the shape overflows"),
    "unknown tensor type": (behind(b"token_embd.weight", 20, u32(63)), r"type 63 \(unknown\) is not supported; tandem reads"),
    "IQ1_S": (behind(b"token_embd.weight", 20, u32(19)), r"type 19 \(IQ1_S\) is not supported"),
    "half a block": (behind(b"token_embd.weight", 20, u32(12)), r"64 columns are not whole blocks of 256 \(Q4_K\)"),
    "offset": (behind(b"blk.0.attn_norm.weight", 16, u64(32)), "tensor blk.0.attn_norm.weight: offset 32; after the tensors before it"),
    "a pointer of git-lfs": (lambda b: b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes(name, whole, tmp_path):
    patch, says = BYTES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(patch(whole))
    refused(path, says)


def value(w, key, new, kind=None):
    entry = w.kv_data[0][key]
    w.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value=new, type=kind or entry.type, sub_type=entry.sub_type)


def setting(key, new, kind=None):
    return lambda w: value(w, key, new, kind)


def without(key):
    return lambda w: w.kv_data[0].pop(key)


def no_tensor(name):
    return lambda w: w.tensors[0].pop(name)


def with_key(add, *args):
    return lambda w: getattr(w, add)(*args)


def wide_rows(w):
    w.tensors[0]["blk.0.attn_q.weight"].tensor = np.zeros((60, 64), np.float16)
    w.tensors[0]["blk.0.attn_q.weight"].shape = (60, 64)
    w.tensors[0]["blk.0.attn_q.weight"].nbytes = 60 * 64 * 2


KINDS = gguf.GGUFValueType
TOKEN = "tokenizer.ggml."
KEYS = {
    "no architecture": (without("general.architecture"), "key general.architecture is missing"),
    "mamba": (setting("general.architecture", "mamba"), '"mamba" is not one of llama, qwen2'),
    "mmproj": (setting("general.architecture", "clip"), "mmproj"),
    "adapter": (with_key("add_type", "adapter"), "a LoRA adapter, not a model"),
    "imatrix": (with_key("add_type", "imatrix"), "imatrix"),
    "alignment": (with_key("add_uint32", "general.alignment", 48), "general.alignment is not a power of two"),
    "no layers": (without("llama.block_count"), "key llama.block_count is missing"),
    "layers are a text": (setting("llama.block_count", "two", KINDS.STRING), "key llama.block_count is not a number"),
    "half a layer": (setting("llama.block_count", 1.5, KINDS.FLOAT32), "num_hidden_layers must be a whole number"),
    "NaN": (setting("llama.rope.freq_base", float("nan")), "llama.rope.freq_base is not a finite number"),
    "no heads": (setting("llama.attention.head_count", 0), "attention.head_count 0"),
    "more kv heads": (setting("llama.attention.head_count_kv", 9), "head_count_kv 9 .*are not possible"),
    "odd kv heads": (setting("llama.attention.head_count_kv", 3), "num_key_value_heads 3|not 3 heads"),
    "values of another size": (setting("llama.attention.value_length", 8), "value_length 8 differs from key_length 16"),
    "rotations": (setting("llama.rope.dimension_count", 8), "rope.dimension_count 8 of heads of 16"),
    "rope type": (with_key("add_string", "llama.rope.scaling.type", "spiral"), 'rope type "spiral"'),
    "no table": (no_tensor("token_embd.weight"), "tensor token_embd.weight is missing"),
    "no matrix": (no_tensor("blk.1.ffn_up.weight"), "layers.1.mlp.up_proj.weight is missing"),
    "no norm": (no_tensor("output_norm.weight"), "model.norm.weight is missing"),
    "rows": (wide_rows, "tensor blk.0.attn_q.weight: 60 rows are not 4 heads of 16 features"),
    "no tokenizer": (without(TOKEN + "model"), "key tokenizer.ggml.model is missing"),
    "rwkv": (setting(TOKEN + "model", "rwkv"), 'tokenizer.ggml.model "rwkv" is not supported; gpt2 and llama are'),
    "pre": (setting(TOKEN + "pre", "klingon"), 'tokenizer.ggml.pre "klingon" is not a pre-tokenizer'),
    "no tokens": (without(TOKEN + "tokens"), "key tokenizer.ggml.tokens is missing"),
    "tokens are numbers": (lambda w: value(w, TOKEN + "tokens", [1, 2]), "tokenizer.ggml.tokens is not a list of"),
    "too few types": (lambda w: value(w, TOKEN + "token_type", [1, 1]), "token_type is not a list of 288 numbers"),
    "no merges": (without(TOKEN + "merges"), "key tokenizer.ggml.merges is missing"),
    "unknown merge": (lambda w: value(w, TOKEN + "merges", ["zq qz"]), r'model.merges\[0\].*is not in the vocabulary'),
    "no scores": (setting(TOKEN + "model", "llama"), "key tokenizer.ggml.scores is missing"),
    "bos": (setting(TOKEN + "bos_token_id", 5000), "bos_token_id is not below the 288 tokens"),
    "split number": (lambda w: (w.add_uint16("split.no", 1), w.add_uint16("split.count", 2)), "part 2 of 2 of a split model: name the first"),
    "split name": (lambda w: (w.add_uint16("split.no", 0), w.add_uint16("split.count", 2)), "whose name must end in -00001-of-00002.gguf"),
    "splits": (lambda w: (w.add_uint16("split.no", 0), w.add_uint16("split.count", 9999)), "split.count is not from 1 to"),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys(name, tmp_path):
    spoil, says = KEYS[name]
    path = tmp_path / "m.gguf"
    gguf_models.convert(BASE, path, spoil=spoil)
    refused(path, says)


def shaped(name, *shape):
    def spoil(w):
        t = w.tensors[0][name]
        t.tensor = np.zeros(shape, np.float32)
        t.shape, t.nbytes = shape, t.tensor.nbytes

    return spoil


EXPERTS = "blk.0.ffn_up_exps.weight"
MIXTURES = {
    "no choice": ("mixtral", without("llama.expert_used_count"), "key llama.expert_used_count is missing"),
    "all chosen and more": ("mixtral", setting("llama.expert_used_count", 5), "num_experts_per_tok 5 is above num_local_experts 4"),
    "fewer experts": ("mixtral", shaped(EXPERTS, 3, 24, 32), "experts.3.w3.weight is missing"),
    "another width": ("mixtral", shaped(EXPERTS, 4, 23, 32), "experts.0.w3.weight: shape is not .24, 32."),
    "not stacked": ("mixtral", shaped(EXPERTS, 96), "ffn_up_exps.weight: 1 dimensions"),
    "too deep": ("mixtral", shaped(EXPERTS, 2, 2, 24, 32), "ffn_up_exps.weight: 4 dimensions"),
    "too many experts": ("mixtral", shaped(EXPERTS, 1025, 1, 32), "1025 experts; at most 1024"),
    "no router": ("mixtral", no_tensor("blk.1.ffn_gate_inp.weight"), "layers.1.block_sparse_moe.gate.weight is missing"),
    "two shared gates": ("qwen2-moe", shaped("blk.0.ffn_gate_inp_shexp.weight", 2, 32), "shared_expert_gate.weight: shape is not .1, 32."),
    "clipped": ("olmoe", with_key("add_float32", "olmoe.attention.clamp_kqv", 8.0), "clip_qkv is not supported"),
    "experts of a dense family": ("qwen2", with_key("add_expert_count", 4), "a mixture of 4 experts is not supported in a qwen2 model"),
    "norms of fewer heads": ("stablelm-qk-norm", shaped("blk.1.attn_q_norm.weight", 3, 8), "layers.1.self_attn.q_layernorm.norms.3.weight is missing"),
    "norms of wider heads": ("stablelm-qk-norm", shaped("blk.1.attn_k_norm.weight", 2, 12), "k_layernorm.norms.0.weight: shape is not .8."),
    "a norm of all heads": ("stablelm-qk-norm", shaped("blk.0.attn_k_norm.weight", 8), "attn_k_norm.weight: 1 dimensions"),
    "norms of q alone": ("stablelm", lambda w: w.add_tensor("blk.0.attn_q_norm.weight", np.ones((4, 8), np.float32)), "layers.0.self_attn.k_layernorm.norms.0.weight is missing"),
    "rows of three": ("gpt-neox", shaped("blk.0.attn_qkv.weight", 90, 32), "attn_qkv.weight: 90 rows are not 12 heads of 8 features"),
    "bias of three": ("gpt-neox", shaped("blk.0.attn_qkv.bias", 90), "attn_qkv.bias: 90 rows are not 12 heads of 8 features"),
    "two widths of experts": ("gpt-oss", with_key("add_expert_feed_forward_length", 21), "expert_feed_forward_length 21 differs from feed_forward_length 20"),
    "no sinks": ("gpt-oss", no_tensor("blk.2.attn_sinks.weight"), "layers.2.self_attn.sinks is missing"),
    "no bias of experts": ("gpt-oss", no_tensor("blk.1.ffn_down_exps.bias"), "layers.1.mlp.experts.0.down_proj.bias is missing"),
    "fewer biases of experts": ("gpt-oss", shaped("blk.1.ffn_up_exps.bias", 4, 20), "layers.1.mlp.experts.4.up_proj.bias is missing"),
    "scaled earlier": ("ministral3", with_key("add_attn_temperature_length", 64), "temperature_length 64 below rope.scaling.original_context_length 128"),
    "scaled without yarn": ("ministral3", without("mistral3.rope.scaling.type"), "rope_parameters is missing|rope_scaling is missing"),
    "rotation of granite": ("granite", setting("granite.rope.dimension_count", 4), "rope.dimension_count 4 of heads of 8"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_families(name, tmp_path):
    base, spoil, says = MIXTURES[name]
    gguf_models.convert(BASE.parent / base, tmp_path / "m.gguf", spoil=spoil)
    refused(tmp_path / "m.gguf", says)


def test_vocabulary_only(tmp_path):
    gguf_models.convert(BASE, tmp_path / "m.gguf", spoil=lambda w: w.tensors[0].clear())
    refused(tmp_path / "m.gguf", "a vocabulary without tensors, not a model")


def test_twice(whole, tmp_path):
    for old, new, says in ((b"blk.0.attn_q.weight", b"blk.0.attn_k.weight", "tensor blk.0.attn_k.weight is there twice"),
                           (b"tokenizer.ggml.bos_token_id", b"tokenizer.ggml.eos_token_id", "key tokenizer.ggml.eos_token_id is there twice")):
        (tmp_path / "m.gguf").write_bytes(whole.replace(old, new))
        refused(tmp_path / "m.gguf", says)


def test_missing_part(whole, tmp_path):
    first = tmp_path / "m-00001-of-00002.gguf"
    gguf_models.convert(BASE, first, spoil=lambda w: (w.add_uint16("split.no", 0), w.add_uint16("split.count", 2)))
    refused(first, "m-00002-of-00002.gguf: No such file")


def test_several(whole, tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(whole)
    refused(tmp_path, "a directory of 2 GGUF models: name one of its files")
