#!/usr/bin/env python3
"""Fine-tuning side by side with PyTorch and PEFT, in one run: the same model, rows, rank and threads.

    compare_peft.py --model MODEL_DIR --tandem build/server/tandem --threads 2 --tokens 512 --rows 4 --steps 4

A step is `rows` rows of `tokens` random tokens each, all of them trained.  Every measurement is a process of its own, tandem
and PyTorch in turn, `rounds` times; printed are the best and the median tokens/s of the steps after the first, and the
peak resident memory, and the share of the ceiling that `tandem bench` measures before and after: two multiply-adds per
weight and token, forward and back; what is computed twice to save memory counts once.  The ceiling is bf16's, and so are the
products; on a machine without bf16 units PyTorch would take minutes for a step, and both are f32's.  What runs, and each
step as it is done, goes to stderr.  Needs: pip install torch transformers peft
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

STEP = re.compile(r"step \d+ of \d+ .*?loss (?P<loss>[\d.]+) .*?(?P<rate>[\d.]+) tokens/s")  # what tandem prints; not of every fast step

TORCH = r"""
import json, resource, sys, time
import torch
from transformers import AutoModelForCausalLM
from peft import LoraConfig, get_peft_model
model_dir, rows_file, threads, rank, steps, rows, dtype, checkpointing = sys.argv[1:9]
torch.set_num_threads(int(threads))
torch.manual_seed(1)
data = [json.loads(line)["input_ids"] for line in open(rows_file)]
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype))
model = get_peft_model(model, LoraConfig(r=int(rank), lora_alpha=2 * int(rank), target_modules="all-linear", task_type="CAUSAL_LM"))
model.config.use_cache = False
if checkpointing == "on":
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
n, times, loss = int(rows), [], None
for step in range(int(steps)):
    start = time.perf_counter()
    ids = torch.tensor(data[step * n:(step + 1) * n])
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - start)
    print(json.dumps({"step": step, "s": times[-1], "loss": float(loss)}), flush=True)
print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
"""


def say(text):
    print(f"compare_peft.py: {text}", file=sys.stderr, flush=True)


def run(command, on_line=lambda line: None):
    """-> (lines of stdout and stderr, peak resident bytes); on_line is called with each as it comes"""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as p:
        for line in p.stdout:
            lines.append(line.rstrip("\n"))
            on_line(lines[-1])
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"compare_peft.py: failed: {' '.join(map(str, command))[:300]}\n" + "\n".join(lines)[-3000:])
    return lines, usage.ru_maxrss * 1024


def run_torch(a, rows_file, script, dtype, checkpointing):
    command = [sys.executable, script, a.model, rows_file, str(a.threads), str(a.rank), str(a.steps), str(a.rows), dtype, checkpointing]
    def show(line):
        if line.startswith('{"step"'):
            step = json.loads(line)
            say(f"  step {step['step'] + 1} of {a.steps}: {step['s']:.1f} s, loss {step['loss']:.3f}")
    lines, peak = run(command, show)
    steps = [json.loads(line) for line in lines if line.startswith('{"step"')]
    per_step = a.rows * a.tokens
    return [per_step / s["s"] for s in steps[1:]], peak, [s["loss"] for s in steps]


def run_tandem(a, rows_file, quantize, activations="auto"):
    with tempfile.TemporaryDirectory() as d:
        command = [a.tandem, "train", "--model", a.model, "--data", rows_file, "--out", os.path.join(d, "adapter"), "--method", "lora",
                   "--threads", str(a.threads), "--lora-r", str(a.rank), "--lora-alpha", str(2 * a.rank), "--learning-rate", "1e-4",
                   "--schedule", "constant", "--warmup-ratio", "0", "--batch-tokens", str(a.rows * a.tokens), "--max-length", str(a.tokens),
                   "--max-steps", str(a.steps), "--epochs", "1", "--keep-duplicates", "--activations", activations]
        if quantize:
            command += ["--quantize", quantize]
        lines, peak = run(command, lambda line: STEP.match(line) and say(f"  {line}"))
    steps = [m for m in map(STEP.match, lines) if m]
    if len(steps) < 2:
        sys.exit("compare_peft.py: tandem printed no steps:\n" + "\n".join(lines[-20:]))
    return [float(m["rate"]) for m in steps[1:]], peak, [float(m["loss"]) for m in steps]


def ceilings(a):
    """(multiply-adds/s of this machine, now, in f32 and in bf16, 0 where it has no units for that; multiply-adds of a trained token)

    Products of bf16 numbers can be computed in f32, too, so that the faster of the two is their ceiling."""
    lines, _ = run([a.tandem, "bench", "--model", a.model, "--threads", str(a.threads), "--prompt-tokens", "16", "--generate-tokens", "1",
                    "--batch", "1", "--repeat", "1", "--json"])
    report = json.loads(next(line for line in lines if line.startswith("{")))
    config = json.load(open(os.path.join(a.model, "config.json")))
    weights = report["model"]["parameters"]
    if not config.get("tie_word_embeddings"):
        weights -= config["vocab_size"] * config["hidden_size"]  # rows that are only looked up
    had = report["ceilings"]
    f32, bf16 = had["f32_macs_per_s"], had.get("bf16_macs_per_s") or 0
    return {"f32": f32, "bf16": max(f32, bf16) if bf16 else 0}, 2 * weights


def variants(a, rows_file, script, kind):
    """What is compared, by name; kind: bf16 or f32, which products are computed in."""
    dtype = {"bf16": "bfloat16", "f32": "float32"}[kind]
    torch = {
        f"PyTorch + PEFT, {kind}": lambda: run_torch(a, rows_file, script, dtype, "off"),
        f"PyTorch + PEFT, {kind}, gradient checkpointing": lambda: run_torch(a, rows_file, script, dtype, "on"),
        "PyTorch + PEFT, f32": lambda: run_torch(a, rows_file, script, "float32", "off"),
    }
    return torch | {
        f"tandem, {kind}": lambda: run_tandem(a, rows_file, None),
        "tandem, f32": lambda: run_tandem(a, rows_file, None, "f32"),
        "tandem, int8": lambda: run_tandem(a, rows_file, "int8"),
        "tandem, int4": lambda: run_tandem(a, rows_file, "int4"),
    }


def token_ids(model):
    """-> how many ids rows may have: a random model's tokenizer can have fewer than its configuration."""
    size, tokens = json.load(open(os.path.join(model, "config.json")))["vocab_size"], os.path.join(model, "tokenizer.json")
    if not os.path.exists(tokens):
        return size
    tokenizer = json.load(open(tokens))
    ids = [*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer.get("added_tokens", []))]
    return min(size, max(ids) + 1)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--tandem", default="build/server/tandem")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--rows", type=int, default=1)
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--only", help="a part of the names of what to run")
    a = p.parse_args()
    vocab = token_ids(a.model)
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as d:
        rows_file, script = os.path.join(d, "rows.jsonl"), os.path.join(d, "torch_side.py")
        with open(rows_file, "w") as f:
            for _ in range(a.rows * a.steps):
                f.write(json.dumps({"input_ids": [rng.randrange(vocab) for _ in range(a.tokens)]}) + "\n")
        open(script, "w").write(TORCH)
        say("measuring what the machine can do")
        before, macs = ceilings(a)
        kind = "bf16" if before["bf16"] else "f32"
        if kind == "f32":
            say("this machine has no bf16 units: PyTorch and tandem compute in f32")
        everything = variants(a, rows_file, script, kind)
        got = {name: [] for name in everything if not a.only or a.only in name}
        for r in range(a.rounds):
            for i, name in enumerate(got):
                start = time.time()
                say(f"{name}: {i + 1} of {len(got)}, round {r + 1} of {a.rounds}, {a.steps} steps")
                got[name].append(everything[name]())
                say(f"{name}: {time.time() - start:.0f} s")
    say("measuring what the machine can do, again")
    after, _ = ceilings(a)
    before, after = before[kind], after[kind]
    print(f"{kind} ceiling: {before / 1e9:.0f} before, {after / 1e9:.0f} after, in G multiply-adds/s; a token takes {macs / 1e9:.3f} G")
    print(f"{'':48}{'tokens/s':>10}{'best':>8}{'of ' + kind:>9}{'peak MiB':>10}   first and last loss")
    for name, rounds in got.items():
        rates = [r for rates, _, _ in rounds for r in rates]
        losses = rounds[0][2]
        print(f"{name:48}{statistics.median(rates):10.1f}{max(rates):8.1f}{statistics.median(rates) * macs / max(before, after):9.2f}{max(peak for _, peak, _ in rounds) / 2**20:10.0f}"
              f"   {losses[0]:.3f} {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
