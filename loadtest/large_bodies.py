#!/usr/bin/env python3
"""What clients notice while another one sends large bodies: GET /health's latency and the time between the tokens of a
stream, alone and beside a loop of refused 2 MB bodies, of /tokenize and of /detokenize with large answers.

    loadtest/large_bodies.py --url http://127.0.0.1:8080 [--seconds 8]
"""
import argparse
import http.client
import json
import statistics
import threading
import time
from urllib.parse import urlsplit

SIZE = 2_000_000
LOADS = {
    "none": None,
    "refused numbers": ("/generate", b'{"inputs":"a","x":[' + b"0," * ((SIZE - 40) // 2) + b"0]"),  # one brace is missing
    "refused keys": ("/v1/completions", b'{"x":{' + b'"a":0,' * ((SIZE - 40) // 6) + b'"a":0}}'),
    "tokenize": ("/tokenize", json.dumps({"inputs": "ab " * (SIZE // 3 - 20)}).encode()),
    "detokenize": ("/detokenize", json.dumps({"tokens": [5] * 40_000}).encode()),
}


def connect(url):
    return http.client.HTTPConnection(url.hostname, url.port, timeout=60)


def post(c, path, body):
    c.request("POST", path, body, {"Content-Type": "application/json"})
    answer = c.getresponse()
    return answer.status, len(answer.read())


class Load(threading.Thread):
    def __init__(self, url, path, body):
        super().__init__()
        self.url, self.path, self.body, self.stop, self.answers = url, path, body, threading.Event(), {}

    def run(self):
        c = connect(self.url)
        while not self.stop.is_set():
            try:
                status, _ = post(c, self.path, self.body)
            except (http.client.HTTPException, OSError):
                c.close()
                status = "cut off"
            self.answers[status] = self.answers.get(status, 0) + 1


def health(url, seconds):
    c, times, end = connect(url), [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        c.request("GET", "/health")
        c.getresponse().read()
        times.append(time.monotonic() - begin)
        time.sleep(0.005)
    return times


def gaps(url, seconds):
    """Seconds between the events of one stream after the other."""
    times, end = [], time.monotonic() + seconds
    body = json.dumps({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 200, "ignore_eos_token": True}})
    while time.monotonic() < end:
        c = connect(url)
        c.request("POST", "/generate_stream", body, {"Content-Type": "application/json"})
        answer, last = c.getresponse(), None
        while time.monotonic() < end and (line := answer.readline()):
            if line.startswith(b"data:"):
                now = time.monotonic()
                if last:
                    times.append(now - last)
                last = now
        c.close()
    return times


def row(times):
    times = sorted(times)
    return f"{statistics.median(times) * 1e3:8.2f} {times[int(len(times) * 0.99)] * 1e3:8.2f} {times[-1] * 1e3:8.2f}" if times else " " * 26


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://127.0.0.1:8080")
    p.add_argument("--seconds", type=float, default=8, help="for each load")
    args = p.parse_args()
    url = urlsplit(args.url)
    print(f"{'ms':18}{'/health p50':>12}{'p99':>6}{'max':>9}   {'gap p50':>8}{'p99':>9}{'max':>9}   answers of the load", flush=True)
    for name, what in LOADS.items():
        load = Load(url, *what) if what else None
        if load:
            load.start()
        latencies = health(url, args.seconds / 2)
        between = gaps(url, args.seconds / 2)
        if load:
            load.stop.set()
            load.join()
        print(f"{name:18}{row(latencies)}   {row(between)}   {load.answers if load else ''}", flush=True)


if __name__ == "__main__":
    main()
