"""echo_server and what the protocol tests need to speak to it: raw bytes out, answers read one by one."""

import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import requests
from conftest import PATIENCE

HOST = b"Host: test\r\n"


def binary():
    build = os.environ.get("TANDEM_BUILD_DIR")
    assert build, "TANDEM_BUILD_DIR must name the meson build directory"
    path = Path(build) / "tests" / "http" / "echo_server"
    assert path.is_file(), f"{path} is missing: build it first"
    return str(path)


class Server:
    """One echo_server process."""

    def __init__(self, *flags, host="127.0.0.1", tls=None):
        self.host = host
        self.tls = tls  # a file with a certificate and its key
        command = [binary(), "--host", host, *(["--tls", str(tls)] if tls else []), *[str(f) for f in flags]]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("port "), f"echo_server did not start: {self.process.stderr.read()}"
        self.port = int(line.split()[1])

    def connect(self, timeout=PATIENCE, rcvbuf=None):
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        s = socket.socket(family, socket.SOCK_STREAM)
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(timeout)
        s.connect((self.host, self.port))
        return s

    def url(self, path):
        return f"http{'s' if self.tls else ''}://{self.host}:{self.port}{path}"

    def stats(self):
        return requests.get(self.url("/stats"), timeout=300, verify=str(self.tls) if self.tls else True).json()

    def wait_stats(self, condition):
        """Waits until the stats are as they should be; asserts that this happens."""
        end = time.monotonic() + PATIENCE
        while True:
            stats = self.stats()
            if condition(stats) or time.monotonic() > end:
                assert condition(stats), stats
                return stats
            time.sleep(0.01)

    def stop(self, number=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, f"echo_server ended with {self.process.returncode}: {err}"
        return out


@pytest.fixture(scope="module")
def server():
    s = Server("--header-timeout", 60000, "--body-timeout", 60000, "--max-body", 100000, "--high-water", 65536,
               "--low-water", 16384)
    yield s
    s.stop()


@pytest.fixture
def start():
    """Starts servers with flags of their own; they must all end cleanly."""
    servers = []

    def begin(*flags, **kwargs):
        servers.append(Server(*flags, **kwargs))
        return servers[-1]

    yield begin
    for s in servers:
        s.stop()


# ---- reading answers ------------------------------------------------------------------------------------------------


def read_all(s):
    """Until the server closes."""
    data = b""
    while True:
        part = s.recv(65536)
        if not part:
            return data
        data += part


class Reader:
    """Reads answers one by one from a socket."""

    def __init__(self, sock):
        self.sock = sock
        self.data = b""

    def more(self):
        part = self.sock.recv(65536)
        if not part:
            raise EOFError(f"closed after {self.data[:200]!r}")
        self.data += part

    def until(self, mark):
        while mark not in self.data:
            self.more()
        head, self.data = self.data.split(mark, 1)
        return head

    def exactly(self, n):
        while len(self.data) < n:
            self.more()
        part, self.data = self.data[:n], self.data[n:]
        return part

    def head(self):
        lines = self.until(b"\r\n\r\n").split(b"\r\n")
        match = re.fullmatch(rb"HTTP/1\.1 (\d{3}) [A-Za-z -]+", lines[0])
        assert match, lines[0]
        headers = {}
        for line in lines[1:]:
            name, value = line.split(b": ", 1)
            assert name.lower() not in headers or name.lower() == b"vary", f"{name} twice"
            headers[name.lower()] = value
        return int(match[1]), headers

    def answer(self, head_only=False):
        status, headers = self.head()
        if head_only or status in (100, 204, 304):
            return status, headers, b""
        if headers.get(b"transfer-encoding") == b"chunked":
            parts = []
            while size := int(self.until(b"\r\n"), 16):
                parts.append(self.exactly(size))
                assert self.exactly(2) == b"\r\n"
            assert self.until(b"\r\n") == b""
            return status, headers, b"".join(parts)
        return status, headers, self.exactly(int(headers[b"content-length"]))

    def at_end(self):
        return self.data == b"" and self.sock.recv(1) == b""


def exchange(server, raw, **kwargs):
    """Sends bytes, reads one answer, says whether the server then closed (within the linger time)."""
    with server.connect() as s:
        s.sendall(raw)
        reader = Reader(s)
        status, headers, body = reader.answer(**kwargs)
        closed = False
        if headers.get(b"connection") == b"close":
            closed = reader.at_end()
        return status, headers, body, closed


def serves(server):
    assert requests.get(server.url("/hello"), timeout=300).text == "hello\n"


def post(headers, body=b"", path=b"/echo", version=b"HTTP/1.1"):
    return b"POST " + path + b" " + version + b"\r\n" + HOST + headers + b"\r\n" + body


def get(line=b"GET /info HTTP/1.1", headers=b""):
    return line + b"\r\n" + HOST + headers + b"\r\n"


CHUNKED = b"Transfer-Encoding: chunked\r\n"
