"""Start, readiness, idling, draining, stopping."""
import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import MODEL, at_some_pace, wait_for
from sse import events
from test_concurrency import raw_stream

LONG = {"inputs": "Once", "parameters": {"max_new_tokens": 120, "ignore_eos": True}}


def test_ready_in_half_a_second(start):
    """From the daemon's own clock, started at main; once in twenty starts at least, since machines that test are busy."""
    def seconds():
        with start() as s:
            line = next(x for x in s.log().splitlines() if x.startswith("ready "))
            return float(line.split()[2])
    assert any(seconds() < 0.5 for _ in range(20))


@pytest.mark.full
def test_idle_costs_nothing(start):
    """Under 1 % of a core with 100 open keep-alive connections, measured in CPU time."""
    with start() as s:
        s.generate(max_new_tokens=3)
        clients = []
        for _ in range(100):
            c = socket.create_connection(("127.0.0.1", s.port))
            c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert c.recv(4096).startswith(b"HTTP/1.1 200")
            clients.append(c)
        assert s.metric("tandem_connections") >= 100

        def test(pace):  # of what it did before, some may be left
            time.sleep(0.5 * pace)
            before, begin = s.cpu_seconds(), time.monotonic()
            time.sleep(5)
            used, passed = s.cpu_seconds() - before, time.monotonic() - begin
            assert used / passed < 0.01, f"{used} s of CPU in {passed} s"
        at_some_pace(test)
        for c in clients:
            c.close()


def test_start_report(start):
    with start("--quantize", "int8") as s:
        log = s.log()
        for word in ("model ", "weights ", "kv cache ", "limits ", "device ", "ready ", "curl ", MODEL.name, "int8", "pages of"):
            assert word in log, word


def test_listens_before_it_is_ready(start):
    """While the model loads: alive, not ready, and generating is refused with a reason."""
    with start("--device", "ref", ready=False) as s:
        seen = set()
        while True:
            code = s.get("/ready").status_code
            if code == 200:
                break
            assert code == 503 and s.get("/health").status_code == 200
            answer = s.post("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 1}})
            seen.add(answer.status_code)
            if answer.status_code == 503:
                assert answer.json()["error_type"] == "loading" and answer.headers["retry-after"]
                assert s.get("/info").status_code in (200, 503) and s.get("/metrics").status_code == 200
        assert seen <= {200, 503}
        assert s.generate(max_new_tokens=2)


@pytest.mark.smoke
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_drain(start, number):
    """Running requests end in peace; new ones get 503; then the process ends with status 0."""
    with start("--device", "ref") as s, ThreadPoolExecutor(4) as pool:
        def begun(pace):  # all three at work: one may end before the others have begun
            body = {**LONG, "parameters": {"max_new_tokens": 120 * min(pace, 4), "ignore_eos": True}}
            running = [pool.submit(s.post, path, body) for path in ("/generate", "/generate_stream", "/")]
            wait_for(lambda: s.metric("tandem_requests_running") == 3 or any(r.done() for r in running), what="running")
            assert not any(r.done() for r in running)
            return running, body["parameters"]["max_new_tokens"]
        running, tokens = at_some_pace(begun)
        s.signal(number)
        wait_for(lambda: s.get("/ready").status_code == 503, what="draining")
        assert s.get("/ready").json()["error"] == "draining"
        assert s.get("/health").status_code == 200
        refused = s.post("/generate", LONG)
        assert refused.status_code == 503 and refused.json()["error_type"] == "draining"
        answers = [r.result() for r in running]
        assert [a.status_code for a in answers] == [200] * 3
        assert answers[1].content.count(b"data: ") == tokens
        assert s.wait() == 0
    with pytest.raises(requests.ConnectionError):
        s.get("/health")


def test_idle_server_stops_at_once(start):
    with start("--idle-timeout", 3600, "--drain-timeout", 3600) as s:
        idle = socket.create_connection(("127.0.0.1", s.port))
        s.signal()
        assert s.wait() == 0
        idle.close()


def test_second_signal_stops_at_once(start):
    with start("--device", "ref", "--max-seqs", 2, "--drain-timeout", 3600) as s:
        clients = [raw_stream(s, {"inputs": "Once", "parameters": {"max_new_tokens": 500, "ignore_eos": True}}) for _ in range(3)]
        wait_for(lambda: s.metric("tandem_requests_running") == 2, what="running")
        s.signal()
        wait_for(lambda: "draining" in s.log(), what="the first signal")
        s.signal()
        assert s.wait() == 0
        for c in clients:
            text = b""
            with contextlib.suppress(ConnectionError):
                while piece := c.recv(65536):
                    text += piece
            assert text.count(b"data:") < 500
            c.close()


def test_drain_timeout(start):
    """What does not end in time is cut off with an error that its client can read."""
    with start("--device", "ref", "--drain-timeout", 0.3) as s, ThreadPoolExecutor(2) as pool:
        def streamed():
            with requests.post(s.url + "/generate_stream", json={**LONG, "parameters": {"max_new_tokens": 500, "ignore_eos": True}}, stream=True, timeout=300) as a:
                return list(events(a))
        last = pool.submit(streamed)
        plain = pool.submit(s.post, "/generate", {**LONG, "parameters": {"max_new_tokens": 500, "ignore_eos": True}})
        wait_for(lambda: s.metric("tandem_requests_running") == 2, what="running")
        s.signal()
        assert s.wait() == 0
        assert last.result()[-1]["error_type"] == "incomplete_generation"
        assert plain.result().status_code == 503


def test_stuck_step_is_unhealthy(start):
    """A step longer than --step-timeout makes /health say so, and its end makes it well again."""
    with start("--device", "ref", "--step-timeout", 0.1) as s, ThreadPoolExecutor(1) as pool:
        long = pool.submit(s.generate, "the dog and the cat " * 100, truncate=500, max_new_tokens=2)
        wait_for(lambda: s.get("/health").status_code == 503, what="unhealthy")
        assert s.get("/health").json() == {"error": "unhealthy", "error_type": "healthcheck"}
        assert s.get("/ready").status_code == 503
        long.result()
        wait_for(lambda: s.get("/health").status_code == 200, what="healthy again")


def hold(port, n):
    """-> n connections that the server took and that wait to say more.  One it refused (those of the start may not be gone yet) gets
    its answer within a second."""
    held = []
    while len(held) < n:
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(b"GET /info HTTP/1.1\r\n")
        held.append(one)
        refused = select.select(held, [], [], 1.5)[0] if len(held) == n else []
        for one in refused:
            held.remove(one)
            one.close()
    return held


def test_probes_are_answered_at_the_connection_limit(start):
    """A server that is full is alive: nobody should end it."""
    with start("--max-connections", 2, "--header-timeout", 60) as s:
        held = hold(s.port, 2)
        wait_for(lambda: s.get("/info").status_code == 503, what="the limit")
        assert s.get("/health").status_code == s.get("/ready").status_code == 200
        assert requests.post(s.url + "/health", data="x", timeout=300).status_code == 503
        for one in held:
            one.close()
        wait_for(lambda: s.get("/info").status_code == 200, what="room")
        assert s.metric("tandem_connections_rejected_total") >= 2


def test_descriptors_are_raised_to_what_connections_need(start):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with start("--max-connections", 2000, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))) as s:
        assert s.metric("process_max_fds") == min(3024, hard)
        assert s.metric("process_open_fds") == pytest.approx(len(os.listdir(f"/proc/{s.process.pid}/fd")), abs=3)
    with start("--max-connections", 2000, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (300, 500))) as s:
        assert s.metric("process_max_fds") == 500 and "file descriptors will run out" in s.log()


def test_port_in_use(start, run):
    with start() as s:
        got = run("serve", "--model", MODEL, "--port", s.port)
        assert got.returncode == 1 and str(s.port).encode() in got.stderr


@pytest.mark.parametrize("model, says", [("no/such/dir", b"no/such/dir"), (".", b"config.json")])
def test_model_that_cannot_be_loaded(run, model, says):
    got = run("serve", "--model", model, "--port", 0)
    assert got.returncode == 1 and says in got.stderr


def test_configuration_file_and_environment(start, tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text("max-best-of: 2\nmax-seqs: 3\nport: 1\n")
    with start("--config", file, env={"TANDEM_MAX_SEQS": "5", "TANDEM_MAX_TOTAL_TOKENS": "100"}) as s:
        info = s.get("/info").json()
        assert (info["max_best_of"], info["max_seqs"], info["max_total_tokens"]) == (2, 5, 100)


def test_access_log(start):
    with start("--access-log") as s:
        s.get("/nowhere%0aforged")
        wait_for(lambda: "status=404" in s.log(), what="a log line")
        assert "\nforged" not in s.log()


def test_body_limit(start):
    with start("--max-body-size", "2K") as s:
        answer = s.post("/generate", {"inputs": "a" * 4000})
        assert answer.status_code == 413 and "error" in json.loads(answer.text)
        assert s.generate(max_new_tokens=1)


def affinities(pid):
    """Of each thread, the cores it may run on."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as f:
            found.append(next(x.split()[1] for x in f if x.startswith("Cpus_allowed_list")))
    return found


def test_cpus_binds_the_compute_threads(start):
    """The engine's thread and its one worker, to the cores given in turn; not the loop's thread."""
    core = str(min(os.sched_getaffinity(0)))
    everywhere = affinities(os.getpid())[0]
    with start("--threads", "2", "--cpus", core) as s:
        s.generate(max_new_tokens=2)
        bound = affinities(s.process.pid)
    assert everywhere == core or (bound.count(core) == 2 and everywhere in bound)


@pytest.mark.parametrize("cpus, why", [("0-", "is not a list"), ("x", "is not a list"), ("3-1", "is not a list"),
                                       ("0,", "is not a list"), ("1023", "is not one that this process may run on")])
def test_cpus_that_cannot_be(start, cpus, why):
    with pytest.raises(Exception, match=why):
        with start("--cpus", cpus):
            pass
