"""Log lines: one for each request, whole and true; nothing a client sends can forge one; ids and traces go in and out."""
import json
import re
import socket

import pytest
import requests
from conftest import wait_for
from sse import stream

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def raw(server, request):
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as s:
        s.sendall(request)
        s.shutdown(socket.SHUT_WR) if b"Connection: close" not in request else None
        out = b""
        while part := s.recv(65536):
            out += part
        return out


def fields(line):
    """A line of logfmt, read strictly: key=value or key="JSON string", one space between."""
    out, rest = {}, line
    while rest:
        m = re.match(r'([a-z][a-z0-9_]*)=(?:("(?:[^"\\\x00-\x1f]|\\.)*")|([!#-<>-\[\]-~]*))(?: |$)', rest)
        assert m, (line, rest)
        assert m[1] not in out, line
        out[m[1]] = json.loads(m[2]) if m[2] else m[3]
        rest = rest[m.end():]
    return out


def request_lines(server, n=None):
    def lines():
        text = server.log()
        if '"msg":' in text:
            found = [json.loads(x) for x in text.splitlines()]
        else:
            found = [fields(x) for x in text.splitlines() if x.startswith("time=")]
        found = [f for f in found if f["msg"] == "request" and f.get("route") != "/ready"]
        return found if n is None or len(found) >= n else None
    return wait_for(lines, what=f"{n} lines in {server.log()}")


@pytest.fixture(scope="module")
def logged(start):
    with start("--access-log", "--device", "ref") as s:  # slow, so that a client can leave before its text is whole
        yield s
        assert s.process.poll() is None, s.log()[-4000:]


def last(server, request_id):
    return wait_for(lambda: next((f for f in request_lines(server) if f.get("request_id") == request_id), None), what=f"a line of {request_id}")


@pytest.mark.smoke
def test_a_generation(logged):
    answer = logged.post("/generate", {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 7, "ignore_eos": True}},
                         headers={"X-Request-Id": "one"})
    line = last(logged, "one")
    assert answer.headers["x-request-id"] == "one"
    assert (line["level"], line["method"], line["route"], line["status"]) == ("info", "POST", "/generate", "200")
    assert (line["generated_tokens"], line["sequences"], line["finish"]) == ("7", "1", "length")
    assert line["prompt_tokens"] == answer.headers["x-prompt-tokens"] and line["cached_tokens"] == answer.headers["x-cached-tokens"]
    assert 0 < float(line["ttft_ms"]) <= float(line["e2e_ms"]) and float(line["queue_ms"]) >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert not any("Once" in x for x in logged.log().splitlines() if x.startswith("time="))


def test_streams_and_openai(logged):
    stream(logged, max_new_tokens=3, ignore_eos=True)
    streamed = wait_for(lambda: next((f for f in request_lines(logged) if f.get("route") == "/generate_stream"), None), what="its line")
    assert streamed["generated_tokens"] == "3" and streamed["finish"] == "length" and len(streamed["request_id"]) == 32
    answer = logged.post("/v1/completions", {"prompt": ["Once", "The"], "max_tokens": 4, "n": 2, "ignore_eos": True})
    line = last(logged, answer.headers["x-request-id"])
    assert answer.json()["id"] == answer.headers["x-request-id"]
    assert (line["sequences"], line["generated_tokens"]) == ("4", "16") and line["model"]
    named = logged.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}, headers={"X-Request-Id": "mine/1"})
    assert named.headers["x-request-id"] == "mine/1" and named.json()["id"] == "cmpl-mine/1"


def test_a_client_that_leaves(logged):
    with requests.post(logged.url + "/generate_stream", stream=True, timeout=300, headers={"X-Request-Id": "gone"},
                       json={"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}) as answer:
        next(answer.iter_lines())
    line = last(logged, "gone")
    assert line["finish"] == "cancelled" and int(line["generated_tokens"]) < 400


def test_every_answer_has_an_id(logged):
    for path in ("/health", "/nowhere", "/metrics"):
        assert re.fullmatch("[0-9a-f]{32}", logged.get(path).headers["x-request-id"])
    for request in (b"GET /health HTTP/9.9\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"OPTIONS /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
                    b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", raw(logged, request)), request


@pytest.mark.parametrize("given", ["", " ", "a b", "x" * 129, 'a"b', "a\\b", "a\tb", "ünï", "a,b", "<script>"])
def test_ids_that_are_not_taken(logged, given):
    answer = raw(logged, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %s\r\n\r\n" % given.encode())
    assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", answer)


def test_two_ids_are_none(logged):
    answer = raw(logged, b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n\r\n")
    assert re.search(rb"\r\nX-Request-Id: [0-9a-f]{32}\r\n", answer)


def test_traceparent(logged):
    for n, (header, known) in enumerate([(f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-01-x", False), (f"ff-{TRACE}-{SPAN}-01", False),
                                         (f"00-{'0' * 32}-{SPAN}-01", False), (f"00-{TRACE.upper()}-{SPAN}-01", False), ("nonsense", False)]):
        logged.get("/health", headers={"traceparent": header, "X-Request-Id": f"trace-{n}"})
        line = last(logged, f"trace-{n}")
        assert (line.get("trace_id"), line.get("span_id")) == ((TRACE, SPAN) if known else (None, None)), header


NASTY = ["/x%0aforged=1", "/x%0d%0alevel=error", "/%1b[31mred", '/%22%20status=200%20x=%22', "/%e2%80%a8", "/%c2%85next", "/%ff%fe", "/a=b%20c=d",
         "/" + "%5c" * 300, "/%1emsg=forged", "/" + "x" * 3000]


def test_nothing_can_be_forged(logged):
    """Every line of the log still reads, and no field comes from a path or a header."""
    before = len(request_lines(logged))
    for path in NASTY:
        raw(logged, b"GET %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a\x0bb\r\nConnection: close\r\n\r\n" % path.encode())
        raw(logged, b"GET %s HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: a level=error\r\nConnection: close\r\n\r\n" % path.encode())
    lines = request_lines(logged, before + 2)
    wait_for(lambda: raw(logged, b"GET /done HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: done\r\nConnection: close\r\n\r\n"), what="an answer")
    last(logged, "done")
    lines = request_lines(logged)[before:]
    assert all(f["level"] == "info" and f["status"] in ("400", "404", "414") and "forged" not in f and "x" not in f and "c" not in f for f in lines)
    assert all(len(f["path"]) <= 200 for f in lines)
    assert not any(ord(c) < 32 and c != "\n" or 0x7f <= ord(c) < 0xa0 for c in logged.log())


def test_json(start):
    """With json every line on stderr is an object, from the first to the last."""
    with start("--access-log", "--log-format", "json", "--log-level", "debug") as s:
        s.post("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 3}}, headers={"X-Request-Id": "j", "traceparent": f"00-{TRACE}-{SPAN}-00"})
        for path in NASTY:
            raw(s, b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path.encode())
        line = last(s, "j")
        assert (line["status"], line["generated_tokens"], line["trace_id"], line["span_id"]) == (200, 3, TRACE, SPAN)
        assert isinstance(line["ttft_ms"], float)
    lines = [json.loads(x) for x in s.log().splitlines()]
    assert all({"time", "level", "msg"} <= set(x) for x in lines)
    messages = [x["msg"] for x in lines]
    assert messages[0] == "listening" and "ready" in messages and messages[-1] == "stopped"


def test_the_key_is_named_and_not_told(start, run, tmp_path):
    made = run("key", "new", "--name", "alice", "--role", "admin", "--api-keys", tmp_path / "keys")
    key = made.stdout.decode().strip()
    with start("--access-log", "--api-keys", tmp_path / "keys", key=key) as s:
        assert requests.get(s.url + "/info", headers={"X-Request-Id": "none"}, timeout=300).status_code == 401
        s.get("/info", headers={"X-Request-Id": "some", "Authorization": f"Bearer {key}"})
        assert "key" not in last(s, "none") and last(s, "some")["key"] == "alice"
        assert key not in s.log()


def test_quiet_unless_asked_for(server):
    before = server.log()
    server.get("/health")
    server.generate(max_new_tokens=1)
    assert "msg=request" not in server.log()[len(before):]
