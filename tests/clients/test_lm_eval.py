"""lm-eval through local-completions, with the daemon's tokenizer and with a copy: its scores are transformers' (make_scores.py)."""
import hashlib
import importlib.machinery
import importlib.util
import json
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest
from client_rig import BINARY, DEMO, NEEDS_DEMO, ROOT, package, start  # noqa: F401

pytestmark = NEEDS_DEMO
lm_eval = package("lm_eval")
from lm_eval.tasks import TaskManager  # noqa: E402

TASKS = Path(__file__).resolve().parent / "tasks"
SCORES = json.loads((TASKS / "scores.json").read_text())
EXACT = ("--activations", "f32", "--kv-cache", "f32", "--kv-cache-bytes", "8M", "--threads", "2")
BACKENDS = {"remote": {"tokenizer_backend": "remote"}, "auto": {}, "huggingface": {"tokenizer_backend": "huggingface", "tokenizer": str(DEMO)},
            "texts": {"tokenizer_backend": "huggingface", "tokenizer": str(DEMO), "tokenized_requests": False}}


@pytest.fixture(scope="module")
def daemon(start):  # noqa: F811
    with start(*EXACT, "--chat-template", "plain", model=DEMO) as s:
        yield s
        s.wait_idle()


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """The task files name their data relative to the working directory."""
    for f in TASKS.iterdir():
        shutil.copy(f, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_scores(daemon, tasks, backend, concurrent):
    arguments = {"model": "demo", "base_url": daemon.url + "/v1/completions", "max_length": 512, "num_concurrent": concurrent, "max_retries": 1,
                 **BACKENDS[backend]}
    names = ["demo_choices", "demo_texts", "demo_stories"]
    samples = lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=names, task_manager=tasks, bootstrap_iters=0,
                                      log_samples=True)["samples"]
    answers = {name: [s["filtered_resps"] for s in sorted(samples[name], key=lambda s: s["doc_id"])] for name in names}
    for got, want in zip(answers["demo_choices"], SCORES["choices"], strict=True):
        assert [g[1] for g in got] == [w[1] for w in want]
        assert [g[0] for g in got] == pytest.approx([w[0] for w in want], abs=1e-3)
    assert [a[0] for a in answers["demo_texts"]] == pytest.approx(SCORES["texts"], abs=2e-3)
    assert [a[0].removesuffix(".") for a in answers["demo_stories"]] == SCORES["stories"]


@pytest.mark.parametrize("model", ["local-completions", "local-chat-completions"])
def test_generation_without_a_tokenizer(daemon, tasks, model):
    """tokenizer_backend None: the harness sends texts, and asks for nothing but texts."""
    url = daemon.url + ("/v1/completions" if model == "local-completions" else "/v1/chat/completions")
    arguments = {"model": "demo", "base_url": url, "max_length": 512, "max_retries": 1, "tokenizer_backend": None, "tokenized_requests": False}
    done = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=["demo_stories"], task_manager=tasks, bootstrap_iters=0,
                                   log_samples=True, apply_chat_template=model == "local-chat-completions")
    got = [s["filtered_resps"][0] for s in sorted(done["samples"]["demo_stories"], key=lambda s: s["doc_id"])]
    assert len(got) == len(SCORES["stories"]) and all(got)
    if model == "local-completions":
        assert [g.removesuffix(".") for g in got] == SCORES["stories"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A small GPT-2 with random weights and GPT-2's own tokenizer, which tiktoken has as well: its two files are made from ours."""
    loader = importlib.machinery.SourceFileLoader("ladder", str(ROOT / "scripts/ladder"))
    ladder = importlib.util.module_from_spec(importlib.util.spec_from_loader("ladder", loader))
    loader.exec_module(ladder)
    folder, cache = tmp_path_factory.mktemp("model") / "gpt2", tmp_path_factory.mktemp("tiktoken")
    folder.mkdir()
    ladder.make_model(folder, {**ladder.SMALL, "vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256})
    text = lzma.open(ROOT / "tests/fixtures/tokenizers/gpt2.json.xz").read()
    (folder / "tokenizer.json").write_bytes(text)
    bpe = json.loads(text)["model"]
    merges = "".join(f"{m if isinstance(m, str) else ' '.join(m)}\n" for m in bpe["merges"])
    for name, content in (("vocab.bpe", "#version: 0.2\n" + merges), ("encoder.json", json.dumps(dict(sorted(bpe["vocab"].items(), key=lambda v: v[1]))))):
        url = f"https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/{name}"
        (cache / hashlib.sha1(url.encode()).hexdigest()).write_text(content)
    return folder, cache


def test_tiktoken(start, tasks, gpt2, monkeypatch):  # noqa: F811
    """The harness counts tokens with tiktoken, and gets what it gets with the daemon's own tokenizer."""
    package("tiktoken")
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(gpt2[1]))
    names, got = ["demo_choices", "demo_texts"], {}
    with start(*EXACT, model=gpt2[0]) as s:
        for backend in ("remote", "tiktoken"):
            arguments = {"model": "gpt2", "base_url": s.url + "/v1/completions", "max_length": 512, "max_retries": 1, "tokenizer_backend": backend}
            samples = lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=names, task_manager=tasks, bootstrap_iters=0,
                                              log_samples=True)["samples"]
            answers = [s["filtered_resps"] for name in names for s in sorted(samples[name], key=lambda s: s["doc_id"])]
            got[backend] = [r[0] if isinstance(r, (list, tuple)) else r for row in answers for r in row]
    assert len(got["remote"]) > 20 and got["tiktoken"] == pytest.approx(got["remote"], abs=1e-3)


def tandem_eval(folder, data, *args):
    """-> (values of the metrics, the lines of --output)"""
    command = [BINARY, "eval", "--model", DEMO, "--data", TASKS / data, *EXACT, "--json", folder / "all.json", "--output", folder / "rows.jsonl", *args]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    metrics = json.loads((folder / "all.json").read_text())["subjects"][0]["metrics"]
    return {name: m["value"] for name, m in metrics.items()}, [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def harness(daemon, tasks, name, max_length=512):
    """-> (lm-eval's results, its samples in the order of the file)"""
    arguments = {"model": "demo", "base_url": daemon.url + "/v1/completions", "max_length": max_length, "max_retries": 1, "tokenizer_backend": "remote"}
    done = lm_eval.simple_evaluate(model="local-completions", model_args=arguments, tasks=[name], task_manager=tasks, bootstrap_iters=0, log_samples=True)
    return {key.split(",")[0]: v for key, v in done["results"][name].items()}, sorted(done["samples"][name], key=lambda s: s["doc_id"])


def test_tandem_eval_choices(daemon, tasks, tmp_path):
    want, samples = harness(daemon, tasks, "demo_choices")
    got, lines = tandem_eval(tmp_path, "choices.jsonl")
    assert got == {name: want[name] for name in ("acc", "acc_norm", "acc_bytes")}
    for line, sample in zip(lines, samples, strict=True):
        assert line["logprobs"] == pytest.approx([float(r[0]) for r in sample["filtered_resps"]], abs=1e-4)


@pytest.mark.parametrize("max_length", [512, 20])  # 20: several windows to a text
def test_tandem_eval_texts(daemon, tasks, tmp_path, max_length):
    want, samples = harness(daemon, tasks, "demo_texts", max_length)
    got, lines = tandem_eval(tmp_path, "texts.jsonl", "--window", max_length - 2)  # of which lm-eval keeps two
    assert [line["logprob"] for line in lines] == pytest.approx([float(s["filtered_resps"][0]) for s in samples], abs=1e-3)
    for name in ("word_perplexity", "byte_perplexity", "bits_per_byte"):
        assert got[name] == pytest.approx(want[name], rel=1e-4)


def test_tandem_eval_generation(daemon, tasks, tmp_path):
    want, samples = harness(daemon, tasks, "demo_answers")
    got, lines = tandem_eval(tmp_path, "stories.jsonl", "--stop", ".", "--max-new-tokens", 24, "--extract", r"(\w+ ?\w*)", "--ignore", "case")
    assert [line["prediction"] for line in lines] == [s["filtered_resps"][0] for s in samples]
    assert 0 < want["exact_match"] < 1 and got["exact_match"] == pytest.approx(want["exact_match"])
    assert got["bleu"] == pytest.approx(want["bleu"]) and got["chrf"] == pytest.approx(want["chrf"])
