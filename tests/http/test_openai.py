"""/v1/models and /v1/completions: OpenAI's shapes, with the openai package, and the same texts as /generate's."""
import json
import math
import socket
import threading
import time

import openai
import pytest
import requests
from conftest import MODEL, ROOT, wait_for
from openai_tools import client_of, sse_chunks

PROMPT = "Once upon a time"
PIRATE = ROOT / "models/demo-pirate"


@pytest.fixture
def client(server):
    return client_of(server)


def complete(client, prompt=PROMPT, **kw):
    kw = {"model": MODEL.name, "max_tokens": 8, "temperature": 0, **kw}
    extra = {k: kw.pop(k) for k in list(kw) if k in VLLM}
    return client.completions.create(prompt=prompt, extra_body=extra, **kw)


VLLM = {"top_k", "min_p", "typical_p", "repetition_penalty", "stop_token_ids", "min_tokens", "ignore_eos", "priority", "echo_all",
        "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens", "truncate_prompt_tokens", "cache_salt"}


def ids_of(server, text):
    return [t["id"] for t in server.post("/tokenize", {"inputs": text}).json()]


def joined(stream, index=0):
    """The text of one choice of a stream, and its finish_reason."""
    text, finish = "", None
    for chunk in stream:
        for choice in chunk.choices:
            if choice.index == index:
                text += choice.text
                finish = choice.finish_reason or finish
    return text, finish


# ---- models ----------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_models(client, server):
    [model] = client.models.list().data
    assert model.id == MODEL.name and model.object == "model" and model.owned_by == "tandem" and model.parent is None
    assert model.root.endswith(MODEL.name) and model.max_model_len == server.get("/info").json()["max_total_tokens"]
    assert client.models.retrieve(MODEL.name) == model
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("org/other")
    assert e.value.code == "model_not_found" and MODEL.name in e.value.message


def test_names(start):
    with start("--served-model-name", "org/story,story", "--adapters", f"pirate={PIRATE}") as s:
        client = client_of(s)
        models = {m.id: m for m in client.models.list().data}
        assert list(models) == ["org/story", "story", "pirate"] and models["pirate"].parent == "org/story"
        assert client.models.retrieve("org/story").id == "org/story"
        plain = complete(client, model="story").choices[0].text
        assert complete(client, model="org/story").model == "org/story"
        for name in ("tgi", "dummy", ""):
            assert complete(client, model=name).choices[0].text == plain
        assert s.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}).json()["model"] == "org/story"
        pirate = complete(client, model="pirate")
        assert pirate.model == "pirate" and pirate.choices[0].text == s.generate(max_new_tokens=8, adapter_id="pirate")["generated_text"]
        assert pirate.choices[0].text != plain
        for name in (MODEL.name, "gpt-4", "pirate2"):
            with pytest.raises(openai.NotFoundError) as e:
                complete(client, model=name)
            assert e.value.param == "model" and e.value.code == "model_not_found" and "`pirate`" in e.value.message
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("tgi")


def test_any_model(start):
    with start("--accept-any-model") as s:
        assert complete(client_of(s), model="gpt-4").model == MODEL.name


# ---- completions -----------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_shape_and_usage(client, server):
    got = complete(client, max_tokens=8)
    assert got.id.startswith("cmpl-") and got.object == "text_completion" and got.model == MODEL.name
    assert got._request_id == got.id and got.system_fingerprint.startswith("fp_") and got.created > 1.7e9
    [choice] = got.choices
    assert choice.index == 0 and choice.finish_reason == "length" and choice.logprobs is None and choice.stop_reason is None
    assert choice.text == server.generate(max_new_tokens=8)["generated_text"]
    n = len(ids_of(server, PROMPT))
    assert (got.usage.prompt_tokens, got.usage.completion_tokens, got.usage.total_tokens) == (n, 8, n + 8)
    assert got.usage.prompt_tokens_details.cached_tokens >= 0
    assert complete(client, max_tokens=openai.NOT_GIVEN).usage.completion_tokens == 16


def test_cached_tokens(client):
    prompt = "The cat and the dog went to the park to play with a red ball. " * 3
    complete(client, prompt)
    again = complete(client, prompt).usage
    assert 16 <= again.prompt_tokens_details.cached_tokens < again.prompt_tokens


def test_prefixes_of_another_salt_are_not_shared(client, server):
    prompt = "The frog and the bird sat by the river and sang a song for the moon. " * 3
    cached = lambda **more: complete(client, prompt, **more).usage.prompt_tokens_details.cached_tokens
    assert cached(cache_salt="a") == 0 and cached(cache_salt="a") >= 16
    assert cached(cache_salt="b") == 0 and cached() == 0 and cached(cache_salt=None) >= 16
    texts = [complete(client, prompt, cache_salt=salt).choices[0].text for salt in ("a", "b", "ü" * 128)]
    assert texts == [complete(client, prompt).choices[0].text] * 3
    for salt in ("", "ü" * 128 + "x", 1):
        with pytest.raises(openai.BadRequestError) as refused:
            complete(client, cache_salt=salt)
        assert refused.value.param == "cache_salt"
    parameters = {"inputs": prompt, "parameters": {"cache_salt": "a", "max_new_tokens": 1}}
    hit = requests.post(server.url + "/generate", json=parameters, timeout=300)
    assert int(hit.headers["x-cached-tokens"]) >= 16


def test_sampled_text_is_that_of_generate(client, server):
    ours = dict(temperature=0.9, top_p=0.95, seed=11, max_tokens=24, frequency_penalty=0.5, presence_penalty=0.25,
                repetition_penalty=1.1, top_k=40, min_p=0.01, typical_p=0.9, logit_bias={"5": -3})
    theirs = {**ours, "max_new_tokens": ours["max_tokens"]}
    del theirs["max_tokens"]
    text = complete(client, **ours).choices[0].text
    assert text == server.generate(**theirs)["generated_text"]
    assert text != complete(client, **{**ours, "seed": 12}).choices[0].text
    ours.update(top_p=1, top_k=-1)
    del theirs["top_k"], theirs["top_p"]
    assert complete(client, **ours).choices[0].text == server.generate(**theirs)["generated_text"]


@pytest.mark.smoke
def test_stream_says_the_same(client):
    kw = dict(max_tokens=20, temperature=0.8, seed=3, logprobs=2)
    whole = complete(client, **kw)
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}, **kw))
    assert "".join(c.choices[0].text for c in chunks[:-1]) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert len({c.id for c in chunks}) == 1 and all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(chunks[-1].usage, name) == getattr(whole.usage, name)
    for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [x for c in chunks[:-1] if c.choices[0].logprobs for x in getattr(c.choices[0].logprobs, field)]
        assert parts == getattr(whole.choices[0].logprobs, field)


def test_raw_stream(server):
    body = {"prompt": PROMPT, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    answer = server.post("/v1/completions", body)
    assert answer.headers["content-type"] == "text/event-stream" and answer.headers["x-request-id"].startswith("cmpl-")
    assert answer.content.endswith(b"\n\ndata: [DONE]\n\n") and answer.content.startswith(b'data: {"id":"cmpl-')
    chunks = sse_chunks(answer)
    assert [c["usage"]["completion_tokens"] for c in chunks[:-1]] == [1, 2, 3]
    assert "prompt_tokens_details" in chunks[-1]["usage"]
    plain = sse_chunks(server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "stream": True}))
    assert len(plain) == 3 and all("usage" not in c for c in plain)


def test_many_prompts_and_choices(client, server):
    prompts = [PROMPT, "The dog", "A cat"]
    got = complete(client, prompts, n=2, temperature=1, seed=5)
    assert [c.index for c in got.choices] == list(range(6))
    texts = [c.text for c in got.choices]
    assert texts[0] != texts[1]  # another seed each
    for i, prompt in enumerate(prompts):  # and the same as alone
        assert [c.text for c in complete(client, prompt, n=2, temperature=1, seed=5).choices] == texts[2 * i:2 * i + 2]
    assert got.usage.prompt_tokens == sum(len(ids_of(server, p)) for p in prompts)
    chunks = list(complete(client, prompts, n=2, temperature=1, seed=5, stream=True))
    assert [joined(chunks, i)[0] for i in range(6)] == texts
    assert {c.choices[0].index for c in chunks} == set(range(6))
    assert [c.text for c in complete(client, n=2).choices] == [complete(client).choices[0].text] * 2


def test_best_of(client):
    kw = dict(temperature=1, seed=9, max_tokens=6, logprobs=0)
    all_of = complete(client, n=4, **kw).choices
    best = complete(client, n=2, best_of=4, **kw)

    def score(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.tokens)
    ranked = sorted(all_of, key=score, reverse=True)
    assert [c.text for c in best.choices] == [c.text for c in ranked[:2]] and [c.index for c in best.choices] == [0, 1]
    assert best.usage.completion_tokens == sum(len(c.logprobs.tokens) for c in all_of)


def test_token_ids(client, server):
    ids, text = ids_of(server, PROMPT), complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == text
    got = complete(client, [ids, ids_of(server, "The dog")], echo=True)
    assert got.choices[0].text == PROMPT + text and got.choices[1].text.startswith("The dog")
    assert complete(client, "zzz " + PROMPT, truncate_prompt_tokens=len(ids_of(server, " " + PROMPT))).usage.prompt_tokens == \
        len(ids_of(server, " " + PROMPT))


def test_token_ids_are_counted_before_they_are_decoded(client, server):
    ids = [i * 7 % 2000 for i in range(700)]
    with pytest.raises(openai.BadRequestError, match="your prompt has 700") as e:
        complete(client, [ids[:5], ids], echo=True)
    assert e.value.code == "context_length_exceeded" and e.value.param == "prompt"
    got = complete(client, ids, echo=True, truncate_prompt_tokens=5)
    assert got.usage.prompt_tokens == 5
    assert got.choices[0].text == complete(client, ids[-5:], echo=True).choices[0].text


def test_all_prompts_are_checked_before_one_runs(client, server):
    server.wait_idle()
    before = server.metric("tandem_requests_finished_total", reason="cancelled")
    for _ in range(5):
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            complete(client, [PROMPT] * 7 + ["zq " * 400], max_tokens=100)
    server.wait_idle()
    assert server.metric("tandem_requests_finished_total", reason="cancelled") == before


def test_entries_of_one_answer(client, server):
    """The log-probabilities of prompts are bounded over all texts of an answer."""
    ids = [i * 7 % 2000 for i in range(500)]
    for prompt, n in ((ids, 128), ([ids] * 4, 32)):
        with pytest.raises(openai.BadRequestError, match="1048576 log-probabilities") as e:
            complete(client, prompt, n=n, echo=True, logprobs=20, max_tokens=1)
        assert e.value.param == "n"
    assert len(complete(client, ids, n=2, echo=True, logprobs=20, max_tokens=1).choices[1].logprobs.tokens) == 501


def test_logprobs(client, server):
    details = server.generate(max_new_tokens=6, details=True, top_n_tokens=3)["details"]
    got = complete(client, max_tokens=6, logprobs=3).choices[0]
    lp = got.logprobs
    assert lp.tokens == [t["text"] for t in details["tokens"]] and "".join(lp.tokens) == got.text
    assert lp.token_logprobs == [t["logprob"] for t in details["tokens"]]
    assert lp.top_logprobs == [{t["text"]: t["logprob"] for t in top} for top in details["top_tokens"]]
    assert [got.text[a:].startswith(t) for a, t in zip(lp.text_offset, lp.tokens)] == [True] * 6 and lp.text_offset[0] == 0
    unlikely = complete(client, max_tokens=3, logprobs=1, temperature=5, seed=1).choices[0].logprobs
    for token, value, top in zip(unlikely.tokens, unlikely.token_logprobs, unlikely.top_logprobs):
        assert top[token] == value and 1 <= len(top) <= 2
    only = complete(client, max_tokens=2, logprobs=0).choices[0].logprobs
    assert only.top_logprobs == [{t: v} for t, v in zip(only.tokens, only.token_logprobs)]


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs(client, server, stream):
    """What lm-evaluation-harness asks: the log-probabilities of a text that is given."""
    prefill = server.generate(max_new_tokens=1, decoder_input_details=True)["details"]["prefill"]
    got = complete(client, echo=True, logprobs=1, max_tokens=1, stream=stream)
    chunks = list(got) if stream else [got]
    tokens = [t for c in chunks for t in c.choices[0].logprobs.tokens]
    values = [t for c in chunks for t in c.choices[0].logprobs.token_logprobs]
    offsets = [t for c in chunks for t in c.choices[0].logprobs.text_offset]
    tops = [t for c in chunks for t in c.choices[0].logprobs.top_logprobs]
    text = "".join(c.choices[0].text for c in chunks)
    assert text == "".join(tokens) == PROMPT + complete(client, max_tokens=1).choices[0].text
    assert values[:-1] == [t["logprob"] for t in prefill] and values[0] is None and tops[0] is None
    assert len(tokens) == len(prefill) + 1 and all(text[a:].startswith(t) for a, t in zip(offsets, tokens))
    assert all(max(top.values()) >= v - 1e-6 for top, v in zip(tops[1:], values[1:]))


def test_score_only(client):
    got = complete(client, echo=True, logprobs=1, max_tokens=0)
    assert got.choices[0].text == PROMPT == "".join(got.choices[0].logprobs.tokens)
    assert got.usage.completion_tokens == 0 and got.choices[0].finish_reason == "length"
    assert complete(client, echo=True, max_tokens=0).choices[0].text == PROMPT


def test_parts_of_characters(client, server):
    """A token that is a part of a character is spelled by its bytes."""
    ids = ids_of(server, "\N{SNOWMAN}\N{FAMILY}")
    lp = complete(client, ids, echo=True, max_tokens=1, logprobs=5).choices[0].logprobs
    parts = [t for t in lp.tokens[:-1] if t.startswith("bytes:")]
    spelled = "".join(t.removeprefix("bytes:") if t.startswith("bytes:") else "".join(f"\\x{b:02x}" for b in t.encode()) for t in lp.tokens[:-1])
    assert spelled == "".join(f"\\x{b:02x}" for b in "\N{SNOWMAN}\N{FAMILY}".encode())
    assert len(parts) > 1 or len(ids) <= 2
    assert all(len(set(top)) == len(top) for top in lp.top_logprobs if top)


# ---- stops -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("stream", [False, True])
def test_stop_is_not_part_of_the_text(client, stream):
    whole = complete(client, max_tokens=24).choices[0].text
    for a, b in ((5, 6), (5, 9), (3, 14), (9, 20), (len(whole) - 4, len(whole))):
        stop = whole[a:b]
        expected = whole[:whole.index(stop)]
        for given in (stop, ["never this", stop]):
            got = complete(client, max_tokens=24, stop=given, stream=stream)
            text, finish = joined(got) if stream else (got.choices[0].text, got.choices[0].finish_reason)
            assert (text, finish) == (expected, "stop")
    got = complete(client, max_tokens=24, stop=whole[3:14], include_stop_str_in_output=True, stream=stream)
    assert (joined(got)[0] if stream else got.choices[0].text) == whole[:14]
    # what begins like a stop text and is none is text after all
    got = complete(client, max_tokens=24, stop=whole[4:16] + "\x01", stream=stream)
    assert (joined(got) if stream else (got.choices[0].text, got.choices[0].finish_reason)) == (whole, "length")


def test_stop_reasons(client, server):
    details = server.generate(max_new_tokens=12, details=True)["details"]["tokens"]
    stop = details[4]
    got = complete(client, max_tokens=12, stop=[details[2]["text"]]).choices[0]
    assert got.finish_reason == "stop" and got.stop_reason == details[2]["text"]
    got = complete(client, max_tokens=12, stop_token_ids=[stop["id"]]).choices[0]
    assert got.finish_reason == "stop" and got.stop_reason == stop["id"] and not got.text.endswith(stop["text"])
    got = complete(client, max_tokens=12, stop_token_ids=[stop["id"]], min_tokens=8)
    assert got.usage.completion_tokens > 8 or got.choices[0].finish_reason == "length"


def test_end_of_text(client, server):
    long = complete(client, "Tom was happy. The end.", max_tokens=200, temperature=1, seed=1)
    eos = {"logit_bias": {str(server_eos(server)): 100}}
    got = complete(client, max_tokens=5, logprobs=1, **eos)
    assert got.choices[0].finish_reason == "stop" and got.choices[0].stop_reason is None and got.choices[0].text == ""
    assert got.usage.completion_tokens == 1 == len(got.choices[0].logprobs.tokens)
    assert complete(client, max_tokens=5, ignore_eos=True, **eos).usage.completion_tokens == 5
    assert long.choices[0].finish_reason in ("stop", "length")


def server_eos(server):
    eos = json.loads((MODEL / "config.json").read_text())["eos_token_id"]
    return eos[0] if isinstance(eos, list) else eos


# ---- errors ----------------------------------------------------------------------------------------------------------

BAD = [
    ({}, "prompt", "missing"),
    ({"prompt": None}, "prompt", "missing"),
    ({"prompt": 3}, "prompt", "expected a string"),
    ({"prompt": []}, "prompt", "expected"),
    ({"prompt": [[]]}, "prompt", "token ids"),
    ({"prompt": ["a", 3]}, "prompt", "mixes"),
    ({"prompt": [1, "a"]}, "prompt", "token ids"),
    ({"prompt": [1, -1]}, "prompt", "token ids"),
    ({"prompt": [10**9]}, "prompt", "token ids"),
    ({"prompt": ""}, "prompt", "no tokens"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": -1}, "max_tokens", "between"),
    ({"max_tokens": "8"}, "max_tokens", "whole number"),
    ({"max_tokens": 10**6}, "prompt", "maximum context length"),
    ({"prompt": "word " * 3000}, "prompt", "maximum context length"),
    ({"prompt": "w" * 1_900_000}, "prompt", "maximum context length"),
    ({"temperature": -0.1}, "temperature", ">= 0"),
    ({"temperature": "hot"}, "temperature", "expected a number"),
    ({"top_p": 1.5}, "top_p", "<= 1"),
    ({"top_k": -2}, "top_k", "off"),
    ({"n": 0}, "n", "between"),
    ({"n": 129}, "n", "between"),
    ({"n": 2, "best_of": 1}, "best_of", "less than"),
    ({"best_of": 2, "stream": True}, "best_of", "streamed"),
    ({"prompt": ["a"] * 65, "n": 2}, "prompt", "more than the 128"),
    ({"logprobs": 21}, "logprobs", "between"),
    ({"logprobs": True}, "logprobs", "whole number"),
    ({"stop": ["a"] * 5}, "stop", "up to 4"),
    ({"stop": [""]}, "stop", "1 to 256"),
    ({"stop": 3}, "stop", "array"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "from -100 to 100"),
    ({"frequency_penalty": 3}, "frequency_penalty", "<= 2"),
    ({"presence_penalty": "x"}, "presence_penalty", "number"),
    ({"seed": 1.5}, "seed", "whole number"),
    ({"suffix": "the end"}, "suffix", "not supported"),
    ({"use_beam_search": True}, "use_beam_search", "not supported"),
    ({"stream": "yes"}, "stream", "true or false"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed when"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options", "true or false"),
    ({"stream": True, "stream_options": 1}, "stream_options", "object"),
    ({"min_tokens": 20, "max_tokens": 10}, "min_tokens", "greater than"),
    ({"model": 3}, "model", "string"),
    ({"priority": "high"}, "priority", "whole number"),
    ({"echo": "yes"}, "echo", "true or false"),
]


@pytest.mark.parametrize("fields, param, part", BAD, ids=lambda v: str(v)[:40])
def test_bad_requests(server, fields, param, part):
    body = {"model": MODEL.name, "prompt": PROMPT, "max_tokens": 3, **fields} if fields else {"model": MODEL.name}
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
    assert error["param"] == param and part in error["message"]


def test_what_is_ignored(server):
    off = {name: None for name in ("suffix", "best_of", "n", "stop", "logprobs", "logit_bias", "seed", "stream", "stream_options", "echo", "user",
                                   "temperature", "top_p", "max_tokens", "response_format", "min_tokens", "use_beam_search")}
    got = server.post("/v1/completions", {"prompt": PROMPT, **off})
    assert got.status_code == 200 and got.json()["usage"]["completion_tokens"] <= 16
    more = {"user": "me", "suffix": "", "unknown": {"a": 1}, "use_beam_search": False, "bad_words": [], "stop": [], "service_tier": "auto"}
    assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, **more}).status_code == 200


def test_not_json(server):
    for raw in (b"", b"{", b"[]", b'"x"', b'{"prompt": "a\xff"}'):
        answer = requests.post(server.url + "/v1/completions", data=raw, timeout=300)
        assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", raw


@pytest.mark.smoke
def test_python_errors(client):
    with pytest.raises(openai.BadRequestError) as e:
        complete(client, temperature=-1)
    assert e.value.param == "temperature" and e.value.body["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as e:
        complete(client, max_tokens=10**6)
    assert e.value.code == "context_length_exceeded"


# ---- the client leaves, the queue is full, the server stops --------------------------------------------------------------

@pytest.mark.smoke
def test_leaving_cancels_all_of_it(server, client):
    stream = complete(client, [PROMPT, "The dog"], n=3, max_tokens=400, ignore_eos=True, stream=True)
    next(iter(stream))
    wait_for(lambda: server.metric("tandem_requests_running") >= 2, what="running")
    stream.close()
    server.wait_idle()
    assert server.metric("tandem_requests_finished_total", reason="cancelled") >= 4


def raw_post(server, body, receive_buffer=None):
    """A socket that has sent a request and reads nothing yet."""
    s = socket.socket()
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.connect(("127.0.0.1", server.port))
    data = json.dumps(body).encode()
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


@pytest.mark.smoke
def test_leaving_while_the_prompt_is_prepared(server):
    body = {"prompt": ["word and word " * 2000] * 4, "max_tokens": 4, "truncate_prompt_tokens": 64}
    for i in range(12):
        client = raw_post(server, body)
        time.sleep(0.004 * (i % 4))
        client.close()
    wait_for(lambda: server.post("/v1/completions", body).status_code == 200, what="room for the prompt")  # 429 while those before are ended
    server.wait_idle()


def test_a_slow_reader_of_several_choices(start):
    """All of its sequences are paused, others go on, and in the end it gets everything."""
    with start() as s:
        slow = raw_post(s, {"prompt": "Once", "n": 4, "max_tokens": 480, "ignore_eos": True, "temperature": 0, "logprobs": 20, "stream": True},
                        receive_buffer=4096)
        wait_for(lambda: s.metric("tandem_requests_paused") == 4, what="paused")
        assert s.generate(max_new_tokens=20)
        data = bytearray()
        slow.settimeout(300)
        while not data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            got = slow.recv(1 << 20)
            assert got
            data += got
        slow.close()
        chunks = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
        texts = ["".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == i) for i in range(4)]
        assert set(texts) == {s.generate("Once", max_new_tokens=480, ignore_eos=True)["generated_text"]}
        s.wait_idle()


def test_retries_when_overloaded(start):
    with start("--max-seqs", 1, "--max-queue", 1, "--device", "ref") as s:
        for _ in range(3):
            s.generate(max_new_tokens=1)  # so that the time to wait is known to be short
        holders = []
        for state in ("running", "waiting"):
            holders.append(complete(client_of(s), max_tokens=400, ignore_eos=True, stream=True))
            wait_for(lambda: s.metric("tandem_requests_" + state) == 1, what=state)
        with pytest.raises(openai.RateLimitError) as e:
            complete(client_of(s))
        assert e.value.type == "rate_limit_error" and 1 <= int(e.value.response.headers["retry-after"]) <= 120
        refused = s.metric("tandem_requests_rejected_total", reason="queue_full")

        def make_room():
            wait_for(lambda: s.metric("tandem_requests_rejected_total", reason="queue_full") > refused, what="refused")
            for h in holders:
                h.close()
        thread = threading.Thread(target=make_room)
        thread.start()
        assert complete(client_of(s, max_retries=5), max_tokens=2).usage.completion_tokens == 2
        thread.join()


def test_stopping_ends_streams_with_an_error(start):
    with start("--drain-timeout", 0) as s:
        stream = complete(client_of(s), max_tokens=450, ignore_eos=True, stream=True)
        next(iter(stream))
        s.signal()
        with pytest.raises((openai.APIError, StopIteration)) as e:
            for _ in range(1000):
                next(stream)
        assert e.type is StopIteration or "stopping" in str(e.value)


def test_mean_of_logprobs_is_finite(client):
    assert all(math.isfinite(v) for v in complete(client, temperature=2, seed=4, logprobs=0).choices[0].logprobs.token_logprobs)
