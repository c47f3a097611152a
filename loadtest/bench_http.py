#!/usr/bin/env python3
"""What concurrent streams get from a running `tandem serve`: steady tokens/s, time to first token, time between tokens.

    tandem serve --model DIR --quantize int8 --threads 2 &
    bench_http.py --url http://127.0.0.1:8080 --streams 32 --prompt-tokens 512 --generate-tokens 64

Opens S streams on /generate_stream at once, each with a prompt of its own of exactly P tokens (random words, cut by the
server with `truncate`) and G tokens to generate, end of text ignored.  The steady rate is counted from the moment when every
stream has its first token to the first stream's end: all S streams decode then and no prompt is read.

The client shares the machine with the server, so it must cost little: one thread, plain sockets, events are counted by
their blank line and not parsed.  `--every MS` looks at the sockets only so often, which costs even less and makes the
times coarser by as much; the client's own CPU time is printed.  Standard library only.
"""
import argparse
import json
import random
import resource
import selectors
import socket
import statistics
import sys
import time
from urllib.parse import urlsplit

WORDS = ("time year people way day man thing woman life child world school state family student group country problem hand "
         "part place case week company system program question work night point home water room mother area money story "
         "fact month lot right study book eye job word business issue side kind head house service friend father power "
         "hour game line end member law car city name team minute idea body back parent face level office door health "
         "person art war history party result change morning reason research girl guy moment air teacher force").split()


def fail(text):
    sys.exit(f"bench_http.py: {text}")


class Stream:
    """One request: its socket, what arrived last, and (time, events) of every read."""

    def __init__(self, address, request):
        self.request = request
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.tail = b""    # the last bytes: holds the final event at the end
        self.reads = []    # (seconds, events)
        self.events = 0
        self.sent = None
        self.done = False

    def send(self):
        self.sock.setblocking(True)
        self.sent = time.perf_counter()
        self.sock.sendall(self.request)
        self.sock.setblocking(False)

    def read(self, now):
        """Counts the events that arrived.  An event ends in a blank line and holds no raw line feed before it (it is JSON);
        lines of the head and of chunked coding end in CR LF, so they are no blank lines."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return
        if not data:
            self.done = True
            return
        n = data.count(b"\n\n") + (data[:1] == b"\n" and self.tail[-1:] == b"\n")
        self.tail = (self.tail + data)[-32768:]
        if n:
            self.events += n
            self.reads.append((now, n))
        if self.tail.endswith(b"\r\n0\r\n\r\n"):
            self.done = True

    def check(self, a):
        """The server's own count, from the final event."""
        begin = self.tail.rfind(b"data:")
        text = self.tail[begin + 5:].split(b"\n\n")[0] if begin >= 0 else self.tail
        try:
            d = json.loads(text)["details"]
        except (ValueError, KeyError, TypeError):
            fail(f"a stream ended without its final event; the last bytes: {self.tail[-400:]!r}")
        if d["generated_tokens"] != a.generate_tokens or d["input_length"] != a.prompt_tokens:
            fail(f"a stream had {d['input_length']} prompt and {d['generated_tokens']} generated tokens, not "
                 f"{a.prompt_tokens} and {a.generate_tokens}")
        if self.events != a.generate_tokens:
            fail(f"{self.events} events for {a.generate_tokens} tokens (a keep-alive comment counts as one: is the server "
                 "stalled, or --sse-keepalive small?)")


def request_bytes(url, a, rng, n_prompt, n_new):
    """Every word is at least one token, so as many words as tokens are enough; the server keeps the last n_prompt."""
    text = " ".join(rng.choice(WORDS) for _ in range(n_prompt + 8))
    parameters = {"max_new_tokens": n_new, "ignore_eos": True, "truncate": n_prompt, "details": True}
    if a.sample:
        parameters.update(do_sample=True, temperature=0.8, top_p=0.95, seed=rng.randrange(1 << 31))
    body = json.dumps({"inputs": text, "parameters": parameters}).encode()
    head = (f"POST {url.path.rstrip('/')}/generate_stream HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    return head.encode() + body


def follow(streams, a, clock=time.perf_counter):
    """Sends every request, then reads until every stream has ended."""
    selector = selectors.DefaultSelector()
    for s in streams:
        selector.register(s.sock, selectors.EVENT_READ, s)
    for s in streams:
        s.send()
    left, deadline = len(streams), clock() + a.timeout
    while left:
        ready = selector.select(timeout=1)
        now = clock()
        if now > deadline:
            fail(f"{left} of {len(streams)} streams did not end within {a.timeout:g} s")
        for key, _ in ready:
            s = key.data
            s.read(now)
            if s.done:
                selector.unregister(s.sock)
                s.sock.close()
                left -= 1
        if a.every:
            time.sleep(a.every / 1000)
    selector.close()


def run(url, a, rng, n, n_prompt, n_new):
    address = (url.hostname, url.port or 80)
    try:
        streams = [Stream(address, request_bytes(url, a, rng, n_prompt, n_new)) for _ in range(n)]
    except OSError as e:
        fail(f"{url.netloc}: {e}")
    cpu = cpu_seconds()
    follow(streams, a)
    cpu = cpu_seconds() - cpu
    for s in streams:
        if not s.events:
            fail(f"the server answered: {s.tail.decode(errors='replace')[:600]}")
    return streams, cpu


def wait_ready(url, seconds):
    """Returns when GET /ready answers 200: the server answers while its model still loads."""
    answer = b""
    for _ in range(int(seconds)):
        try:
            with socket.create_connection((url.hostname, url.port or 80)) as s:
                s.sendall(f"GET {url.path.rstrip('/')}/ready HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n".encode())
                answer = s.makefile("rb").read()
        except OSError as e:
            fail(f"{url.netloc}: {e}")
        if answer.startswith(b"HTTP/1.1 200"):
            return
        time.sleep(1)
    fail(f"{url.netloc} is not ready after {seconds:g} s: {answer[-200:].decode(errors='replace')}")


def cpu_seconds():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))] if values else None


def rate(s, begin, end):
    """A stream's tokens/s from its first to its last read in the interval: whole steps, so their sum has no error at the edges."""
    reads = [r for r in s.reads if begin <= r[0] <= end]
    seconds = reads[-1][0] - reads[0][0] if reads else 0
    return sum(n for _, n in reads[1:]) / seconds if seconds > 0 else None


def measure(streams, cpu, a):
    """Of one run, a dict; times in seconds."""
    begin = max(s.reads[0][0] for s in streams)
    end = min(s.reads[-1][0] for s in streams)
    rates = [rate(s, begin, end) for s in streams]
    first_sent, last = min(s.sent for s in streams), max(s.reads[-1][0] for s in streams)
    gaps = []
    for s in streams:
        for (t0, _), (t1, n) in zip(s.reads, s.reads[1:]):
            if begin <= t0 and t1 <= end:
                gaps += [t1 - t0] + [0.0] * (n - 1)  # events read together: the later ones waited for nothing
    total = sum(s.events for s in streams)
    out = {"streams": len(streams), "prompt_tokens": a.prompt_tokens, "generate_tokens": a.generate_tokens,
           "steady_tokens_per_s": None if None in rates else sum(rates), "steady_seconds": end - begin,
           "total_tokens_per_s": total / (last - first_sent), "total_seconds": last - first_sent,
           "client_cpu_seconds": cpu, "client_cpu_share": cpu / (last - first_sent)}
    ttft = [s.reads[0][0] - s.sent for s in streams]
    for name, values in (("ttft", ttft), ("itl", gaps)):
        out[name] = {f"p{p}": percentile(values, p) for p in (50, 95, 99)}
        out[name]["max"] = max(values) if values else None
    return out


def report(r):
    print(f"{r['streams']} streams, prompts of {r['prompt_tokens']}, {r['generate_tokens']} generated each")
    if r["steady_tokens_per_s"] is None:
        print("  steady         none: the first stream ended before the last one began (raise --generate-tokens)")
    else:
        print(f"  steady         {r['steady_tokens_per_s']:.1f} tokens/s over {r['steady_seconds']:.2f} s")
    print(f"  whole run      {r['total_tokens_per_s']:.1f} tokens/s over {r['total_seconds']:.2f} s, prompts included")
    for name, text in (("ttft", "first token"), ("itl", "between tokens")):
        v = r[name]
        if v["max"] is not None:
            print(f"  {text:14}" + " " + ", ".join(f"{k} {1000 * v[k]:.1f}" for k in ("p50", "p95", "p99", "max")) + " ms")
    print(f"  this client    {r['client_cpu_seconds']:.2f} s of CPU, {100 * r['client_cpu_share']:.1f} % of one core")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--url", default="http://127.0.0.1:8080")
    ap.add_argument("--streams", type=int, default=32, metavar="S")
    ap.add_argument("--prompt-tokens", type=int, default=512, metavar="P")
    ap.add_argument("--generate-tokens", type=int, default=64, metavar="G", help="per stream")
    ap.add_argument("--repeat", type=int, default=1, help="runs; the median of the steady rates is printed too")
    ap.add_argument("--every", type=float, default=0, metavar="MS", help="rest so long after each look at the sockets")
    ap.add_argument("--sample", action="store_true", help="sample (temperature 0.8, top-p 0.95) instead of the best token")
    ap.add_argument("--seed", type=int, help="of the prompts; without it other ones each time (the same ones again hit the "
                    "server's prefix cache)")
    ap.add_argument("--timeout", type=float, default=600, metavar="S", help="seconds for one run")
    ap.add_argument("--json", action="store_true")
    a = ap.parse_args()
    if a.generate_tokens < 2 or a.streams < 1 or a.prompt_tokens < 1:
        fail("at least one stream, one prompt token and two generated ones")
    url = urlsplit(a.url if "://" in a.url else "http://" + a.url)
    if url.scheme != "http":
        fail(f"only http:// is spoken, not {url.scheme}://")
    rng = random.Random(a.seed)
    wait_ready(url, a.timeout)
    run(url, a, rng, 1, 8, 4)  # wakes the workers
    results = []
    for _ in range(a.repeat):
        streams, cpu = run(url, a, rng, a.streams, a.prompt_tokens, a.generate_tokens)
        for s in streams:
            s.check(a)
        results.append(measure(streams, cpu, a))
        if not a.json:
            report(results[-1])
    rates = [r["steady_tokens_per_s"] for r in results if r["steady_tokens_per_s"] is not None]
    median = statistics.median(rates) if rates else None
    if a.json:
        print(json.dumps({"url": a.url, "median_steady_tokens_per_s": median, "runs": results}, indent=1))
    elif a.repeat > 1 and median is not None:
        print(f"median of {len(rates)}: {median:.1f} tokens/s")


if __name__ == "__main__":
    main()
