"""tandem bench --train: the table, the switches, comparing with a baseline and checking targets."""
import importlib.machinery
import importlib.util
import json
import os

import pytest
from conftest import MODEL, ROOT

PARTS = {"data", "forward", "backward", "optimizer", "wait", "ranks", "other"}
ARGS = ("bench", "--train", "--model", MODEL, "--batch", "1,4", "--lengths", "48", "--repeat", 3, "--lora-r", 4, "--threads", 1)


def ok(result, status=0):
    assert result.returncode == status, result.stderr.decode()
    return result.stdout.decode()


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    text = ok(run(*ARGS, "--json", "--switches=false", timeout=300))
    path = tmp_path_factory.mktemp("bench") / "baseline.json"
    path.write_text(text)
    return json.loads(text), path


def test_rows(report):
    doc, _ = report
    assert [r["name"] for r in doc["rows"]][:2] == ["1 x 48", "4 x 48"] and doc["method"] == "lora"
    for row in doc["rows"]:
        assert row["steps"] == 3 and set(row["parts"]) == PARTS
        assert row["tokens_per_s_min"] <= row["tokens_per_s"] <= row["tokens_per_s_max"]
        assert row["seconds"]["least"] <= row["seconds"]["median"] <= row["seconds"]["most"]
        assert all(p["least"] >= 0 for p in row["parts"].values()) and row["parts"]["forward"]["least"] > 0
        assert row["activation_bytes"] > 0 and row["state_bytes"] > 0 and row["macs_per_token"] > 0
        assert row["peak_host_bytes"] > 1 << 20 and row["peak_device_bytes"] is None
    one, four = doc["rows"][:2]
    assert one["tokens_per_step"] == pytest.approx(47) and four["tokens_per_step"] == pytest.approx(4 * 47)
    assert four["activation_bytes"] > one["activation_bytes"]
    assert doc["largest"][0]["batch"] >= 4


def test_advice(report):
    """Planted: one thread, and steps of one row, which larger ones are measured against."""
    doc, _ = report
    rows = [r for r in doc["rows"] if "refused" not in r]
    for row in rows:
        assert all(a["rule"] and a["cause"] and a["change"] and a["gain"] > 1 for a in row["advice"])
        assert "few threads" not in [a["rule"] for a in row["advice"]] or os.cpu_count() > 1
    one = rows[0]
    faster = [r["tokens_per_s"] / one["tokens_per_s"] for r in rows[1:] if r["tokens_per_s_min"] > one["tokens_per_s_max"]]
    small = [a["gain"] for a in one["advice"] if a["rule"] == "small batches"]
    assert small == ([pytest.approx(max(faster), rel=1e-3)] if faster and max(faster) > 4 / 3 else [])


@pytest.mark.full
def test_a_table_with_more_rows_than_the_tokenizer_has_tokens(run, tmp_path):
    loader = importlib.machinery.SourceFileLoader("ladder", str(ROOT / "scripts/ladder"))
    ladder = importlib.util.module_from_spec(importlib.util.spec_from_loader("ladder", loader))
    loader.exec_module(ladder)
    ladder.make_model(tmp_path, {**ladder.SMALL, "vocab_size": 4096})
    doc = json.loads(ok(run("bench", "--train", "--model", tmp_path, "--batch", "1", "--lengths", "32", "--repeat", 1, "--switches=false", "--json",
                            "--memory-mib", 64, timeout=300)))
    assert doc["rows"][0]["tokens_per_s"] > 0


@pytest.mark.full
def test_switches(run):
    doc = json.loads(ok(run(*ARGS, "--json", timeout=300)))
    of = {s["name"]: s for s in doc["switches"]}
    assert of["recompute on"]["bytes_saved"] > 0 and of["recompute on"]["recompute"] and not of["recompute off"]["recompute"]
    # without packing a step has other rows, of similar length: neither needs fewer micro-batches always
    assert of["packing off"]["micro_batches_per_step"] >= 1 and of["packing on"]["micro_batches_per_step"] >= 1
    assert of["base int8"]["weight_bytes"] < of["base as it is"]["weight_bytes"]
    assert of["base int4"]["weights"] == "int4" and "speed_ratio" in of["base int4"] and "nf4" in of["base nf4"]["name"]


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_there_are_no_preferences(run, method):
    got = run("bench", "--train", "--model", MODEL, "--method", method)
    assert got.returncode == 2 and b"method" in got.stderr and b"lora|qlora|full" in got.stderr, got.stderr.decode()


def test_baseline_and_check(run, report, tmp_path):
    doc, path = report
    slow = json.loads(path.read_text())
    row = next(r for r in slow["rows"] if r["name"] == "1 x 48")
    for field in ("tokens_per_s", "tokens_per_s_min", "tokens_per_s_max"):
        row[field] /= 1000
    path.write_text(json.dumps(slow))
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps({"1 x 48": {"tokens_per_s": {"min": 1e-3}, "peak_host_bytes": {"max": 1}}}))
    args = [*ARGS[:4], "--batch", 1, *ARGS[6:], "--switches=false"]
    text = ok(run(*args, "--baseline", path, "--check", targets, timeout=300), 1)
    assert "1 x 48: tokens/s" in text and "4 x 48: only in the baseline" in text
    assert "met: 1 x 48 tokens_per_s" in text and "missed: 1 x 48 peak_host_bytes" in text


@pytest.mark.parametrize("args, says", [
    (["--lengths", "8"], "--lengths: 8 is not between 32 and"),
    (["--learning-rate", "-1"], "learning_rate"),
    (["--ops"], "--train and --ops"),
    (["--batch", "0"], "--batch: 0 is not between"),
])
def test_mistakes(run, args, says):
    result = run("bench", "--train", "--model", MODEL, *args)
    assert result.returncode == 2 and says in result.stderr.decode()


def test_hyperparameters_are_for_training(run):
    result = run("bench", "--lora-r", "4", "--model", MODEL)
    assert result.returncode == 2 and "lora_r is an option of --train" in result.stderr.decode()
