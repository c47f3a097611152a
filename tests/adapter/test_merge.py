"""`tandem merge`: the bytes it writes, its formats, quantised bases and errors.

That its models give PEFT's logits is in merge_test.c.
"""
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
MODELS, ADAPTERS = TESTS / "fixtures" / "models", TESTS / "fixtures" / "adapters"
BASE, ADAPTER = MODELS / "llama-gqa", ADAPTERS / "llama-gqa--qv"


def tandem(*words, status=0):
    done = subprocess.run([TANDEM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert done.returncode == status, done.stderr.decode()
    return done.stderr.decode()


def merge(model, adapter, out, *words, status=0):
    return tandem("merge", "--model", model, "--adapter", adapter, "--out", out, *words, status=status)


def tensors(directory):
    out = {}
    for path in directory.glob("*model*.safetensors"):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        for key, t in json.loads(data[8:8 + size]).items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                out[key] = t["dtype"], t["shape"], data[8 + size + begin:8 + size + end]
    return out


def write(path, values):
    header, data = {}, b""
    for key, (kind, shape, own) in values.items():
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def floats(tensor):
    kind, shape, data = tensor
    if kind == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[kind]).astype(np.float32).reshape(shape)


def products(adapter):
    """The matrices that PEFT adds, by the names of the weights."""
    config, t = json.loads((adapter / "adapter_config.json").read_text()), tensors(adapter)
    out = {}
    for key in t:
        if key.endswith("lora_A.weight"):
            name = key.removeprefix("base_model.model.").replace(".lora_A", "")
            a, b = floats(t[key]), floats(t[key.replace("lora_A", "lora_B")])
            out[name] = b @ a * np.float32(config["lora_alpha"] / config["r"])
    return out


def test_bytes(tmp_path):
    """What the adapter does not change is copied; the rest is the sum in f32, to a rounding."""
    assert "4 matrices" in merge(BASE, ADAPTER, tmp_path / "m")
    base, got, added = tensors(BASE), tensors(tmp_path / "m"), products(ADAPTER)
    assert base.keys() == got.keys() and len(added) == 4
    for key, t in got.items():
        assert t[:2] == base[key][:2], key
        if key in added:
            assert np.allclose(floats(t), floats(base[key]) + added[key], rtol=1e-6, atol=1e-7), key
        else:
            assert t == base[key], key
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "m" / name).read_bytes() == (BASE / name).read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("kind, bits, torch", [("bf16", 8, "bfloat16"), ("f16", 11, "float16"), ("f32", 24, "float32")])
def test_types(kind, bits, torch, tmp_path):
    merge(BASE, ADAPTER, tmp_path / "m", "--type", kind)
    base, got, added = tensors(BASE), tensors(tmp_path / "m"), products(ADAPTER)
    for key, t in got.items():
        want = floats(base[key]) + added.get(key, 0)
        assert t[0] == kind.upper(), key
        assert np.allclose(floats(t), want, rtol=2.0**-bits * 1.01, atol=1e-7), key
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == torch


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_gguf(kind, tmp_path):
    """The same file as from the merged model in f32."""
    merge(BASE, ADAPTER, tmp_path / "llama-gqa.gguf", "--format", "gguf", "--type", kind)
    merge(BASE, ADAPTER, tmp_path / "llama-gqa", "--type", "f32")
    tandem("quantize", "--model", tmp_path / "llama-gqa", "--out", tmp_path / "want.gguf", "--type", kind)
    assert (tmp_path / "llama-gqa.gguf").read_bytes() == (tmp_path / "want.gguf").read_bytes()


@pytest.mark.parametrize("name, adapter", [("gemma3", "gemma3--embedding"), ("phi-tied", "phi-tied--ends"), ("gpt2", "gpt2--embedding")])
def test_head_and_table_apart(name, adapter, tmp_path):
    """One matrix becomes two, where the adapter changes one of them, or both in different ways.  (Logits: merge_test.c)"""
    says = merge(MODELS / name, ADAPTERS / adapter, tmp_path / "m")
    base, got, added = tensors(MODELS / name), tensors(tmp_path / "m"), products(ADAPTERS / adapter)
    assert "two in the copy" in says and len(got) == len(base) + 1
    table = next(key for key in base if key.endswith(("embed_tokens.weight", "wte.weight")))
    assert floats(got["lm_head.weight"]).shape == floats(got[table]).shape == floats(base[table]).shape
    assert not np.array_equal(floats(got["lm_head.weight"]), floats(got[table]))
    if not any("lm_head" in key for key in added):
        assert got["lm_head.weight"] == base[table]
    assert all(got[key] == base[key] for key in base if key != table and not any(key in name for name in added))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["tie_word_embeddings"] is False
    if name == "gpt2":  # the same as a GGUF file of the floats
        merge(MODELS / name, ADAPTERS / adapter, tmp_path / "gpt2.gguf")
        merge(MODELS / name, ADAPTERS / adapter, tmp_path / "gpt2", "--type", "f32")
        tandem("quantize", "--model", tmp_path / "gpt2", "--out", tmp_path / "want.gguf")
        assert (tmp_path / "gpt2.gguf").read_bytes() == (tmp_path / "want.gguf").read_bytes()


@pytest.mark.parametrize("name, adapter", [("gpt-neox", "gpt-neox--all-linear"), ("gpt2", "gpt2--conv1d"), ("mixtral", "mixtral--experts")])
def test_quantised_gguf_base(name, adapter, tmp_path):
    """What a GGUF file's blocks stand for, plus the adapter: of the floats that a canonical directory would have."""
    tandem("quantize", "--model", MODELS / name, "--out", tmp_path / "base.gguf", "--type", "q8_0")
    assert "dequantised" in merge(tmp_path / "base.gguf", ADAPTERS / adapter, tmp_path / "m", "--type", "f32")
    merge(MODELS / name, ADAPTERS / adapter, tmp_path / "floats", "--type", "f32")
    got, want = ({k.removeprefix("transformer."): t for k, t in tensors(tmp_path / d).items()} for d in ("m", "floats"))
    assert got.keys() <= want.keys() and len(got) > len(want) / 2
    for key, t in got.items():
        a, b = floats(t), floats(want[key])
        assert a.shape == b.shape and np.abs(a - b).max() <= np.abs(b).max() / 127, key


@pytest.mark.parametrize("layout", ["canonical", "nf4"])
def test_quantised_base(layout, tmp_path):
    how = ["--type", "nf4"] if layout == "nf4" else ["--type", "int8", "--layout", "canonical"]
    tandem("quantize", "--model", BASE, "--out", tmp_path / "base", *how)
    assert "dequantised" in merge(tmp_path / "base", ADAPTER, tmp_path / "m", "--type", "f32")
    merge(BASE, ADAPTER, tmp_path / "floats")
    got, want = tensors(tmp_path / "m"), tensors(tmp_path / "floats")
    assert got.keys() <= want.keys() and "quantization_config" not in json.loads((tmp_path / "m" / "config.json").read_text())
    for key, t in got.items():
        a, b = floats(t), floats(want[key])
        assert a.shape == b.shape and np.abs(a - b).max() <= np.abs(b).max() / (3 if layout == "nf4" else 50), key
    tandem("perplexity", "--model", tmp_path / "m", "--file", BASE / "config.json", "--window", "16")


def test_mxfp4(tmp_path):
    """Experts that the adapter does not change stay as they are, and the result is served."""
    base, pairs = MODELS / "gpt-oss-mxfp4", {}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}))
    for key, (_, shape, _) in tensors(base).items():
        if key.endswith("q_proj.weight"):
            module = "base_model.model." + key.removesuffix(".weight")
            pairs[module + ".lora_A.weight"] = "F32", [2, shape[1]], np.full(2 * shape[1], 0.5, "<f4").tobytes()
            pairs[module + ".lora_B.weight"] = "F32", [shape[0], 2], np.full(2 * shape[0], 0.25, "<f4").tobytes()
    write(tmp_path / "a" / "adapter_model.safetensors", pairs)
    merge(base, tmp_path / "a", tmp_path / "m")
    was, got = tensors(base), tensors(tmp_path / "m")
    assert was.keys() == got.keys() and all(got[key] == was[key] for key in was if "self_attn" not in key)
    assert any(got[key] != was[key] for key in was)
    assert "quantization_config" in json.loads((tmp_path / "m" / "config.json").read_text())
    tandem("perplexity", "--model", tmp_path / "m", "--file", BASE / "config.json", "--window", "16")


def test_names(tmp_path):
    shutil.copytree(ADAPTER, tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "org/other"}))
    assert "made for org/other" in merge(BASE, tmp_path / "a", tmp_path / "m")
    says = merge(MODELS / "tinystories-656k", tmp_path / "a", tmp_path / "other", status=1)
    assert "made for org/other" in says and "tensor" in says and not (tmp_path / "other").exists()


def test_refused(tmp_path):
    tandem("quantize", "--model", BASE, "--out", tmp_path / "packed", "--type", "int8")
    assert "packed" in merge(tmp_path / "packed", ADAPTER, tmp_path / "m", status=1)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("kept")
    assert "there already" in merge(BASE, ADAPTER, tmp_path / "there", status=1)
    assert (tmp_path / "there" / "file").read_text() == "kept"
    assert "--type q8_0" in merge(BASE, ADAPTER, tmp_path / "m", "--format", "safetensors", "--type", "q8_0", status=1)
    assert "--type bf16" in merge(BASE, ADAPTER, tmp_path / "m", "--format", "gguf", "--type", "bf16", status=1)
    assert "DoRA" in merge(BASE, ADAPTERS / "llama-gqa--refused-dora", tmp_path / "m", status=1)
    assert "--adapter is missing" in tandem("merge", "--model", BASE, "--out", tmp_path / "m", status=2)
    assert "--out is missing" in tandem("merge", "--model", BASE, "--adapter", ADAPTER, status=2)
    assert not (tmp_path / "m").exists() and not list(tmp_path.glob("*.tmp"))


def test_overflow(tmp_path):
    """A sum that the type cannot hold is refused by name, not written as infinite."""
    shutil.copytree(ADAPTER, tmp_path / "a")
    config = json.loads((tmp_path / "a" / "adapter_config.json").read_text())
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 1e9}))
    says = merge(BASE, tmp_path / "a", tmp_path / "m", "--type", "f16", status=1)
    assert "not finite in type F16" in says and "_proj.weight" in says and not (tmp_path / "m").exists()
