#!/usr/bin/env python3
"""Training on preferences side by side with TRL, in one run: the same model, pairs, rank and threads.

    compare_trl.py --model MODEL_DIR --tandem build/server/tandem --threads 2 --tokens 256 --rows 1 --steps 4

A step is `rows` pairs of two texts of `tokens` random tokens each, of which the first half is their prompt.  Methods are dpo
(TRL's DPOTrainer) and reward (RewardTrainer).  Every measurement is a process of its own, tandem and TRL in turn.  Printed are
the tokens/s from the first step to the last, of both texts of all pairs, with all that a step takes: of dpo also the
log-probabilities of the reference, which TRL computes in each step and tandem before the first one; and the peak resident
memory.  Products are bf16's on both sides, with --f32 f32's.  What runs goes to stderr.
Needs: pip install torch transformers peft trl datasets
"""
import argparse
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time

from compare_peft import run, token_ids

PLANNED, STEP = re.compile(r".*parameters are trained"), re.compile(r"step (?P<step>\d+) of (?P<all>\d+) .*?loss (?P<loss>[\d.]+)")

TRL = r"""
import json, resource, sys, tempfile, time
import datasets, peft, torch, transformers, trl
method, model_dir, rows_file, threads, rank, steps, rows, dtype, checkpointing = sys.argv[1:10]
torch.set_num_threads(int(threads))
torch.manual_seed(1)
data = [json.loads(line) for line in open(rows_file)]
tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
reward = method == "reward"
kind = transformers.AutoModelForSequenceClassification if reward else transformers.AutoModelForCausalLM
model = kind.from_pretrained(model_dir, dtype=getattr(torch, dtype), **({"num_labels": 1} if reward else {}))
lora = peft.LoraConfig(r=int(rank), lora_alpha=2 * int(rank), target_modules="all-linear", task_type="SEQ_CLS" if reward else "CAUSAL_LM")
config = trl.RewardConfig if reward else trl.DPOConfig
args = config(output_dir=tempfile.mkdtemp(), use_cpu=True, report_to=[], bf16=False, gradient_checkpointing=checkpointing == "on",
              gradient_checkpointing_kwargs={"use_reentrant": False}, remove_unused_columns=False)
few = datasets.Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2)
trainer = (trl.RewardTrainer if reward else trl.DPOTrainer)(model=model, args=args, train_dataset=few, processing_class=tokenizer, peft_config=lora)
model = trainer.model.train()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5)
n, start = int(rows), time.perf_counter()
for step in range(int(steps)):
    pairs = data[step * n:(step + 1) * n]
    if reward:
        pairs = [{side: p["prompt_ids"] + p[side] for side in ("chosen_ids", "rejected_ids")} for p in pairs]
    loss = trainer.compute_loss(model, trainer.data_collator(pairs))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(json.dumps({"step": step, "s": time.perf_counter() - start, "loss": float(loss.detach())}), flush=True)
"""


def say(text):
    print(f"compare_trl.py: {text}", file=sys.stderr, flush=True)


def run_trl(a, method, rows_file, script, dtype, checkpointing):
    """-> (seconds of all steps, peak bytes, losses)"""
    lines, peak = run([sys.executable, script, method, a.model, rows_file, str(a.threads), str(a.rank), str(a.steps), str(a.rows), dtype, checkpointing],
                      lambda line: line.startswith('{"step"') and say(f"  {line}"))
    steps = [json.loads(line) for line in lines if line.startswith('{"step"')]
    return steps[-1]["s"], peak, [s["loss"] for s in steps]


def run_tandem(a, method, rows_file, quantize):
    began, ended, losses = [], [], []

    def on_line(line):
        if PLANNED.match(line):
            began.append(time.perf_counter())
        if m := STEP.match(line):
            ended.append(time.perf_counter())
            losses.append(float(m["loss"]))
            say(f"  {line}")
    with tempfile.TemporaryDirectory() as d:
        command = [a.tandem, "train", "--model", a.model, "--data", rows_file, "--out", os.path.join(d, "adapter"), "--method", method,
                   "--threads", str(a.threads), "--lora-r", str(a.rank), "--lora-alpha", str(2 * a.rank), "--learning-rate", "1e-5",
                   "--schedule", "constant", "--warmup-ratio", "0", "--batch-tokens", str(2 * a.rows * a.tokens), "--max-length", str(a.tokens),
                   "--max-steps", str(a.steps), "--epochs", "1", "--keep-duplicates"]
        if quantize:
            command += ["--quantize", quantize]
        if a.f32:
            command += ["--f32"]
        lines, peak = run(command, on_line)
    if not began or not ended:
        sys.exit("compare_trl.py: tandem printed no steps:\n" + "\n".join(lines[-20:]))
    return ended[-1] - began[0], peak, losses


def variants(a, method, rows_file, script):
    dtype = "float32" if a.f32 else "bfloat16"
    kind = "f32" if a.f32 else "bf16"
    out = {f"{method}: TRL, {kind}": lambda: run_trl(a, method, rows_file, script, dtype, "off"),
           f"{method}: TRL, {kind}, gradient checkpointing": lambda: run_trl(a, method, rows_file, script, dtype, "on"),
           f"{method}: tandem, {kind}": lambda: run_tandem(a, method, rows_file, None)}
    if not a.f32:
        out[f"{method}: tandem, int8"] = lambda: run_tandem(a, method, rows_file, "int8")
    return out


def make_rows(a, path):
    rng, vocab, half = random.Random(1), token_ids(a.model), a.tokens // 2
    ids = lambda n: [rng.randrange(3, vocab) for _ in range(n)]
    with open(path, "w") as f:
        for _ in range(a.rows * a.steps):
            f.write(json.dumps({"prompt_ids": ids(half), "chosen_ids": ids(a.tokens - half), "rejected_ids": ids(a.tokens - half)}) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", required=True)
    p.add_argument("--tandem", default="build/server/tandem")
    p.add_argument("--methods", nargs="+", default=["dpo", "reward"], choices=["dpo", "reward"])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--rows", type=int, default=1)
    p.add_argument("--rank", type=int, default=8)
    p.add_argument("--steps", type=int, default=4)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--f32", action="store_true")
    p.add_argument("--only", help="a part of the names of what to run")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as d:
        rows_file, script = os.path.join(d, "rows.jsonl"), os.path.join(d, "trl_side.py")
        make_rows(a, rows_file)
        open(script, "w").write(TRL)
        everything = {name: f for method in a.methods for name, f in variants(a, method, rows_file, script).items()}
        got = {name: [] for name in everything if not a.only or a.only in name}
        for r in range(a.rounds):
            for i, name in enumerate(got):
                say(f"{name}: {i + 1} of {len(got)}, round {r + 1} of {a.rounds}, {a.steps} steps")
                got[name].append(everything[name]())
    tokens = 2 * a.rows * a.tokens * a.steps
    print(f"{'':48}{'tokens/s':>10}{'best':>8}{'peak MiB':>10}   first and last loss")
    for name, rounds in got.items():
        rates, losses = [tokens / seconds for seconds, _, _ in rounds], rounds[0][2]
        print(f"{name:48}{statistics.median(rates):10.1f}{max(rates):8.1f}{max(peak for _, peak, _ in rounds) / 2**20:10.0f}   {losses[0]:.4f} {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
