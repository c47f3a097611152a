"""POST /tokenize and /detokenize in the shapes of TGI and of vLLM."""
import pytest
from conftest import MODEL
from tokenizers import Tokenizer

PROMPT = "Once upon a time"
TEXTS = [PROMPT, "", "naïve café — 日本語 🙂", "line\nbreak\t tab", "word " * 3000]


@pytest.fixture(scope="module")
def reference():
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_vllm(server, reference, text, special):
    want = reference.encode(text, add_special_tokens=special)
    got = server.post("/tokenize", {"model": "demo", "prompt": text, "add_special_tokens": special, "return_token_strs": True}).json()
    assert got == {"count": len(want.ids), "max_model_len": server.get("/info").json()["max_total_tokens"], "tokens": want.ids,
                   "token_strs": want.tokens}
    assert server.post("/tokenize", {"prompt": text, "add_special_tokens": special}).json() == {**got, "token_strs": None}
    as_tgi = server.post("/tokenize", {"inputs": text, "add_special_tokens": special}).json()
    assert [t["id"] for t in as_tgi] == want.ids


@pytest.mark.parametrize("text", TEXTS)
def test_there_and_back(server, reference, text):
    ids = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": reference.decode(ids, skip_special_tokens=False)}
    assert server.post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json() == {"prompt": reference.decode(ids)}


def test_many_ids(server, reference):
    """More than are decoded on the loop."""
    ids = [i * 7 % 2000 for i in range(20000)]
    assert server.post("/detokenize", {"tokens": ids}, timeout=100).json()["prompt"] == reference.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("path, body, says", [
    ("/tokenize", {}, "inputs"), ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"inputs": ["a"]}, "inputs"), ("/tokenize", [], "object"),
    ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"), ("/detokenize", {"tokens": [1 << 30]}, "tokens[0]"), ("/detokenize", {"tokens": [0.5]}, "tokens[0]"),
    ("/detokenize", 5, "object"),
])
def test_refused(server, path, body, says):
    answer = server.post(path, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error_type"] == "validation" and says in answer.json()["error"]
