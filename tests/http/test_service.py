"""As a service: what the manager is told and hands over, health while threads hang, reloading, draining, tandem health."""
import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from conftest import BINARY, DEVICE, ENV, MODEL, ROOT, wait_for
from keys import certificate, new_key, tandem_key
from test_concurrency import raw_stream
from training import submit, wait_over

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


# ---- a service manager -----------------------------------------------------------------------------------------------

class Manager:
    """The socket behind NOTIFY_SOCKET: what it heard, in order, with the time."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(0.1)
        self.env = {"NOTIFY_SOCKET": str(path)}
        self.heard, self.end = [], False
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def listen(self):
        while not self.end:
            with contextlib.suppress(TimeoutError):
                self.heard.append((time.monotonic(), self.socket.recv(4096).decode()))

    def lines(self, since=0):
        return [text for _, text in self.heard[since:]]

    def count(self, text):
        return self.lines().count(text)

    def wait(self, text, since=0):
        wait_for(lambda: any(x.startswith(text) for x in self.lines(since)), what=text)

    def close(self):
        self.end = True
        self.thread.join()
        self.socket.close()


@pytest.fixture
def manager(tmp_path):
    m = Manager(tmp_path / "notify")
    yield m
    m.close()


def activated(listener):
    """Arguments of start() that hand the listening socket over as systemd does."""
    script = f'exec 3<&{listener.fileno()}; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"'
    return {"wrap": ["bash", "-c", script, "bash"], "pass_fds": (listener.fileno(),)}


# ---- a thread that hangs ---------------------------------------------------------------------------------------------

def thread_of(server, name):
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise AssertionError(f"no thread {name}")


@contextlib.contextmanager
def frozen(tid):
    """One thread of a child stands still, by ptrace, as if it hung; the others go on."""
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    if LIBC.ptrace(seize, tid, None, None):
        pytest.skip("no ptrace here: " + os.strerror(ctypes.get_errno()))
    assert LIBC.ptrace(interrupt, tid, None, None) == 0
    os.waitpid(tid, wall)
    try:
        yield
    finally:
        LIBC.ptrace(detach, tid, None, None)


def test_manager_is_told(start, manager):
    """Loading, ready, fed, reloading, ready again, stopping."""
    with start(env={**manager.env, "WATCHDOG_USEC": "60000"}) as s:
        manager.wait("READY=1")
        wait_for(lambda: manager.count("WATCHDOG=1") >= 3, what="a fed watchdog")
        begin = len(manager.heard)
        s.signal(signal.SIGHUP)
        manager.wait("READY=1", begin)
        reloading = [x for x in manager.lines(begin) if x != "WATCHDOG=1"]
        name, clock = reloading[0].split("\nMONOTONIC_USEC=")
        assert name == "RELOADING=1" and abs(int(clock) / 1e6 - time.monotonic()) < 600
        assert reloading[1] == "READY=1"
        s.signal()
        assert s.wait() == 0
        manager.wait("STOPPING=1\nEXTEND_TIMEOUT_USEC=86000000")  # drain-timeout, and what closing may take
    said = [x for x in manager.lines() if x.startswith("STATUS=") or x == "READY=1"]
    assert said[:3] == ["STATUS=loading the model", f"STATUS=serving {MODEL.name} on {s.url}", "READY=1"]
    assert said[-1] == "STATUS=draining: 0 requests, for at most 60 s"


def test_engine_that_hangs(start, manager):
    """Asleep for ever while a request waits: unhealthy, not fed, told with stacks; well again when it gets on."""
    limit = 0.3
    with start("--step-timeout", limit, env={**manager.env, "WATCHDOG_USEC": "90000"}) as s, ThreadPoolExecutor(1) as pool:
        s.generate(max_new_tokens=1)
        with frozen(thread_of(s, "tandem-engine")):
            time.sleep(2 * limit)
            assert s.get("/health").status_code == 200  # nothing is asked of it
            asked = pool.submit(s.generate, max_new_tokens=2)
            wait_for(lambda: s.get("/health").status_code == 503, what="unhealthy")
            assert s.get("/ready").status_code == 503
            wait_for(lambda: re.search(r"^---- thread \d+ tandem\n  0 0x", s.log(), re.M), what="stacks")
            manager.wait("STATUS=stuck: the engine")
            fed = manager.count("WATCHDOG=1")
            time.sleep(0.5)
            assert manager.count("WATCHDOG=1") == fed
            assert 'msg="watchdog: stuck, the stacks of all threads follow" thread="the engine"' in s.log() and "tandem stacks: a thread makes no progress" in s.log()
            begin = len(manager.heard)
        assert asked.result()
        wait_for(lambda: re.search(r"^---- thread \d+ tandem-engine\n  0 0x", s.log(), re.M), what="its stack, when it runs again")
        assert s.get("/health").status_code == 200
        manager.wait("STATUS=serving", begin)
        wait_for(lambda: manager.count("WATCHDOG=1") > fed, what="fed again")


def test_loop_that_hangs(start, manager):
    """The HTTP loop cannot answer /health itself: the watchdog notices."""
    with start("--step-timeout", 0.3, env={**manager.env, "WATCHDOG_USEC": "90000"}) as s:
        with frozen(s.process.pid):
            manager.wait("STATUS=stuck: the loop")
            fed = manager.count("WATCHDOG=1")
            time.sleep(0.5)
            assert manager.count("WATCHDOG=1") == fed
        wait_for(lambda: manager.count("WATCHDOG=1") > fed, what="fed again")
        assert s.generate(max_new_tokens=1)


def test_full_queue_is_healthy(start):
    with start("--device", "ref", "--max-seqs", 1, "--max-queue", 1) as s:
        clients = [raw_stream(s, {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}) for _ in range(2)]
        wait_for(lambda: s.post("/generate", {"inputs": "a"}).status_code == 429, what="full")
        assert s.get("/health").status_code == 200 and s.get("/ready").status_code == 200
        for c in clients:
            c.close()


# ---- sockets that are handed over ------------------------------------------------------------------------------------

def test_restart_refuses_nobody(start):
    """While the one daemon drains and the next has not begun, who connects waits in the manager's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        how = activated(listener)
        with start("--host", "192.0.2.1", "--device", "ref", **how) as first:  # the host is not looked at
            assert first.port == listener.getsockname()[1]
            running = raw_stream(first, {"inputs": "Once", "parameters": {"max_new_tokens": 300, "ignore_eos": True}})
            wait_for(lambda: first.metric("tandem_requests_running") == 1, what="running")
            first.signal()
            wait_for(lambda: "draining" in first.log(), what="draining")
            waiting = pool.submit(first.generate, max_new_tokens=3)
            while running.recv(65536):  # to its end
                pass
            assert first.wait() == 0
            assert not waiting.done()
            with start(**how) as second:
                assert second.port == first.port
                assert waiting.result()["generated_text"]


def test_what_is_no_listening_socket(start):
    with socket.socket(socket.AF_UNIX) as wrong:
        with pytest.raises(AssertionError, match="no listening TCP socket"):
            start(**activated(wrong))


def test_open_socket_needs_keys(start):
    """What decides is where others can connect to, not --host."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        with pytest.raises(AssertionError, match="can be reached from other machines"):
            start("--host", "127.0.0.1", **activated(listener))
        with start("--allow-open", **activated(listener)) as s:
            assert s.generate(max_new_tokens=1)


@pytest.mark.skipif(not shutil.which("systemd-socket-activate"), reason="no systemd-socket-activate")
def test_systemd_socket_activate(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    process = subprocess.Popen(["systemd-socket-activate", "-l", f"127.0.0.1:{port}", BINARY, "serve", "--model", MODEL, "--data-dir", tmp_path / "data"],
                               stderr=subprocess.PIPE, env=ENV, cwd=ROOT)
    try:
        def ready():
            with contextlib.suppress(requests.ConnectionError):
                return requests.get(f"http://127.0.0.1:{port}/ready", timeout=300).status_code == 200
        wait_for(ready, 60, "ready")  # the first connection starts it
        process.terminate()  # the daemon by now: it was started by exec
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


# ---- reloading -------------------------------------------------------------------------------------------------------

def test_reload(start, tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text("max-best-of: 2\n")
    with start("--config", file, "--max-top-n-tokens", 3) as s:
        def refused(**parameters):
            return s.post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1, **parameters}}).status_code == 422

        def reload(text, says):
            seen = len(s.log())
            file.write_text(text)
            s.signal(signal.SIGHUP)
            wait_for(lambda: says in s.log()[seen:], what=says)
            return s.log()[seen:]

        assert refused(best_of=3, do_sample=True)
        log = reload("max-best-of: 3\naccess-log: true\nmax-seqs: 7\nmax-top-n-tokens: 5\nmax-body-size: 1K\ncors-origin: http://a\n", 'msg="settings reloaded" changed=4')
        assert 'msg=reloaded option=max-best-of was=2 now=3' in log
        assert 'msg="changed, but needs a restart" option=max-seqs is=64 wanted=7' in log
        assert "max-top-n-tokens" not in log  # a flag wins over the file, still
        assert not refused(best_of=3, do_sample=True)
        assert s.post("/generate", {"inputs": "a" * 2000}).status_code == 413
        assert s.get("/health").headers["access-control-allow-origin"] == "http://a"
        wait_for(lambda: "path=/health " in s.log(), what="the access log")
        assert s.get("/info").json()["max_seqs"] == 64

        log = reload("max-best-of: 4\nport: many\n", "not reloaded")  # as a whole or not at all
        assert "port" in log and refused(best_of=4, do_sample=True) and not refused(best_of=3, do_sample=True)

        log = reload("", "settings reloaded")  # back to the defaults
        assert not refused(best_of=4, do_sample=True) and "access-control-allow-origin" not in s.get("/health").headers


@pytest.mark.smoke
@pytest.mark.concurrent
def test_reload_under_load(start, tmp_path):
    """Every answer is what it was, whatever is reloaded between."""
    file = tmp_path / "t.yaml"
    file.write_text("{}")
    with start("--config", file) as s, ThreadPoolExecutor(3) as pool:
        most, n = (4, 8) if DEVICE == "simt" else (20, 30)  # a slow device: what is reloaded is not its
        alone = s.generate(max_new_tokens=most)
        answers = [pool.submit(s.generate, max_new_tokens=most) for _ in range(n)]
        for i in range(20):
            file.write_text(f"cors-origin: http://{i}\nidle-timeout: {i + 1}\nmax-connections: {1000 + i}\nsse-keepalive: {i + 1}\nstep-timeout: {i + 30}\n")
            s.signal(signal.SIGHUP)
            time.sleep(0.01)
        assert all(a.result() == alone for a in answers)
        wait_for(lambda: 'msg="settings reloaded" changed=5' in s.log(), what="reloaded")


def test_help_says_what_is_reloadable(run):
    text = run("serve", "--help").stdout.decode()
    words = " ".join(text.split())
    assert "least level of the lines written to stderr (one of debug info warn error; default info; reloadable)" in words
    assert words.count("reloadable)") >= 15


# ---- draining --------------------------------------------------------------------------------------------------------

def test_drain_ends_connections(start):
    """Idle connections close at the signal, each answer is its connection's last, and new clients hear why."""
    with start("--device", "ref") as s:
        idle = requests.Session()
        assert idle.get(s.url + "/health", timeout=300).status_code == 200
        quiet = socket.create_connection(("127.0.0.1", s.port))
        quiet.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert quiet.recv(4096).startswith(b"HTTP/1.1 200")
        running = raw_stream(s, {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}})
        wait_for(lambda: s.metric("tandem_requests_running") == 1, what="running")
        s.signal()
        assert quiet.recv(4096) == b""  # closed
        refused = s.post("/generate", {"inputs": "a"})
        assert (refused.status_code, refused.headers["connection"]) == (503, "close") and int(refused.headers["retry-after"]) > 0
        assert s.get("/health").headers["connection"] == "close"
        text = b""
        while piece := running.recv(65536):
            text += piece
        assert text.count(b"data:") == 400 and text.endswith(b"0\r\n\r\n")
        assert s.wait() == 0
        quiet.close()
        idle.close()


# ---- tandem health ---------------------------------------------------------------------------------------------------

def test_health_command(server, run):
    for words in (["--port", server.port], ["--port", server.port, "--ready"], ["--host", "0.0.0.0", "--port", server.port]):
        done = run("health", *words)
        assert (done.returncode, done.stdout) == (0, b"ready\n" if "--ready" in words else b"healthy\n"), done.stderr
    assert run("health", env={"TANDEM_PORT": str(server.port)}).returncode == 0


def test_health_command_by_tls_and_without_a_key(start, run, tmp_path):
    cert, keys = certificate(tmp_path / "cert.pem"), tmp_path / "keys"
    new_key(keys, "me", "admin")
    with start("--tls-cert", cert, "--tls-key", cert, "--api-keys", keys, verify=cert) as s:
        file = tmp_path / "t.yaml"  # as the service has it
        file.write_text(f"tls-cert: {cert}\ntls-key: {cert}\nport: {s.port}\n")
        done = run("health", "--ready", "--config", file)
        assert (done.returncode, done.stdout) == (0, b"ready\n"), done.stderr
        assert run("health", "--port", s.port).returncode == 1  # plain HTTP is answered 400
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert b"no TLS" in run("health", "--tls-cert", cert, "--port", silent.getsockname()[1], "--within", "0.2").stderr


def test_reload_reads_keys_again(start, tmp_path):
    keys = tmp_path / "keys"
    first = new_key(keys, "one")
    with start("--api-keys", keys) as s:
        def status(key):
            return s.post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}}, headers={"Authorization": f"Bearer {key}"}).status_code
        assert status(first) == 200
        second = new_key(keys, "two")
        tandem_key(keys, "revoke", "one")
        s.signal(signal.SIGHUP)
        wait_for(lambda: status(second) == 200, what="the new key")
        assert status(first) == 401


def test_health_command_says_no(start, run):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = run("health", "--port", port, "--within", "0.2")
        assert done.returncode == 1 and b"no answer in time" in done.stderr
    done = run("health", "--port", port)
    assert done.returncode == 1 and b"refused" in done.stderr
    assert run("health", "--within", "never").returncode == 2
    with start("--device", "ref", ready=False) as s:
        while (done := run("health", "--ready", "--port", s.port)).returncode:
            assert b"503" in done.stderr and b"loading" in done.stderr
            assert run("health", "--port", s.port).returncode == 0


def test_health_command_talks_to_a_stranger(run):
    def answer(listener):
        c, _ = listener.accept()
        c.recv(4096)
        c.sendall(b"220 mail.example ESMTP\r\n")
        c.close()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        done = pool.submit(answer, listener)
        got = run("health", "--port", listener.getsockname()[1])
        done.result()
    assert got.returncode == 1 and b"no HTTP server" in got.stderr


# ---- the sandbox -----------------------------------------------------------------------------------------------------

def test_no_executable_memory(start, shared):
    """MemoryDenyWriteExecute=: the same texts, without the compiler of regular expressions."""
    def deny():
        set_mdwe, refuse_exec_gain = 65, 1
        if LIBC.prctl(set_mdwe, refuse_exec_gain, 0, 0, 0):
            os._exit(99)
    if subprocess.run(["true"], preexec_fn=deny).returncode == 99:
        pytest.skip("this kernel has no PR_SET_MDWE")
    with start(preexec_fn=deny) as s:
        text = "It's 3 o'clock, Éloïse said: 'the dog  ran!'\n"
        assert s.generate(text, max_new_tokens=20) == shared.generate(text, max_new_tokens=20)
        assert s.post("/tokenize", {"inputs": text}).json() == shared.post("/tokenize", {"inputs": text}).json()


def expand(name):
    """The system calls of one word of SystemCallFilter=, by systemd's own table."""
    if not name.startswith("@"):
        return {name}
    listed = subprocess.run(["systemd-analyze", "syscall-filter", name], capture_output=True, text=True, check=True).stdout
    words = [x.strip() for x in listed.splitlines()[1:]]
    return set().union(*(expand(x) for x in words if x and not x.startswith("#")))


def allowed_calls():
    calls = set()
    for words in re.findall(r"^SystemCallFilter=(\S+)$", (ROOT / "systemd/tandem.service.in").read_text(), re.M):
        calls = calls - expand(words[1:]) if words.startswith("~") else calls | expand(words)
    return calls


def seccomp_program(numbers):
    """Lets these calls through and ends the process at any other: struct sock_filter of <linux/filter.h>, packed."""
    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    allow, kill = 0x7fff0000, 0x80000000
    program = [(load, 0, 0, 0)]  # the number of the call
    for n in numbers:
        program += [(jump_if_equal, 0, 1, n), (answer, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *x) for x in [*program, (answer, 0, 0, kill)])


@pytest.mark.skipif(not shutil.which("systemd-analyze") or os.uname().machine != "x86_64", reason="no systemd-analyze, or another processor")
def test_system_calls_of_the_unit_are_enough(start):
    """SystemCallFilter=, but deadly: the daemon loads, generates, keeps files and jobs, reloads and ends with these calls only."""
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no header with the numbers")
    number = dict(re.findall(r"^#define __NR_(\w+) (\d+)$", header.read_text(), re.M))
    calls = allowed_calls()
    assert {"read", "futex", "sched_setaffinity"} <= calls and not {"mount", "ptrace", "reboot", "fchown"} & calls
    if os.geteuid() == 0:
        calls.add("fchown")  # SQLite gives files to their folder's owner, as root only; the unit's user is not
    code = seccomp_program(sorted(int(number[c]) for c in calls if c in number))
    memory = ctypes.create_string_buffer(code)
    fprog = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory)))

    def confine():
        no_new_privs, set_seccomp, mode_filter = 38, 22, 2
        if LIBC.prctl(no_new_privs, 1, 0, 0, 0) or LIBC.prctl(set_seccomp, mode_filter, fprog):
            os._exit(99)
    if (code := subprocess.run(["true"], preexec_fn=confine).returncode) == 99:
        pytest.skip("no seccomp here")
    assert code == 0
    assert subprocess.run(["unshare", "-m", "true"], preexec_fn=confine).returncode == -signal.SIGSYS  # it does confine
    with start(preexec_fn=confine) as s:
        assert s.generate(max_new_tokens=5)
        sent = requests.post(s.url + "/v1/files", files={"file": ("a.jsonl", b'{"text":"a b c"}\n')}, data={"purpose": "fine-tune"}, timeout=300)
        assert sent.status_code == 200, sent.text
        assert wait_over(s, submit(s, "x", n=4, max_steps=2))["status"] == "succeeded"
        s.signal(signal.SIGHUP)
        s.signal(signal.SIGUSR2)
        assert s.get("/metrics").status_code == 200
