"""PyPI's `tinker`, unmodified, fine-tunes the demo model call by call (docs/tinker.md)."""
from typing import get_args

import pytest
from client_rig import NEEDS_DEMO, package, start  # noqa: F401
from tinker_rig import encode, server, service, settled, tinker, types  # noqa: F401

np = package("numpy")
pytestmark = NEEDS_DEMO
TEXTS = ["Once upon a time there was a red fox.", "The fox had a blue hat and a small drum."]


def tensor(values, kind):
    return types.TensorData.from_numpy(np.asarray(values, dtype=kind))


def datum(ids, **inputs):
    given = {k: tensor(v, "float32") for k, v in inputs.items()}
    return types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": tensor(ids[1:], "int64"), **given})


def rows(server):
    return [datum(ids, weights=[1] * (len(ids) - 1)) for ids in (encode(server, t) for t in TEXTS)]


def logprobs(output):
    return [o["logprobs"].to_numpy() for o in output.loss_fn_outputs]


def trainer(service, rank=8, **kw):
    return settled(service.create_lora_training_client(base_model="demo", rank=rank, **kw))


def test_cross_entropy_falls_and_the_snapshot_has_learnt(server, service):
    client, data, losses = trainer(service, seed=1), rows(server), []
    assert client.get_info().model_data.model_name == "demo"
    before = settled(client.save_weights_and_get_sampling_client())
    for _ in range(8):
        first = client.forward_backward(data, "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=1e-2))
        output = settled(first)
        losses.append(output.metrics["loss:sum"])
        assert losses[-1] == pytest.approx(-sum(p.sum() for p in logprobs(output)), rel=1e-5)
        assert settled(step).metrics["grad_norm:mean"] > 0
    assert losses[-1] < 0.5 * losses[0]
    after = settled(client.save_weights_and_get_sampling_client())
    want = logprobs(settled(client.forward(data, "cross_entropy")))
    for i, text in enumerate(TEXTS):
        prompt = types.ModelInput.from_ints(encode(server, text))
        assert settled(after.compute_logprobs(prompt))[1:] == pytest.approx(list(want[i]), abs=2e-2)
        assert sum(settled(before.compute_logprobs(prompt))[1:]) < sum(want[i]) - 10


def test_a_call_that_is_split_adds_up_and_forward_alone_changes_nothing(server, service):
    data = rows(server)
    norms = []
    for parts in ([data], [data[:1], data[1:]]):
        client = trainer(service, seed=3)
        settled(client.forward(data, "cross_entropy"))
        for part in parts:
            settled(client.forward_backward(part, "cross_entropy"))
        norms.append(settled(client.optim_step(types.AdamParams(learning_rate=0))).metrics["grad_norm:mean"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_negative_weights_are_the_gradient_turned_round(server, service):
    ids = encode(server, TEXTS[0])
    client = trainer(service, seed=3)
    for sign in (1, -1):
        settled(client.forward_backward([datum(ids, weights=[sign * 0.5] * (len(ids) - 1))], "cross_entropy"))
    assert settled(client.optim_step(types.AdamParams(learning_rate=0))).metrics["grad_norm:mean"] == pytest.approx(0, abs=1e-4)


def reference(loss, p, q, a):
    r = np.exp(p - q)
    if loss == "importance_sampling":
        return -(r * a).sum(), r * a
    if loss == "ppo":
        clipped = np.clip(r, 0.8, 1.2)
        return -np.minimum(r * a, clipped * a).sum(), np.where(r * a <= clipped * a, r * a, 0)
    if loss == "cispo":
        return -(np.clip(r, 0, 4) * p * a).sum(), np.clip(r, 0, 4) * a
    if loss == "gspo":
        r = np.exp((p - q).mean())
        clipped = np.clip(r, 1 - 3e-4, 1 + 4e-4)
        return -np.minimum(r * a, clipped * a).sum(), np.full(len(a), r * a[r * a <= clipped * a].sum() / len(a))
    return -(p * a - 0.025 * (p - q) ** 2).sum(), a - 0.05 * (p - q)


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_a_loss_and_its_gradient_are_those_of_its_formula(server, service, loss):
    """The gradient is that of cross_entropy with the formula's derivative as weights: together they are zero."""
    if loss not in get_args(types.LossFnType):
        pytest.skip("this version of the client does not know it")
    ids = encode(server, TEXTS[1])
    n, random, client = len(ids) - 1, np.random.default_rng(5), trainer(service, seed=4)
    p = logprobs(settled(client.forward([datum(ids)], "cross_entropy")))[0].astype("float64")
    q, a = p + random.normal(0, 0.4, n), random.normal(0, 1, n)
    output = settled(client.forward_backward([datum(ids, logprobs=q, advantages=a)], loss))
    want, weight = reference(loss, p, q.astype("float32"), a.astype("float32"))
    assert output.metrics["loss:sum"] == pytest.approx(want, rel=1e-4, abs=1e-4)
    got = [output.metrics[name] for name in ("tokens:sum", "kl:sum", "ratio:min", "ratio:max")]
    assert got == pytest.approx([n, (q - p).sum(), np.exp(p - q).min(), np.exp(p - q).max()], rel=1e-4, abs=1e-4)
    assert logprobs(output)[0] == pytest.approx(p, abs=1e-5)
    settled(client.forward_backward([datum(ids, weights=-weight)], "cross_entropy"))
    assert settled(client.optim_step(types.AdamParams(learning_rate=0))).metrics["grad_norm:mean"] == pytest.approx(0, abs=1e-3)


def sparse(values, kind):
    """CSR as the client writes it: what is 0 is not listed."""
    row, column = np.nonzero(values)
    starts = np.searchsorted(row, np.arange(len(values) + 1)).tolist()
    try:
        return types.TensorData(data=np.asarray(values[row, column], kind), dtype=kind, shape=list(values.shape),
                                sparse_crow_indices=starts, sparse_col_indices=column.tolist())
    except TypeError:
        pytest.skip("this version of the client has no sparse tensors")


@pytest.mark.parametrize("form", [tensor, sparse])
def test_several_targets_a_position(server, service, form):
    """The loss and the gradient are the sums over the candidates; the log-probabilities have the targets' shape."""
    ids = encode(server, TEXTS[0])
    n, k, random, client = len(ids) - 1, 3, np.random.default_rng(6), trainer(service, seed=5)
    weights = random.normal(0, 1, (n, k)) * (random.random((n, k)) < 0.7)
    targets = np.where(weights != 0, random.integers(5, 900, (n, k)), 0)
    prompt = types.ModelInput.from_ints(ids[:-1])
    wide = types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": form(targets, "int64"), "weights": form(weights, "float32")})
    output = settled(client.forward_backward([wide, wide], "cross_entropy"))
    p = logprobs(output)
    assert p[0].shape == (n, k) and p[0].tobytes() == p[1].tobytes()
    assert output.metrics["loss:sum"] == pytest.approx(-2 * (weights.astype("float32") * p[0]).sum(), rel=1e-4, abs=1e-4)
    for j in range(k):
        one = types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": tensor(targets[:, j], "int64"),
                                                              "weights": tensor(-2 * weights[:, j], "float32")})
        assert logprobs(settled(client.forward_backward([one], "cross_entropy")))[0] == pytest.approx(p[0][:, j], abs=1e-5)
    assert settled(client.optim_step(types.AdamParams(learning_rate=0))).metrics["grad_norm:mean"] == pytest.approx(0, abs=1e-3)


def test_runs_of_different_rank_side_by_side(server, service):
    data = rows(server)
    clients = [trainer(service, rank=r, seed=2, train_attn=r > 2, train_unembed=False) for r in (2, 16)]
    for _ in range(3):
        for client in clients:
            settled(client.forward_backward(data, "cross_entropy"))
            settled(client.optim_step(types.AdamParams(learning_rate=1e-2)))
    one, two = (settled(c.forward(data, "cross_entropy")).metrics["loss:sum"] for c in clients)
    assert one != two


def test_a_custom_loss_of_the_client(server, service):
    torch = pytest.importorskip("torch")
    client = trainer(service, seed=1)
    output = settled(client.forward_backward_custom(rows(server), lambda data, p: (-torch.stack([x.sum() for x in p]).sum(), {"n:sum": float(len(p))})))
    assert output.metrics["n:sum"] == 2


@pytest.mark.parametrize("loss, inputs, says", [
    ("cross_entropy", {"weights": [1.0]}, "weights"), ("ppo", {}, "logprobs"), ("importance_sampling", {"logprobs": None}, "advantages"),
])
def test_a_bad_call_is_refused_and_the_run_goes_on(server, service, loss, inputs, says):
    ids = encode(server, TEXTS[0])
    n, client = len(ids) - 1, trainer(service)
    inputs = {k: v or [0.0] * n for k, v in inputs.items()}
    with pytest.raises(tinker.APIStatusError, match=says):
        settled(client.forward_backward([datum(ids, **inputs)], loss))


def test_a_job_has_its_turn_beside_a_run(server, service):
    client, data = trainer(service), rows(server)
    job = server.post("/train", {"dataset": {"rows": [{"text": t} for t in TEXTS] * 4}, "hyperparameters": {"max_steps": 3}})
    assert job.status_code in (200, 201, 202), job.text
    while server.get(f"/train/{job.json()['id']}").json()["status"] in ("queued", "preparing", "running"):
        settled(client.forward_backward(data, "cross_entropy"))
    assert server.get(f"/train/{job.json()['id']}").json()["status"] == "succeeded"
    assert settled(client.optim_step(types.AdamParams(learning_rate=0))).metrics["grad_norm:mean"] > 0
