"""tandem pull and --model ORG/NAME with a hub that is there, and with one that is broken; beside the real huggingface_hub 2.4.0,
with which tandem shares the cache."""
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BINARY, ENV, MODEL, ROOT, wait_for
from hub_server import Hub, Repo
from keys import new_key

ADAPTER = ROOT / "models" / "demo-pirate"
DEMO = {p.name: p.read_bytes() for p in MODEL.iterdir() if p.suffix in (".json", ".safetensors")}
NOT_WANTED = {"README.md": b"# A model", ".gitattributes": b"x", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"o", "original/params.json": b"{}"}
WEIGHTS = DEMO["model.safetensors"]


def split(weights):
    """The weights as two files with an index, as transformers writes them."""
    names = [f"model-{i}-of-00002.safetensors" for i in ("00001", "00002")]
    head_size = int.from_bytes(weights[:8], "little")
    head = json.loads(weights[8:8 + head_size])
    data = weights[8 + head_size:]
    tensors = sorted((k for k in head if k != "__metadata__"), key=lambda k: head[k]["data_offsets"])
    out, where = {}, {}
    for name, part in zip(names, (tensors[::2], tensors[1::2])):
        at, entries, body = 0, {}, b""
        for tensor in part:
            begin, end = head[tensor]["data_offsets"]
            entries[tensor] = {**head[tensor], "data_offsets": [at, at + end - begin]}
            at += end - begin
            body += data[begin:end]
            where[tensor] = name
        text = json.dumps(entries).encode()
        text += b" " * (-len(text) % 8)
        out[name] = len(text).to_bytes(8, "little") + text + body
    return {**out, "model.safetensors.index.json": json.dumps({"metadata": {}, "weight_map": where}).encode()}


@pytest.fixture
def hub():
    hub = Hub()
    hub.repos["Org/Demo"] = Repo({**DEMO, **NOT_WANTED})
    hub.repos["Org/Split"] = Repo({**{k: v for k, v in DEMO.items() if k != "model.safetensors"}, **split(WEIGHTS), "consolidated.safetensors": b"x"})
    hub.repos["Org/Pirate"] = Repo({p.name: p.read_bytes() for p in ADAPTER.iterdir() if p.suffix in (".json", ".safetensors")})
    hub.repos["Org/Gated"] = Repo(DEMO, gated=True)
    hub.repos["Org/Private"] = Repo(DEMO, private=True)
    yield hub
    hub.close()


def environment(hub, home, **more):
    return {"HF_HOME": str(home), "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DOWNLOAD_TIMEOUT": "2", **more}


@pytest.fixture
def home(tmp_path):
    return tmp_path / "hf"


@pytest.fixture
def pull(run, hub, home):
    def call(*names, **env):
        return run("pull", *names, env=environment(hub, home, **env))
    return call


def repo_dir(home, name="Org/Demo"):
    return home / "hub" / ("models--" + name.replace("/", "--"))


def good(got):
    assert got.returncode == 0, got.stderr.decode()
    return got


def python(hub, home, code, **env):
    """The real huggingface_hub, in a process of its own: it reads the environment when it is imported."""
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300,
                         env={**os.environ, **environment(hub, home, **env), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"})
    assert got.returncode == 0, got.stderr.decode()
    return got.stdout.decode().strip()


# ---- the same cache --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["Org/Demo", "Org/Split", "Org/Pirate"])
def test_huggingface_hub_finds_what_tandem_downloads(pull, hub, home, name):
    got = good(pull(name))
    path = got.stdout.decode().strip()
    assert python(hub, home, f"from huggingface_hub import snapshot_download as s; print(s('{name}', local_files_only=True))") == path
    wanted = {k: v for k, v in hub.repos[name].files.items() if k not in NOT_WANTED and k != "consolidated.safetensors"}
    found = {f: (home / path / f).read_bytes() for f in os.listdir(path)}
    assert found == wanted
    for f in wanted:
        assert os.readlink(f"{path}/{f}") == f"../../blobs/{hub.repos[name].etag(f)}"
    scan = json.loads(python(hub, home, """
import json
from huggingface_hub import scan_cache_dir
c = scan_cache_dir()
print(json.dumps([[r.repo_id, r.repo_type, r.size_on_disk, sorted(f.file_name for v in r.revisions for f in v.files), sorted(r.refs)] for r in c.repos]
                 + [len(c.warnings), len(c.incomplete_files)]))"""))
    assert scan == [[name, "model", sum(map(len, wanted.values())), sorted(wanted), ["main"]], 0, 0]


def test_huggingface_hub_downloads_nothing_again(pull, hub, home):
    path = good(pull("Org/Demo")).stdout.decode().strip()
    before = len(hub.storage_requests)
    assert python(hub, home, "from huggingface_hub import snapshot_download as s; print(s('Org/Demo', allow_patterns=['*.json','*.safetensors']))") == path
    assert len([r for r in hub.storage_requests[before:] if r[0] == "GET"]) == 0


def test_tandem_opens_what_huggingface_hub_downloads(run, hub, home):
    python(hub, home, "from huggingface_hub import snapshot_download as s; s('Org/Demo', allow_patterns=['*.json','*.safetensors'])")
    seen = len(hub.requests)
    got = good(run("generate", "--prompt", "Once", "--max-new-tokens", 4, "--model", "Org/Demo", env=environment(hub, home)))
    assert got.stdout and len(hub.requests) == seen  # not even asked
    good(run("generate", "--prompt", "Once", "--max-new-tokens", 4, "--model", "Org/Demo", env=environment(hub, home, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:1")))


def test_a_download_of_huggingface_hub_is_completed(run, hub, home):
    python(hub, home, "from huggingface_hub import hf_hub_download as d; d('Org/Demo', 'config.json')")
    good(run("generate", "--prompt", "Once", "--max-new-tokens", 4, "--model", "Org/Demo", env=environment(hub, home)))
    assert len([p for _, p, _ in hub.requests if p.endswith("/config.json")]) <= 2  # the HEAD and GET of huggingface_hub


# ---- downloads -------------------------------------------------------------------------------------------------------

def test_a_command_downloads_its_model(run, hub, home):
    got = good(run("generate", "--prompt", "Once", "--max-new-tokens", 4, "--model", "Org/Split", "--adapter", "Org/Pirate", env=environment(hub, home)))
    assert b"Org/Split: " in got.stderr and b" downloaded in " in got.stderr


def test_a_url_is_a_name(run, hub, home):
    good(run("tokenize", "--text", "a", "--model", hub.url + "/Org/Demo/tree/main", env=environment(hub, home)))


def test_revisions(pull, hub, home):
    old = hub.repos["Org/Demo"]
    new = Repo({**DEMO, "generation_config.json": b"{}"})
    good(pull("Org/Demo"))
    hub.repos["Org/Demo"], new.refs["refs/pr/1"] = new, new.commit
    hub.requests.clear()
    path = good(pull("Org/Demo@refs/pr/1")).stdout.decode().strip()
    assert path.endswith(new.commit) and (repo_dir(home) / "refs/refs/pr/1").read_text() == new.commit
    assert sorted(p for _, p, _ in hub.requests if "/resolve/" in p) == [f"/Org/Demo/resolve/{new.commit}/generation_config.json"]  # only what is new
    assert (repo_dir(home) / "refs/main").read_text() == old.commit
    assert good(pull("Org/Demo")).stdout == f"{path}\n".encode() and (repo_dir(home) / "refs/main").read_text() == new.commit
    assert good(pull(f"Org/Demo@{new.commit}")).stdout == f"{path}\n".encode()
    assert not (repo_dir(home) / "refs" / new.commit).exists()


def test_the_token_stays_at_the_hub(pull, hub, home):
    for name in ("Org/Gated", "Org/Private"):
        good(pull(name, HF_TOKEN=" hf_right\n"))
    assert all(t == "Bearer hf_right" for _, _, t in hub.requests) and len(hub.storage_requests) == 2
    assert all(t is None for _, _, t in hub.storage_requests)


def test_the_token_of_the_file(pull, hub, home, tmp_path):
    home.mkdir()
    (home / "token").write_text("hf_right\n")
    good(pull("Org/Gated"))
    (tmp_path / "t").write_text("hf_right")
    (home / "token").unlink()
    good(pull("Org/Private", HF_TOKEN_PATH=str(tmp_path / "t")))


@pytest.mark.parametrize("ignore_ranges", [False, True])
def test_resumed_after_breaks(pull, hub, home, ignore_ranges):
    hub.break_after, hub.breaks, hub.ignore_ranges = 2_000_000, 2, ignore_ranges
    good(pull("Org/Demo"))
    asked = [r for r in hub.ranges if r]
    assert asked == ["bytes=2000000-", "bytes=2000000-" if ignore_ranges else "bytes=4000000-"]
    assert (repo_dir(home) / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()).read_bytes() == WEIGHTS


def test_killed_and_resumed(run, hub, home):
    env = environment(hub, home)
    hub.slow = 0.1
    process = subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **env}, stderr=subprocess.DEVNULL)
    incomplete = repo_dir(home) / "blobs" / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")
    wait_for(lambda: incomplete.exists() and incomplete.stat().st_size > 500_000)
    process.kill()
    process.wait()
    have = incomplete.stat().st_size
    assert WEIGHTS.startswith(incomplete.read_bytes()) and have < len(WEIGHTS)
    got = run("generate", "--prompt", "a", "--model", "Org/Demo", env={**env, "HF_HUB_OFFLINE": "1"})
    assert got.returncode == 1 and b"not in the cache" in got.stderr
    hub.slow = 0
    hub.ranges.clear()
    good(run("generate", "--prompt", "a", "--max-new-tokens", 2, "--model", "Org/Demo", env=env))
    assert f"bytes={have}-" in hub.ranges and not incomplete.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(hub, home, number):
    hub.slow = 0.2
    process = subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **environment(hub, home)}, stderr=subprocess.PIPE)
    incomplete = repo_dir(home) / "blobs" / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")
    wait_for(lambda: incomplete.exists() and incomplete.stat().st_size > 100_000)
    process.send_signal(number)
    assert process.wait(300) == 130 and b"goes on from there" in process.stderr.read() and incomplete.stat().st_size > 100_000


def test_two_at_once(hub, home):
    hub.slow = 0.005
    command = [BINARY, "pull", "Org/Demo", "Org/Split"]
    both = [subprocess.Popen(command, env={**ENV, **environment(hub, home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outs = [p.communicate(timeout=300) for p in both]
    assert all(p.returncode == 0 for p in both), outs
    assert outs[0][0] == outs[1][0]
    assert len([r for r in hub.storage_requests if r[0] == "GET"]) == 3  # each file once


def test_beside_huggingface_hub(hub, home):
    hub.slow = 0.005
    env = environment(hub, home)
    code = "from huggingface_hub import snapshot_download as s; s('Org/Demo', allow_patterns=['*.json','*.safetensors'])"
    both = [subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **env, "HF_HUB_DISABLE_XET": "1"}, stderr=subprocess.PIPE),
            subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **env}, stderr=subprocess.PIPE)]
    assert [p.wait(300) for p in both] == [0, 0], [p.stderr.read() for p in both]
    assert len([r for r in hub.storage_requests if r[0] == "GET"]) == 1
    assert (repo_dir(home) / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()).read_bytes() == WEIGHTS


def test_waits_for_the_lock_of_another(hub, home):
    locks = home / "hub" / ".locks" / "models--Org--Demo"
    locks.mkdir(parents=True)
    lock = open(locks / (hashlib.sha256(WEIGHTS).hexdigest() + ".lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **environment(hub, home)}, stderr=subprocess.PIPE)
    wait_for(lambda: len([r for r in hub.requests if "/resolve/" in r[1]]) >= len(DEMO) - 1)
    time.sleep(0.5)
    assert process.poll() is None and not hub.storage_requests
    lock.close()
    assert process.wait(300) == 0 and len(hub.storage_requests) == 1


def test_a_damaged_file_is_loaded_again(pull, hub, home):
    blobs = repo_dir(home) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")).write_bytes(b"x" * 1000)  # of something else
    good(pull("Org/Demo"))
    assert (blobs / hashlib.sha256(WEIGHTS).hexdigest()).read_bytes() == WEIGHTS
    assert len(hub.storage_requests) == 2


def test_a_mirror_that_lists_names_only(pull, hub, home):
    hub.no_blobs = True
    path = good(pull("Org/Demo")).stdout.decode().strip()
    assert os.readlink(f"{path}/model.safetensors") == f"../../blobs/{hashlib.sha256(WEIGHTS).hexdigest()}"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_tries_again(pull, hub, status):
    hub.failing, hub.fail_with, hub.retry_after = 2, status, 1 if status == 429 else 0
    hub.storage_failing, hub.storage_fail_with = 1, status
    good(pull("Org/Demo"))


def test_serve_downloads_and_listens_meanwhile(start, hub, home):
    hub.slow = 0.2
    with start("--adapters", "pirate=Org/Pirate", model="Org/Demo", env=environment(hub, home), ready=False) as server:
        wait_for(lambda: hub.storage_requests)
        assert server.get("/health").status_code == 200 and server.get("/ready").status_code == 503
        hub.slow = 0
        server.wait_ready()
        assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["Org/Demo", "pirate"]
    assert "Org/Demo: " in server.log()


def test_a_daemon_that_downloads_ends_at_a_signal(start, hub, home):
    hub.slow = 0.2
    incomplete = repo_dir(home) / "blobs" / (hashlib.sha256(WEIGHTS).hexdigest() + ".incomplete")
    with start(model="Org/Demo", env=environment(hub, home), ready=False):
        wait_for(lambda: incomplete.exists() and incomplete.stat().st_size > 100_000)
    assert incomplete.stat().st_size > 100_000


def test_a_daemon_whose_model_is_nowhere_ends(run, hub, home):
    got = run("serve", "--model", "Org/None", "--port", 0, "--data-dir", home / "data", env=environment(hub, home))
    assert got.returncode == 1 and b"Org/None: no such directory, and no such model on the hub" in got.stderr


def test_a_mistyped_path_without_a_network(run, hub, home):
    got = run("tokenize", "--text", "a", "--model", "models/dmeo", env=environment(hub, home, HF_ENDPOINT="http://127.0.0.1:1"))
    assert got.returncode == 1 and b"no such directory, and not in the cache: models/dmeo: http://127.0.0.1:1: " in got.stderr


# ---- GGUF ------------------------------------------------------------------------------------------------------------

def test_gguf(pull, hub, home):
    parts = {f"Q8_0/m-Q8_0-0000{i}-of-00002.gguf": b"GGUF%d" % i for i in (1, 2)}
    hub.repos["Org/G"] = Repo({"m-Q4_K_M.gguf": b"GGUF", "m-Q4_K_S.gguf": b"GGUF-S", "mmproj-F16.gguf": b"P", "config.json": b"{}", **parts})
    path = good(pull("Org/G:q4_k_m")).stdout.decode().strip()
    assert path.endswith("/m-Q4_K_M.gguf") and open(path, "rb").read() == b"GGUF"
    path = good(pull("Org/G:Q8_0")).stdout.decode().strip()
    assert path.endswith("/Q8_0/m-Q8_0-00001-of-00002.gguf") and os.readlink(path).startswith("../../../blobs/")
    assert open(path.replace("00001-", "00002-"), "rb").read() == b"GGUF2"
    for name, says in (("Org/G", "which GGUF file?"), ("Org/G:Q4_K", "no GGUF file is of type Q4_K; there are"), ("Org/Demo:Q4_0", "there is no GGUF file")):
        got = pull(name)
        assert got.returncode == 1 and says in got.stderr.decode(), got.stderr
    hub.repos["Org/One"] = Repo({"m.gguf": b"GGUF", "README.md": b""})
    assert good(pull("Org/One")).stdout.endswith(b"/m.gguf\n")


def test_a_gguf_model_by_name(run, start, hub, home, tmp_path):
    sys.path.insert(0, str(ROOT / "tests" / "model"))
    import gguf_models
    gguf_models.convert(ROOT / "tests/fixtures/models/tinystories-656k", tmp_path / "m.gguf", pre=None)
    hub.repos["Org/Tiny-GGUF"] = Repo({"tiny-F32.gguf": (tmp_path / "m.gguf").read_bytes(), "tiny-Q4_0.gguf": b"GGUF"})
    name, env = "Org/Tiny-GGUF:f32", environment(hub, home)
    wanted = good(run("generate", "--prompt", "Once", "--max-new-tokens", 8, "--model", ROOT / "tests/fixtures/models/tinystories-656k"))
    assert good(run("generate", "--prompt", "Once", "--max-new-tokens", 8, "--model", name, env=env)).stdout == wanted.stdout
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt":"Hello","completion":" Ahoy"}\n')
    good(run("train", "--model", name, "--data", data, "--out", tmp_path / "a", "--max-steps", 1, env=env))
    assert json.loads((tmp_path / "a/adapter_config.json").read_text())["base_model_name_or_path"] == "Org/Tiny-GGUF"
    with start(model=name, env={**env, "HF_HUB_OFFLINE": "1"}) as server:
        assert server.get("/info").json()["model_id"] == "Org/Tiny-GGUF"
        assert server.post("/v1/completions", {"model": "Org/Tiny-GGUF", "prompt": "Once", "max_tokens": 4}).status_code == 200


# ---- tandem models ---------------------------------------------------------------------------------------------------

def test_models(run, pull, hub, home):
    env = environment(hub, home)
    assert json.loads(good(run("models", "--json", env=env)).stdout)["models"] == []
    good(pull("Org/Demo", "Org/Pirate"))
    listed = json.loads(good(run("models", "--json", env=env)).stdout)
    assert listed["cache"] == str(home / "hub")
    assert [(m["id"], m["kind"], m["bytes"], m["complete"]) for m in listed["models"]] == [
        ("Org/Demo", "model", sum(map(len, DEMO.values())), True), ("Org/Pirate", "adapter", sum(map(len, hub.repos["Org/Pirate"].files.values())), True)]
    text = good(run("models", env=env)).stdout.decode().splitlines()
    assert text[0].split() == ["model", "kind", "size", "changed"] and text[1].startswith("Org/Demo ") and " MB" in text[1]
    got = good(run("models", "rm", "Org/Demo", env=env))
    assert b"Org/Demo: removed, " in got.stderr and not repo_dir(home).exists() and repo_dir(home, "Org/Pirate").exists()
    assert [m["id"] for m in json.loads(run("models", "list", "--json", env=env).stdout)["models"]] == ["Org/Pirate"]


def test_models_are_not_removed(run, pull, hub, home, tmp_path):
    env = environment(hub, home)
    good(pull("Org/Demo"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    os.symlink(outside, repo_dir(home) / "snapshots" / "link")
    for name in ("Org/None", "../../x", "Org", "/", "", "Org/Demo/", "--x"):
        got = run("models", "rm", name, env=env)
        assert got.returncode in (1, 2) and repo_dir(home).exists(), name
    with open(home / "hub" / ".locks" / "models--Org--Demo" / (hashlib.sha256(WEIGHTS).hexdigest() + ".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        got = run("models", "rm", "Org/Demo", env=env)
        assert got.returncode == 1 and b"is being downloaded" in got.stderr and repo_dir(home).exists()
    good(run("models", "rm", "Org/Demo", env=env))
    assert (outside / "keep").exists() and not repo_dir(home).exists()


def test_a_revision_is_removed(run, pull, hub, home):
    """Its snapshot, the names that point at it, and the files that no other revision has."""
    env, one = environment(hub, home), hub.repos["Org/Pirate"]
    good(pull("Org/Pirate"))
    two = Repo({**one.files, "adapter_config.json": one.files["adapter_config.json"] + b"\n"})
    two.refs |= {one.commit: one.commit, "old/1": two.commit}
    hub.repos["Org/Pirate"] = two
    good(pull("Org/Pirate", "Org/Pirate@old/1"))
    repo = repo_dir(home, "Org/Pirate")
    weights, configs = one.etag("adapter_model.safetensors"), [r.etag("adapter_config.json") for r in (one, two)]
    assert len(os.listdir(repo / "snapshots")) == 2
    for name in ("Org/Pirate@none", "Org/None@main", "Org/Pirate@", "Org/Pirate@../x", "Org/Pirate@" + "0" * 40):
        got = run("models", "rm", name, env=env)
        assert got.returncode == 1 and len(os.listdir(repo / "snapshots")) == 2, name
    got = good(run("models", "rm", f"Org/Pirate@{one.commit}", env=env))
    assert f"Org/Pirate@{one.commit}: removed, {len(one.files['adapter_config.json'])} B".encode() in got.stderr, got.stderr
    assert os.listdir(repo / "snapshots") == [two.commit] and (repo / "refs" / "main").read_text() == two.commit
    assert not (repo / "blobs" / configs[0]).exists() and (repo / "blobs" / weights).exists() and (repo / "blobs" / configs[1]).exists()
    scan = python(hub, home, "from huggingface_hub import scan_cache_dir as s; c = s(); print(len(c.warnings), [len(r.revisions) for r in c.repos])")
    assert scan == "0 [1]"
    good(run("models", "rm", "Org/Pirate@old/1", env=env))
    assert not repo.exists()


def test_a_revision_with_others_branches(run, pull, hub, home):
    """Of two branches at different commits the removed one's name is gone, and the other's stays."""
    env, one = environment(hub, home), hub.repos["Org/Pirate"]
    good(pull("Org/Pirate"))
    two = Repo({**one.files, "adapter_config.json": one.files["adapter_config.json"] + b"\n"})
    two.refs |= {"dev": two.commit}
    hub.repos["Org/Pirate"] = two
    good(pull("Org/Pirate@dev"))
    good(run("models", "rm", "Org/Pirate@dev", env=env))
    repo = repo_dir(home, "Org/Pirate")
    assert os.listdir(repo / "snapshots") == [one.commit] and os.listdir(repo / "refs") == ["main"]
    assert good(run("generate", "--prompt", "x", "--max-new-tokens", 1, "--adapter", "Org/Pirate", env={**env, "HF_HUB_OFFLINE": "1"}))


# ---- POST /adapters --------------------------------------------------------------------------------------------------

def load(server, path, name="a", **kw):
    return server.post("/adapters", {"name": name, "path": path}, **kw)


def test_an_adapter_is_loaded_by_name(start, hub, home):
    """Downloaded while other requests run, then found in the cache; of a repository with more than an adapter nothing else comes."""
    hub.repos["Org/Both"] = Repo({**hub.repos["Org/Pirate"].files, "model.safetensors": WEIGHTS})
    with start(env=environment(hub, home)) as server:
        hub.slow = 0.05
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(load, server, "Org/Pirate", "pirate")
            assert hub.sending.wait(300)
            assert server.generate("Tom", max_new_tokens=4)["generated_text"] and not first.done()
            again = load(server, "Org/Both", "both")
            assert again.status_code == 429 and "another adapter is being downloaded" in again.text and again.headers["Retry-After"] == "1"
            hub.slow = 0
            assert first.result().status_code == 201, first.result().text
        assert server.generate("Tom", max_new_tokens=4, adapter_id="pirate")["generated_text"]
        requests = len(hub.requests)
        assert load(server, "Org/Pirate@main", "again").status_code == 201 and len(hub.requests) == requests
        assert load(server, "Org/Both", "both").status_code == 201
        snapshot = next((repo_dir(home, "Org/Both") / "snapshots").iterdir())
        assert sorted(os.listdir(snapshot)) == ["adapter_config.json", "adapter_model.safetensors"]
        answer = server.post("/v1/load_lora_adapter", {"lora_name": "vllm", "lora_path": "Org/Pirate"})
        assert answer.status_code == 200, answer.text


def test_a_model_and_an_adapter_in_one_repository(run, hub, home):
    """What is in the cache of one is not taken for the other."""
    env = environment(hub, home)
    for words in (("--adapter", "Org/Both"), ("--model", "Org/Both"), ("--adapter", "Org/Both", "--model", "Org/Both")):
        hub.repos["Org/Both"] = Repo({**DEMO, **hub.repos["Org/Pirate"].files})
        shutil.rmtree(repo_dir(home, "Org/Both"), ignore_errors=True)
        for first in (words, ("--model", "Org/Both"), ("--adapter", "Org/Both")):
            assert good(run("generate", "--prompt", "x", "--max-new-tokens", 1, *first, env=env)), (words, first)


def test_an_adapter_that_is_none(start, hub, home):
    """What is wrong is said as on the command line; nothing is downloaded of a model."""
    hub.repos["Org/Closed"] = Repo(hub.repos["Org/Pirate"].files, gated=True)
    with start(env=environment(hub, home)) as server:
        for path, status, says in (("Org/Demo", 422, "Org/Demo: not an adapter: adapter_config.json or"), ("Org/None", 404, "no such model on the hub"),
                                   ("Org/Closed", 404, "is gated"), ("a--b/c", 422, "a--b"), ("nowhere", 404, "is no directory within --adapter-dir"),
                                   ("models/demo-pirate", 404, "no such model"), ("../demo-pirate", 404, "is no directory within"),
                                   (str(ADAPTER), 404, "is no directory within"), ("https://example.com/a/b", 422, "example.com")):
            answer = load(server, path)
            assert answer.status_code == status and says in answer.text, (path, answer.status_code, answer.text)
        assert not hub.storage_requests
        hub.fail_with, hub.failing = 500, 100
        answer = load(server, "Org/Pirate")
        assert answer.status_code == 502 and "500" in answer.text, answer.text
        assert server.get("/health").status_code == 200
    with start(env=environment(hub, home, HF_HUB_OFFLINE="1")) as server:
        answer = load(server, "Org/Pirate")
        assert answer.status_code == 404 and "HF_HUB_OFFLINE is set, so nothing is downloaded" in answer.text


def test_only_operators_download(start, hub, home, tmp_path):
    keys = {role: new_key(tmp_path / "keys", role, role) for role in ("train", "admin")}
    with start("--api-keys", tmp_path / "keys", key=keys["admin"], env=environment(hub, home)) as server:
        answer = load(server, "Org/Pirate", headers={"Authorization": f"Bearer {keys['train']}"})
        assert answer.status_code == 404 and "is no directory within --adapter-dir" in answer.text and not hub.requests
        assert load(server, "Org/Pirate").status_code == 201


def test_a_download_ends_with_the_daemon(start, hub, home):
    """What came stays for the next time."""
    hub.slow = 0.2
    with ThreadPoolExecutor(1) as pool:
        with start(env=environment(hub, home)) as server:
            answer = pool.submit(load, server, "Org/Pirate")
            assert hub.sending.wait(300)
        assert answer.exception() or answer.result().status_code >= 500
    hub.slow = 0


def test_a_job_trains_on_a_data_set_of_the_hub(start, hub, home, tmp_path):
    """An operator's; a data set that is not there, or without the network, fails the job with the reason."""
    keys = {role: new_key(tmp_path / "keys", role, role) for role in ("train", "admin")}
    first, second = ("".join(json.dumps({"prompt": f"{i} is", "completion": f" {i}"}) + "\n" for i in part).encode() for part in (range(3), range(3, 6)))
    hub.repos["datasets/Org/Rows"] = Repo({"data/train-0.jsonl": first, "data/train-1.jsonl": second})
    body = {"dataset": {"path": "hf:Org/Rows"}, "hyperparameters": {"max_steps": 1, "max_length": 64}}

    def train(server, path, **kw):
        return server.post("/train", {**body, "dataset": {"path": path}}, **kw)

    def over(server, answer):
        assert answer.status_code == 202, answer.text
        return wait_for(lambda: (job := server.get(f"/train/{answer.json()['id']}").json())["finished_at"] and job, 60, "its end")

    with start("--api-keys", tmp_path / "keys", "--data-dir", tmp_path / "data", key=keys["admin"], env=environment(hub, home)) as server:
        answer = train(server, "hf:Org/Rows", headers={"Authorization": f"Bearer {keys['train']}"})
        assert answer.status_code == 403 and "role admin" in answer.json()["error"] and not hub.requests
        answer = train(server, "hf:rows")
        assert answer.status_code == 422 and "is named hf:ORG/NAME" in answer.json()["error"], answer.text
        job = over(server, train(server, "hf:Org/Rows"))
        assert job["status"] == "succeeded" and job["dataset"]["path"] == "hf:Org/Rows" and job["report"]["rows"] == 6, job
        job = over(server, train(server, "hf:Org/Nothing"))
        assert job["status"] == "failed" and "Org/Nothing" in job["error"]["message"], job
    with start("--data-dir", tmp_path / "data", env=environment(hub, tmp_path / "empty", HF_HUB_OFFLINE="1")) as server:
        job = over(server, train(server, "hf:Org/Rows"))
        assert job["status"] == "failed" and "HF_HUB_OFFLINE" in job["error"]["message"], job


# ---- refused, broken, hostile ----------------------------------------------------------------------------------------

def listing(change):
    def edit(hub):
        hub.change_listing = change
    return edit


def first(**fields):
    return listing(lambda files: [{**files[0], **fields}, *files[1:]])


def lfs(**fields):
    return listing(lambda files: [{**f, "lfs": {**f["lfs"], **fields}} if "lfs" in f else f for f in files])


def raw(text):
    def edit(hub):
        hub.raw = text
    return edit


def serving(change):
    def edit(hub):
        hub.served = change
    return edit


def files(name, **content):
    def edit(hub):
        hub.repos["Org/Demo"] = Repo({k: v for k, v in {**DEMO, **content.get("add", {})}.items() if k not in content.get("without", ())})
    return edit


def setting(**values):
    def edit(hub):
        for k, v in values.items():
            setattr(hub, k, v)
    return edit


BROKEN = {
    "no such model": ("Org/None", None, {}, "no such directory, and no such model on the hub"),
    "no such model, with a token": ("Org/None", None, {"HF_TOKEN": "hf_right"}, "the token of HF_TOKEN has no access"),
    "no such revision": ("Org/Demo@v9", None, {}, "Org/Demo has no revision v9"),
    "gated": ("Org/Gated", None, {}, "Org/Gated is gated: its conditions are accepted on"),
    "private": ("Org/Private", None, {}, "or it is private; no token is set"),
    "a wrong token": ("Org/Demo", None, {"HF_TOKEN": "hf_wrong"}, "the hub does not take the token of HF_TOKEN"),
    "offline": ("Org/Demo", None, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
    "no hub": ("Org/Demo", None, {"HF_ENDPOINT": "http://127.0.0.1:1"}, "http://127.0.0.1:1: "),
    "no host": ("Org/Demo", None, {"HF_ENDPOINT": "http://no-such-host.invalid"}, "no-such-host.invalid"),
    "an endpoint that is no URL": ("Org/Demo", None, {"HF_ENDPOINT": "file:///etc"}, "Org/Demo: "),
    "5xx for ever": ("Org/Demo", setting(failing=100), {}, "the hub answered 503"),
    "429 for ever": ("Org/Demo", setting(failing=100, fail_with=429), {}, "too many requests"),
    "storage fails for ever": ("Org/Demo", setting(storage_failing=100, storage_fail_with=403), {}, "the hub's storage answered 403"),
    "no JSON": ("Org/Demo", raw(b"<html>"), {}, "Org/Demo: what the hub says of it: malformed JSON"),
    "JSON that ends": ("Org/Demo", raw(b'{"sha":"'), {}, "malformed JSON"),
    "nothing": ("Org/Demo", raw(b""), {}, "Org/Demo: what the hub says of it"),
    "an array": ("Org/Demo", raw(b"[]"), {}, "expected an object"),
    "no commit": ("Org/Demo", raw(b'{"siblings":[]}'), {}, "sha: expected 40 hexadecimal digits"),
    "a commit that leads out": ("Org/Demo", raw(b'{"sha":"../../../../tmp/x","siblings":[]}'), {}, "sha: expected 40 hexadecimal digits"),
    "no files": ("Org/Demo", raw(b'{"sha":"0123456789abcdef0123456789abcdef01234567"}'), {}, "siblings is missing"),
    "deep JSON": ("Org/Demo", raw(b"[" * 100000), {}, "what the hub says of it"),
    "endless JSON": ("Org/Demo", raw(b'{"sha":"' + b"x" * (65 << 20)), {}, "an answer of more than 64 MiB"),
    "too many files": ("Org/Demo", raw(b'{"sha":"' + b"0" * 40 + b'","siblings":[' + b",".join([b'{"rfilename":"a"}'] * 100001) + b"]}"), {}, "100001 files; at most"),
    "a name that leads out": ("Org/Demo", first(rfilename="../../../evil.json"), {}, 'siblings[0].rfilename: "../../../evil.json" is no name of a file'),
    "an absolute name": ("Org/Demo", first(rfilename="/tmp/evil.json"), {}, "is no name of a file"),
    "a name with a NUL": ("Org/Demo", raw(b'{"sha":"' + b"0" * 40 + b'","siblings":[{"rfilename":"a\\u0000b"}]}'), {}, "what the hub says of it"),
    "no name": ("Org/Demo", first(rfilename=None), {}, "siblings[0].rfilename is missing"),
    "a negative size": ("Org/Demo", first(size=-1), {}, "siblings[0].size"),
    "a size of 2^60": ("Org/Demo", lfs(size=2**60), {}, ".lfs.size"),
    "a digest that is a path": ("Org/Demo", first(blobId="../../x"), {}, "siblings[0].blobId: expected 40"),
    "a sha256 that is short": ("Org/Demo", lfs(sha256="ab"), {}, ".lfs.sha256: expected 64"),
    "lfs is a number": ("Org/Demo", lambda hub: setattr(hub, "change_listing", lambda f: [{**f[0], "lfs": 3}, *f[1:]]), {}, "siblings[0].lfs"),
    "larger than the disk": ("Org/Demo", lfs(size=2**45), {}, "its files need 35.2 TB, and "),
    "a wrong checksum": ("Org/Demo", serving(lambda name, data: b"x" + data[1:]), {}, "damaged twice: its checksum is "),
    "a pointer for a file": ("Org/Demo", serving(lambda name, data: b"version https://git-lfs.github.com/spec/v1\n" if name == "model.safetensors" else data), {},
                             "what is served is a git-lfs pointer"),
    "more than listed": ("Org/Demo", serving(lambda name, data: data + b"x"), {}, "more than the "),
    "always broken": ("Org/Demo", setting(break_after=1000, breaks=10**9, ignore_ranges=True), {}, "the connection ended before the file did"),
    "another range": ("Org/Demo", setting(break_after=1000, breaks=1, range_shift=7), {}, "bytes from 1007 instead of 1000"),
    "pickles only": ("Org/Demo", files("x", without=["model.safetensors"], add={"pytorch_model.bin": b"x"}), {}, "PyTorch's pickles only"),
    "no weights": ("Org/Demo", files("x", without=["model.safetensors"]), {}, "neither safetensors nor a GGUF file"),
    "an index of nothing": ("Org/Demo", files("x", without=["model.safetensors"], add={"model.safetensors.index.json": b"{}"}), {}, "weight_map is missing"),
    "an index that leads out": ("Org/Demo", files("x", without=["model.safetensors"], add={"model.safetensors.index.json": b'{"weight_map":{"a":"../../x"}}'}), {},
                                "weight_map.a: ../../x is no file of the repository"),
    "an index that is no JSON": ("Org/Demo", files("x", without=["model.safetensors"], add={"model.safetensors.index.json": b"{"}), {}, "model.safetensors.index.json"),
    "a part that is missing": ("Org/G:Q4_0", lambda hub: hub.repos.update({"Org/G": Repo({"m-Q4_0-00001-of-00002.gguf": b"x"})}), {}, "1 of its 2 parts"),
    "a name of one word": ("gpt2", None, {}, "is named ORG/NAME; this one is openai-community/gpt2"),
    "a URL of another site": ("https://example.com/Org/Demo", None, {}, "not one of the Hugging Face hub"),
}


PATIENT = ("429 for ever", "storage fails for ever", "always broken")  # wait between tries, as "5xx for ever" does


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.full) if case in PATIENT else case for case in BROKEN])
def test_broken(run, hub, home, case):
    name, edit, env, says = BROKEN[case]
    if edit:
        edit(hub)
    got = run("pull", name, env=environment(hub, home, **env))
    text = got.stderr.decode()
    assert got.returncode == 1 and says in text and text.count("tandem: ") == 1, text
    assert not got.stdout and not (home.parent / "evil.json").exists()
    refs = repo_dir(home) / "refs"
    assert not refs.exists()  # nothing finds what is not whole


@pytest.mark.parametrize("change, says", [
    ({"config.json": json.dumps({**json.loads(DEMO["config.json"]), "model_type": "mamba"}).encode()}, 'config.json: model_type "mamba" is not one of'),
    ({"config.json": DEMO["config.json"].replace(b"rope_theta", b"x").replace(b"{", b'{"quantization_config":{"quant_method":"hqq"},', 1)}, '"hqq"'),
    ({"config.json": None}, "config.json is missing"),
    ({"tokenizer.json": None, "tokenizer.model": b"x"}, "tokenizer.json is missing, and tokenizer.model is not read; transformers makes"),
    ({"tokenizer.json": b'{"model":{"type":"Magic"}}'}, 'type "Magic"'),
], ids=["family", "quantisation", "no config", "SentencePiece alone", "tokenizer"])
def test_a_model_that_cannot_be_opened_is_not_downloaded(run, hub, home, change, says):
    """The reason is there before the weights are asked for, and the next time again."""
    hub.repos["Org/Demo"] = Repo({k: v for k, v in {**DEMO, **change}.items() if v is not None})
    for words in (["pull", "Org/Demo"], ["generate", "--model", "Org/Demo", "--prompt", "x"]):
        got = run(*words, env=environment(hub, home))
        text = got.stderr.decode()
        assert got.returncode == 1 and "Org/Demo: " in text and says in text and text.count("tandem: ") == 1, text
        assert not hub.storage_requests and not (repo_dir(home) / "refs").exists()


def test_a_cache_that_cannot_be_written(run, hub, tmp_path):
    (tmp_path / "file").write_text("")
    got = run("pull", "Org/Demo", env=environment(hub, tmp_path, HF_HUB_CACHE=str(tmp_path / "file" / "hub")))
    assert got.returncode == 1 and b"file/hub" in got.stderr


@pytest.mark.full
def test_stalled(run, hub, home):
    hub.slow = 6
    process = subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **environment(hub, home, HF_HUB_DOWNLOAD_TIMEOUT="1")}, stderr=subprocess.PIPE)
    wait_for(lambda: len([r for r in hub.ranges if r]) >= 1, 20, "a second request")
    hub.slow = 0
    assert process.wait(300) == 0


def test_progress_on_a_terminal(hub, home):
    hub.slow = 0.01
    ours, theirs = os.openpty()
    process = subprocess.Popen([BINARY, "pull", "Org/Demo"], env={**ENV, **environment(hub, home)}, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # Linux says so when the other end is closed
        pass
    assert process.wait(300) == 0 and text.count(b"\r\x1b[K") > 2
    assert b"/s, 0:0" in text and b" left" in text and text.rstrip().endswith(b" s") and b"7.1" in text, text


def test_rows_of_a_data_set(run, hub, tmp_path):
    """tandem train --data hf:ORG/NAME: the rows to train on, in the cache where huggingface_hub has them."""
    def lines(first, n):
        return "".join(json.dumps({"prompt": f"{i} is", "completion": f" {i}"}) + "\n" for i in range(first, first + n)).encode()
    hub.repos["datasets/Org/Rows"] = Repo({"data/train-0.jsonl": lines(0, 5), "data/train-1.jsonl.gz": gzip.compress(lines(5, 4)), "test.jsonl": lines(9, 2),
                                           "dataset_infos.json": b"{}", "README.md": b"# Rows"})
    hub.repos["datasets/Org/Columns"] = Repo({"data/train.parquet": b"PAR1"})
    small = ["train", "--model", ROOT / "tests/fixtures/models/tinystories-656k", "--max-steps", 1, "--max-length", 64, "--out", tmp_path / "out", "--data"]
    env = environment(hub, tmp_path / "home")
    offline = {**env, "HF_HUB_OFFLINE": "1"}
    got = run(*small, "hf:Org/Rows", env=env)
    assert got.returncode == 0 and b" and 1 more: completion, 9 rows" in got.stderr, got.stderr
    repo = tmp_path / "home/hub/datasets--Org--Rows"
    snapshot = repo / "snapshots" / hub.repos["datasets/Org/Rows"].commit
    assert (repo / "refs/main").read_text() == snapshot.name
    assert sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*.*")) == ["data/train-0.jsonl", "data/train-1.jsonl.gz"]
    shutil.rmtree(tmp_path / "out")
    asked = len(hub.requests)
    got = run(*small, "hf:datasets/Org/Rows@main:data/train-0.jsonl", env=env)  # in the cache: the hub is not asked
    assert got.returncode == 0 and b"5 rows" in got.stderr and len(hub.requests) == asked, got.stderr
    shutil.rmtree(tmp_path / "out")
    got = run(*small, "hf://datasets/Org/Rows", env=offline)
    assert got.returncode == 0 and b"9 rows" in got.stderr, got.stderr
    for name, where, says in [("hf:Org/Rows:*.txt", env, "no file is called *.txt"), ("hf:Org/Columns", env, "datasets.load_dataset"), ("hf:rows", env, "is named hf:ORG/NAME"),
                              ("hf:Org/Rows:test.jsonl", offline, "no file is called test.jsonl"), ("hf:Org/Rows:../x", env, "is no file of a repository")]:
        got = run(*small, name, env=where)
        assert got.returncode == 1 and says in got.stderr.decode(), (name, got.stderr)


def test_a_download_holds_up_no_other_model(start, hub, home):
    """With --models: others are loaded meanwhile; a model that could not be loaded is not downloaded; and the end does not wait."""
    bad = json.loads(DEMO["config.json"])
    hub.repos["Org/Bad"] = Repo({**DEMO, "config.json": json.dumps({**bad, "hidden_size": -5}).encode()})
    hub.slow = 2
    with start("--models", f"near={MODEL},far=Org/Demo,bad=Org/Bad,split=Org/Split", model=None,
               env=environment(hub, home, HF_HUB_DOWNLOAD_TIMEOUT="60")) as s, ThreadPoolExecutor(2) as pool:
        def ask(model):
            return s.post("/v1/completions", {"model": model, "prompt": "Once", "max_tokens": 4})

        def state(model):
            return s.get("/v1/models/" + model).json()["state"]

        far = pool.submit(ask, "far")
        assert hub.sending.wait(300)
        assert state("far") == "loading"
        assert ask("near").status_code == 200 and not far.done()
        assert s.post("/models/unload", {"model": "near"}).status_code == 200
        hub.slow = 0
        assert far.result().status_code == 200 and state("far") == "loaded"
        n = len(hub.storage_requests)
        refused = ask("bad")
        assert refused.status_code == 503 and "hidden_size" in refused.json()["error"]["message"]
        assert len(hub.storage_requests) == n, "its weights were not asked for"
        hub.slow = 2
        hub.sending.clear()
        split = pool.submit(ask, "split")
        assert hub.sending.wait(300)
        s.process.send_signal(signal.SIGTERM)
        assert split.result().status_code == 503
        hub.slow = 0
