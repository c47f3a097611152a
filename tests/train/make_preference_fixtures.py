#!/usr/bin/env python3
"""Makes the fixtures of preference training: gradients and ten steps of TRL's trainers on a golden model with an adapter.

    python tests/train/make_preference_fixtures.py --models tests/fixtures/models --out tests/fixtures/train

Needs torch, transformers, peft, trl (not a test dependency: the fixtures are committed).  Made with trl 1.16.0.

preference.safetensors has
    ids, trained, start      I32 [n], U8 [n], I32 [2 pairs + 1]   chosen, rejected, chosen..., end to end, and their answers
    METHOD.loss, .norm       F32 [10]    before each step; of the gradient, before clipping
    METHOD.rewards           F32 [10, 5] chosen, rejected, accuracies, margins, kl as TRL logs them; NaN: it logs none
    METHOD.grad.NAME         F32         the gradient of the first step
    METHOD.NAME              F32         each tensor of the adapter afterwards, as PEFT names it
of the methods dpo, orpo, simpo, kto;
and preference-adapter/ is the adapter that they begin with, which is also the reference.

Each step sees all pairs; of kto the answers of all pairs, with their labels, in the order in which the trainer has them
(engine/train/microbatches.c), since it says which prompt gets which answer. float32, CPU, eager attention, no dropout.
"""
import argparse
import math
import shutil
import tempfile
from pathlib import Path

import datasets
import peft
import safetensors.torch
import torch
import transformers
import trl
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from make_fixtures import EPSILON, LLAMA, STEPS, WARMUP, load

MODEL, VOCAB, PAIRS, RATE, SEED, MASK = "llama-gqa", 288, 6, 5e-3, 42, (1 << 64) - 1
NAMES = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "kl"]
SETTINGS = {
    "dpo": (trl.DPOTrainer, trl.DPOConfig, {"beta": 0.1}),
    "orpo": (ORPOTrainer, ORPOConfig, {"beta": 0.1}),
    "simpo": (CPOTrainer, CPOConfig, {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0, "label_smoothing": 0.1}),
    "kto": (trl.KTOTrainer, trl.KTOConfig, {"beta": 0.1, "desirable_weight": 1.0, "undesirable_weight": 0.5}),
}


def make_pairs():
    g = torch.Generator().manual_seed(11)
    pick = lambda low, high: torch.randint(3, VOCAB, (int(torch.randint(low, high, (1,), generator=g)),), generator=g).tolist()
    return [(pick(2, 9), pick(3, 16), pick(3, 16)) for _ in range(PAIRS)]


def mix(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def rng_at(seed, index):
    return mix(mix(seed) ^ mix((index + 0x632BE59BD9B4E019) & MASK))


def order(n, epoch):
    """Of the rows of an epoch: microbatches_epoch."""
    seed, rows = rng_at(SEED, 1 << 32 | epoch), list(range(n))
    for i in range(n, 1, -1):
        j = rng_at(seed, i) * i >> 64
        rows[i - 1], rows[j] = rows[j], rows[i - 1]
    return rows


def rate(step):
    if step < WARMUP:
        return RATE * (step + 1) / WARMUP
    return RATE * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def batch_of(method, trainer, pairs, step):
    if method == "dpo":
        examples = [{"prompt_ids": p, "chosen_ids": c, "rejected_ids": r} for p, c, r in pairs]
    elif method == "kto":
        rows = [(p, (c, r)[k], k == 0) for p, c, r in pairs for k in range(2)]
        rows = [rows[i] for i in order(len(rows), step)]
        # as KTOTrainer's add_kl_completion_ids
        examples = [{"prompt_ids": p, "completion_ids": c, "KL_completion_ids": rows[i - 1][1], "label": label}
                    for i, (p, c, label) in enumerate(rows)]
    else:
        examples = []
        for p, c, r in pairs:
            example = {"prompt_input_ids": p, "prompt_attention_mask": [1] * len(p)}
            for side, answer in (("chosen", c), ("rejected", r)):
                example[side + "_input_ids"] = p + answer
                example[side + "_attention_mask"] = [1] * len(p + answer)
                example[side + "_labels"] = [-100] * len(p) + answer
            examples.append(example)
    return trainer.data_collator(examples)


def loss_of(method, trainer, model, batch):
    """-> the loss, and what TRL logs"""
    if method in ("orpo", "simpo"):
        return trainer.get_batch_loss_metrics(model, batch)
    trainer._metrics["train"].clear()
    loss = trainer.compute_loss(model, batch)
    return loss, {k: v[-1] for k, v in trainer._metrics["train"].items()}


def run(method, directory, adapter, pairs, out):
    of, config, options = SETTINGS[method]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token_id = tokenizer.pad_token_id or 0
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(1)
    model = peft.PeftModel.from_pretrained(load(directory), adapter, is_trainable=True)
    row = {"prompt": "a", "completion": "b", "label": True} if method == "kto" else {"prompt": "a", "chosen": "b", "rejected": "c"}
    with tempfile.TemporaryDirectory() as to:
        args = config(output_dir=to, use_cpu=True, report_to=[], bf16=False, gradient_checkpointing=False,
                      remove_unused_columns=False, per_device_train_batch_size=2, **options)
        trainer = of(model=model, args=args, train_dataset=datasets.Dataset.from_list([row] * 2), processing_class=tokenizer)
    model = trainer.model.train()
    params = {n: p for n, p in model.named_parameters() if ".default." in n}
    optim = torch.optim.AdamW(params.values(), lr=1.0, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)
    losses, norms, rewards = [], [], []
    for step in range(STEPS):
        optim.zero_grad()
        optim.param_groups[0]["lr"] = rate(step)
        loss, logged = loss_of(method, trainer, model, batch_of(method, trainer, pairs, step))
        loss.backward()
        if step == 0:
            for n, p in params.items():
                out[f"{method}.grad.{n.replace('.default.', '.')}"] = p.grad.clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), 1.0)))
        optim.step()
        losses.append(float(loss.detach()))
        rewards.append([float(logged.get(n, math.nan)) for n in NAMES])
    out[method + ".loss"], out[method + ".norm"], out[method + ".rewards"] = (torch.tensor(v) for v in (losses, norms, rewards))
    for key, value in peft.get_peft_model_state_dict(model, adapter_name="default").items():
        out[f"{method}.{key}"] = value.detach().float().contiguous()
    print(method, [round(v, 5) for v in losses], [round(v, 4) for v in norms], rewards[-1], "kl", [round(r[-1], 4) for r in rewards])


def make_adapter(directory, adapter):
    torch.manual_seed(7)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=LLAMA, lora_dropout=0.0, task_type="CAUSAL_LM",
                             init_lora_weights=False)
    model = peft.get_peft_model(load(directory), config)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if ".lora_B." in n:
                p.mul_(0.1)
    shutil.rmtree(adapter, ignore_errors=True)
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)
    text = (adapter / "adapter_config.json").read_text().replace(str(directory), MODEL)
    (adapter / "adapter_config.json").write_text(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory, adapter, pairs = args.models / MODEL, args.out / "preference-adapter", make_pairs()
    make_adapter(directory, adapter)
    sequences = [(p, answer) for p, c, r in pairs for answer in (c, r)]
    start = [0]
    for p, answer in sequences:
        start.append(start[-1] + len(p) + len(answer))
    out = {"ids": torch.tensor(sum((p + a for p, a in sequences), []), dtype=torch.int32),
           "trained": torch.tensor(sum(([0] * len(p) + [1] * len(a) for p, a in sequences), []), dtype=torch.uint8),
           "start": torch.tensor(start, dtype=torch.int32)}
    for method in SETTINGS:
        run(method, directory, adapter, pairs, out)
    safetensors.torch.save_file(out, args.out / "preference.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
