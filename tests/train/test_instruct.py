"""Instructions taught to the demo model, which knows little stories only: LoRA on its weights and QLoRA on quantised
ones learn them, from rows in Alpaca's format, and its answers are others from then on.

    TANDEM_BUILD_DIR=build python -m pytest tests/train/test_instruct.py
"""
import json
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR") or ROOT / "build") / "server" / "tandem"
ENV = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
MODEL = ROOT / "models" / "demo"
ROWS = ROOT / "tests" / "fixtures" / "instruct" / "rows.json"

BEFORE = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
ASKED = {"What is the opposite of the word happy?": "opposite", "What is the opposite of the word cold?": "opposite",
         "Give Lily a present.": "present"}  # and a word of the answer


def tandem(*words):
    got = subprocess.run([BINARY, *map(str, words)], capture_output=True, cwd=ROOT, env=ENV, timeout=600)
    assert got.returncode == 0, got.stderr.decode()
    return got.stdout.decode(), got.stderr.decode()


def answers(*words):
    """What the model says to each question, greedily: text, and whether it ended by itself."""
    found = []
    for question in ASKED:
        prompt = f"{BEFORE}\n\n### Instruction:\n{question}\n\n### Response:\n"
        said = json.loads(tandem("generate", "--model", MODEL, "--prompt", prompt, "--max-new-tokens", 40, "--json", *words)[0])
        found.append((said["text"], said["finish_reason"] == "eos_token"))
    return found


@pytest.mark.full
@pytest.mark.parametrize("method, quantize", [("lora", "none"), ("qlora", "int8")])
def test_it_learns_to_answer(method, quantize, tmp_path):
    how = ["--quantize", quantize]
    text = tandem("train", "--model", MODEL, "--data", ROWS, "--out", tmp_path / "out", "--method", method, *how,
                  "--epochs", 2, "--learning-rate", "2e-3", "--batch-tokens", 1024, "--max-length", 512,
                  "--eval-fraction", "0.1", "--eval-steps", 6, "--seed", 7)[1]
    loss = [float(x) for x in re.findall(r"^step \d+ of .* loss ([0-9.]+)", text, re.M)]
    held_out = [float(x) for x in re.findall(r"evaluation: loss ([0-9.]+)", text)]
    assert len(held_out) >= 3 and loss[-1] < 0.5 * loss[0], text
    assert min(held_out[-2:]) < 0.7 * held_out[0], text

    before, after = answers(*how), answers(*how, "--adapter", tmp_path / "out")
    assert all(a[0] != b[0] for a, b in zip(before, after)), (before, after)
    assert sum(ended for _, ended in after) >= 2, after  # an answer is a sentence and then the end, not a story
    assert sum(word in text for (text, _), word in zip(after, ASKED.values())) >= 2, after
    assert not any("opposite" in text for text, _ in before), before
