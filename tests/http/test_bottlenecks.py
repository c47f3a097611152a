"""Each bottleneck planted in a real run of tandem train, tandem bench --train and a job of the daemon: its rule's name is printed.

Which share of a step something takes is the machine's business: where a run's own figures say that the planted thing is
below its threshold, the rule must be silent; how long checkpoints take is the disk's.  (A slow source of data is planted in tests/unit/engine/train.)"""
import json
import os
import re
import subprocess
import threading

import pytest
from conftest import BINARY, ENV, MODEL, ROOT
from training import job, jsonl, submit, wait_over

pytestmark = pytest.mark.full
STEPS_LEAST = 3  # TRAIN_STEPS_LEAST of bottleneck.h: of fewer nothing is said
SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
SHARES = {"optimizer": ("optimizer", 20), "recomputation": ("forward", 10), "device idle": ("other", 10), "slow data": ("data", 10)}


def run_train(tmp_path, *more):
    (tmp_path / "rows.jsonl").write_text(jsonl(200))
    command = [BINARY, "train", "--model", SMALL, "--data", tmp_path / "rows.jsonl", "--out", tmp_path / "out", "--max-steps", "20", *map(str, more)]
    return subprocess.run(command, capture_output=True, cwd=ROOT, env=ENV, timeout=300)


def show(planted, lines):
    print(f"\nplanted: {planted}", *lines, sep="\n  ")


@pytest.mark.parametrize("planted, rule, options", [
    ("tiny batches", "small batches", ["--batch-tokens", 16]),
    ("tiny micro-batches", "small micro-batches", ["--micro-tokens", 32, "--max-length", 32]),
    ("few threads", "few threads", ["--threads", 1]),
    ("too much recomputation", "recomputation", ["--recompute", "on"]),
    ("an update of all weights for every short row", "optimizer", ["--method", "full", "--batch-tokens", 16]),
    ("evaluations all the time", "evaluations", ["--eval-fraction", 0.4, "--eval-steps", 1, "--batch-tokens", 64]),
    ("checkpoints all the time", "checkpoints", ["--save-steps", 1]),
])
def test_tandem_train(tmp_path, planted, rule, options):
    got = run_train(tmp_path, *options)
    text = got.stderr.decode()
    assert got.returncode == 0, text
    lines = [line for line in text.splitlines() if line.startswith(("time of a step", "advice: "))]
    show(planted, lines)
    share = {name: float(x) for name, x in re.findall(r"(\w+) ([0-9.]+) %", lines[0])}
    named = [line.split(": ")[1] for line in lines[1:]]
    if rule in SHARES:
        part, above = SHARES[rule]
        assert abs(share[part] - above) < 0.1 or (rule in named) == (share[part] > above)
    elif rule == "few threads":
        assert rule in named or not os.cpu_count() > 1
    elif rule.startswith("small"):
        assert rule in named or share["forward"] + share["backward"] < 70
    elif rule == "evaluations":  # of thirty times as many rows as a step has
        assert rule in named


def test_a_budget_that_is_too_small(tmp_path):
    for mib in (2 ** i for i in range(2, 12)):
        got = run_train(tmp_path, "--micro-tokens", "auto", "--batch-tokens", 2048, "--memory-mib", mib)
        if got.returncode == 0:
            break
    text = got.stderr.decode()
    lines = [line for line in text.splitlines() if line.startswith(("time of a step", "advice: "))]
    show(f"{mib} MiB", lines)
    tokens = int(re.search(r"activations of (\d+) tokens", text)[1])
    assert tokens == 2048 or "computed again" in text or any("micro-batches over budget" in line for line in lines)


def test_bench_train(run):
    got = run("bench", "--train", "--model", SMALL, "--batch", "1,16", "--lengths", "48", "--repeat", 5, "--threads", 1, "--recompute", "on",
              "--switches=false", "--json", timeout=300)
    assert got.returncode == 0, got.stderr.decode()
    doc = json.loads(got.stdout)
    row = doc["rows"][0]
    show(f"bench --train, {row['name']}, one thread, recomputation", [f"{a['rule']}: {a['cause']}: {a['change']}; {a['gain']:.2f}" for a in row["advice"]])
    assert (row["parts"]["forward"]["median"] < 0.15 * row["seconds"]["median"]) or "recomputation" in [a["rule"] for a in row["advice"]]


def test_throttled_training(start):
    """Two streams all the time, and no more time for training than it gets at least: a fiftieth, so the steps are few."""
    with start("--train-slowdown", "1") as s:
        ended = threading.Event()

        def ask():
            while not ended.is_set():
                s.generate("Once upon a time", max_new_tokens=200)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for t in threads:
            t.start()
        try:
            job_id = submit(s, "throttled", max_steps=STEPS_LEAST, n=8, batch_tokens=32)
            assert wait_over(s, job_id)["status"] == "succeeded"
        finally:
            ended.set()
            for t in threads:
                t.join()
        used = job(s, job_id)["usage"]
        show("throttled training", [f"{a['rule']}: {a['cause']}: {a['change']}; {a['gain']:.2f}" for a in used["advice"]])
        share = used["step_seconds"]["wait"] / used["seconds"]
        assert abs(share - 0.25) < 1e-3 or ("waiting for serving" in [a["rule"] for a in used["advice"]]) == (share > 0.25)
