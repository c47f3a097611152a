"""POST /tokenize and /detokenize in the shapes of TGI and of vLLM."""
import json
import shutil

import pytest
from conftest import MODEL, ROOT
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
    assert server.post("/detokenize", {"tokens": ids}, timeout=300).json()["prompt"] == reference.decode(ids, skip_special_tokens=False)


# ---- conversations ---------------------------------------------------------------------------------------------------

CHATML = ROOT / "tests/fixtures/models/qwen2"  # its template is the one below
TALK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi there"}]}]


def page(messages, prompt=True):
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return text + ("<|im_start|>assistant\n" if prompt else "")


@pytest.fixture(scope="module")
def chatty(start):
    with start("--threads", "2", "--kv-cache-bytes", "4M", model=CHATML) as s:
        yield s


def test_messages(chatty):
    reference = Tokenizer.from_file(str(CHATML / "tokenizer.json"))
    plain = [TALK[0], {"role": "user", "content": "Hi there"}]
    for more, text in [({}, page(plain)), ({"add_generation_prompt": False}, page(plain, False)),
                       ({"continue_final_message": True}, page(plain, False).removesuffix("<|im_end|>\n"))]:
        want = reference.encode(text)
        got = chatty.post("/tokenize", {"messages": TALK, "return_token_strs": True, **more}).json()
        assert got == {"count": len(want.ids), "max_model_len": 256, "tokens": want.ids, "token_strs": want.tokens}
    long = [{"role": "user", "content": "word " * 2000}]  # rendered and tokenised by the pool
    assert chatty.post("/tokenize", {"messages": long}).json()["tokens"] == reference.encode(page(long)).ids


@pytest.mark.parametrize("body, says", [
    ({"messages": []}, "messages"), ({"messages": [5]}, "messages[0]"), ({"messages": [{"content": "a"}]}, "role"), ({"messages": "a"}, "messages"),
    ({"messages": TALK, "add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
])
def test_refused_messages(chatty, body, says):
    answer = chatty.post("/tokenize", body)
    assert answer.status_code == 422 and says in answer.json()["error"], answer.text


def test_messages_without_a_template(server):
    answer = server.post("/tokenize", {"messages": TALK})
    assert answer.status_code == 422 and "chat template" in answer.json()["error"], answer.text


# ---- refusals --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path, body, says", [
    ("/tokenize", {}, "inputs"), ("/tokenize", {"prompt": 5}, "prompt"), ("/tokenize", {"inputs": ["a"]}, "inputs"), ("/tokenize", [], "object"),
    ("/tokenize", {"prompt": "a", "return_token_strs": "yes"}, "return_token_strs"),
    ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"), ("/detokenize", {"tokens": [1, "a"]}, "tokens[1]"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"), ("/detokenize", {"tokens": [1 << 30]}, "tokens[0]"), ("/detokenize", {"tokens": [0.5]}, "tokens[0]"),
    ("/detokenize", {"tokens": [5] * 600000}, "has 600000 ids"), ("/detokenize", 5, "object"),
])
def test_refused(server, path, body, says):
    answer = server.post(path, body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error_type"] == "validation" and says in answer.json()["error"]


# ---- GET /tokenizer_info ---------------------------------------------------------------------------------------------

def test_tokenizer_info(server):
    config = json.loads((MODEL / "tokenizer_config.json").read_text())
    info = server.get("/tokenizer_info").json()
    tokens = {id: token["content"] for id, token in config["added_tokens_decoder"].items()}
    assert info == {**config, "added_tokens_decoder": tokens, "chat_template": None}


def test_tokenizer_info_of_other_files(start, tmp_path):
    """Special tokens as objects, in either file; numbers that no double holds; a template of its own; nothing at all."""
    model = tmp_path / "model"
    shutil.copytree(CHATML, model)
    added = {"content": "<|endoftext|>", "lstrip": False, "special": True}
    (model / "tokenizer_config.json").write_text('{"bos_token": %s, "eos_token": null, "model_max_length": 1000000000000000019884624838656, '
                                                 '"additional_special_tokens": [%s], "vocab_file": "/home/x/vocab.json"}'
                                                 % (json.dumps(added), json.dumps(added)))
    (model / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|im_end|>"}}))
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with start("--threads", "2", "--kv-cache-bytes", "4M", model=model) as s:
        answer = s.get("/tokenizer_info")
        assert answer.json() == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": None,
                                 "additional_special_tokens": ["<|endoftext|>"], "model_max_length": 10**30 + 19884624838656,
                                 "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages[0].content }}"}
        assert "1000000000000000019884624838656" in answer.text
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (model / name).unlink()
    with start("--threads", "2", "--kv-cache-bytes", "4M", model=model) as s:
        info = s.get("/tokenizer_info").json()
        eos = json.loads((model / "generation_config.json").read_text())["eos_token_id"]
        assert info["eos_token"] == Tokenizer.from_file(str(model / "tokenizer.json")).id_to_token(eos if isinstance(eos, int) else eos[0])
        assert info["bos_token"] is None and info["chat_template"] is None
