#!/usr/bin/env python3
"""Makes tests/clients/tasks/scores.json: what transformers gives the demo model's answers to the task files beside it.

    python tests/clients/make_scores.py

Needs torch and transformers (not test dependencies: the scores are committed).  float32 on the CPU, eager attention; the
model's bf16 weights are widened first.  Texts are cut into context and answer as lm-eval cuts them.
"""
import json
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).resolve().parent / "tasks"
MODEL = HERE.parents[2] / "models/demo"


def rows(name):
    return [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]


class Scorer:
    def __init__(self):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()

    def ids(self, text):
        return self.tokenizer(text, add_special_tokens=False).input_ids

    def score(self, context, answer):
        """-> (log-probability of the answer's ids after the context's, whether each is the likeliest)"""
        with torch.no_grad():
            logits = self.model(torch.tensor([context + answer])).logits[0, len(context) - 1:-1].double()
        chosen = logits.log_softmax(-1)[range(len(answer)), answer]
        return chosen.sum().item(), bool((logits.argmax(-1) == torch.tensor(answer)).all())

    def choice(self, context, answer):
        spaces = len(context) - len(context.rstrip())  # lm-eval moves them to the answer
        head, whole = self.ids(context[:len(context) - spaces]), self.ids(context + answer)
        return self.score(head, whole[len(head):])

    def rolling(self, text):
        return self.score([self.tokenizer.bos_token_id], self.ids(text))[0]

    def generate(self, prompt, until, most):
        ids = torch.tensor([self.ids(prompt)])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=most, top_p=None, temperature=None)
        text = self.tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
        for stop in until:
            text = text.split(stop)[0]
        return text


def main():
    s = Scorer()
    scores = {
        "choices": [[s.choice(r["context"], " " + c) for c in r["choices"]] for r in rows("choices")],
        "texts": [s.rolling(r["text"]) for r in rows("texts")],
        "stories": [s.generate(r["prompt"], ["."], 24) for r in rows("stories")],
    }
    (HERE / "scores.json").write_text(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, **scores}, indent=1) + "\n")


if __name__ == "__main__":
    main()
