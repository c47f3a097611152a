"""/debug/state and /debug/trace: true, whole, bounded, without a word of anybody's prompt, and free when nobody looks."""
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import DEMO, ROOT, at_some_pace, wait_for
from training import submit, wait_over

SECRET = "Xylophone quagmire"


@pytest.fixture(scope="module")
def small(start):
    with start("--max-seqs", "2", "--threads", "2", "--adapters", f"pirate={ROOT / 'models/demo-pirate'}", model=DEMO) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def state(server):
    answer = server.get("/debug/state")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    return answer.json()


@pytest.mark.smoke
def test_state_at_rest(small):
    small.generate(SECRET, max_new_tokens=4, ignore_eos=True)
    small.wait_idle()
    got = state(small)
    assert got["state"] == "ready" and got["healthy"] is True and got["requests"] == []
    engine = got["engine"]
    assert (engine["running"], engine["waiting"], engine["step_running_ms"], engine["oldest_waiting_ms"]) == (0, 0, None, None)
    assert engine["kv"]["used"] == 0 and engine["kv"]["pages"] > 0 and engine["memory"]["weights"] > 0
    assert got["adapters"] == [{"name": "pirate", "version": 1, "rank": 8, "bytes": got["adapters"][0]["bytes"], "requests": 0, "running": 0}]
    assert got["jobs"]["running"] is None
    steps = got["last_steps"]
    assert 4 <= len(steps) <= 64
    assert [s["number"] for s in steps] == list(range(engine["steps"] - len(steps) + 1, engine["steps"] + 1))
    assert steps[-1]["tokens"] == 1 and steps[-1]["sequences"] == 1 and steps[-1]["ms"] > 0
    assert steps[0]["age_ms"] >= steps[-1]["age_ms"] >= 0


@pytest.fixture(scope="module")
def slow(start):
    """A device on which a text of some hundred tokens takes seconds."""
    with start("--max-seqs", "2", "--device", "ref", "--adapters", f"pirate={ROOT / 'models/demo-pirate'}", model=DEMO) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def test_state_under_load(slow):
    """Four streams, places for two: who runs, who waits, since when; nothing of what they say."""
    body = {"inputs": SECRET, "parameters": {"max_new_tokens": 480, "ignore_eos": True, "adapter_id": "pirate"}}
    streams = [requests.post(slow.url + "/generate_stream", json=body, stream=True, timeout=300, headers={"X-Request-Id": f"s{i}"}) for i in range(4)]
    try:
        got = wait_for(lambda: (g := state(slow)) and [r["state"] for r in g["requests"]] == ["running"] * 2 + ["waiting"] * 2 and
                       g["engine"]["waiting"] == 2 and all(r["generated_tokens"] for r in g["requests"][:2]) and g, what="2 running, 2 waiting")
        assert [r["request_id"] for r in got["requests"]] == ["s0", "s1", "s2", "s3"]
        assert {r["route"] for r in got["requests"]} == {"/generate_stream"} and {r["adapter"] for r in got["requests"]} == {"pirate"}
        for r in got["requests"]:
            assert 0 < r["age_ms"] < 600000 and r["prompt_tokens"] > 0 and r["max_new_tokens"] == 480
            assert (r["state"] == "waiting") == (r["ttft_ms"] is None) == (r["generated_tokens"] == 0)
        running = got["requests"][0]
        assert 0 < running["computed_tokens"] <= running["prompt_tokens"] + 480 and running["pages"] > 0
        assert got["adapters"][0]["requests"] == 4 and got["adapters"][0]["running"] == 2
        text = slow.get("/debug/state").text
        assert not any(word in text for word in SECRET.split())
    finally:
        for s in streams:
            s.close()
    slow.wait_idle()


def test_state_while_it_loads(start):
    with start("--device", "ref", ready=False) as s:
        got = state(s)
        assert got["state"] in ("loading", "ready")
        assert got["state"] == "ready" or "engine" not in got
        s.wait_ready()


# ---- the trace -------------------------------------------------------------------------------------------------------

def check_trace(trace):
    """What Chrome's format and Perfetto's importer want, and that events of a thread nest."""
    assert trace["displayTimeUnit"] == "ms" and isinstance(trace["otherData"]["model"], str)
    events = trace["traceEvents"]
    names = {(e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names[(0, "process_name")] == "tandem"
    assert names[(1, "thread_name")] == "engine" and names[(2, "thread_name")] == "trainer"
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) + 3 == len(events)
    for e in complete:
        assert e["pid"] == 1 and e["tid"] in (1, 2) and e["ts"] >= 0 and e["dur"] >= 0 and e["name"]
        assert e["cat"] in ("step", "phase", "op", "training")
    for tid in (1, 2):
        stack = []
        for e in sorted((e for e in complete if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1] <= e["ts"] + 1e-3:
                stack.pop()
            assert not stack or e["ts"] + e["dur"] <= stack[-1] + 2e-3, e
            stack.append(e["ts"] + e["dur"])
    return complete


def test_trace(small):
    """Steps with their phases and ops while requests run and a job trains.  For longer where there is too little to be seen."""
    at_some_pace(lambda pace: look_at_trace(small, min(pace, 30)))


def look_at_trace(small, seconds):
    job = submit(small, max_steps=100000)
    wait_for(lambda: state(small)["jobs"]["running"] and state(small)["jobs"]["running"]["phase"] == "training", 60, "training")
    stop = threading.Event()

    def load():
        while not stop.is_set():
            small.generate(max_new_tokens=20, ignore_eos=True)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(load)
        answer = requests.post(small.url + f"/debug/trace?seconds={seconds}", timeout=300)
        stop.set()
        busy.result()
    small.post(f"/train/{job}/cancel", None)
    assert answer.status_code == 200 and "attachment" in answer.headers["content-disposition"]
    events = check_trace(answer.json())
    of = {kind: [e for e in events if e["cat"] == kind] for kind in ("step", "phase", "op", "training")}
    assert len(of["step"]) > 3 and of["training"]
    assert all(e["name"] == "step" and e["args"]["tokens"] >= e["args"]["sequences"] >= 1 for e in of["step"])
    assert {"build", "forward", "sample", "deliver"} <= {e["name"] for e in of["phase"]}
    assert {"linear", "attn", "sample"} <= {e["name"] for e in of["op"] if e["tid"] == 1}
    assert {"gemm", "attn_back"} & {e["name"] for e in of["op"] if e["tid"] == 2}
    begin, end = min(e["ts"] for e in events), max(e["ts"] + e["dur"] for e in events)
    assert end - begin < 300e6
    shares = [sum(e["dur"] for e in of["phase"] if step["ts"] <= e["ts"] < step["ts"] + step["dur"]) / step["dur"] for step in of["step"][:50]]
    assert max(shares) >= 0.8  # this machine may halt a step between two phases
    wait_over(small, job)


@pytest.mark.smoke
def test_trace_of_nothing_and_what_follows(small):
    """An idle daemon has an empty trace; afterwards it computes what it always did, and nothing is traced any more."""
    text = small.generate(max_new_tokens=20)["generated_text"]
    assert check_trace(small.post("/debug/trace", None).json()) == []
    assert small.generate(max_new_tokens=20)["generated_text"] == text
    assert check_trace(small.post("/debug/trace?seconds=1", None).json()) == []


@pytest.mark.parametrize("query", ["seconds=0", "seconds=31", "seconds=-1", "seconds=x", "seconds=1.5", "seconds="])
def test_trace_bounds(small, query):
    answer = small.post("/debug/trace?" + query, None)
    assert answer.status_code == 400 and "seconds" in answer.json()["error"]


def test_one_trace_at_a_time(small):
    def test(pace):  # the second may come after the first has ended
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(small.post, f"/debug/trace?seconds={min(pace, 30)}", None)
            wait_for(lambda: state(small)["tracing"] or first.done(), what="a trace")
            second = small.post("/debug/trace?seconds=1", None)
            assert first.result().status_code == 200
            assert second.status_code == 409
    at_some_pace(test)
    assert small.post("/debug/trace?seconds=1", None).status_code == 200


def test_a_client_that_leaves_ends_its_trace(small):
    def test(_):
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.post(small.url + "/debug/trace?seconds=30", timeout=0.3)
        begin = time.monotonic()
        wait_for(lambda: small.post("/debug/trace?seconds=1", None).status_code == 200, what="the next trace")
        assert time.monotonic() - begin < 28  # otherwise the one that was left had ended by itself
    at_some_pace(test)


def test_a_trace_does_not_hold_the_end_up(start):
    with start("--threads", "1") as s:
        with ThreadPoolExecutor(1) as pool:
            trace = pool.submit(lambda: requests.post(s.url + "/debug/trace?seconds=30", timeout=300))
            wait_for(lambda: state(s)["tracing"], what="a trace that runs")
            s.signal()
            wait_for(lambda: "msg=draining" in s.log(), what="the first signal")  # two at once may come as one
            s.signal()
            with pytest.raises(requests.ConnectionError):
                trace.result(timeout=300)
