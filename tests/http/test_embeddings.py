"""POST /v1/embeddings: transformers' pooled hidden states (tests/model/make_embedding_fixtures.py), in every shape that is asked."""
import base64
import json
import shutil
import threading

import numpy as np
import openai
import pytest
import requests
from conftest import DEVICE, ROOT
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from keys import new_key
from safetensors.numpy import load_file, save_file

MODELS, ADAPTERS = ROOT / "tests/fixtures/models", ROOT / "tests/fixtures/adapters"
MODEL = MODELS / "llama-gqa"
EXACT = ("--activations", "f32", "--kv-cache", "f32", "--kv-cache-bytes", "8M", "--threads", "2")
TEXTS = ["The dog and the cat.", "Once upon a time", "a", "日本語 🙂 text", "The dog " * 40]


def unit(v):
    v = np.asarray(v, dtype=np.float64)
    return v / np.linalg.norm(v)


class Golden:
    """The prompts of a fixture, as lists of ids, and what transformers makes of them."""

    def __init__(self, directory):
        t = load_file(directory / "embeddings.safetensors")
        ends = np.cumsum(t["lengths"])
        self.ids = [t["ids"][end - n:end].tolist() for end, n in zip(ends, t["lengths"])]
        self.pooled = {"mean": t["mean"], "last": t["last"]}


@pytest.fixture(scope="module")
def golden():
    return Golden(MODEL)


@pytest.fixture(scope="module")
def daemon(start):
    """Chunks of 32 tokens, so that the longer prompts take several steps."""
    with start("--max-batch-tokens", "32", "--max-seqs", "8", "--adapters", f"qv={ADAPTERS / 'llama-gqa--qv'}", *EXACT, model=MODEL) as s:
        yield s


@pytest.fixture
def server(daemon):
    yield daemon
    assert daemon.process.poll() is None, daemon.log()[-4000:]
    daemon.wait_idle()


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=300)


def embed(server, input, **fields):
    answer = server.post("/v1/embeddings", {"input": input, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(answer):
    assert [d["index"] for d in answer["data"]] == list(range(len(answer["data"])))
    return [d["embedding"] for d in answer["data"]]


def refused(server, body, status=400):
    answer = server.post("/v1/embeddings", body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error


# ---- what the vectors are --------------------------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["mean", "last"])
def test_as_transformers(server, golden, how):
    got = vectors(embed(server, golden.ids, pooling=how, normalize=False))
    np.testing.assert_allclose(got, golden.pooled[how], atol=1e-3)
    of_length_one = vectors(embed(server, golden.ids, pooling=how))
    np.testing.assert_allclose(of_length_one, [unit(v) for v in golden.pooled[how]], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(of_length_one, axis=1), 1, atol=1e-6)


def test_through_an_adapter(server):
    want = Golden(ADAPTERS / "llama-gqa--qv")
    got = vectors(embed(server, want.ids, model="qv", normalize=False))
    np.testing.assert_allclose(got, want.pooled["mean"], atol=1e-3)
    assert not np.allclose(got, vectors(embed(server, want.ids, normalize=False)), atol=1e-2)


def test_the_option_says_which_pooling(start, golden):
    with start("--pooling", "last", *EXACT, model=MODEL) as s:
        np.testing.assert_allclose(vectors(embed(s, golden.ids, normalize=False)), golden.pooled["last"], atol=1e-3)
        np.testing.assert_allclose(vectors(embed(s, golden.ids, normalize=False, pooling="mean")), golden.pooled["mean"], atol=1e-3)


@pytest.mark.smoke
@pytest.mark.skipif(bool(DEVICE), reason="other kernels take many rows than few, with other low bits")
def test_the_same_bits_alone_together_and_beside_generations(server):
    alone = [vectors(embed(server, text))[0] for text in TEXTS]
    plain = server.generate(TEXTS[0], max_new_tokens=30, details=True, ignore_eos=True)
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(server.generate(TEXTS[0], max_new_tokens=30, details=True, ignore_eos=True)))
               for _ in range(3)]
    for t in threads:
        t.start()
    together = [vectors(embed(server, TEXTS * 20)) for _ in range(2)]
    for t in threads:
        t.join()
    assert all(v == alone * 20 for v in together)
    assert texts == [plain] * 3


def test_text_is_its_tokens(server):
    ids = [[t["id"] for t in server.post("/tokenize", {"inputs": text}).json()] for text in TEXTS]
    by_text, by_ids = embed(server, TEXTS), embed(server, ids)
    assert vectors(by_text) == vectors(by_ids)
    assert by_text["usage"] == by_ids["usage"] == {"prompt_tokens": sum(map(len, ids)), "total_tokens": sum(map(len, ids))}
    assert vectors(embed(server, TEXTS[0])) == vectors(embed(server, ids[0])) == vectors(by_text)[:1]
    assert vectors(embed(server, TEXTS[4], truncate_prompt_tokens=5)) == vectors(embed(server, ids[4][-5:]))


# ---- how they are written --------------------------------------------------------------------------------------------

def test_base64_is_the_floats(server):
    plain = embed(server, TEXTS, encoding_format="float")
    coded = embed(server, TEXTS, encoding_format="base64")
    assert [np.frombuffer(base64.b64decode(v, validate=True), "<f4").tolist() for v in vectors(coded)] == \
        np.asarray(vectors(plain), np.float32).tolist()
    assert coded["usage"] == plain["usage"]


def test_dimensions(server, golden):
    whole = vectors(embed(server, golden.ids[3], normalize=False))[0]
    assert vectors(embed(server, golden.ids[3], normalize=False, dimensions=7))[0] == whole[:7]
    np.testing.assert_allclose(vectors(embed(server, golden.ids[3], dimensions=7))[0], unit(whole[:7]), atol=1e-6)
    assert vectors(embed(server, golden.ids[3], dimensions=48)) == vectors(embed(server, golden.ids[3]))


def test_a_large_answer(server):
    """Enough values that the pool writes them, and inputs that the pool tokenises."""
    texts = [f"The dog number {i} and the cat." for i in range(400)]
    many = vectors(embed(server, texts))
    assert len(many) == 400
    for i in (0, 199, 399):
        assert vectors(embed(server, texts[i]))[0] == many[i]


def test_more_inputs_than_places(start, golden):
    """A batch that cannot be at the engine all at once goes there in parts."""
    with start("--max-seqs", "4", "--max-queue", "8", *EXACT, model=MODEL) as s:
        assert len(vectors(embed(s, TEXTS + TEXTS + TEXTS[:3]))) == 13
        s.wait_idle()


def test_more_inputs_than_a_key_may_have_at_once(start, tmp_path):
    key = new_key(tmp_path / "keys", "few", "user", "--max-concurrent", 4)
    with start("--api-keys", tmp_path / "keys", *EXACT, model=MODEL, key=key) as s:
        assert len(vectors(embed(s, TEXTS))) == len(TEXTS) == 5
        s.wait_idle()


def test_openai_client(client, server, golden):
    answer = client.embeddings.create(model="llama-gqa", input=golden.ids)  # it asks for base64 on its own
    np.testing.assert_allclose([d.embedding for d in answer.data], [unit(v) for v in golden.pooled["mean"]], atol=1e-3)
    assert answer.model == "llama-gqa" and answer.usage.prompt_tokens == sum(map(len, golden.ids)) == answer.usage.total_tokens
    floats = client.embeddings.create(model="qv", input="The dog", encoding_format="float", dimensions=8, user="me")
    assert floats.model == "qv" and floats.object == "list" and len(floats.data[0].embedding) == 8
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.embeddings.create(model="nobody", input="The dog")
    with pytest.raises(openai.BadRequestError, match="input"):
        client.embeddings.create(model="llama-gqa", input=[])


# ---- refusals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("body, field, says", [
    ({}, "input", "missing"), ({"input": ""}, "input", "empty"), ({"input": []}, "input", "1 to 2048"),
    ({"input": ["a", ""]}, "input", r"input[1]"), ({"input": ["a", 5]}, "input", r"input[1]"), ({"input": [5, "a"]}, "input", r"input[0][1]"),
    ({"input": [[1], []]}, "input", r"input[1]"), ({"input": [[1], [2, -1]]}, "input", r"input[1][1]"),
    ({"input": [288]}, "input", "0 to 287"), ({"input": [1.5]}, "input", "token id"), ({"input": {"a": 1}}, "input", "string"),
    ({"input": [None]}, "input", r"input[0]"), ({"input": ["a"] * 2049}, "input", "1 to 2048"), ({"input": [5] * 513}, "input", "513 tokens"),
    ({"input": "a" * 5000}, "input", "512"), ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
    ({"input": "a", "dimensions": 0}, "dimensions", "1 and 48"), ({"input": "a", "dimensions": 49}, "dimensions", "1 and 48"),
    ({"input": "a", "pooling": "magic"}, "pooling", "mean"), ({"input": "a", "normalize": 1}, "normalize", "true or false"),
    ({"input": "a", "model": 5}, "model", "string"), ([], None, "object"), (5, None, "object"),
])
def test_refused(server, body, field, says):
    error = refused(server, body)
    assert error["param"] == field and says in error["message"], error


def test_refused_otherwise(server):
    assert refused(server, {"input": "a", "model": "nobody"}, 404)["code"] == "model_not_found"
    for name in ("llama-gqa", "qv", "tgi", "dummy"):
        assert embed(server, "a", model=name)["model"] == ("qv" if name == "qv" else "llama-gqa")
    answer = requests.post(server.url + "/v1/embeddings", data=b'{"input":', timeout=300)
    assert answer.status_code == 400 and "malformed JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize("form", ["float", "base64"])
def test_not_finite(start, tmp_path, form):
    """The engine never hands out what JSON cannot say."""
    shutil.copytree(MODEL, tmp_path / "m")
    name = "model.norm.weight"
    path = tmp_path / "m" / json.loads((MODEL / "model.safetensors.index.json").read_text())["weight_map"][name]
    weights = load_file(path)
    save_file({**weights, name: np.full_like(weights[name], np.nan)}, path)
    with start(*EXACT, model=tmp_path / "m") as s:
        answer = s.post("/v1/embeddings", {"input": ["a", "b"], "encoding_format": form})
        assert answer.status_code == 500 and "no finite hidden state" in answer.json()["error"]["message"], answer.text


def test_a_client_that_leaves(server):
    """What it asked for is dropped: the server is idle again, and the pages are free."""
    for _ in range(5):
        with pytest.raises(requests.ReadTimeout):
            requests.post(server.url + "/v1/embeddings", json={"input": ["The dog and the cat " * 20] * 500}, timeout=(30, 0.05))
    server.wait_idle()
    assert vectors(embed(server, "The dog"))


def test_counted(server):
    before = server.metric("tandem_requests_finished_total", reason="embedding")
    embed(server, TEXTS)
    assert server.metric("tandem_requests_finished_total", reason="embedding") == before + len(TEXTS)


# ---- as Text Embeddings Inference has it -----------------------------------------------------------------------------

def test_hub_client(server, golden):
    hub = InferenceClient(server.url)
    want = vectors(embed(server, TEXTS))
    got = hub.feature_extraction(TEXTS)
    assert got.dtype == np.float32 and got.tolist() == np.asarray(want, np.float32).tolist()
    assert hub.feature_extraction(TEXTS[0], normalize=True).tolist() == got[:1].tolist()
    assert hub.feature_extraction(TEXTS[0], model=server.url + "/embed").tolist() == got[:1].tolist()
    raw = hub.feature_extraction(TEXTS, normalize=False)
    np.testing.assert_allclose([unit(v) for v in raw], want, atol=1e-6)
    assert not np.allclose(np.linalg.norm(raw, axis=1), 1, atol=1e-2)
    assert hub.feature_extraction(TEXTS, dimensions=8).shape == (len(TEXTS), 8)
    cosines = hub.sentence_similarity(TEXTS[0], other_sentences=TEXTS)
    np.testing.assert_allclose(cosines, np.asarray(want) @ np.asarray(want[0]), atol=1e-6)
    assert hub.sentence_similarity(TEXTS[1], other_sentences=TEXTS[:1], model=server.url + "/similarity") == cosines[1:2]
    assert "generated_text" in server.post("/", {"inputs": TEXTS[0]}).json()[0]  # one text and nothing of embeddings: TGI's


def test_tei_truncates(server):
    hub, most = InferenceClient(server.url), server.get("/info").json()["max_total_tokens"]
    long = TEXTS[4] * 20
    ids = [t["id"] for t in server.post("/tokenize", {"inputs": long}).json()]
    assert len(ids) > most
    first, last = (vectors(embed(server, part))[0] for part in (ids[:most], ids[-most:]))
    assert server.post("/embed", {"inputs": long, "truncate": True}).json() == [first]
    assert server.post("/embed", {"inputs": [long], "truncate": True, "truncation_direction": "left"}).json() == [last]
    body = {"inputs": {"source_sentence": long, "sentences": [long]}, "parameters": {"truncate": True}}
    assert server.post("/", body).json() == pytest.approx([1])
    with pytest.raises(HfHubHTTPError, match=f"inputs\\[0\\]: has {len(ids)} tokens"):
        hub.feature_extraction([long])


@pytest.mark.parametrize("path, body, says", [
    ("/", {"inputs": []}, "inputs: expected 1 to"),
    ("/", {"inputs": ["a", 1]}, "inputs[1]: expected a string"),
    ("/", {"inputs": ["a", ""]}, "inputs[1]: cannot be empty"),
    ("/", {"inputs": "a", "truncate": 1}, "truncate: expected"),
    ("/", {"inputs": "a", "prompt_name": "query"}, "prompt_name: the model has no prompt"),
    ("/", {"inputs": ["a"], "truncation_direction": "up"}, "truncation_direction: must be"),
    ("/", {"inputs": {}}, "inputs.source_sentence: expected"),
    ("/", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences: expected"),
    ("/", {"inputs": {"source_sentence": "a", "sentences": ["b", 2]}}, "inputs.sentences[1]: expected"),
    ("/", {"inputs": {"source_sentence": "", "sentences": ["b"]}}, "inputs.source_sentence: cannot be empty"),
    ("/", {"inputs": {"source_sentence": "a", "sentences": ["b", ""]}}, "inputs.sentences[1]: cannot be empty"),
    ("/embed", {}, "inputs: the field is missing"),
    ("/embed", {"inputs": {"source_sentence": "a", "sentences": ["b"]}}, "inputs: expected"),
    ("/similarity", {"inputs": "a"}, "inputs: expected an object"),
])
def test_tei_refusals(server, path, body, says):
    answer = server.post(path, body)
    assert answer.status_code == 422 and answer.json()["error_type"] == "validation" and says in answer.json()["error"], answer.text
