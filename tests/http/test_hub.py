"""Models and adapters by their names on the Hugging Face hub, from the cache that huggingface_hub also uses."""
import json
import os
import shutil

import pytest
from conftest import MODEL, ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADAPTER = ROOT / "models" / "demo-pirate"


def put(cache, name, source, commit=COMMIT, ref="main", skip=()):
    """A repository in the cache, as huggingface_hub lays it out."""
    repo = cache / ("models--" + name.replace("/", "--"))
    snapshot = repo / "snapshots" / commit
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    snapshot.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix in (".json", ".safetensors") and path.name not in skip:
            shutil.copy(path, repo / "blobs" / f"blob-{path.name}")
            os.symlink(f"../../blobs/blob-{path.name}", snapshot / path.name)
    (repo / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / ref).write_text(commit)
    return snapshot


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """HF_HOME with a model and an adapter."""
    folder = tmp_path_factory.mktemp("hf")
    put(folder / "hub", "Org/Demo", MODEL)
    put(folder / "hub", "Org/Demo-Pirate", ADAPTER)
    put(folder / "hub", "Org/NoWeights", MODEL, skip=["model.safetensors"])
    return folder


def offline(home, **more):
    return {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", **more}


def test_every_command_opens_a_model_by_name(run, home, tmp_path):
    env = offline(home)
    wanted = json.loads(run("generate", "--prompt", "Once", "--max-new-tokens", 8, "--json", "--model", MODEL).stdout)
    got = run("generate", "--prompt", "Once", "--max-new-tokens", 8, "--json", "--model", "Org/Demo", env=env)
    assert got.returncode == 0 and json.loads(got.stdout)["text"] == wanted["text"], got.stderr
    for words in (["tokenize", "--text", "a"], ["perplexity", "--file", "/dev/null"], ["quantize", "--out", tmp_path / "q"],
                  ["chat", "--adapter", "Org/Demo-Pirate", "--max-new-tokens", 2], ["bench", "--batch", 1, "--repeat", 1, "--generate-tokens", 2]):
        got = run(*words, "--model", "Org/Demo@main", env=env, input=b"hello\n" if words[0] == "chat" else None)
        assert got.returncode == (words[0] == "perplexity"), got.stderr  # of an empty text
        assert b"directory" not in got.stderr
    assert (tmp_path / "q" / "model.safetensors").exists()


def test_where_the_cache_is(run, home, tmp_path):
    xdg, link = tmp_path / "xdg", tmp_path / "home"
    xdg.mkdir()
    os.symlink(home, xdg / "huggingface")
    link.mkdir()
    os.symlink(xdg, link / ".cache")
    for env in ({"HF_HUB_CACHE": str(home / "hub")}, {"HUGGINGFACE_HUB_CACHE": str(home / "hub")}, {"HF_HOME": "", "XDG_CACHE_HOME": str(xdg)},
                {"HF_HOME": "", "XDG_CACHE_HOME": "", "HOME": str(link)}, {"HF_HOME": "~/.cache/huggingface", "HOME": str(link)}):
        got = run("tokenize", "--text", "a", "--model", "Org/Demo", env={"HF_HUB_OFFLINE": "yes", **env})
        assert got.returncode == 0, (env, got.stderr)


def test_a_directory_of_that_name_wins(run, home, tmp_path):
    (tmp_path / "Org" / "Demo").mkdir(parents=True)
    got = run("tokenize", "--text", "a", "--model", "Org/Demo", env=offline(home), cwd=tmp_path)
    assert got.returncode == 1 and b"tokenizer.json is missing" in got.stderr


def test_a_name_of_one_word(run, home):
    put(home / "hub", "gpt9", MODEL)
    assert run("tokenize", "--text", "a", "--model", "gpt9", env=offline(home)).returncode == 0
    got = run("tokenize", "--text", "a", "--model", "gpt8", env=offline(home))
    assert got.returncode == 1 and b"gpt8: no such directory" in got.stderr and b"or ORG/NAME on the Hugging Face hub" in got.stderr


def test_blobs_that_repositories_share(run, home):
    """huggingface_hub links blobs of Xet files into CACHE/blobs (utils/_shared_blobs.py)."""
    snapshot = put(home / "hub", "Org/Shared", MODEL)
    blob, store = (snapshot / "model.safetensors").resolve(), home / "hub" / "blobs" / "ab" / ("ab" * 32)
    store.parent.mkdir(parents=True)
    blob.rename(store)
    os.symlink(f"../../blobs/ab/{store.name}", blob)
    assert run("generate", "--prompt", "a", "--max-new-tokens", 2, "--model", "Org/Shared", env=offline(home)).returncode == 0
    listed = {m["id"]: m for m in json.loads(run("models", "--json", env=offline(home)).stdout)["models"]}
    assert listed["Org/Shared"]["complete"] and listed["Org/Shared"]["bytes"] > store.stat().st_size
    assert run("models", "rm", "Org/Shared", env=offline(home)).returncode == 0
    assert store.exists() and not snapshot.exists()


def test_a_snapshot_without_weights(run, home):
    assert run("tokenize", "--text", "a", "--model", "Org/NoWeights", env=offline(home)).returncode == 0
    got = run("generate", "--prompt", "a", "--model", "Org/NoWeights", env=offline(home))
    assert got.returncode == 1 and b"neither model.safetensors nor" in got.stderr


def test_serve_by_name(start, home):
    with start("--adapters", "pirate=Org/Demo-Pirate", model="Org/Demo", env=offline(home)) as server:
        assert server.get("/info").json()["model_id"] == "Org/Demo"
        models = [m["id"] for m in server.get("/v1/models").json()["data"]]
        assert models == ["Org/Demo", "pirate"]
        got = server.post("/v1/completions", {"model": "Org/Demo", "prompt": "Once", "max_tokens": 4}).json()
        assert got["model"] == "Org/Demo" and got["choices"][0]["text"]
        assert server.post("/generate", {"inputs": "Ahoy", "parameters": {"adapter_id": "pirate", "max_new_tokens": 4}}).status_code == 200


def test_a_trained_adapter_names_its_base_as_the_hub_does(run, home, tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt":"Hello","completion":" Ahoy"}\n' * 2)
    got = run("train", "--model", "Org/Demo", "--from", "Org/Demo-Pirate", "--data", data, "--out", tmp_path / "a", "--max-steps", 1, "--keep-duplicates", env=offline(home))
    assert got.returncode == 0, got.stderr
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["base_model_name_or_path"] == "Org/Demo"


@pytest.mark.parametrize("name, says", [
    ("Org/None", "Org/None: no such directory, and it is not in the cache"),
    ("Org/Demo@v2", "not in the cache"),
    ("Org/Demo:Q4_K_M", "such a GGUF file is not in the cache"),
    ("Org/Demo@../../x", "the revision is not a branch, a tag or a commit"),
    ("Org/--x", "no such directory"),
    ("Org/a--b", "it has --"),
])
def test_not_in_the_cache(run, home, name, says):
    got = run("tokenize", "--text", "a", "--model", name, env=offline(home))
    assert got.returncode == 1 and says in got.stderr.decode(), got.stderr
