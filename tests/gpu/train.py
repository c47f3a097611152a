#!/usr/bin/env python3
"""LoRA training by tandem and by PyTorch with SDPA on one GPU: the same shapes, rank, rows and steps, random weights.

    train.py --tandem PROGRAM --device NAME [--tiny] [--rows N] [--tokens N] [--steps N]

A step trains `rows` rows of `tokens` tokens, adapters of rank 8 on every linear layer of the layers, weights in bf16. PyTorch's side
is written out here, so that it needs no PEFT: transformers' model with attn_implementation "sdpa", AdamW, gradients clipped;
also compiled (torch.compile). Prints a Markdown table of the median tokens/s of the steps after the second.
"""
import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config

STEP = re.compile(r"step \d+ of \d+ .*?loss (?P<loss>[\d.]+) .*?(?P<rate>[\d.]+) tokens/s")
RANK = 8
ROOT = Path(__file__).parents[2]


def configs(tiny):
    if tiny:
        return {"tiny": Qwen2Config(vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                    num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True)}
    return {"qwen2.5-0.5b": Qwen2Config(vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                                        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=True, rope_theta=1e6),
            "distilgpt2": GPT2Config(n_layer=6, n_positions=1024, vocab_size=50257)}


class Lora(torch.nn.Module):
    def __init__(self, inner, n_in, n_out):
        super().__init__()
        self.inner = inner
        kind = {"dtype": next(inner.parameters()).dtype, "device": next(inner.parameters()).device}
        self.a = torch.nn.Parameter(torch.randn(RANK, n_in, **kind) * 0.01)
        self.b = torch.nn.Parameter(torch.zeros(n_out, RANK, **kind))

    def forward(self, x):
        return self.inner(x) + 2 * (x @ self.a.T) @ self.b.T


def adapt(module, found=0):
    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            setattr(module, name, Lora(child, child.in_features, child.out_features))
            found += 1
        elif type(child).__name__ == "Conv1D":
            setattr(module, name, Lora(child, child.weight.shape[0], child.weight.shape[1]))
            found += 1
        else:
            found = adapt(child, found)
    return found


def by_torch(folder, rows, device, compiled):
    """-> tokens/s of each step"""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").to(device)
    model.requires_grad_(False)
    assert adapt(model) > 0
    model.config.use_cache = False
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-4)
    run, rates = torch.compile(model) if compiled else model, []
    for ids in rows:
        start = time.perf_counter()
        ids = ids.to(device)
        run(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        rates.append(ids.numel() / (time.perf_counter() - start))
    return rates


def by_tandem(args, folder, data, out):
    command = [args.tandem, "train", "--device", args.device, "--model", folder, "--data", data, "--out", out, "--method", "lora",
               "--lora-r", str(RANK), "--lora-alpha", str(2 * RANK), "--learning-rate", "1e-4", "--schedule", "constant", "--warmup-ratio", "0",
               "--batch-tokens", str(args.rows * args.tokens), "--max-length", str(args.tokens), "--max-steps", str(args.steps), "--epochs", "1",
               "--keep-duplicates"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    rates = [float(m["rate"]) for m in map(STEP.match, (done.stdout + done.stderr).splitlines()) if m]
    if done.returncode or not rates:
        raise RuntimeError(f"tandem train: status {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return rates


def measure(args, name, config, folder):
    torch.manual_seed(1)
    rng = random.Random(1)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder / "model")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (ROOT / "models/demo" / file).exists():
            shutil.copy(ROOT / "models/demo" / file, folder / "model")
    rows = [[rng.randrange(config.vocab_size) for _ in range(args.tokens)] for _ in range(args.rows * args.steps)]
    (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows))
    batches = torch.tensor(rows).view(args.steps, args.rows, args.tokens)
    on = "cuda" if args.device.startswith("cuda") else "cpu"
    sides = {"PyTorch, SDPA": lambda: by_torch(folder / "model", batches, on, False),
             "PyTorch, SDPA, compiled": lambda: by_torch(folder / "model", batches, on, True),
             f"tandem, {args.device}": lambda: by_tandem(args, folder / "model", folder / "rows.jsonl", folder / "adapter")}
    wrong = 0
    for side, run in sides.items():
        if args.tiny and "compiled" in side:
            continue
        try:
            rates = run()
        except Exception as e:  # the other sides are still worth having
            print(f"{name}, {side}: {e}", file=sys.stderr)
            print(f"| {name} | {side} | failed | |")
            wrong += "tandem" in side
            continue
        settled = rates[2:] or rates
        median = statistics.median(settled)
        print(f"| {name} | {side} | {median:.0f} | {median / args.tokens:.1f} |", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tandem", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    args.rows = args.rows or (2 if args.tiny else 16)
    args.tokens = args.tokens or (16 if args.tiny else 512)
    args.steps = args.steps or (4 if args.tiny else 12)
    wrong = 0
    print(f"\nLoRA of rank {RANK}, bf16, steps of {args.rows} rows of {args.tokens} tokens:\n\n| model | | tokens/s | rows/s |\n| --- | --- | --- | --- |")
    for name, config in configs(args.tiny).items():
        with tempfile.TemporaryDirectory() as folder:
            wrong += measure(args, name, config, Path(folder))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
