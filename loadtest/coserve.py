#!/usr/bin/env python3
"""What training costs the served and what serving leaves for training, on one daemon that this program starts.

    coserve.py --model models/demo --tandem build/server/tandem --threads 2 --streams 8

Measures, in this order and `rounds` times: time between tokens of S streams without and with a training job; training alone in
the daemon; training offline (`tandem train`); then training's share against the rate of requests that arrive at random.
Standard library only, beside bench_http.py.
"""
import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from types import SimpleNamespace
from urllib.parse import urlsplit

import bench_http


def fail(text):
    sys.exit(f"coserve.py: {text}")


class Daemon:
    def __init__(self, a, data_dir):
        command = [a.tandem, "serve", "--model", a.model, "--port", "0", "--threads", str(a.threads), "--data-dir", data_dir,
                   "--quantize", a.quantize] + a.option
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("listening"):
                break
        self.url = urlsplit(self.lines[-1].split()[1]) if self.lines and self.lines[-1].startswith("listening") else None
        threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True).start()
        if not self.url:
            fail("the daemon did not start:\n" + "".join(self.lines))
        bench_http.wait_ready(self.url, 120)

    def call(self, method, path, body=None):
        request = urllib.request.Request(self.url.geturl() + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return json.load(r)
        except urllib.error.HTTPError as e:
            fail(f"{method} {path}: {e.code} {e.read().decode(errors='replace')[:500]}")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def hyperparameters(a):
    return {"epochs": 1000, "max_steps": 1000000, "learning_rate": 1e-4, "lora_r": 8, "lora_alpha": 16, "batch_tokens": a.batch_tokens,
            "max_length": a.length, "seed": 7}


class Job:
    """A training job that is far from its end."""

    def __init__(self, daemon, a):
        self.daemon = daemon
        self.id = daemon.call("POST", "/train", {"method": "lora", "serve_as": "bench", "dataset": {"path": "rows.jsonl"},
                                                 "hyperparameters": hyperparameters(a)})["id"]
        while self.tokens() == 0:
            time.sleep(0.1)

    def tokens(self):
        job = self.daemon.call("GET", f"/train/{self.id}")
        if job["status"] not in ("queued", "running", "preparing"):
            fail(f"the job is {job['status']}: {job.get('error')}")
        return job.get("tokens") or 0

    def rate(self, begin):
        """Tokens/s from one end of a step, a pair of time and tokens, to the next end."""
        end = self.mark()
        return (end[1] - begin[1]) / (end[0] - begin[0])

    def mark(self):
        """Waits for the end of a step."""
        n = self.tokens()
        while self.tokens() == n:
            time.sleep(0.02)
        return time.time(), self.tokens()

    def cancel(self):
        self.daemon.call("POST", f"/train/{self.id}/cancel")
        while self.daemon.call("GET", f"/train/{self.id}")["status"] not in ("cancelled", "failed", "succeeded"):
            time.sleep(0.05)


def streams(daemon, a, rng):
    args = SimpleNamespace(prompt_tokens=a.prompt_tokens, generate_tokens=a.generate_tokens, sample=False, timeout=600, every=0)
    got, cpu = bench_http.run(daemon.url, args, rng, a.streams, a.prompt_tokens, a.generate_tokens)
    return bench_http.measure(got, cpu, args)["itl"]


def offline_rate(a, rows, steps):
    """Tokens/s of `tandem train`, the median of its steps after the first."""
    p = hyperparameters(a)
    with tempfile.TemporaryDirectory() as d:
        command = [a.tandem, "train", "--model", a.model, "--data", rows, "--out", os.path.join(d, "adapter"), "--method", "lora",
                   "--threads", str(a.threads), "--quantize", a.quantize, "--seed", "7", "--epochs", "1000", "--max-steps", str(steps)]
        for name in ("learning_rate", "lora_r", "lora_alpha", "batch_tokens", "max_length"):
            command += ["--" + name.replace("_", "-"), str(p[name])]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    rates = [float(m[1]) for m in re.finditer(r"^step \d+ of .*?([\d.]+) tokens/s", run.stdout, re.M)]
    if run.returncode or len(rates) < 2:
        fail("tandem train printed no steps:\n" + run.stdout)
    return statistics.median(rates[1:])


def arrivals(daemon, a, rate, seconds, rng):
    """Requests at random times; each waits for its answer on a thread of its own."""
    threads, end = [], time.time() + seconds
    body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": a.generate_tokens, "ignore_eos": True}}
    while rate and time.time() < end:
        time.sleep(rng.expovariate(rate))
        t = threading.Thread(target=lambda: daemon.call("POST", "/generate", body))
        t.start()
        threads.append(t)
    if not rate:
        time.sleep(seconds)
    for t in threads:
        t.join()
    return len(threads)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--model", default="models/demo")
    p.add_argument("--tandem", default="build/server/tandem")
    p.add_argument("--quantize", default="none")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--streams", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=64)
    p.add_argument("--generate-tokens", type=int, default=200)
    p.add_argument("--batch-tokens", type=int, default=2048)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--seconds", type=float, default=10, help="of each measurement without streams")
    p.add_argument("--rates", default="0,1,2,5,10,20", help="requests a second")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("option", nargs="*", help="after --: further options of tandem serve")
    a = p.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as data_dir:
        rows = os.path.join(data_dir, "rows.jsonl")
        vocab = len(json.load(open(os.path.join(a.model, "tokenizer.json")))["model"]["vocab"])  # may be less than the model's
        with open(rows, "w") as f:
            for _ in range(400):
                f.write(json.dumps({"input_ids": [rng.randrange(3, vocab) for _ in range(a.length)]}) + "\n")
        daemon = Daemon(a, data_dir)
        try:
            without, beside, alone, offline = [], [], [], []
            streams(daemon, a, rng)  # warm
            for i in range(a.rounds):
                without.append(streams(daemon, a, rng))
                job = Job(daemon, a)
                beside.append(streams(daemon, a, rng))
                begin = job.mark()
                time.sleep(a.seconds)
                alone.append(job.rate(begin))
                job.cancel()
                offline.append(offline_rate(a, rows, max(4, int(alone[-1] * a.seconds / a.batch_tokens))))
                print(f"round {i + 1}: p99 {1000 * without[-1]['p99']:.2f} -> {1000 * beside[-1]['p99']:.2f} ms, training {alone[-1]:.0f}"
                      f" of {offline[-1]:.0f} tokens/s", file=sys.stderr)
            for name in ("p50", "p95", "p99", "max"):
                x, y = (statistics.median(v[name] for v in values) * 1000 for values in (without, beside))
                print(f"between tokens, {name:4} {x:8.2f} ms without training, {y:8.2f} ms beside it" + (f": {y / x:.2f}x" if x else ""))
            x, y = statistics.median(alone), statistics.median(offline)
            print(f"training with nobody served {x:.0f} tokens/s, offline {y:.0f}: {x / y:.2f}")
            job = Job(daemon, a)
            print(f"\n{'requests/s':>10}{'tokens/s asked':>16}{'training tokens/s':>19}{'of alone':>10}")
            for rate in (float(r) for r in a.rates.split(",")):
                begin = job.mark()
                start = time.time()
                n = arrivals(daemon, a, rate, a.seconds, rng)
                took = time.time() - start
                trained = job.rate(begin)
                print(f"{n / took:10.1f}{n * a.generate_tokens / took:16.0f}{trained:19.0f}{trained / x:10.2f}")
            job.cancel()
        finally:
            daemon.stop()


if __name__ == "__main__":
    main()
