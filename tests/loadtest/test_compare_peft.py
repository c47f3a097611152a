"""loadtest/compare_peft.py with a tandem that only prints: it shows what it does while it does it, and uses bf16 where
the machine has units for it."""
import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = ROOT / "loadtest/compare_peft.py"

# prints a step, and the next one when the test has seen it
FAKE = """#!{python}
import json, pathlib, sys, time
if sys.argv[1] == "bench":
    print(json.dumps({{"model": {{"parameters": 1000000}}, "ceilings": {ceilings}}}))
else:
    for step in (1, 2, 3):
        print(f"step {{step}} of 3  loss 1.5  200 tokens/s", flush=True)
        until = time.time() + 60
        while step == 1 and not pathlib.Path({seen!r}).exists() and time.time() < until:
            time.sleep(0.01)
"""


def fake(tmp_path, ceilings):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"vocab_size": 50, "hidden_size": 8}))
    tandem = tmp_path / "tandem"
    tandem.write_text(FAKE.format(python=sys.executable, ceilings=ceilings, seen=str(tmp_path / "seen")))
    tandem.chmod(0o755)
    return [sys.executable, SCRIPT, "--model", tmp_path / "model", "--tandem", tandem, "--only", "tandem", "--steps", "3"]


@pytest.mark.parametrize("bf16, kind", [(None, "f32"), (0, "f32"), (4e9, "bf16")])
def test_steps_are_shown_as_they_come(tmp_path, bf16, kind):
    command = fake(tmp_path, {"f32_macs_per_s": 2e9, "bf16_macs_per_s": bf16})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        seen = []
        for line in p.stderr:
            seen.append(line)
            if "step 1 of 3" in line:
                (tmp_path / "seen").touch()  # only now does tandem go on
        out = p.stdout.read()
    assert p.returncode == 0, "".join(seen)
    assert sum("step 2 of 3" in line for line in seen) == (4 if kind == "bf16" else 3) and any(f"1 of {4 if kind == 'bf16' else 3}, round 1 of 1" in line for line in seen)
    assert f"tandem, {kind}" in out and f"{kind} ceiling: {'4' if kind == 'bf16' else '2'} before" in out
    assert any("no bf16 units" in line for line in seen) == (kind == "f32")


def test_pytorch_computes_in_what_the_machine_has(monkeypatch):
    spec = importlib.util.spec_from_file_location("compare_peft", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run_torch", lambda a, rows, script, dtype, checkpointing: dtype)
    for kind, expected in (("bf16", {"bfloat16", "float32"}), ("f32", {"float32"})):
        all_of_it = module.variants(argparse.Namespace(), "", "", kind)
        assert {fn() for name, fn in all_of_it.items() if "PyTorch" in name} == expected
        assert len(all_of_it) == 7 - 2 * (kind == "f32")  # tandem and PyTorch in f32 are there once
