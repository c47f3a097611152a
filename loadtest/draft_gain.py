#!/usr/bin/env python3
"""What a draft model gains and costs on texts of a real model.

    draft_gain.py TANDEM MODEL DRAFT PROMPTS.jsonl [--tokens 200] [--requests 24] [--batch 1] [--threads 0] [--speculate auto]
                  [--sample]

Starts three servers of the same model: speculation off, auto, and auto with the draft (none keeps earlier texts). The
prompts ({"prompt"} in each line) are sent to each in turns, `batch` at once, and the texts are compared. Prints the
tokens per second of each (median over the turns), the median of the ratios to off, the processors' time (with one thread
it is the one figure that other work on the machine changes little), and how many of the draft's
candidates were right. Needs requests."""
import argparse
import json
import os
import re
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import requests


def serve(args, *flags):
    process = subprocess.Popen([args.tandem, "serve", "--model", args.model, "--port", "0", "--threads", str(args.threads),
                                "--speculate-history", "0", *flags], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"listening (http\S+)", line)
        if found:
            break
    url = found.group(1)
    while requests.get(url + "/ready", timeout=60).status_code != 200:
        time.sleep(0.05)
    return process, url


def metric(url, name):
    return sum(float(line.split()[-1]) for line in requests.get(url + "/metrics", timeout=60).text.splitlines()
               if line.startswith(name))


def cpu_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    p = argparse.ArgumentParser()
    for name in ("tandem", "model", "draft", "prompts"):
        p.add_argument(name)
    for name, value in (("--tokens", 200), ("--requests", 24), ("--batch", 1), ("--threads", 0)):
        p.add_argument(name, type=int, default=value)
    p.add_argument("--speculate", default="auto", help="auto; on: the draft is always asked")
    p.add_argument("--sample", action="store_true")
    args = p.parse_args()
    prompts = [json.loads(line)["prompt"] for line in open(args.prompts)][-args.requests:]
    kinds = {"off": ["--speculate", "off"], "auto": [], "draft": ["--draft-model", args.draft, "--speculate", args.speculate]}
    servers = {k: serve(args, *flags) for k, flags in kinds.items()}
    rates = {k: [] for k in kinds}
    before = {k: cpu_seconds(server[0]) for k, server in servers.items()}
    try:
        with ThreadPoolExecutor(args.batch) as pool:
            for i in range(0, len(prompts), args.batch):
                texts = {}
                for k, (_, url) in servers.items():
                    def ask(n):
                        how = {"max_new_tokens": args.tokens, "details": True}
                        if args.sample:
                            how.update(do_sample=True, temperature=1.0, seed=n)
                        return requests.post(url + "/generate", json={"inputs": prompts[n], "parameters": how}, timeout=600).json()
                    start = time.perf_counter()
                    answers = list(pool.map(ask, range(i, min(i + args.batch, len(prompts)))))
                    seconds = time.perf_counter() - start
                    rates[k].append(sum(a["details"]["generated_tokens"] for a in answers) / seconds)
                    texts[k] = [a["generated_text"] for a in answers]
                assert texts["off"] == texts["auto"] == texts["draft"], "the texts differ"
        for k, v in rates.items():
            ratio = statistics.median(a / b for a, b in zip(v, rates["off"]))
            cpu = cpu_seconds(servers[k][0]) - before[k]
            print(f"{k:6} {statistics.median(v):8.1f} tokens/s, ratio {ratio:.3f}; {cpu:.2f} s of processors")
        url = servers["draft"][1]
        one = {n: metric(url, f'tandem_speculated_tokens{n}_total{{source="draft"}}') for n in ("", "_accepted")}
        print(f"draft: {one['']:.0f} candidates, {one['_accepted']:.0f} right; {metric(url, 'tandem_draft_steps_total'):.0f} "
              f"steps of the draft, {metric(url, 'tandem_steps_total'):.0f} of the model ({metric(servers['off'][1], 'tandem_steps_total'):.0f} without)")
    finally:
        for process, _ in servers.values():
            process.terminate()


if __name__ == "__main__":
    main()
