"""lm-eval through local-completions, with the daemon's tokenizer and with a copy: its scores are transformers' (make_scores.py)."""
import json
import shutil
from pathlib import Path

import pytest
from client_rig import DEMO, NEEDS_DEMO, package, start  # noqa: F401

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
    with start(*EXACT, model=DEMO) as s:
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
