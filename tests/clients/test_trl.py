"""TRL's clients of a server of vLLM's (trl.generation.vllm_client, trl.experimental.async_grpo), which import without a GPU.

Neither needs the vllm package for what is tested here; the first refuses to start without it, so that check is answered."""
import math

import pytest
from client_rig import MODEL, NEEDS_DEMO, package, start  # noqa: F401

pytestmark = NEEDS_DEMO
package("trl")
torch = package("torch")
sync = pytest.importorskip("trl.generation.vllm_client", exc_type=ImportError)
grpo = pytest.importorskip("trl.experimental.async_grpo.vllm_client", exc_type=ImportError)
PROMPTS = ["Once upon a time, there was a", "Tom saw a"]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """A directory into which a trainer writes."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def server(start, adapters):  # noqa: F811
    with start("--chat-template", "plain", "--adapter-dir", adapters, "--threads", "2") as s:
        yield s
        s.wait_idle()


@pytest.fixture
def client(server, monkeypatch):
    monkeypatch.setattr(sync, "is_vllm_available", lambda *a, **kw: True)
    return sync.VLLMClient(base_url=server.url, connection_timeout=60)


def test_generate(client, server):
    got = client.generate(PROMPTS, n=2, max_tokens=6, temperature=1.0, generation_kwargs={"seed": 4})
    ids = [[t["id"] for t in server.post("/tokenize", {"inputs": p}).json()] for p in PROMPTS]
    assert got["prompt_ids"] == ids and [len(c) for c in got["completion_ids"]] == [6] * 4
    for completion, values, tokens in zip(got["completion_ids"], got["logprobs"], got["logprob_token_ids"]):
        assert tokens == [[i] for i in completion] and all(v < 0 for [v] in values)
    assert client.generate(ids, n=2, max_tokens=6, temperature=1.0, generation_kwargs={"seed": 4}) == got


def test_alternatives(client):
    got = client.generate(PROMPTS, max_tokens=6, logprobs=3, structured_outputs_regex=" (big|red) dog")
    for completion, values, tokens in zip(got["completion_ids"], got["logprobs"], got["logprob_token_ids"]):
        assert [len(v) for v in values] == [len(t) for t in tokens] and len(tokens) == len(completion)
        assert all(i in t and 3 <= len(t) <= 4 and v == sorted(v, reverse=True) for i, t, v in zip(completion, tokens, values))
    assert client.generate(PROMPTS, max_tokens=2, logprobs=None)["logprobs"] is None


def test_tokens(client):
    """The path of prompts with images, here without any: /inference/v1/generate."""
    plain = client.generate(PROMPTS, n=2, max_tokens=6, temperature=0, logprobs=2)
    got = client.generate(plain["prompt_ids"], features=[None, None], n=2, max_tokens=6, temperature=0, logprobs=2)
    assert got == plain


def test_chat(client):
    got = client.chat([[{"role": "user", "content": p}] for p in PROMPTS], n=2, max_tokens=6, temperature=0, logprobs=1)
    assert len(got["prompt_ids"]) == 2 and [len(c) for c in got["completion_ids"]] == [6] * 4
    again = client.generate(got["prompt_ids"], n=2, max_tokens=6, temperature=0, logprobs=1)
    assert again == got


def test_teacher(client):
    """Log-probabilities of given sequences, with TRL's own padding and order."""
    whole = client.generate(PROMPTS, max_tokens=5, temperature=0)
    sequences = [p + c for p, c in zip(whole["prompt_ids"], whole["completion_ids"])]
    scores = client.get_sequence_logprobs(sequences, [len(p) for p in whole["prompt_ids"]], top_logprobs=4)
    for completion, sampled, top, ids, actual in zip(whole["completion_ids"], whole["logprobs"], scores["logprobs"],
                                                     scores["logprob_token_ids"], scores["actual_logprobs"]):
        assert [i[0] for i in ids] == completion and all(len(v) == 4 for v in top)
        assert all(math.isclose(a[0], s[0], rel_tol=1e-5, abs_tol=1e-5) for a, s in zip(actual, sampled))
    unlikely = [[1] + list(range(40, 60))]
    scores = client.get_sequence_logprobs(unlikely, [1], top_logprobs=2)
    assert all(math.isfinite(v[0]) or v[0] == -math.inf for v in scores["actual_logprobs"][0])


def test_control(client):
    assert client.get_world_size() == 1 and client.get_server_info()["weight_transfer_config"] is None
    client.reset_prefix_cache()
    with pytest.raises(RuntimeError, match="no weight-transfer engine"):
        client.init_communicator()
    with pytest.raises(Exception, match="/v1/load_lora_adapter"):
        client._start_weight_update()
    with pytest.raises(Exception, match="/v1/load_lora_adapter"):
        client._post(f"{client.base_url}/update_weights", json={"update_info": {"names": ["a" * 50] * 1000}})


def scores(model, ids, start):
    """PyTorch's log-probabilities of the tokens from there on."""
    with torch.no_grad():
        values = model(ids).logits[0, start - 1:-1].log_softmax(-1)
    return [values[i, t].item() for i, t in enumerate(ids[0, start:])]


def test_async_grpo(server, client, adapters):
    """A policy of each step: written, loaded under a new name while requests are held, sampled, unloaded."""
    peft, transformers = package("peft"), package("transformers")
    package("accelerate").PartialState(cpu=True)  # TRL logs through it
    policy = grpo.VLLMClient(server.url)
    policy.wait_for_server_ready()
    assert policy.get_max_model_len() == server.get("/info").json()["max_total_tokens"] and policy.get_world_size() == 1
    assert policy.get_dtype().startswith("torch.")
    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    [prompt] = client.generate(PROMPTS[:1], max_tokens=1)["prompt_ids"]
    policies = []
    for step in range(3):
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.data = torch.randn_like(p) * 0.5
        model.save_pretrained(adapters / f"step-{step}")
        policy.pause()
        policy.load_lora_adapter(f"policy-{step}", str(adapters / f"step-{step}"))
        policy.resume()
        body = {"model": f"policy-{step}", "token_ids": prompt, "sampling_params": {"max_tokens": 8, "temperature": 0, "logprobs": 0}}
        [choice] = server.post("/inference/v1/generate", body).json()["choices"]
        policies.append(tuple(e["logprob"] for e in choice["logprobs"]["content"]))
        ids = torch.tensor([prompt + choice["token_ids"]])
        expected = scores(model, ids, len(prompt))
        assert [e["logprob"] for e in choice["logprobs"]["content"]] == pytest.approx(expected, abs=0.05)
        with model.disable_adapter():
            assert max(abs(a - b) for a, b in zip(scores(model, ids, len(prompt)), expected)) > 0.2
        policy.unload_lora_adapter(f"policy-{step - 1}")
    assert len(set(policies)) == 3
    assert [a["name"] for a in server.get("/adapters").json()["adapters"]] == ["policy-2"]
    policy.unload_lora_adapter("policy-2")
    for call in (policy.start_weight_update, policy.finish_weight_update):
        with pytest.raises(Exception, match="/v1/load_lora_adapter"):
            call()
    with pytest.raises(Exception, match="NCCL"):
        policy.init_weight_transfer_engine({})
