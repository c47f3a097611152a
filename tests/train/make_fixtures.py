#!/usr/bin/env python3
"""Makes the training fixtures: ten optimizer steps of torch (and PEFT) on the golden models, for the trainer to repeat.

    python tests/train/make_fixtures.py --models tests/fixtures/models --out tests/fixtures/train

Needs torch, transformers, peft, safetensors (not a test dependency: the fixtures are committed).

NAME.safetensors has
    ids, trained, start    I32 [n], U8 [n], I32 [rows + 1]   the rows, end to end, and which of their tokens are targets
    full.loss, lora.loss   F32 [10]    mean over the targets, before each step
    full.norm, lora.norm   F32 [10]    of the gradient, before clipping
    full.NAME              F32 [m]     at most SAMPLES values of each tensor of the model afterwards, evenly spaced
    muon...                            like full, with Muon for the matrices of the layers; muon.NAME is of the weights' moving average
    lora.NAME              F32         each tensor of the adapter afterwards, as PEFT names it
(without full and muon for gpt-oss) and NAME-adapter/ is the adapter that the LoRA steps begin with, as PEFT saves it.

Each step sees all rows, so their order does not matter. float32, CPU, eager attention, no dropout.
"""
import argparse
import importlib
import inspect
import math
import re
import shutil
import tempfile
from pathlib import Path

import peft
import safetensors.torch
import torch
import transformers

MODELS = ["llama-gqa", "mistral", "qwen2", "qwen3", "gpt2", "phi", "gemma2", "gemma3", "phi4-mini", "smollm3", "granite",
          "olmo2", "gpt-neox", "stablelm", "ministral", "olmo3"]
STEPS, WARMUP, SAMPLES = 10, 3, 64
RATE = {"full": 2e-3, "lora": 1e-2, "muon": 2e-3}
DECAY = {"full": 0.05, "lora": 0.0, "muon": 0.05}
EMA = 0.5
# Some gradients are zero but for rounding (the bias of keys). With a small epsilon Adam would make whole steps of the noise.
EPSILON = 1e-5
TARGETS = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "gpt-neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "phi4-mini": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "phi": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"],
}
LATER = ["gpt-neox-sequential", "stablelm-parallel", "smollm3-sliding", "phi-qk-norm", "stablelm-qk-norm"]  # after EXPERTS in the order that gives seeds
TARGETS["gpt-neox-sequential"], TARGETS["phi-qk-norm"] = TARGETS["gpt-neox"], TARGETS["phi"]
EXPERTS = ["mixtral", "qwen2-moe", "qwen3-moe", "gpt-oss", "olmoe"]
ADAPTERS_ONLY = ["gpt-oss"]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS.update({"mixtral": ["q_proj"], "qwen2-moe": "all-linear", "qwen3-moe": ATTENTION, "gpt-oss": ATTENTION, "olmoe": []})
PARAMETERS = {
    "mixtral": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "gate.weight"],
    "qwen2-moe": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    "olmoe": ["mlp.experts.down_proj"],
}
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def rate(method, step):
    """Warm-up, then a cosine to zero: engine/train/optim.h."""
    if step < WARMUP:
        return RATE[method] * (step + 1) / WARMUP
    return RATE[method] * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def make_rows(vocab, seed):
    """Six rows that repeat with a period, the first third of each not trained."""
    g = torch.Generator().manual_seed(seed)
    rows = []
    for n in (5, 9, 17, 23, 30, 40):
        pattern = torch.randint(0, vocab, (4,), generator=g)
        ids = pattern.repeat(n // 4 + 1)[:n].tolist()
        rows.append((ids, [int(i > n // 3) for i in range(n)]))
    return rows


def step_loss(model, rows):
    total, count = 0.0, 0
    for ids, trained in rows:
        logits = model(torch.tensor([ids])).logits[0, :-1]
        target = torch.tensor(ids[1:])
        mask = torch.tensor(trained[1:], dtype=torch.bool)
        total = total + torch.nn.functional.cross_entropy(logits[mask], target[mask], reduction="sum")
        count += int(mask.sum())
    return total / count


def muon_in_float32():
    """torch's Newton-Schulz steps compute in bfloat16: now in float32."""
    module = importlib.import_module("torch.optim._muon")
    source = inspect.getsource(module._zeropower_via_newtonschulz)
    if source.count("torch.bfloat16") != 1:
        raise SystemExit("this torch computes Muon in another way")
    exec(source.replace("torch.bfloat16", "torch.float32"), module.__dict__)


def matrices(name, stacked):
    """The matrices of a stack of experts: gate and up apart."""
    return [m for expert in stacked for m in (expert.chunk(2) if "gate_up" in name else [expert])]


def optimizers(method, model):
    """-> the optimizers, and [(name, parameter, its matrices)] of the experts: what Muon updates shares their memory"""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    layers = [(n, p) for n, p in named if method == "muon" and p.dim() > 1 and not re.search("embed|wte|wpe|lm_head", n)]
    experts = [(n, p, [torch.nn.Parameter(m) for m in matrices(n, p.detach())]) for n, p in layers if p.dim() == 3]
    by_muon = [p for _, p in layers if p.dim() == 2] + [m for _, _, ms in experts for m in ms]
    rest = [p for _, p in named if not any(p is m for _, m in layers)]
    groups = [{"params": [p for p in rest if p.dim() > 1], "weight_decay": DECAY[method]},
              {"params": [p for p in rest if p.dim() == 1], "weight_decay": 0.0}]
    optims = [torch.optim.AdamW([g for g in groups if g["params"]], lr=1.0, betas=(0.9, 0.999), eps=EPSILON)]
    if by_muon:
        optims.append(torch.optim.Muon(by_muon, lr=1.0, weight_decay=DECAY[method], adjust_lr_fn="match_rms_adamw"))
    return optims, experts


def train(method, model, rows, average=None):
    """-> losses, norms; average: a copy of the state dict, which becomes that of the weights"""
    params = [p for p in model.parameters() if p.requires_grad]
    optims, experts = optimizers(method, model)
    losses, norms = [], []
    for step in range(STEPS):
        model.zero_grad()
        for group in (g for optim in optims for g in optim.param_groups):
            group["lr"] = rate(method, step)
        loss = step_loss(model, rows)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params, 1.0)))
        for name, stacked, of in experts:
            for m, grad in zip(of, matrices(name, stacked.grad)):
                m.grad = grad
        for optim in optims:
            optim.step()
        losses.append(float(loss.detach()))
        keep = float(torch.tensor(min(EMA, (2 + step) / (11 + step)), dtype=torch.float32))  # as the daemon's op has it
        for name, value in model.state_dict().items() if average is not None else ():
            average[name].lerp_(value, 1 - keep)
    return torch.tensor(losses), torch.tensor(norms)


def load(directory):
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def sample(t):
    flat = t.detach().float().contiguous().view(-1)
    n = min(SAMPLES, flat.numel())
    return flat[[i * flat.numel() // n for i in range(n)]].clone()


def run_full(method, directory, rows, out):
    model = load(directory)
    average = {k: v.clone() for k, v in model.state_dict().items()} if method == "muon" else None
    out[method + ".loss"], out[method + ".norm"] = train(method, model, rows, average)
    names = average or dict(model.state_dict())
    if directory.name in EXPERTS:
        names = as_saved(model, names)
    for name in safetensors_names(directory):
        found = [k for k in (name, "transformer." + name, name.replace("embed_out", "lm_head")) if k in names]
        for key in found[:1]:
            out[method + "." + name] = sample(names[key])


def as_saved(model, values):
    """The values under the names of transformers' files: experts one by one."""
    model.load_state_dict(values)
    with tempfile.TemporaryDirectory() as to:
        model.save_pretrained(to)
        return safetensors.torch.load_file(Path(to) / "model.safetensors")


def safetensors_names(directory):
    for path in sorted(Path(directory).glob("model*.safetensors")):
        with safetensors.safe_open(path, "pt") as f:
            yield from f.keys()


def run_lora(name, directory, rows, out, adapter):
    torch.manual_seed(7)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=TARGETS.get(name, LLAMA), lora_dropout=0.0, task_type="CAUSAL_LM",
                             target_parameters=PARAMETERS.get(name), fan_in_fan_out=name == "gpt2")
    model = peft.get_peft_model(load(directory), config).eval()
    shutil.rmtree(adapter, ignore_errors=True)
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)
    text = (adapter / "adapter_config.json").read_text().replace(str(directory), name)
    (adapter / "adapter_config.json").write_text(text)
    out["lora.loss"], out["lora.norm"] = train("lora", model, rows)
    for key, value in peft.get_peft_model_state_dict(model).items():
        out["lora." + key] = value.detach().float().contiguous()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", help="one fixture by name")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    muon_in_float32()
    for i, name in [*enumerate(MODELS), *enumerate(EXPERTS, 15), *enumerate(LATER, 20)]:
        if args.only not in (None, name):
            continue
        directory = args.models / name
        rows = make_rows(288, i)
        start = [0]
        for ids, _ in rows:
            start.append(start[-1] + len(ids))
        out = {"ids": torch.tensor(sum((r[0] for r in rows), []), dtype=torch.int32),
               "trained": torch.tensor(sum((r[1] for r in rows), []), dtype=torch.uint8),
               "start": torch.tensor(start, dtype=torch.int32)}
        if name not in ADAPTERS_ONLY:
            run_full("full", directory, rows, out)
            run_full("muon", directory, rows, out)
        run_lora(name, directory, rows, out, args.out / f"{name}-adapter")
        safetensors.torch.save_file(out, args.out / f"{name}.safetensors", metadata={"format": "pt"})
        print(name, *(f"{m} {[round(x, 4) for x in out[m + '.loss'].tolist()]}" for m in ("full", "muon", "lora") if m + ".loss" in out))


if __name__ == "__main__":
    main()
