"""Who comes in, who is sent away and for how long, and what a deadline does.

The reference device makes the daemon slow: a queue stays where it is long enough to be looked at."""
import json
import re
import socket
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
import requests
from conftest import MODEL, at_some_pace, wait_for
from keys import bearer, new_key
from openai_tools import client_of
from sse import events
from test_concurrency import raw_stream

SLOW = ("--device", "ref")
LONG = {"max_new_tokens": 400, "ignore_eos": True}


def ask(server, tokens, inputs="Once upon a time", path="/generate", headers=None, **parameters):
    return server.post(path, {"inputs": inputs, "parameters": {"max_new_tokens": tokens, "ignore_eos": True, **parameters}}, headers=headers)


def occupy(server, count=1, inputs="Once", **parameters):
    """Streams that hold every slot; each has its first token."""
    held = [raw_stream(server, {"inputs": inputs, "parameters": {**LONG, **parameters}}) for _ in range(count)]
    for s in held:
        s.settimeout(300)
        data = b""
        while b"data:" not in data:
            data += s.recv(4096)
    return held


def background(pool, count, *args, **kw):
    return [pool.submit(ask, *args, **kw) for _ in range(count)]


def wait_waiting(server, count):
    wait_for(lambda: server.metric("tandem_requests_waiting") == count, what=f"{count} waiting")


def rejected(server):
    found = re.findall(r'^tandem_requests_rejected_total\{reason="(\w+)"\} (\d+)$', server.get("/metrics").text, re.M)
    return {reason: int(n) for reason, n in found}


def answered(server, status):
    return sum(int(float(n)) for n in re.findall(rf'^tandem_requests_total\{{route="[^"]*",status="{status}"\}} (\S+)$', server.get("/metrics").text, re.M))


def close(sockets):
    for s in sockets:
        s.close()


# ---- the queue -------------------------------------------------------------------------------------------------------

@pytest.mark.full
def test_retry_after_is_the_time_of_half_a_queue(start):
    """The header says whole seconds; what it says is compared with what happens, on the same machine at the same pace."""
    with start("--max-seqs", 1, "--max-queue", 6, *SLOW) as s, ThreadPoolExecutor(8) as pool:
        ask(s, 10)
        begin = time.monotonic()
        ask(s, 50)
        per_token = (time.monotonic() - begin) / 50

        def test(pace):  # the first may end before the last has come, and then the machine's own pace may change
            tokens = int(min(400, max(5, 0.4 * pace / per_token)))
            for _ in range(2):
                ask(s, tokens)
            busy = background(pool, 7, s, tokens)
            wait_for(lambda: s.metric("tandem_requests_waiting") == 6 or any(b.done() for b in busy), what="a full queue")
            refused = ask(s, tokens)
            begin = time.monotonic()
            half = refused.status_code == 429 and wait_for(lambda: s.metric("tandem_requests_waiting") <= 3, what="half of the queue")
            took = time.monotonic() - begin
            assert all(b.result().status_code == 200 for b in busy)
            s.wait_idle()
            assert s.metric("tandem_queue_tokens") == s.metric("tandem_queue_sequences") == 0
            assert half and refused.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
            said = int(refused.headers["retry-after"])
            print(f"Retry-After {said} s, half of the queue after {took:.2f} s, {tokens} tokens a request")
            assert (said - 1) / 2 <= took <= said * 2 + 1
        at_some_pace(test)


def test_rejects_are_quick_while_others_stream(start):
    with start("--max-seqs", 2, "--max-queue", 1) as s, requests.Session() as session:
        held = [raw_stream(s, {"inputs": "Once", "parameters": LONG}, receive_buffer=4096, count=8) for _ in range(3)]
        wait_waiting(s, 1)
        times = []
        for _ in range(100):
            begin = time.monotonic()
            answer = session.post(s.url + "/generate", json={"inputs": "Once"}, timeout=300)
            times.append(time.monotonic() - begin)
            if answer.status_code != 429:  # the streams pause when their sockets are full
                break
        print(f"{len(times)} rejects, median {statistics.median(times) * 1e3:.2f} ms, worst {max(times) * 1e3:.2f} ms")
        close(held)
        s.wait_idle()


@pytest.mark.smoke
def test_a_large_body_is_refused_on_its_head(start):
    """The answer comes though most of the body never does; a small one is read, and its connection goes on."""
    with start("--max-seqs", 1, "--max-queue", 1, *SLOW) as s:
        held = occupy(s, 1)
        held += [raw_stream(s, {"inputs": "Once", "parameters": LONG})]
        wait_waiting(s, 1)
        for path, extra in (("/generate", b""), ("/v1/completions", b"Expect: 100-continue\r\n"), ("/v1/embeddings", b"")):
            with socket.create_connection(("127.0.0.1", s.port)) as c:
                c.settimeout(300)
                c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1500000\r\n%s\r\n{\"inputs\":" % (path.encode(), extra))
                got = b""
                while chunk := c.recv(65536):
                    got += chunk
            assert got.startswith(b"HTTP/1.1 429 ") and b"\r\nConnection: close\r\n" in got and b"\r\nRetry-After: " in got
            assert b"overloaded" in got and b"100 Continue" not in got
        with requests.Session() as session:
            for _ in range(3):
                assert session.post(s.url + "/generate", json={"inputs": "x" * 3000}, timeout=300).status_code == 429
        assert s.metric("tandem_connections_accepted_total") < 30
        assert s.get("/health").status_code == 200
        close(held)
        s.wait_idle()


def test_every_text_counts(start):
    with start("--max-seqs", 1, "--max-queue", 3, *SLOW) as s, ThreadPoolExecutor(2) as pool:
        held = occupy(s, 1)
        body = {"model": MODEL.name, "prompt": ["Once", "One day"], "max_tokens": 2, "ignore_eos": True}
        assert s.post("/v1/completions", {**body, "n": 2}).status_code == 429  # 4 beside the one that runs
        waits = pool.submit(s.post, "/v1/completions", {**body, "prompt": "Once", "n": 3})
        wait_waiting(s, 3)
        assert s.metric("tandem_queue_sequences") == 3
        assert ask(s, 2).status_code == 429
        assert s.post("/v1/embeddings", {"model": MODEL.name, "input": "a"}).status_code == 429
        assert s.post("/tokenize", {"inputs": "a"}).status_code == 200  # it waits for nobody
        close(held)
        assert waits.result().status_code == 200
        s.wait_idle()
        assert ask(s, 2, best_of=4, do_sample=True).status_code == 200
        never = s.post("/v1/completions", {**body, "n": 3})  # 6 texts, and there are 4 places
        assert never.status_code == 400 and "retry-after" not in never.headers


def test_more_texts_than_places(start):
    with start("--max-seqs", 1, "--max-queue", 1) as s:
        never = ask(s, 2, best_of=4, do_sample=True)
        assert never.status_code == 422 and "4 texts" in never.json()["error"] and "retry-after" not in never.headers
        assert rejected(s)["validation"] == 1
        assert ask(s, 2, best_of=2, do_sample=True).status_code == 200


def test_tokens_that_wait_are_bounded(start):
    text = "The prefix cache remembers what it has seen, page by page, until it needs the room. " * 3
    with start("--max-seqs", 1, "--max-queue", 50, "--max-queue-tokens", 100, *SLOW) as s, ThreadPoolExecutor(4) as pool:
        count = len(s.post("/tokenize", {"inputs": text}).json())
        assert 50 < count < 100
        held = occupy(s, 1)
        assert s.metric("tandem_queue_tokens") == 0  # it has its first token
        waits = background(pool, 1, s, 2, text)
        wait_waiting(s, 1)
        assert s.metric("tandem_queue_tokens") == count and s.metric("tandem_queue_tokens_limit") == 100
        for _ in range(2):
            answer = ask(s, 2, text)
            assert answer.status_code == 429 and "prompts" in answer.json()["error"] and int(answer.headers["retry-after"]) >= 1
        assert rejected(s)["queue_tokens"] == 2
        close(held)
        assert waits[0].result().status_code == 200
        s.wait_idle()
        assert ask(s, 2, text * 3).status_code == 200  # larger than the limit, and alone


def test_a_wait_that_is_too_long(start):
    with start("--max-seqs", 1, "--max-wait", 0.05, *SLOW) as s:
        ask(s, 30)
        held = occupy(s, 1)
        answer = ask(s, 2)
        assert answer.status_code == 429 and "wait" in answer.json()["error"]
        assert rejected(s)["queue_wait"] == 1
        assert s.metric("tandem_queue_wait_seconds") > 0.05
        close(held)
        s.wait_idle()
        assert ask(s, 2).status_code == 200


def test_urgent_requests_go_first(start):
    with start("--max-seqs", 1, *SLOW) as s, ThreadPoolExecutor(4) as pool:
        held = occupy(s, 1, priority=-100)
        order = []

        def one(priority):
            assert ask(s, 3, priority=priority).status_code == 200
            order.append(priority)
        waits = []
        for i, priority in enumerate((5, 0, -5, 1)):
            waits.append(pool.submit(one, priority))
            wait_waiting(s, i + 1)
        close(held)
        for w in waits:
            w.result()
        assert order == [-5, 0, 1, 5]


def test_counters_add_up(start):
    with start("--max-seqs", 1, "--max-queue", 2, *SLOW) as s, ThreadPoolExecutor(8) as pool:
        held = occupy(s, 1)
        waits = background(pool, 2, s, 2, timeout_ms=600000)
        wait_waiting(s, 2)
        for _ in range(3):
            assert ask(s, 2).status_code == 429
        assert ask(s, 2, top_k=0).status_code == 429
        close(held)
        for w in waits:
            assert w.result().status_code == 200
        held = occupy(s, 1)
        assert ask(s, 2, timeout_ms=50).status_code == 504
        assert ask(s, 2, top_k=0).status_code == 422
        close(held)
        s.wait_idle()
        got = rejected(s)
        assert {k: n for k, n in got.items() if n} == {"queue_full": 4, "deadline": 1, "validation": 1}
        assert answered(s, 429) == 4 and answered(s, 504) == 1 and answered(s, 422) == 1


def test_the_client_comes_back_when_it_was_told(start):
    """openai waits for as long as Retry-After says."""
    with start("--max-seqs", 1, "--max-queue", 1, *SLOW) as s:
        ask(s, 2)
        held = occupy(s, 1)
        held += [raw_stream(s, {"inputs": "Once", "parameters": LONG})]
        wait_waiting(s, 1)
        seen = []

        def note(response):
            seen.append((time.monotonic(), response.status_code, response.headers.get("retry-after")))
            close(held)
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=3, http_client=httpx.Client(event_hooks={"response": [note]}))
        assert client.completions.create(model=MODEL.name, prompt="Once", max_tokens=2).usage.completion_tokens == 2
        assert [status for _, status, _ in seen][0] == 429 and seen[-1][1] == 200
        assert seen[1][0] - seen[0][0] >= int(seen[0][2])


# ---- deadlines -------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_a_deadline_that_passes_in_the_queue(start):
    with start("--max-seqs", 1, *SLOW) as s:
        held = occupy(s, 1)
        late = ask(s, 2, timeout_ms=60)
        assert late.status_code == 504 and late.json() == {"error": "Request timed out: the deadline passed before the first token", "error_type": "timeout"}
        assert ask(s, 2, headers={"X-Request-Timeout": "60"}).status_code == 504
        assert s.post("/generate", {"inputs": "Once", "timeout_ms": 60}).status_code == 504
        assert ask(s, 2, timeout_ms=100000, headers={"x-request-timeout": "60"}).status_code == 504  # the earlier one
        body = {"model": MODEL.name, "prompt": "Once", "max_tokens": 2, "timeout_ms": 60}
        late = s.post("/v1/completions", {**body, "n": 2})
        assert late.status_code == 504 and late.json()["error"]["code"] == "timeout" and late.json()["error"]["type"] == "server_error"
        assert s.post("/v1/embeddings", {"model": MODEL.name, "input": ["a", "b"], "timeout_ms": 60}).status_code == 504
        with pytest.raises(openai.APIError):
            list(client_of(s).completions.create(model=MODEL.name, prompt="Once", stream=True, extra_body={"timeout_ms": 60}))
        with requests.post(s.url + "/generate_stream", json={"inputs": "Once", "parameters": {"timeout_ms": 60}}, stream=True, timeout=300) as answer:
            assert [e["error_type"] for e in events(answer)] == ["timeout"]
        wait_waiting(s, 0)
        assert rejected(s)["deadline"] == 8
        assert s.metric("tandem_requests_finished_total", reason="timeout") == 8  # two of n, one each; the embeddings were cancelled
        close(held)
        s.wait_idle()


def time_for_tokens(server):
    """Milliseconds in which four texts begin on this machine, as it is now."""
    begin = time.monotonic()
    server.post("/v1/completions", {"model": MODEL.name, "prompt": ["Once", "One day"], "n": 2, "max_tokens": 4, "ignore_eos": True})
    return int((time.monotonic() - begin) * 2000) + 100


def test_a_deadline_in_mid_text(start):
    def test(pace):  # none may pass before its first token
        with start(*SLOW) as s:
            whole = ask(s, 40).json()["generated_text"]
            timeout = time_for_tokens(s) * pace
            rest = {"max_new_tokens": 480, "ignore_eos": True, "details": True, "timeout_ms": timeout}
            got = s.generate("Once upon a time", **rest)
            assert got["details"]["finish_reason"] == "timeout" and 0 < got["details"]["generated_tokens"] < 480
            assert len(got["details"]["tokens"]) == got["details"]["generated_tokens"]
            assert got["generated_text"].startswith(whole) or whole.startswith(got["generated_text"])
            with requests.post(s.url + "/generate_stream", json={"inputs": "Once upon a time", "parameters": rest}, stream=True, timeout=300) as answer:
                stream = list(events(answer))
            assert stream[-1]["details"]["finish_reason"] == "timeout" and stream[-1]["details"]["generated_tokens"] == len(stream)
            assert stream[-1]["generated_text"] == "".join(e["token"]["text"] for e in stream if not e["token"]["special"])
            client = client_of(s)
            args = {"model": MODEL.name, "prompt": ["Once", "One day"], "max_tokens": 480, "temperature": 0, "n": 2, "extra_body": {"timeout_ms": timeout, "ignore_eos": True}}
            choices = client.completions.create(**args).choices
            assert [c.finish_reason for c in choices] == ["timeout"] * 4 and all(c.text for c in choices)
            ends = [c.finish_reason for chunk in client.completions.create(stream=True, **args) for c in chunk.choices if c.finish_reason]
            assert ends == ["timeout"] * 4
            best = ask(s, 480, best_of=2, do_sample=True, timeout_ms=timeout, details=True).json()
            assert best["details"]["finish_reason"] == best["details"]["best_of_sequences"][0]["finish_reason"] == "timeout"
            s.wait_idle()
            assert s.metric("tandem_requests_finished_total", reason="timeout") == 2 + 8 + 2
            assert rejected(s)["deadline"] == 0
    at_some_pace(test)


def test_a_deadline_for_everybody(start):
    def test(pace):  # it may not pass before the first token
        with start("--request-timeout", 0.5 * pace, *SLOW) as s:
            assert ask(s, 480, details=True).json()["details"]["finish_reason"] == "timeout"
            answer = ask(s, 480, details=True, timeout_ms=86400000)  # no later than the server's
            assert answer.json()["details"]["finish_reason"] == "timeout"
    at_some_pace(test)


def test_a_deadline_that_cannot_be_met(start):
    """Refused when it comes, by what it would wait for: then it is told when to come back."""
    with start("--max-seqs", 1, *SLOW) as s:
        ask(s, 40)
        ask(s, 40)
        held = occupy(s, 1)
        answer = ask(s, 2, timeout_ms=1)
        assert answer.status_code == 504 and answer.json()["error_type"] == "timeout"
        for timeout in ("20", "80", "320"):  # with the first it may be over before it is here
            answer = ask(s, 2, headers={"X-Request-Timeout": timeout})
            if "would pass" in answer.text:
                break
        assert answer.status_code == 504 and int(answer.headers["retry-after"]) >= 1 and "would pass" in answer.json()["error"]
        assert s.metric("tandem_requests_finished_total", reason="timeout") == 0  # neither came as far as the engine
        close(held)
        s.wait_idle()


def test_a_deadline_before_the_engine(server):
    """While the body comes in, and while a long text is tokenised."""
    data = json.dumps({"inputs": "Once"}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.settimeout(300)
        c.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nX-Request-Timeout: 30\r\nContent-Length: %d\r\n\r\n" % len(data))
        time.sleep(0.1)
        c.sendall(data)
        assert c.recv(4096).startswith(b"HTTP/1.1 504 ")
    long = {"inputs": "word and word " * 100_000, "parameters": {"truncate": 10, "max_new_tokens": 1}}
    for timeout in (1, 5, 20, 60):
        answer = server.post("/generate", long, headers={"X-Request-Timeout": str(timeout)})
        assert answer.status_code in (200, 504, 429)  # 429: the pool is still busy with the one before, which counts
    body = {"model": MODEL.name, "prompt": long["inputs"], "truncate_prompt_tokens": 10, "max_tokens": 1}
    for timeout in (1, 5, 20, 60):
        assert server.post("/v1/completions", body, headers={"X-Request-Timeout": str(timeout)}).status_code in (200, 504, 429)
        texts = {"model": MODEL.name, "input": ["word and word " * 100] * 200, "timeout_ms": timeout}
        assert server.post("/v1/embeddings", texts).status_code in (200, 504, 429)
    server.wait_idle()
    assert server.metric("tandem_queue_tokens") == server.metric("tandem_queue_sequences") == 0


@pytest.mark.smoke
@pytest.mark.parametrize("value", [0, -1, 1.5, "20", 86400001, True])
def test_timeouts_that_are_none(server, value):
    for answer in (server.post("/generate", {"inputs": "a", "parameters": {"timeout_ms": value}}), server.post("/generate", {"inputs": "a", "timeout_ms": value})):
        assert answer.status_code == 422 and "timeout_ms" in answer.json()["error"]
    for path, field in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
        answer = server.post(path, {"model": MODEL.name, field: "a", "timeout_ms": value})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "timeout_ms"


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1s", "", "99999999999999999999", "86400001"])
def test_header_timeouts_that_are_none(server, value):
    for path, status in (("/generate", 422), ("/v1/completions", 400)):
        answer = server.post(path, {"inputs": "a", "prompt": "a"}, headers={"X-Request-Timeout": value})
        assert answer.status_code == status and "X-Request-Timeout" in answer.text


# ---- keys ------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def keyed(start, tmp_path_factory):
    """A daemon whose keys have limits, and its keys by name."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    keys = {
        "admin": new_key(file, "admin", "admin"),
        "rate": new_key(file, "rate", "user", "--requests-per-minute", 3),
        "tokens": new_key(file, "tokens", "user", "--tokens-per-minute", 60),
        "few": new_key(file, "few", "user", "--max-concurrent", 2),
        "free": new_key(file, "free"),
    }
    with start("--api-keys", file, *SLOW, key=keys["admin"]) as s:
        yield s, keys
        s.wait_idle()
        assert s.metric("tandem_queue_tokens") == s.metric("tandem_queue_sequences") == 0


def refused_by_key(answer, what):
    assert answer.status_code == 429 and answer.json()["error_type"] == "rate_limit_exceeded" and what in answer.json()["error"]
    return int(answer.headers["retry-after"])


@pytest.mark.smoke
def test_requests_of_a_key(keyed):
    s, keys = keyed
    mine = bearer(keys["rate"])
    before = rejected(s)["key_rate"]
    assert s.post("/tokenize", {"inputs": "a"}, headers=mine).status_code == 200  # it counts, too
    assert ask(s, 2, headers=mine).status_code == 200
    assert s.post("/v1/completions", {"model": MODEL.name, "prompt": "Once", "max_tokens": 1}, headers=mine).status_code == 200
    assert 1 <= refused_by_key(ask(s, 2, headers=mine), "requests in a minute") <= 20
    answer = s.post("/v1/completions", {"model": MODEL.name, "prompt": "Once", "max_tokens": 1}, headers=mine)
    assert answer.status_code == 429 and answer.json()["error"]["type"] == "rate_limit_error" and answer.json()["error"]["code"] == "rate_limit_exceeded"
    refused_by_key(s.post("/tokenize", {"inputs": "a"}, headers=mine), "requests in a minute")
    assert rejected(s)["key_rate"] == before + 3
    assert ask(s, 2, headers=bearer(keys["free"])).status_code == 200  # the others go on


def test_tokens_of_a_key(keyed):
    s, keys = keyed
    mine = bearer(keys["tokens"])
    begin = time.monotonic()
    assert ask(s, 100, "Once", headers=mine).status_code == 200  # more than it has: a debt
    seconds = refused_by_key(ask(s, 1, "Once", headers=mine), "tokens in a minute")
    assert 38 - (time.monotonic() - begin) <= seconds <= 120  # about 45 tokens of debt, and one more, at one a second; it fills meanwhile
    assert rejected(s)["key_tokens"] == 1


def test_texts_of_a_key_at_once(keyed):
    s, keys = keyed
    mine = bearer(keys["few"])
    body = {"model": MODEL.name, "prompt": "Once", "max_tokens": 2, "ignore_eos": True}
    never = s.post("/v1/completions", {**body, "n": 3}, headers=mine)
    assert never.status_code == 400 and "3 texts" in never.json()["error"]["message"] and "retry-after" not in never.headers
    long = {"inputs": "Once", "parameters": LONG}
    with requests.post(s.url + "/generate_stream", json=long, headers=mine, stream=True, timeout=300) as held:
        reader = events(held)  # kept: without its reader the connection is closed
        next(reader)
        assert s.post("/v1/completions", body, headers=mine).status_code == 200
        answer = s.post("/v1/completions", {**body, "n": 2}, headers=mine)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        with requests.post(s.url + "/generate_stream", json=long, headers=mine, stream=True, timeout=300) as second:
            reader2 = events(second)
            next(reader2)
            refused_by_key(ask(s, 2, headers=mine), "at once")
            assert ask(s, 2, headers=bearer(keys["free"])).status_code == 200
    s.wait_idle()
    assert s.post("/v1/completions", {**body, "n": 2}, headers=mine).status_code == 200
    assert rejected(s)["key_concurrency"] == 2


def test_a_key_that_comes_last(start, tmp_path):
    """It asks to be first, and is not."""
    last, free = (new_key(tmp_path / "keys", *args) for args in (("last", "user", "--priority-max", 10), ("free", "admin")))
    with start("--api-keys", tmp_path / "keys", "--max-seqs", 1, *SLOW, key=free) as s, ThreadPoolExecutor(4) as pool:
        order = []

        def one(key, priority):
            assert ask(s, 2, headers=bearer(key), priority=priority).status_code == 200
            order.append((key == last, priority))
        with requests.post(s.url + "/generate_stream", json={"inputs": "Once", "parameters": {**LONG, "priority": -100}}, headers=bearer(free), stream=True, timeout=300) as held:
            reader = events(held)
            next(reader)
            waits = []
            for i, (key, priority) in enumerate([(last, -1000), (free, 9), (free, 11), (last, 12)]):
                waits.append(pool.submit(one, key, priority))
                wait_waiting(s, i + 1)
        for w in waits:
            w.result()
        assert order == [(False, 9), (True, -1000), (False, 11), (True, 12)]
