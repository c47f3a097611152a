"""What the API refuses: the status, a JSON error that names the field, and a server that goes on."""
import pytest
import requests

PREFIX = "Input validation error: "


def body(inputs="Once", **parameters):
    return {"inputs": inputs, "parameters": parameters}


# (body, what the message must hold)
INVALID = [
    ({}, "inputs"),
    ({"inputs": None}, "inputs"),
    ({"inputs": 3}, "inputs: expected a string"),
    ({"inputs": ""}, "`inputs` cannot be empty"),
    ([], "inputs"),
    ("text", "inputs"),
    ({"inputs": "a", "parameters": 3}, "parameters: expected an object"),
    ({"inputs": "a", "parameters": [1]}, "parameters: expected an object"),
    ({"inputs": "a", "stream": "yes"}, "stream: expected true or false"),
    (body(temperature=0), "`temperature` must be strictly positive"),
    (body(temperature=-1), "`temperature` must be strictly positive"),
    (body(temperature="hot"), "parameters.temperature: expected a number"),
    (body(temperature=1e300), "`temperature`"),
    (body(repetition_penalty=0), "`repetition_penalty` must be strictly positive"),
    (body(repetition_penalty=-0.5), "`repetition_penalty` must be strictly positive"),
    (body(frequency_penalty=2.5), "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    (body(frequency_penalty=-2.5), "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    (body(presence_penalty=3), "`presence_penalty` must be >= -2.0 and <= 2.0"),
    (body(top_k=0), "`top_k` must be strictly positive"),
    (body(top_k=-3), "`top_k` must be strictly positive"),
    (body(top_k=1.5), "parameters.top_k"),
    (body(top_p=0), "`top_p` must be > 0.0 and < 1.0"),
    (body(top_p=1.1), "`top_p` must be > 0.0 and < 1.0"),
    (body(top_p="x"), "parameters.top_p: expected a number"),
    (body(typical_p=0), "`typical_p` must be > 0.0 and < 1.0"),
    (body(typical_p=2), "`typical_p` must be > 0.0 and < 1.0"),
    (body(min_p=-0.1), "`min_p`"),
    (body(min_p=1.1), "`min_p`"),
    (body(do_sample=1), "parameters.do_sample: expected true or false"),
    (body(max_new_tokens=0), "`max_new_tokens` must be strictly positive"),
    (body(max_new_tokens=-1), "`max_new_tokens` must be strictly positive"),
    (body(max_new_tokens="10"), "parameters.max_new_tokens"),
    (body(max_new_tokens=2.5), "parameters.max_new_tokens"),
    (body(max_new_tokens=2**40), "`max_new_tokens`"),
    (body(max_new_tokens=10**30), "max_new_tokens"),
    (body(max_new_tokens=900), "`inputs` tokens + `max_new_tokens` must be <= 512. Given: "),
    (body(min_new_tokens=-1), "`min_new_tokens`"),
    (body(min_tokens=9, max_new_tokens=3), "`min_tokens` must be <= `max_new_tokens`"),
    (body(best_of=0, do_sample=True), "`best_of` must be > 0 and <= 4. Given: 0"),
    (body(best_of=5, do_sample=True), "`best_of` must be > 0 and <= 4. Given: 5"),
    (body(best_of=2), "you must use sampling when `best_of` is > 1"),
    (body(best_of=2, do_sample=True, seed=1), "`seed` must not be set when `best_of` > 1"),
    ({**body(best_of=2, do_sample=True), "stream": True}, "`best_of` != 1 is not supported when streaming tokens"),
    ({**body(decoder_input_details=True), "stream": True}, "`decoder_input_details` == true is not supported when streaming tokens"),
    (body(seed=-1), "parameters.seed"),
    (body(seed=2**64), "parameters.seed"),
    (body(seed="x"), "parameters.seed"),
    (body(stop=["a"] * 5), "`stop` supports up to 4 stop sequences. Given: 5"),
    (body(stop=[""]), "`stop`"),
    (body(stop=["x" * 257]), "`stop`"),
    (body(stop=["a", 3]), "parameters.stop[1]: expected a string"),
    (body(stop={"a": 1}), "parameters.stop"),
    (body(stop_sequences=["a"] * 9), "`stop_sequences` supports up to 4"),
    (body(stop_token_ids=[1, -1]), "parameters.stop_token_ids[1]"),
    (body(stop_token_ids=[10**9]), "parameters.stop_token_ids[0]"),
    (body(stop_token_ids=[1.5]), "parameters.stop_token_ids[0]"),
    (body(stop_token_ids=[1] * 17), "`stop_token_ids` supports up to 16"),
    (body(stop_token_ids=3), "parameters.stop_token_ids: expected an array"),
    (body(top_n_tokens=6), "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    (body(top_n_tokens=-1), "`top_n_tokens` must be >= 0 and <= 5. Given: -1"),
    (body(truncate=0), "`truncate` must be strictly positive and less than 512. Given: 0"),
    (body(truncate=512), "`truncate` must be strictly positive and less than 512. Given: 512"),
    (body(logit_bias=[1]), "parameters.logit_bias: expected an object"),
    (body(logit_bias={"x": 1}), "parameters.logit_bias"),
    (body(logit_bias={"-1": 1}), "parameters.logit_bias"),
    (body(logit_bias={"99999999": 1}), "parameters.logit_bias"),
    (body(logit_bias={"1": "x"}), "parameters.logit_bias.1"),
    (body(logit_bias={"1": 101}), "parameters.logit_bias.1"),
    (body(logit_bias={str(i): 0 for i in range(1025)}), "`logit_bias` supports up to 1024"),
    (body(priority=2**40), "parameters.priority"),
    (body(watermark=True), "watermark is not supported"),
    (body(grammar={"type": "lark", "value": "a"}), "grammar is not valid: the type lark is not supported"),
    (body(adapter_id="mine"), "`adapter_id`: no adapter is called \"mine\"; none is loaded"),
    (body(adapter_id=""), "`adapter_id`: no adapter is called"),
    (body(details="yes"), "parameters.details: expected true or false"),
    (body(return_full_text=0), "parameters.return_full_text: expected true or false"),
    (body(ignore_eos="no"), "parameters.ignore_eos: expected true or false"),
    (body("word " * 600), "`inputs`"),
]

MALFORMED = [b"", b"{", b"{'inputs': 'a'}", b'{"inputs": "a",}', b'{"inputs": "a"} x', b'{"inputs": "\xff"}', b'{"inputs": "\\ud800"}',
             b'{"inputs": "a\nb"}', b'{"inputs": NaN}', b"[" * 100_000, b'{"inputs": "a", "parameters": {"temperature": 1e999}}',
             b'{"inputs": "a\\u0000b"}', b"inputs=a", b"\xef\xbb\xbf{}", b"nul", b'{"inputs": 01}', b"\x00"]


def assert_alive(server):
    assert server.generate("Once", max_new_tokens=1)["generated_text"]


@pytest.mark.smoke
@pytest.mark.parametrize("request_body, says", INVALID, ids=range(len(INVALID)))
def test_invalid(server, request_body, says):
    for path in ("/generate", "/"):
        answer = server.post(path, request_body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["error_type"] == "validation"
        assert answer.json()["error"].startswith(PREFIX) and says in answer.json()["error"]
        assert answer.headers["content-type"] == "application/json"
    assert_alive(server)


def test_a_list_is_not_generated_from(server):
    """On / it asks for embeddings (test_embeddings.py)."""
    for path in ("/generate", "/generate_stream"):
        answer = server.post(path, {"inputs": ["a"]})
        assert answer.status_code == 422 and answer.json()["error"] == PREFIX + "inputs: expected a string"


@pytest.mark.smoke
@pytest.mark.parametrize("path", ["/generate", "/", "/generate_stream", "/tokenize"])
@pytest.mark.parametrize("raw", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed(server, path, raw):
    answer = requests.post(server.url + path, data=raw, headers={"Content-Type": "application/json"}, timeout=300)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error_type"] == "validation" and answer.json()["error"]
    assert_alive(server)


def test_too_many_members(server):
    """Looking a field up takes as many steps as there are members."""
    many = {f"x{i}": 0 for i in range(1001)}
    for path, refused in (("/generate", {"inputs": "Once", **many}), ("/generate", {"inputs": "Once", "parameters": many}),
                          ("/v1/completions", {"prompt": "Once", **many}),
                          ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], **many})):
        answer = server.post(path, refused)
        assert answer.status_code == 400 and "1000 members" in answer.text, answer.text
    del many["x0"], many["x1"], many["x2"]
    assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, **many}).status_code == 200
    assert server.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 1, **many}}).status_code == 200


@pytest.mark.parametrize("request_body, says", [({}, "inputs"), ({"inputs": 3}, "inputs"), ({"inputs": "a", "add_special_tokens": 3}, "add_special_tokens"),
                                                ([], "inputs")])
def test_invalid_tokenize(server, request_body, says):
    answer = server.post("/tokenize", request_body)
    assert answer.status_code == 422 and says in answer.json()["error"]


def test_the_stream_route_refuses_before_it_starts(server):
    answer = server.post("/generate_stream", body(temperature=0))
    assert answer.status_code == 422 and answer.headers["content-type"] == "application/json"
    answer = server.post("/generate_stream", body(best_of=2, do_sample=True))
    assert "`best_of` != 1" in answer.json()["error"]


def test_the_last_of_duplicate_fields_counts(server):
    raw = b'{"inputs": "Once", "parameters": {"max_new_tokens": 0, "max_new_tokens": 2, "stop": ["a"], "stop": 3}}'
    assert "parameters.stop" in requests.post(server.url + "/generate", data=raw, timeout=300).json()["error"]


def test_unknown_fields_and_nulls_are_fine(server):
    every = ["best_of", "temperature", "repetition_penalty", "frequency_penalty", "top_k", "top_p", "typical_p", "max_new_tokens", "return_full_text",
             "stop", "truncate", "seed", "top_n_tokens", "grammar", "adapter_id", "min_p", "presence_penalty", "logit_bias", "stop_token_ids", "priority"]
    answer = server.post("/generate", {"inputs": "Once", "more": [1, {}], "parameters": {**dict.fromkeys(every), "what": 3, "truncate": 20}})
    assert answer.status_code == 200


def test_refusals_are_counted(server):
    before = server.metric("tandem_requests_rejected_total", reason="validation")
    server.post("/generate", body(top_p=7))
    assert server.metric("tandem_requests_rejected_total", reason="validation") == before + 1
    assert server.metric("tandem_requests_total", route="/generate", status="422") >= 1


def test_wrong_routes(server):
    assert server.get("/nothing").status_code == 404
    assert server.get("/generate").status_code == 405
    assert server.post("/info", {}).status_code == 405
    assert server.metric("tandem_requests_total", route="other", status="404") >= 1


@pytest.mark.parametrize("path, near", [
    ("/chat/completions", "/v1/chat/completions"),
    ("/models", "/v1/models"),
    ("/models/demo", "/v1/models/demo"),
    ("/fine_tuning/jobs/x/events", "/v1/fine_tuning/jobs/x/events"),
    ("/v1/v1/chat/completions", "/v1/chat/completions"),
    ("/v1/generate", "/generate"),
    ("/nothing", None),
    ("/v1/", None),
    ("/v1" + "/x" * 60, None),
])
def test_other_base_urls(server, path, near):
    """With the /v1 of a base URL forgotten, or doubled: what was meant."""
    for answer in (server.get(path), server.post(path, {})):
        assert answer.status_code == 404
        error = answer.json()["error"]
        text = error["message"] if path.startswith("/v1/") else error
        assert text == f"{path}: no such path" + (f"; did you mean {near}?" if near else "")
