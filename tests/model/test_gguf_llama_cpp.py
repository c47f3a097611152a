"""Files that llama.cpp quantised open, and predict a text as they do in llama.cpp: perplexity within 0.5 %.

Needs llama-cpp-python, which is no test dependency: skipped without it.  Run with

    TANDEM_BUILD_DIR=build PYTHON -m pytest tests/model/test_gguf_llama_cpp.py

Last run with llama-cpp-python 0.3.36.
"""
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

llama_cpp = pytest.importorskip("llama_cpp")
import numpy as np  # noqa: E402

TESTS = Path(__file__).parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", TESTS.parent / "build")) / "server" / "tandem"
TEXT = TESTS.parent / "models" / "demo" / "heldout.txt"
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
    how.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name}")
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
    answer = json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=100).stdout)
    return answer["scored_tokens"], answer["perplexity"]


@pytest.mark.parametrize("name", "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K_M Q4_K_M Q5_K_M Q6_K IQ4_NL IQ4_XS".split())
def test_perplexity(name, whole, tmp_path):
    path = quantised(whole, tmp_path / "m.gguf", name)
    (n, mine), (m, want) = ours(path), theirs(path)
    print(f"{name}: {mine:.4f}, llama.cpp {want:.4f}")
    assert n == m
    assert mine == pytest.approx(want, rel=0.005)
