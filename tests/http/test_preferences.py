"""Preference training: with `tandem train`, killed at any step, and as jobs of the daemon."""
import fcntl
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess

import pytest
from conftest import BINARY, ENV, MODEL, ROOT
from training import events, request, wait_over, wait_step

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
WORDS = "cat dog bird tree house girl boy ball sun moon".split()
PAIRS = [{"prompt": f"The {a} and the {b}", "chosen": f" saw a big {c}.", "rejected": f" {c} {c} {b} {a}!"}
         for a, b, c in zip(WORDS, WORDS[3:] + WORDS[:3], WORDS[5:] + WORDS[:5])]
SINGLES = [{"prompt": p["prompt"], "completion": p[side], "label": side == "chosen"} for p in PAIRS for side in ("chosen", "rejected")]
METHODS = ["dpo", "orpo", "simpo", "kto", "reward"]
REWARDS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"]


def rows_of(method):
    return SINGLES if method == "kto" else PAIRS


@pytest.fixture
def data(tmp_path):
    def write(method, rows=None):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows or rows_of(method)))
        return path
    return write


def command(rows, out, method, *more, model=SMALL):
    return [str(x) for x in (BINARY, "train", "--model", model, "--data", rows, "--out", out, "--method", method, "--threads", 1, "--f32",
                             "--max-length", 96, "--batch-tokens", 128, "--learning-rate", "3e-3", "--lora-r", 4, *more)]


def train(*args, **kw):
    return subprocess.run(command(*args, **kw), capture_output=True, cwd=ROOT, env=ENV, timeout=300, text=True)


def files(directory):
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != "training_record.json"}


def last(said, name):
    return float(re.findall(rf"^step \d+ of .*  {name} (-?[0-9.e-]+)", said, re.M)[-1])


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_to_prefer(data, tmp_path, method):
    got = train(data(method), tmp_path / "out", method, "--epochs", 12, "--eval-fraction", "0.1", "--tensorboard", tmp_path / "board")
    assert got.returncode == 0, got.stderr
    assert last(got.stderr, "rewards/margins") > 0.1, got.stderr
    assert method == "kto" or last(got.stderr, "rewards/accuracies") >= 0.9
    assert "perplexity" not in got.stderr and re.search(r"^step \d+: evaluation: .*rewards/", got.stderr, re.M)
    record = json.loads((tmp_path / "out/training_record.json").read_text())
    assert record["method"] == method and record["rewards/margins"] == pytest.approx(last(got.stderr, "rewards/margins"), rel=1e-3)
    assert sorted(files(tmp_path / "out")) == ["adapter_config.json", "adapter_model.safetensors"]
    assert not (tmp_path / "out.train").exists()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    tags = EventAccumulator(str(tmp_path / "board")).Reload().Tags()["scalars"]
    wanted = [r for r in REWARDS if method != "kto" or r != "rewards/accuracies"] + ["kl"] * (method == "kto")
    assert {f"train/{r}" for r in wanted} <= set(tags) and any(t.startswith("eval/rewards/") for t in tags)


def kill_after(words, said):
    """Kills it once it has said so.  Its pipe holds one write, so however slowly that is read, it has got no further than the next."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)  # packets, one each page
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1)  # the least, a page
    with subprocess.Popen(words, stderr=writing, cwd=ROOT, env=ENV) as p, open(reading, "rb", buffering=0) as err:
        os.close(writing)
        text = b""
        while said.encode() not in text:
            part = err.read(65536)
            assert part, text.decode()
            text += part
        p.kill()


@pytest.mark.parametrize("method", METHODS)
def test_killed(data, tmp_path, method):
    """At the plan, while the reference is computed perhaps, and after some steps: the bytes of an unbroken run."""
    more = ["--epochs", 100, "--max-steps", 24, "--save-steps", 1, "--eval-steps", 10, "--eval-fraction", "0.1", "--lora-dropout", "0.1"]
    rows = data(method)
    whole = train(rows, tmp_path / "whole", method, *more)
    assert whole.returncode == 0, whole.stderr
    for said in ("parameters are trained", "step 2 of", "step 7 of", "step 12 of"):
        kill_after(command(rows, tmp_path / "broken", method, *more), said)
    assert not (tmp_path / "broken").exists()
    rest = train(rows, tmp_path / "broken", method, *more)
    assert rest.returncode == 0 and "going on after step 1" in rest.stderr, rest.stderr
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_from_an_adapter(data, tmp_path, method):
    """The adapter, as the job finds it, is the reference, also after the job was killed."""
    first = train(data("orpo"), tmp_path / "first", "orpo", "--epochs", 4)
    assert first.returncode == 0, first.stderr
    rows, more = data(method), ["--from", tmp_path / "first", "--epochs", 100, "--max-steps", 24, "--save-steps", 1]
    whole = train(rows, tmp_path / "whole", method, *more)
    assert whole.returncode == 0 and re.search(r"^step 1 of .* rewards/\w+ -?0 ", whole.stderr, re.M), whole.stderr
    kill_after(command(rows, tmp_path / "broken", method, *more), "step 7 of")
    rest = train(rows, tmp_path / "broken", method, *more)
    assert rest.returncode == 0 and "going on after step" in rest.stderr, rest.stderr
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches(data, tmp_path, method):
    """With auto the bytes do not depend on how a step is divided: with the least memory that will do, and with all."""
    pairs = [{"prompt": f"The {a} and the {b} went", "chosen": f" to see the {c} near the old {a}.", "rejected": f" {c} {b} {c} {b} {a} {a}!"}
             for i, a in enumerate(WORDS) for b, c in zip(WORDS, WORDS[i:] + WORDS[:i])]
    singles = [{"prompt": p["prompt"], "completion": p[side], "label": side == "chosen"} for p in pairs for side in ("chosen", "rejected")]
    rows, tokens = data(method, singles if method == "kto" else pairs), []
    for name, budgets in (("less", (2 ** i for i in range(2, 12))), ("all", (0,))):
        for mib in budgets:
            got = train(rows, tmp_path / name, method, "--max-steps", 3, "--micro-tokens", "auto", "--batch-tokens", 2048, "--memory-mib", mib)
            if got.returncode == 0:
                break
            assert "GiB are available" in got.stderr, got.stderr
        tokens.append(int(re.search(r"activations of (\d+) tokens", got.stderr)[1]))
    assert tokens[0] <= 1024 and tokens[1] == 2048
    assert files(tmp_path / "less") == files(tmp_path / "all")


@pytest.mark.parametrize("quantize", ["int8", "nf4"])
def test_quantised_bases(data, tmp_path, quantize):
    for method in ("dpo", "kto"):
        got = train(data(method), tmp_path / method, method, "--epochs", 10, "--quantize", quantize, "--exact", model=MODEL)
        assert got.returncode == 0 and last(got.stderr, "rewards/margins") > 0.05, got.stderr


@pytest.mark.parametrize("method, row, says", [
    ("dpo", {"prompt": "a", "chosen": "b"}, 'row 1: no "rejected"'),
    ("kto", {"prompt": "a", "completion": "b"}, 'row 1: no "label"'),
    ("kto", {"prompt": "a", "completion": "b", "label": 1}, 'row 1: "label" must be a boolean, is a number'),
    ("simpo", {"prompt": 3, "chosen": "b", "rejected": "c"}, 'row 1: "prompt" must be a string, is a number'),
    ("lora", {"prompt": "a", "chosen": "b", "rejected": "c"}, "a pair of preferences (chosen, rejected), which methods dpo, orpo, simpo and reward train on"),
])
def test_bad_rows(data, tmp_path, method, row, says):
    got = train(data(method, [row]), tmp_path / "out", method)
    assert got.returncode == 1 and says in got.stderr, got.stderr


def test_rows_of_other_methods(data, tmp_path):
    for method, format, rows, says in (("dpo", "completion", SINGLES, "trains on pairs"), ("lora", "preference", PAIRS, "a pair of preferences"),
                                       ("lora", "unpaired", SINGLES, "its label is for method kto"), ("kto", "preference", PAIRS, "with a label")):
        got = train(data(method, rows), tmp_path / "out", method, "--format", format)
        assert got.returncode == 1 and says in got.stderr and "row of line 1 of" in got.stderr, got.stderr
    got = train(data("dpo"), tmp_path / "out", "dpo", "--train-on-prompt")
    assert got.returncode == 1 and "train_on_prompt: preference rows" in got.stderr, got.stderr
    got = train(data("orpo"), tmp_path / "out", "orpo", "--gamma", 1)
    assert got.returncode == 2 and "gamma: only with method simpo" in got.stderr, got.stderr


def body(method, name, **hyperparameters):
    return {**request(name, dataset={"rows": rows_of(method)}, learning_rate=3e-3, batch_tokens=128, **hyperparameters), "method": method}


@pytest.mark.parametrize("method", METHODS)
def test_a_job(start, method):
    with start() as s:
        checked = s.post("/train/validate", body(method, "x"))
        assert checked.status_code == 200, checked.text
        first = checked.json()["rows"][0]
        assert ("label" in first) == (method == "kto") and ("rejected" in first) == (method != "kto")
        assert first["segments"][-1]["trained"] and PAIRS[0]["chosen"] in first["segments"][-1]["text"]
        made = s.post("/train", body(method, "likes", epochs=6, eval_fraction=0.1))
        assert made.status_code == 202, made.text
        found = wait_over(s, made.json()["id"])
        assert found["status"] == "succeeded" and found["method"] == method, found
        steps = [e for e in events(s, found["id"]) if e["type"] == "step"]
        margins = [e["rewards/margins"] for e in steps if "rewards/margins" in e]
        assert margins[-1] > margins[0]
        series = s.get(f"/train/{found['id']}/metrics").json()["metrics"]
        assert len(series["kl" if method == "kto" else "rewards/margins"]) == len(steps)
        assert any("eval_rewards/margins" in e or "eval_kl" in e for e in events(s, found["id"]) if e["type"] == "eval")
        if method != "reward":  # whose adapter gives scores
            assert s.generate("The cat", adapter_id="likes", max_new_tokens=4)["generated_text"]


@pytest.mark.parametrize("method, most", [("dpo", {"beta": 1000, "label_smoothing": 0.499}), ("simpo", {"beta": 1000, "gamma": 1000}),
                                          ("kto", {"beta": 1000, "desirable_weight": 1000, "undesirable_weight": 1000}), ("orpo", {"beta": 1000})])
def test_the_limits_themselves_train(data, tmp_path, method, most):
    for i, values in enumerate((most, {name: 0 for name in most})):
        flags = [x for name, v in values.items() for x in ("--" + name.replace("_", "-"), v)]
        got = train(data(method), tmp_path / f"out{i}", method, "--max-steps", 2, *flags)
        assert got.returncode == 0 and "skipped" not in got.stderr, got.stderr


def test_a_killed_daemon(start, tmp_path):
    def adapter(folder):
        return {p.name: p.read_bytes() for p in (folder / "adapters/mine").iterdir() if p.name != "tandem.json"}
    job = body("kto", "mine", max_steps=40, save_steps=2)
    for steps in (40 * 4 ** i for i in itertools.count()):  # a longer one when the job has ended before the kill
        job, broken = body("kto", "mine", max_steps=steps, save_steps=2), tmp_path / f"broken{steps}"
        s = start("--data-dir", broken)
        job_id = s.post("/train", job).json()["id"]
        wait_step(s, job_id, 5)
        s.signal(signal.SIGKILL)
        s.wait()
        db = sqlite3.connect(broken / "jobs.sqlite")
        status = db.execute("SELECT status FROM jobs WHERE id = ?", (job_id,)).fetchone()[0]
        db.close()
        written = (broken / "checkpoints" / job_id / "result").exists() or (broken / "adapters/mine").exists()
        with start("--data-dir", broken) as s:
            assert wait_over(s, job_id)["status"] == "succeeded"
            said = [e["message"] for e in events(s, job_id)]
        if status == "running" and not written:
            break
    assert any("Going on from the checkpoint at step" in m for m in said), said
    with start("--data-dir", tmp_path / "whole") as s:
        assert wait_over(s, s.post("/train", job).json()["id"])["status"] == "succeeded"
    assert adapter(broken) == adapter(tmp_path / "whole")
