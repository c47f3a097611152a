"""GGUF files as models: the logits and texts are those of the same model as safetensors."""
import json
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import pytest

TESTS = Path(__file__).parent.parent
BUILD = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build"))
TANDEM, GOLDEN = BUILD / "server" / "tandem", BUILD / "tests" / "golden_test"
MODELS = TESTS / "fixtures" / "models"
sys.path.insert(0, str(TESTS / "model"))
import gguf_models  # noqa: E402

GOLDENS = ["llama-gqa", "llama-f16", "mistral", "qwen2", "qwen2-bf16", "qwen3", "gpt2", "phi", "phi3", "phi4-mini", "gemma2", "gemma3", "gemma3-bf16", "tinystories-656k",
           "mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "olmo2", "olmo3", "granite", "stablelm", "stablelm-parallel", "stablelm-qk-norm", "gpt-neox",
           "gpt-neox-sequential", "qwen2-yarn", "gpt-oss", "gpt-oss-mxfp4", "ministral3"]


def tandem(*words, status=0):
    done = subprocess.run([TANDEM, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=300)
    assert done.returncode == status, done.stderr.decode()
    return done.stdout.decode() if status == 0 else done.stderr.decode()


def pre_of(name):
    return None if name == "tinystories-656k" else "gpt-2"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The golden models as GGUF, each in a directory with what transformers computed."""
    root = tmp_path_factory.mktemp("gguf")
    for name in GOLDENS:
        (root / name).mkdir()
        gguf_models.convert(MODELS / name, root / name / "model.gguf", pre=pre_of(name))
        (root / name / "expected.safetensors").symlink_to(MODELS / name / "expected.safetensors")
    return root


def test_golden(models):
    done = subprocess.run([GOLDEN, models, "cpu"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["tinystories-656k", "llama-gqa"])
def test_generate(models, name):
    words = ["--prompt", "Once upon a time there was a little dog", "--max-new-tokens", "20", "--temperature", "0"]
    want = tandem("generate", "--model", MODELS / name, *words)
    assert tandem("generate", "--model", models / name / "model.gguf", *words) == want


CONTRACTIONS, SPACES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
NO_SIGN = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
DIGITS = {"type": "Digits", "individual_digits": True}
# The pre-tokenizers of the models' own tokenizer.json: patterns, or whole parts.
PRES = {
    "gpt-2": [True], "mellum": [True], "smollm": [DIGITS, True], "mellum2": [DIGITS, True],
    "qwen2": [CONTRACTIONS + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" + SPACES],
    "glm4": [CONTRACTIONS + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" + SPACES],
    "seed-coder": [CONTRACTIONS + "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" + SPACES],
    "bloom": [NO_SIGN], "viking": [NO_SIGN, DIGITS],
    "deepseek-coder": ["[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", DIGITS],
}


@pytest.mark.parametrize("name", [name if name in ("gpt-2", "qwen2", "bloom") else pytest.param(name, marks=pytest.mark.full) for name in PRES])
def test_pre_tokenizers(name, tmp_path):
    """Words are split as by the model's own tokenizer.json; with GPT-2's merges."""
    parts = [p if isinstance(p, dict) else {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
             for p in PRES[name] if p is not True]
    parts.append({"type": "ByteLevel", "add_prefix_space": False, "use_regex": True in PRES[name]})
    shutil.copytree(MODELS / "qwen2", tmp_path / "m")
    t = json.loads(lzma.open(TESTS / "fixtures" / "tokenizers" / "gpt2.json.xz").read()) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": parts}}
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(t))
    gguf_models.convert(tmp_path / "m", tmp_path / "m.gguf", pre=name)
    for sample in ("Tom's 12345 dogs, and  the cat!\n\n the end... (a|b), isn't it?", " 7 and 42\tthe\r\n\u4f60\u597d, the\u3002 day", "the-the_the 3.14 a1b2"):
        ours, want = (json.loads(tandem("tokenize", "--model", m, "--text", sample, "--json"))["ids"] for m in (tmp_path / "m.gguf", tmp_path / "m"))
        assert ours == want, sample


QUICK_TYPES = "Q8_0 Q4_K Q6_K IQ4_XS".split()
OTHER_TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q5_K IQ4_NL MXFP4".split()
TYPES = QUICK_TYPES + [pytest.param(name, marks=pytest.mark.full) for name in OTHER_TYPES]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes((TESTS.parent / "models" / "demo" / "heldout.txt").read_bytes()[:3000])
    return path


def perplexity(model, text):
    return json.loads(tandem("perplexity", "--model", model, "--file", text, "--window", 64, "--json"))["perplexity"]


@pytest.mark.parametrize("name", TYPES)
def test_types(name, text, tmp_path):
    """Quantised weights predict a text as the floats do that they stand for; what differs is the rounding of activations."""
    kind = gguf.GGMLQuantizationType[name]
    for floats in (False, True):
        gguf_models.random_model(tmp_path / f"{floats}.gguf", kind, floats, MODELS / "llama-f16")
    ours, exact = (perplexity(tmp_path / f"{floats}.gguf", text) for floats in (False, True))
    assert ours == pytest.approx(exact, rel=0.01)
    message = tandem("generate", "--model", tmp_path / "False.gguf", "--prompt", "x", "--quantize", "int8", status=1)
    assert "is quantised in the GGUF file already; leave --quantize out" in message


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4"])
def test_experts(name, text, tmp_path):
    """Experts of quantised blocks, stacked in one tensor; they stay packed."""
    kind = gguf.GGMLQuantizationType[name]
    for floats in (False, True):
        gguf_models.random_model(tmp_path / f"{floats}.gguf", kind, floats, MODELS / "llama-f16", mixture=True)
    ours, exact = (perplexity(tmp_path / f"{floats}.gguf", text) for floats in (False, True))
    assert ours == pytest.approx(exact, rel=0.02)


def test_unrotated_layers(text, tmp_path):
    """SmolLM 3's every fourth layer is not rotated: llama.cpp's files do not say so."""
    c = json.loads((MODELS / "smollm3" / "config.json").read_text()) | {"no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4}
    shutil.copytree(MODELS / "smollm3", tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(json.dumps(c))
    gguf_models.convert(tmp_path / "m", tmp_path / "m.gguf")
    assert perplexity(tmp_path / "m.gguf", text) == pytest.approx(perplexity(tmp_path / "m", text), rel=1e-6)
    assert perplexity(tmp_path / "m.gguf", text) != pytest.approx(perplexity(MODELS / "smollm3", text), rel=1e-4)


@pytest.mark.parametrize(("name", "mixture"), [("Q4_K", False), pytest.param("Q6_K", False, marks=pytest.mark.full),
                                               pytest.param("Q8_0", True, marks=pytest.mark.full),
                                               pytest.param("Q4_K", True, marks=pytest.mark.full)])
def test_types_on_simt(name, mixture, text, tmp_path):
    """The kernels for GPUs predict what the cpu does, whose activations are rounded alike; the KV cache has another type."""
    short = tmp_path / "short"
    short.write_bytes(text.read_bytes()[:300])
    gguf_models.random_model(tmp_path / "m.gguf", gguf.GGMLQuantizationType[name], False, MODELS / "llama-f16", mixture=mixture)
    cpu, simt = (json.loads(tandem("perplexity", "--model", tmp_path / "m.gguf", "--file", short, "--window", 40,
                                   "--device", device, "--json"))["perplexity"] for device in ("cpu", "simt"))
    assert simt == pytest.approx(cpu, rel=5e-3)


@pytest.mark.parametrize("name", ["Q4_0", "Q5_1", "Q8_0"])
def test_architectures(name, text, tmp_path):
    """Quantised matrices of the other architectures, permuted and transposed ones included."""
    kind = gguf.GGMLQuantizationType[name]
    for model in ("llama-f16", "gpt2", "tinystories-656k", "gpt-neox", "mixtral", "qwen2-moe", "olmo2", "gpt-oss-mxfp4"):
        gguf_models.convert(MODELS / model, tmp_path / "m.gguf", kind, pre=pre_of(model))
        assert perplexity(tmp_path / "m.gguf", text) == pytest.approx(perplexity(MODELS / model, text), rel=0.1)


def test_mistral3(tmp_path):
    """llama.cpp's architecture of Ministral 3 is also that of Mistral Small 3, without its scaling."""
    def as_mistral3(w):
        w.kv_data[0]["general.architecture"].value = "mistral3"
        for key in [k for k in w.kv_data[0] if k.startswith("llama.")]:
            w.kv_data[0]["mistral3." + key.removeprefix("llama.")] = w.kv_data[0].pop(key)

    words = ["--prompt", "Once upon a time", "--max-new-tokens", "12", "--temperature", "0", "--ignore-eos"]
    gguf_models.convert(MODELS / "llama-f16", tmp_path / "m.gguf", spoil=as_mistral3)
    assert tandem("generate", "--model", tmp_path / "m.gguf", *words) == tandem("generate", "--model", MODELS / "llama-f16", *words)


def test_adapter(models):
    """One that was trained on the safetensors."""
    adapter = TESTS / "fixtures" / "adapters" / "llama-gqa--all-linear-bf16"
    words = ["--adapter", adapter, "--prompt", "Once upon", "--max-new-tokens", "12", "--temperature", "0"]
    want = tandem("generate", "--model", MODELS / "llama-gqa", *words)
    assert tandem("generate", "--model", models / "llama-gqa", *words) == want


@pytest.mark.parametrize("name", ["F32", "Q8_0", "Q4_0"])
def test_training(name, tmp_path):
    """An adapter trained on a GGUF file; on floats it is the one trained on the safetensors, byte for byte."""
    model, source, data = tmp_path / "m.gguf", MODELS / "tinystories-656k", tmp_path / "rows.jsonl"
    gguf_models.convert(source, model, gguf.GGMLQuantizationType[name] if name != "F32" else None, pre=None)
    data.write_text("".join(json.dumps({"text": f"Tim has {n} red cars and a blue ball."}) + "\n" for n in range(40)))
    weights = []
    for base in (model, source):
        out = tmp_path / f"{base.name}-adapter"
        tandem("train", "--model", base, "--data", data, "--out", out, "--threads", "2", "--max-steps", "4")
        weights.append((out / "adapter_model.safetensors").read_bytes())
        words = ["--adapter", out, "--prompt", "Tim has", "--max-new-tokens", "8", "--temperature", "0"]
        assert tandem("generate", "--model", base, *words)
    assert name != "F32" or weights[0] == weights[1]


def test_split(models, tmp_path):
    """A model in several files, as a directory."""
    whole = gguf.GGUFReader(models / "qwen2" / "model.gguf")
    names = [t.name for t in whole.tensors]
    for i in range(3):
        part = tmp_path / f"m-{i + 1:05d}-of-00003.gguf"
        drop = [n for k, n in enumerate(names) if k % 3 != i]

        def keep(w, i=i, drop=drop):
            for n in drop:
                w.tensors[0].pop(n)
            w.add_uint16("split.no", i)
            w.add_uint16("split.count", 3)
            w.add_int32("split.tensors.count", len(names))

        gguf_models.convert(MODELS / "qwen2", part, spoil=keep)
    words = ["--prompt", "Once upon", "--max-new-tokens", "12", "--temperature", "0"]
    assert tandem("generate", "--model", tmp_path, *words) == tandem("generate", "--model", MODELS / "qwen2", *words)
