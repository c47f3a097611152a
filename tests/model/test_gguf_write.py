"""`tandem quantize --type q8_0|q4_0` writes GGUF files: the `gguf` package reads them, and tandem reads them back.

What llama.cpp makes of them is in test_gguf_llama_cpp.py.
"""
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
MODELS = TESTS / "fixtures" / "models"
sys.path.insert(0, str(TESTS / "model"))
import gguf_models  # noqa: E402

WRITTEN = ["distilgpt2-prefixed", "gemma2", "gemma3", "gemma3-bf16", "gpt-neox", "gpt-neox-sequential", "gpt-oss", "gpt-oss-mxfp4", "gpt2", "granite", "llama-f16", "llama-gqa",
           "mistral", "mixtral", "olmo2", "olmo3", "olmoe", "phi", "phi-tied", "phi3", "phi4-mini", "qwen2", "qwen2-bf16", "qwen2-moe",
           "qwen2-yarn", "qwen3", "qwen3-moe", "stablelm", "stablelm-parallel", "stablelm-qk-norm", "tinystories-656k"]
KINDS = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0": gguf.GGMLQuantizationType.Q4_0}


def tandem(*words, status=0):
    done = subprocess.run([TANDEM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode() if status == 0 else done.stderr.decode()


def write(model, out, kind="q8_0", status=0):
    return tandem("quantize", "--model", model, "--out", out, "--type", kind, status=status)


def perplexity(model, text):
    return json.loads(tandem("perplexity", "--model", model, "--file", text, "--window", 24, "--json"))["perplexity"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes((TESTS.parent / "models" / "demo" / "heldout.txt").read_bytes()[:1500])
    return path


def table_type(kind, shape):
    """Rows that are no whole blocks stay floats."""
    return KINDS[kind] if shape[-1] % 32 == 0 else None


@pytest.mark.parametrize("name", WRITTEN)
def test_tensors(name, tmp_path):
    """The tensors, in name, shape, order of values and every byte, are those that the `gguf` package writes from the original."""
    pre = None if name == "tinystories-656k" else "gpt-2"
    for kind in ("q8_0", "q4_0"):
        write(MODELS / name, tmp_path / f"{kind}.gguf", kind)
        ours = {t.name: t for t in gguf.GGUFReader(tmp_path / f"{kind}.gguf").tensors}
        gguf_models.convert(MODELS / name, tmp_path / "want.gguf", pre=pre)
        floats = {t.name: t for t in gguf.GGUFReader(tmp_path / "want.gguf").tensors}
        assert ours.keys() == floats.keys()
        for key, t in ours.items():
            assert list(t.shape) == list(floats[key].shape), key
            values = gguf.quants.dequantize(floats[key].data, floats[key].tensor_type)
            matrix = len(t.shape) > 1 and key.endswith(".weight") and not any(n in key for n in ("_inp", "_norm", "position_embd"))
            if floats[key].tensor_type == gguf.GGMLQuantizationType.MXFP4:  # stay as they are
                assert t.tensor_type == floats[key].tensor_type and np.array_equal(t.data, floats[key].data), key
            elif matrix and t.shape[0] % 32 == 0:
                want = gguf.GGMLQuantizationType.Q8_0 if key.startswith(("token_embd", "output")) else KINDS[kind]
                assert t.tensor_type == want, key
                assert np.array_equal(t.data, gguf.quants.quantize(values, want)), key
            elif key.startswith("rope"):  # numpy's pow is not the C library's
                assert np.allclose(t.data, values, rtol=1e-6), key
            else:
                assert t.tensor_type == gguf.GGMLQuantizationType.F32 and np.array_equal(t.data, values.reshape(t.data.shape)), key


@pytest.mark.parametrize("name", WRITTEN)
def test_read_back(name, text, tmp_path):
    write(MODELS / name, tmp_path / "m.gguf")
    assert perplexity(tmp_path / "m.gguf", text) == pytest.approx(perplexity(MODELS / name, text), rel=0.03)
    words = ["--text", "Tom's 12 dogs  saw\n3 caf\u00e9s."]
    assert tandem("tokenize", "--model", tmp_path / "m.gguf", *words) == tandem("tokenize", "--model", MODELS / name, *words)


def fields(path):
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_keys(tmp_path):
    """Those of a real model with SentencePiece's tokens, which the `gguf` package reads."""
    write(MODELS / "tinystories-656k", tmp_path / "m.gguf", "q4_0")
    gguf_models.convert(MODELS / "tinystories-656k", tmp_path / "want.gguf", pre=None)
    ours, want = fields(tmp_path / "m.gguf"), fields(tmp_path / "want.gguf")
    for key, value in want.items():
        if key.startswith(("llama.", "tokenizer.ggml.tok")):
            assert ours[key] == pytest.approx(value) if isinstance(value, float) else ours[key] == value, key
    assert ours["general.architecture"] == "llama" and ours["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0
    assert ours["general.name"] == "tinystories-656k"
    scores, theirs = ours["tokenizer.ggml.scores"], want["tokenizer.ggml.scores"]
    assert all(a == b for a, b in zip(scores, theirs) if b > -1e6)


def changed(tmp_path, name, file, **values):
    if not (tmp_path / "m").exists():
        shutil.copytree(MODELS / name, tmp_path / "m")
    j = json.loads((tmp_path / "m" / file).read_text()) if (tmp_path / "m" / file).exists() else {}
    (tmp_path / "m" / file).write_text(json.dumps(j | values))
    return tmp_path / "m"


def test_chat(tmp_path):
    """Templates, ends of texts and defaults of sampling."""
    model = changed(tmp_path, "qwen2", "tokenizer_config.json", chat_template="{{ messages[0]['content'] }}")
    changed(tmp_path, "qwen2", "generation_config.json", eos_token_id=[7, 9], temperature=0.7, top_k=20, top_p=0.9)
    write(model, tmp_path / "m.gguf")
    got = fields(tmp_path / "m.gguf")
    assert got["tokenizer.chat_template"] == "{{ messages[0]['content'] }}"
    ends = {got[f"tokenizer.ggml.{k}_token_id"] for k in ("eos", "eot") if f"tokenizer.ggml.{k}_token_id" in got}
    assert {7, 9} <= ends | {got.get("tokenizer.ggml.eom_token_id")}
    assert got["general.sampling.temp"] == pytest.approx(0.7) and got["general.sampling.top_k"] == 20


REFUSED = {
    "windows": (lambda t: MODELS / "qwen3-sliding", "a GGUF file of a qwen3 model cannot say sliding windows of this one"),
    "dynamic": (lambda t: MODELS / "llama-dynamic", "cannot say rope_scaling"),
    "mscale": (lambda t: MODELS / "llama-yarn", "cannot say rope_scaling"),
    "rotations": (lambda t: MODELS / "smollm3", "cannot say no_rope_layers"),
    "family": (lambda t: MODELS / "ministral", "a ministral model cannot be written as a GGUF file"),
    "norms of heads": (lambda t: MODELS / "phi-qk-norm", "self_attn.q_layernorm.weight: a GGUF file of architecture phi2 has none like it"),
    "quantised": (lambda t: MODELS / "llama-nf4", "is quantised to nf4 already"),
    "encoder": (lambda t: next((TESTS / "fixtures" / "encoders").glob("*bert*")), "is an encoder"),
    "activation": (lambda t: changed(t, "qwen2", "config.json", hidden_act="relu"), "cannot say the activation"),
    "normaliser": (lambda t: changed(t, "qwen2", "tokenizer.json", normalizer={"type": "Lowercase"}), "this normalizer cannot be said"),
    "splitter": (lambda t: changed(t, "qwen2", "tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": False}]}), "this pre_tokenizer cannot be said"),
    "unigram": (lambda t: changed(t, "qwen2", "tokenizer.json", model={"type": "Unigram"}), "a model other than BPE"),
    "vocabulary": (lambda t: changed(t, "qwen2", "tokenizer.json", added_tokens=[{"id": 999, "content": "<x>", "special": True}]), "not below the 304 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, tmp_path):
    """One clear line, and no file."""
    model, says = REFUSED[name]
    message = write(model(tmp_path), tmp_path / "out.gguf", status=1)
    assert says in message and len(message.splitlines()) == 1, message
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("out")]


def test_not_finite(tmp_path):
    """A weight that is no number is named, and nothing is left."""
    shutil.copytree(MODELS / "llama-f16", tmp_path / "m")
    path = tmp_path / "m" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2:] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    assert "has a value that is not finite" in write(tmp_path / "m", tmp_path / "out.gguf", status=1)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_file_exists(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"mine")
    assert "m.gguf is there already; choose another file" in write(MODELS / "qwen2", tmp_path / "m.gguf", status=1)
    assert (tmp_path / "m.gguf").read_bytes() == b"mine"
    assert "/no/such" in write(MODELS / "qwen2", "/no/such/m.gguf", status=1)
    assert "calibrate" in tandem("quantize", "--model", MODELS / "qwen2", "--out", tmp_path / "x.gguf", "--type", "q8_0",
                                 "--calibrate", "self", status=1)


def test_from_gguf(text, tmp_path):
    """A GGUF file of floats is a model as any other."""
    gguf_models.convert(MODELS / "tinystories-656k", tmp_path / "f.gguf", pre=None)
    write(tmp_path / "f.gguf", tmp_path / "q.gguf")
    write(MODELS / "tinystories-656k", tmp_path / "want.gguf")
    ours, want = (gguf.GGUFReader(tmp_path / name) for name in ("q.gguf", "want.gguf"))
    for a, b in zip(ours.tensors, want.tensors):
        assert a.name == b.name and np.array_equal(a.data, b.data)
    assert perplexity(tmp_path / "q.gguf", text) == perplexity(tmp_path / "want.gguf", text)
    assert "quantised already" in write(tmp_path / "q.gguf", tmp_path / "again.gguf", status=1)


def test_format(tmp_path):
    """--format gguf and a name of --out that ends so are q8_0 by themselves, and types of the other format are refused by name."""
    model = MODELS / "qwen2"
    for i, words in enumerate((["--format", "gguf"], ["--type", "q8_0"], ["--format", "gguf", "--type", "q8_0"], [])):
        tandem("quantize", "--model", model, "--out", tmp_path / f"{i}.gguf", *words)
    files = {(tmp_path / f"{i}.gguf").read_bytes() for i in range(4)}
    assert len(files) == 1
    for words, wanted in ((["--format", "gguf", "--type", "int4"], "--type int4 is not a type of --format gguf: that has q8_0 and q4_0"),
                          (["--format", "safetensors", "--type", "q4_0"], "--type q4_0 is not a type of --format safetensors")):
        assert wanted in tandem("quantize", "--model", model, "--out", tmp_path / "no", *words, status=1)
    assert "--type int4" in tandem("quantize", "--model", model, "--out", tmp_path / "no.gguf", "--type", "int4", status=1)
    tandem("quantize", "--model", model, "--out", tmp_path / "named.gguf", "--format", "safetensors")
    assert (tmp_path / "named.gguf").is_dir() and not list(tmp_path.glob("no*"))
