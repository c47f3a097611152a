"""Method distill: an adapter learns how another one, or the model without one, continues rows."""
import json
import re
import subprocess

import pytest
from conftest import ENV, ROOT
from test_preferences import SMALL, command, data, files, kill_after, train  # noqa: F401  (data: a fixture)
from training import events, rows, wait_over

LLAMA = ROOT / "tests/fixtures/models/llama-gqa"
ROWS = rows(16)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """An adapter that has learnt the rows."""
    folder = tmp_path_factory.mktemp("teacher")
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    got = train(folder / "rows.jsonl", folder / "out", "lora", "--epochs", 20)
    assert got.returncode == 0, got.stderr
    return folder / "out"


def losses(said):
    return [float(x) for x in re.findall(r"^step \d+ of .*?loss (\d+\.\d+(?:e-\d+)?)", said, re.M)]


def last_eval(said):
    return re.findall(r"^step \d+: evaluation: loss (\S+), (\w+)", said, re.M)[-1]


@pytest.mark.parametrize("more", [(), ("--beta", 0), ("--beta", 1, "--teacher-top-k", 8)], ids=["half", "forward", "reverse"])
def test_it_learns_from_an_adapter(data, tmp_path, teacher, more):
    """The divergence falls to a fraction, and to little what a student without a teacher has."""
    got = train(data("distill", ROWS), tmp_path / "out", "distill", "--teacher", teacher, "--epochs", 20, "--eval-fraction", "0.1", "--eval-on-start", "true", *more)
    assert got.returncode == 0, got.stderr
    evals = [float(x) for x in re.findall(r"^step \d+: evaluation: loss ([0-9.]+),", got.stderr, re.M)]
    assert len(evals) > 10 and evals[-1] < 0.5 * evals[0], evals
    assert "perplexity" not in got.stderr and last_eval(got.stderr)[1] == "accuracy"
    assert sorted(files(tmp_path / "out")) == ["adapter_config.json", "adapter_model.safetensors"]


def test_the_model_itself_teaches(data, tmp_path, teacher):
    """An adapter that is continued goes back to what the model says."""
    rows_file = data("distill", ROWS)
    got = train(rows_file, tmp_path / "out", "distill", "--from", teacher, "--epochs", 24, "--eval-fraction", "0.1", "--eval-on-start", "true")
    assert got.returncode == 0, got.stderr
    evals = [float(x) for x in re.findall(r"^step \d+: evaluation: loss ([0-9.]+),", got.stderr, re.M)]
    assert evals[-1] < 0.5 * evals[0], evals
    for more, says in (((), "the model itself teaches a new adapter nothing"), (("--teacher", tmp_path / "nowhere"), "nowhere"),
                       (("--teacher", ROOT / "tests/fixtures/train/llama-gqa-adapter"), "shape"),
                       (("--teacher", teacher, "--beta", "1.5"), "beta must be at most 1 with method distill")):
        got = train(rows_file, tmp_path / "no", "distill", *more)
        assert got.returncode == 1 and says in got.stderr, got.stderr
    got = train(rows_file, tmp_path / "no", "lora", "--teacher", teacher)
    assert got.returncode == 1 and "--teacher is for method distill" in got.stderr
    got = train(rows_file, tmp_path / "no", "distill", "--teacher", ROOT / "tests/fixtures/train/reward-adapter", model=LLAMA)
    assert got.returncode == 1 and "teacher" in got.stderr and "gives scores" in got.stderr, got.stderr


@pytest.mark.full
def test_on_a_device_with_its_own_memory(data, tmp_path):
    """The teacher's adapter, larger than the student's, has what its ops take for themselves, in bf16 too."""
    few, small = ROWS[:2], ("--max-steps", 2, "--max-length", 32, "--batch-tokens", 64)
    taught = train(data("lora", few), tmp_path / "teacher", "lora", *small, "--lora-r", 64, model=LLAMA)
    assert taught.returncode == 0, taught.stderr
    words = command(data("distill", few), tmp_path / "out", "distill", *small, "--lora-r", 2, "--teacher", tmp_path / "teacher", "--device", "simt", model=LLAMA)
    words.remove("--f32")
    got = subprocess.run(words, capture_output=True, cwd=ROOT, env=ENV, timeout=600, text=True)
    if "no device is called" in got.stderr:
        pytest.skip("tandem was built without simt")
    assert got.returncode == 0, got.stderr
    assert len(losses(got.stderr)) == 2


def test_killed(data, tmp_path, teacher):
    more = ["--teacher", teacher, "--epochs", 100, "--max-steps", 24, "--save-steps", 1, "--eval-steps", 10, "--eval-fraction", "0.1", "--lora-dropout", "0.1"]
    rows_file = data("distill", ROWS)
    whole = train(rows_file, tmp_path / "whole", "distill", *more)
    assert whole.returncode == 0, whole.stderr
    for said in ("parameters are trained", "step 2 of", "step 7 of"):
        kill_after(command(rows_file, tmp_path / "broken", "distill", *more), said)
    rest = train(rows_file, tmp_path / "broken", "distill", *more)
    assert rest.returncode == 0 and "going on after step" in rest.stderr, rest.stderr
    assert files(tmp_path / "broken") == files(tmp_path / "whole")
    other = train(rows_file, tmp_path / "less", "distill", *more[:2], "--max-steps", 3, "--micro-tokens", "auto", "--memory-mib", 64)
    assert other.returncode == 0, other.stderr


def test_a_job(start, tmp_path):
    small = {"batch_tokens": 128, "max_length": 64, "lora_r": 4, "seed": 7, "learning_rate": 3e-3}
    with start("--data-dir", tmp_path, model=SMALL) as server:
        def job(**body):
            answer = server.post("/train", body)
            assert answer.status_code == 202, answer.text
            return wait_over(server, answer.json()["id"], 300)
        assert job(serve_as="big", dataset={"rows": ROWS}, hyperparameters={**small, "lora_r": 8, "epochs": 12})["status"] == "succeeded"
        body = {"method": "distill", "serve_as": "less", "teacher": "big", "dataset": {"rows": ROWS}, "hyperparameters": {**small, "epochs": 12}}
        checked = server.post("/train/validate", body)
        assert checked.status_code == 200 and checked.json().get("plan"), checked.text
        done = job(**body)
        assert done["status"] == "succeeded" and done["method"] == "distill", done["error"]
        steps = [e["loss"] for e in events(server, done["id"]) if e["type"] == "step"]
        assert steps[-1] < 0.5 * steps[0], steps
        assert server.generate("Tom", adapter_id="less", max_new_tokens=4)["generated_text"]
        for change, says in (({"teacher": "nobody"}, "teacher: there is no adapter nobody"), ({"teacher": None}, "teacher: the field is missing"),
                             ({"method": "lora"}, "teacher: only with method distill"), ({"teacher": "../x"}, "teacher: ../x is no adapter's name")):
            answer = server.post("/train", {k: v for k, v in {**body, **change}.items() if v is not None})
            assert answer.status_code == 422 and says in answer.text, answer.text


def test_models_do_not_teach_here(data, tmp_path):
    got = train(data("distill", ROWS), tmp_path / "out", "distill", "--teacher", LLAMA)
    assert got.returncode == 1 and "llama-gqa is a model, and adapters teach here: serve both models" in got.stderr, got.stderr
