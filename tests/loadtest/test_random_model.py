"""loadtest/random_model.py: every shape is a model that opens and generates."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TANDEM = Path(os.environ.get("TANDEM_BUILD_DIR", ROOT / "build")) / "server" / "tandem"
SCRIPT = ROOT / "loadtest" / "random_model.py"
sys.path.insert(0, str(SCRIPT.parent))
import random_model  # noqa: E402

sys.path.pop(0)


@pytest.mark.parametrize("shape", random_model.SHAPES)
def test_opens(shape, tmp_path):
    made = subprocess.run([sys.executable, SCRIPT, shape, tmp_path / "m", "--small"], capture_output=True, text=True, timeout=100)
    assert made.returncode == 0, made.stderr
    words = ["--prompt", "a", "--max-new-tokens", "3", "--temperature", "0", "--ignore-eos", "--json", "--threads", "1"]
    done = subprocess.run([TANDEM, "generate", "--model", tmp_path / "m", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    tokens = json.loads(done.stdout)["tokens"]
    assert len(tokens) == 3 and all(t["logprob"] > -20 for t in tokens)
    again = subprocess.run([sys.executable, SCRIPT, shape, tmp_path / "m", "--small"], capture_output=True, text=True, timeout=100)
    assert again.returncode == 1 and "exists already" in again.stderr


def test_sizes():
    """Whole, without writing them: the parameters that the models' cards name."""
    def parameters(shape, **changes):
        return sum(random_model.np.prod(size) for _, size in random_model.tensors({**random_model.SHAPES[shape], **changes}))
    assert parameters("qwen2.5-0.5b") == 494_032_768
    assert parameters("llama-3.2-1b") == 1_235_814_400
    assert parameters("llama-3.1-8b") == 8_030_261_248
    assert parameters("qwen3-30b-a3b", num_hidden_layers=48) == 30_532_122_624
