"""Tinker's client: log-probabilities of given ids and tokens drawn in the places of a prompt's tokens (docs/tinker.md)."""
import inspect
import json
import math

import numpy as np
import pytest
import requests
from client_rig import NEEDS_DEMO, start  # noqa: F401
from tinker_rig import PATIENCE, encode, server, service, settled, tinker, types  # noqa: F401

pytestmark = [NEEDS_DEMO, pytest.mark.skipif("prompt_alt_tokens_k" not in inspect.signature(tinker.SamplingClient.sample).parameters,
                                             reason="this version of tinker does not ask for them")]


@pytest.fixture(scope="module")
def sampler(service):
    return settled(service.create_sampling_client(base_model="demo"))


@pytest.fixture(scope="module")
def prompt(server):
    return encode(server, "Once upon a time, there was a little girl")


def ask(sampler, prompt, temperature=1.0, seed=7, **more):
    params = types.SamplingParams(max_tokens=1, temperature=temperature, seed=seed)
    return sampler.sample(types.ModelInput.from_ints(prompt), 1, params, **more).result(timeout=PATIENCE)


def tensor(ids):
    return types.TensorData.from_numpy(np.array(ids, np.int64))


def sparse(rows, width):
    """rows: a dict of a row's columns and ids."""
    crow = np.cumsum([0] + [len(r) for r in rows]).tolist()
    return types.TensorData(data=[v for r in rows for v in r.values()], dtype="int64", shape=[len(rows), width], sparse_crow_indices=crow,
                            sparse_col_indices=[k for r in rows for k in r])


def values(t):
    return np.array(t.data).reshape(t.shape)


def test_the_prompts_own_tokens_have_the_logprobs_of_the_prompt(sampler, prompt):
    answer = ask(sampler, prompt, include_prompt_logprobs=True, target_prompt_logprobs=tensor([[t] for t in prompt[1:]]))
    assert values(answer.target_prompt_logprobs)[:, 0].tolist() == answer.prompt_logprobs[1:]
    assert answer.target_prompt_logprobs.dtype == "float32" and answer.prompt_alt_tokens is None


def test_they_are_those_of_the_most_likely(sampler, prompt):
    top = ask(sampler, prompt, topk_prompt_logprobs=5).topk_prompt_logprobs[1:]
    got = values(ask(sampler, prompt, target_prompt_logprobs=tensor([[-1] + [t for t, _ in row] for row in top])).target_prompt_logprobs)
    assert got[:, 0].tolist() == [0.0] * len(top)
    assert got[:, 1:].tolist() == [[p for _, p in row] for row in top]


def test_a_sparse_tensor_is_answered_by_one(sampler, prompt):
    n = len(prompt) - 1
    rows = [{} for _ in range(n)]
    rows[n - 3] = {2: prompt[n - 2], 90000: 5}
    rows[n - 1] = {0: prompt[n]}
    answer = ask(sampler, prompt, include_prompt_logprobs=True, target_prompt_logprobs=sparse(rows, 100000))
    got, dense = answer.target_prompt_logprobs, np.full((n, 3), -1)
    dense[n - 3, 1:], dense[n - 1, 0] = [prompt[n - 2], 5], prompt[n]
    want = values(ask(sampler, prompt, target_prompt_logprobs=tensor(dense)).target_prompt_logprobs)
    assert list(got.data) == [want[n - 3, 1], want[n - 3, 2], want[n - 1, 0]] and list(got.shape) == [n, 100000]
    assert list(got.sparse_crow_indices) == np.cumsum([0] + [len(r) for r in rows]).tolist() and list(got.sparse_col_indices) == [2, 90000, 0]
    assert got.data[0] == answer.prompt_logprobs[n - 2] and got.data[2] == answer.prompt_logprobs[n]
    assert all(math.isfinite(p) and p < 0 for p in got.data)


def test_the_last_n_do_not_limit_them(sampler, prompt):
    n = len(prompt) - 1
    answer = ask(sampler, prompt, include_prompt_logprobs=True, prompt_logprobs_last_n=2, topk_prompt_logprobs=1,
                 target_prompt_logprobs=tensor([[t] for t in prompt[1:]]), prompt_alt_tokens_k=2)
    assert [p is None for p in answer.prompt_logprobs] == [row is None for row in answer.topk_prompt_logprobs] == [True] * (n - 1) + [False] * 2
    whole = ask(sampler, prompt, include_prompt_logprobs=True).prompt_logprobs
    assert values(answer.target_prompt_logprobs)[:, 0].tolist() == whole[1:]
    assert values(answer.prompt_alt_tokens.tokens).shape == values(answer.prompt_alt_tokens.logprobs).shape == (n, 2)


def test_draws_repeat_with_their_seed_and_have_the_models_logprobs(sampler, prompt):
    first, again, other = (ask(sampler, prompt, seed=s, prompt_alt_tokens_k=8).prompt_alt_tokens for s in (7, 7, 8))
    for t in "tokens", "logprobs":
        assert values(getattr(first, t)).tolist() == values(getattr(again, t)).tolist()
    assert first.tokens.dtype == "int64" and values(first.tokens).tolist() != values(other.tokens).tolist()
    assert any(len(set(row)) > 1 for row in values(first.tokens).tolist())
    scored = ask(sampler, prompt, target_prompt_logprobs=tensor(values(first.tokens))).target_prompt_logprobs
    assert values(scored).tolist() == values(first.logprobs).tolist()
    cold = ask(sampler, prompt, temperature=0.0, prompt_alt_tokens_k=2, topk_prompt_logprobs=1)
    assert values(cold.prompt_alt_tokens.tokens).tolist() == [[row[0][0]] * 2 for row in cold.topk_prompt_logprobs[1:]]


def test_draws_follow_the_distribution(sampler, prompt):
    """Of one place, over many seeds: how often the likeliest token comes is its probability."""
    top, p = ask(sampler, prompt, topk_prompt_logprobs=1).topk_prompt_logprobs[3][0]
    hits = sum((values(ask(sampler, prompt, seed=s, prompt_alt_tokens_k=32).prompt_alt_tokens.tokens)[2] == top).sum() for s in range(32))
    n, p = 32 * 32, math.exp(p)
    assert abs(hits - n * p) < 5 * math.sqrt(n * p * (1 - p)) + 1


def refusal(server, **more):
    session = requests.post(server.url + "/api/v1/create_session", json={"tags": []}).json()["session_id"]
    sampler = requests.post(server.url + "/api/v1/create_sampling_session",
                            json={"session_id": session, "sampling_session_seq_id": 0, "base_model": "demo"}).json()["sampling_session_id"]
    body = {"sampling_session_id": sampler, "seq_id": 1, "prompt": {"chunks": [{"tokens": [5, 6, 7]}]}, "sampling_params": {"max_tokens": 1}, **more}
    answer = requests.post(server.url + "/api/v1/asample", data=json.dumps(body))
    requests.post(f"{server.url}/api/v1/sessions/{session}/finish", json={})
    assert answer.status_code == 422, answer.text
    return answer.json()["error"]


GOOD = {"data": [1, 2], "dtype": "int64", "shape": [2, 1]}
CSR = {**GOOD, "sparse_crow_indices": [0, 1, 2], "sparse_col_indices": [0, 0]}
BAD = [7, {}, {**GOOD, "dtype": "float32"}, {**GOOD, "shape": [3, 1]}, {**GOOD, "shape": [2]}, {**GOOD, "shape": [2, 2]}, {**GOOD, "shape": [2, 0]},
       {**GOOD, "shape": [2, 1, 1]}, {**GOOD, "data": [1]}, {**GOOD, "data": [1, "2"]}, {**GOOD, "data": [1, 1.5]}, {**GOOD, "data": [1, -2]},
       {**GOOD, "data": [-1, -1]}, {**GOOD, "data": [1, 1e20]}, {**GOOD, "data": [1] * 66, "shape": [2, 33]}, {**CSR, "sparse_col_indices": None},
       {**CSR, "sparse_col_indices": [0]}, {**CSR, "sparse_col_indices": [0, 1]}, {**CSR, "sparse_col_indices": [0, -1]},
       {**CSR, "sparse_crow_indices": [0, 2]}, {**CSR, "sparse_crow_indices": [0, 2, 1]}, {**CSR, "sparse_crow_indices": [1, 1, 2]},
       {**CSR, "sparse_crow_indices": [0, 1, 3]}, {**CSR, "sparse_crow_indices": [0, 1, 1]}]


@pytest.mark.parametrize("bad", BAD, ids=json.dumps)
def test_a_bad_tensor_is_refused_by_name(server, bad):
    assert "target_prompt_logprobs" in refusal(server, target_prompt_logprobs=bad)


def test_too_many_are_refused(server, sampler):
    assert "prompt_alt_tokens_k" in refusal(server, prompt_alt_tokens_k=33)
    assert "prompt_alt_tokens_k" in refusal(server, prompt_alt_tokens_k=32, target_prompt_logprobs=GOOD)
    with pytest.raises(tinker.RequestFailedError, match="target_prompt_logprobs"):
        ask(sampler, [5, 6, 7], target_prompt_logprobs=tensor([[10**8], [1]]))


def test_a_prompt_of_one_token_has_no_places(sampler):
    assert values(ask(sampler, [5], prompt_alt_tokens_k=3).prompt_alt_tokens.tokens).shape == (0, 3)
