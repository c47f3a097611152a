#!/usr/bin/env python3
"""A batch beside requests of clients: what the batch gets alone, and what the requests get without and with it.

    tandem serve --model DIR --quantize int8 --threads 2 &
    batch_beside.py --url http://127.0.0.1:8080 --streams 4 --prompt-tokens 64 --generate-tokens 64

Three measurements of one server, which nobody else uses and which asks for no key: streams alone, the batch alone, streams beside
the batch.  Every line of the batch generates as many tokens as a stream.  The batch is cancelled at the end.  Standard library only.
"""
import argparse
import json
import random
import re
import sys
import time
import urllib.request
from urllib.parse import urlsplit

import bench_http


def fail(text):
    sys.exit(f"batch_beside.py: {text}")


def call(a, path, body=None, kind="application/json"):
    request = urllib.request.Request(a.url.rstrip("/") + path, data=body, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=a.timeout) as r:
            return r.read().decode()
    except OSError as e:
        fail(f"{path}: {e}")


def start_batch(a, model, rng):
    """-> the batch's id, when it has its first answers."""
    lines = []
    for i in range(a.lines):
        body = {"model": model, "prompt": " ".join(rng.choice(bench_http.WORDS) for _ in range(a.prompt_tokens // 2)),
                "max_tokens": a.generate_tokens, "ignore_eos": True, "temperature": 0}
        lines.append(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}))
    mark = f"tandem{rng.randrange(1 << 60):x}"
    form = (f'--{mark}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="lines.jsonl"\r\n\r\n' + "\n".join(lines) + f"\n\r\n--{mark}--\r\n")
    file = json.loads(call(a, "/v1/files", form.encode(), f"multipart/form-data; boundary={mark}"))["id"]
    made = json.dumps({"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
    batch = json.loads(call(a, "/v1/batches", made.encode()))["id"]
    deadline = time.monotonic() + a.timeout
    while not answered(a):
        if time.monotonic() > deadline or json.loads(call(a, f"/v1/batches/{batch}"))["status"] in ("failed", "completed"):
            fail("the batch has no answers, or none left: give it more --lines")
        time.sleep(0.05)
    return batch


def answered(a):
    return sum(float(v) for v in re.findall(r"^tandem_batch_lines_total\S* (\S+)", call(a, "/metrics"), re.M)) - a.before


def streams(a, rng):
    """-> of several runs: percentiles in milliseconds."""
    runs = []
    for _ in range(a.repeat):
        done, cpu = bench_http.run(urlsplit(a.url), a, rng, a.streams, a.prompt_tokens, a.generate_tokens)
        for s in done:
            s.check(a)
        runs.append(bench_http.measure(done, cpu, a))
    out = {}
    for what, p in (("ttft", "p50"), ("ttft", "p95"), ("itl", "p50"), ("itl", "p95")):
        seen = sorted(1e3 * r[what][p] for r in runs if r[what][p] is not None)  # None: no two streams decoded at once
        out[f"{what}_{p}_ms"] = seen[len(seen) // 2] if seen else None
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--streams", type=int, default=4)
    p.add_argument("--prompt-tokens", type=int, default=64)
    p.add_argument("--generate-tokens", type=int, default=64)
    p.add_argument("--lines", type=int, default=5000, help="of the batch: more than are answered meanwhile")
    p.add_argument("--seconds", type=float, default=10, help="how long the batch is measured alone")
    p.add_argument("--repeat", type=int, default=5)
    p.add_argument("--timeout", type=float, default=600)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    a.sample, a.every, rng = False, 0, random.Random(1)
    a.before = 0
    a.before = answered(a)
    model = json.loads(call(a, "/v1/models"))["data"][0]["id"]
    bench_http.run(urlsplit(a.url), a, rng, 1, a.prompt_tokens, a.generate_tokens)  # warm-up
    out = {"streams_alone": streams(a, rng)}
    batch = start_batch(a, model, rng)
    lines, began = answered(a), time.monotonic()
    time.sleep(a.seconds)
    out["batch_alone"] = {"lines_per_s": (answered(a) - lines) / (time.monotonic() - began)}
    lines, began = answered(a), time.monotonic()
    out["streams_beside"] = streams(a, rng)
    out["batch_beside"] = {"lines_per_s": (answered(a) - lines) / (time.monotonic() - began)}
    if answered(a) >= a.lines:
        fail("the batch was over before the streams were: give it more --lines")
    call(a, f"/v1/batches/{batch}/cancel", b"")
    for part in ("batch_alone", "batch_beside"):
        out[part]["tokens_per_s"] = out[part]["lines_per_s"] * a.generate_tokens
    if a.json:
        print(json.dumps(out))
        return
    print(f"{a.streams} streams, prompts of {a.prompt_tokens}, {a.generate_tokens} generated each")
    for what, alone in out["streams_alone"].items():
        beside = out["streams_beside"][what]
        if alone is None or beside is None:
            print(f"{what}: the streams did not overlap; raise --generate-tokens")
            continue
        ratio = f": {beside / alone:.2f}" if alone else ""
        print(f"{what.removesuffix('_ms').replace('_', ' '):10} alone {alone:8.1f} ms, beside the batch {beside:8.1f} ms{ratio}")
    for part in ("batch_alone", "batch_beside"):
        print(f"{part.replace('_', ' '):12} {out[part]['lines_per_s']:.1f} lines/s, {out[part]['tokens_per_s']:.0f} generated tokens/s")


if __name__ == "__main__":
    main()
