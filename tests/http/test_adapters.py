"""LoRA adapters through HTTP: named in requests, loaded, replaced and deleted while others generate."""
import json
import shutil
import sqlite3
import threading

import pytest
import requests
from conftest import DEMO, ROOT, wait_for
from training import request, submit, wait_over

MODELS, ADAPTERS = ROOT / "tests/fixtures/models", ROOT / "tests/fixtures/adapters"
MODEL = MODELS / "llama-gqa"
PROMPT = "The dog and the cat"
FEW = ("--kv-cache-bytes", "16M", "--threads", "2")


def copy(folder, name, source):
    shutil.copytree(ADAPTERS / source, folder / name)
    return folder / name


@pytest.fixture
def folder(tmp_path):
    """An --adapter-dir with one good adapter, one that cannot load, and things that are no adapters."""
    root = tmp_path / "adapters"
    root.mkdir()
    copy(root, "qv", "llama-gqa--qv")
    copy(root, "dora", "llama-gqa--refused-dora")
    copy(root, ".hidden", "llama-gqa--qv")
    (root / "notes.txt").write_text("hello")
    (root / "empty").mkdir()
    return root


@pytest.fixture
def server(start, folder):
    with start("--adapter-dir", folder, "--adapters", f"all={ADAPTERS / 'llama-gqa--ours-all'}", "--max-adapters", "4", *FEW,
               model=MODEL) as s:
        yield s
        assert s.process.poll() is None, s.log()[-4000:]
        s.wait_idle()


def tokens(server, adapter=None, **parameters):
    more = {} if adapter is None else {"adapter_id": adapter}
    answer = server.generate(PROMPT, max_new_tokens=12, details=True, ignore_eos=True, **more, **parameters)
    return [(t["id"], t["logprob"]) for t in answer["details"]["tokens"]]


def names(server):
    return [a["name"] for a in server.get("/adapters").json()["adapters"]]


def test_start_and_list(server):
    assert names(server) == ["all", "qv"]
    assert 'msg="adapter left out" name=dora reason="' in server.log() and "DoRA" in server.log()
    assert "adapters   2 of at most 4, " in server.log()
    info = server.get("/info").json()
    assert info["adapters"] == ["all", "qv"] and info["max_adapters"] == 4 and info["max_lora_rank"] == 256
    listed = server.get("/adapters").json()
    assert listed["adapters"][1]["target_modules"] == ["q_proj", "v_proj"] and listed["adapters"][1]["r"] == 4
    assert listed["bytes"] == sum(a["bytes"] for a in listed["adapters"]) == server.metric("tandem_adapter_bytes") > 0
    assert server.metric("tandem_adapters") == 2
    one = server.get("/adapters/qv")
    assert one.status_code == 200 and one.json() == listed["adapters"][1]
    assert server.get("/adapters/dora").status_code == 404


def test_requests_name_them(server):
    base, qv, both = tokens(server), tokens(server, "qv"), tokens(server, "all")
    assert base != qv != both != base
    assert tokens(server, None) == base and tokens(server, "qv") == qv
    together = {}
    def ask(i, name):
        together[i] = tokens(server, name)
    threads = [threading.Thread(target=ask, args=(i, (None, "qv", "all")[i % 3])) for i in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [together[i] for i in range(12)] == [base, qv, both] * 4  # log-probabilities to the last bit


def test_hub_client(server):
    hub = pytest.importorskip("huggingface_hub")
    client = hub.InferenceClient(server.url)
    plain = client.text_generation(PROMPT, max_new_tokens=12, return_full_text=False)
    adapted = client.text_generation(PROMPT, max_new_tokens=12, return_full_text=False, adapter_id="all")
    streamed = "".join(client.text_generation(PROMPT, max_new_tokens=12, adapter_id="all", stream=True))
    assert adapted != plain and streamed == adapted
    with pytest.raises(Exception, match="no adapter is called"):
        client.text_generation(PROMPT, adapter_id="nobody")


def test_load_replace_delete(server, folder):
    base, qv = tokens(server), tokens(server, "qv")
    copy(folder, "second", "llama-gqa--all-linear-bf16")
    answer = server.post("/adapters", {"name": "mine", "path": "second"})
    assert answer.status_code == 201 and answer.json()["name"] == "mine"
    second = tokens(server, "mine")
    assert second not in (base, qv)
    again = server.post("/adapters", {"name": "mine", "path": str(folder / "qv")})  # another under the same name
    assert again.status_code == 201 and again.json()["version"] > answer.json()["version"]
    assert tokens(server, "mine") == qv  # not what the prefix cache had of the old one
    assert requests.delete(server.url + "/adapters/mine").json() == {"name": "mine", "deleted": True}
    gone = requests.delete(server.url + "/adapters/mine")
    assert gone.status_code == 404 and gone.json()["error_type"] == "not_found"
    refused = server.post("/generate", {"inputs": "x", "parameters": {"adapter_id": "mine"}})
    assert refused.status_code == 422
    assert refused.json()["error"] == 'Input validation error: `adapter_id`: no adapter is called "mine"; loaded: all, qv'
    assert tokens(server) == base


def test_vllm_routes(server, folder):
    qv = tokens(server, "qv")
    answer = server.post("/v1/load_lora_adapter", {"lora_name": "v", "lora_path": str(folder / "qv")})
    assert answer.status_code == 200 and answer.text == "Success: LoRA adapter 'v' added successfully."
    assert tokens(server, "v") == qv
    answer = server.post("/v1/unload_lora_adapter", {"lora_name": "v"})
    assert answer.status_code == 200 and answer.text == "Success: LoRA adapter 'v' removed successfully."
    for path, body, status in [("/v1/unload_lora_adapter", {"lora_name": "v"}, 404), ("/v1/unload_lora_adapter", {}, 400),
                               ("/v1/load_lora_adapter", {"lora_name": "v"}, 400),
                               ("/v1/load_lora_adapter", {"lora_name": "v", "lora_path": "/etc"}, 404)]:
        answer = server.post(path, body)
        assert answer.status_code == status and answer.json()["error"]["code"] == status, answer.text


BAD = [
    ({"name": "x"}, 422, "path: the field is missing"),
    ({"path": "qv"}, 422, "name: the field is missing"),
    ({"name": "x", "path": "qv", "scale": 2}, 422, "scale: unknown field"),
    ({"nam": "x", "path": "qv"}, 422, "nam: unknown field; did you mean `name`?"),
    ({"name": 7, "path": "qv"}, 422, "name: expected a string"),
    ([], 422, "expected a JSON object"),
    ({"name": "../x", "path": "qv"}, 422, "an adapter's name"),
    ({"name": "", "path": "qv"}, 422, "an adapter's name"),
    ({"name": "a" * 101, "path": "qv"}, 422, "an adapter's name"),
    ({"name": "x y", "path": "qv"}, 422, "an adapter's name"),
    ({"name": "x", "path": ""}, 404, "no directory within"),
    ({"name": "x", "path": "."}, 404, "no directory within"),
    ({"name": "x", "path": "nowhere"}, 404, "nowhere is no directory within"),
    ({"name": "x", "path": "notes.txt"}, 404, "no directory within"),
    ({"name": "x", "path": "../../../etc"}, 404, "no directory within"),
    ({"name": "x", "path": "/etc"}, 404, "no directory within"),
    ({"name": "x", "path": "link"}, 404, "no directory within"),
    ({"name": "x", "path": "empty"}, 404, "adapter_config.json"),
    ({"name": "x", "path": "dora"}, 422, "DoRA"),
    ({"name": "x", "path": "qwen"}, 422, "layers"),
    ({"name": "x", "path": "cut"}, 422, "adapter_model.safetensors"),
    ({"name": "x", "path": "nan"}, 422, "not finite"),
    ({"name": "x", "path": "config"}, 422, "not a JSON object"),
]


def test_bad_inputs(start, folder):
    (folder / "link").symlink_to(MODEL)
    copy(folder, "qwen", "qwen2--rslora")
    weights = copy(folder, "cut", "llama-gqa--qv") / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    weights = copy(folder, "nan", "llama-gqa--qv") / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\x00\x00\xc0\x7f")
    (copy(folder, "config", "llama-gqa--qv") / "adapter_config.json").write_text("{")
    with start("--adapter-dir", folder, *FEW, model=MODEL) as server:
        before = names(server)
        for body, status, says in BAD:
            answer = server.post("/adapters", body)
            assert answer.status_code == status and says in answer.json()["error"], (body, answer.status_code, answer.text)
        answer = requests.post(server.url + "/adapters", data=b'{"name":', timeout=300)
        assert answer.status_code == 400 and "malformed JSON" in answer.json()["error"]
        assert requests.put(server.url + "/adapters/qv", timeout=300).status_code == 405
        assert names(server) == before
        assert tokens(server, "qv")


def test_limits(start, folder):
    with start("--adapter-dir", folder, "--max-lora-rank", "3", "--max-adapters", "1", *FEW, model=MODEL) as server:
        assert names(server) == []  # rank 4 is too much
        answer = server.post("/adapters", {"name": "x", "path": "qv"})
        assert answer.status_code == 422 and "rank 4; --max-lora-rank is 3" in answer.json()["error"]
        copy(folder, "small", "llama-gqa--all-linear-bf16")
        assert server.post("/adapters", {"name": "a", "path": "small"}).status_code == 201
        full = server.post("/adapters", {"name": "b", "path": "small"})
        assert full.status_code == 409 and "--max-adapters" in full.json()["error"]
        assert server.post("/adapters", {"name": "a", "path": "small"}).status_code == 201
        assert requests.delete(server.url + "/adapters/a").status_code == 200
        assert server.post("/adapters", {"name": "b", "path": "small"}).status_code == 201
        assert requests.delete(server.url + "/adapters/b").status_code == 200
        # what could not be served is refused before it is trained, and the default is within the limit
        refused = server.post("/train", request("c", n=4, max_steps=1, lora_r=4))
        assert refused.status_code == 422 and "hyperparameters.lora_r: must be at most 3, this server's --max-lora-rank" in refused.json()["error"]
        body = request("c", n=4, max_steps=1)
        del body["hyperparameters"]["lora_r"]
        job_id = server.post("/train", body).json()["id"]
        assert wait_over(server, job_id)["status"] == "succeeded" and names(server) == ["c"]
    with start("--data-dir", server.data, "--max-lora-rank", "2", *FEW, model=MODEL) as server:
        (server.data / "small.jsonl").write_text('{"prompt": "Hello.", "completion": " You."}\n' * 2)
        again = sqlite3.connect(server.data / "jobs.sqlite", isolation_level=None)
        again.execute("UPDATE jobs SET status = 'failed', spec = json_set(spec, '$.dataset', json('{\"path\": \"small.jsonl\"}'))")
        again.close()
        assert server.post(f"/train/{job_id}/resume", {}).status_code == 200
        found = wait_over(server, job_id)
        assert found["status"] == "failed" and "lora_r: 3, and --max-lora-rank of this server is 2" in found["error"]["message"]


def test_no_adapter_has_the_name_of_the_model(start, run, folder, tmp_path):
    """Requests for it would be the model's: refused wherever a name is given, whichever of the model's names it is."""
    copy(folder, "served", "llama-gqa--qv")
    with start("--adapter-dir", folder, "--served-model-name", "served,other", *FEW, model=MODEL) as s:
        assert names(s) == ["qv"] and "served is the name of the model itself" in s.log()  # left out at the start
        for name in ("served", "other"):
            refused = s.post("/adapters", {"name": name, "path": "qv"})
            assert refused.status_code == 422 and "the name of the model itself" in refused.json()["error"]
            assert s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": "qv"}).status_code == 422
            rows = [{"prompt": "a", "completion": "b"}] * 4
            refused = s.post("/train", {"serve_as": name, "dataset": {"rows": rows}})
            assert refused.status_code == 422 and "serve_as" in refused.text, refused.text
        assert s.post("/adapters", {"name": "llama-gqa", "path": "qv"}).status_code == 201  # not a name of it now
    with start("--adapter-dir", folder, *FEW, model=MODEL) as s:
        assert s.post("/adapters", {"name": "llama-gqa", "path": "qv"}).status_code == 422
    done = run("serve", "--model", MODEL, "--port", 0, "--data-dir", tmp_path / "d", "--adapters", f"llama-gqa={folder / 'qv'}")
    assert done.returncode == 1 and b"--adapters: llama-gqa" in done.stderr and b"the name of the model itself" in done.stderr


def test_links_within_an_adapter(start, folder, tmp_path):
    """A link may lead through the adapter directory, as the Hugging Face cache's do, and not out of it."""
    outside = copy(tmp_path, "outside", "llama-gqa--qv")
    cache = folder / "models--x"
    blobs, snapshot = cache / "blobs", cache / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(outside / name, blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
        stolen = folder / f"stolen-{name}"
        shutil.copytree(outside, stolen)
        (stolen / name).unlink()
        (stolen / name).symlink_to(outside / name)
    with start("--adapter-dir", folder, *FEW, model=MODEL) as s:
        assert names(s) == ["qv"] and s.log().count("is a link that leads out") == 2
        assert s.post("/adapters", {"name": "cached", "path": "models--x/snapshots/rev"}).status_code == 201
        for stolen in folder.glob("stolen-*"):
            refused = s.post("/adapters", {"name": "stolen", "path": stolen.name})
            assert refused.status_code == 422 and "is a link that leads out" in refused.json()["error"]


def test_named_adapter_must_load(run, folder):
    for named, says in [(f"x={folder / 'dora'}", b"DoRA"), ("qv", rb'\"qv\" is not NAME=DIR'), (f"../x={folder / 'qv'}", b"name")]:
        ended = run("serve", "--model", MODEL, "--port", "0", "--adapters", named, *FEW)
        assert ended.returncode == 1 and says in ended.stderr, ended.stderr


def test_data_directory(start, tmp_path):
    (tmp_path / "adapters").mkdir()
    copy(tmp_path / "adapters", "trained", "llama-gqa--qv")
    with start("--data-dir", tmp_path, *FEW, model=MODEL) as server:
        assert names(server) == ["trained"]
        assert server.post("/adapters", {"name": "again", "path": "trained"}).status_code == 201
        assert requests.delete(server.url + "/adapters/again").json() == {"name": "again", "deleted": True}
        assert (tmp_path / "adapters" / "trained").exists()
        unclear = requests.delete(server.url + "/adapters/trained?files=yes")
        assert unclear.status_code == 422 and names(server) == ["trained"]
        gone = requests.delete(server.url + "/adapters/trained?files=true").json()
        assert gone == {"name": "trained", "deleted": True, "files_deleted": True}
        assert not (tmp_path / "adapters" / "trained").exists() and names(server) == []
        for name in ("trained", "..", "%2e%2e"):
            assert requests.delete(f"{server.url}/adapters/{name}?files=true").status_code in (404, 405)
        assert (tmp_path / "adapters").exists()


class Rollout(threading.Thread):
    """A stream of /inference/v1/generate; `begun` when its first tokens have come."""

    def __init__(self, server, prompt, seed, n=40):
        super().__init__()
        self.server, self.tokens, self.begun = server, [], threading.Event()
        self.body = {"token_ids": prompt, "model": "policy", "stream": True,
                     "sampling_params": {"max_tokens": n, "ignore_eos": True, "seed": seed, "logprobs": 0}}

    def run(self):
        try:
            with requests.post(self.server.url + "/inference/v1/generate", json=self.body, stream=True, timeout=300) as answer:
                for line in answer.iter_lines():
                    if line.startswith(b"data: {"):
                        for choice in json.loads(line[6:])["choices"]:
                            self.tokens += [(e["token"], e["logprob"]) for e in choice["logprobs"]["content"]]
                        self.begun.set()
        finally:
            self.begun.set()

    def result(self):
        self.join()
        return self.tokens


def write(folder, source):
    """As a trainer writes its newest weights over the last."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(ADAPTERS / source / name, folder / name)


@pytest.mark.parametrize("held", [True, False], ids=["held", "running"])
def test_weights_of_a_directory_replaced_between_two_steps(server, folder, held):
    """One directory and one name for all versions of a policy. What runs ends with the version that it began with, to the bit;
    what comes later has the new one; a directory that is half written changes nothing."""
    policy = copy(folder, "policy", "llama-gqa--qv")
    load = {"lora_name": "policy", "lora_path": "policy", "load_inplace": True}
    prompt = [t["id"] for t in server.post("/tokenize", {"inputs": PROMPT}).json()]

    def rollouts():
        v = [Rollout(server, prompt, seed) for seed in range(4)]
        for r in v:
            r.start()
        return v

    assert server.post("/v1/load_lora_adapter", load).status_code == 200
    old = [r.result() for r in rollouts()]
    assert len({tuple(r) for r in old}) > 1 and {len(r) for r in old} == {40}
    running = rollouts()
    for r in running:
        assert r.begun.wait(300)
    if held:
        assert server.post("/pause", None, params={"mode": "keep"}).status_code == 200
    write(policy, "llama-gqa--all-linear-bf16")
    whole = (policy / "adapter_model.safetensors").read_bytes()
    (policy / "adapter_model.safetensors").write_bytes(whole[:len(whole) // 2])
    assert server.post("/v1/load_lora_adapter", load).status_code == 422
    half = rollouts()  # still the old one's
    if not held:
        assert [r.result() for r in half] == old
    (policy / "adapter_model.safetensors").write_bytes(whole)
    versions = [a["version"] for a in server.get("/adapters").json()["adapters"] if a["name"] == "policy"]
    if held:
        before = len(half) + sum(r.is_alive() for r in running)
        wait_for(lambda: server.metric("tandem_requests_waiting") + server.metric("tandem_requests_running") == before, what="the requests")
    assert server.post("/v1/load_lora_adapter", load).text == "Success: LoRA adapter 'policy' added successfully."
    newer = rollouts()
    if held:
        assert server.post("/resume", None).status_code == 200
    assert [r.result() for r in running] == old and [r.result() for r in half] == old
    new = [r.result() for r in newer]
    assert new != old and [r.result() for r in rollouts()] == new
    assert server.get("/adapters/policy").json()["version"] > versions[0]
    assert server.post("/v1/unload_lora_adapter", {"lora_name": "policy"}).status_code == 200


def test_deleted_and_replaced_in_the_middle_of_streams(server, folder):
    """Streams that run keep what they began with; a hundred reloads beside them harm nobody."""
    copy(folder, "second", "llama-gqa--all-linear-bf16")
    qv = tokens(server, "qv")
    server.post("/adapters", {"name": "moving", "path": "qv"})
    second = tokens(server, "all")
    results, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answer = server.post("/generate", {"inputs": PROMPT, "parameters": {
                "adapter_id": "moving", "max_new_tokens": 12, "details": True, "ignore_eos": True}})
            if answer.status_code == 200:
                results.append([(t["id"], t["logprob"]) for t in answer.json()["details"]["tokens"]])
            else:
                assert answer.status_code == 422, answer.text  # just deleted

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    for i in range(40):
        if i % 5 == 4:
            requests.delete(server.url + "/adapters/moving")
        else:
            answer = server.post("/adapters", {"name": "moving", "path": ("qv", "second")[i % 2]})
            assert answer.status_code == 201, answer.text
    server.post("/adapters", {"name": "moving", "path": "second"})
    stop.set()
    for t in threads:
        t.join()
    last = tokens(server, "moving")
    assert results and all(r in (qv, last) for r in results) and last not in (qv, second)
    server.wait_idle()
    listed = server.get("/adapters").json()
    assert server.metric("tandem_adapter_bytes") == listed["bytes"]  # nothing of the old versions is left


def test_command_line(run):
    plain = run("generate", "--model", MODEL, "--prompt", PROMPT, "--max-new-tokens", "12")
    adapted = run("generate", "--model", MODEL, "--prompt", PROMPT, "--max-new-tokens", "12", "--adapter", ADAPTERS / "llama-gqa--qv")
    assert plain.returncode == adapted.returncode == 0 and plain.stdout != adapted.stdout
    refused = run("generate", "--model", MODEL, "--prompt", PROMPT, "--adapter", ADAPTERS / "llama-gqa--refused-dora")
    assert refused.returncode == 1 and b"DoRA" in refused.stderr


def test_demo_model_says_none(start):
    with start(*FEW, model=DEMO) as server:
        assert server.get("/adapters").json()["adapters"] == []


def test_the_base_is_named_as_peft_finds_it(start, tmp_path):
    """By its name on the Hub where it lies in the Hub's cache, by its absolute path elsewhere; and whatever an adapter names
    as its base, its shapes decide whether it is loaded."""
    hub = tmp_path / "hub/models--acme--tiny"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots/0a1b2c").mkdir(parents=True)
    for file in MODEL.iterdir():
        shutil.copy(file, hub / "blobs" / file.name)
        (hub / "snapshots/0a1b2c" / file.name).symlink_to(f"../../blobs/{file.name}")
    (tmp_path / "current").symlink_to(hub / "snapshots/0a1b2c")
    config = lambda s: json.loads((s.data / "adapters/a/adapter_config.json").read_text())  # noqa: E731
    with start(*FEW, model=tmp_path / "current") as s:
        assert wait_over(s, submit(s, "a", n=8, max_steps=1))["status"] == "succeeded"
        assert config(s)["base_model_name_or_path"] == "acme/tiny"
        trained = s.data / "adapters/a"
    with start("--adapters", f"b={trained}", *FEW, model=MODEL) as s:
        assert names(s) == ["b"] and s.generate(PROMPT, max_new_tokens=2, adapter_id="b")
        assert wait_over(s, submit(s, "a", n=8, max_steps=1))["status"] == "succeeded"
        assert config(s)["base_model_name_or_path"] == str(MODEL.resolve())
