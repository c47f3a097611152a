"""tandem train: what it writes and says, and that killing it at any moment changes no byte of the result."""
import json
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from conftest import BINARY, ENV, ROOT

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
FLOATS = ["--threads", "1", "--f32"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Prompts whose answers are in capitals."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    words = "cat dog bird tree house girl boy ball sun moon".split()
    rng = random.Random(1)
    lines = [json.dumps({"prompt": " ".join(rng.sample(words, 3)) + ":", "completion": " ".join(rng.sample(words, 3)).upper()}) for _ in range(60)]
    path.write_text("\n".join(lines) + "\n")
    return path


def command(rows, out, *more):
    return [BINARY, "train", "--model", SMALL, "--data", rows, "--out", out, "--max-length", "96", "--batch-tokens", "256", *FLOATS, *map(str, more)]


def train(*args, **kw):
    return subprocess.run(command(*args), capture_output=True, cwd=ROOT, env=ENV, timeout=300, **kw)


RECORD = "training_record.json"


def files(directory):
    """Those that have no times in them."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != RECORD}


def scalars(directory):
    """{tag: {step: value}} as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    board = EventAccumulator(str(directory)).Reload()
    return {tag: {s.step: s.value for s in board.Scalars(tag)} for tag in board.Tags()["scalars"]}


def losses(stderr):
    return [float(x) for x in re.findall(r"^step \d+ of .* loss ([0-9.]+)", stderr.decode(), re.M)]


def test_an_adapter_is_written(rows, tmp_path):
    got = train(rows, tmp_path / "out", "--epochs", 6, "--learning-rate", "5e-3", "--eval-fraction", "0.1", "--model", SMALL.relative_to(ROOT))
    assert got.returncode == 0, got.stderr.decode()
    text, loss = got.stderr.decode(), losses(got.stderr)
    assert loss[-1] < 0.8 * loss[0]
    assert "54 rows, 6 held out" in text and "the best so far" in text
    config = json.loads((tmp_path / "out/adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and config["r"] == 16
    assert config["base_model_name_or_path"] == str(SMALL.resolve())  # PEFT finds it from any directory
    assert sorted(files(tmp_path / "out")) == ["adapter_config.json", "adapter_model.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # no job directory is left
    again = train(rows, tmp_path / "out")
    assert again.returncode == 1 and b"is not empty" in again.stderr


def test_advice_is_printed(rows, tmp_path):
    """Planted: tiny batches, and activations that are recomputed though there is memory for them."""
    got = train(rows, tmp_path / "out", "--batch-tokens", 16, "--recompute", "on", "--max-steps", 8, "--lora-r", 2)
    text = got.stderr.decode()
    assert got.returncode == 0, text
    share = {name: float(x) for name, x in re.findall(r"(\w+) ([0-9.]+) %", text[text.index("time of a step:"):].splitlines()[0])}
    advice = re.findall(r"^advice: ([\w -]+): .*; up to ([0-9.]+) times the tokens per second$", text, re.M)
    rules = [name for name, _ in advice]
    assert [float(gain) for _, gain in advice] == sorted((float(gain) for _, gain in advice), reverse=True)
    assert abs(share["forward"] - 10) < 0.1 or ("recomputation" in rules) == (share["forward"] > 10), text
    tokens = int(re.search(r"([0-9]+) tokens a step", text)[1])
    fixed = (share["forward"] + share["backward"]) / 100 * 16 / (16 + tokens)
    assert abs(fixed - 0.25) < 0.01 or ("small batches" in rules) == (fixed > 0.25), text


def test_several_files_are_one_set(rows, tmp_path):
    """A pattern and a file, together the rows of one file in its order: the same adapter, byte by byte."""
    lines = rows.read_text().splitlines(keepends=True)
    for name, part in {"p-1": lines[:20], "p-2": lines[20:45], "last": [*lines[45:], lines[0], "7\n"]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    assert train(rows, tmp_path / "one", "--max-steps", 3).returncode == 0
    got = train(tmp_path / "p-*.jsonl", tmp_path / "many", "--max-steps", 3, "--data", tmp_path / "last.jsonl")
    said = got.stderr.decode()
    assert got.returncode == 0, said
    assert f"{tmp_path}/p-1.jsonl and 2 more: completion, 62 rows, 1 skipped, 1 duplicates left out" in said
    assert f"  {tmp_path}/last.jsonl: row 17: " in said
    assert files(tmp_path / "one") == files(tmp_path / "many")
    words = [BINARY, "train", "--model", SMALL, "--out", tmp_path / "x", "--data", tmp_path / "p-1.jsonl", tmp_path / "nothing-*"]
    got = subprocess.run(words, capture_output=True, cwd=ROOT, env=ENV, timeout=300)
    assert got.returncode == 1 and b"nothing-*: no file matches" in got.stderr


@pytest.mark.parametrize("name", [SMALL.name, "olmoe"])
def test_a_model_is_written_and_served(rows, tmp_path, name):
    base, out = shutil.copytree(SMALL.parent / name, tmp_path / "base"), tmp_path / "model"
    for name in ("README.md", "notes.json", "heldout.txt"):
        (base / name).write_text("{}")
    got = train(rows, out, "--method", "full", "--random-init", "--epochs", 1, "--model", base)
    assert got.returncode == 0, got.stderr.decode()
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(files(out))
    assert not {"README.md", "notes.json", "heldout.txt"} & set(files(out))  # of the base alone
    text = subprocess.run([BINARY, "generate", "--model", out, "--prompt", "the cat", "--max-new-tokens", "5"], capture_output=True, env=ENV)
    assert text.returncode == 0, text.stderr.decode()


def test_going_on_from_an_adapter(rows, tmp_path):
    assert train(rows, tmp_path / "one", "--epochs", 3, "--learning-rate", "5e-3", "--lora-r", 4, "--target-modules", "q_proj,v_proj").returncode == 0
    got = train(rows, tmp_path / "two", "--from", tmp_path / "one", "--max-steps", 1)
    assert got.returncode == 0
    first = train(rows, tmp_path / "three", "--max-steps", 1)
    assert losses(got.stderr)[0] < 0.95 * losses(first.stderr)[0]
    assert json.loads((tmp_path / "two/adapter_config.json").read_text())["r"] == 4


@pytest.mark.parametrize("method", [["--target-modules", "q_proj,v_proj,lm_head"], ["--method", "full", "--optimizer", "muon"]], ids=["lora", "full"])
def test_gradient_norms_by_group(rows, tmp_path, method):
    """Each layer, embeddings and head; together the norm that is clipped."""
    got = train(rows, tmp_path / "out", "--max-steps", 3, "--tensorboard", tmp_path / "board", *method)
    assert got.returncode == 0, got.stderr.decode()
    read = scalars(tmp_path / "board")
    groups = {tag.removeprefix("grad_norm/") for tag in read if tag.startswith("grad_norm/")}
    layers = json.loads((SMALL / "config.json").read_text())["num_hidden_layers"]
    assert {g for g in groups if g.startswith("layer.")} == {f"layer.{i}" for i in range(layers)}
    assert "head" in groups and groups - {"embeddings", "head"} == {f"layer.{i}" for i in range(layers)}
    for step in (1, 2, 3):
        together = sum(read[f"grad_norm/{g}"][step] ** 2 for g in groups) ** 0.5
        assert together == pytest.approx(read["train/grad_norm"][step], rel=1e-5)
        assert all(read[f"grad_norm/{g}"][step] > 0 for g in groups if g.startswith("layer."))
        assert read["train/macs_per_second"][step] > 1e4 * read["train/tokens_per_second"][step]
        assert read["utilization/host"][step] > 0 and 0 < read["utilization/device"][step] <= 1 + 1e-6
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert record["grad_norms"].keys() == groups and record["step"] == 3 and record["usage"]["steps"] == 3


def test_two_jobs_side_by_side(rows, tmp_path):
    for name, *more in (["a", "--lora-r", 2], ["b", "--lora-r", 4, "--eval-fraction", "0.1", "--cost-per-hour", 2]):
        assert train(rows, tmp_path / name, "--max-steps", 2, *more).returncode == 0

    def compare(*args, status=0):
        done = subprocess.run([BINARY, "train", "--compare", *map(str, args)], capture_output=True, cwd=tmp_path, env=ENV, timeout=300)
        assert done.returncode == status, done.stderr.decode()
        return (done.stderr if status else done.stdout).decode()
    said = compare("a", "b")
    assert re.search(r"^  lora_r +2 +4$", said, re.M) and re.search(r"^  eval_fraction +0 +0\.1$", said, re.M), said
    assert re.search(r"^  best evaluation: loss +- +\d\.\d{4}$", said, re.M) and "tokens/s" in said and "of a step: backward, %" in said
    assert "learning_rate" not in said
    both = json.loads(compare("a", f"b/{RECORD}", "--json", "--cost-per-hour", "3600"))
    assert both["a"] == "a" and {"name": "lora_r", "a": 2, "b": 4} in both["settings"]
    figures = {f["name"]: f for f in both["figures"]}
    record = json.loads((tmp_path / "b" / RECORD).read_text())
    used = record["usage"]
    assert figures["usage.peak_host_bytes"]["b"] == used["peak_host_bytes"] and figures["best_eval_loss"]["a"] is None
    assert figures["cost"]["b"] == pytest.approx(used["seconds"] + used["evaluation_seconds"] + used["checkpoint_seconds"], rel=1e-4)
    assert "no setting differs" in compare("a", "a")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "broken.json").write_text('{"hyperparameters": {')
    (tmp_path / "many.json").write_text(json.dumps({"hyperparameters": {f"x{i}": i for i in range(300)}}))
    assert "many.json: hyperparameters has more than 256 members" in compare("a", "many.json", status=1)
    assert "wants two jobs, not 1" in compare("a", status=2)
    assert "list.json: not the record of a training job" in compare("a", "list.json", status=1)
    assert "broken.json: malformed JSON at byte" in compare("broken.json", "a", status=1)
    assert "nothing" in compare("a", "nothing", status=1)


@pytest.mark.parametrize("method", [
    ["--lora-dropout", "0.1"],
    ["--method", "full", "--random-init", "--optimizer", "muon", "--dropout", "0.1", "--ema-decay", "0.9", "--max-steps", 8],
    ["--method", "full", "--optim", "paged_adamw_8bit", "--max-steps", 8],
], ids=["lora", "full", "8bit"])
def test_killed_at_any_moment(rows, tmp_path, method):
    """As often as it takes to end; the bytes of an unbroken run."""
    more = ["--epochs", 4, "--save-steps", 1, "--eval-steps", 5, "--eval-fraction", "0.1", *method]
    began = time.monotonic()
    assert train(rows, tmp_path / "whole", *more).returncode == 0
    took = time.monotonic() - began
    rng, kills = random.Random(2), 0
    for _ in range(200):
        began = time.monotonic()
        with subprocess.Popen(command(rows, tmp_path / "broken", *more), stderr=subprocess.PIPE, cwd=ROOT, env=ENV) as p:
            try:
                p.wait(rng.uniform(0.05, 0.6) * took + 0.002 * kills * took)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                kills += 1
                if (tmp_path / "broken").exists():
                    break  # killed after the result was in place
                continue
            err = p.stderr.read().decode()
            assert p.returncode == 0, err
        if kills:
            break
        took = time.monotonic() - began  # the unbroken run was slowed by others: again, by this one's time
        shutil.rmtree(tmp_path / "broken")
    assert kills >= 1
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


def test_interrupted(rows, tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(command(rows, out, "--epochs", 1000), stderr=subprocess.PIPE, cwd=ROOT, env=ENV, text=True) as p:
        for line in p.stderr:
            if line.startswith("step "):
                break
        p.send_signal(signal.SIGINT)
        rest = p.stderr.read()
        assert p.wait(300) == 130
    assert "the same command goes on" in rest and not out.exists()
    steps = list((tmp_path / "out.train/checkpoints").iterdir())
    assert steps
    other = train(rows, out, "--epochs", 999)
    assert other.returncode == 1 and b"another job" in other.stderr


@pytest.mark.parametrize("words, says", [
    (["--out", "x"], "--data is missing"),
    (["--data", "x"], "--out is missing"),
    (["--data", "x", "--out", "y", "--learning-rate", "1e6"], "learning_rate: must be above 0 and at most 1"),
    (["--data", "x", "--out", "y", "--epochs", "many"], "epochs"),
    (["--data", "x", "--out", "y", "--epochs"], "--epochs wants a value"),
    (["--data", "x", "--out", "y", "--schedule", "sine"], "schedule: must be one of constant, linear, cosine"),
    (["--data", "x", "--out", "y", "--target-modules", "q_prj"], "did you mean q_proj"),
    (["--data", "x", "--out", "y", "--random-init"], "random_init"),
    (["--data", "x", "--out", "y", "--optimizer", "muon"], "optimizer: muon only with method full"),
    (["--data", "x", "--out", "y", "--dropout", "0.1"], "did you mean `lora_dropout`?"),
    (["--data", "x", "--out", "y", "--method", "dora"], "--method"),
    (["--data", "x", "--out", "y", "--lora-rnk", "2"], "lora-rnk"),
])
def test_called_wrongly(words, says):
    got = subprocess.run([BINARY, "train", *words], capture_output=True, cwd=ROOT, env=ENV)
    assert got.returncode == 2 and says in got.stderr.decode() and not got.stdout, got.stderr.decode()


def test_what_fails_says_why(rows, tmp_path):
    def fails(says, *more, data=rows):
        got = train(data, tmp_path / "no", *more)
        assert got.returncode == 1 and says in got.stderr.decode(), got.stderr.decode()
        assert not (tmp_path / "no").exists()

    fails("no/such/file", data="no/such/file")
    fails("no/such/adapter", "--from", "no/such/adapter")
    fails("qlora wants a quantised base", "--method", "qlora")
    fails("wants a base of floats", "--method", "full", "--quantize", "int8")
    fails("max_length", "--max-length", "100000")
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"prompt": "a", "completion": ""}\n')
    fails("empty.jsonl", data=empty)
    blocked = tmp_path / "file"
    blocked.write_text("")
    got = train(rows, blocked / "out")
    assert got.returncode == 1 and b"Not a directory" in got.stderr


def test_qlora(rows, tmp_path):
    got = train(rows, tmp_path / "out", "--method", "qlora", "--quantize", "int8", "--epochs", 4, "--learning-rate", "5e-3")
    assert got.returncode == 0, got.stderr.decode()
    loss = losses(got.stderr)
    assert loss[-1] < 0.9 * loss[0]
