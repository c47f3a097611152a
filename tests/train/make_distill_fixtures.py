#!/usr/bin/env python3
"""Makes the fixtures of distillation: gradients and ten steps of TRL's GKDTrainer's loss on a golden model with an adapter.

    python tests/train/make_distill_fixtures.py --models tests/fixtures/models --out tests/fixtures/train

Needs torch, transformers, peft, trl (not a test dependency: the fixtures are committed).  Made with trl 1.16.0.

distill.safetensors has
    ids, trained, start      I32 [n], U8 [n], I32 [rows + 1]   the rows, end to end, and their targets
    CASE.loss, .norm         F32 [10]    before each step; of the gradient, before clipping
    CASE.rewards             F32 [10, 5] NaN
    CASE.grad.NAME           F32         the gradient of the first step
    CASE.NAME                F32         each tensor of the adapter afterwards, as PEFT names it
of the cases distill-forward, distill-half, distill-reverse: generalized_jsd_loss with beta 0, 0.5 and 1 over the whole
vocabulary; and distill-few, distill-few-forward: beta 0.3 and 0 where the teacher's 16 likeliest tokens are told apart, and all
others are one outcome, by the same function.
The student begins as preference-adapter/; the teacher is llama-gqa-adapter/.

Each step sees all rows. float32, CPU, eager attention, no dropout.
"""
import argparse
import os
from pathlib import Path

import peft
import safetensors.torch
import torch

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
from trl.experimental.gkd import GKDTrainer  # noqa: E402

from make_fixtures import EPSILON, STEPS, load  # noqa: E402
from make_preference_fixtures import MODEL, make_pairs, rate  # noqa: E402

CASES = {"distill-forward": (0.0, 0), "distill-half": (0.5, 0), "distill-reverse": (1.0, 0), "distill-few": (0.3, 16), "distill-few-forward": (0.0, 16)}


def outcomes(student, teacher, few):
    """Log-probabilities of the teacher's likeliest tokens and of all others together."""
    student, teacher = student.log_softmax(-1), teacher.log_softmax(-1)
    top = teacher.topk(few, dim=-1).indices
    rest = torch.ones_like(teacher, dtype=torch.bool).scatter(-1, top, False)
    both = [torch.cat([x.gather(-1, top), x.masked_fill(~rest, -torch.inf).logsumexp(-1, keepdim=True)], -1) for x in (student, teacher)]
    return both


def loss_of(student, teacher, rows, beta, few):
    """As GKDTrainer's compute_loss: the sum over the targets, divided by their number."""
    total, n = 0.0, sum(len(answer) for _, answer in rows)
    for prompt, answer in rows:
        ids = torch.tensor([prompt + answer])
        labels = torch.tensor([[-100] * len(prompt) + answer])[:, 1:]
        ours = student(input_ids=ids).logits[:, :-1, :]
        with torch.no_grad():
            theirs = teacher(input_ids=ids).logits[:, :-1, :]
        if few:
            ours, theirs = outcomes(ours, theirs, few)
        total = total + GKDTrainer.generalized_jsd_loss(ours, theirs, labels=labels, beta=beta, num_items_in_batch=n)
    return total


def run(case, directory, adapters, rows, out):
    beta, few = CASES[case]
    student = peft.PeftModel.from_pretrained(load(directory), adapters / "preference-adapter", is_trainable=True).train()
    teacher = peft.PeftModel.from_pretrained(load(directory), adapters / "llama-gqa-adapter").eval()
    params = {n: p for n, p in student.named_parameters() if ".default." in n}
    optim = torch.optim.AdamW(params.values(), lr=1.0, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        optim.zero_grad()
        optim.param_groups[0]["lr"] = rate(step)
        loss = loss_of(student, teacher, rows, beta, few)
        loss.backward()
        if step == 0:
            for n, p in params.items():
                out[f"{case}.grad.{n.replace('.default.', '.')}"] = p.grad.clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), 1.0)))
        optim.step()
        losses.append(float(loss.detach()))
    out[case + ".loss"], out[case + ".norm"] = torch.tensor(losses), torch.tensor(norms)
    out[case + ".rewards"] = torch.full((STEPS, 5), float("nan"))
    for key, value in peft.get_peft_model_state_dict(student, adapter_name="default").items():
        out[f"{case}.{key}"] = value.detach().float().contiguous()
    print(case, [round(v, 5) for v in losses], [round(v, 4) for v in norms])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [(p, answer) for p, c, r in make_pairs() for answer in (c, r)]
    start = [0]
    for p, answer in rows:
        start.append(start[-1] + len(p) + len(answer))
    out = {"ids": torch.tensor(sum((p + a for p, a in rows), []), dtype=torch.int32),
           "trained": torch.tensor(sum(([0] * len(p) + [1] * len(a) for p, a in rows), []), dtype=torch.uint8),
           "start": torch.tensor(start, dtype=torch.int32)}
    for case in CASES:
        run(case, args.models / MODEL, args.out, rows, out)
    safetensors.torch.save_file(out, args.out / "distill.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
