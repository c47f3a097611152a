#!/usr/bin/env python3
"""What requests with new schemas do to the others: time between tokens of free streams on a running `tandem serve`.

    tandem serve --model DIR --quantize int8 --threads 2 &
    constrained_delay.py --url http://127.0.0.1:8080 --streams 8 --generate-tokens 256 --repeat 3

Each round has three runs of the same streams: alone; beside short requests that come one after the other; beside the
same requests, each with a schema that the server has not seen (`--properties` members, so that it takes long to compile).
What the third adds to the second is the price of the schemas for everybody else.  A "step" is the median time between
tokens of that run.  Standard library only.
"""
import argparse
import json
import random
import statistics
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import bench_http

KINDS = ("alone", "beside plain requests", "beside new schemas")


def schema(rng, properties):
    """A new one each time: bounds and names are drawn."""
    def value():
        low = rng.randrange(10 ** 6)
        return rng.choice([{"type": "integer", "minimum": low, "maximum": low + rng.randrange(10 ** 6)},
                           {"type": "string", "minLength": rng.randrange(5), "maxLength": 20 + rng.randrange(40)},
                           {"enum": [f"{rng.randrange(10 ** 9)}" for _ in range(20)]},
                           {"type": "array", "items": {"type": "string", "pattern": f"^[a-z]{{2,{3 + rng.randrange(9)}}}[0-9]+$"}, "maxItems": 9}])
    names = [f"p{rng.randrange(10 ** 9)}" for _ in range(properties)]
    return {"type": "object", "properties": {n: value() for n in names}, "required": names}


class Beside(threading.Thread):
    """Sends requests one after the other until it is stopped; seconds of each."""

    def __init__(self, a, rng, with_schema):
        super().__init__(daemon=True)
        self.a, self.rng, self.with_schema = a, rng, with_schema
        self.stop, self.took, self.refused = threading.Event(), [], 0

    def run(self):
        while not self.stop.is_set():
            parameters = {"max_new_tokens": 4}
            if self.with_schema:
                parameters["grammar"] = {"type": "json", "value": schema(self.rng, self.a.properties)}
            body = json.dumps({"inputs": f"Number {self.rng.random()}", "parameters": parameters}).encode()
            request = urllib.request.Request(self.a.url.rstrip("/") + "/generate", body, {"Content-Type": "application/json"})
            start = time.perf_counter()
            try:
                urllib.request.urlopen(request, timeout=60).read()
            except urllib.error.HTTPError as e:
                self.refused += 1
                self.why = e.read()[:300]
            self.took.append(time.perf_counter() - start)
            time.sleep(self.a.pause / 1000)


def measure(kind, url, a, rng):
    beside = Beside(a, rng, kind == 2) if kind else None
    if beside:
        beside.start()
    streams, cpu = bench_http.run(url, a, rng, a.streams, a.prompt_tokens, a.generate_tokens)
    if beside:
        beside.stop.set()
        beside.join()
        if beside.refused:
            bench_http.fail(f"{beside.refused} of {len(beside.took)} requests were refused: {beside.why.decode(errors='replace')}")
    r = bench_http.measure(streams, cpu, a)
    return r, beside.took if beside else []


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--url", default="http://127.0.0.1:8080")
    ap.add_argument("--streams", type=int, default=8, metavar="S")
    ap.add_argument("--prompt-tokens", type=int, default=32, metavar="P")
    ap.add_argument("--generate-tokens", type=int, default=256, metavar="G", help="per stream")
    ap.add_argument("--properties", type=int, default=100, help="of each schema")
    ap.add_argument("--pause", type=float, default=0, metavar="MS", help="between two of the requests beside")
    ap.add_argument("--repeat", type=int, default=3)
    ap.add_argument("--seed", type=int)
    ap.add_argument("--timeout", type=float, default=600)
    a = ap.parse_args()
    a.every, a.sample = 0, False
    url, rng = urlsplit(a.url), random.Random(a.seed)
    bench_http.wait_ready(url, a.timeout)
    bench_http.run(url, a, rng, 1, 8, 4)
    rounds = [[measure(kind, url, a, rng) for kind in range(3)] for _ in range(a.repeat)]
    print(f"{a.streams} streams of {a.generate_tokens} tokens; medians over {a.repeat} rounds of time between tokens, ms")
    for kind, name in enumerate(KINDS):
        runs = [r[kind] for r in rounds]
        line = f"  {name:22}" + "".join(f"  {p} {1000 * statistics.median(r['itl'][p] for r, _ in runs):7.2f}" for p in ("p50", "p95", "p99", "max"))
        took = [t for _, ts in runs for t in ts]
        if took:
            line += f"   {len(took)} requests beside, of {1000 * statistics.median(took):.0f} ms"
        print(line)
    step = statistics.median(r[1][0]["itl"]["p50"] for r in rounds)
    for p in ("p95", "p99", "max"):
        more = statistics.median(r[2][0]["itl"][p] - r[1][0]["itl"][p] for r in rounds)
        print(f"  schemas add to the {p}: {1000 * more:+.2f} ms, {more / step:+.2f} steps")


if __name__ == "__main__":
    main()
