"""Two replicas behind HAProxy, by conf/haproxy/tandem.cfg: one is killed, one drains, and no stream of the other breaks."""
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests
from conftest import ENV, PATIENCE, ROOT, wait_for

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
pytestmark = [pytest.mark.full, pytest.mark.skipif(not HAPROXY, reason="no haproxy")]
STREAMS = 16


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stream(threading.Thread):
    """A request through the proxy: which replica answered, its text, and whether it came to its end."""

    def __init__(self, url, seed):
        super().__init__(daemon=True)
        self.url, self.seed, self.replica, self.tokens, self.text, self.begun = url, seed, None, 0, None, threading.Event()
        self.start()

    def run(self):
        parameters = {"max_new_tokens": 420, "ignore_eos": True, "do_sample": True, "seed": self.seed, "details": True}
        try:
            with requests.post(self.url + "/generate_stream", json={"inputs": "Once", "parameters": parameters}, stream=True, timeout=PATIENCE) as answer:
                assert answer.status_code == 200, answer.text
                self.replica = answer.headers["x-replica"]
                for line in answer.iter_lines():
                    if line.startswith(b"data:"):
                        event = json.loads(line[5:])
                        self.tokens += "token" in event
                        self.text = event.get("generated_text")
                        self.begun.set()
        except requests.RequestException:
            pass  # the text says it
        finally:
            self.begun.set()


@contextlib.contextmanager
def haproxy(tmp_path, ports):
    """By our configuration, before replicas at these ports -> its URL."""
    front = free_port()
    text = (ROOT / "conf/haproxy/tandem.cfg").read_text()
    for name, port in ports.items():
        text = re.sub(rf"(server {name} 127\.0\.0\.1):\d+", rf"\g<1>:{port}", text)
    text = text.replace("bind 127.0.0.1:8080", f"bind 127.0.0.1:{front}").replace("/run/haproxy/tandem.sock", str(tmp_path / "sock"))
    (tmp_path / "haproxy.cfg").write_text(text)
    process = subprocess.Popen([HAPROXY, "-db", "-f", tmp_path / "haproxy.cfg"], env=ENV, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{front}"
    try:
        wait_for(lambda: seen(url) == set(ports), what="both replicas behind the proxy")
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def proxy(start, tmp_path):
    """-> the proxy's URL, and {name: [server, how to start it again]}."""
    ports = {"replica-1": free_port(), "replica-2": free_port()}

    def replica(name):
        return start("--port", ports[name], "--threads", 1, "--data-dir", tmp_path / name)

    servers = {name: replica(name) for name in ports}
    try:
        with haproxy(tmp_path, ports) as url:
            yield url, servers, replica
    finally:
        for s in servers.values():
            s.process.kill()
            s.process.wait()


def seen(url):
    """The replicas that answer."""
    try:
        answers = [requests.get(url + "/v1/models", timeout=PATIENCE) for _ in range(6)]
    except requests.ConnectionError:
        return set()
    return {a.headers["x-replica"] for a in answers if a.status_code == 200}


def answered(url, n):
    for i in range(n):
        answer = requests.post(url + "/generate", json={"inputs": "Once", "parameters": {"max_new_tokens": 4}}, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text


def all_begun(url, first_seed):
    streams = [Stream(url, first_seed + i) for i in range(STREAMS)]
    for s in streams:
        assert s.begun.wait(PATIENCE)
    return streams


def check_whole(streams, server):
    """Those that came to their end have the text that any replica gives."""
    for s in streams:
        again = server.generate("Once", max_new_tokens=420, ignore_eos=True, do_sample=True, seed=s.seed)["generated_text"]
        assert s.text == again and s.tokens == 420, (s.replica, s.seed)


class Counted(BaseHTTPRequestHandler):
    """Answers everything; `places` has the connection of each POST."""
    protocol_version = "HTTP/1.1"
    places = []

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self):
        self.places.append(self.client_address)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args):
        pass


def test_no_request_is_sent_over_an_idle_connection(tmp_path):
    """The replica may be closing it, and the request would be lost."""
    servers = {name: ThreadingHTTPServer(("127.0.0.1", 0), Counted) for name in ("replica-1", "replica-2")}
    for s in servers.values():
        threading.Thread(target=s.serve_forever, daemon=True).start()
    try:
        with haproxy(tmp_path, {name: s.server_port for name, s in servers.items()}) as url, requests.Session() as session:
            Counted.places.clear()
            for _ in range(6):
                assert session.post(url + "/generate", data=b"{}", timeout=PATIENCE).ok
            assert len(set(Counted.places)) == 6
    finally:
        for s in servers.values():
            s.shutdown()
            s.server_close()


def test_one_is_killed(proxy):
    url, servers, replica = proxy
    victim, other = servers["replica-1"], servers["replica-2"]
    for attempt in range(10):
        streams = all_begun(url, 100 * attempt)
        victim.signal(signal.SIGKILL)
        victim.wait()
        answered(url, 8)  # at once, also those that the proxy would have given to the dead one
        for s in streams:
            s.join(PATIENCE)
        assert {s.replica for s in streams} == set(servers), "both had streams"
        check_whole([s for s in streams if s.replica == "replica-2"], other)
        check_whole([s for s in streams if s.replica == "replica-1" and s.text is not None], other)
        broken = [s for s in streams if s.text is None]
        assert all(s.replica == "replica-1" for s in broken)
        victim = servers["replica-1"] = replica("replica-1")
        wait_for(lambda: seen(url) == set(servers), what="the replica that was started again")
        if broken:
            break
    assert broken, "in no attempt did the kill come in the middle of a stream"


def tell(path, command):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(str(path))
        s.sendall(command.encode() + b"\n")
        assert not s.recv(4096).strip(), command


def test_one_drains(proxy, tmp_path):
    url, servers, _ = proxy
    streams = all_begun(url, 1)
    tell(tmp_path / "sock", "set server replicas/replica-1 state drain")
    servers["replica-1"].signal(signal.SIGTERM)
    answered(url, 8)
    for s in streams:
        s.join(PATIENCE)
    assert servers["replica-1"].wait() == 0
    assert {s.replica for s in streams} == set(servers), "both had streams"
    check_whole(streams, servers["replica-2"])
    answered(url, 8)
    assert seen(url) == {"replica-2"}


class Client(threading.Thread):
    """Short requests, one after another over one connection, until `stop`: what was not answered as it should be."""

    def __init__(self, url, seed, stop):
        super().__init__(daemon=True)
        self.url, self.seed, self.stop, self.sent, self.replicas, self.lost = url, seed, stop, 0, set(), []
        self.start()

    def run(self):
        with requests.Session() as session:
            while not self.stop.is_set():
                self.sent += 1
                body = {"inputs": "Once upon", "parameters": {"max_new_tokens": 8, "do_sample": True, "seed": self.seed}}
                try:
                    answer = session.post(self.url + "/generate", json=body, timeout=PATIENCE)
                    self.replicas.add(answer.headers.get("x-replica"))
                    if answer.status_code != 200:
                        self.lost.append((answer.status_code, answer.text))
                except requests.RequestException as e:
                    self.lost.append(e)


def test_one_gets_sigterm(proxy):
    """Nobody told the proxy: what the replica refuses while it drains is tried at the other one, and streams go on."""
    url, servers, replica = proxy
    for _ in range(3):
        stop = threading.Event()
        streams = all_begun(url, 1)
        clients = [Client(url, seed, stop) for seed in range(8)]
        wait_for(lambda: all(c.sent > 3 and len(c.replicas) == 2 for c in clients), what="requests to both")
        servers["replica-1"].signal(signal.SIGTERM)
        assert servers["replica-1"].wait() == 0
        before = sum(c.sent for c in clients)
        wait_for(lambda: sum(c.sent for c in clients) > before + 80, what="more requests")
        stop.set()
        for thread in streams + clients:
            thread.join(PATIENCE)
        assert [lost for c in clients for lost in c.lost] == []
        assert {s.replica for s in streams} == set(servers), "both had streams"
        check_whole(streams, servers["replica-2"])
        servers["replica-1"] = replica("replica-1")
        wait_for(lambda: seen(url) == set(servers), what="the replica that was started again")
