"""PyPI's `tinker`, unmodified, against the routes below /api/v1/ (docs/tinker.md)."""
import math
import re

import pytest
import requests
from client_rig import NEEDS_DEMO, start  # noqa: F401
from keys import Keys
from tinker_rig import PATIENCE, encode, server, service, settled, tinker, types  # noqa: F401

pytestmark = NEEDS_DEMO


@pytest.fixture(scope="module")
def sampler(service):
    return settled(service.create_sampling_client(base_model="demo"))


def sample(sampler, prompt, n=1, **kw):
    extra = {k: kw.pop(k) for k in list(kw) if "logprobs" in k}
    return sampler.sample(types.ModelInput.from_ints(prompt), n, types.SamplingParams(**kw), **extra).result(timeout=PATIENCE)


def test_capabilities(service):
    models = service.get_server_capabilities().supported_models
    assert [m.model_name for m in models] == ["demo"] and models[0].max_context_length > 100


def test_a_greedy_text_is_that_of_the_other_routes(server, sampler):
    want = server.generate(max_new_tokens=20, decoder_input_details=True, details=True)["details"]
    answer = sample(sampler, [t["id"] for t in want["prefill"]], max_tokens=20, temperature=0)
    got = answer.sequences[0]
    assert list(got.tokens) == [t["id"] for t in want["tokens"]]
    assert list(got.logprobs) == pytest.approx([t["logprob"] for t in want["tokens"]], abs=1e-6)
    assert got.stop_reason == "length"


def test_prompt_logprobs_and_the_most_likely(server, sampler):
    want = server.generate(max_new_tokens=3, decoder_input_details=True, details=True)["details"]
    prompt = [t["id"] for t in want["prefill"]]
    answer = sample(sampler, prompt, max_tokens=3, temperature=0, include_prompt_logprobs=True, topk_prompt_logprobs=4)
    assert answer.prompt_logprobs[0] is None
    assert answer.prompt_logprobs[1:] == pytest.approx([t["logprob"] for t in want["prefill"][1:]], abs=1e-6)
    rows = answer.topk_prompt_logprobs
    assert rows[0] is None and all(len(row) == 4 for row in rows[1:])
    for token, logprob, row in zip(prompt[1:], answer.prompt_logprobs[1:], rows[1:]):
        assert [p for _, p in row] == sorted((p for _, p in row), reverse=True)
        assert dict(row).get(token, logprob) == pytest.approx(logprob, abs=1e-6)
    assert sampler.compute_logprobs(types.ModelInput.from_ints(prompt)).result(timeout=PATIENCE) == pytest.approx(answer.prompt_logprobs)


def test_several_samples_differ_and_repeat_with_their_seed(server, sampler):
    prompt = encode(server, "Once upon a time")
    first, again = (sample(sampler, prompt, 4, max_tokens=12, temperature=1, seed=7) for _ in range(2))
    texts = [tuple(s.tokens) for s in first.sequences]
    assert texts == [tuple(s.tokens) for s in again.sequences] and len(set(texts)) > 1
    assert len({s.sequence_id for s in first.sequences + again.sequences}) == 8
    assert all(math.isfinite(p) and p <= 0 for s in first.sequences for p in s.logprobs)


def test_a_stop_text_ends_it(server, sampler):
    prompt = encode(server, "Once upon a time")
    free = list(sample(sampler, prompt, max_tokens=12, temperature=0).sequences[0].tokens)
    answer = sample(sampler, prompt, max_tokens=12, temperature=0, stop=[free[4]]).sequences[0]
    assert list(answer.tokens) == free[:free.index(free[4]) + 1] and answer.stop_reason == "stop"


def test_a_text_that_does_not_fit_is_the_callers_error(sampler):
    with pytest.raises(tinker.RequestFailedError, match="max_tokens"):
        sample(sampler, [1, 2, 3], max_tokens=10**6)
    with pytest.raises(tinker.RequestFailedError, match="vocab|token"):
        sample(sampler, [10**8], max_tokens=1)


def test_an_unknown_model_is_refused(service):
    with pytest.raises(tinker.NotFoundError, match="base_model"):
        settled(service.create_sampling_client(base_model="other"))


def begin(url):
    session = requests.post(url + "/api/v1/create_session", json={"tags": []}).json()["session_id"]
    answer = requests.post(url + "/api/v1/create_sampling_session", json={"session_id": session, "sampling_session_seq_id": 0, "base_model": "demo"})
    return session, answer.json()["sampling_session_id"]


def test_a_request_that_comes_again_is_computed_once(server):
    session, sampler = begin(server.url)
    body = {"sampling_session_id": sampler, "seq_id": 3, "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}, "sampling_params": {"max_tokens": 2}}
    first, again = (requests.post(server.url + "/api/v1/asample", json=body).json() for _ in range(2))
    assert first == again and len(first["sample_sequence_ids"]) == 1
    results = [requests.post(server.url + "/api/v1/retrieve_future", json={"request_id": first["request_id"]}).content for _ in range(2)]
    assert results[0] == results[1] != b""
    assert requests.post(f"{server.url}/api/v1/sessions/{session}/finish", json={}).status_code == 200
    assert requests.post(server.url + "/api/v1/retrieve_future", json={"request_id": first["request_id"]}).status_code == 410
    assert requests.post(server.url + "/api/v1/session_heartbeat", json={"session_id": session}).status_code == 404


def test_a_session_that_ends_cancels_what_it_began(server):
    session, sampler = begin(server.url)
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}
    for i in range(8):
        body = {"sampling_session_id": sampler, "seq_id": i, "num_samples": 64, "prompt": prompt, "sampling_params": {"max_tokens": 200, "stop": []}}
        assert requests.post(server.url + "/api/v1/asample", json=body).status_code == 200
    assert requests.post(f"{server.url}/api/v1/sessions/{session}/finish", json={}).status_code == 200
    server.wait_idle()


BAD = [
    ({"prompt": None}, "prompt"), ({"prompt": {"chunks": [{"tokens": []}]}}, "prompt"), ({"prompt": {"chunks": [7]}}, r"chunks\[0\]"),
    ({"prompt": {"chunks": [{"type": "image", "data": ""}]}}, "encoded_text"), ({"prompt": {"chunks": [{"tokens": [1.5]}]}}, "tokens"),
    ({"prompt": {"chunks": [{"tokens": [-1]}]}}, "tokens"), ({"num_samples": 0}, "num_samples"), ({"num_samples": 10**9}, "num_samples"),
    ({"seq_id": None}, "seq_id"), ({"seq_id": -1}, "seq_id"), ({"sampling_params": 5}, "sampling_params"),
    ({"sampling_params": {"max_tokens": 0}}, "max_tokens"), ({"sampling_params": {"temperature": -1}}, "temperature"),
    ({"sampling_params": {"top_p": 0}}, "top_p"), ({"sampling_params": {"stop": {}}}, "stop"), ({"sampling_params": {"stop": ["a"] * 17}}, "stop"),
    ({"topk_sample_logprobs": 1000}, "topk_sample_logprobs"), ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_logprobs_last_n": 1}, "prompt_logprobs"), ({"prompt_alt_tokens_k": 1000}, "prompt_alt_tokens_k"),
]


@pytest.mark.parametrize("change, says", BAD, ids=[str(c)[:50] for c, _ in BAD])
def test_a_bad_request_is_refused_by_name(server, change, says):
    session, sampler = begin(server.url)
    body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [5, 6]}]}, "sampling_params": {"max_tokens": 2}}
    answer = requests.post(server.url + "/api/v1/asample", json={**body, **change})
    assert answer.status_code == 422, answer.text
    assert re.search(says, answer.json()["error"])
    requests.post(f"{server.url}/api/v1/sessions/{session}/finish", json={})


def test_a_key_in_the_form_that_the_client_wants(start, tmp_path):  # noqa: F811
    keys = Keys(tmp_path / "keys")
    with start("--served-model-name", "demo", "--api-keys", keys.file, key=keys.admin) as s:
        client = tinker.ServiceClient(base_url=s.url, api_key="tml-" + keys.user)
        got = sample(settled(client.create_sampling_client(base_model="demo")), [5, 6], max_tokens=3)
        assert len(got.sequences[0].tokens) == 3
        with pytest.raises(tinker.PermissionDeniedError):
            settled(client.create_lora_training_client(base_model="demo", rank=4))
        client.holder.close()
        head = {"X-API-Key": "tml-" + keys.wrong}
        assert requests.post(s.url + "/api/v1/create_session", json={}, headers=head).status_code == 401
        mine = requests.post(s.url + "/api/v1/create_session", json={}, headers={"X-API-Key": "tml-" + keys.user}).json()["session_id"]
        for key, status in (keys.train, 404), (keys.user, 200):
            answer = requests.post(s.url + "/api/v1/session_heartbeat", json={"session_id": mine}, headers={"Authorization": "Bearer " + key})
            assert answer.status_code == status
