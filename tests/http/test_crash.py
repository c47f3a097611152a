"""Crash reports of the daemon: what is in them, that strangers can read them, and that the process ends as it would have."""
import ctypes
import os
import re
import shutil
import signal
import stat
import subprocess

import pytest
from conftest import BUILD, ROOT, wait_for
from test_concurrency import raw_stream
from test_service import LIBC, thread_of

SANITIZED = "-fsanitize" in (BUILD / "build.ninja").read_text()
pytestmark = pytest.mark.skipif(SANITIZED, reason="the sanitizer reports")
SECRET = "Once upon a time a very private wombat"


def send(server, tid, number):
    """A signal to one thread, as a fault in it would be."""
    tgkill = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
    assert LIBC.syscall(ctypes.c_long(tgkill), server.process.pid, tid, number) == 0


def no_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def report_of(server):
    found = list((server.data / "crashes").glob("*.txt"))
    assert len(found) == 1
    return found[0]


@pytest.fixture
def crashed(start, tmp_path):
    """crashed(thread, signal) -> (server, its report), of a daemon that was generating."""
    def run(thread, number):
        for attempt in range(5):  # a machine that stands still at the wrong moment lets the requests end before
            data = tmp_path / f"data{attempt}"
            s = start("--data-dir", data, "--device", "ref", "--max-stop-sequences", 3, env={"TANDEM_MAX_SEQS": "5"}, preexec_fn=no_core)
            clients = [raw_stream(s, {"inputs": SECRET, "parameters": {"max_new_tokens": 450, "ignore_eos": True}}) for _ in range(2)]
            wait_for(lambda: s.metric("tandem_generated_tokens_total") > 100, what="running")
            send(s, s.process.pid if thread == "main" else thread_of(s, thread), number)
            assert s.wait() == -number  # not an exit: the signal
            for c in clients:
                c.close()
            if "running 2" in report_of(s).read_text():
                break
        return s, report_of(s)
    return run


def test_report_of_the_engine_thread(crashed, start):
    server, path = crashed("tandem-engine", signal.SIGSEGV)
    text = path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert text in server.log() and f"this report is also in {path}" in server.log()
    assert re.match(r"==== tandem crash report\nversion    \d+\.\d+\.\d+, build id [0-9a-f]{40}\ntime       \d{8}T\d{6}Z, after \d+\.\d+ s\n"
                    r"signal     SIGSEGV code -6 sent by process \d+\nthread     \d+ tandem-engine of process \d+\n---- stack\n", text)
    assert f"sent by process {os.getpid()}\n" in text
    assert "---- requests: waiting 0, running 2, paused 0; those of the newest step:\n" in text
    assert re.search(r"^request \d+ position \d{2,} tokens 1$", text, re.M)
    steps = [int(x) for x in re.findall(r"^step (\d+) began ", text, re.M)]
    assert len(steps) == 32 and steps == list(range(steps[0], steps[0] - 32, -1))
    assert "\nmax-stop-sequences = 3  (flag)\n" in text and "\nmax-seqs = 5  (environment)\n" in text
    assert "wombat" not in text  # what people say is nobody's business
    assert text.endswith("==== end of report; scripts/symbolise reads it\n")
    with start("--data-dir", server.data) as again:
        assert f'msg="an earlier process crashed" report={path}' in again.log()


@pytest.mark.skipif(not shutil.which("addr2line"), reason="no binutils")
def test_a_stranger_gets_names(crashed, tmp_path):
    """From the report and the binary alone; a binary of another build is not believed."""
    _, path = crashed("tandem-engine", signal.SIGABRT)
    moved = tmp_path / "moved.txt"
    moved.write_text(path.read_text().replace(str(BUILD.resolve() / "server/tandem"), "/nowhere/tandem"))
    lost = subprocess.run([ROOT / "scripts/symbolise", moved], capture_output=True, text=True, check=True)
    assert "engine_main" not in lost.stdout and "no file with build id" in lost.stderr
    named = subprocess.run([ROOT / "scripts/symbolise", moved, "/bin/sh", BUILD / "server/tandem"], capture_output=True, text=True, check=True).stdout
    assert "engine_main" in named.split("---- stack\n")[1].split("----")[0]


@pytest.mark.parametrize("thread, number", [("main", signal.SIGABRT), ("main", signal.SIGBUS), ("tandem-watchdog", signal.SIGFPE)])
def test_other_ends(crashed, thread, number):
    _, path = crashed(thread, number)
    text = path.read_text()
    assert f"signal     {number.name} " in text and "---- configuration\n" in text
    assert re.search(rf"^thread     \d+ {'tandem' if thread == 'main' else thread} of process", text, re.M)


def test_only_the_newest_are_kept(start, tmp_path):
    folder = tmp_path / "data" / "crashes"
    folder.mkdir(parents=True)
    for i in range(20):
        (folder / f"202601{i + 10}T000000Z-1.txt").write_text("x")
    with start("--data-dir", tmp_path / "data") as s:
        assert "20260129T000000Z-1.txt" in s.log()
    assert sorted(p.name for p in folder.iterdir()) == [f"202601{i + 10}T000000Z-1.txt" for i in range(4, 20)]


def test_stacks_on_demand(start):
    """SIGUSR2, again and again while it works: stacks in the log, and nobody notices."""
    with start() as s:
        alone = s.generate(max_new_tokens=40)
        for _ in range(10):
            s.signal(signal.SIGUSR2)
            assert s.generate(max_new_tokens=40) == alone
        for thread in ("tandem", "tandem-engine", "tandem-watchdog"):
            wait_for(lambda: len(re.findall(rf"^---- thread \d+ {thread}\n  0 0x", s.log(), re.M)) >= 5, what="stacks")
        assert "tandem stacks: asked for by SIGUSR2" in s.log()
