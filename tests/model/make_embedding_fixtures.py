#!/usr/bin/env python3
"""Writes embeddings.safetensors into the golden models' directories: what transformers gives as pooled hidden states.

    python tests/model/make_embedding_fixtures.py --models tests/fixtures/models --adapters tests/fixtures/adapters

Needs torch, transformers, peft, safetensors (not a test dependency: the fixtures are committed).  The directories are those
of make_fixtures.py and, of tests/adapter/make_fixtures.py, the ones in ADAPTERS; only the new file is written.

    ids      I32 [sum of lengths]  the prompts, one after the other
    lengths  I32 [P]
    mean     F32 [P, C]            of last_hidden_state (after the final norm) over the prompt's positions, in double
    last     F32 [P, C]            its last position
float32, eager attention, CPU; 16-bit weights are widened to float32 first.
"""
import argparse
from pathlib import Path

import peft
import safetensors.torch
import torch
import transformers

LENGTHS = [1, 16, 33, 90]  # a page is 16 tokens, and the test cuts prompts into chunks of 24
# a model's place gives its seed; the nf4 ones, which would need bitsandbytes and add no path of their own, have no file
MODELS = ["distilgpt2-prefixed", "gpt2", "llama-f16", "llama-gqa", "llama-nf4", "llama-nf4-single", "mistral", "phi", "qwen2",
          "qwen2-bf16", "qwen3", "tinystories-656k", "gemma2", "gemma3"]
ADAPTERS = ["llama-gqa--qv", "gpt2--conv1d"]
VOCAB = 288                # words of the shared tokenizer; every model here has as many or more


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


def prompts(seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB, (n,), generator=g, dtype=torch.int32) for n in LENGTHS]


@torch.no_grad()
def hidden(model, ids):
    """The last of the hidden states is what the final norm gives, in every family that tandem reads."""
    return model(ids[None].long(), use_cache=False, output_hidden_states=True).hidden_states[-1][0].float()


def write(path, model, seed):
    ids = prompts(seed)
    states = [hidden(model, v) for v in ids]
    base = getattr(model, "base_model", model)
    if not isinstance(model, peft.PeftModel):  # hidden_states[-1] is last_hidden_state: check that the final norm is in it
        with torch.no_grad():
            torch.testing.assert_close(base(ids[1][None].long(), use_cache=False).last_hidden_state[0], states[1])
    safetensors.torch.save_file({"ids": torch.cat(ids), "lengths": torch.tensor(LENGTHS, dtype=torch.int32),
                                 "mean": torch.stack([s.double().mean(0).float() for s in states]),
                                 "last": torch.stack([s[-1] for s in states]).contiguous()}, path)
    path.chmod(0o644)
    print(f"{path}: {path.stat().st_size} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--only", help="one model or adapter by name")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for seed, name in enumerate(MODELS):
        if "nf4" not in name and args.only in (None, name):
            write(args.models / name / "embeddings.safetensors", load(args.models / name), 3000 + seed)
    for seed, name in enumerate(ADAPTERS):
        if args.only not in (None, name):
            continue
        base = load(args.models / name.split("--")[0])
        write(args.adapters / name / "embeddings.safetensors", peft.PeftModel.from_pretrained(base, args.adapters / name).eval(),
              4000 + seed)


if __name__ == "__main__":
    main()
