"""Several models in one daemon: loaded on demand within a budget, unloaded again, each request answered by the model that it
names. The models are copies of one with another rope_theta each, so they are of one size and say different things."""
import contextlib
import http.client
import json
import signal
import sqlite3
import subprocess
import threading

import pytest
import requests
import training
from conftest import BINARY, DEVICE, ENV, ROOT, wait_for

SOURCE = ROOT / "tests/fixtures/models/tinystories-656k"
THETA = {"alpha": 10000.0, "beta": 300.0, "gamma": 40.0}
SMALL = ("--max-seqs", "8", "--max-batch-tokens", "64", "--kv-cache-bytes", "2M", "--threads", "2")
PROMPT = "Once upon a time there was"

pytestmark = pytest.mark.skipif(DEVICE not in (None, "cpu"), reason="several models share the memory of the host")


def make_model(folder, theta, **change):
    folder.mkdir(parents=True)
    for file in SOURCE.iterdir():
        if file.name not in ("config.json", "README.md"):
            (folder / file.name).symlink_to(file)
    config = json.loads((SOURCE / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rope_theta": theta, **change}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name, theta in THETA.items():
        make_model(root / name, theta)
    (root / "notes").mkdir()  # no model: it has no config.json
    return root


def complete(server, model, stream=False, most=24, **kw):
    """The text and the model that the answer names."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": most, "temperature": 0, "stream": stream, **kw}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    if not stream:
        return answer.json()["choices"][0]["text"], answer.json()["model"]
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert answer.text.rstrip().endswith("data: [DONE]")
    return "".join(c["choices"][0]["text"] for c in chunks if c["choices"]), chunks[0]["model"]


def states(server):
    return {m["id"]: m["state"] for m in server.get("/v1/models").json()["data"]}


def loaded(server):
    return sorted(name for name, state in states(server).items() if state == "loaded")


@pytest.fixture(scope="module")
def size(start, folder):
    """Bytes that each of the models takes, and what each says."""
    with start("--models-dir", folder, *SMALL, model=None) as s:
        assert states(s) == dict.fromkeys(THETA, "unloaded"), "nothing is loaded before a request names it"
        texts = {name: complete(s, name)[0] for name in THETA}
        sizes = {s.metric("tandem_model_memory_bytes", model=name) for name in THETA}
    assert len(set(texts.values())) == 3, "the three are distinguishable"
    assert len(sizes) == 1
    return sizes.pop(), texts


class Watch(threading.Thread):
    """The largest values that the daemon reports while requests run."""

    def __init__(self, server):
        super().__init__()
        self.server, self.bytes, self.loaded, self.n, self.over = server, 0, 0, 0, threading.Event()

    def run(self):
        while not self.over.is_set():
            self.bytes = max(self.bytes, self.server.metric("tandem_models_memory_bytes"))
            self.loaded = max(self.loaded, self.server.metric("tandem_models_loaded"))
            self.n += 1
            self.over.wait(0.02)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.join()


def test_three_models_in_a_budget_for_two(start, folder, size):
    """8 clients switch between three models: nobody fails, everybody gets the text of the model that was named, and no
    more than the budget is taken."""
    each, texts = size
    budget = int(each * 2.5)
    failures, done = [], []

    def client(i):
        names = list(THETA)
        for k in range(6):
            name = names[(i + k * (1 + i % 2)) % 3]
            try:
                text, model = complete(s, name, stream=(i + k) % 2 == 0)
                assert (text, model) == (texts[name], name)
                done.append(name)
            except Exception as e:  # noqa: BLE001
                failures.append(f"client {i}, {name}: {e!r}")

    with start("--models-dir", folder, "--models-memory", budget, *SMALL, model=None) as s:
        with Watch(s) as watch:
            clients = [threading.Thread(target=client, args=(i,)) for i in range(8)]
            for c in clients:
                c.start()
            for c in clients:
                c.join()
        assert not failures, failures[:3]
        assert len(done) == 48 and watch.n > 3
        assert 0 < watch.bytes <= budget and watch.loaded <= 2
        assert s.metric("tandem_models_memory_budget_bytes") == budget
        assert sum(s.metric("tandem_model_unloads_total", model=n) for n in THETA) >= 1, "the third did not fit"
        assert s.metric("tandem_model_requests_waiting") == 0
        before = s.resident_bytes()
        for name in list(THETA) * 4:  # each of these loads one
            assert complete(s, name, most=4)[1] == name
        assert s.resident_bytes() < before + 4 * each, "what was unloaded is freed"


def test_idle_models_are_unloaded(start, folder, size):
    with start("--models-dir", folder, "--model-idle", "0.3", *SMALL, model=None) as s:
        assert complete(s, "beta")[0] == size[1]["beta"]
        wait_for(lambda: not loaded(s), what="beta unloaded")
        assert s.metric("tandem_models_memory_bytes") == 0
        assert s.get("/v1/models/beta").json()["max_model_len"] == 512, "known from its first load"
        assert s.get("/ready").status_code == 200
        assert complete(s, "beta")[0] == size[1]["beta"]
        assert s.metric("tandem_model_loads_total", model="beta") == 2


def test_model_of_a_request(start, folder, size):
    """Every route finds its model by name; a name that is not there is 404 in the route's format."""
    texts = size[1]
    with start("--models-dir", folder, "--models-max", "2", "--chat-template", "plain", *SMALL, model=None) as s:
        assert complete(s, None)[1] == "alpha", "the first by name is the default one"
        tgi = {"inputs": PROMPT, "parameters": {"max_new_tokens": 24}}
        assert s.post("/generate", tgi).json()["generated_text"] == texts["alpha"]
        assert s.post("/generate", {**tgi, "model": "gamma"}).json()["generated_text"] == texts["gamma"]
        assert s.post("/generate?model=beta", tgi).json()["generated_text"] == texts["beta"]
        assert s.get("/info?model=gamma").json()["model_id"] == "gamma"
        assert s.get("/info").json()["model_id"] == "alpha"
        assert s.post("/tokenize", {"model": "beta", "prompt": "a"}).status_code == 200
        long = " " * 300_000  # searched on the pool
        assert s.post("/v1/completions", {"pad": long, "model": "gamma", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
                      ).json()["choices"][0]["text"] == texts["gamma"]
        unknown = s.post("/v1/completions", {"model": "delta", "prompt": "a"})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found" and unknown.json()["error"]["param"] == "model"
        assert "`alpha`, `beta`, `gamma`" in unknown.json()["error"]["message"]
        other = s.post("/v1/messages", {"model": "delta", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]})
        assert other.status_code == 404 and other.json()["error"]["type"] == "not_found_error"
        plain = s.post("/generate?model=delta", tgi)
        assert plain.status_code == 404 and plain.json()["error_type"] == "model_not_found"
        assert s.post("/generate", {"inputs": "a", "parameters": {"adapter_id": "nobody"}}).status_code == 422
        assert s.get("/v1/models/delta").status_code == 404
        # a body that is no object is the handler's to refuse
        assert requests.post(s.url + "/v1/completions", data='{"model": "be', timeout=60).status_code == 400


def test_load_and_unload(start, folder):
    with start("--models-dir", folder, *SMALL, model=None) as s:
        answer = s.post("/models/load", {"model": "gamma"})
        assert answer.status_code == 200 and answer.json() == {"success": True, "model": "gamma", "state": "loaded"}
        assert loaded(s) == ["gamma"]
        assert s.post("/models/load", {"model": "gamma"}).status_code == 200
        for query in ("?model=gamma", ""):  # without a name: the one that is loaded, as the default one is not
            trace = s.post("/debug/trace" + query, None)
            assert trace.status_code == 200 and trace.json()["otherData"]["model"] == "gamma"
        assert s.post("/debug/trace?model=alpha", None).status_code == 503
        unknown = s.post("/debug/trace?model=delta", None)
        assert unknown.status_code == 404 and "delta" in unknown.json()["error"]
        assert s.post("/models/unload", {"model": "gamma"}).status_code == 200
        wait_for(lambda: states(s)["gamma"] == "unloaded", what="gamma unloaded")
        assert s.post("/models/unload", {"model": "gamma"}).json()["state"] == "unloaded"
        assert s.post("/models/load", {"model": "delta"}).status_code == 404
        assert s.post("/models/load", {"name": "alpha"}).status_code == 422
        assert s.post("/models/load", []).status_code == 422


def test_waiting_has_a_bound(start, folder, size):
    """A job keeps its model loaded: requests for another wait as long as --model-wait says, and are then told to retry."""
    with start("--models-dir", folder, "--models-max", "1", "--model-wait", "0.5", *SMALL, model=None) as s:
        answer = s.post("/train", {**training.request(max_steps=100000), "base": "alpha"})
        assert answer.status_code == 202, answer.text
        job = answer.json()["id"]
        training.wait_step(s, job)
        late = s.post("/v1/completions", {"model": "beta", "prompt": PROMPT, "max_tokens": 4})
        assert late.status_code == 503 and int(late.headers["Retry-After"]) > 0, late.text
        assert "beta could not be loaded within 0.5 s" in late.json()["error"]["message"]
        busy = s.post("/models/unload", {"model": "alpha"})
        assert busy.status_code == 409 and "in use" in busy.json()["error"]
        assert complete(s, "alpha")[0] == size[1]["alpha"], "requests for the model of the job are served"
        s.post(f"/train/{job}/cancel", {})
        training.wait_over(s, job)
        wait_for(lambda: s.post("/v1/completions", {"model": "beta", "prompt": PROMPT, "max_tokens": 4}).status_code == 200,
                 what="beta served")


def test_places_of_those_that_wait(start, folder):
    """Neither one client nor a batch takes all places of --max-queue from the others."""
    with start("--models-dir", folder, "--models-max", "1", "--max-queue", "4", *SMALL, model=None) as s:
        assert s.post("/pause?model=alpha", None).status_code == 200  # no other gets its room
        body = json.dumps({"model": "beta", "prompt": PROMPT, "max_tokens": 4})
        port = int(s.url.rpartition(":")[2])

        def waiting(n):
            wait_for(lambda: s.metric("tandem_model_requests_waiting") == n, what=f"{n} wait")

        def send(address):
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=300, source_address=(address, 0))
            c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            return c

        held = []
        for n in (1, 2, 3):
            held.append(send("127.0.0.1"))
            waiting(n)
        assert send("127.0.0.1").getresponse().status == 429, "the last place is for others"
        held.append(send("127.0.0.2"))
        waiting(4)
        assert send("127.0.0.3").getresponse().status == 429
        for c in held:
            c.close()
        waiting(0)
        lines = "".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": json.loads(body)}) + "\n"
                        for i in range(6))
        file = requests.post(s.url + "/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}, timeout=300).json()
        batch = s.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}).json()
        waiting(2)
        one = send("127.0.0.1")
        waiting(3)
        two = send("127.0.0.2")
        waiting(4)
        assert s.post("/resume?model=alpha", None).status_code == 200
        assert one.getresponse().status == two.getresponse().status == 200
        done = wait_for(lambda: (b := s.get(f"/v1/batches/{batch['id']}").json())["status"] == "completed" and b, what="the batch")
        assert done["request_counts"] == {"total": 6, "completed": 6, "failed": 0}


def test_a_wait_that_cannot_be_served_costs_nobody_anything(start, folder):
    """alpha is paused; an evaluation waits for a model that does not fit beside it.  No other model is unloaded for that wait,
    and those that come later get their room."""
    large = ROOT / "models/demo"
    with start("--models", f"large={large}", *SMALL, model=None) as s:
        assert s.post("/models/load", {"model": "large"}).status_code == 200
        most = 1.3 * s.metric("tandem_models_memory_bytes")  # two of the others fit into that
    with start("--models-dir", folder, "--models", f"large={large}", "--models-memory", int(most), "--models-max", "2", *SMALL,
               model=None) as s:
        assert s.post("/pause?model=alpha", None).status_code == 200
        complete(s, "beta")
        assert loaded(s) == ["alpha", "beta"]
        evaluation = s.post("/evaluate", {"model": "large", "dataset": {"rows": [{"prompt": PROMPT, "completion": " a"}]}}).json()["id"]
        wait_for(lambda: s.metric("tandem_model_requests_waiting") == 1, what="the evaluation waits")
        for _ in range(3):
            complete(s, "beta")
        assert s.metric("tandem_model_loads_total", model="beta") == 1, "nothing was unloaded in vain"
        assert complete(s, "gamma")[1] == "gamma" and loaded(s) == ["alpha", "gamma"], "beta made room"
        assert s.get(f"/evaluate/{evaluation}").json()["status"] == "running"
        assert s.post("/resume?model=alpha", None).status_code == 200
        wait_for(lambda: s.get(f"/evaluate/{evaluation}").json()["status"] == "succeeded", what="the evaluation")


def test_client_leaves_while_its_model_waits(start, folder):
    with start("--models-dir", folder, "--models-max", "1", *SMALL, model=None) as s:
        answer = s.post("/train", {**training.request(max_steps=100000), "base": "alpha"})
        training.wait_step(s, answer.json()["id"])
        with pytest.raises(requests.Timeout):
            s.post("/v1/completions", {"model": "beta", "prompt": PROMPT}, timeout=0.5)
        wait_for(lambda: s.metric("tandem_model_requests_waiting") == 0, what="nobody waits")
        assert loaded(s) == ["alpha"]


def test_broken_model(start, tmp_path, folder, size):
    """Its requests get the reason; others are served; it is tried again after a while, and then works."""
    make_model(tmp_path / "good", THETA["beta"])
    make_model(tmp_path / "broken", THETA["gamma"], hidden_size=-5)
    with start("--models-dir", tmp_path, *SMALL, model=None) as s:
        for _ in range(2):
            answer = s.post("/v1/completions", {"model": "broken", "prompt": PROMPT, "max_tokens": 4})
            assert answer.status_code == 503 and "hidden_size" in answer.json()["error"]["message"], answer.text
        found = s.get("/v1/models/broken").json()
        assert found["state"] == "failed" and "hidden_size" in found["error"]
        assert s.metric("tandem_model_load_failures_total") >= 1
        assert complete(s, "good")[0] == size[1]["beta"]
        config = tmp_path / "broken" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "hidden_size": 128}))

        def served():
            answer = s.post("/v1/completions", {"model": "broken", "prompt": PROMPT, "max_tokens": 24, "temperature": 0})
            return answer.status_code == 200 and answer.json()["choices"][0]["text"]
        assert wait_for(served, what="the repaired model") == size[1]["gamma"]


def test_too_large_for_the_budget(start, folder, size):
    with start("--models-dir", folder, "--models-memory", int(size[0] / 2), *SMALL, model=None) as s:
        answer = s.post("/v1/completions", {"model": "beta", "prompt": PROMPT, "max_tokens": 4})
        assert answer.status_code == 503 and "--models-memory" in answer.json()["error"]["message"], answer.text
        assert s.metric("tandem_models_memory_bytes") == 0


def test_default_model_beside_others(start, folder, size, tmp_path):
    """--model is loaded at the start, and is the default one; --models names more."""
    with start("--models", f"b={folder / 'beta'},c={folder / 'gamma'}", "--served-model-name", "main,first",
               *SMALL, model=folder / "alpha") as s:
        assert states(s) == {"main": "loaded", "first": "loaded", "b": "unloaded", "c": "unloaded"}
        assert complete(s, "first")[0] == complete(s, "main")[0] == size[1]["alpha"]
        assert complete(s, "b") == (size[1]["beta"], "b")
        assert s.post("/models/unload", {"model": "main"}).status_code == 200
        wait_for(lambda: states(s)["main"] == "unloaded", what="main unloaded")
        assert s.get("/metrics").status_code == 200 and s.get("/debug/state").status_code == 200
        assert s.get("/adapters").json()["adapters"] == [] and s.get("/train").status_code == 200
        assert complete(s, None) == (size[1]["alpha"], "main"), "it is loaded again"


def test_draft_of_the_default_model(start, folder, size, tmp_path):
    """--draft-model is found without --model too, and is the default model's."""
    flags = ("--models-dir", folder, "--speculate", "on", *SMALL)
    with start(*flags, "--draft-model", folder / "beta", model=None) as s:
        assert complete(s, "alpha")[0] == size[1]["alpha"] and complete(s, "gamma")[0] == size[1]["gamma"]
        assert s.get("/info?model=alpha").json()["draft"]["parameters"] > 0
        assert "draft" not in s.get("/info?model=gamma").json()
    with pytest.raises(AssertionError, match="draft-model: "):
        start(*flags, "--draft-model", "Nobody/Nothing", model=None, env={**ENV, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})


def test_default_model_is_one_of_the_folder(start, folder, size, tmp_path):
    """It is listed once; and where its name is another one's, the start says what to do."""
    with start("--models-dir", folder, *SMALL, model=folder / "alpha") as s:
        assert [m["id"] for m in s.get("/v1/models").json()["data"]] == ["alpha", "beta", "gamma"]
        assert states(s) == {"alpha": "loaded", "beta": "unloaded", "gamma": "unloaded"}
        assert complete(s, None) == (size[1]["alpha"], "alpha")
    make_model(tmp_path / "alpha", THETA["gamma"])
    with pytest.raises(AssertionError, match="are both named alpha"):
        start("--models-dir", folder, *SMALL, model=tmp_path / "alpha")
    with start("--models-dir", folder, "--served-model-name", "mine", *SMALL, model=tmp_path / "alpha") as s:
        assert complete(s, "mine")[0] == size[1]["gamma"] and complete(s, "alpha")[0] == size[1]["alpha"]


def test_job_of_another_model(start, folder, tmp_path):
    """A job names its base, goes on after kill -9, and its adapter is one of that model, also when the model was unloaded."""
    flags = ("--models-dir", folder, "--models-max", "1", "--data-dir", tmp_path / "data", *SMALL)
    s = start(*flags, model=None)
    try:
        answer = s.post("/train", {**training.request("sailor", max_steps=60, save_steps=5, learning_rate=0.02, lora_alpha=32), "base": "beta"})
        assert answer.status_code == 202, answer.text
        job = answer.json()["id"]
        assert s.post("/train", {**training.request(), "base": "delta"}).status_code == 404
        assert s.post("/train", training.request("gamma")).status_code == 422, "no adapter has a model's name"
        queued = s.post("/train", {**training.request("later", max_steps=2), "base": "gamma"})
        assert queued.status_code == 202, "a job is queued while another model has the memory"
        training.wait_step(s, job, 5)
        assert loaded(s) == ["beta"] or training.job(s, job)["status"] == "succeeded"
    finally:
        s.process.send_signal(signal.SIGKILL)
        s.wait()
    with start(*flags, model=None) as s:
        assert training.wait_over(s, job)["status"] == "succeeded"
        assert training.wait_over(s, queued.json()["id"])["status"] == "succeeded"
        assert s.get("/adapters/later").json()["base"] == "gamma"
        found = s.get("/adapters/sailor").json()
        assert found["base"] == "beta"
        text, model = complete(s, "sailor")
        assert model == "sailor" and text != complete(s, "beta")[0]
        assert complete(s, "alpha")[1] == "alpha" and loaded(s) == ["alpha"], "beta made room"
        assert s.get("/adapters").json()["adapters"] == [{"name": "sailor", "base": "beta", "loaded": False},
                                                         {"name": "later", "base": "gamma", "loaded": False}]
        assert complete(s, "sailor")[0] == text, "its model is loaded, and it with that"
        assert s.post("/generate", {"inputs": PROMPT, "parameters": {"adapter_id": "sailor", "max_new_tokens": 24}}
                      ).json()["generated_text"] == text
        # an adapter that a client loads is one of the model it names, and stays so
        assert s.post("/adapters", {"name": "second", "path": "sailor", "base": "beta"}).status_code == 201
        refused = s.post("/adapters", {"name": "second", "path": "sailor", "base": "alpha"})
        assert refused.status_code == 422 and "beta" in refused.json()["error"]
        assert complete(s, "gamma")[1] == "gamma" and "beta" not in loaded(s)
        assert complete(s, "second")[0] == text
        assert s.get("/adapters/second").json()["base"] == "beta"
        assert s.get("/v1/models/second").json()["parent"] == "beta"


def test_defaults_of_a_job_fit_its_model(start, tmp_path):
    """Of a model that is not loaded: what the client did not give fits when the job begins, what it gave is refused by name."""
    make_model(tmp_path / "models/short", THETA["beta"], max_position_embeddings=96)
    body = training.request(max_steps=1)
    for name in ("max_length", "lora_r"):
        del body["hyperparameters"][name]
    with start("--models-dir", tmp_path / "models", "--data-dir", tmp_path / "data", "--max-lora-rank", "8", *SMALL, model=None) as s:
        assert states(s) == {"short": "unloaded"}
        job = s.post("/train", {**body, "base": "short"}).json()["id"]
        done = training.wait_over(s, job)
        assert done["status"] == "succeeded", done["error"]
        assert (done["hyperparameters"]["max_length"], done["hyperparameters"]["lora_r"]) == (96, 8)
        assert s.post("/models/unload", {"model": "short"}).status_code == 200
        body["hyperparameters"]["max_length"] = 512
        job = s.post("/train", {**body, "base": "short"}).json()["id"]
        failed = training.wait_over(s, job)
        assert failed["status"] == "failed" and "max_length: the model that is served now has 96" in failed["error"]["message"], failed


def test_a_job_waits_for_a_model_that_failed(start, tmp_path):
    """What made a load fail may have passed: a job tries again by itself, and restarts until then do not count."""
    make_model(tmp_path / "models/mended", THETA["gamma"])
    weights = tmp_path / "models/mended/model.safetensors"
    weights.unlink()
    weights.mkdir()  # the system refuses to read it
    flags = ("--models-dir", tmp_path / "models", "--data-dir", tmp_path / "data", *SMALL)

    def waits(s, job, seen=0):
        def said():
            assert training.job(s, job)["status"] not in training.OVER, training.job(s, job)["error"]
            n = sum("is tried again in" in e["message"] for e in training.events(s, job))
            return n if n > seen else 0
        return wait_for(said, what="its waiting")

    def kill(s):
        s.signal(signal.SIGKILL)
        s.wait()
        s.process.returncode = 0

    def submit(s):
        answer = s.post("/train", {**training.request(max_steps=1), "base": "mended"})
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]
    with start(*flags, model=None) as s:
        job = submit(s)
        waits(s, job)
        assert s.post(f"/train/{job}/cancel", {}).status_code == 200
        assert training.wait_over(s, job)["status"] == "cancelled"
        job = submit(s)
        n = waits(s, job)
        kill(s)
    with contextlib.closing(sqlite3.connect(tmp_path / "data/jobs.sqlite")) as db, db:
        db.execute("UPDATE jobs SET attempts = 4 WHERE id = ?", (job,))
    with start(*flags, model=None) as s:
        n = waits(s, job, n)
        kill(s)
    with start(*flags, model=None) as s:
        waits(s, job, n)
        weights.rmdir()
        weights.symlink_to(SOURCE / "model.safetensors")
        assert training.wait_over(s, job)["status"] == "succeeded"


def test_a_model_supersedes_no_adapter(start, folder, tmp_path):
    """A draft is a folder of models/: an adapter of its name, of another model, stays."""
    with start("--models-dir", folder, "--data-dir", tmp_path, *SMALL, model=None) as s:
        small = training.request("same", max_steps=1)
        job = s.post("/train", {**small, "base": "alpha"}).json()["id"]
        assert training.wait_over(s, job)["status"] == "succeeded"
        for name in ("lora_r", "lora_alpha"):
            del small["hyperparameters"][name]
        job = s.post("/train", {**small, "base": "beta", "method": "draft", "draft": {"layers": 1, "max_new_tokens": 8}}).json()["id"]
        done = training.wait_over(s, job)
        assert done["status"] == "succeeded", done["error"]
        assert (tmp_path / "models/same/tandem.json").exists()
        assert s.get("/adapters").json()["adapters"][0]["name"] == "same" and complete(s, "same")[1] == "same"


def test_evaluation_and_batch_name_their_models(start, folder, size):
    with start("--models-dir", folder, "--models-max", "1", *SMALL, model=None) as s:
        rows = [{"prompt": PROMPT, "completion": size[1][name]} for name in THETA]
        evaluations = {name: s.post("/evaluate", {"model": name, "dataset": {"rows": rows}, "max_new_tokens": 24}).json()["id"]
                       for name in ("beta", "gamma")}
        assert s.post("/evaluate", {"model": "delta", "dataset": {"rows": rows}}).status_code == 404
        lines = "".join(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {
            "model": name, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}}) + "\n" for name in [*THETA, "delta"])
        file = requests.post(s.url + "/v1/files", files={"file": ("lines.jsonl", lines)}, data={"purpose": "batch"}, timeout=60).json()
        batch = s.post("/v1/batches", {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}).json()
        done = wait_for(lambda: (b := s.get(f"/v1/batches/{batch['id']}").json())["status"] == "completed" and b, 120, "the batch")
        answers = [json.loads(v) for v in s.get(f"/v1/files/{done['output_file_id']}/content").text.splitlines()]
        assert {a["custom_id"]: a["response"]["body"]["choices"][0]["text"] for a in answers} == size[1]
        errors = [json.loads(v) for v in s.get(f"/v1/files/{done['error_file_id']}/content").text.splitlines()]
        assert [(e["custom_id"], e["response"]["status_code"]) for e in errors] == [("delta", 404)]
        for name, evaluation in evaluations.items():
            over = wait_for(lambda e=evaluation: (v := s.get(f"/evaluate/{e}").json())["status"] in ("succeeded", "failed") and v,
                            120, "the evaluation")
            assert over["status"] == "succeeded" and over["results"]["model"] == name, over


@pytest.mark.full
def test_device_with_its_own_memory(start, folder, size):
    """Each model takes what --gpu-memory-bytes says; without it, several are refused."""
    small = ("--models-dir", folder, "--device", "simt", "--max-seqs", "4", "--max-batch-tokens", "32", "--kv-cache-bytes", "2M")
    with start(*small, model=None) as s:
        answer = s.post("/v1/completions", {"model": "beta", "prompt": PROMPT, "max_tokens": 4})
        assert answer.status_code == 503 and "--gpu-memory-bytes" in answer.json()["error"]["message"], answer.text
    with start(*small, "--gpu-memory-bytes", "60M", "--models-memory", "130M", model=None) as s:
        texts = {name: complete(s, name, most=8)[0] for name in THETA}
        assert len(set(texts.values())) > 1 and len(loaded(s)) == 2
        assert s.metric("tandem_models_memory_bytes") == 2 * 60 * 2**20


@pytest.mark.parametrize("flags, message", [
    (("--models", "nonsense"), "is not NAME=DIR"),
    (("--models", "a=x,a=y"), "a is there twice"),
    (("--models-dir", "/nonexistent"), "no directory that can be read"),
    (("--models-dir", "tests/repo"), "has no model"),
])
def test_wrong_options(flags, message, tmp_path):
    run = subprocess.run([BINARY, "serve", "--port", "0", "--data-dir", tmp_path, *flags], capture_output=True, text=True,
                         timeout=60, env=ENV, cwd=ROOT, check=False)
    assert run.returncode == 1 and message in run.stderr
