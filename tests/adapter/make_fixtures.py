#!/usr/bin/env python3
"""Makes the adapter fixtures: LoRA adapters of the golden models, and what PEFT computes with them.

    python tests/adapter/make_fixtures.py --models tests/fixtures/models --out tests/fixtures/adapters \\
        --tool build/tests/adapter_golden_test

Needs torch, transformers, peft, safetensors (not a test dependency: the fixtures are committed).

Each directory is called MODEL--WHAT, is a PEFT directory and has expected.safetensors beside its two files:
    ids     I32 [n]     a prompt
    logits  F32 [n, V]  of the model with the adapter, float32, eager attention, CPU

MODEL--ours-WHAT were written by tandem (the tool's --write) and loaded by PEFT, the others by PEFT's save_pretrained.
The test writes ours again and compares the bytes, so that PEFT's logits stay PEFT's word on what adapter_write writes
today.  MODEL--refused-WHAT are what tandem does not take, without logits.
"""
import argparse
import json
import shutil
import subprocess
from pathlib import Path

import peft
import safetensors.torch
import torch
import transformers

N_IDS = 16
MATTERS = 1e-2  # least change of some logit when one B is zeroed

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
PEFT_MADE = {
    "llama-gqa--qv": dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=8),
    "llama-gqa--all-linear-bf16": dict(target_modules="all-linear", r=3, lora_alpha=6, dtype=torch.bfloat16),
    "qwen2--rslora": dict(target_modules=ATTENTION + ["gate_proj", "up_proj", "down_proj"], r=5, lora_alpha=2,
                          use_rslora=True),
    "qwen2--patterns-f16": dict(target_modules=r"model\.layers\.\d+\.(self_attn\.(q|o)_proj|mlp\.(up|down)_proj)", r=4,
                                lora_alpha=8,  # the first that fits counts, and PEFT sorts them when it saves
                                rank_pattern={"^.*q_proj": 1, "down_proj": 7, r"layers\.1\..*": 2},
                                alpha_pattern={"mlp.up_proj": 3}, dtype=torch.float16),
    "qwen3--some-layers": dict(target_modules=["k_proj", "gate_proj"], r=4, lora_alpha=8, layers_to_transform=[1]),
    "gpt2--conv1d": dict(target_modules=["c_attn", "mlp.c_proj", "c_fc"], r=4, lora_alpha=8, fan_in_fan_out=True),
    "distilgpt2-prefixed--default": dict(r=8, lora_alpha=16, fan_in_fan_out=True),
    "phi--default": dict(r=2, lora_alpha=4),
    "phi--dense": dict(target_modules=["dense", "k_proj"], exclude_modules=["layers.0.self_attn.k_proj"], r=2, lora_alpha=4),
}
# after OURS in the order that gives seeds
PEFT_MADE_LATER = {
    "gemma2--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "gemma3--some-layers": dict(target_modules=["q_proj", "o_proj", "down_proj"], r=3, lora_alpha=3, layers_to_transform=[1, 2, 5]),
    "phi3--all-linear": dict(target_modules="all-linear", r=3, lora_alpha=6),
    "gpt-neox--default": dict(r=2, lora_alpha=4),
    "gpt-neox--all-linear": dict(target_modules="all-linear", r=3, lora_alpha=6),
    "stablelm--default": dict(r=2, lora_alpha=4),
    "smollm3--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "granite--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "olmo2--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "ministral--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "mixtral--attention": dict(target_modules=ATTENTION, r=2, lora_alpha=8),
    "qwen2-moe--attention": dict(target_modules=["q_proj", "v_proj"], r=4, lora_alpha=16),
    "qwen3-moe--attention": dict(target_modules=ATTENTION, r=2, lora_alpha=8),
    "gpt-oss--attention": dict(target_modules=ATTENTION, r=2, lora_alpha=8),
    "olmo3--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "gpt-neox-sequential--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "stablelm-parallel--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "mixtral--experts": dict(target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
                             r=2, lora_alpha=8, lora_dropout=0, use_rslora=True),
    "mixtral--w1-w2-w3": dict(target_modules=["w1", "w2", "w3", "gate"], r=2, lora_alpha=4, lora_dropout=0),
    "qwen2-moe--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "qwen2-moe--down": dict(target_modules=["v_proj"], target_parameters=["experts.down_proj", "gate.weight"], r=3, lora_alpha=6,
                            lora_dropout=0, rank_pattern={"experts.down_proj": 1}),
    "qwen3-moe--experts": dict(target_modules=[], target_parameters=["gate_up_proj"], r=2, lora_alpha=4, lora_dropout=0),
    "olmoe--experts": dict(target_modules=ATTENTION, target_parameters=["gate_up_proj", "down_proj", "mlp.gate.weight"], r=2,
                           lora_alpha=4, lora_dropout=0),
}
# All linear layers of a model that also takes images are those of the part for images, too.
IMAGES = {
    "mistral--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "ministral3--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "gemma3-images--all-linear": dict(target_modules="all-linear", r=2, lora_alpha=4),
    "mistral3-images--pattern": dict(target_modules=r".*language_model.*\.(q|v|up)_proj", r=2, lora_alpha=4),
}
# Before transformers 5 experts were modules; PEFT reads such files, but cannot write them any more.
OLD = {
    "mixtral--old-modules": dict(modules=["w1", "w2", "w3", "gate"], r=2, lora_alpha=4),
    "olmoe--old-modules": dict(modules=["q_proj", "gate_proj", "up_proj", "down_proj"], r=3, lora_alpha=3),
    "olmoe--old-down": dict(modules=["down_proj"], r=2, lora_alpha=4),
}
# The embedding table and the head, alone and tied; PEFT saves their weights beside the adapter.
ENDS = {
    "llama-gqa--ends": dict(target_modules=["q_proj", "embed_tokens", "lm_head"], r=3, lora_alpha=6, rank_pattern={"lm_head": 5}),
    "gpt-neox--embedding": dict(target_modules=["embed_in"], r=2, lora_alpha=4, use_rslora=True),
    "gpt2--embedding": dict(target_modules=["wte", "c_attn"], r=2, lora_alpha=4, fan_in_fan_out=True),
    "gemma3--embedding": dict(target_modules=["embed_tokens"], r=2, lora_alpha=4),
    "qwen2-moe--head": dict(target_modules=["lm_head"], r=2, lora_alpha=4),
    "phi-tied--ends": dict(target_modules=["embed_tokens", "lm_head"], r=2, lora_alpha=4),
}
REFUSED = {
    "llama-gqa--refused-dora": dict(target_modules=["q_proj"], use_dora=True),
    "llama-gqa--refused-bias": dict(target_modules=["q_proj"], lora_bias=True),
    "qwen2--refused-biases": dict(target_modules=["q_proj"], bias="lora_only"),
    "llama-gqa--refused-whole": dict(target_modules=["q_proj"], modules_to_save=["input_layernorm"]),
    "llama-gqa--refused-alora": dict(target_modules=["q_proj"], alora_invocation_tokens=[5, 6]),
    "llama-gqa--refused-parameters": dict(target_modules=["q_proj"], target_parameters=["mlp.down_proj.weight"],
                                          lora_dropout=0),
}
OURS = ["llama-gqa--ours-all", "gpt2--ours-rslora", "phi--ours-all", "qwen2--ours-patterns"]
OURS_LATER = ["qwen2-moe--ours-experts", "mixtral--ours-experts"]


def load(models, name):
    path = models / name.split("--")[0]
    images = "text_config" in json.loads((path / "config.json").read_text())
    kind = transformers.AutoModelForImageTextToText if images else transformers.AutoModelForCausalLM
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def randomize(model, seed):
    g = torch.Generator().manual_seed(seed)
    for name, p in sorted(model.named_parameters()):
        if "lora_" in name:
            with torch.no_grad():
                p.copy_(torch.randn(p.shape, generator=g) * (0.3 if "lora_B" in name else 0.2))


def save(model, path, dtype=torch.float32):
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data = p.data.to(dtype)
    shutil.rmtree(path, ignore_errors=True)
    model.save_pretrained(path)
    (path / "README.md").unlink(missing_ok=True)
    config = json.loads((path / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = path.name.split("--")[0]  # not this machine's path
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


def make(models, out, name, seed, dtype=torch.float32, **config):
    model = peft.get_peft_model(load(models, name), peft.LoraConfig(**{"task_type": "CAUSAL_LM", "lora_dropout": 0.1, **config}))
    randomize(model, seed)
    save(model, out / name, dtype)


def make_old(models, out, name, seed, modules, r, lora_alpha):
    """Files as PEFT wrote them for transformers 4: a linear layer for each matrix of each expert."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    with safetensors.safe_open(models / name.split("--")[0] / "model.safetensors", "pt") as f:
        for key in sorted(f.keys()):
            module = key.removesuffix(".weight")
            if not key.startswith("model.layers.") or module.rpartition(".")[2] not in modules:
                continue
            n, k = f.get_slice(key).get_shape()
            for letter, shape, size in (("A", (r, k), 0.2), ("B", (n, r), 0.3)):
                tensors[f"base_model.model.{module}.lora_{letter}.weight"] = torch.randn(shape, generator=g) * size
    path = out / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    safetensors.torch.save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=modules, r=r, lora_alpha=lora_alpha).to_dict()
    config["base_model_name_or_path"] = name.split("--")[0]
    config["target_modules"] = sorted(modules)
    (path / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))


@torch.no_grad()
def logits_of(model, ids):
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


@torch.no_grad()
def expect(models, path, seed):
    model = peft.PeftModel.from_pretrained(load(models, path.name), path).eval()
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 288, (N_IDS,), generator=g).tolist()
    logits = logits_of(model, ids)
    n = 0
    for name, p in model.named_parameters():
        if ("lora_B" in name or "lora_embedding_B" in name) and "vision" not in name and "projector" not in name:
            saved = p.clone()
            p.zero_()
            change = float((logits_of(model, ids) - logits).abs().max())
            p.copy_(saved)
            assert change > MATTERS, f"{path.name} {name}: only changes the logits by {change:.2g}"
            n += 1
    safetensors.torch.save_file({"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.contiguous()},
                                path / "expected.safetensors")
    print(f"{path.name}: {n} modules, logits std {logits.std():.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tool", type=Path, required=True)
    parser.add_argument("--only", help="one adapter by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    args.out.mkdir(parents=True, exist_ok=True)

    def chosen(name):
        return args.only in (None, name)

    for seed, (name, config) in enumerate([*PEFT_MADE.items(), *PEFT_MADE_LATER.items()]):
        if chosen(name):
            make(args.models, args.out, name, seed, **config)
    for seed, (name, config) in enumerate(ENDS.items(), 700):
        if chosen(name):
            make(args.models, args.out, name, seed, **config)
    for seed, (name, config) in enumerate(IMAGES.items(), 800):
        if chosen(name):
            make(args.models, args.out, name, seed, **config)
    for seed, (name, config) in enumerate(OLD.items(), 500):
        if chosen(name):
            make_old(args.models, args.out, name, seed, **config)
    for name in filter(chosen, OURS + OURS_LATER):
        shutil.rmtree(args.out / name, ignore_errors=True)
        subprocess.run([args.tool, "--write", args.models, name, args.out / name], check=True)
    for seed, name in enumerate([*PEFT_MADE, *OURS, *PEFT_MADE_LATER, *OLD, *OURS_LATER, *ENDS, *IMAGES]):
        if chosen(name):
            expect(args.models, args.out / name, 100 + seed)
    for seed, (name, config) in enumerate(REFUSED.items()):
        if chosen(name):
            make(args.models, args.out, name, seed, r=1, lora_alpha=1, **config)
    for path in args.out.rglob("*"):
        if path.is_file():
            path.chmod(0o644)


if __name__ == "__main__":
    main()
