"""Encoders and models with sentence-transformers' files: vectors and scores equal to sentence-transformers'
(tests/model/make_encoder_fixtures.py), in every shape that is asked."""
import json
import math
import shutil

import numpy as np
import pytest
import requests
from conftest import ROOT
from huggingface_hub import InferenceClient

ENCODERS = ROOT / "tests/fixtures/encoders"
SENTENCES = sorted(p.name for p in ENCODERS.iterdir() if (p / "1_Pooling").exists())
CROSS = sorted(p.parent.name for p in ENCODERS.glob("*/config.json") if not (p.parent / "1_Pooling").exists())
EXACT = ("--activations", "f32", "--kv-cache", "f32", "--kv-cache-bytes", "8M", "--threads", "2")


def expected(name):
    return json.loads((ENCODERS / name / "expected.json").read_text())


def post(server, path, status=200, **body):
    r = requests.post(server.url + path, json=body, timeout=300)
    assert r.status_code == status, r.text
    return r.json()


def vectors(server, texts, **options):
    data = post(server, "/v1/embeddings", input=texts, **options)["data"]
    assert [d["index"] for d in data] == list(range(len(data)))
    return np.array([d["embedding"] for d in data])


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.fixture(scope="module", params=SENTENCES)
def sentences(request, start):
    with start(*EXACT, model=ENCODERS / request.param) as s:
        s.name = request.param
        yield s


@pytest.fixture(scope="module", params=CROSS)
def cross(request, start):
    with start(*EXACT, model=ENCODERS / request.param) as s:
        s.name = request.param
        yield s


def test_fixtures():
    assert len(SENTENCES) >= 6 and len(CROSS) >= 4


def test_vectors(sentences):
    x = expected(sentences.name)
    np.testing.assert_allclose(vectors(sentences, x["texts"]), x["vectors"], atol=1e-5)
    for name, want in x["prompts"].items():
        np.testing.assert_allclose(vectors(sentences, x["texts"][:2], prompt_name=name), want, atol=1e-5)
    refused = post(sentences, "/v1/embeddings", 400, input="a", prompt_name="nobody")
    assert 'no prompt "nobody"' in refused["error"]["message"]


def test_poolings(sentences):
    """Another pooling than the files' is for models with one."""
    several = "concat" in sentences.name
    answer = post(sentences, "/v1/embeddings", 400 if several else 200, input="a", pooling="max")
    if several:
        assert "concatenates" in answer["error"]["message"]
        return
    want = answer["data"][0]["embedding"]
    assert want == post(sentences, "/v1/embeddings", input="a", pooling="max")["data"][0]["embedding"]


def test_nothing_but_the_prompt(start, tmp_path):
    """A prompt as long as the limit leaves no token to pool."""
    folder = broken(tmp_path, "qwen3-concat", lambda folder: (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"long": "the state " * 200}})))
    with start(*EXACT, model=folder) as s:
        refused = post(s, "/v1/embeddings", 400, input="a", prompt_name="long")
        assert "left out of the pooling" in refused["error"]["message"]
        assert vectors(s, ["a"]).shape == (1, 32)


def test_a_text_alone(sentences):
    """The same bits alone, in a batch and in any order."""
    texts = expected(sentences.name)["texts"]
    whole = vectors(sentences, texts * 5)
    assert (whole == vectors(sentences, (texts * 5)[::-1])[::-1]).all()
    for i, text in enumerate(texts):
        assert (vectors(sentences, [text])[0] == whole[i]).all()


def test_clients(sentences):
    x = expected(sentences.name)
    client = InferenceClient(sentences.url)
    want = np.array(x["vectors"][1])
    got = np.squeeze(client.feature_extraction(x["texts"][1], normalize=True, prompt_name=next(iter(x["prompts"]), None)))
    if not x["prompts"]:
        np.testing.assert_allclose(got, want / np.linalg.norm(want), atol=1e-5)
    assert abs(np.linalg.norm(got) - 1) < 1e-5
    unit = np.array(x["vectors"])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    # the client cannot ask for longer texts to be cut
    short = [i for i, t in enumerate(x["texts"]) if requests.post(sentences.url + "/embed", json={"inputs": t}, timeout=300).ok]
    assert len(short) >= 2
    cosines = client.sentence_similarity(x["texts"][short[0]], other_sentences=[x["texts"][i] for i in short])
    np.testing.assert_allclose(cosines, unit[short] @ unit[short[0]], atol=1e-5)


def test_long_texts(sentences):
    """sentence-transformers cuts them; TEI asks first."""
    text = "the state of the law " * 400
    assert vectors(sentences, [text]).shape[0] == 1
    refused = requests.post(sentences.url + "/embed", json={"inputs": text}, timeout=300)
    assert refused.status_code == 422 and "the model takes" in refused.json()["error"]
    assert len(post(sentences, "/embed", inputs=text, truncate=True)) == 1


def test_kinds(sentences):
    model = requests.get(sentences.url + "/v1/models", timeout=300).json()["data"][0]
    assert model["kind"] == ("generate" if "qwen" in sentences.name else "embed")
    refused = post(sentences, "/rerank", 400, query="a", documents=["b"])
    assert "no classifier" in refused["error"]["message"]
    if model["kind"] == "embed":
        refused = post(sentences, "/v1/completions", 400, prompt="a")
        assert "generates no text" in refused["error"]["message"]
        info = requests.get(sentences.url + "/info", timeout=300).json()
        assert info["model_pipeline_tag"] == "feature-extraction"


def test_logits(cross):
    x = expected(cross.name)
    got = post(cross, "/predict", inputs=[[t] for t in x["single"]], raw_scores=True, truncate=True)
    for labels, want in zip(got, x["logits"], strict=True):
        scores = [p["score"] for p in labels]
        assert scores == sorted(scores, reverse=True)
        np.testing.assert_allclose(scores, sorted(want, reverse=True), atol=1e-5)
    pair = post(cross, "/predict", inputs=x["pairs"][0], raw_scores=True, truncate=True)
    raw = x["raw"][0] if isinstance(x["raw"][0], list) else [x["raw"][0]]
    np.testing.assert_allclose([p["score"] for p in pair], sorted(raw, reverse=True), atol=1e-5)


def test_classes(cross):
    x = expected(cross.name)
    config = json.loads((ENCODERS / cross.name / "config.json").read_text())
    names = config.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    answer = post(cross, "/classify", input=x["single"])
    for i, (got, logits) in enumerate(zip(answer["data"], x["logits"], strict=True)):
        z = np.exp(np.array(logits) - max(logits))
        alone = len(logits) == 1 or config.get("problem_type") == "multi_label_classification"
        want = [sigmoid(v) for v in logits] if alone else list(z / z.sum())
        assert got["index"] == i and got["num_classes"] == len(logits)
        np.testing.assert_allclose(got["probs"], want, atol=1e-5)
        assert got["label"] == names[str(int(np.argmax(want)))]
    assert answer["usage"]["prompt_tokens"] > len(x["single"])
    one = InferenceClient(cross.url).text_classification(x["single"][1])
    assert one[0].label == answer["data"][1]["label"]
    assert one[0].score == pytest.approx(max(answer["data"][1]["probs"]), abs=1e-6)


def test_pairs(cross):
    x = expected(cross.name)
    if isinstance(x["scores"][0], list):
        refused = post(cross, "/v1/rerank", 400, query="a", documents=["b"])
        assert "labels" in refused["error"]["message"]
        return
    a, b = zip(*x["pairs"])
    data = post(cross, "/v1/score", text_1=a, text_2=b)["data"]
    np.testing.assert_allclose([d["score"] for d in data], x["scores"], atol=1e-5)
    query, documents, n = a[0], list(b[:4]), 4
    order = sorted(range(n), key=lambda i: -x["scores"][i])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = post(cross, path, query=query, documents=documents, top_n=3)
        assert [r["index"] for r in answer["results"]] == order[:3]
        assert [r["document"]["text"] for r in answer["results"]] == [documents[i] for i in order[:3]]
        np.testing.assert_allclose([r["relevance_score"] for r in answer["results"]], [x["scores"][i] for i in order[:3]], atol=1e-5)
    bare = post(cross, "/rerank", query=query, documents=[{"text": d} for d in documents], return_documents=False)
    assert all("document" not in r for r in bare["results"]) and len(bare["results"]) == n
    tei = post(cross, "/rerank", query=query, texts=documents, truncate=True)
    assert [sorted(r) for r in tei] == [["index", "score"]] * n
    np.testing.assert_allclose([r["score"] for r in tei], sorted((sigmoid(x["raw"][i]) for i in range(n)), reverse=True), atol=1e-5)
    tei = post(cross, "/rerank", query=query, texts=documents, truncate=True, raw_scores=True, return_text=True)
    assert [r["text"] for r in tei] == [documents[r["index"]] for r in tei]
    np.testing.assert_allclose([r["score"] for r in tei], sorted(x["raw"][:n], reverse=True), atol=1e-5)
    one = post(cross, "/score", text_1=query, text_2=documents)["data"]
    np.testing.assert_allclose([d["score"] for d in one], x["scores"][:n], atol=1e-5)


def test_cross_refusals(cross):
    assert "not embeddings" in post(cross, "/v1/embeddings", 400, input="a")["error"]["message"]
    assert "generates no text" in post(cross, "/generate", 422, inputs="a")["error"]
    for body in ({}, {"inputs": 5}, {"inputs": []}, {"inputs": [[]]}, {"inputs": ["a", "b", "c"]}, {"inputs": [["a"], "b", 3]},
                 {"inputs": "a", "truncation_direction": "up"}):
        post(cross, "/predict", 422, **body)
    for body in ({}, {"input": []}, {"input": [None]}, {"input": [-1]}, {"input": [["a"]]}, {"input": {}}, {"input": "a", "truncate_prompt_tokens": 10**9}):
        post(cross, "/classify", 400, **body)
    for body in ({"query": "a"}, {"documents": ["a"]}, {"query": "a", "documents": []}, {"query": "a", "documents": [1]},
                 {"query": ["a"], "documents": ["b"]}, {"query": "a", "documents": ["b"], "top_n": -1}):
        post(cross, "/v1/rerank", 400, **body)
    for body in ({"text_1": "a"}, {"text_1": ["a", "b"], "text_2": ["c"]}, {"text_1": "a", "text_2": [3]}):
        post(cross, "/score", 400, **body)
    model = requests.get(cross.url + "/v1/models", timeout=300).json()["data"][0]
    assert model["kind"] == "classify"


def broken(tmp_path, name, change):
    folder = tmp_path / "model"
    shutil.copytree(ENCODERS / name, folder)
    change(folder)
    return folder


@pytest.mark.parametrize("name,file,change,says", [
    ("bert-mean", "modules.json", lambda t: t.replace("1_Pooling", "../x"), "relative path"),
    ("bert-mean", "modules.json", lambda t: t.replace("modules.pooling.Pooling", "modules.lstm.LSTM"), "LSTM"),
    ("bert-mean", "modules.json", lambda t: "{}", "must be a list"),
    ("bert-mean", "1_Pooling/config.json", lambda t: t.replace('"mean"', '"magic"'), 'is not known'),
    ("bert-mean", "1_Pooling/config.json", lambda t: t.replace("16", "17"), "17 values"),
    ("bert-mean", "1_Pooling/config.json", lambda t: t.replace('"mean"', "[]"), "list of names"),
    ("bert-mean", "1_Pooling/config.json", lambda t: t.replace('"mean"', '["mean", 3]'), "is not known"),
    ("bert-mean", "1_Pooling/config.json", lambda t: t.replace('"mean"', json.dumps(["mean"] * 9)), "more than 8"),
    ("bert-concat-dense", "modules.json", lambda t: t.replace("dense.Dense", "pooling.Pooling").replace("2_Dense", "1_Pooling"), "behind another"),
    ("bert-concat-dense", "1_Pooling/config.json", lambda t: t.replace('"cls",', ""), "in_features 96"),
    ("bert-mean", "config.json", lambda t: t.replace('"type_vocab_size": 2', '"type_vocab_size": 3'), "token_type"),
    ("bert-mean", "config.json", lambda t: t.replace('"is_decoder": false', '"is_decoder": true'), "is_decoder"),
    ("bert-cls-dense", "2_Dense/config.json", lambda t: t.replace('"out_features": 12', '"out_features": 13'), "linear.weight"),
    ("bert-cls-dense", "2_Dense/config.json", lambda t: t.replace("activation.Tanh", "activation.Softmin"), "Softmin"),
    ("roberta-max", "config.json", lambda t: t.replace('"pad_token_id": 1', '"pad_token_id": 41'), "no positions are left"),
    ("classify-roberta", "config.json", lambda t: t.replace('"2": "glad"', '"2": "glad", "3": "mad"'), "classifier.out_proj.weight"),
    ("cross-llama", "config.json", lambda t: t.replace('"0": "LABEL_0"', '"0": "a", "1": "b"'), "score.weight"),
    ("cross-llama", "config.json", lambda t: t.replace("SequenceClassification", "CausalLM"), "lm_head"),
    ("modernbert-mean", "config.json", lambda t: t.replace('"sliding_attention",', '"strange_attention",', 1), "strange_attention"),
])
def test_broken_directories(tmp_path, run, name, file, change, says):
    def edit(folder):
        path = folder / file
        text = path.read_text()
        assert change(text) != text
        path.write_text(change(text))
    folder = broken(tmp_path, name, edit)
    out = run("serve", "--model", folder, "--port", "0")
    said = (out.stdout + out.stderr).decode()
    assert out.returncode != 0 and says in said, said


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("name", ["bert-mean", "modernbert-mean", "cross-bert", "cross-llama", "cross-qwen3"])
def test_quantised(start, name, kind):
    """Near the floats' vectors; int4 of random weights spoils some."""
    x = expected(name)
    with start("--quantize", kind, "--kv-cache-bytes", "8M", model=ENCODERS / name) as s:
        if name in CROSS:
            got = [post(s, "/score", text_1=a, text_2=b)["data"][0]["score"] for a, b in x["pairs"]]
            np.testing.assert_allclose(got, x["scores"], atol=0.1 if kind == "int8" else 2)
            return
        got = vectors(s, x["texts"], normalize=True)
        want = np.array(x["vectors"])
        want /= np.linalg.norm(want, axis=1, keepdims=True)
        cosines = (got * want).sum(1)
        assert cosines.min() > 0.99 if kind == "int8" else np.median(cosines) > 0.9


@pytest.mark.parametrize("model,kind", [("bert-mean", "an encoder"), ("cross-llama", "a classifier")])
@pytest.mark.parametrize("words", [["generate", "--prompt", "a"], ["perplexity", "--file", ROOT / "README.md"], ["bench"], ["chat"],
                                   ["quantize", "--type", "int8", "--out", "OUT"],
                                   ["train", "--data", "ROWS", "--out", "OUT"]], ids=lambda w: w[0])
def test_commands_refuse(run, tmp_path, words, model, kind):
    (tmp_path / "rows.jsonl").write_text('{"text":"a b c"}\n')
    paths = {"OUT": tmp_path / "out", "ROWS": tmp_path / "rows.jsonl"}
    result = run(*(paths.get(w, w) for w in words), "--model", ENCODERS / model, stdin=-3)
    assert result.returncode == 1, result.stderr.decode()
    assert kind in result.stderr.decode()
