"""API keys: who may do what, on every route that docs/openapi.yaml names (tests/repo compares it with the table); the file,
read again under load; what a client sees; and that no key is ever written down."""
import os
import random
import signal
import socket
import subprocess
import threading
import time

import openai
import pytest
import requests
import yaml
from conftest import BINARY, ENV, MODEL, ROOT, wait_for
from keys import KEY, Keys, bearer, new_key, tandem_key

METHODS = ("get", "post", "put", "delete")
RANK = {"user": 0, "train": 1, "admin": 2}


def operations():
    paths = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["paths"]
    return [(method, path, item[method]["x-role"]) for path, item in paths.items() for method in item if method in METHODS]


OPERATIONS = operations()
ROUTES = pytest.mark.parametrize("method, path, role", OPERATIONS, ids=[f"{m.upper()} {p}" for m, p, _ in OPERATIONS])


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys") / "keys")


@pytest.fixture(scope="module")
def keyed(start, keys):
    """A daemon with keys.  Whatever was asked of it, its log has none of them."""
    with start("--api-keys", keys.file, "--access-log", "--log-level", "debug", "--cors-origin", "*", key=keys.admin) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        metrics = s.get("/metrics").text
    log = s.log()
    for key in [*keys.all(), keys.wrong]:
        assert key not in log and key not in metrics
    assert not KEY.search(log)


def concrete(path):
    """A path of things that are not there."""
    return path.replace("{file}", "index.html").replace("{model}", "nobody").replace("{name}", "nobody").replace("{id}", "job-nobody").replace("{dataset}", "demo/nobody")


def ask(server, method, path, key=None, headers=None):
    """A request that would do nothing even if it came through."""
    headers = {**(bearer(key) if key else {}), **(headers or {})}
    body = {"json": {}} if method == "post" else {}
    return requests.request(method, server.url + concrete(path), headers=headers, timeout=300, **body)


def check_refusal(answer, status, path):
    """In the route's own shape; -> the message"""
    assert answer.status_code == status, (path, answer.status_code, answer.text)
    assert answer.headers["www-authenticate"].startswith('Bearer realm="tandem"')
    error = answer.json()["error"]
    code = "invalid_api_key" if status == 401 else "insufficient_permissions"
    if path.startswith("/v1/messages"):
        assert answer.json() == {"type": "error", "error": error} and error["type"] == ("authentication_error" if status == 401 else "permission_error")
        return error["message"]
    if path.startswith(("/v1/", "/inference/v1/")):
        assert error["type"] == ("authentication_error" if status == 401 else "permission_error")
        assert error["code"] == code and error["param"] is None
        return error["message"]
    assert answer.json()["error_type"] == code
    return error


# ---- every route -----------------------------------------------------------------------------------------------------

@ROUTES
def test_without_a_good_key(keyed, keys, method, path, role):
    if role == "open":
        for key in (None, keys.wrong, keys.revoked):
            assert ask(keyed, method, path, key).status_code < 400, path
        return
    missing = check_refusal(ask(keyed, method, path), 401, path)
    wrong, revoked, expired = (check_refusal(ask(keyed, method, path, key), 401, path)
                               for key in (keys.wrong, keys.revoked, keys.expired))
    assert wrong == revoked and wrong != missing and "expired" in expired


@ROUTES
def test_roles(keyed, keys, method, path, role):
    for has in RANK:
        answer = ask(keyed, method, path, keys.of(has))
        if RANK[has] < RANK.get(role, 0):
            message = check_refusal(answer, 403, path)
            assert f"the role {role}" in message and f"is {has}" in message
        else:
            assert answer.status_code not in (401, 403), (path, has, answer.text)


def test_roles_are_as_documented():
    """What each role is for, spelt out once: a change of the table must be meant."""
    role = {(m, p): r for m, p, r in OPERATIONS}
    assert role["post", "/generate"] == role["post", "/v1/chat/completions"] == role["get", "/metrics"] == role["get", "/info"] == "user"
    assert role["post", "/train"] == role["post", "/v1/files"] == role["post", "/adapters"] == "train"
    assert role["delete", "/adapters/{name}"] == "admin"
    assert sorted(p for (m, p), r in role.items() if r == "open") == ["/api/v1/healthz", "/console/{file}", "/health", "/ping", "/ready"]
    assert [p for (m, p), r in role.items() if r == "page"] == ["/"]


# ---- how a key comes -------------------------------------------------------------------------------------------------

@pytest.mark.smoke
@pytest.mark.parametrize("headers", [
    {"Authorization": "Bearer KEY"}, {"authorization": "bearer KEY"}, {"Authorization": "BEARER   KEY  "},
    {"X-Api-Key": "KEY"}, {"x-api-key": "KEY", "Authorization": "Basic dXNlcjpwYXNz"}])
def test_headers_that_carry_a_key(keyed, keys, headers):
    good = {name: value.replace("KEY", keys.user) for name, value in headers.items()}
    wrong = {name: value.replace("KEY", keys.wrong) for name, value in headers.items()}
    assert ask(keyed, "get", "/info", headers=good).status_code == 200
    assert ask(keyed, "get", "/info", headers=wrong).status_code == 401


@pytest.mark.parametrize("headers", [
    {"Authorization": "Bearer"}, {"Authorization": "Bearer "}, {"Authorization": "BearerKEY"}, {"Authorization": "KEY"},
    {"Authorization": "Basic KEY"}, {"X-Api-Key": ""}, {"X-Api-Key": "Bearer KEY"}, {"Api-Key": "KEY"}, {"Cookie": "key=KEY"},
    {"Authorization": "Bearer KEY KEY"}, {"Authorization": "Bearer x", "X-Api-Key": "KEY"}])
def test_headers_that_do_not(keyed, keys, headers):
    headers = {name: value.replace("KEY", keys.admin) for name, value in headers.items()}
    assert ask(keyed, "get", "/info", headers=headers).status_code == 401


@pytest.mark.parametrize("change", [lambda k: k[:-1], lambda k: k + "0", lambda k: k.upper(), lambda k: k[4:], lambda k: "tdm_" + k,
                                    lambda k: k[:-1] + ("a" if k[-1] != "a" else "b"), lambda k: k * 200, lambda k: k + "\xe9"])
def test_nearly_a_key(keyed, keys, change):
    assert ask(keyed, "get", "/info", headers={"X-Api-Key": change(keys.admin).encode("latin-1")}).status_code == 401


def test_a_key_in_the_query_is_none(keyed, keys):
    assert requests.get(f"{keyed.url}/info?key={keys.user[:20]}&api_key={keys.user[:20]}", timeout=300).status_code == 401


def test_the_hash_is_no_key(keyed, keys):
    """Whoever reads the file gains nothing."""
    for word in keys.file.read_text().split():
        if word.startswith("sha256:"):
            assert ask(keyed, "get", "/info", word).status_code == ask(keyed, "get", "/info", word[7:]).status_code == 401


# ---- paths -----------------------------------------------------------------------------------------------------------

def test_paths_that_do_not_exist_want_a_key(keyed, keys):
    assert ask(keyed, "get", "/nowhere").status_code == ask(keyed, "get", "/v1/nowhere").status_code == 401
    assert ask(keyed, "put", "/generate").status_code == 401
    assert ask(keyed, "get", "/nowhere", keys.user).status_code == 404
    assert ask(keyed, "put", "/generate", keys.user).status_code == 405


OWN, ELSEWHERE = "http://HOST", "http://elsewhere"


@pytest.mark.smoke
@pytest.mark.parametrize("headers, status", [
    ({}, 200), ({"Origin": OWN}, 200), ({"Origin": OWN, "Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
    ({"Origin": ELSEWHERE}, 403), ({"Origin": "null"}, 403), ({"Origin": ELSEWHERE, "Sec-Fetch-Site": "cross-site"}, 403),
    ({"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
])
def test_without_keys_a_page_of_another_site_does_nothing(server, headers, status):
    """What a browser sends for a page without asking first: POST with a plain type."""
    headers = {k: v.replace("HOST", server.url.split("//")[1]) for k, v in headers.items()}
    for path, body in (("/generate", '{"inputs":"Hi","parameters":{"max_new_tokens":1}}'), ("/v1/completions", '{"prompt":"Hi","max_tokens":1}')):
        answer = requests.post(server.url + path, data=body, headers={"Content-Type": "text/plain", **headers}, timeout=300)
        assert answer.status_code == status, answer.text
        if status == 403:
            error = answer.json()["error"]
            assert "--cors-origin" in (error if path == "/generate" else error["message"])
    if status == 403:
        assert requests.post(server.url + "/train", data="{}", headers=headers, timeout=300).status_code == 403
        assert requests.delete(server.url + "/adapters/nobody", headers=headers, timeout=300).status_code == 403
    read = requests.get(server.url + "/info", headers=headers, timeout=300)
    assert read.status_code == 200 and "access-control-allow-origin" not in read.headers
    assert "access-control-allow-origin" not in requests.options(server.url + "/generate", headers=headers, timeout=300).headers


@pytest.mark.parametrize("allowed", ["*", ELSEWHERE])
def test_pages_that_are_let_in(start, allowed):
    with start("--cors-origin", allowed) as s:
        for origin in (ELSEWHERE, "http://third"):
            answer = s.post("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 1}}, headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
            assert answer.status_code == (200 if allowed in ("*", origin) else 403)
            assert answer.headers["access-control-allow-origin"] == allowed
        assert s.metric("tandem_requests_rejected_total", reason="forbidden") == (0 if allowed == "*" else 1)


REBOUND = "evil.example:PORT"


@pytest.mark.smoke
@pytest.mark.parametrize("host, status", [(REBOUND, 403), ("localhost:PORT", 200), ("127.0.0.1:PORT", 200), ("[::1]:PORT", 200), ("tandem", 403)])
def test_a_name_that_was_pointed_here_does_nothing(server, host, status):
    """DNS rebinding: to the browser the page of evil.example is the daemon's own."""
    host = host.replace("PORT", str(server.port))
    headers = {"Host": host, "Origin": "http://" + host}
    for path, body in (("/generate", {"inputs": "Hi", "parameters": {"max_new_tokens": 1}}), ("/v1/completions", {"prompt": "Hi", "max_tokens": 1})):
        answer = requests.post(server.url + path, json=body, headers=headers, timeout=300)
        assert answer.status_code == status, answer.text
        assert status == 200 or "--allowed-hosts" in answer.text
    for path in ("/info", "/", "/train", "/metrics", "/debug/state"):
        assert requests.get(server.url + path, headers=headers, timeout=300).status_code == status
    assert requests.get(server.url + "/health", headers=headers, timeout=300).status_code == 200  # a probe's Host may be anything


def test_names_of_the_daemon(start, keys):
    """--allowed-hosts names more; a network's own names do with --allow-open; with keys nobody asks."""
    def status(s, host, **kw):
        return s.get("/info", headers={"Host": host, **kw}).status_code
    with start("--allowed-hosts", "api.example,.in.example") as s:
        assert [status(s, host) for host in ("api.example", "a.in.example:1", "other.example", "tandem")] == [200, 200, 403, 403]
        assert "reason=unknown_host" in s.log()
    with start("--allow-open", "--host", "0.0.0.0") as s:
        assert [status(s, host) for host in ("tandem", "tandem.default.svc.cluster.local", "other.example")] == [200, 200, 403]
    with start("--api-keys", keys.file, key=keys.user) as s:
        assert status(s, "other.example", **bearer(keys.user)) == 200


def test_a_page_cannot_start_a_trace(server):
    """A GET needs no permission and says little of where it is from: what has an effect is no GET."""
    assert requests.get(server.url + "/debug/trace?seconds=1", timeout=300).status_code == 405
    assert requests.post(server.url + "/debug/trace?seconds=1", headers={"Origin": ELSEWHERE}, timeout=300).status_code == 403


def test_with_keys_a_page_needs_one(start, keys):
    with start("--api-keys", keys.file, key=keys.admin) as s:
        for key, status in ((None, 401), (keys.user, 200)):
            answer = requests.post(s.url + "/tokenize", json={"inputs": "Hi"}, headers={"Origin": ELSEWHERE, **(bearer(key) if key else {})}, timeout=300)
            assert answer.status_code == status and "access-control-allow-origin" not in answer.headers


def test_browsers_may_ask_before_they_send_a_key(keyed):
    for path in ("/generate", "/v1/files", "/nowhere"):
        answer = requests.options(keyed.url + path, timeout=300, headers={
            "Origin": "http://elsewhere", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"})
        assert answer.status_code == (404 if path == "/nowhere" else 204)
    assert "authorization" in requests.options(keyed.url + "/generate", timeout=300, headers={
        "Access-Control-Request-Headers": "authorization"}).headers["access-control-allow-headers"]
    refused = requests.get(keyed.url + "/info", timeout=300, headers={"Origin": "http://elsewhere"})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "*"  # so that a page can read why


def test_the_page_is_open_and_empty(keyed):
    """What a browser gets before it has a key are the files of the source tree, and nothing of what is served."""
    page = requests.get(keyed.url + "/", timeout=300, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.status_code == 200 and page.content == (ROOT / "server/console/index.html").read_bytes()
    script = requests.get(keyed.url + "/console/api.js", timeout=300)
    assert script.status_code == 200 and script.content == (ROOT / "server/console/api.js").read_bytes()
    for accept in ("*/*", "application/json", ""):
        assert requests.get(keyed.url + "/", timeout=300, headers={"Accept": accept}).status_code == 401
    assert requests.head(keyed.url + "/", timeout=300).status_code == 401
    assert requests.head(keyed.url + "/health", timeout=300).status_code == 200


# ---- before the body -------------------------------------------------------------------------------------------------

def raw(server, text):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    s.sendall(text.encode())
    return s


def read_until(s, mark):
    got = b""
    while mark not in got:
        part = s.recv(65536)
        assert part, got
        got += part
    return got


@pytest.mark.parametrize("extra", ["", "Expect: 100-continue\r\n"])
def test_the_body_is_not_waited_for(keyed, keys, extra):
    """Nor read: whoever has no key costs a head."""
    for path, key, status in (("/generate", keys.wrong, b"401"), ("/v1/files", keys.user, b"403"), ("/train", keys.wrong, b"401")):
        with raw(keyed, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: 999999\r\n{extra}\r\n") as s:
            got = read_until(s, b"}")
            assert got.startswith(b"HTTP/1.1 " + status) and b"Connection: close" in got
            assert s.recv(1000).strip(b"}") == b""  # and then the end
    with raw(keyed, "POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n") as s:
        assert read_until(s, b"}").startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("head", ["GET /health", "GET /ready", "GET / HTTP/1.1\r\nAccept: text/html", "GET /console/api.js", "OPTIONS /generate",
                                  "OPTIONS /nowhere"])
def test_where_no_key_is_asked_no_large_body_is_read(keyed, head):
    head = (head if "\r\n" in head else head + " HTTP/1.1") + "\r\nHost: localhost\r\nConnection: close\r\n"
    for body in ("Content-Length: 5000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n1388\r\n"):
        with raw(keyed, head + body) as s:
            assert read_until(s, b"\r\n").startswith(b"HTTP/1.1 413")
    with raw(keyed, head + "Content-Length: 4096\r\n\r\n" + "a" * 4096) as s:
        assert read_until(s, b"\r\n")[9:12] in ((b"200", b"204") if "nowhere" not in head else (b"404",))


@pytest.mark.smoke
def test_a_refused_request_without_a_body_leaves_the_connection(keyed, keys):
    """And its key is of that request alone."""
    request = "GET /info HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {}\r\n\r\n".format
    with raw(keyed, request(keys.wrong) + request(keys.user) + "GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n" + request(keys.admin)) as s:
        got = b""
        while got.count(b"HTTP/1.1 ") < 4 or not got.endswith(b"}"):
            got += s.recv(65536)
        assert [part[:3] for part in got.split(b"HTTP/1.1 ")[1:]] == [b"401", b"200", b"401", b"200"]


def test_malformed_requests_are_told_so(keyed):
    with raw(keyed, "GET / HTTP/1.1\r\n\r\n") as s:  # no Host
        assert read_until(s, b"}").startswith(b"HTTP/1.1 400")


# ---- the file, read again --------------------------------------------------------------------------------------------

@pytest.fixture
def own(start, tmp_path):
    """A daemon with a file of its own: (server, file, admin's key)."""
    file = tmp_path / "keys"
    admin = new_key(file, "admin", "admin")
    with start("--api-keys", file, key=admin) as s:
        yield s, file, admin


def hang_up(server, says):
    """SIGHUP, and wait for the line that says what became of it."""
    before = len(server.log())
    server.signal(signal.SIGHUP)
    wait_for(lambda: says in server.log()[before:], what=f"{says}\n{server.log()[-2000:]}")


def status(server, key):
    return ask(server, "get", "/info", key).status_code


@pytest.mark.smoke
def test_reload(own):
    server, file, admin = own
    user = new_key(file, "user")
    assert status(server, user) == 401  # not yet
    hang_up(server, "keys=2")
    assert status(server, user) == status(server, admin) == 200
    tandem_key(file, "revoke", "user")
    assert status(server, user) == 200
    hang_up(server, "keys=1")
    assert status(server, user) == 401 and status(server, admin) == 200
    assert server.metric("tandem_requests_rejected_total", reason="unauthorized") >= 2


def test_a_broken_file_changes_nothing(own):
    server, file, admin = own
    good = file.read_text()
    file.write_text(good + "\n" + new_key(file.with_name("other"), "x") + "\n")  # a key where its hash belongs
    line = good.count("\n") + 2
    hang_up(server, f"{file}:{line}: this is a key")
    assert status(server, admin) == 200 and not KEY.search(server.log())
    file.unlink()
    hang_up(server, "No such file")
    assert status(server, admin) == 200
    file.mkdir()
    hang_up(server, "not a regular file")
    file.rmdir()
    file.write_text("# nobody\n")  # this is no fault: nobody may come in
    hang_up(server, "keys=0")
    assert status(server, admin) == 401
    assert requests.get(server.url + "/health", timeout=300).status_code == 200
    file.write_text(good)
    hang_up(server, "keys=1")
    assert status(server, admin) == 200


def test_a_stream_outlives_its_key(own):
    server, file, admin = own
    user = new_key(file, "user")
    hang_up(server, "keys=2")
    body = {"inputs": "Once", "parameters": {"max_new_tokens": 200, "ignore_eos": True}}
    with requests.post(server.url + "/generate_stream", json=body, headers=bearer(user), stream=True, timeout=300) as answer:
        lines = answer.iter_lines()
        next(lines)
        tandem_key(file, "revoke", "user")
        hang_up(server, "keys=1")
        assert status(server, user) == 401
        assert sum(line.startswith(b"data:") for line in lines) == 199


@pytest.mark.concurrent
def test_reload_under_load(own):
    """Good keys stay good, wrong ones wrong, and one that comes and goes is one or the other, while the file changes 40 times."""
    server, file, admin = own
    users = [new_key(file, f"user-{i}") for i in range(3)]
    hang_up(server, "keys=4")
    full = file.read_text()
    without = "".join(line for line in full.splitlines(True) if "user-2 " not in line)
    stop, seen = threading.Event(), {}

    def load(key, name):
        counts = seen.setdefault(name, {})
        with requests.Session() as session:
            while not stop.is_set():
                code = session.get(server.url + "/health" if key is None else server.url + "/info", timeout=300,
                                   headers=bearer(key) if key else {}).status_code
                counts[code] = counts.get(code, 0) + 1

    threads = [threading.Thread(target=load, args=a) for a in
               ((admin, "admin"), (users[0], "good"), (users[2], "changing"), ("tdm_wrong", "wrong"), (None, "open"))]
    for t in threads:
        t.start()
    for i in range(40):
        temporary = file.with_name("next")
        temporary.write_text(without if i % 2 == 0 else full if i % 4 == 1 else full + "broken\n")
        os.replace(temporary, file)
        server.signal(signal.SIGHUP)
        time.sleep(0.01)
    stop.set()
    for t in threads:
        t.join()
    assert set(seen["admin"]) == set(seen["good"]) == set(seen["open"]) == {200}
    assert set(seen["wrong"]) == {401} and set(seen["changing"]) <= {200, 401}


def test_a_key_expires_while_the_daemon_runs(start, tmp_path):
    file = tmp_path / "keys"
    end = time.time() + 3
    key = new_key(file, "short", "admin", "--expires", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end)))
    with start("--api-keys", file) as s:
        before, code = time.time(), status(s, key)
        assert code == 200 or time.time() >= int(end), before
        wait_for(lambda: status(s, key) == 401, what="expiry")
        assert time.time() >= int(end)


# ---- clients ---------------------------------------------------------------------------------------------------------

def test_openai_client(keyed, keys):
    def client(key):
        return openai.OpenAI(base_url=keyed.url + "/v1", api_key=key, max_retries=0, timeout=300)
    assert client(keys.user).completions.create(model=MODEL.name, prompt="Once", max_tokens=4).choices[0].text
    with pytest.raises(openai.AuthenticationError) as e:
        client(keys.wrong).models.list()
    assert e.value.code == "invalid_api_key"
    with pytest.raises(openai.PermissionDeniedError) as e:
        client(keys.user).files.list()
    assert e.value.code == "insufficient_permissions" and "role train" in e.value.message
    assert client(keys.train).files.list().data == []


def test_hugging_face_client(keyed, keys):
    from huggingface_hub import InferenceClient
    assert InferenceClient(keyed.url, token=keys.user).text_generation("Once", max_new_tokens=4)
    with pytest.raises(Exception, match="not known here"):
        InferenceClient(keyed.url, token=keys.wrong).text_generation("Once", max_new_tokens=4)


# ---- time ------------------------------------------------------------------------------------------------------------

def test_time_says_nothing(keyed, keys):
    """Wrong keys that share all but the last letter with a good one take as long as those that share nothing.  The two kinds
    come in random order, so whatever else the machine does falls on both alike: by chance the sum of ranks is farther from
    its mean than six deviations once in 10^9, however slow or busy the machine is.  (The count of comparisons, which
    needs no clock, is in tests/unit/server/access/keys_test.c.)"""
    n, order = 400, [0] * 400 + [1] * 400
    random.Random(6).shuffle(order)
    near = keys.admin[:-1] + ("a" if keys.admin[-1] != "a" else "b")
    took = []
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=300) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        texts = [f"GET /info HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\n\r\n".encode() for key in (keys.wrong, near)]
        for kind in order:
            begin = time.perf_counter_ns()
            s.sendall(texts[kind])
            assert s.recv(4096).startswith(b"HTTP/1.1 401")
            took.append((time.perf_counter_ns() - begin, random.random(), kind))
    ranks = [i for i, (_, _, kind) in enumerate(sorted(took), 1) if kind == 1]
    deviation = (n * n * (2 * n + 1) / 12) ** 0.5
    assert abs(sum(ranks) - n * (2 * n + 1) / 2) < 6 * deviation


# ---- starting --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_strangers_are_kept_out_unless_told_so(run, host):
    if host == "::" and not socket.has_ipv6:
        pytest.skip("no IPv6")
    got = run("serve", "--model", MODEL, "--port", 0, "--host", host)
    assert got.returncode == 1
    if b"cannot listen" not in got.stderr:  # a machine without IPv6
        for word in (b"--api-keys", b"--allow-open", b"tandem key new", host.encode()):
            assert word in got.stderr


@pytest.mark.parametrize("flags", [["--allow-open"], ["--api-keys", "FILE"]])
def test_told_so(start, keys, flags):
    with start("--host", "0.0.0.0", *[keys.file if f == "FILE" else f for f in flags], key=keys.user) as s:
        assert s.generate(max_new_tokens=2)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost"])
def test_this_machine_is_no_stranger(start, host):
    try:
        socket.getaddrinfo(host, 80)
    except socket.gaierror:
        pytest.skip(f"{host} is no name here")
    with start("--host", host, ready=False) as s:
        assert s.process.poll() is None


def test_a_file_with_a_fault_stops_the_start(run, tmp_path):
    file = tmp_path / "keys"
    file.write_text("alice user\n")
    got = run("serve", "--model", MODEL, "--port", 0, "--api-keys", file)
    assert got.returncode == 1 and f"{file}:1: after the role".encode() in got.stderr
    got = run("serve", "--model", MODEL, "--port", 0, "--api-keys", tmp_path / "none")
    assert got.returncode == 1 and b"No such file" in got.stderr


def test_a_file_without_keys_lets_nobody_in(start, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# soon\n")
    with start("--api-keys", file) as s:
        assert status(s, None) == 401 and "no good key" in s.log()


# ---- tandem key ------------------------------------------------------------------------------------------------------

def test_new_list_revoke(tmp_path):
    file = tmp_path / "keys"
    done = tandem_key(file, "new", "--name", "alice", "--role", "train", "--requests-per-minute", "60", "--tokens-per-minute", "1e5",
                      "--max-concurrent", "4", "--priority-max", "0", "--expires", "90d")
    assert KEY.fullmatch(done.stdout.strip()) and "alice" in done.stderr and not KEY.search(done.stderr)
    text = file.read_text()
    assert not KEY.search(text) and "alice train sha256:" in text
    for option in ("requests-per-minute=60 ", "tokens-per-minute=100000 ", "max-concurrent=4 ", "priority-max=0\n", "expires=20"):
        assert option in text
    new_key(file, "bob")
    listed = tandem_key(file, "list").stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["alice", "train"], ["bob", "user"]]
    assert "good until" in listed[0] and "60 requests a minute" in listed[0] and "priority from 0" in listed[0]
    tandem_key(file, "revoke", "alice")
    assert "revoked" in tandem_key(file, "list").stdout.splitlines()[0]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("args, code, says", [
    (["new"], 2, "--name is missing"),
    (["new", "--name", "a b"], 2, "letters, digits"),
    (["new", "--name", "x" * 65], 2, "letters, digits"),
    (["new", "--name", "a", "--role", "root"], 2, "user|train|admin"),
    (["new", "--name", "a", "--expires", "soon"], 2, "--expires"),
    (["new", "--name", "a", "--expires", "2026-02-30"], 2, "--expires"),
    (["new", "--name", "a", "--requests-per-minute", "0.0005"], 2, "from 0.001"),
    (["new", "--name", "a", "--tokens-per-minute", "1e-5"], 2, "from 0.001"),
    (["new", "--name", "taken"], 1, "revoke it first"),
    (["revoke"], 2, "whose"),
    (["revoke", "nobody"], 1, "no key has the name nobody"),
    (["rotate"], 2, "unknown word"),
    ([], 2, "new, list or revoke"),
])
def test_mistakes(tmp_path, args, code, says):
    file = tmp_path / "keys"
    new_key(file, "taken")
    before = file.read_text()
    done = subprocess.run([BINARY, "key", *args, *(["--api-keys", file] if args else [])], capture_output=True, text=True, timeout=300, env=ENV)
    assert done.returncode == code and says in done.stderr and not KEY.search(done.stdout), done.stderr
    assert file.read_text() == before


def test_where_the_file_is_said(tmp_path):
    """A flag, the environment, a configuration; or nowhere."""
    config = tmp_path / "tandem.yaml"
    config.write_text(f"api-keys: {tmp_path / 'c'}\n")
    for name, args, env in (("a", ["--file", tmp_path / "a"], {}), ("b", [], {"TANDEM_API_KEYS": str(tmp_path / "b")}),
                            ("c", ["--config", config], {})):
        done = subprocess.run([BINARY, "key", "new", "--name", "x", *args], capture_output=True, text=True, timeout=300, env={**ENV, **env})
        assert done.returncode == 0 and (tmp_path / name).exists(), done.stderr
    done = subprocess.run([BINARY, "key", "list"], capture_output=True, text=True, timeout=300, env=ENV)
    assert done.returncode == 2 and "which file" in done.stderr


def test_many_at_a_time(tmp_path):
    """Twelve processes add to one file, which is a link: no line is lost, the link stays."""
    file = tmp_path / "keys"
    (tmp_path / "real").touch(mode=0o600)
    file.symlink_to(tmp_path / "real")
    running = [subprocess.Popen([BINARY, "key", "new", "--name", f"n{i}", "--api-keys", file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV)
               for i in range(12)]
    assert all(p.wait(300) == 0 for p in running)
    for p in running:
        p.communicate()
    assert {line.split()[0] for line in tandem_key(file, "list").stdout.splitlines()} == {f"n{i}" for i in range(12)}
    assert file.is_symlink() and (tmp_path / "real").stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written(tmp_path):
    done = tandem_key(tmp_path / "none" / "keys", "new", "--name", "a", check=False)
    assert done.returncode == 1 and not done.stdout and "No such file" in done.stderr


def test_keys_share_no_prefixes(start, keys):
    body = {"prompt": "The cat and the dog went to the park to play with a red ball. " * 3, "max_tokens": 1}
    with start("--api-keys", keys.file, "--cache-per-key", key=keys.admin) as s:
        cached = []
        for key, salt in ((keys.user, None), (keys.user, None), (keys.train, None), (keys.train, "x"), (keys.train, None)):
            answer = requests.post(s.url + "/v1/completions", json={**body, "cache_salt": salt}, headers=bearer(key), timeout=300)
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert [n >= 16 for n in cached] == [False, True, False, False, True] and cached[0] == cached[2] == cached[3] == 0
