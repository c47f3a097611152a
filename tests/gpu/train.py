#!/usr/bin/env python3
"""LoRA and QLoRA training by tandem and by PyTorch with PEFT on one GPU: the same shapes, rank, rows and steps, random weights.

    train.py --tandem PROGRAM --device NAME [--tiny] [--seconds N] [--rows N] [--tokens N] [--steps N] [--only MODEL,...]

A step trains `rows` rows of `tokens` tokens, adapters of rank 8 on every linear layer of the layers, AdamW, gradients clipped. The
rows are drawn from 64 tokens of the vocabulary, which there is something to learn of. The rows worth most come first.

    model          the shape; "8 of 32 layers": the others are left out
    side           PEFT: transformers' model with SDPA, weights and adapters in bf16, no autocast, which is its fastest way;
                   "own LoRA": python3 has no PEFT, the adapters are those of this file. compiled: by torch.compile, the whole model, or,
                   when there is little time, layer by layer. QLoRA: frozen weights in nf4 (bitsandbytes) or as tandem's --quantize says
    tokens/s       median of the steps after the second
    rows/s         the same, divided by the tokens of a row
    GPU memory GB  of nvidia-smi's memory.used, the largest while the side's process ran minus that before it: of the context, too, and
                   of what PyTorch's allocator keeps; sampled twice a second; empty without nvidia-smi
    loss           first step, mean of the last four: from ln(vocabulary) or somewhat above towards ln(64); all sides of a model must
                   agree roughly; their adapters begin differently and their rows are shuffled differently

The last table divides what tandem reached by what PyTorch did: wanted are 1.2 times the tokens/s at least, and 0.7 of the memory at most.
What no longer fits into --seconds is left out, with a row that says so; a side that the end of the time cuts off shows the steps until
then. Status 1 when tandem failed, or its loss was no number.
"""
import argparse
import importlib.machinery
import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STEP = re.compile(r"step (?P<step>\d+) of \d+ .*?loss (?P<loss>\S+) .*?(?P<rate>[\d.]+) tokens/s")
RANK, RATE, WORDS = 8, 1e-3, 64
ROOT = Path(__file__).resolve().parents[2]
QWEN, LLAMA, GPT2 = "qwen2.5-0.5b", "llama-3.1-8b", "distilgpt2"
NAMES = {QWEN: QWEN, LLAMA: "llama-3.1-8b, 8 of 32 layers", GPT2: GPT2}
SIDES = {"tandem": "tandem LoRA, bf16", "torch": "PEFT LoRA, bf16", "compiled": "PEFT LoRA, bf16, compiled", "nf4": "tandem QLoRA, nf4",
         "int8": "tandem QLoRA, int8", "qlora": "PEFT QLoRA, nf4"}
TANDEM = {"tandem": [], "nf4": ["--quantize", "nf4"], "int8": ["--quantize", "int8"]}
PLAN = [(QWEN, side) for side in ("tandem", "torch", "compiled", "nf4", "int8", "qlora")]
PLAN += [(LLAMA, side) for side in ("tandem", "torch", "nf4", "int8", "qlora", "compiled")]
PLAN += [(GPT2, side) for side in ("tandem", "torch", "compiled", "nf4", "int8", "qlora")]
GUESS = {"tandem": 12, "nf4": 12, "int8": 12, "torch": 25, "qlora": 40, "compiled": 100}  # seconds of a process, until one has run
LAYERWISE = 45  # of compiling one layer for all


def load_ladder():
    loader = importlib.machinery.SourceFileLoader("ladder", str(ROOT / "scripts/ladder"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("ladder", loader))
    sys.dont_write_bytecode = True  # no scripts/ladderc
    loader.exec_module(module)
    return module


ladder = load_ladder()


class Failed(Exception):
    pass


def say(text):
    print(f"train.py: {text}", file=sys.stderr, flush=True)


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


# ---- what is trained: no PyTorch here, so that tandem is measured without it ---------------------------------------------

def make_model(name, folder, tiny):
    if name == GPT2:
        folder.mkdir()
        ladder.make_model(folder, ladder.SMALL if tiny else ladder.CONFIG)
        return
    layers = ["--layers", "8"] if name == LLAMA and not tiny else []
    subprocess.run([sys.executable, ROOT / "loadtest/random_model.py", name, folder, *layers, *["--small"] * tiny], check=True, stdout=sys.stderr)


def make_rows(a, folder):
    vocab = json.loads((folder / "model/config.json").read_text())["vocab_size"]
    rng = random.Random(1)
    words = rng.sample(range(vocab), WORDS)
    with open(folder / "rows.jsonl", "w") as f:
        for _ in range(a.rows * a.steps):
            f.write(json.dumps({"input_ids": rng.choices(words, k=a.tokens)}) + "\n")


# ---- PyTorch's sides, each in a process of its own: its end frees the GPU ------------------------------------------------

def own_lora(torch, model):
    class Lora(torch.nn.Module):
        def __init__(self, inner, n_in, n_out):
            super().__init__()
            self.inner = inner
            kind = {"dtype": inner.weight.dtype, "device": inner.weight.device}
            self.a = torch.nn.Parameter((2 * torch.rand(RANK, n_in, **kind) - 1) / n_in ** 0.5)  # as PEFT begins
            self.b = torch.nn.Parameter(torch.zeros(n_out, RANK, **kind))

        def forward(self, x):
            return self.inner(x) + 2 * (x @ self.a.T) @ self.b.T

    def adapt(module):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear) and name != "lm_head":
                setattr(module, name, Lora(child, child.in_features, child.out_features))
            elif type(child).__name__ == "Conv1D":
                setattr(module, name, Lora(child, *child.weight.shape))
            else:
                adapt(child)

    model.requires_grad_(False)
    adapt(model)
    return model


def peft_lora(torch, model, quantised):
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    if quantised:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    gpt2 = model.config.model_type == "gpt2"
    names = {name.rsplit(".", 1)[-1] for name, child in model.named_modules() if isinstance(child, torch.nn.Linear) or type(child).__name__ == "Conv1D"}
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", target_modules=sorted(names - {"lm_head"}),
                        fan_in_fan_out=gpt2)
    return get_peft_model(model, config, autocast_adapter_dtype=quantised)


def torch_main(a):
    """Prints a line of JSON for every step; what libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    from transformers import AutoModelForCausalLM
    on = a.device if a.device.startswith("cuda") else "cpu"
    torch.manual_seed(1)
    how = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
    if a.side == "qlora":
        from transformers import BitsAndBytesConfig
        how["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
        how["device_map"] = {"": on}
    model = AutoModelForCausalLM.from_pretrained(a.folder / "model", **how)
    model = model if a.side == "qlora" else model.to(on)
    with_peft = importlib.util.find_spec("peft") is not None
    model = peft_lora(torch, model, a.side == "qlora") if with_peft else own_lora(torch, model)
    model.config.use_cache = False
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    print(json.dumps({"peft": with_peft, "trained": sum(p.numel() for p in params)}), file=out, flush=True)
    optimizer = torch.optim.AdamW(params, lr=RATE, weight_decay=0.0)
    backend = {"backend": "aot_eager"} if a.tiny else {}  # to try it: C++ would be compiled for minutes
    if a.side == "compiled" and a.layerwise:
        for part in model.modules():
            if type(part).__name__ in ("Qwen2DecoderLayer", "LlamaDecoderLayer", "GPT2Block"):
                part.compile(dynamic=False, **backend)
    elif a.side == "compiled":
        model = torch.compile(model, dynamic=False, **backend)
    rows = [json.loads(line)["input_ids"] for line in open(a.folder / "rows.jsonl")]
    for ids in torch.tensor(rows).view(a.steps, a.rows, a.tokens):
        start = time.perf_counter()
        ids = ids.to(on)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()  # waits for the forward pass only
        if on != "cpu":
            torch.cuda.synchronize()
        print(json.dumps({"rate": ids.numel() / (time.perf_counter() - start), "loss": loss}), file=out, flush=True)
    if on != "cpu":
        print(f"train.py: {a.side}: torch.cuda.max_memory_allocated {torch.cuda.max_memory_allocated() / 1e9:.2f} GB", file=sys.stderr)


# ---- measuring ---------------------------------------------------------------------------------------------------------

def watch(command, seconds, log, read):
    """-> what read makes of its lines, {} of the last one first; also when the time ended first, once three steps are done."""
    found = []
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT if log is None else open(log, "w"), text=True,
                             errors="replace")
    cut = threading.Event()
    clock = threading.Timer(max(1, seconds), lambda: (cut.set(), child.kill()))
    clock.start()
    said = []
    try:
        for line in child.stdout:
            said = [*said[-20:], line]
            found += [got] if (got := read(line)) else []
    finally:
        clock.cancel()
        if child.poll() is None and sys.exc_info()[0]:
            child.kill()
        status = child.wait()
    if cut.is_set() and sum("rate" in f for f in found) > 2:
        say("the time ended first: its steps until then are shown")
    elif status:
        why = "the time ended first" if cut.is_set() else f"status {status}"
        raise Failed(f"{why}: {(Path(log).read_text() if log else ''.join(said))[-1500:]}")
    return found


def by_tandem(a, side, folder, seconds):
    out = folder / f"out-{side}"
    method = ["--method", "qlora" if TANDEM[side] else "lora", *TANDEM[side]]
    command = [a.tandem, "train", "--device", a.device, "--model", folder / "model", "--data", folder / "rows.jsonl", "--out", out, *method,
               "--lora-r", RANK, "--lora-alpha", 2 * RANK, "--learning-rate", RATE, "--schedule", "constant", "--warmup-ratio", 0,
               "--batch-tokens", a.rows * a.tokens, "--max-length", a.tokens, "--max-steps", a.steps, "--epochs", 1, "--keep-duplicates"]

    def read(line):
        found = STEP.match(line)
        return {"rate": float(found["rate"]), "loss": float(found["loss"])} if found else None
    return watch(command, seconds, None, read)


def by_torch(a, side, folder, seconds, layerwise):
    command = [sys.executable, __file__, "--side", side, "--folder", folder, "--tandem", a.tandem, "--device", a.device, "--rows", a.rows,
               "--tokens", a.tokens, "--steps", a.steps, *["--tiny"] * a.tiny, *["--layerwise"] * layerwise]
    log = folder / f"{side}.log"
    found = watch(command, seconds, log, lambda line: json.loads(line) if line.startswith("{") else None)
    for line in log.read_text().splitlines():
        if line.startswith("train.py:"):
            print(line, file=sys.stderr)
    return found


def missing(side):
    """Why a side cannot run here."""
    if side in TANDEM:
        return None
    names = ["torch", "transformers"] + (["peft", "bitsandbytes"] if side == "qlora" else [])
    return next((f"no {name}" for name in names if importlib.util.find_spec(name) is None), None)


def measure(a, name, side, folder, plan):
    """Its row. -> its figures; None: left out, or failed"""
    left, layerwise, label = a.end - time.monotonic(), False, SIDES[side]
    if side not in TANDEM and importlib.util.find_spec("peft") is None:
        label = label.replace("PEFT", "PyTorch, own")
    why = missing(side)
    if not why and side == "compiled" and left < plan[side]:
        layerwise = True
    if not why and left < (LAYERWISE if layerwise else plan[side]):
        why = "no time"
    if why:
        row(NAMES[name], label, f"left out: {why}", "", "", "")
        return None
    label += ", layer by layer" if layerwise else ""
    begin = time.monotonic()
    try:
        with ladder.GpuMemory(a.device) as memory:  # one that hangs must not cost all the rest of the time
            limit = left - 2 if side in TANDEM else min(left - 2, max(60, 3 * plan[side]))
            found = by_tandem(a, side, folder, limit) if side in TANDEM else by_torch(a, side, folder, limit, layerwise)
        steps = [f for f in found if "rate" in f]
        if not steps or (side in TANDEM and not all(math.isfinite(f["loss"]) for f in steps)):
            raise Failed(f"{len(steps)} steps, losses {[f['loss'] for f in steps]}")
    except Failed as e:
        say(f"{NAMES[name]}, {label}: {e}")
        ended = str(e).startswith("the time ended")
        row(NAMES[name], label, "left out: cut off by the time" if ended else "failed", "", "", "")
        a.wrong |= side in TANDEM and not ended
        return None
    took = time.monotonic() - begin
    say(f"{NAMES[name]}, {label}: {len(steps)} steps, {took:.1f} s with all else")
    plan[side] = GUESS[side] if layerwise else max(took, 1)
    if name == QWEN and not a.tiny:
        plan[side] *= 1.5  # what follows is larger
    median, grown = statistics.median([f["rate"] for f in steps[2:] or steps]), memory.grown()
    last = statistics.mean(f["loss"] for f in steps[-4:])
    row(NAMES[name], label, f"{median:.0f}", f"{median / a.tokens:.1f}", "" if grown is None else f"{grown:.2f}", f"{steps[0]['loss']:.3f}, {last:.3f}")
    return {"rate": median, "gb": grown}


def ratios(figures):
    print("\ntandem's figures divided by PyTorch's (wanted: tokens/s 1.2 at least, memory 0.7 at most):\n")
    row("model", "tandem", "beside", "tokens/s", "GPU memory")
    row(*["---"] * 5)
    for name in (QWEN, LLAMA, GPT2):
        for ours, theirs in (("tandem", "torch"), ("tandem", "compiled"), ("nf4", "qlora"), ("nf4", "torch"), ("int8", "torch")):
            x, y = figures.get((name, ours)), figures.get((name, theirs))
            if not x or not y:
                continue
            gb = f"{x['gb'] / y['gb']:.2f}" if x["gb"] is not None and y["gb"] else ""
            row(NAMES[name], SIDES[ours], SIDES[theirs], f"{x['rate'] / y['rate']:.2f}", gb)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tandem", required=True)
    p.add_argument("--device", required=True)
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--seconds", type=float, default=300)
    p.add_argument("--rows", type=int)
    p.add_argument("--tokens", type=int)
    p.add_argument("--steps", type=int)
    p.add_argument("--only", help=f"of {','.join(NAMES)}")
    for hidden in ("--side", "--folder"):
        p.add_argument(hidden, help=argparse.SUPPRESS, type=Path if hidden == "--folder" else str)
    p.add_argument("--layerwise", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    a.rows = a.rows or (2 if a.tiny else 16)
    a.tokens = a.tokens or (16 if a.tiny else 512)
    a.steps = a.steps or (5 if a.tiny else 24)
    a.end, a.wrong = time.monotonic() + a.seconds, False
    if a.side:
        return torch_main(a)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an exception, so that children end too
    plan = {side: 2 if a.tiny else seconds for side, seconds in GUESS.items()}
    figures, made, skipped = {}, {}, None
    print(f"\nAdapters of rank {RANK}, steps of {a.rows} rows of {a.tokens} tokens{', small models' if a.tiny else ''}:\n")
    row("model", "side", "tokens/s", "rows/s", "GPU memory GB", "loss")
    row(*["---"] * 6)
    with tempfile.TemporaryDirectory(prefix="tandem-train-") as work:
        for name, side in PLAN:
            if a.only and name not in a.only.split(","):
                continue
            if name not in made:
                for other in made.values():  # gigabytes
                    shutil.rmtree(other)
                made, why, begin = {name: Path(work) / name}, None, time.monotonic()
                made[name].mkdir()
                if a.end - begin < plan["tandem"]:
                    why = "no time"
                else:
                    try:
                        make_model(name, made[name] / "model", a.tiny)
                        make_rows(a, made[name])
                        say(f"{NAMES[name]}: the model was written in {time.monotonic() - begin:.1f} s")
                    except (OSError, subprocess.CalledProcessError) as e:  # without numpy, say
                        say(e)
                        why = "its model could not be written"
                if why:
                    row(NAMES[name], "all", f"left out: {why}", "", "", "")
                    skipped = name
            if name == skipped:
                continue
            if got := measure(a, name, side, made[name], plan):
                figures[name, side] = got
    ratios(figures)
    return 1 if a.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
