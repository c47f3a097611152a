"""Exactly on policy over Tinker's client: of a text that was sampled, training computes the log-probabilities with the same bits."""
import numpy
import pytest
from client_rig import NEEDS_DEMO, start  # noqa: F401
from tinker_rig import encode, service, settled, types  # noqa: F401

pytestmark = NEEDS_DEMO
PROMPTS = ["Once upon a time", "Tom had a", "The little dog saw a big red ball and"]


@pytest.fixture(scope="module", params=["none", "int8"])
def server(request, start):  # noqa: F811
    with start("--served-model-name", "demo", "--threads", "2", "--quantize", request.param) as s:
        yield s
        s.wait_idle()


def tensor(values, kind):
    return types.TensorData.from_numpy(numpy.asarray(values, dtype=kind))


def sample(server, sampler, seed):
    """Texts of each prompt, all at once: as rows with a zero for each of the prompt's tokens, as callers write them."""
    prompts = [encode(server, text) for text in PROMPTS]
    params = [types.SamplingParams(max_tokens=20 + 7 * i, temperature=0.9, seed=seed) for i in range(len(prompts))]
    pending = [sampler.sample(types.ModelInput.from_ints(p), 3, s) for p, s in zip(prompts, params)]
    return [(prompt, text) for prompt, future in zip(prompts, pending) for text in settled(future).sequences]


def rows(texts):
    data = []
    for prompt, text in texts:
        ids, before = prompt + list(text.tokens), len(prompt) - 1
        advantages = [0] * before + [(-1) ** i * 0.1 for i in range(len(text.tokens))]
        inputs = {"target_tokens": tensor(ids[1:], "int64"), "logprobs": tensor([0] * before + list(text.logprobs), "float32"),
                  "advantages": tensor(advantages, "float32")}
        data.append(types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs))
    return data


def counts(server):
    return [server.metric(f"tandem_train_sampled_{what}_total") for what in ("tokens", "mismatches")]


def differing(texts, output):
    n = 0
    for (prompt, text), row in zip(texts, output.loss_fn_outputs):
        trained, sampled = row["logprobs"].to_numpy()[len(prompt) - 1:], numpy.asarray(text.logprobs, "float32")
        assert trained.dtype == numpy.float32 and len(trained) == len(sampled) > 0
        n += int((trained.view("int32") != sampled.view("int32")).sum())
    return n


def learn(server, client):
    data = [types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": tensor(ids[1:], "int64")})
            for ids in (encode(server, text) for text in PROMPTS)]
    for _ in range(3):
        client.forward_backward(data, "cross_entropy")
        settled(client.optim_step(types.AdamParams(learning_rate=1e-2)))


def test_the_bits_of_sampling_in_runs_of_two_ranks_side_by_side(server, service):
    clients = [settled(service.create_lora_training_client(base_model="demo", rank=r, seed=r)) for r in (4, 16)]
    for client in clients:
        learn(server, client)
    for _ in range(2):  # the second time, after steps on the texts of the first
        samplers = [settled(c.save_weights_and_get_sampling_client()) for c in clients]
        texts = [sample(server, sampler, 5) for sampler in samplers]
        before = counts(server)
        outputs = [c.forward_backward(rows(t), "importance_sampling") for c, t in zip(clients, texts)]
        assert [differing(t, settled(o)) for t, o in zip(texts, outputs)] == [0, 0]
        trained = sum(len(text.tokens) for t in texts for _, text in t)
        assert counts(server) == [before[0] + trained, before[1]]
        for c in clients:
            settled(c.optim_step(types.AdamParams(learning_rate=1e-3)))


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro"])
def test_a_run_that_has_learnt_nothing_yet_has_the_bits_of_the_base(server, service, loss):
    texts = sample(server, settled(service.create_sampling_client(base_model="demo")), 6)
    client, before = settled(service.create_lora_training_client(base_model="demo", rank=4)), counts(server)
    output = settled(client.forward_backward(rows(texts), loss))
    assert differing(texts, output) == 0
    assert counts(server) == [before[0] + sum(len(text.tokens) for _, text in texts), before[1]]
    if loss != "importance_sampling":
        return
    advantages = sum((-1) ** i * 0.1 for _, text in texts for i in range(len(text.tokens)))
    assert output.metrics["loss:sum"] == pytest.approx(-advantages, abs=1e-5)  # each ratio is 1


def test_texts_of_other_weights_are_counted(server, service):
    client = settled(service.create_lora_training_client(base_model="demo", rank=4))
    texts = sample(server, settled(client.save_weights_and_get_sampling_client()), 7)
    learn(server, client)
    before = counts(server)
    assert differing(texts, settled(client.forward_backward(rows(texts), "importance_sampling"))) > 0
    assert counts(server)[1] > before[1]
