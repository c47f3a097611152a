"""Tinker's runs beside a training job of the daemon: both go on, and neither changes the other's bits (docs/tinker.md)."""
import numpy
import pytest
from client_rig import NEEDS_DEMO, start  # noqa: F401
from conftest import wait_for
from tinker_rig import encode, service, settled, tinker, types  # noqa: F401
from training import OVER, events, job, request, submit, wait_over, wait_step

pytestmark = NEEDS_DEMO
TEXT = "Once upon a time there was a red fox."


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def server(start, data):  # noqa: F811
    with start("--served-model-name", "demo", "--threads", "2", "--data-dir", data) as s:
        yield s
        s.wait_idle()


def new(service):
    return settled(service.create_lora_training_client(base_model="demo", rank=4, seed=1))


def step(server, client):
    """The log-probabilities before the step, as bytes."""
    ids = encode(server, TEXT)
    target = types.TensorData.from_numpy(numpy.asarray(ids[1:], "int64"))
    datum = types.Datum(model_input=types.ModelInput.from_ints(ids[:-1]), loss_fn_inputs={"target_tokens": target})
    output = client.forward_backward([datum], "cross_entropy")
    settled(client.optim_step(types.AdamParams(learning_rate=1e-2)))
    return settled(output).loss_fn_outputs[0]["logprobs"].to_numpy().tobytes()


@pytest.fixture(scope="module")
def alone(server, service):
    """What a run computes while there is no job."""
    client = new(service)
    return [step(server, client) for _ in range(6)]


def test_a_run_goes_on_while_a_job_of_many_steps_runs(server, service, alone):
    client = new(service)
    head = step(server, client)
    long = submit(server, max_steps=100000, epochs=1000, batch_tokens=16, n=2000)
    wait_step(server, long)
    begun = job(server, long)["step"]
    beside = [head] + [step(server, client) for _ in range(5)]
    second = [step(server, late) for late in [new(service)] for _ in range(3)]  # a run that is created meanwhile
    sampler = settled(client.save_weights_and_get_sampling_client())
    assert len(settled(sampler.compute_logprobs(types.ModelInput.from_ints([5, 6])))) == 2
    now = job(server, long)
    assert now["status"] == "running" and now["step"] > begun
    assert beside == alone and second == alone[:3]
    assert server.post(f"/train/{long}/cancel", {}).status_code in (200, 202)
    assert wait_over(server, long)["status"] == "cancelled"
    assert step(server, client) not in alone


@pytest.mark.parametrize("change", [
    {"hyperparameters": {"eval_on_start": True, "eval_fraction": 0.5}},
    {"method": "dpo"},
], ids=["evaluation", "reference"])
def test_a_run_goes_on_before_the_first_step_of_a_job(server, service, alone, change):
    body = request(epochs=1, batch_tokens=16, max_steps=0, n=4000)
    if "method" in change:
        body["dataset"]["rows"] = [{"prompt": r["prompt"], "chosen": r["completion"], "rejected": " no"} for r in body["dataset"]["rows"]]
    body["hyperparameters"] |= change.pop("hyperparameters", {})
    answer = server.post("/train", {**body, **change})
    assert answer.status_code == 202, answer.text
    long, client = answer.json()["id"], new(service)
    wait_for(lambda: any(e["type"] == "plan" for e in events(server, long)), what="the job is open")
    assert [step(server, client) for _ in range(3)] == alone[:3]
    now = job(server, long)
    assert now["status"] == "running" and now["step"] == 0, now
    assert server.post(f"/train/{long}/cancel", {}).status_code in (200, 202)
    assert wait_over(server, long)["status"] == "cancelled"


def test_a_job_has_the_bits_that_it_has_alone(server, service, data):
    def weights(name):
        return (data / "adapters" / name / "adapter_model.safetensors").read_bytes()

    assert wait_over(server, submit(server, "by-itself", max_steps=120))["status"] == "succeeded"
    client, beside, steps = new(service), submit(server, "beside", max_steps=120), 0
    while (was := job(server, beside))["status"] not in OVER:
        step(server, client)
        now = job(server, beside)
        steps += was["status"] == now["status"] == "running" and now["step"] > was["step"]
    assert job(server, beside)["status"] == "succeeded" and steps > 0
    assert weights("beside") == weights("by-itself")
