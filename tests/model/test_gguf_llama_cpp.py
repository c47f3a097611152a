"""Files that llama.cpp quantised open, and predict a text as they do in llama.cpp; llama.cpp reads what tandem writes.

Needs llama-cpp-python, which is no test dependency: skipped without it.  Run with

    TANDEM_BUILD_DIR=build PYTHON -m pytest tests/model/test_gguf_llama_cpp.py

Last run with llama-cpp-python 0.3.36.
"""
import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

llama_cpp = pytest.importorskip("llama_cpp")
import gguf  # noqa: E402
import numpy as np  # noqa: E402

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
TEXT = TESTS.parent / "models" / "demo" / "heldout.txt"
MODELS = TESTS / "fixtures" / "models"
PROMPT = "Once upon a time there was"
WINDOW = 512
sys.path.insert(0, str(TESTS / "model"))
import gguf_models  # noqa: E402


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tinystories.gguf"
    gguf_models.convert(TESTS / "fixtures" / "models" / "tinystories-656k", path, pre=None)
    return path


def quantised(source, path, name):
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_{name}")
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(how)) == 0
    return path


def theirs(path):
    """In the windows of `tandem perplexity`: each begins with a bos and scores its second half, the first one all of it."""
    model = llama_cpp.Llama(str(path), n_ctx=WINDOW, n_batch=WINDOW, n_ubatch=WINDOW, logits_all=True, verbose=False)
    ids = model.tokenize(TEXT.read_bytes(), add_bos=False, special=False)
    span, half, at, losses = WINDOW - 1, (WINDOW - 1) // 2, 0, []
    while True:
        window = [model.token_bos(), *ids[at : at + span]]
        model.reset()
        model.eval(window)
        logits = np.array(model.scores[: len(window)], np.float64)
        top = logits.max(1, keepdims=True)
        logs = logits - top - np.log(np.exp(logits - top).sum(1, keepdims=True))
        losses += [-logs[k, window[k + 1]] for k in range(half if at else 0, len(window) - 1)]
        if at + span >= len(ids):
            return len(losses), np.exp(np.mean(losses))
        at += span - half


def ours(path):
    command = [TANDEM, "perplexity", "--model", path, "--file", TEXT, "--window", str(WINDOW), "--json"]
    answer = json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=300).stdout)
    return answer["scored_tokens"], answer["perplexity"]


@pytest.mark.parametrize("name", "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS".split())
def test_perplexity(name, whole, tmp_path):
    path = quantised(whole, tmp_path / "m.gguf", f"MOSTLY_{name}")
    (n, mine), (m, want) = ours(path), theirs(path)
    print(f"{name}: {mine:.4f}, llama.cpp {want:.4f}")
    assert n == m
    assert mine == pytest.approx(want, rel=0.005)


# ---- log-probabilities -----------------------------------------------------------------------------------------------


def of_floats(path, out):
    """The same file with the floats that its blocks stand for."""
    read = gguf.GGUFReader(path)
    w = gguf.GGUFWriter(out, read.fields["general.architecture"].contents())
    for key, field in read.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            w.add_key_value(key, field.contents(), field.types[0], field.types[1] if len(field.types) > 1 else None)
    for t in read.tensors:
        w.add_tensor(t.name, gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out


def ours_logs(path):
    """Greedy tokens, and of each the log-probabilities of the 32 likeliest."""
    command = [TANDEM, "generate", "--model", path, "--prompt", PROMPT, "--max-new-tokens", "24", "--temperature", "0", "--ignore-eos",
               "--json", "--top-n", "32", "--kv-cache", "f32", "--activations", "f32"]
    answer = json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=300).stdout)
    return [t["id"] for t in answer["tokens"]], [{top["id"]: top["logprob"] for top in t["top"]} for t in answer["tokens"]]


def theirs_logs(path, generated):
    """Log-probabilities of all tokens at the same positions; keys and values as floats, as tandem keeps them."""
    f32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(str(path), n_ctx=128, n_batch=128, n_ubatch=128, logits_all=True, verbose=False, type_k=f32, type_v=f32)
    prompt = model.tokenize(PROMPT.encode(), add_bos=True, special=False)
    model.eval([*prompt, *generated[:-1]])
    logits = np.array(model.scores[len(prompt) - 1 : len(prompt) - 1 + len(generated)], np.float64)
    return logits - logits.max(1, keepdims=True) - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))


def worst(ours, theirs):
    """The largest difference of a log-probability among the 32 likeliest tokens of each position."""
    return max(abs(top[t] - theirs[i, t]) for i, top in enumerate(ours) for t in top)


def differences(path, floats):
    """tandem's log-probabilities from llama.cpp's on the file, and on the floats that it stands for; and how far llama.cpp's own are apart
    between the two, which is its rounding of activations, and tandem's."""
    generated, mine = ours_logs(path)
    others, exact = ours_logs(of_floats(path, floats))
    theirs, truth = theirs_logs(path, generated), theirs_logs(floats, generated)
    return worst(mine, theirs), worst(exact, theirs_logs(floats, others)), worst(mine, truth), worst([{t: theirs[i, t] for t in top} for i, top in enumerate(mine)], truth)


def check(name, path, floats):
    """As floats they agree but for the order of sums; with quantised weights each may be as far from that as its rounding goes."""
    between, exactly, ours, theirs = differences(path, floats)
    print(f"{name}: {between:.4f}; as floats {exactly:.5f}; of rounding tandem's {ours:.4f}, llama.cpp's {theirs:.4f}")
    assert exactly < 2e-3
    assert between <= 2 * max(theirs, ours) + 2e-3 and ours <= 3 * theirs + 0.02


FORMATS = "ALL_F32 MOSTLY_F16 MOSTLY_BF16 MOSTLY_Q8_0 MOSTLY_Q4_0 MOSTLY_Q4_1 MOSTLY_Q5_0 MOSTLY_Q5_1 MOSTLY_Q2_K MOSTLY_Q3_K_M MOSTLY_Q4_K_M MOSTLY_Q5_K_M MOSTLY_Q6_K MOSTLY_IQ4_NL MOSTLY_IQ4_XS".split()


@pytest.mark.parametrize("mixture", [False, True], ids=["llama", "qwen2moe"])
@pytest.mark.parametrize("name", FORMATS)
def test_types(name, mixture, tmp_path):
    """A model of width 256 in each type that llama.cpp's quantiser writes and tandem reads."""
    gguf_models.random_model(tmp_path / "f.gguf", gguf.GGMLQuantizationType.Q8_0, True, MODELS / "llama-f16", mixture)
    path = quantised(tmp_path / "f.gguf", tmp_path / "m.gguf", name)
    check(f"{name} {'qwen2moe' if mixture else 'llama'}", path, tmp_path / "floats.gguf")


# Not among them, since llama.cpp does not compute as the models do: phi3 (its frequencies depend on the context's length, not the
# text's); olmoe with fewer heads of k and v; phi with a tied head.
WRITTEN = ["distilgpt2-prefixed", "gemma2", "gemma3", "gpt-neox", "gpt-oss", "gpt-oss-mxfp4", "gpt2", "granite", "llama-f16", "llama-gqa", "mixtral", "olmo2", "phi", "qwen2",
           "qwen2-bf16", "qwen2-moe", "qwen2-yarn", "qwen3", "stablelm", "stablelm-parallel", "stablelm-qk-norm", "tinystories-656k"]


def model_of(name, tmp_path):
    """llama.cpp has one scale of attention for Gemma's models of a size, whatever the file says, and rounds the bounds of YaRN, which here
    are whole numbers."""
    if not name.startswith(("gemma", "gpt-oss")):
        return MODELS / name
    shutil.copytree(MODELS / name, tmp_path / "model")
    c = json.loads((tmp_path / "model" / "config.json").read_text())
    if name.startswith("gpt-oss"):
        c.get("rope_parameters", c.get("rope_scaling")).update(beta_fast=5.0929, beta_slow=0.5093)
    else:
        c["query_pre_attn_scalar"] = c["head_dim"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(c))
    return tmp_path / "model"


@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
@pytest.mark.parametrize("name", WRITTEN)
def test_written(name, kind, tmp_path):
    """What `tandem quantize` writes, llama.cpp loads, with the same tokens and log-probabilities."""
    path = tmp_path / "m.gguf"
    subprocess.run([TANDEM, "quantize", "--model", model_of(name, tmp_path), "--out", path, "--type", kind], check=True, capture_output=True)
    model = llama_cpp.Llama(str(path), n_ctx=64, vocab_only=True, verbose=False)
    answer = subprocess.run([TANDEM, "tokenize", "--model", path, "--text", PROMPT, "--json"], capture_output=True, check=True)
    assert json.loads(answer.stdout)["ids"] == model.tokenize(PROMPT.encode(), add_bos=True)
    check(f"{name} {kind}", path, tmp_path / "floats.gguf")
