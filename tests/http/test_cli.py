"""The command line: tandem generate, tokenize, perplexity, quantize, and help."""
import json
import math
import os

import pytest
import yaml
from conftest import DEMO, MODEL, ROOT

COMMANDS = ["serve", "chat", "generate", "tokenize", "perplexity", "eval", "train", "quantize", "bench"]
HELD_OUT = DEMO / "heldout.txt"


def ok(result):
    assert result.returncode == 0, result.stderr.decode()
    return result.stdout.decode()


# ---- help and mistakes -----------------------------------------------------------------------------------------------

def test_help(run):
    for words in (["help"], ["--help"], ["-h"]):
        text = ok(run(*words))
        assert all(f"\n  {name} " in text for name in COMMANDS)
    assert ok(run("version")).startswith("tandem ") and ok(run("--version")) == ok(run("version"))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(run, command):
    for flag in ("--help", "-h"):
        text = ok(run(command, flag))
        assert text.startswith(f"usage: tandem {command} ") and "--model DIR" in text and "default models/demo" in text
        assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("words, says", [
    ([], "usage: tandem COMMAND"),
    (["sevre"], "unknown command 'sevre'"),
    (["serve", "--prot", "1"], "did you mean --port"),
    (["serve", "--port", "99999"], "--port: 99999 is not between 0 and 65535"),
    (["serve", "extra"], "unexpected argument 'extra'"),
    (["serve", "models/demo"], "unexpected argument 'models/demo'; a model is given as --model models/demo"),
    (["serve", "--config", "/no/such.yaml"], "/no/such.yaml"),
    (["generate"], "--prompt is missing"),
    (["generate", "--prompt"], "--prompt needs a value"),
    (["generate", "--prompt", "a", "--top-p", "2"], "--top-p"),
    (["tokenize", "--text", "a", "--ids", "1"], "one of --text"),
    (["perplexity"], "--file is missing"),
    (["perplexity", "--file", "x", "--kl"], "--kl needs --quantize"),
    (["eval"], "--data is missing"),
    (["quantize"], "--out is missing"),
])
def test_called_wrongly(run, words, says):
    got = run(*words)
    assert got.returncode == 2 and says in got.stderr.decode() and not got.stdout


@pytest.mark.parametrize("words", [["generate", "--prompt", "a"], ["chat"], ["tokenize", "--text", "a"], ["perplexity", "--file", "/dev/null"], ["quantize", "--out", "/tmp/no"]])
def test_no_such_model(run, words):
    got = run(*words, "--model", "no/such/model")
    assert got.returncode == 1 and b"no/such/model" in got.stderr


@pytest.mark.parametrize("model, says", [
    ("models/demo/model.gguf", "no such directory"),
    ("Qwen/Qwen3-0.6B", "no such directory, and it is not in the cache of the Hugging Face hub"),
    ("https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B: no such directory"),
    ("https://example.com/model", "a URL that is not one of the Hugging Face hub"),
    ("models/demo/config.json", "a file, not a directory"),
])
@pytest.mark.parametrize("words", [["generate", "--prompt", "a"], ["tokenize", "--text", "a"]])
def test_what_is_no_model_directory(run, words, model, says):
    got = run(*words, "--model", model)
    assert got.returncode == 1 and says in got.stderr.decode()


@pytest.mark.parametrize("words", [["serve"], ["generate", "--prompt", "a"], ["tokenize", "--text", "a"]])
def test_no_model_outside_the_repository(run, tmp_path, words):
    got = run(*words, cwd=tmp_path)
    text = got.stderr.decode()
    assert got.returncode == 2 and "no --model is given" in text and "--model DIR" in text, text


# ---- generate --------------------------------------------------------------------------------------------------------

def generate(run, *args):
    return json.loads(ok(run("generate", "--model", MODEL, "--json", *args)))


@pytest.mark.smoke
def test_generate(run):
    text = ok(run("generate", "--model", MODEL, "--prompt", "Once upon a time", "--max-new-tokens", 20))
    got = generate(run, "--prompt", "Once upon a time", "--max-new-tokens", 20)
    assert text == got["text"] + "\n"
    assert got["finish_reason"] == "length" and got["generated_tokens"] == 20 == len(got["tokens"]) and got["seed"] is None
    assert "".join(t["text"] for t in got["tokens"]) == got["text"]
    assert math.isclose(got["mean_logprob"], sum(t["logprob"] for t in got["tokens"]) / 20, rel_tol=1e-4)
    assert got["timings"]["generated_tokens_per_second"] > 0


def test_generate_from_stdin_equals_flag(run):
    a = ok(run("generate", "--model", MODEL, "--prompt", "-", "--max-new-tokens", 10, input=b"A little dog"))
    assert a == ok(run("generate", "--model", MODEL, "--prompt", "A little dog", "--max-new-tokens", 10))


def test_generate_options(run):
    first = generate(run, "--prompt", "Once", "--temperature", 1.2, "--top-k", 40, "--seed", 5, "--max-new-tokens", 12)
    again = generate(run, "--prompt", "Once", "--temperature=1.2", "--top-k=40", "--seed=5", "--max-new-tokens=12")
    assert first["text"] == again["text"] and first["seed"] == 5
    unseeded = generate(run, "--prompt", "Once", "--temperature", 1.2, "--max-new-tokens", 12)
    replay = generate(run, "--prompt", "Once", "--temperature", 1.2, "--max-new-tokens", 12, "--seed", unseeded["seed"])
    assert unseeded["text"] == replay["text"]
    top = generate(run, "--prompt", "Once", "--top-n", 3, "--max-new-tokens", 2)["tokens"]
    assert [len(t["top"]) for t in top] == [3, 3] and top[0]["top"][0]["id"] == top[0]["id"]
    stopped = generate(run, "--prompt", "Once upon a time", "--stop", "zzz", "--stop", " was")
    assert stopped["finish_reason"] == "stop_sequence" and stopped["text"].endswith(" was")


def test_generate_as_the_server_does(run, server):
    for weights in ("none",):
        got = generate(run, "--prompt", "The little girl", "--max-new-tokens", 30, "--quantize", weights)
        assert got["text"] == server.generate("The little girl", max_new_tokens=30)["generated_text"]


def test_generate_prompt_too_long(run):
    got = run("generate", "--model", MODEL, "--prompt", "word " * 3000)
    assert got.returncode == 1 and b"tokens" in got.stderr


# ---- tokenize --------------------------------------------------------------------------------------------------------

def test_tokenize(run, tmp_path):
    text = "Once upon a time, Ünï 😀"
    file = tmp_path / "t.txt"
    file.write_text(text)
    got = json.loads(ok(run("tokenize", "--model", MODEL, "--text", text, "--json")))
    assert got["count"] == len(got["ids"]) == len(got["tokens"])
    assert json.loads(ok(run("tokenize", "--model", MODEL, "--file", file, "--json"))) == got
    assert json.loads(ok(run("tokenize", "--model", MODEL, "--json", input=text.encode()))) == got
    ids = ",".join(map(str, got["ids"]))
    assert text in ok(run("tokenize", "--model", MODEL, "--ids", ids))
    assert text in json.loads(ok(run("tokenize", "--model", MODEL, "--ids", "-", "--json", input=json.dumps(got["ids"]).encode())))["text"]
    assert len(ok(run("tokenize", "--model", MODEL, "--text", text)).splitlines()) == got["count"]


def test_tokenize_bad_ids(run):
    for ids in ("1,x", "-1", "99999999", "1e3"):
        got = run("tokenize", "--model", MODEL, "--ids", ids)
        assert got.returncode == 1 and b"--ids" in got.stderr


# ---- perplexity ------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def text(tmp_path_factory):
    if not HELD_OUT.exists():
        pytest.skip("no held-out text")
    file = tmp_path_factory.mktemp("text") / "t.txt"
    file.write_text(HELD_OUT.read_text()[:6000])
    return file


def perplexity(run, *args):
    return json.loads(ok(run("perplexity", "--model", MODEL, "--json", *args)))


def test_perplexity(run, text):
    got = perplexity(run, "--file", text)
    assert 1 < got["perplexity"] < 60 and 0 < got["perplexity_error"] < got["perplexity"] / 4
    assert got["tokens"] - 1 <= got["scored_tokens"] <= got["tokens"]
    assert math.isclose(got["mean_nll"], math.log(got["perplexity"]), rel_tol=1e-5)
    plain = ok(run("perplexity", "--model", MODEL, "--file", text))
    assert plain.startswith(f"perplexity       {got['perplexity']:.4f} ± ")


def test_every_token_is_scored_once_whatever_the_window(run, text):
    counts, values = set(), []
    for window in (8, 33, 64, 512):
        got = perplexity(run, "--file", text, "--window", window)
        counts.add(got["scored_tokens"])
        values.append(got["perplexity"])
    assert len(counts) == 1
    assert values[0] > values[2] > values[3] * 0.98  # more context, better


@pytest.mark.full
def test_kl_of_quantising(run, text):
    got = {w: perplexity(run, "--file", text, "--quantize", w, "--kl") for w in ("int8", "int4")}
    for g in got.values():
        assert g["kl_divergence"] > 0 and g["kl_divergence_error"] > 0 and 0.5 < g["top1_agreement"] <= 1
        assert 0.8 < g["perplexity_ratio"] < 1.6
    assert got["int8"]["kl_divergence"] < 0.02 < 1 and got["int8"]["kl_divergence"] < got["int4"]["kl_divergence"]
    assert got["int8"]["top1_agreement"] > 0.95


def test_perplexity_mistakes(run, text, tmp_path):
    (tmp_path / "empty").write_text("")
    for args, says in ((["--file", tmp_path / "none"], b"none"), (["--file", tmp_path / "empty"], b"too short"),
                       (["--file", text, "--window", 100000], b"--window")):
        got = run("perplexity", "--model", MODEL, *args)
        assert got.returncode == 1 and says in got.stderr


# ---- quantize --------------------------------------------------------------------------------------------------------

@pytest.mark.full
@pytest.mark.parametrize("weights", ["int8", "int4", "nf4"])
def test_quantize_then_load(run, tmp_path, weights):
    out = tmp_path / "q"
    ok(run("quantize", "--model", MODEL, "--out", out, "--type", weights))
    args = ["--prompt", "Once upon a time", "--max-new-tokens", 20]
    from_file = json.loads(ok(run("generate", "--model", out, "--json", *args)))
    at_load = generate(run, *args, "--quantize", weights)
    assert from_file["text"] == at_load["text"]
    again = run("quantize", "--model", MODEL, "--out", out, "--type", weights)
    assert again.returncode == 1 and str(out).encode() in again.stderr


def test_nf4_is_not_calibrated(run, tmp_path):
    got = run("quantize", "--model", MODEL, "--out", tmp_path / "q", "--type", "nf4", "--calibrate", "self")
    assert got.returncode == 1 and b"--calibrate" in got.stderr and not (tmp_path / "q").exists()


@pytest.mark.full
def test_quantize_calibrated(run, tmp_path):
    """A text changes the weights, and not for the worse: another part of the same kind of text is predicted well."""
    stories = (MODEL / "heldout.txt").read_text().split("<|endoftext|>")
    text, other = tmp_path / "text.txt", tmp_path / "other.txt"
    text.write_text("<|endoftext|>".join(stories[:30]))
    other.write_text("<|endoftext|>".join(stories[30:40]))
    ok(run("quantize", "--model", MODEL, "--out", tmp_path / "q", "--type", "int4", "--calibrate", text))
    ok(run("quantize", "--model", MODEL, "--out", tmp_path / "self", "--type", "int4", "--calibrate", "self"))
    assert (tmp_path / "q/model.safetensors").read_bytes() != (tmp_path / "self/model.safetensors").read_bytes()
    full = json.loads(ok(run("perplexity", "--model", MODEL, "--file", other, "--json")))["perplexity"]
    for d in ("q", "self"):
        got = json.loads(ok(run("perplexity", "--model", tmp_path / d, "--file", other, "--json")))["perplexity"]
        assert got < full * 1.04


def test_experts_that_no_token_chose(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("ab")
    got = run("quantize", "--model", ROOT / "tests/fixtures/models/olmoe", "--out", tmp_path / "q", "--type", "int4", "--calibrate", text)
    ok(got)
    assert b" of 16 experts saw no token of the text and are rounded without calibration" in got.stderr
    assert "text" in json.loads(ok(run("generate", "--model", tmp_path / "q", "--prompt", "a", "--max-new-tokens", 4, "--json")))


@pytest.mark.parametrize("text, says", [(None, "No such file"), ("", "0 tokens")])
def test_quantize_with_a_bad_text(run, tmp_path, text, says):
    file = tmp_path / "text.txt"
    if text is not None:
        file.write_text(text)
    got = run("quantize", "--model", MODEL, "--out", tmp_path / "q", "--type", "int4", "--calibrate", file)
    assert got.returncode == 1 and says in got.stderr.decode()
    assert not (tmp_path / "q" / "model.safetensors").exists()


def test_perplexity_is_what_the_server_reports(run, server, tmp_path):
    """The log probabilities of a prompt, by two ways through the engine."""
    text = "Once upon a time there was a little dog. He liked to play in the park with his friends."
    file = tmp_path / "t.txt"
    file.write_text(text)
    prefill = server.generate(text, max_new_tokens=1, decoder_input_details=True)["details"]["prefill"]
    logprobs = [t["logprob"] for t in prefill if t["logprob"] is not None]
    got = perplexity(run, "--file", file)
    assert got["scored_tokens"] == len(logprobs)
    assert math.isclose(got["mean_nll"], -sum(logprobs) / len(logprobs), rel_tol=1e-3)


def test_variables_that_have_no_effect(run):
    """What Kubernetes puts into a container beside a Service called tandem, and a slip of the pen."""
    done = run("tokenize", "--model", MODEL, "--text", "Hi", env={"TANDEM_PORT": "tcp://10.96.0.7:80", "TANDEM_SERVICE_HOST": "10.96.0.7", "TANDEM_PROT": "1"})
    assert done.returncode == 0
    warned = [line for line in done.stderr.decode().splitlines() if "level=warn" in line]
    assert len(warned) == 2 and "did you mean TANDEM_PORT" in "".join(warned) and "enableServiceLinks" in "".join(warned)


def service_links():
    """What kubelet puts into a container of the namespace where the manifests' Services are, at 10.96.0.7
    (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables)."""
    env, at = {}, "10.96.0.7"
    for service in (d for d in yaml.safe_load_all((ROOT / "conf/kubernetes/tandem.yaml").read_text()) if d["kind"] == "Service"):
        name = service["metadata"]["name"].upper().replace("-", "_")
        ports = service["spec"]["ports"]
        env |= {f"{name}_SERVICE_HOST": at, f"{name}_SERVICE_PORT": str(ports[0]["port"]), f"{name}_PORT": f"tcp://{at}:{ports[0]['port']}"}
        for p in ports:
            kind, number = p.get("protocol", "TCP"), p["port"]
            link = f"{name}_PORT_{number}_{kind}"
            env |= {f"{name}_SERVICE_PORT_{p['name'].upper()}": str(number), link: f"{kind.lower()}://{at}:{number}", f"{link}_PROTO": kind.lower(),
                    f"{link}_PORT": str(number), f"{link}_ADDR": at}
    return env


def test_serving_beside_a_service_called_tandem(start):
    """With service links on, whatever the manifest says: they are told of, and change nothing."""
    links = service_links()
    assert len(links) == 8 and links["TANDEM_PORT"] == "tcp://10.96.0.7:80"
    with start(env=links) as s:
        warned = [line for line in s.log().splitlines() if "level=warn" in line]
        assert len(warned) == 1 and "TANDEM_PORT is ignored" in warned[0]


# ---- files that are none ---------------------------------------------------------------------------------------------

def with_something(model, name, make):
    """The model's files as links, as in the Hugging Face cache, but one that is no file."""
    model.mkdir()
    for path in MODEL.iterdir():
        if path.name != name and not (name.endswith("index.json") and path.suffix == ".safetensors"):
            (model / path.name).symlink_to(path)
    make(model / name)
    return model


def to_zero(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name, make", [("config.json", os.mkfifo), ("tokenizer.json", os.mkfifo), ("tokenizer.json", os.mkdir), ("tokenizer.json", to_zero),
                                        ("generation_config.json", os.mkfifo), ("model.safetensors", os.mkfifo), ("model.safetensors.index.json", os.mkfifo)])
def test_a_model_with_something_that_is_no_file(run, tmp_path, name, make):
    """A FIFO would wait for ever for its writer, /dev/zero never end."""
    done = run("serve", "--model", with_something(tmp_path / "model", name, make), "--port", 0, "--data-dir", tmp_path / "data")
    assert done.returncode == 1 and f"{name}: not a regular file".encode() in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_template_that_is_no_file(start, tmp_path, name):
    """Without a template that can be used the model is served; why not is told."""
    with start(model=with_something(tmp_path / "model", name, os.mkfifo)) as s:
        assert f"{name}: not a regular file" in s.log()


@pytest.mark.parametrize("option", ["config", "chat-template", "tls-cert", "tls-key", "api-keys"])
def test_an_option_that_names_a_fifo(run, tmp_path, option):
    os.mkfifo(tmp_path / "fifo")
    args = [f"--{option}", tmp_path / "fifo"]
    if option.startswith("tls"):
        args += ["--tls-key" if option == "tls-cert" else "--tls-cert", ROOT / "README.md"]
    done = run("serve", "--model", MODEL, "--port", 0, "--data-dir", tmp_path / "data", *args)
    assert done.returncode in (1, 2) and b"not a regular file" in done.stderr, done.stderr
