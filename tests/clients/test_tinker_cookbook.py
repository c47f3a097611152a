"""The loops of tinker-cookbook, unmodified, as loadtest/tinker_cookbook.py runs them (docs/tinker.md)."""
import re
import subprocess
import sys

import pytest
from client_rig import NEEDS_DEMO, ROOT, package

package("tinker_cookbook")
pytestmark = [NEEDS_DEMO, pytest.mark.full]


def test_the_four_loops_learn_and_are_on_policy():
    done = subprocess.run([sys.executable, ROOT / "loadtest/tinker_cookbook.py", "--bases", "int8", "--steps", "8"], capture_output=True, text=True,
                          timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = re.findall(r"rank +(\d+)  reward ([\d.]+) -> ([\d.]+)  first ratio (\S+) to (\S+)", done.stdout)
    assert [(rank, low, high) for rank, _, _, low, high in runs] == [("4", "1.0", "1.0"), ("16", "1.0", "1.0")]
    assert all(float(last) > float(first) for _, first, last, _, _ in runs)
    tokens, wrong = re.search(r"(\d+) sampled tokens, (\d+) with other", done.stdout).groups()
    assert int(tokens) > 5000 and wrong == "0"
    figures = re.findall(r"^(\w+) +(?:train_mean_nll|dpo_loss|teacher_kl) ([\d.]+) -> ([\d.]+)", done.stdout, re.M)
    assert [name for name, _, _ in figures] == ["supervised", "dpo", "distillation"]
    assert all(float(last) < float(first) for _, first, last in figures), figures
