#!/usr/bin/env python3
"""The held-out loss of a model: each story of heldout.txt on its own between two end marks, in float32.

    python heldout.py [DIR]

Needs torch and transformers.
"""
import math
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

END, CONTEXT = "<|endoftext|>", 512


def main():
    here = Path(__file__).parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    end = tokenizer.token_to_id(END)
    loss = count = 0
    for story in (here / "heldout.txt").read_text(encoding="utf-8").split(END):
        if not story.strip():
            continue
        ids = torch.tensor([end, *tokenizer.encode(story).ids, end][: CONTEXT + 1])
        with torch.no_grad():
            logits = model(ids[None, :-1]).logits[0]
        loss += float(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="sum"))
        count += len(ids) - 1
    print("%d parameters, %d tokens: loss %.4f, perplexity %.4f"
          % (sum(p.numel() for p in model.parameters()), count, loss / count, math.exp(loss / count)))


if __name__ == "__main__":
    main()
