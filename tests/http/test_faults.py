"""Whatever fails around the daemon - the n-th allocation, a write, a thread, memory as a whole, descriptors, the clock -
ends in an error to whoever asked or in the right answer; the daemon lives, holds nothing, and answers the next request
as it would have.

tests/fault/preload.c makes the calls fail.  TANDEM_FAULTS=1 tries every n instead of some."""
import contextlib
import json
import os
import resource
import shutil
import threading
import time

import pytest
import requests
from conftest import DEMO, ROOT, wait_for
from faults import ALL, DAEMON, LIBRARY, TO_WRITE, Faults
from sse import events
from test_openai_tools import ASK, TOOLS
from training import OVER, job, rows, submit, wait_over
from training import request as training_request

pytestmark = [pytest.mark.full, pytest.mark.skipif(not LIBRARY.exists(), reason="no library to preload: a sanitizer's build")]

EVERY = bool(os.environ.get("TANDEM_FAULTS"))
SORRY = (424, 500, 503, 507)  # and an error that says why
TIMES = ("created", "id", "load_seconds")


# ---- what is asked, again and again: each gives (status, what must not change) ------------------------------------------

def bare(value):
    """Without what differs from one good answer to the next."""
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if k not in TIMES}
    return [bare(v) for v in value] if isinstance(value, list) else value


def answered(answer):
    if answer.status_code in SORRY:
        error = answer.json()["error"]
        assert error if isinstance(error, str) else error["message"], answer.text
    return answer.status_code, bare(answer.json()) if answer.headers["content-type"].startswith("application/json") else answer.text


def generate(s):
    return answered(s.post("/generate", {"inputs": "Once upon a time", "parameters": {
        "max_new_tokens": 8, "details": True, "decoder_input_details": True, "top_n_tokens": 2, "do_sample": True, "seed": 3, "repetition_penalty": 1.2, "stop": ["zzz"]}}))


def streamed(s):
    with requests.post(s.url + "/generate_stream", json={"inputs": "The little dog", "parameters": {"max_new_tokens": 8}}, stream=True, timeout=300) as answer:
        if answer.status_code != 200:
            return answered(answer)
        got = list(events(answer))
        if "error" in got[-1]:
            assert got[-1]["error"]
            return 500, None
        return 200, got


def chat(s):
    return answered(s.post("/v1/chat/completions", {"model": "tools", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": 1, "max_completion_tokens": 100}))


def completions(s):
    return answered(s.post("/v1/completions", {"model": "x", "prompt": ["Once upon a time", "The end"], "max_tokens": 8, "temperature": 0, "logprobs": 2, "n": 2, "best_of": 2}))


def long_text(s):
    return answered(s.post("/tokenize", {"inputs": "A tall tree and a small boat. " * 400}))


def embedding(s):
    return answered(s.post("/v1/embeddings", {"model": "x", "input": ["Once upon a time", "The end"]}))


def uploaded(s):
    status, body = answered(requests.post(s.url + "/v1/files", files={"file": ("rows.jsonl", b"x" * 300_000)}, data={"purpose": "fine-tune"}, timeout=300))
    return status, body if status != 200 else body["bytes"]


def adapter_loaded(s):
    got = answered(s.post("/adapters", {"name": "pirate", "path": str(s.adapter)}))
    if got[0] not in SORRY:
        requests.delete(s.url + "/adapters/pirate", timeout=300)
    return (got[0], None) if got[0] in (200, 201) else got


def trained(s):
    answer = s.post("/train", training_request("small", n=6, max_steps=2))
    if answer.status_code != 202:
        return answered(answer)

    def over():
        try:
            asked = s.get(f"/train/{answer.json()['id']}")  # which may fail, too
        except requests.ConnectionError:
            return False
        return asked.status_code not in SORRY and asked.json()["status"] in OVER and asked.json()
    found = wait_for(over, 30, f"{answer.text}: over")
    if found["status"] != "succeeded":
        assert found["status"] == "failed" and found["error"]["message"], found
        return 500, None
    return 200, (s.data / "adapters/small/adapter_model.safetensors").read_bytes()


def models(s):
    status, body = answered(s.get("/v1/models"))
    return status, body["data"][0] if status == 200 else body  # then come adapters, which come and go


def scraped(s):
    answer = s.get("/metrics")
    return (200, answer.text.splitlines()[0]) if answer.status_code == 200 else answered(answer)


WORK = {f.__name__: f for f in (generate, streamed, chat, long_text, embedding, uploaded, adapter_loaded, trained, models, scraped)}


# ---- the daemon --------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def tools_model(tmp_path_factory):
    """The qwen2 fixture with room for a page with tools: a token is about a byte."""
    folder = tmp_path_factory.mktemp("models") / "tools"
    shutil.copytree(ROOT / "tests/fixtures/models/qwen2", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.fixture(autouse=True)
def nothing_fails_for_the_next(request):
    yield
    for name in ("demo", "tools", "device"):
        if name in request.fixturenames:
            request.getfixturevalue(name).faults.off()


def opened(start, folder, *flags, model=DEMO, **kw):
    faults = Faults(folder / "control")
    # one thread: on a machine that tests are busy on, two wait for each other at every op
    s = start("--data-dir", folder / "data", "--adapter-dir", ROOT / "models", "--accept-any-model", "--threads", 1, *flags, env=faults.env(), model=model, **kw)
    s.faults, s.adapter = faults, "demo-pirate"
    return s


@pytest.fixture(scope="module")
def demo(start, tmp_path_factory):
    with opened(start, tmp_path_factory.mktemp("faults")) as s:
        yield s


@pytest.fixture(scope="module")
def tools(start, tools_model, tmp_path_factory):
    template = ROOT / "tests/fixtures/templates/Qwen-Qwen2.5-7B-Instruct.jinja"
    with opened(start, tmp_path_factory.mktemp("faults"), "--chat-template", template, model=tools_model) as s:
        yield s


@pytest.fixture(scope="module")
def device(start, tmp_path_factory):
    """On a device that fails."""
    with opened(start, tmp_path_factory.mktemp("faults"), binary=DAEMON) as s:
        yield s


def of(name, demo, tools):
    return tools if name == "chat" else demo


def descriptors(s):
    return len(os.listdir(f"/proc/{s.process.pid}/fd"))


def judge(s, work, right, what):
    """One piece of work while something fails, then one when nothing does."""
    with contextlib.suppress(requests.ConnectionError):  # a connection that could not be had is an error, too
        got = work(s)
        s.faults.off()
        assert got == right or got[0] in SORRY, (what, got)
    s.faults.off()
    assert s.process.poll() is None, (what, s.log()[-3000:])
    # what could not be written is written some seconds later, and until then a job's name is taken
    wait_for(lambda: work(s) == right, 30, f"{what}: the right answer again")


def numbers(n, most):
    """Of 1 .. n: each of the first, then fewer; all of them when asked."""
    if EVERY or n <= most:
        return list(range(1, n + 1))
    return sorted({round(1 + (n - 1) * (i / (most - 1)) ** 1.3) for i in range(most)})


# ---- memory ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", WORK)
def test_the_nth_malloc(demo, tools, name):
    s, work = of(name, demo, tools), WORK[name]
    right = [work(s) for _ in range(3)][-1]  # with caches full
    assert right[0] in (200, 201), right
    s.wait_idle()
    held = descriptors(s)
    s.faults.arm("malloc")
    assert work(s) == right
    n = s.faults.seen("malloc")
    assert n > 5
    hit = 0
    for i in numbers(n, 12 if name in ("trained", "chat") else 24):
        s.faults.arm("malloc", i, count=1 + 2 * (i % 2))
        judge(s, work, right, f"{name}, malloc {i} of {n}")
        hit += s.faults.failed("malloc")
    assert hit
    s.wait_idle()
    wait_for(lambda: descriptors(s) <= held + 1, 20, "no descriptor is left open")


def test_large_allocations(demo):
    """What an outsider chooses the size of is refused; what is small goes on."""
    body = json.dumps({"inputs": "a tree " * 150_000, "parameters": {"truncate": 4, "max_new_tokens": 2}})
    for at_least in (1 << 20, 1 << 18):
        demo.faults.arm("malloc", 1, count=ALL, filter=at_least)
        refused = demo.post("/generate", json.loads(body))
        assert refused.status_code == 503 and "no memory" in refused.json()["error"], refused.text
        refused = demo.post("/train", {"dataset": {"rows": rows(12000)}})
        assert refused.status_code == 503 and "no memory" in refused.json()["error"], refused.text
        assert demo.generate(max_new_tokens=3)
        assert demo.faults.failed("malloc") >= 2
        demo.faults.off()
        assert demo.post("/generate", json.loads(body)).status_code in (200, 422)


def test_no_malloc_at_all_for_a_while(demo):
    """Everybody waits a moment, and goes on."""
    right = generate(demo)
    got = []

    def ask(work):
        try:
            got.append((work, work(demo)))
        except requests.ConnectionError:  # not let in
            got.append((work, (503, None)))

    askers = [threading.Thread(target=ask, args=(work,)) for work in (generate, generate, streamed, embedding)]
    for a in askers:
        a.start()
    demo.faults.arm("malloc", 1, count=ALL)
    time.sleep(0.25)
    demo.faults.off()
    for a in askers:
        a.join(300)
    assert len(got) == len(askers) and demo.process.poll() is None, demo.log()[-3000:]
    assert all(g == right or g[0] in SORRY for work, g in got if work is generate)
    assert generate(demo) == right


def test_every_malloc_from_the_nth_on(demo, tools):
    """Everything at once, and then no memory for longer than anybody waited before: what begins is turned away, what
    runs waits, and all of it is right again afterwards."""
    right = {name: [work(of(name, demo, tools)) for _ in range(2)][-1] for name, work in WORK.items()}
    wrong, over = [], threading.Event()

    def ask(name):
        while not over.is_set():
            with contextlib.suppress(requests.RequestException):
                got = WORK[name](of(name, demo, tools))
                if got != right[name] and got[0] not in SORRY:
                    wrong.append((name, got))

    for n in (1, 300, 3000):
        over.clear()
        askers = [threading.Thread(target=ask, args=(name,)) for name in WORK]
        for a in askers:
            a.start()
        for s in (demo, tools):
            s.faults.arm("malloc", n, count=ALL)
        wait_for(lambda: demo.faults.failed("malloc") and tools.faults.failed("malloc"), 30, "no memory")
        time.sleep(1.5)
        for s in (demo, tools):
            s.faults.off()
        over.set()
        for a in askers:
            a.join(300)
        assert wrong == [] and demo.process.poll() is None and tools.process.poll() is None, (n, wrong, demo.log()[-2000:], tools.log()[-2000:])
        for name, wanted in right.items():
            wait_for(lambda name=name, wanted=wanted: WORK[name](of(name, demo, tools)) == wanted, 30, f"{name}: the right answer again")
    assert demo.metric("tandem_requests_rejected_total", reason="memory") > 0


def test_nothing_begins_without_memory(demo):
    """Who is connected is told, who comes is not let in; both count."""
    right = generate(demo)
    before = demo.metric("tandem_requests_rejected_total", reason="memory")
    with requests.Session() as session:
        assert session.get(demo.url + "/health", timeout=300).status_code == 200
        demo.faults.arm("malloc", 1, count=ALL)
        refused = session.get(demo.url + "/health", timeout=300)
        assert refused.status_code == 503 and refused.json() == {"error": "no memory for the request; try again", "error_type": "memory"}
        assert refused.headers["connection"] == "close" and refused.headers["retry-after"] == "1"
        for _ in range(20):
            with pytest.raises(requests.ConnectionError):
                requests.get(demo.url + "/health", timeout=300)
        demo.faults.off()
    assert demo.metric("tandem_requests_rejected_total", reason="memory") == before + 21
    assert generate(demo) == right


def test_an_answer_that_grows_too_large(demo):
    """Half-way through: an error, and the generation ends."""
    body = {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True, "details": True, "top_n_tokens": 5}}
    chats = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "logprobs": 5, "model": "x", "temperature": 0}
    right = [answered(demo.post("/generate", body)), answered(demo.post("/v1/completions", chats))]
    assert [r[0] for r in right] == [200, 200]
    for path, asked in (("/generate", body), ("/v1/completions", chats)):
        told = []
        for n in range(2, 12, 2):  # the first ones ask whether there is room for a connection and a request
            demo.faults.arm("malloc", n, count=1, filter=16384)
            with contextlib.suppress(requests.ConnectionError):
                status, answer = answered(demo.post(path, asked))
                assert status in (200, *SORRY), answer
                told.append(str(answer))
            demo.faults.off()
        assert any("no memory for the answer" in t for t in told), told
    demo.wait_idle()
    assert [answered(demo.post("/generate", body)), answered(demo.post("/v1/completions", chats))] == right


def virtual(s):
    with open(f"/proc/{s.process.pid}/statm") as f:
        return int(f.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_no_memory_from_the_system(demo):
    """As under `ulimit -v` or strict overcommit: a limit at what the daemon has now, for real."""
    right = {name: WORK[name](demo) for name in ("generate", "streamed", "embedding", "trained", "adapter_loaded")}
    for spare in (0, 4 << 20, 40 << 20):
        resource.prlimit(demo.process.pid, resource.RLIMIT_AS, (virtual(demo) + spare, resource.RLIM_INFINITY))
        refused = demo.post("/train", {"dataset": {"rows": rows(20000)}})
        assert refused.status_code in (202, *SORRY), refused.text
        for name, wanted in right.items():
            got = WORK[name](demo)
            assert got == wanted or got[0] in SORRY, (name, spare, got)
        resource.prlimit(demo.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if refused.status_code == 202:
            demo.post(f"/train/{refused.json()['id']}/cancel", {})
            wait_over(demo, refused.json()["id"])
        for name, wanted in right.items():
            assert WORK[name](demo) == wanted, (name, spare)
    assert demo.process.poll() is None


@pytest.mark.parametrize("kind, name, at_least", [("map", "adapter_loaded", 1 << 12), ("map", "trained", 1 << 14), ("thread", "trained", 0), ("thread", "long_text", 0)])
def test_the_nth_mapping_and_thread(demo, kind, name, at_least):
    """The device's memory, and the threads of a job."""
    work = WORK[name]
    right = work(demo)
    demo.faults.arm(kind, filter=at_least)
    assert work(demo) == right
    n = demo.faults.seen(kind)
    for i in numbers(n, 12):
        demo.faults.arm(kind, i, filter=at_least)
        judge(demo, work, right, f"{name}, {kind} {i} of {n}")


# ---- the device --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind, name", [("op", "generate"), ("op", "streamed"), ("op", "completions"), ("op", "embedding"), ("op", "trained"), ("op", "adapter_loaded"),
                                        ("page", "generate"), ("page", "embedding"), ("device", "trained"), ("device", "adapter_loaded")])
def test_the_nth_op_and_page(device, kind, name):
    """The n-th op of the device, page of the cache, piece of the device's memory: an error, and the next one is right."""
    work = {**WORK, "completions": completions}[name]
    right = [work(device) for _ in range(2)][-1]
    assert right[0] in (200, 201), right
    device.wait_idle()
    device.faults.arm(kind)
    assert work(device) == right
    n = device.faults.seen(kind)
    hit = failed = 0
    for i in numbers(n, 5 if name == "trained" else 12):
        device.faults.arm(kind, i)
        before = device.metric("tandem_failed_steps_total")
        judge(device, work, right, f"{name}, {kind} {i} of {n}")
        hit += device.faults.failed(kind)
        failed += device.metric("tandem_failed_steps_total") - before
    assert hit if n else name == "adapter_loaded"
    if kind == "op" and name in ("generate", "streamed", "completions", "embedding"):
        assert failed == hit  # each of them was a step, and those alone
    device.wait_idle()


# ---- files -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["write", "sync", "rename", "open"])
@pytest.mark.parametrize("name", ["trained", "uploaded"])
def test_the_nth_write(demo, name, kind):
    work, mask = WORK[name], TO_WRITE if kind == "open" else 0
    right = work(demo)
    demo.faults.arm(kind, filter=mask)
    assert work(demo) == right
    n = demo.faults.seen(kind)
    assert n > 0
    for k, i in enumerate(numbers(n, 5)):
        count = ALL if k % 2 and kind in ("write", "open") else 1
        demo.faults.arm(kind, i, count=count, filter=mask)
        room = threading.Timer(0.5, demo.faults.off)  # a queued job waits until there is room
        room.start()
        judge(demo, work, right, f"{name}, {kind} {i} of {n}, {count}")
        room.join()


def test_a_directory_that_becomes_read_only(demo):
    right = generate(demo)
    demo.faults.arm("open", 1, count=ALL, filter=TO_WRITE)
    for refused in (demo.post("/train", training_request("small")), requests.post(demo.url + "/v1/files", files={"file": ("f", b"x")}, data={"purpose": "fine-tune"}, timeout=300)):
        if refused.status_code != 202:  # the database is open already
            assert refused.status_code == 507 and "Read-only" in refused.text, refused.text
        else:
            assert wait_over(demo, refused.json()["id"])["status"] == "failed"
    assert generate(demo) == right and demo.get("/ready").status_code == 200
    demo.faults.off()
    wait_for(lambda: trained(demo)[0] == 200, 30, "it works again")


# ---- descriptors -------------------------------------------------------------------------------------------------------

def test_no_descriptors(demo):
    """Those who are connected are served; for the others there is a closed connection; nothing spins."""
    right = generate(demo)
    with requests.Session() as session:
        session.get(demo.url + "/health", timeout=300)
        most = max(int(x) for x in os.listdir(f"/proc/{demo.process.pid}/fd"))
        soft, hard = resource.prlimit(demo.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(demo.process.pid, resource.RLIMIT_NOFILE, (most + 1, hard))
        try:
            used = demo.cpu_seconds()
            for _ in range(40):
                with contextlib.suppress(requests.RequestException):
                    requests.get(demo.url + "/health", timeout=300)
            refused = session.post(demo.url + "/v1/files", files={"file": ("f", b"x" * 1000)}, data={"purpose": "fine-tune"}, timeout=300)
            assert refused.status_code in (200, 507), refused.text
            refused = session.post(demo.url + "/train", json=training_request("small", n=4, max_steps=1), timeout=300)
            assert refused.status_code in (202, 507), refused.text
            if refused.status_code == 202:
                wait_for(lambda: session.get(f"{demo.url}/train/{refused.json()['id']}", timeout=300).json()["status"] in OVER, 30, "over")
            answer = session.post(demo.url + "/generate", json={"inputs": "Once", "parameters": {"max_new_tokens": 2}}, timeout=300)
            assert answer.status_code == 200
            assert demo.cpu_seconds() - used < 20
        finally:
            resource.prlimit(demo.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    assert generate(demo) == right and trained(demo)[0] == 200


# ---- clocks ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("realtime, monotonic", [(86400 * 400, 0), (-86400 * 400, 0), (3600, 3600), (-3600, 3690), (0, 86400 * 30)])
def test_clocks_that_jump(demo, realtime, monotonic):
    """The wall clock either way; the other one forward only, as after a pause of the machine.  In the middle of things."""
    right = {name: WORK[name](demo) for name in ("generate", "streamed", "trained")}
    got = []
    asker = threading.Thread(target=lambda: got.append(answered(demo.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 150, "ignore_eos": True}}))))
    asker.start()
    job_id = submit(demo, "jumps", n=6, max_steps=30)
    time.sleep(0.05)
    demo.faults.clocks(realtime, monotonic)
    try:
        asker.join(300)
        assert got and got[0][0] == 200
        assert wait_over(demo, job_id)["status"] == "succeeded"
        for name, wanted in right.items():
            assert WORK[name](demo) == wanted, name
        assert demo.get("/health").status_code == 200 and demo.get("/metrics").status_code == 200
        assert job(demo, job_id)["step"] == 30
    finally:
        demo.faults.clocks(monotonic=monotonic)
    demo.wait_idle()
    assert {name: WORK[name](demo) for name in right} == right


def test_it_ends_in_peace(demo, tools, device):
    """Last: after all of this nothing is held, and the fixtures see them end with status 0."""
    for s in (demo, tools, device):
        s.faults.off()
        s.wait_idle()
        assert "impossible state" not in s.log() and "tandem: out of memory" not in s.log()
