"""Token ids in, token ids out, for others' trainers: vLLM's /inference/v1/generate, and prompt_logprobs and return_token_ids of
/v1/completions and /v1/chat/completions."""
import json
import math

import pytest
import requests
from conftest import DEVICE, PATIENCE

GENERATE = "/inference/v1/generate"
PROMPT = "Once upon a time, there was a"


@pytest.fixture
def ids(server):
    return [t["id"] for t in server.post("/tokenize", {"inputs": PROMPT}).json()]


def generate(server, ids, **more):
    params = {"max_tokens": 8, "temperature": 0, **more.pop("params", {})}
    answer = server.post(GENERATE, {"token_ids": ids, "sampling_params": params, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def chunks(server, path, body):
    with requests.post(server.url + path, json={**body, "stream": True}, stream=True, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.text
        lines = [line[6:] for line in answer.iter_lines(decode_unicode=True) if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def text_of(server, ids):
    return server.post("/detokenize", {"tokens": ids, "skip_special_tokens": True}).json()["prompt"]


def refused(server, path, body, *words):
    answer = server.post(path, body)
    assert answer.status_code == 400, (answer.status_code, answer.text)
    message = answer.json()["error"]["message"]
    for word in words:
        assert word in message, message
    return answer.json()["error"]


# ---- /inference/v1/generate ------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_whole(server, ids):
    """The tokens of /v1/completions, and their log-probabilities."""
    answer = generate(server, ids, params={"logprobs": 2}, request_id="step-7/3")
    assert answer["request_id"] == "step-7/3" and answer["prompt_logprobs"] is None
    [choice] = answer["choices"]
    assert choice["index"] == 0 and choice["finish_reason"] == "length" and len(choice["token_ids"]) == 8
    body = {"prompt": ids, "max_tokens": 8, "temperature": 0, "logprobs": 2, "return_tokens_as_token_ids": True}
    other = server.post("/v1/completions", body).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert [e["token"] for e in content] == [f"token_id:{i}" for i in choice["token_ids"]] == other["logprobs"]["tokens"]
    assert [e["logprob"] for e in content] == other["logprobs"]["token_logprobs"]
    for entry, top in zip(content, other["logprobs"]["top_logprobs"]):
        assert {t["token"]: t["logprob"] for t in entry["top_logprobs"]} == top and len(entry["top_logprobs"]) == 2
    assert text_of(server, choice["token_ids"]) == other["text"]
    assert answer["usage"] == {**answer["usage"], "prompt_tokens": len(ids), "completion_tokens": 8}


def test_defaults(server, ids):
    """Those of vLLM's SamplingParams, except that a text may take all the room there is."""
    room = server.get("/info").json()["max_total_tokens"] - len(ids)
    answer = generate(server, ids, params={"max_tokens": None, "ignore_eos": True})
    assert len(answer["choices"][0]["token_ids"]) == room and answer["choices"][0]["logprobs"] is None
    a = generate(server, ids, params={"temperature": None, "seed": 5})
    assert a["choices"] == generate(server, ids, params={"temperature": 1, "top_p": 1, "top_k": 0, "seed": 5})["choices"]
    assert a["request_id"] != generate(server, ids)["request_id"]


def test_several(server, ids):
    """n choices, each as it is alone; a seed repeats them."""
    a = generate(server, ids, params={"n": 4, "temperature": 1, "seed": 3, "logprobs": 0, "prompt_logprobs": 0})
    assert [c["index"] for c in a["choices"]] == [0, 1, 2, 3] and len({tuple(c["token_ids"]) for c in a["choices"]}) > 1
    assert a["choices"] == generate(server, ids, params={"n": 4, "temperature": 1, "seed": 3, "logprobs": 0})["choices"]
    assert len(a["prompt_logprobs"]) == len(ids)


def test_end(server, ids):
    """The token that ends a text is among its ids, as in vLLM."""
    first = generate(server, ids)["choices"][0]["token_ids"]
    stopped = generate(server, ids, params={"stop_token_ids": [first[3]]})["choices"][0]
    end = first.index(first[3]) + 1
    assert (stopped["token_ids"], stopped["finish_reason"], stopped["stop_reason"]) == (first[:end], "stop", first[3])
    word = text_of(server, first[2:4]).strip()
    stopped = generate(server, ids, params={"stop": word})["choices"][0]
    assert stopped["token_ids"] == first[:len(stopped["token_ids"])] and stopped["stop_reason"] == word


def test_stream(server, ids):
    params = {"max_tokens": 8, "temperature": 1, "seed": 4, "n": 2, "logprobs": 1}
    whole = generate(server, ids, params=params, request_id="r")
    body = {"token_ids": ids, "sampling_params": params, "request_id": "r", "stream_options": {"include_usage": True}}
    got = chunks(server, GENERATE, body)
    assert {c["request_id"] for c in got} == {"r"}
    assert got[-1]["choices"] == [] and got[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        mine = [c for chunk in got for c in chunk["choices"] if c["index"] == choice["index"]]
        assert sum((c["token_ids"] for c in mine), []) == choice["token_ids"] and len(mine) > 1
        assert sum((c["logprobs"]["content"] for c in mine), []) == choice["logprobs"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]


def test_constrained(server, ids):
    answer = generate(server, ids, params={"structured_outputs": {"regex": " (big|red) dog"}, "max_tokens": 20})
    assert text_of(server, answer["choices"][0]["token_ids"]) in (" big dog", " red dog")


def test_client_fields(server, ids):
    """What vLLM's clients send besides: switches that are off, and what concerns only texts."""
    params = {"detokenize": False, "output_kind": 2, "skip_special_tokens": True, "bad_words": [], "extra_args": None}
    plain = generate(server, ids)["choices"]
    assert generate(server, ids, params=params, features=None, kv_transfer_params=None, priority=0, cache_salt="s")["choices"] == plain


@pytest.mark.parametrize("body, words", [
    ({}, ["token_ids: the field is missing"]),
    ({"token_ids": []}, ["token_ids: expected a list of token ids"]),
    ({"token_ids": [[1]]}, ["token_ids: expected a list of token ids"]),
    ({"token_ids": "abc"}, ["token_ids: expected a list of token ids"]),
    ({"token_ids": [1, -1]}, ["token_ids: expected token ids from 0"]),
    ({"token_ids": [1, 1.5]}, ["token_ids: expected token ids from 0"]),
    ({"token_ids": [1, "x"]}, ["token_ids: expected token ids from 0"]),
    ({"token_ids": [1, 10 ** 30]}, ["token_ids: expected token ids from 0"]),
    ({"token_ids": [1] * 100000}, ["100000"]),
    ({"token_ids": [1], "sampling_params": 3}, ["sampling_params: expected an object"]),
    ({"token_ids": [1], "sampling_params": {"max_tokens": 0}}, ["max_tokens"]),
    ({"token_ids": [1], "sampling_params": {"temperature": -1}}, ["temperature"]),
    ({"token_ids": [1], "sampling_params": {"n": 10 ** 9}}, ["n"]),
    ({"token_ids": [1], "sampling_params": {"logprobs": 33}}, ["logprobs"]),
    ({"token_ids": [1], "sampling_params": {"logprobs": -1}}, ["logprobs"]),
    ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 33}}, ["prompt_logprobs"]),
    ({"token_ids": [1], "sampling_params": {"prompt_logprobs": 1}, "stream": True}, ["prompt_logprobs", "stream"]),
    ({"token_ids": [1], "sampling_params": {"prompt_logprob_token_ids": [1]}}, ["no row behind `prompt_logprob_start`"]),
    ({"token_ids": [1, 2], "sampling_params": {"prompt_logprob_token_ids": [1], "prompt_logprob_start": 1}}, ["no row behind `prompt_logprob_start`"]),
    ({"token_ids": [1, 2], "sampling_params": {"prompt_logprob_token_ids": [1], "prompt_logprob_start": 2**31 - 2}}, ["no row behind `prompt_logprob_start`"]),
    ({"token_ids": [1, 2], "sampling_params": {"prompt_logprob_token_ids": [1], "prompt_logprob_start": 2**31 - 1}}, ["prompt_logprob_start: must be"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [[1]]}}, ["a list for each of the 2 rows. Given: 1"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [[1], 2]}}, ["must be lists of token ids"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [[], []]}}, ["has no id"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [-1]}}, ["must be lists of token ids"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [[1], [10**7]]}}, ["must be lists of token ids"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": list(range(33))}}, ["may have 32 ids"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": 5}}, ["must be a list"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_start": 1}}, ["only allowed with `prompt_logprob_token_ids`"]),
    ({"token_ids": [1, 2, 3], "stream": True, "sampling_params": {"prompt_logprob_token_ids": [1]}}, ["not available when `stream`"]),
    ({"token_ids": [1, 2, 3], "sampling_params": {"prompt_logprob_token_ids": [1], "prompt_logprob_start": 1, "prompt_logprobs": 0}}, ["excludes `prompt_logprobs`"]),
    ({"token_ids": [1], "sampling_params": {"bad_words": ["x"]}}, ["sampling_params.bad_words"]),
    ({"token_ids": [1], "sampling_params": {"prompt": [2]}}, ["sampling_params.prompt"]),
    ({"token_ids": [1], "sampling_params": {"x" * 5000: 1}}, ["sampling_params.xxx"]),
    ({"token_ids": [1], "sampling_params": {str(i): None for i in range(2000)}}, ["1000"]),
    ({"token_ids": [1], "features": {"mm_hashes": {"image": ["a"]}}}, ["`features` is not supported"]),
    ({"token_ids": [1], "prompt": "x"}, ["`prompt` is not supported"]),
    ({"token_ids": [1], "messages": [1]}, ["`messages` is not supported"]),
    ({"token_ids": [1], "request_id": ""}, ["request_id"]),
    ({"token_ids": [1], "request_id": "x" * 129}, ["request_id"]),
    ({"token_ids": [1], "request_id": 5}, ["request_id"]),
], ids=lambda v: str(v)[:50])
def test_refused(server, body, words):
    refused(server, GENERATE, body, *words)


def test_hidden_fields(server, ids):
    """A null among sampling_params hides nothing of the body, and the last of two fields counts."""
    text = json.dumps({"token_ids": ids, "model": "nobody", "sampling_params": {"model": None, "prompt": [], "token_ids": None}})
    answer = requests.post(server.url + GENERATE, data=text, timeout=PATIENCE)
    assert answer.status_code == 404 and "nobody" in answer.text
    last = json.dumps({"token_ids": ids, "sampling_params": {"max_tokens": 2, "temperature": 0}})
    text = '{"token_ids": [1], "sampling_params": {"max_tokens": 5}, "sampling_params": 3, ' + last[1:]
    answer = requests.post(server.url + GENERATE, data=text, timeout=PATIENCE)
    assert answer.status_code == 200 and answer.json()["choices"][0]["token_ids"] == generate(server, ids)["choices"][0]["token_ids"][:2]


def test_errors_before_the_body(server, ids):
    """Those of deadline and model, which are found before the fields are read, are in OpenAI's format, too."""
    body = {"token_ids": ids}
    answer = server.post(GENERATE, body, headers={"X-Request-Timeout": "soon"})
    assert answer.status_code == 400 and "X-Request-Timeout" in answer.json()["error"]["message"]
    answer = server.post(GENERATE, {**body, "model": "nobody"})
    assert answer.status_code == 404 and answer.json()["error"]["param"] == "model"
    assert requests.post(server.url + GENERATE, data="{", timeout=PATIENCE).status_code == 400 and server.get(GENERATE).status_code == 405


def test_strange_id(server, ids):
    """The client's id comes back as it was."""
    for name in ('a"b\\c', "\u2028 é", "x" * 128):
        assert generate(server, ids, request_id=name)["request_id"] == name
    body = {"token_ids": ids, "sampling_params": {"max_tokens": 2}, "request_id": 'a"\n{}'}
    assert {c["request_id"] for c in chunks(server, GENERATE, body)} == {'a"\n{}'}


# ---- prompt_logprob_token_ids ----------------------------------------------------------------------------------------

def scores(server, ids, wanted, **params):
    return generate(server, ids, params={"max_tokens": 1, "prompt_logprob_token_ids": wanted, **params})["prompt_token_id_logprobs"]


def same(a, b):
    """Bit for bit, but for devices where the last bits depend on how many rows a step has (docs/cuda.md)."""
    exact = DEVICE in (None, "cpu", "ref")
    return len(a) == len(b) and all(x == (y if exact else pytest.approx(y, abs=1e-4)) for v, w in zip(a, b) for x, y in zip(v, w, strict=True))


def test_scores_are_those_of_prompt_logprobs(server, ids):
    """Whatever else is asked for."""
    plain = generate(server, ids, params={"max_tokens": 1, "prompt_logprobs": 4})["prompt_logprobs"]
    rows = [[int(i) for i in row] for row in plain[1:]]
    want = [[row[str(i)]["logprob"] for i in own] for own, row in zip(rows, plain[1:])]
    n = max(map(len, rows))
    padded = [v + [None] * (n - len(v)) for v in want]
    assert same(scores(server, ids, rows), padded)
    both = generate(server, ids, params={"max_tokens": 1, "prompt_logprobs": 4, "prompt_logprob_token_ids": rows, "n": 2})
    assert same(both["prompt_token_id_logprobs"], padded) and [r and list(r) for r in both["prompt_logprobs"]] == [r and list(r) for r in plain]
    assert "prompt_token_id_logprobs" not in generate(server, ids)
    with_none = [[-1, *row, -1] for row in rows]
    assert [v[0] for v in scores(server, ids, with_none)] == [None] * len(rows)


def test_scores_of_the_same_ids(server, ids):
    """One list stands for all rows; a start leaves rows out and changes none."""
    one = [5, 300, 7, ids[1]]
    whole = scores(server, ids, one)
    assert len(whole) == len(ids) - 1 and same(whole, scores(server, ids, [one] * (len(ids) - 1)))
    assert all(v < 0 for row in whole for v in row)
    for start in (1, 3, len(ids) - 2):
        assert same(scores(server, ids, one, prompt_logprob_start=start), whole[start:])
    long = (ids * 100)[:400]  # in several steps
    all_of_it = scores(server, long, one)
    assert same(all_of_it[:len(ids) - 1], whole)
    assert same(scores(server, long, one, prompt_logprob_start=350), all_of_it[350:])
    batches = [scores(server, ids[:2], list(range(i, i + 32)))[0] for i in range(0, 512, 32)]
    assert 0 < sum(math.exp(v) for row in batches for v in row) <= 1.001


# ---- prompt_logprobs and return_token_ids ----------------------------------------------------------------------------

@pytest.mark.smoke
def test_prompt_logprobs(server, ids):
    """The same on all three routes, and as `echo` has them."""
    a = generate(server, ids, params={"prompt_logprobs": 3})["prompt_logprobs"]
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 3}
    assert server.post("/v1/completions", body).json()["choices"][0]["prompt_logprobs"] == a
    assert a[0] is None and len(a) == len(ids)
    echo = {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 3, "echo": True, "return_tokens_as_token_ids": True}
    echoed = server.post("/v1/completions", echo).json()["choices"][0]["logprobs"]
    for at, entry, value, top in zip(ids[1:], a[1:], echoed["token_logprobs"][1:], echoed["top_logprobs"][1:]):
        assert next(iter(entry)) == str(at) and entry[str(at)]["logprob"] == value
        assert {f"token_id:{i}": v["logprob"] for i, v in entry.items()} == top
        ranks = sorted(v["rank"] for v in entry.values())
        assert ranks[:3] == [1, 2, 3] and sorted(entry.values(), key=lambda v: -v["logprob"]) == sorted(entry.values(), key=lambda v: v["rank"])
        assert entry[str(at)]["decoded_token"] and all(v["logprob"] <= 0 for v in entry.values())
    assert math.isclose(sum(echoed["token_logprobs"][1:-1]), sum(e[str(i)]["logprob"] for i, e in zip(ids[1:], a[1:])), rel_tol=1e-6)


def test_prompt_logprobs_and_logprobs(server, ids):
    """Each list has as many alternatives as were asked for."""
    body = {"prompt": ids, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 5, "logprobs": 1, "echo": True}
    choice = server.post("/v1/completions", body).json()["choices"][0]
    assert {len(e) for e in choice["prompt_logprobs"][1:]} <= {5, 6} and len(choice["logprobs"]["tokens"]) == len(ids) + 2
    assert {len(e) for e in choice["logprobs"]["top_logprobs"][1:]} <= {1, 2}
    unlikely = server.post("/v1/completions", {"prompt": ids[::-1], "max_tokens": 1, "prompt_logprobs": 32}).json()["choices"][0]["prompt_logprobs"]
    narrow = server.post("/v1/completions", {"prompt": ids[::-1], "max_tokens": 1, "prompt_logprobs": 1}).json()["choices"][0]["prompt_logprobs"]
    assert [e[str(i)] for i, e in zip(ids[-2::-1], narrow[1:])] == [e[str(i)] for i, e in zip(ids[-2::-1], unlikely[1:])]
    assert max(e[str(i)]["rank"] for i, e in zip(ids[-2::-1], narrow[1:])) > 32
    none = {"prompt": ids, "max_tokens": 2, "prompt_logprobs": 0}
    choice = server.post("/v1/completions", none).json()["choices"][0]
    assert [list(e) for e in choice["prompt_logprobs"][1:]] == [[str(i)] for i in ids[1:]] and choice["logprobs"] is None


def test_completion_ids(server, ids):
    """Every choice has those of its prompt; a stream says them once."""
    body = {"prompt": [ids, ids[:3]], "max_tokens": 4, "temperature": 0, "n": 2, "return_token_ids": True, "seed": 1}
    whole = server.post("/v1/completions", body).json()["choices"]
    assert [c["prompt_token_ids"] for c in whole] == [ids, ids, ids[:3], ids[:3]]
    assert all(text_of(server, c["token_ids"]) == c["text"] and len(c["token_ids"]) == 4 for c in whole)
    got = [c for chunk in chunks(server, "/v1/completions", body) for c in chunk["choices"]]
    for choice in whole:
        mine = [c for c in got if c["index"] == choice["index"]]
        assert sum((c["token_ids"] for c in mine), []) == choice["token_ids"]
        assert [c.get("prompt_token_ids") for c in mine] == [choice["prompt_token_ids"]] + [None] * (len(mine) - 1)
    plain = server.post("/v1/completions", {**body, "return_token_ids": False}).json()["choices"]
    assert "token_ids" not in plain[0] and [c["text"] for c in plain] == [c["text"] for c in whole]


def test_chat_ids(start):
    with start("--chat-template", "plain") as s:
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "temperature": 0, "n": 2, "seed": 2,
                "return_token_ids": True, "logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
        whole = s.post("/v1/chat/completions", {**body, "prompt_logprobs": 2}).json()
        prompt = whole["prompt_token_ids"]
        assert len(prompt) == whole["usage"]["prompt_tokens"] == len(whole["prompt_logprobs"])
        assert [next(iter(e)) for e in whole["prompt_logprobs"][1:]] == [str(i) for i in prompt[1:]]
        got = chunks(s, "/v1/chat/completions", body)
        assert [c.get("prompt_token_ids") for c in got if c["choices"][0]["delta"].get("role")] == [prompt, prompt]
        for choice in whole["choices"]:
            assert [e["token"] for e in choice["logprobs"]["content"]] == [f"token_id:{i}" for i in choice["token_ids"]]
            mine = [c["choices"][0] for c in got if c["choices"][0]["index"] == choice["index"]]
            assert sum((c.get("token_ids", []) for c in mine), []) == choice["token_ids"]
            assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
        again = s.post(GENERATE, {"token_ids": prompt, "sampling_params": {"max_tokens": 6, "temperature": 0}}).json()
        assert again["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"]


def test_too_many(server, ids):
    """What an answer holds in memory has a limit."""
    body = {"prompt": [[1] * 400] * 32, "max_tokens": 1, "n": 4, "prompt_logprobs": 32}
    error = refused(server, "/v1/completions", body, "prompt_logprobs", "log-probabilities of prompts")
    assert error["param"] in ("n", "prompt_logprobs")
    refused(server, "/v1/completions", {"prompt": ids, "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream")
    refused(server, "/v1/completions", {"prompt": ids, "prompt_logprobs": "x"}, "prompt_logprobs")
    refused(server, "/v1/completions", {"prompt": ids, "return_token_ids": 5}, "return_token_ids")
