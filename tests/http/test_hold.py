"""/pause, /resume, /is_paused, /reset_prefix_cache: vLLM's routes, with which trainers change weights between texts."""
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from conftest import PATIENCE, wait_for

SLOW = ("--device", "ref", "--chat-template", "plain")  # so that there is time between the tokens
STORY = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 100, "ignore_eos": True}}


@pytest.fixture(scope="module")
def server(start):
    with start(*SLOW) as s:
        yield s


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as p:
        yield p


def pause(server, mode=None, **query):
    return server.post("/pause", None, params={**({"mode": mode} if mode else {}), **query})


def resume(server):
    answer = server.post("/resume", None)
    assert answer.status_code == 200 and answer.json() == {"status": "resumed"}


def is_paused(server):
    return server.get("/is_paused").json()["is_paused"]


def running(server, n):
    wait_for(lambda: server.metric("tandem_requests_running") >= n, what=f"{n} running")


def story(server):
    return server.post("/generate", STORY).json()["generated_text"]


@pytest.mark.smoke
def test_keep(server, pool):
    """What is held has the text it would have had; what comes meanwhile waits."""
    whole = story(server)
    busy = pool.submit(story, server)
    running(server, 1)
    answer = pause(server, "keep", clear_cache="false")
    assert (answer.status_code, answer.json()) == (200, {"status": "paused"}) and is_paused(server)
    steps = server.metric("tandem_steps_total")
    late = pool.submit(story, server)
    wait_for(lambda: server.metric("tandem_requests_waiting") == 1, what="the second")
    assert server.get("/health").status_code == 200 and not late.done()
    assert server.metric("tandem_steps_total") == steps
    resume(server)
    assert (busy.result(), late.result()) == (whole, whole) and not is_paused(server)


def test_wait(server, pool):
    whole = story(server)
    busy = pool.submit(story, server)
    running(server, 1)
    assert pause(server, "wait").json() == {"status": "paused"}
    assert busy.result() == whole
    late = pool.submit(story, server)
    wait_for(lambda: server.metric("tandem_requests_waiting") == 1, what="the second")
    assert not late.done()
    assert pause(server, "wait").json() == {"status": "paused"}  # again: what is held is not waited for
    resume(server)
    assert late.result() == whole


def stream_reason(server):
    reason = None
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with requests.post(server.url + "/v1/completions", json=body, stream=True, timeout=PATIENCE) as answer:
        for line in answer.iter_lines():
            if line.startswith(b"data: {"):
                reason = json.loads(line[6:])["choices"][0]["finish_reason"] or reason
    return reason


def test_abort(server, pool):
    """Every kind of request ends with what it has, or says that it has nothing."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 200, "ignore_eos": True}
    calls = [pool.submit(server.post, "/generate", {**STORY, "parameters": {"max_new_tokens": 200, "ignore_eos": True, "details": True}}),
             pool.submit(server.post, "/v1/chat/completions", chat), pool.submit(stream_reason, server)]
    running(server, 3)
    assert pause(server).json() == {"status": "paused"}
    text, talk = calls[0].result().json(), calls[1].result().json()
    assert text["details"]["finish_reason"] == "abort" and 0 < text["details"]["generated_tokens"] < 200
    assert talk["choices"][0]["finish_reason"] == "abort" and talk["usage"]["completion_tokens"] < 200
    assert calls[2].result() == "abort"
    waiting = pool.submit(story, server)
    wait_for(lambda: server.metric("tandem_requests_waiting") == 1, what="the next")
    again = pause(server)  # twice: the one that waits ends without a token
    assert again.status_code == 200
    resume(server)
    assert waiting.result() == ""
    assert len(story(server)) > 50


def test_resumed_meanwhile(server, pool):
    busy = pool.submit(story, server)
    running(server, 1)
    assert pause(server, "keep").status_code == 200  # so that the text does not end before the others have come
    waits = pool.submit(pause, server, "wait")
    before = server.metric("tandem_steps_total")
    wait_for(lambda: server.metric("tandem_steps_total") > before, what="the text goes on")
    resume(server)
    assert waits.result().status_code == (200 if busy.done() else 409)
    busy.result()
    assert not is_paused(server)


def test_drain_releases(start, pool):
    """SIGTERM while held: the requests end first, as in any drain."""
    with start(*SLOW) as s:
        busy = pool.submit(s.generate, max_new_tokens=100, ignore_eos=True)
        running(s, 1)
        assert pause(s, "keep").status_code == 200
        s.signal()
        assert len(busy.result()["generated_text"]) > 50
        assert s.wait() == 0


def test_reset_prefix_cache(server):
    def cached():
        return int(server.post("/generate", {"inputs": "word " * 20, "parameters": {"max_new_tokens": 1}}).headers["x-cached-tokens"])
    cached()
    assert cached() > 0
    answer = server.post("/reset_prefix_cache", None)
    assert answer.status_code == 200 and answer.json() == {"success": True}
    assert cached() == 0
    assert cached() > 0
    assert pause(server, "keep").status_code == 200  # with clear_cache
    resume(server)
    assert cached() == 0


def test_refused(server):
    answer = pause(server, "gently")
    assert answer.status_code == 400 and "abort, wait or keep" in answer.json()["error"]
    assert server.get("/pause").status_code == 405 and not is_paused(server)
