#!/usr/bin/env python3
"""Makes the fixtures of method grpo: gradients and ten steps of TRL's GRPOTrainer on a golden model with an adapter.

    python tests/train/make_grpo_fixtures.py --models tests/fixtures/models --out tests/fixtures/train

Needs torch, transformers, peft, trl (not a test dependency: the fixtures are committed).  Made with trl 1.16.0.

grpo.safetensors has
    ids, start               I32 [n], I32 [texts + 1]   prompts with their texts, end to end; those of a prompt follow each other
    prompt                   I32 [texts]    tokens of each prompt
    sampled                  F32 [n]        the log-probability that sampling gave each token; of prompts 0
    judged                   F32 [texts]    rewards
    CASE.loss, .norm         F32 [10]    before each step; of the gradient, before clipping
    CASE.rewards             F32 [10, 5] NaN, and the distance to the base
    CASE.grad.NAME           F32         the gradient of the first step
    CASE.NAME                F32         each tensor of the adapter afterwards, as PEFT names it
of the cases grpo, dapo, dr_grpo: loss_type, with advantages that are divided by the group's deviation, of dr_grpo undivided.
The policy begins as preference-adapter/; the base without it is the reference.

Each step sees the same texts, whose log-probabilities when sampled are some way from the policy's, so that some are clipped.
float32, CPU, eager attention, no dropout, temperature 1.
"""
import argparse
import tempfile
from pathlib import Path

import datasets
import peft
import safetensors.torch
import torch
import transformers
import trl

from make_fixtures import EPSILON, STEPS, load
from make_preference_fixtures import MODEL, VOCAB, rate

CASES, PROMPTS, SAMPLES, MOST = ["grpo", "dapo", "dr_grpo"], 3, 4, 12


def make_texts():
    g = torch.Generator().manual_seed(5)
    pick = lambda low, high: torch.randint(3, VOCAB, (int(torch.randint(low, high, (1,), generator=g)),), generator=g).tolist()
    texts = []
    for _ in range(PROMPTS):
        prompt = pick(2, 8)
        texts += [(prompt, pick(3, MOST)) for _ in range(SAMPLES)]
    return texts, torch.rand(len(texts), generator=g), g


def logprobs(model, texts):
    out = []
    with torch.no_grad():
        for prompt, text in texts:
            logits = model(input_ids=torch.tensor([prompt + text])).logits[0, len(prompt) - 1:-1].log_softmax(-1)
            out.append(logits.gather(-1, torch.tensor(text)[:, None])[:, 0])
    return out


def padded(rows, left, fill=0.0):
    most = max(len(r) for r in rows)
    pad = lambda r: torch.full((most - len(r),), fill, dtype=torch.as_tensor(r).dtype)
    return torch.stack([torch.cat([pad(r), torch.as_tensor(r)] if left else [torch.as_tensor(r), pad(r)]) for r in rows])


def run(case, directory, adapters, texts, judged, sampled, out):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token_id = tokenizer.pad_token_id or 0
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(1)
    model = peft.PeftModel.from_pretrained(load(directory), adapters / "preference-adapter", is_trainable=True)
    with tempfile.TemporaryDirectory() as to:
        args = trl.GRPOConfig(output_dir=to, use_cpu=True, report_to=[], bf16=False, gradient_checkpointing=False, loss_type=case, beta=0.04, use_bias_correction_kl=False,
                              epsilon=0.2, epsilon_high=0.28, temperature=1.0, max_completion_length=MOST, num_generations=SAMPLES,
                              per_device_train_batch_size=len(texts), gradient_accumulation_steps=1)
        trainer = trl.GRPOTrainer(model=model, args=args, processing_class=tokenizer, reward_funcs=lambda completions, **kw: [0.0] * len(completions),
                                  train_dataset=datasets.Dataset.from_list([{"prompt": "a"}] * 2))
    model, trainer.current_gradient_accumulation_steps = trainer.model.train(), 1
    groups = judged.view(PROMPTS, SAMPLES)
    advantages = groups - groups.mean(1, keepdim=True)
    if case != "dr_grpo":
        advantages = advantages / (groups.std(1, keepdim=True) + 1e-4)
    reference = logprobs(load(directory).eval(), texts)
    prompts, completions = [torch.tensor(p) for p, _ in texts], [torch.tensor(t) for _, t in texts]
    inputs = {"prompt_ids": padded(prompts, True, 0), "prompt_mask": padded([torch.ones_like(p) for p in prompts], True, 0),
              "completion_ids": padded(completions, False, 0), "completion_mask": padded([torch.ones_like(t) for t in completions], False, 0),
              "advantages": advantages.flatten(), "old_per_token_logps": padded(sampled, False), "ref_per_token_logps": padded(reference, False),
              "num_items_in_batch": torch.tensor(float(sum(len(t) for t in completions)))}
    params = {n: p for n, p in model.named_parameters() if ".default." in n}
    optim = torch.optim.AdamW(params.values(), lr=1.0, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)
    losses, norms, rewards = [], [], []
    for step in range(STEPS):
        optim.zero_grad()
        optim.param_groups[0]["lr"] = rate(step)
        trainer._metrics["train"].clear()
        loss = trainer._compute_loss(model, inputs)
        loss.backward()
        if step == 0:
            for n, p in params.items():
                out[f"{case}.grad.{n.replace('.default.', '.')}"] = p.grad.clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), 1.0)))
        optim.step()
        losses.append(float(loss.detach()))
        rewards.append([float("nan")] * 4 + [trainer._metrics["train"]["kl"][-1]])
    out[case + ".loss"], out[case + ".norm"], out[case + ".rewards"] = (torch.tensor(v) for v in (losses, norms, rewards))
    for key, value in peft.get_peft_model_state_dict(model, adapter_name="default").items():
        out[f"{case}.{key}"] = value.detach().float().contiguous()
    print(case, [round(v, 5) for v in losses], [round(v, 4) for v in norms], [round(r[-1], 5) for r in rewards],
          "clipped", {k: v[-1] for k, v in trainer._metrics["train"].items() if k.startswith("clip_ratio/region")})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory, (texts, judged, g) = args.models / MODEL, make_texts()
    model = peft.PeftModel.from_pretrained(load(directory), args.out / "preference-adapter").eval()
    sampled = [v + 0.2 * torch.randn(len(v), generator=g) for v in logprobs(model, texts)]
    start = [0]
    for p, t in texts:
        start.append(start[-1] + len(p) + len(t))
    out = {"ids": torch.tensor(sum((p + t for p, t in texts), []), dtype=torch.int32), "start": torch.tensor(start, dtype=torch.int32),
           "prompt": torch.tensor([len(p) for p, _ in texts], dtype=torch.int32), "judged": judged,
           "sampled": torch.cat([torch.cat([torch.zeros(len(p)), s]) for (p, _), s in zip(texts, sampled)])}
    for case in CASES:
        run(case, directory, args.out, texts, judged, sampled, out)
    safetensors.torch.save_file(out, args.out / "grpo.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
