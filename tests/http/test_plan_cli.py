"""tandem plan: what it counts is what tandem train plans and sends on so many ranks, and what fits follows from it."""
import json
import shutil
import subprocess

import pytest
from conftest import BINARY, ENV, ROOT

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"


def plan(*args, status=0):
    done = subprocess.run([BINARY, "plan", *map(str, args)], capture_output=True, cwd=ROOT, env=ENV, timeout=60, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def splits(*args):
    return json.loads(plan("--model", SMALL, "--json", *args))


def all_bytes(s):
    return s["weight_bytes"] + s["state_bytes"] + s["activation_bytes"]


def test_bytes_and_times_follow_the_formula():
    rates = ["--link", 12.5, "--tflops", 0.5]
    answer = splits("--gpus", "8x1G", "--method", "full", "--batch-tokens", 2048, "--max-length", 128, *rates)
    p, slots, compute = answer["trainable_parameters"], answer["grad_slots"], 2 * answer["macs_per_token"] * 2048 / (8 * 0.5e12)
    assert p == answer["parameters"] and slots == 8 and answer["filled_at_most"] == 0.8
    by = {s["zero"]: s for s in answer["splits"] if s["tensor_parallel"] == 1}
    config = json.loads((SMALL / "config.json").read_text())
    hidden, depth, kv = config["hidden_size"], config["num_hidden_layers"], config["num_key_value_heads"] * config["hidden_size"] // config["num_attention_heads"]
    layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * config["intermediate_size"] * hidden
    three = by.pop(3)  # one slot a rank
    summed, gathered = 4 * p * 7 / 8, 4 * layer * 7 / 8 * (2 * depth - 1)
    assert three["supported"] and three["sent_bytes_per_step"] == pytest.approx(summed + gathered + 4 * (p - depth * layer) * 7 / 8, rel=1e-6)
    assert three["link_seconds"] == pytest.approx(three["sent_bytes_per_step"] / 12.5e9, rel=1e-6)
    assert three["step_seconds"] == pytest.approx(compute + three["link_seconds"] - min((summed + gathered / 2) / 12.5e9, compute * 2 / 3) - min(gathered / 2 / 12.5e9, compute / 3), rel=1e-4)
    assert three["state_bytes"] == by[2]["state_bytes"] and three["weight_bytes"] == by[2]["weight_bytes"]  # it has two layers
    assert set(by) == {0, 1, 2}
    for zero, s in by.items():
        part = 4 * p * 7 / 8
        assert s["data_parallel"] == 8 and s["supported"] and s["sent_bytes_per_step"] == pytest.approx(2 * part, rel=1e-6)
        assert not s["recompute"] and s["compute_seconds"] == pytest.approx(compute, rel=1e-6)
        assert s["link_seconds"] == pytest.approx(2 * part / 12.5e9, rel=1e-6)
        hidden = min(part / 12.5e9, compute * 2 / 3) if zero == 2 else 0
        assert s["step_seconds"] == pytest.approx(compute + 2 * part / 12.5e9 - hidden, rel=1e-4)
        assert s["tokens_per_s"] == pytest.approx(2048 / s["step_seconds"], rel=1e-6)
    assert by[0]["state_bytes"] > max(by[1]["state_bytes"], by[2]["state_bytes"])  # of two layers a pass has all gradients
    # what is sent beside the passes takes no time
    assert answer["best"] == min((by[2], three), key=lambda s: s["step_seconds"]) and answer["best"]["step_seconds"] < by[1]["step_seconds"]
    shared = [s for s in answer["splits"] if s["tensor_parallel"] > 1]
    assert shared and not any(s["supported"] for s in shared)


def test_what_fits():
    """At most 80 % of a card, and the plan that fits is the one that tandem train can do."""
    answer = splits("--gpus", "4x1G", "--method", "full", "--batch-tokens", 256, "--max-length", 64)
    assert all(s["fits"] for s in answer["splits"]) and answer["best"]["tokens_per_s"] is None
    sizes = {s["zero"]: all_bytes(s) for s in answer["splits"] if s["tensor_parallel"] == 1}
    between = (sizes[0] + sizes[2]) / 2 / 0.8 / 2**20
    answer = splits("--gpus", f"4x{between}M", "--method", "full", "--batch-tokens", 256, "--max-length", 64, "--recompute", "off")
    for s in answer["splits"]:
        assert s["fits"] == (all_bytes(s) <= 0.8 * answer["memory_bytes"])
    assert answer["best"]["zero"] > 0 and answer["best"]["supported"]
    none = splits("--gpus", "2x1M", "--method", "full", "--max-length", 64)
    assert none["best"] is None
    assert "none fits" in plan("--model", SMALL, "--gpus", "2x1M", "--method", "full", "--max-length", 64)
    one = splits("--gpus", "1x1G", "--max-length", 64)
    assert len(one["splits"]) == 1 and one["best"]["sent_bytes_per_step"] == 0
    text = plan("--model", SMALL, "--gpus", "2x1G", "--max-length", 64)
    assert "mpirun -n 2 tandem train --zero" in text and "no times" in text
    assert "tandem train divides a base on processors alone" in text and not any(s["supported"] for s in splits("--gpus", "2x1G", "--max-length", 64)["splits"] if s["zero"] == 3)


def test_rates_of_a_report(tmp_path):
    report = tmp_path / "bench.json"
    report.write_text(json.dumps({"rows": [{"tokens_per_s": 100, "macs_per_token": 5e6}, {"tokens_per_s": 300, "macs_per_token": 4e6}]}))
    assert splits("--gpus", "2x1G", "--max-length", 64, "--bench", report)["flops"] == 2 * 300 * 4e6
    report.write_text("{}")
    assert "no report of tandem bench" in plan("--model", SMALL, "--gpus", "2x1G", "--bench", report, status=1)


@pytest.mark.parametrize("args, says", [
    (["--gpus", "8"], "is not NUMBERxMEMORY"),
    (["--gpus", "65x80G"], "at most 64 cards"),
    (["--gpus", "8x80K"], "a number with M, G or T"),
    (["--gpus", "8x-1G"], "a number with M, G or T"),
    (["--gpus", "8xnanG"], "a number with M, G or T"),
    ([], "--gpus is missing"),
    (["--gpus", "2x1G", "--zero", 4], "zero"),
])
def test_wrong_arguments(args, says):
    assert says in plan("--model", SMALL, *args, status=2)


def test_what_cannot_be_divided():
    assert "gpus: the number of cards must be a power of two" in plan("--model", SMALL, "--gpus", "3x1G", "--max-length", 64, status=1)
    assert "grad_slots: 2 slots cannot be divided over 64 cards" in plan("--model", SMALL, "--gpus", "64x1G", "--grad-slots", 2, "--max-length", 64, status=1)
    assert "config.json" in plan("--model", ROOT / "tests", "--gpus", "2x1G", status=1)


def with_tensor(directory, dtype, shape):
    """The model with one tensor more, of no bytes."""
    shutil.copytree(SMALL, directory)
    file = directory / "model.safetensors"
    raw = file.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header["model.layers.0.mlp.more.weight"] = {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + size:])
    return directory


@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_shapes_that_a_file_invents(tmp_path, optimizer):
    args = ["--gpus", "4x1G", "--method", "full", "--optimizer", optimizer, "--max-length", 64, "--json"]
    empty = with_tensor(tmp_path / "empty", "F32", [0, 0])
    assert json.loads(plan("--model", empty, *args)) == splits(*args[:-1])
    for i, (shape, says) in enumerate([([2**40, 2**40], "its shape is too large"), ([2, 2**31], "its shape is too large"), ([2**31, 2], "its shape is too large"),
                                       ([2**30, 2**20], "more than 281474976710656 parameters")]):
        error = plan("--model", with_tensor(tmp_path / str(i), "F4", shape), *args, status=1)
        assert "tensor model.layers.0.mlp.more.weight: " in error and says in error, error


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("mpirun") or not (BINARY.parent / "libtandem_mpi.so").exists(), reason="no mpirun here, or tandem was built without MPI")
@pytest.mark.parametrize("more", [
    ["--method", "full"], ["--method", "full", "--optimizer", "muon", "--ema-decay", "0.9"], ["--method", "full", "--optimizer", "adamw_8bit", "--f32"], ["--lora-r", 32],
], ids=["full", "muon", "8bit", "lora"])
def test_it_counts_what_the_trainer_plans_and_sends(tmp_path, more):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}:", "completion": " a cat and a dog" * (i % 4 + 1)}) + "\n" for i in range(60)))
    common = ["--max-length", "64", "--batch-tokens", "256", "--micro-tokens", "64", "--grad-slots", "8", *more]
    answer = splits("--gpus", "2x1G", *common)
    for zero in range(4):
        out, steps = tmp_path / str(zero), 4
        done = subprocess.run(["mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none", "-n", "2", BINARY, "train", "--model", SMALL, "--data", rows,
                               "--out", out, "--threads", "1", "--max-steps", str(steps), "--zero", str(zero), *map(str, common)],
                              capture_output=True, cwd=ROOT, env=ENV, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        record = json.loads((out / "training_record.json").read_text())
        split = next(s for s in answer["splits"] if s["tensor_parallel"] == 1 and s["zero"] == zero)
        states, planned = split["state_bytes"], record["plan"]["state_bytes"]
        if "full" in more or zero == 3:  # method full: of both the plan has one figure; else room for layers counts as state
            states += split["weight_bytes"]
        if "full" not in more and zero == 3:
            planned += record["plan"]["weight_bytes"]
        assert answer["trainable_parameters"] == pytest.approx(record["plan"]["trainable_parameters"], rel=1e-6)
        assert states == pytest.approx(planned, rel=0.03), (zero, split, record["plan"])
        assert record["plan"]["activation_bytes"] / 2 < split["activation_bytes"] <= record["plan"]["activation_bytes"]
        sent = sum(c["sent_bytes"] for name, c in record["communication"].items() if name in ("all-reduce", "reduce-scatter", "all-gather"))
        assert sent >= 0.98 * steps * split["sent_bytes_per_step"], (zero, sent)
