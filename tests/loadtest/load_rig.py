"""Running tandem-loadtest and the scripts around it, and a server that misbehaves as told."""
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))
from conftest import BUILD, ENV, ROOT, at_some_pace, wait_for  # noqa: E402

LOADTEST = BUILD / "loadtest" / "tandem-loadtest"
QUIET = {k: v for k, v in ENV.items() if k != "LOADTEST_KEY"}


def command(url, *flags, out=None):
    return [LOADTEST, "--url", url, "--quiet", *(["--json", out] if out else []), *map(str, flags)]


def run_load(tmp_path, url, *flags, status=0):
    """The JSON report of one run."""
    out = tmp_path / f"load{time.monotonic_ns()}.json"
    done = subprocess.run(command(url, *flags, out=out), capture_output=True, text=True, timeout=300, env=QUIET)
    assert done.returncode == status, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.stderr == "", done.stderr
    report = json.loads(out.read_text())
    report["table"] = done.stdout
    return report


def schedule(*flags):
    done = subprocess.run([LOADTEST, "--dry-run", *map(str, flags)], capture_output=True, text=True, timeout=300, check=True, env=QUIET)
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcomes(run):
    """What happened at all: {"ok": 3}"""
    return {k: v for k, v in run["outcomes"].items() if v}


def event(text="a", finish=None):
    body = {"choices": [{"text": text, "finish_reason": finish}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(data):
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"data":[{"id":"fake"}]}'


def answer(status, body=b"", headers=b""):
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n%s\r\n" % (status, len(body), headers) + body


class Fake:
    """A server on a thread for each connection: reply(number of the request, send, request's bytes) answers; a reply that
    returns False ends the connection."""

    def __init__(self, reply):
        self.reply, self.count, self.lock = reply, 0, threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        data = b""
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    while b"\r\n\r\n" not in data:
                        more = connection.recv(65536)
                        if not more:
                            return
                        data += more
                    head, _, data = data.partition(b"\r\n\r\n")
                    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
                    while len(data) < length:
                        data += connection.recv(65536)
                    body, data = data[:length], data[length:]
                    if head.startswith(b"GET /v1/models"):
                        connection.sendall(answer(200, MODELS))
                        continue
                    with self.lock:
                        number = self.count
                        self.count += 1
                    if self.reply(number, connection.sendall, body) is False:
                        return
        except OSError:
            pass  # the client left

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        try:
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which would keep the port open
        except OSError:
            pass
        self.listener.close()
        for connection in self.open:
            connection.close()


def tokens(send, n=4, pause=0.0):
    """A whole answer of n pieces."""
    send(HEAD)
    for i in range(n):
        if pause:
            time.sleep(pause)
        send(chunk(event()))
    send(chunk(event("", "length")) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


def nearest_rank(values, percent):
    values = sorted(values)
    return values[max(1, -(-len(values) * round(percent * 10) // 1000)) - 1]


__all__ = ["ROOT", "at_some_pace", "wait_for"]  # for the tests
