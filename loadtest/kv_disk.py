#!/usr/bin/env python3
"""A long conversation, a restart, the next turn: the time to its first token with pages on disk and without.

    kv_disk.py --model MODEL [--tokens 16000] [--turn 200] [--repeat 3] [-- FLAGS OF tandem serve]
    kv_disk.py --model MODEL --gguf MODEL-q8_0.gguf --llama-python venv/bin/python

With --llama-python, llama.cpp beside it in the same run (PyPI's llama-cpp-python; docs/compare.md says how to install it):
its state is saved to a file, and loaded by another process, as llama-server's slot save and restore do it.  With
--gguf tandem opens the same file.  Texts are random token ids.  Every time is that of a new process with a loaded model, from
the request until its first token; for llama.cpp from before the state is read.
"""
import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from runner import BUILD, Process, fail, get


def first_token(url, ids):
    """Seconds to the first token, and the whole answer."""
    body = json.dumps({"prompt": ids, "max_tokens": 16, "temperature": 0, "stream": True, "ignore_eos": True,
                       "stream_options": {"include_usage": True}}).encode()
    request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
    start, first, text, cached = time.monotonic(), None, "", 0
    with urllib.request.urlopen(request, timeout=3600) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("usage"):
                cached = event["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
            if event["choices"]:
                first = first or time.monotonic() - start
                text += event["choices"][0]["text"]
    return first, text, cached


def metric(url, name):
    return next((float(line.split()[1]) for line in get(url + "/metrics")[1].splitlines() if line.startswith(name + " ")), 0.0)


class Tandem:
    def __init__(self, args, disk):
        self.command = [args.tandem, "serve", "--model", args.gguf or args.model, "--port", "0", *args.flags]
        self.disk = disk

    def turn(self, ids, disk, wait_pages=0):
        with tempfile.TemporaryDirectory() as data:
            server = Process([*self.command, "--data-dir", data, *(["--kv-disk", self.disk] if disk else [])], seconds=1800)
            seconds, text, cached = first_token(server.url, ids)
            while disk and wait_pages and metric(server.url, "tandem_kv_disk_pages") < wait_pages:
                time.sleep(0.1)
            load = metric(server.url, "tandem_kv_disk_load_seconds_total")
            bytes_ = metric(server.url, "tandem_kv_disk_bytes")
            server.stop()
        return {"seconds": seconds, "text": text, "cached": cached, "load_seconds": load, "disk_bytes": bytes_}


LLAMA = r"""
import ctypes, json, sys, time
import llama_cpp
what, model, state, threads, n, turn, seed = sys.argv[1:8]
n, turn, threads = int(n), int(turn), int(threads)
sys.path.insert(0, sys.argv[8])
from kv_disk import prompt
ids = prompt(int(seed), n, turn)
llm = llama_cpp.Llama(model, n_ctx=n + turn + 64, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
                      use_mmap=True, verbose=False, logits_all=False)
ctx, done = llm._ctx.ctx, 0
start = time.monotonic()
if what == "load":
    out, count = (llama_cpp.llama_token * n)(), ctypes.c_size_t()
    if not llama_cpp.llama_state_load_file(ctx, state.encode(), out, n, ctypes.byref(count)):
        sys.exit("the state does not load")
    done = count.value
    assert list(out[:done]) == ids[:done]
end = n if what == "save" else n + turn
for at in range(done, end, 512):
    part = ids[at:min(at + 512, end)]
    tokens = (llama_cpp.llama_token * len(part))(*part)  # the batch points to it
    if llama_cpp.llama_decode(ctx, llama_cpp.llama_batch_get_one(tokens, len(part))):
        sys.exit("llama_decode failed")
logits = llama_cpp.llama_get_logits_ith(ctx, -1)
best = max(range(llm.n_vocab()), key=lambda i: logits[i]) if what != "save" else 0
seconds = time.monotonic() - start
if what == "save":
    start = time.monotonic()
    if not llama_cpp.llama_state_save_file(ctx, state.encode(), (llama_cpp.llama_token * n)(*ids[:n]), n):
        sys.exit("the state is not saved")
    print(json.dumps({"seconds": seconds, "save_seconds": time.monotonic() - start}))
else:
    print(json.dumps({"seconds": seconds, "token": best, "cached": done}))
"""


def llama(args, what, state, seed):
    run = subprocess.run([args.llama_python, "-c", LLAMA, what, args.gguf, state, str(args.threads), str(args.tokens), str(args.turn),
                          str(seed), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        fail(f"llama.cpp: {what} failed")
    return json.loads(run.stdout.splitlines()[-1])


def prompt(seed, tokens, turn):
    """Ids that every vocabulary of the shapes here has."""
    chance = random.Random(seed)
    return [chance.randrange(300, 30000) for _ in range(tokens + turn)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="directory")
    parser.add_argument("--gguf", help="a GGUF file that both programs open")
    parser.add_argument("--tandem", default=str(BUILD / "server" / "tandem"))
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python")
    parser.add_argument("--tokens", type=int, default=16000)
    parser.add_argument("--turn", type=int, default=200, help="tokens of the next turn")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--disk", help="where the pages and states go; default: the directory for temporary files")
    parser.add_argument("flags", nargs="*", help="further flags of tandem serve, behind --")
    args = parser.parse_args()
    if not (args.model or args.gguf) or (args.llama_python and not args.gguf):
        fail("give --model, or --gguf for both programs")
    args.flags = ["--threads", str(args.threads), *args.flags]
    rows = {}
    for k in range(args.repeat):
        folder = tempfile.mkdtemp(prefix="kv-disk-", dir=args.disk)
        ids, tandem = prompt(k, args.tokens, args.turn), Tandem(args, folder + "/kv")
        pages = args.tokens // 16
        first = tandem.turn(ids[:args.tokens], True, pages)
        hit = tandem.turn(ids, True)
        again = tandem.turn(ids, False)
        if hit["text"] != again["text"] or hit["cached"] < args.tokens - 16:
            fail(f"wrong: {hit} {again}")
        for name, value in ("tandem, first turn", first), ("tandem, next turn from disk", hit), ("tandem, next turn computed", again):
            rows.setdefault(name, []).append(value["seconds"])
        rows.setdefault("tandem, of it reading pages", []).append(hit["load_seconds"])
        print(f"round {k + 1}: {first['disk_bytes'] / 1e6:.0f} MB on disk, {hit['cached']} tokens from it; "
              f"{first['seconds']:.2f} s, {hit['seconds']:.2f} s from disk, {again['seconds']:.2f} s computed", file=sys.stderr)
        if args.llama_python:
            state = folder + "/state"
            saved, loaded = llama(args, "save", state, k), llama(args, "load", state, k)
            computed = llama(args, "compute", state, k)
            rows.setdefault("llama.cpp, first turn", []).append(saved["seconds"])
            rows.setdefault("llama.cpp, saving its state", []).append(saved["save_seconds"])
            rows.setdefault("llama.cpp, next turn from its state", []).append(loaded["seconds"])
            rows.setdefault("llama.cpp, next turn computed", []).append(computed["seconds"])
            print(f"         llama.cpp: {Path(state).stat().st_size / 1e6:.0f} MB; {saved['seconds']:.2f} s, {loaded['seconds']:.2f} s "
                  f"from disk, {computed['seconds']:.2f} s computed", file=sys.stderr)
        shutil.rmtree(folder)
    for name, values in rows.items():
        print(f"{name}: {statistics.median(values):.3f} s ({', '.join(f'{v:.3f}' for v in values)})")
    ratio = statistics.median(rows["tandem, next turn from disk"]) / statistics.median(rows["tandem, next turn computed"])
    print(f"tandem, from disk / computed: {ratio:.4f}")


if __name__ == "__main__":
    main()
