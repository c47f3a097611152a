"""TGI's generate convention: shapes, parameters, and what they do to the text."""
import json
import math
import time

import pytest
import requests
from conftest import MODEL, ROOT, at_some_pace, wait_for
from huggingface_hub import InferenceClient
from sse import events, stream, text_of
from test_concurrency import raw_stream

PROMPT = "Once upon a time"


# ---- shapes ----------------------------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_plain_answer(server):
    answer = server.post("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"generated_text"}
    assert isinstance(answer.json()["generated_text"], str)


def test_response_headers(server):
    h = server.post("/generate", {"inputs": PROMPT, "parameters": {"max_new_tokens": 8}}).headers
    assert h["x-generated-tokens"] == "8"
    assert int(h["x-prompt-tokens"]) >= 4
    assert h["x-compute-characters"] == str(len(PROMPT))
    assert h["x-compute-type"]
    assert float(h["x-compute-time"]) > 0
    for name in ("x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token"):
        assert int(h[name]) >= 0


@pytest.mark.smoke
def test_details(server):
    got = server.generate(max_new_tokens=6, details=True)
    d = got["details"]
    assert list(got) == ["generated_text", "details"]
    assert list(d) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens"]
    assert (d["finish_reason"], d["generated_tokens"], d["seed"], d["prefill"]) == ("length", 6, None, [])
    assert len(d["tokens"]) == 6
    assert "".join(t["text"] for t in d["tokens"]) == got["generated_text"]
    for t in d["tokens"]:
        assert list(t) == ["id", "text", "logprob", "special"]
        assert t["logprob"] <= 0 and t["special"] is False


def test_prefill_and_top_tokens(server):
    d = server.generate(max_new_tokens=3, decoder_input_details=True, top_n_tokens=4)["details"]
    assert [list(t) for t in d["prefill"]] == [["id", "text", "logprob"]] * len(d["prefill"])
    assert d["prefill"][0]["logprob"] is None
    assert all(t["logprob"] < 0 for t in d["prefill"][1:])
    assert len(d["top_tokens"]) == 3
    for token, top in zip(d["tokens"], d["top_tokens"]):
        assert len(top) == 4
        assert [t["logprob"] for t in top] == sorted((t["logprob"] for t in top), reverse=True)
        assert top[0]["id"] == token["id"] and math.isclose(top[0]["logprob"], token["logprob"], abs_tol=1e-4)


@pytest.mark.smoke
def test_stream(server):
    plain = server.generate(max_new_tokens=12, details=True, top_n_tokens=2)
    with requests.post(server.url + "/generate_stream", stream=True, timeout=300,
                       json={"inputs": PROMPT, "parameters": {"max_new_tokens": 12, "details": True, "top_n_tokens": 2}}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-compute-characters"] == str(len(PROMPT))
        got = list(events(answer))
    assert [e["index"] for e in got] == list(range(1, 13))
    assert [e["token"]["id"] for e in got] == [t["id"] for t in plain["details"]["tokens"]]
    assert [e["top_tokens"] for e in got] == plain["details"]["top_tokens"]
    assert all(e["generated_text"] is None and e["details"] is None for e in got[:-1])
    assert text_of(got) == plain["generated_text"]
    assert got[-1]["details"] == {"finish_reason": "length", "generated_tokens": 12, "seed": None,
                                  "input_length": server_prompt_tokens(server)}


def server_prompt_tokens(server, text=PROMPT):
    return len(server.post("/tokenize", {"inputs": text}).json())


def test_stream_without_details(server):
    got = stream(server, max_new_tokens=3)
    assert got[-1]["details"] is None and "top_tokens" not in got[0]


def test_raw_stream_bytes(server):
    answer = server.post("/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 3}})
    blocks = answer.content.split(b"\n\n")
    assert blocks.pop() == b""
    assert len(blocks) == 3 and all(b.startswith(b'data: {"index":') and b"\n" not in b for b in blocks)
    assert b"[DONE]" not in answer.content


def test_compat_route(server):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 5}}
    plain = server.generate(max_new_tokens=5)["generated_text"]
    listed = server.post("/", body).json()
    assert isinstance(listed, list) and len(listed) == 1
    assert listed[0]["generated_text"] == PROMPT + plain  # return_full_text is on here by default
    body["parameters"]["return_full_text"] = False
    assert server.post("/", body).json() == [{"generated_text": plain}]
    assert text_of(stream(server, path="/", max_new_tokens=5)) == PROMPT + plain
    assert text_of(stream(server, path="/generate", max_new_tokens=5)) == plain


def test_return_full_text(server):
    short = server.generate(max_new_tokens=5)["generated_text"]
    assert server.generate(max_new_tokens=5, return_full_text=True)["generated_text"] == PROMPT + short
    assert text_of(stream(server, max_new_tokens=5, return_full_text=True)) == PROMPT + short


# ---- huggingface_hub -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("path", ["", "/generate"])
def test_hub_client(server, path):
    client = InferenceClient(model=server.url + path)
    expected = server.generate(max_new_tokens=10)["generated_text"]
    text = client.text_generation(PROMPT, max_new_tokens=10, return_full_text=False)
    assert text == expected
    details = client.text_generation(PROMPT, max_new_tokens=10, details=True, return_full_text=False, decoder_input_details=True, top_n_tokens=2)
    assert details.generated_text == expected
    assert details.details.finish_reason == "length" and details.details.generated_tokens == 10
    assert details.details.prefill[0].logprob is None and len(details.details.tokens) == 10
    assert "".join(client.text_generation(PROMPT, max_new_tokens=10, stream=True, return_full_text=False)) == expected
    chunks = list(client.text_generation(PROMPT, max_new_tokens=10, stream=True, details=True, return_full_text=False))
    assert chunks[-1].generated_text == expected and chunks[-1].details.finish_reason == "length"
    sampled = client.text_generation(PROMPT, max_new_tokens=10, do_sample=True, temperature=0.9, top_k=40, top_p=0.9, typical_p=0.95,
                                     repetition_penalty=1.1, frequency_penalty=0.1, seed=3, stop=["zzz"], truncate=50, return_full_text=False)
    assert sampled == client.text_generation(PROMPT, max_new_tokens=10, do_sample=True, temperature=0.9, top_k=40, top_p=0.9, typical_p=0.95,
                                             repetition_penalty=1.1, frequency_penalty=0.1, seed=3, stop=["zzz"], truncate=50, return_full_text=False)


def test_hub_client_sees_typed_errors(server):
    from huggingface_hub.errors import ValidationError
    with pytest.raises(ValidationError, match="temperature"):
        InferenceClient(model=server.url).text_generation(PROMPT, temperature=-1.0)


# ---- sampling --------------------------------------------------------------------------------------------------------

def test_greedy_is_the_default_with_parameters(server):
    first, second = (server.generate(max_new_tokens=20, details=True) for _ in range(2))
    assert first == second and first["details"]["seed"] is None


def test_absent_parameters_sample(server):
    """The trap of this convention: no `parameters` object at all means do_sample."""
    texts = {server.post("/generate", {"inputs": "Once"}).json()["generated_text"] for _ in range(4)}
    assert len(texts) > 1
    texts = {server.post("/generate", {"inputs": "Once", "parameters": None}).json()["generated_text"] for _ in range(4)}
    assert len(texts) > 1


@pytest.mark.parametrize("parameters, samples", [
    ({}, False), ({"do_sample": False}, False), ({"temperature": 1.0}, False), ({"top_p": 1.0, "typical_p": 1.0}, False), ({"seed": 4}, False),
    ({"repetition_penalty": 1.2}, False), ({"temperature": None, "top_k": None}, False),
    ({"do_sample": True}, True), ({"temperature": 0.7}, True), ({"top_k": 5}, True), ({"top_p": 0.9}, True), ({"typical_p": 0.9}, True),
    ({"min_p": 0.1}, True), ({"top_k": 10**6}, True),
])
def test_what_switches_sampling_on(server, parameters, samples):
    d = server.generate(max_new_tokens=2, details=True, **parameters)["details"]
    assert (d["seed"] is not None) == samples


def test_seeds(server):
    first = server.generate(max_new_tokens=24, do_sample=True, seed=7, details=True)
    assert first["details"]["seed"] == 7
    assert server.generate(max_new_tokens=24, do_sample=True, seed=7, details=True) == first
    other = {server.generate(max_new_tokens=24, do_sample=True, seed=s)["generated_text"] for s in range(8)}
    assert len(other) > 1
    big = 2**64 - 1
    assert server.generate(max_new_tokens=2, do_sample=True, seed=big, details=True)["details"]["seed"] == big


def test_a_reported_seed_replays(server):
    got = server.generate(max_new_tokens=24, temperature=1.3, details=True)
    seed = got["details"]["seed"]
    assert 0 <= seed < 2**53
    assert server.generate(max_new_tokens=24, temperature=1.3, details=True, seed=seed) == got
    assert text_of(stream(server, max_new_tokens=24, temperature=1.3, seed=seed)) == got["generated_text"]


def test_best_of(server):
    got = server.generate(max_new_tokens=10, do_sample=True, best_of=3, details=True)
    d = got["details"]
    others = d["best_of_sequences"]
    assert len(others) == 2 and len({d["seed"], *(o["seed"] for o in others)}) == 3

    def mean(sequence):
        return sum(t["logprob"] for t in sequence["tokens"]) / len(sequence["tokens"])
    assert mean(d) >= max(map(mean, others))
    for o in others:
        assert server.generate(max_new_tokens=10, do_sample=True, seed=o["seed"])["generated_text"] == o["generated_text"]
        assert o["finish_reason"] in ("length", "eos_token") and o["generated_tokens"] == len(o["tokens"])
    assert server.generate(max_new_tokens=10, do_sample=True, seed=d["seed"])["generated_text"] == got["generated_text"]


def test_logit_bias(server):
    comma = server.generate(max_new_tokens=1, details=True)["details"]["tokens"][0]["id"]
    forced = server.generate(max_new_tokens=5, details=True, logit_bias={"20": 100})["details"]["tokens"]
    assert [t["id"] for t in forced] == [20] * 5
    banned = server.generate(max_new_tokens=10, details=True, logit_bias={str(comma): -100})["details"]["tokens"]
    assert comma not in [t["id"] for t in banned]


def test_penalties_change_the_text(server):
    plain = server.generate(max_new_tokens=40)["generated_text"]
    assert server.generate(max_new_tokens=40, repetition_penalty=1.5)["generated_text"] != plain
    assert server.generate(max_new_tokens=40, frequency_penalty=1.5)["generated_text"] != plain
    assert server.generate(max_new_tokens=40, presence_penalty=1.5)["generated_text"] != plain


def test_extreme_numbers_do_no_harm(server):
    for parameters in ({"temperature": 1e-30}, {"temperature": 1e30}, {"repetition_penalty": 1e-30}, {"repetition_penalty": 1e30},
                       {"top_k": 2**40}, {"top_p": 1e-30}, {"typical_p": 1e-30}, {"min_p": 1.0, "temperature": 5.0}, {"priority": -5}):
        d = server.generate(max_new_tokens=4, details=True, **parameters)["details"]
        assert d["generated_tokens"] >= 1 and all(math.isfinite(t["logprob"]) for t in d["tokens"])


# ---- the end ---------------------------------------------------------------------------------------------------------

def test_stop_texts(server):
    plain = server.generate(max_new_tokens=20)["generated_text"]
    word = plain.split()[3]
    end = plain.index(word) + len(word)
    for stop in ({"stop": [word]}, {"stop": word}, {"stop_sequences": [word]}, {"stop": ["zzzz", word, "never"]}):
        got = server.generate(max_new_tokens=20, details=True, **stop)
        assert got["details"]["finish_reason"] == "stop_sequence"
        assert got["generated_text"] == plain[:end]  # the stop text is kept
        received = stream(server, max_new_tokens=20, details=True, **stop)
        assert text_of(received) == plain[:end] and received[-1]["details"]["finish_reason"] == "stop_sequence"


def test_stop_ids(server):
    tokens = server.generate(max_new_tokens=20, details=True)["details"]["tokens"]
    got = server.generate(max_new_tokens=20, details=True, stop_token_ids=[tokens[4]["id"]])["details"]
    first = [t["id"] for t in tokens].index(tokens[4]["id"])
    assert got["finish_reason"] == "stop_sequence" and got["generated_tokens"] == first + 1


def eos_id(server):
    config = json.loads((MODEL / "config.json").read_text())["eos_token_id"]
    return config[0] if isinstance(config, list) else config


def test_eos(server):
    eos = eos_id(server)
    forced = {"logit_bias": {str(eos): 100}, "max_new_tokens": 4, "details": True}
    got = server.generate(**forced)
    assert got["details"]["finish_reason"] == "eos_token" and got["details"]["generated_tokens"] == 1
    assert got["generated_text"] == "" and got["details"]["tokens"][0]["special"] is True
    assert got["details"]["tokens"][0]["text"] != ""  # the token shows itself, the text does not
    for name in ("ignore_eos", "ignore_eos_token"):
        assert server.generate(**forced, **{name: True})["details"]["finish_reason"] == "length"
    for name in ("min_new_tokens", "min_tokens"):
        assert server.generate(**forced, **{name: 3})["details"]["generated_tokens"] >= 3


def test_length_wins_over_eos(server):
    got = server.generate(logit_bias={str(eos_id(server)): 100}, max_new_tokens=1, details=True)
    assert got["details"]["finish_reason"] == "length"


# ---- lengths ---------------------------------------------------------------------------------------------------------

def limits(server):
    return server.get("/info").json()


def test_without_max_new_tokens_the_context_is_filled(server):
    got = server.generate(details=True, ignore_eos=True)["details"]
    assert got["generated_tokens"] == limits(server)["max_total_tokens"] - server_prompt_tokens(server)


def test_longest_prompt_and_one_more(server):
    most, text = limits(server)["max_input_tokens"], ""
    text = "the cat " * most
    answer = server.post("/generate", {"inputs": text, "parameters": {"truncate": most, "details": True}})
    assert answer.status_code == 200 and answer.headers["x-prompt-tokens"] == str(most)
    assert answer.json()["details"]["generated_tokens"] == 1
    refused = server.post("/generate", {"inputs": text})
    assert refused.status_code == 422 and "`inputs`" in refused.json()["error"]


def test_truncate_keeps_the_end(server):
    ids = [t["id"] for t in server.post("/tokenize", {"inputs": PROMPT + " there was a dog"}).json()]
    got = server.generate(PROMPT + " there was a dog", truncate=3, max_new_tokens=2, decoder_input_details=True)["details"]
    assert [t["id"] for t in got["prefill"]] == ids[-3:]


def test_long_text_goes_to_the_pool(server):
    """Above 4 KiB the text is tokenised on another thread; the result is the same."""
    text = "The little dog ran to the park and saw a big tree. " * 400
    long, tail = (server.generate(t, truncate=40, max_new_tokens=8)["generated_text"] for t in (text, text[-1000:]))
    assert long == tail
    answer = server.post("/tokenize", {"inputs": text}).json()
    assert "".join(t["text"] for t in answer) == text or answer[0]["text"] == ""


def test_too_many_bytes_are_refused_at_once(server):
    text = "a b " * 480_000
    answer = server.post("/generate", {"inputs": text})
    assert answer.status_code == 422 and "bytes" in answer.json()["error"] and "`inputs`" in answer.json()["error"]


# ---- /tokenize -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text", [PROMPT, " ", "Ünïcödé 😀 テスト\n\ttab", "a" * 5000, "e\u0301 \u200d x", "<|endoftext|> <unk>"])
def test_tokenize_as_the_reference(server, text):
    from tokenizers import Tokenizer
    reference = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text)
    expected = [{"id": i, "text": text[a:b], "start": a, "stop": b} for i, (a, b) in zip(reference.ids, reference.offsets)]
    assert server.post("/tokenize", {"inputs": text}).json() == expected
    assert server.post("/tokenize", {"inputs": text, "parameters": {"max_new_tokens": 3}}).json() == expected


def test_tokenize_without_special_tokens(server):
    with_special = server.post("/tokenize", {"inputs": PROMPT, "add_special_tokens": True}).json()
    without = server.post("/tokenize", {"inputs": PROMPT, "add_special_tokens": False}).json()
    assert without == [t for t in with_special if t["stop"] > t["start"]]


# ---- the other routes ------------------------------------------------------------------------------------------------

def test_small_routes(server):
    for path in ("/health", "/ping", "/ready"):
        assert server.get(path).status_code == 200 and server.get(path).text == ""
    assert server.get("/").json()["server"].startswith("tandem ")
    info = server.get("/info").json()
    for name in ("model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences",
                 "max_input_tokens", "max_total_tokens", "validation_workers", "max_client_batch_size", "router", "version", "sha", "docker_label"):
        assert name in info
    assert info["model_id"] == MODEL.name and info["max_input_tokens"] == info["max_total_tokens"] - 1


@pytest.mark.parametrize("name", ["qwen2", "gpt2", "tinystories-656k"])
def test_broken_utf8_never_reaches_a_client(start, name):
    """Untrained models emit bytes of half characters: every event is whole UTF-8, and the pieces make up the text."""
    with start(model=ROOT / "tests/fixtures/models" / name) as s:
        for seed in range(6):
            parameters = {"max_new_tokens": 40, "temperature": 2.0, "seed": seed}
            plain = s.generate("Ünï", details=True, **parameters)
            pieces = [t["text"] for t in plain["details"]["tokens"] if not t["special"]]
            assert "".join(pieces) == plain["generated_text"]
            received = stream(s, "Ünï", **parameters)
            assert text_of(received) == plain["generated_text"]
            assert [e["token"] for e in received] == plain["details"]["tokens"]


def test_the_printed_curl_line_works(start):
    import subprocess
    with start() as s:
        log = s.log()
        line = log[log.index("curl "):].splitlines()[0]
        got = subprocess.run(["bash", "-c", line.replace("curl", "curl -s", 1)], capture_output=True, timeout=300)
        events = [json.loads(e.removeprefix(b"data: ")) for e in got.stdout.strip().split(b"\n\n")]
        assert [e["index"] for e in events] == list(range(1, len(events) + 1)) and len(events) > 10
        assert events[-1]["generated_text"] == "".join(e["token"]["text"] for e in events if not e["token"]["special"])


def test_keep_alive_comments(start):
    """A stream that waits in the queue is kept open by comments."""
    with start("--max-seqs", 1, "--sse-keepalive", 0.1, "--device", "ref") as s:
        from concurrent.futures import ThreadPoolExecutor

        def test(pace):
            first = raw_stream(s, {"inputs": PROMPT, "parameters": {"max_new_tokens": 480, "ignore_eos": True}})
            wait_for(lambda: s.metric("tandem_requests_running") == 1, what="the first one")
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(s.post, "/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}})
                wait_for(lambda: s.metric("tandem_requests_waiting") == 1 or waiting.done(), what="the second one")
                time.sleep(0.3 * pace)
                first.close()
                answer = waiting.result()
            assert answer.content.startswith(b":\n\n") and answer.content.count(b"data: ") == 2
        at_some_pace(test)
