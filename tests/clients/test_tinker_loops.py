"""The two loops that recipes of Tinker's cookbook are made of, written after its documentation: supervised learning with checkpoints,
and policy gradients with advantages centred within groups of samples, from snapshots after every step."""
import numpy
import pytest
from client_rig import NEEDS_DEMO, start  # noqa: F401
from tinker_rig import encode, server, service, settled, tinker, types  # noqa: F401

pytestmark = NEEDS_DEMO
STORIES = ["Tom had a red ball.", "The dog saw a big cat.", "Lily went to the park with her mom.", "One day the sun was hot."]
PROMPTS = ["Once upon a time", "Tom had a", "The little dog"]


def tensor(values, kind):
    return types.TensorData.from_numpy(numpy.asarray(values, dtype=kind))


def supervised(ids, n_prompt):
    """Weights 0 on the prompt, 1 on what is to be learnt; shifted by one."""
    weights = [0.0] * (n_prompt - 1) + [1.0] * (len(ids) - n_prompt)
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]),
                       loss_fn_inputs={"target_tokens": tensor(ids[1:], "int64"), "weights": tensor(weights, "float32")})


def mean_loss(outputs, data):
    sums = [(-(o["logprobs"].to_numpy() * d.loss_fn_inputs["weights"].to_numpy()).sum(), d.loss_fn_inputs["weights"].to_numpy().sum())
            for o, d in zip(outputs, data)]
    return sum(s for s, _ in sums) / sum(n for _, n in sums)


def test_supervised_learning_with_a_schedule_and_a_checkpoint(server, service):
    client = settled(service.create_lora_training_client(base_model="demo", rank=16, seed=1))
    data = [supervised(encode(server, text), 3) for text in STORIES]
    losses, steps, path = [], 12, None
    for i in range(steps):
        batch = [data[(2 * i + k) % len(data)] for k in range(2)]
        rate = 1e-2 * (1 - i / steps)  # linear, as in the cookbook
        backward = client.forward_backward(batch, "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=rate, beta1=0.9, beta2=0.95, eps=1e-8))
        losses.append(mean_loss(settled(backward).loss_fn_outputs, batch))
        settled(step)
        if i == 5:
            path = settled(client.save_state("000005")).path
    assert sum(losses[-2:]) < 0.5 * sum(losses[:2])
    resumed = settled(service.create_training_client_from_state_with_optimizer(path))
    half = mean_loss(settled(resumed.forward(data, "cross_entropy")).loss_fn_outputs, data)
    full = mean_loss(settled(client.forward(data, "cross_entropy")).loss_fn_outputs, data)
    assert full < half < sum(losses[:2]) / 2


def rollout(sampler, prompts, group, seed):
    pending = [sampler.sample(types.ModelInput.from_ints(p), group, types.SamplingParams(max_tokens=16, temperature=1.0, seed=seed, stop=[])) for p in prompts]
    return [settled(f).sequences for f in pending]


def policy_datum(prompt, text, advantage):
    ids, before = prompt + list(text.tokens), len(prompt) - 1
    inputs = {"target_tokens": tensor(ids[1:], "int64"), "logprobs": tensor([0.0] * before + list(text.logprobs), "float32"),
              "advantages": tensor([0.0] * before + [advantage] * len(text.tokens), "float32")}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs=inputs)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo"])
def test_a_policy_learns_a_reward_and_is_on_policy_at_every_step(server, service, loss):
    wanted = encode(server, STORIES[0])[-1]  # the full stop: short sentences are rewarded
    client = settled(service.create_lora_training_client(base_model="demo", rank=8, seed=2))
    prompts = [encode(server, p) for p in PROMPTS]
    rewards, before = [], server.metric("tandem_train_sampled_mismatches_total")
    for i in range(10):
        sampler = settled(client.save_weights_and_get_sampling_client())
        data, all_rewards = [], []
        for prompt, texts in zip(prompts, rollout(sampler, prompts, 8, i)):
            group = [sum(t == wanted for t in text.tokens) / len(text.tokens) for text in texts]
            all_rewards += group
            data += [policy_datum(prompt, text, r - sum(group) / len(group)) for text, r in zip(texts, group)]
        rewards.append(sum(all_rewards) / len(all_rewards))
        data = [d for d in data if numpy.any(d.loss_fn_inputs["advantages"].to_numpy())]  # groups of equal rewards teach nothing
        if not data:
            break
        backward = client.forward_backward(data, loss)
        step = client.optim_step(types.AdamParams(learning_rate=1e-2))
        metrics = settled(backward).metrics
        assert metrics["ratio:min"] == metrics["ratio:max"] == 1 and metrics["kl:sum"] == 0
        settled(step)
    assert sum(rewards[-2:]) > 1.5 * sum(rewards[:2]), rewards
    assert server.metric("tandem_train_sampled_mismatches_total") == before
