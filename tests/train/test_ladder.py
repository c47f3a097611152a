"""scripts/ladder, small: every rung is measured, and learns."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BINARY = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR") or ROOT / "build") / "server" / "tandem"


@pytest.mark.full
def test_every_rung(tmp_path):
    got = subprocess.run([ROOT / "scripts/ladder", "--tandem", BINARY, "--small", "--rows", "36", "--prompts", "8",
                          "--threads", "2", "--json", tmp_path / "figures.json"], capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    rungs = json.loads((tmp_path / "figures.json").read_text())["rungs"]
    assert [r["rung"] for r in rungs] == ["naive", "accumulation", "bf16", "packing", "LoRA", "int8", "one by one", "batches", "bf16", "int8", "int4"]
    assert all(r["samples_per_s"] > 0 and 0 < r["peak_gb"] < 8 for r in rungs)
    loss, served = ({r["rung"]: r["loss"] for r in rungs if r["phase"] == phase} for phase in ("training", "inference"))
    assert loss["naive"] < loss["accumulation"] < 7.7  # ln 2048 is 7.62; a row a step has more steps
    assert abs(loss["bf16"] - loss["accumulation"]) < 0.1
    assert loss["LoRA"] < loss["packing"]
    assert served["one by one"] == served["batches"] and abs(served["batches"] - loss["packing"]) < 0.2  # which leaves out first tokens
    assert 0 < abs(served["int8"] - served["bf16"]) < 0.02 and 0 < abs(served["int4"] - served["bf16"]) < 0.2
    assert all(f"| {r['rung']} |" in got.stdout for r in rungs)


def test_device_and_seconds():
    got = subprocess.run([ROOT / "scripts/ladder", "--tandem", BINARY, "--small", "--rows", "24", "--epochs", "1", "--prompts", "4", "--threads", "2",
                          "--device", "cpu", "--seconds", "0.1"], capture_output=True, text=True)
    assert got.returncode == 0, got.stderr
    assert "training: int8; inference: one by one;" in got.stdout
    assert "GPU GB" not in got.stdout and "670 samples/s of inference, ten times the guide's: not measured" in got.stdout
