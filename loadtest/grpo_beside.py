#!/usr/bin/env python3
"""A job of method grpo beside streams of clients: how its reward rises, and what the streams get meanwhile.

    tandem serve --model models/demo --threads 2 &
    grpo_beside.py --url http://127.0.0.1:8080 --streams 8 --prompt-tokens 64 --generate-tokens 256

The streams run one after another without the job, then beside it until it ends; each row of the table is a part of that time.
A text is rewarded when it has a given word and ends with a full stop: half for each.  Nobody else may use the server, which asks
for no key.  Standard library only.
"""
import argparse
import json
import random
import sys
import time
import urllib.request
from urllib.parse import urlsplit

import bench_http

PROMPTS = ["Once upon a time, there was a little girl.", "One day, Tom went out.", "Lily and Ben were in the garden.",
           "It was a sunny day.", "Max had a new toy.", "There was a big tree.", "Sue woke up early.", "Mom and Sam went home."]


def fail(text):
    sys.exit(f"grpo_beside.py: {text}")


def call(a, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(a.url.rstrip("/") + path, data=data, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=a.timeout) as r:
            return json.loads(r.read())
    except OSError as e:
        fail(f"{path}: {e}")


def streams(a, rng):
    """-> what bench_http.measure says of one round of streams."""
    done, cpu = bench_http.run(urlsplit(a.url), a, rng, a.streams, a.prompt_tokens, a.generate_tokens)
    for s in done:
        s.check(a)
    return bench_http.measure(done, cpu, a)


def middle(values):
    values = sorted(v for v in values if v is not None)
    return values[len(values) // 2] if values else float("nan")


def row(what, rounds, reward):
    """The middle one of the rounds' percentiles, in milliseconds."""
    figures = [1e3 * middle([r[name][p] for r in rounds]) for name, p in (("ttft", "p50"), ("itl", "p50"), ("itl", "p99"))]
    tokens = middle([r["steady_tokens_per_s"] for r in rounds])
    return {"what": what, "rounds": len(rounds), "reward": reward, "ttft_p50_ms": figures[0], "itl_p50_ms": figures[1],
            "itl_p99_ms": figures[2], "tokens_per_s": tokens}


def start_job(a):
    rewards = [{"type": "regex", "pattern": rf"\b{a.word}\b", "weight": 0.5}, {"type": "regex", "pattern": r"\.\s*$", "weight": 0.5}]
    hyper = {"max_steps": a.steps, "epochs": 1000, "samples": 8, "prompts_per_step": 4, "max_new_tokens": a.max_new_tokens,
             "max_length": 128, "lora_r": 8, "learning_rate": 2e-3, "seed": 7}
    return call(a, "/train", {"method": "grpo", "serve_as": "grpo-beside", "rewards": rewards, "hyperparameters": hyper,
                              "dataset": {"rows": [{"prompt": p} for p in PROMPTS]}})["id"]


def beside(a, job, rng):
    """-> [(how many steps are done, a round of streams)] until the job ends, and the reward of each step."""
    rounds = []
    while True:
        state = call(a, f"/train/{job}")
        if state["status"] not in ("queued", "running"):
            break
        rounds.append((state["step"], streams(a, rng)))
    if state["status"] != "succeeded":
        fail(f"the job ended as {state['status']}: {state['error']}")
    return rounds, [p["value"] for p in call(a, f"/train/{job}/metrics")["metrics"]["reward"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=64)
    p.add_argument("--generate-tokens", type=int, default=256)
    p.add_argument("--alone", type=int, default=5, help="rounds of streams before the job, and after it")
    p.add_argument("--steps", type=int, default=100, help="of the job")
    p.add_argument("--max-new-tokens", type=int, default=32, help="of a text that the job samples")
    p.add_argument("--word", default="park")
    p.add_argument("--parts", type=int, default=5, help="rows of the table")
    p.add_argument("--timeout", type=float, default=600)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    a.sample, a.every, rng = False, 0, random.Random(1)
    bench_http.wait_ready(urlsplit(a.url), a.timeout)
    streams(a, rng)  # warm-up
    table = [row("before", [streams(a, rng) for _ in range(a.alone)], None)]
    began = time.monotonic()
    rounds, reward = beside(a, start_job(a), rng)
    seconds = time.monotonic() - began
    each = -(-len(reward) // a.parts)
    for first in range(0, len(reward), each):
        last = min(first + each, len(reward))
        mine = [r for step, r in rounds if first <= step < last]
        table.append(row(f"steps {first + 1} to {last}", mine, sum(reward[first:last]) / (last - first)))
    table.append(row("after", [streams(a, rng) for _ in range(a.alone)], None))
    if a.json:
        print(json.dumps({"seconds": seconds, "rows": table, "reward": reward}))
        return
    print(f"{a.streams} streams, prompts of {a.prompt_tokens}, {a.generate_tokens} generated each; the job took {seconds:.0f} s\n")
    print("| | rounds | reward | TTFT p50, ms | ITL p50, ms | ITL p99, ms | tokens/s |\n|---|---|---|---|---|---|---|")
    for r in table:
        said = "" if r["reward"] is None else f"{r['reward']:.2f}"
        print(f"| {r['what']} | {r['rounds']} | {said} | {r['ttft_p50_ms']:.1f} | {r['itl_p50_ms']:.2f} | {r['itl_p99_ms']:.2f} | {r['tokens_per_s']:.0f} |")


if __name__ == "__main__":
    main()
