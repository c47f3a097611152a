#!/usr/bin/env python3
"""Makes the fixtures of reward models: gradients and ten steps of TRL's RewardTrainer on a golden model with an adapter.

    python tests/train/make_reward_fixtures.py --models tests/fixtures/models --out tests/fixtures/train
    python tests/train/make_reward_fixtures.py --models tests/fixtures/models --out tests/fixtures/train --check ADAPTER

Needs torch, transformers, peft, trl (not a test dependency: the fixtures are committed).  Made with trl 1.16.0.

reward.safetensors has
    ids, trained, start      I32 [n], U8 [n], I32 [2 pairs + 1]   chosen, rejected, chosen..., end to end, and their answers
    scores                   F32 [2 pairs] what transformers and PEFT make of them with the adapter
    CASE.loss, .norm         F32 [10]    before each step; of the gradient, before clipping
    CASE.rewards             F32 [10, 5] chosen, rejected, accuracies, margins, NaN
    CASE.grad.NAME           F32         the gradient of the first step
    CASE.NAME                F32         each tensor of the adapter afterwards, as PEFT names it
of the cases reward, and reward-centred, which has a margin and center_rewards_coefficient;
and reward-adapter/ is the adapter that they begin with, with its head of scores.

--check compares the scores of the last case's result, "CASE.scores", with those that transformers and PEFT give with an
adapter that tandem has written.

Each step sees all pairs. float32, CPU, eager attention, no dropout.
"""
import argparse
import shutil
import tempfile
from pathlib import Path

import datasets
import peft
import safetensors.torch
import torch
import transformers
import trl

from make_fixtures import EPSILON, LLAMA, STEPS
from make_preference_fixtures import MODEL, make_pairs, rate

CASES = {"reward": ({}, 0.0), "reward-centred": ({"center_rewards_coefficient": 0.05}, 0.5)}


def load(directory):
    return transformers.AutoModelForSequenceClassification.from_pretrained(directory, num_labels=1, dtype=torch.float32,
                                                                           attn_implementation="eager")


def with_adapter(directory, adapter, trainable):
    model = peft.PeftModel.from_pretrained(load(directory), adapter, is_trainable=trainable)
    model.config.pad_token_id = model.get_base_model().config.pad_token_id = 0
    return model


def score(model, sequences):
    """one by one, without padding"""
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([ids])).logits[0, 0] for ids in sequences])


def run(case, directory, adapter, pairs, out):
    options, margin = CASES[case]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0)
    tokenizer.eos_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(1)
    model = with_adapter(directory, adapter, True)
    with tempfile.TemporaryDirectory() as to:
        args = trl.RewardConfig(output_dir=to, use_cpu=True, report_to=[], bf16=False, gradient_checkpointing=False,
                                remove_unused_columns=False, disable_dropout=True, per_device_train_batch_size=2, **options)
        trainer = trl.RewardTrainer(model=model, args=args, processing_class=tokenizer,
                                    train_dataset=datasets.Dataset.from_list([{"chosen": "a b", "rejected": "a c"}] * 2))
    model = trainer.model.train()
    params = {n: p for n, p in model.named_parameters() if ".default." in n and p.requires_grad}
    optim = torch.optim.AdamW(params.values(), lr=1.0, betas=(0.9, 0.999), eps=EPSILON, weight_decay=0.0)
    losses, norms, rewards = [], [], []
    batch = trainer.data_collator([{"chosen_ids": p + c, "rejected_ids": p + r, **({"margin": margin} if margin else {})} for p, c, r in pairs])
    plain = lambda name: name.replace(".modules_to_save.default.", ".").replace(".default.", ".")
    for step in range(STEPS):
        optim.zero_grad()
        optim.param_groups[0]["lr"] = rate(step)
        loss, outputs = trainer.compute_loss(model, batch, return_outputs=True)
        loss.backward()
        if step == 0:
            for n, p in params.items():
                out[f"{case}.grad.{plain(n)}"] = p.grad.clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), 1.0)))
        optim.step()
        losses.append(float(loss.detach()))
        chosen, rejected = outputs.logits.detach().squeeze(-1).chunk(2)
        rewards.append([float(chosen.mean()), float(rejected.mean()), float((chosen > rejected).float().mean()),
                        float((chosen - rejected).mean()), float("nan")])
    out[case + ".loss"], out[case + ".norm"], out[case + ".rewards"] = (torch.tensor(v) for v in (losses, norms, rewards))
    for key, value in peft.get_peft_model_state_dict(model, adapter_name="default").items():
        out[f"{case}.{key}"] = value.detach().float().contiguous().clone()
    out[case + ".scores"] = score(model.eval(), [p + answer for p, c, r in pairs for answer in (c, r)])
    print(case, [round(v, 5) for v in losses], [round(v, 4) for v in norms], rewards[-1])


def make_adapter(directory, adapter):
    torch.manual_seed(7)
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=LLAMA, lora_dropout=0.0, task_type="SEQ_CLS",
                             init_lora_weights=False)
    model = peft.get_peft_model(load(directory), config)
    with torch.no_grad():
        for n, p in model.named_parameters():
            if ".lora_B." in n:
                p.mul_(0.1)
            if "score.modules_to_save" in n:
                p.normal_(std=0.2)
    shutil.rmtree(adapter, ignore_errors=True)
    model.save_pretrained(adapter)
    (adapter / "README.md").unlink(missing_ok=True)
    text = (adapter / "adapter_config.json").read_text().replace(str(directory), MODEL)
    (adapter / "adapter_config.json").write_text(text)


def check(directory, adapter, out):
    """What transformers and PEFT make of an adapter that was trained as the last case was."""
    want = safetensors.torch.load_file(out / "reward.safetensors")
    name = list(CASES)[-1] + ".scores"
    got = score(with_adapter(directory, adapter, False).eval(), [p + answer for p, c, r in make_pairs() for answer in (c, r)])
    print("largest difference of a score:", float((got - want[name]).abs().max()))
    assert torch.allclose(got, want[name], rtol=1e-3, atol=1e-3), (got, want[name])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--check", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    directory, adapter, pairs = args.models / MODEL, args.out / "reward-adapter", make_pairs()
    if args.check:
        return check(directory, args.check, args.out)
    make_adapter(directory, adapter)
    sequences = [(p, answer) for p, c, r in pairs for answer in (c, r)]
    start = [0]
    for p, answer in sequences:
        start.append(start[-1] + len(p) + len(answer))
    out = {"ids": torch.tensor(sum((p + a for p, a in sequences), []), dtype=torch.int32),
           "trained": torch.tensor(sum(([0] * len(p) + [1] * len(a) for p, a in sequences), []), dtype=torch.uint8),
           "start": torch.tensor(start, dtype=torch.int32),
           "scores": score(with_adapter(directory, adapter, False).eval(), [p + a for p, a in sequences])}
    for case in CASES:
        run(case, directory, adapter, pairs, out)
    safetensors.torch.save_file(out, args.out / "reward.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
