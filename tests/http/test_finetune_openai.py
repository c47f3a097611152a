"""/v1/fine_tuning/jobs and /v1/files with the openai package."""
import openai
import pytest
import requests
from conftest import wait_for
from training import jsonl, request, wait_over


@pytest.fixture(scope="module")
def ft(start):
    with start() as s:
        yield s


@pytest.fixture(scope="module")
def client(ft):
    return openai.OpenAI(base_url=ft.url + "/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def training_file(client):
    return client.files.create(file=("pirate.jsonl", jsonl(40).encode()), purpose="fine-tune")


SMALL = {"max_steps": 5, "batch_tokens": 128, "max_length": 64, "lora_r": 4}


def create(client, training_file, **kw):
    hyper = {**SMALL, **kw.pop("hyperparameters", {})}
    return client.fine_tuning.jobs.create(model="demo", training_file=training_file.id,
                                          method={"type": "supervised", "supervised": {"hyperparameters": hyper}}, **kw)


def wait(client, job_id, states=("succeeded", "failed", "cancelled"), seconds=90):
    def over():
        job = client.fine_tuning.jobs.retrieve(job_id)
        return job if job.status in states else None
    return wait_for(over, seconds, f"{job_id} in {states}")


@pytest.fixture(scope="module")
def done(client, training_file):
    job = create(client, training_file, suffix="my pirate", metadata={"who": "me"}, seed=5,
                 hyperparameters={"n_epochs": 2, "batch_size": "auto", "learning_rate_multiplier": 0.5})
    assert job.id.startswith("ftjob-") and job.status in ("queued", "validating_files") and job.object == "fine_tuning.job"
    assert job.training_file == training_file.id and job.seed == 5 and job.metadata == {"who": "me"}
    assert job.hyperparameters.n_epochs == 2 and job.hyperparameters.learning_rate_multiplier == 0.5
    return wait(client, job.id)


def test_succeeds(client, ft, done):
    assert done.status == "succeeded" and done.error is None and done.finished_at >= done.created_at
    assert done.fine_tuned_model.startswith("ft:demo:tandem:my-pirate:") and done.trained_tokens > 0
    assert ft.generate("Tom saw", max_new_tokens=4, adapter_id=done.fine_tuned_model)


def test_result_file(client, done):
    text = client.files.content(done.result_files[0]).text.splitlines()
    assert text[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" and len(text) == 6
    assert client.files.retrieve(done.result_files[0]).purpose == "fine-tune-results"


def test_events_newest_first_with_the_known_messages(client, done):
    found = list(client.fine_tuning.jobs.list_events(done.id, limit=3))  # the client pages through all of them
    ids = [int(e.id.removeprefix("ft-event-")) for e in found]
    assert ids == sorted(ids, reverse=True)
    messages = [e.message for e in found]
    assert messages[0] == "The job has successfully completed"
    assert messages[1] == f"New fine-tuned model created: {done.fine_tuned_model}"
    assert messages[-1] == f"Created fine-tuning job: {done.id}"
    assert f"Validating training file: {done.training_file}" in messages
    for wanted in ("Files validated, moving job to queued state", "Fine-tuning job started"):
        assert wanted in messages
    metrics = [e for e in found if e.type == "metrics"]
    assert [e.data["step"] for e in metrics] == [5, 4, 3, 2, 1] and all(e.data["train_loss"] > 0 for e in metrics)
    assert metrics[0].message.startswith("Step 5/5: training loss=")


def test_list_and_filters(client, done, training_file):
    other = create(client, training_file, metadata={"who": "you"})
    assert [j.id for j in client.fine_tuning.jobs.list(limit=1)][:2] == [other.id, done.id]
    assert [j.id for j in client.fine_tuning.jobs.list(metadata={"who": "me"})] == [done.id]
    wait(client, other.id)


def test_checkpoints(client, done):
    found = list(client.fine_tuning.jobs.checkpoints.list(done.id))
    assert found and all(c.fine_tuning_job_id == done.id and c.step_number >= 0 for c in found)
    served = {m.id for m in client.models.list()}
    assert all(c.fine_tuned_model_checkpoint is None or c.fine_tuned_model_checkpoint in served for c in found)


def test_pause_resume_cancel(client, training_file):
    job = create(client, training_file, hyperparameters={"max_steps": 5000, "n_epochs": 1000})
    wait(client, job.id, ("running",))
    client.fine_tuning.jobs.pause(job.id)
    assert wait(client, job.id, ("paused",))
    client.fine_tuning.jobs.resume(job.id)
    wait(client, job.id, ("running",))
    client.fine_tuning.jobs.cancel(job.id)
    assert wait(client, job.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        client.fine_tuning.jobs.resume(job.id)


def test_validation_file_and_batch_size(client, training_file):
    held = client.files.create(file=("held.jsonl", jsonl(8).replace("Arr", "Yarr").encode()), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="demo", training_file=training_file.id, validation_file=held.id,
                                         hyperparameters={"n_epochs": 1, "batch_size": 10})
    found = wait(client, job.id)
    assert found.status == "succeeded" and found.validation_file == held.id and found.hyperparameters.batch_size == 10
    metrics = [e for e in client.fine_tuning.jobs.list_events(job.id) if e.type == "metrics"]
    assert any("valid_loss" in e.data for e in metrics)
    steps = max(e.data["step"] for e in metrics)
    assert 3 <= steps <= 6  # 40 rows in batches of about 10


def test_a_job_of_the_native_api_is_there_too(client, ft):
    native = ft.post("/train", request("native", max_steps=1)).json()["id"]
    wait_over(ft, native)
    seen = client.fine_tuning.jobs.retrieve("ft" + native)
    assert seen.status == "succeeded" and seen.fine_tuned_model == "native"


def test_going_on_from_a_fine_tuned_model(client, done, training_file):
    job = client.fine_tuning.jobs.create(model=done.fine_tuned_model, training_file=training_file.id,
                                         method={"type": "supervised", "supervised": {"hyperparameters": {"max_steps": 2}}})
    found = wait(client, job.id)
    assert found.status == "succeeded" and found.model == done.fine_tuned_model and found.fine_tuned_model != done.fine_tuned_model


def test_a_bad_file_fails_the_job(client):
    bad = client.files.create(file=("bad.jsonl", b'{"foo": 1}\n'), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="demo", training_file=bad.id)
    found = wait(client, job.id)
    assert found.status == "failed" and found.error.code == "invalid_dataset" and found.error.param == "training_file"


def test_idempotent_create(client, training_file):
    make = lambda: create(client, training_file, extra_headers={"Idempotency-Key": "only-one"})  # noqa: E731
    assert make().id == make().id


BAD = [
    ({"model": "nope"}, openai.NotFoundError, "model"),
    ({"training_file": "file-nope"}, openai.BadRequestError, "file-nope"),
    ({"validation_file": "file-nope"}, openai.BadRequestError, "file-nope"),
    ({"suffix": "s" * 65}, openai.BadRequestError, "suffix"),
    ({"seed": -1}, openai.BadRequestError, "seed"),
    ({"method": {"type": "dpo", "dpo": {}}}, openai.BadRequestError, "method.type"),
    ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 0}}}}, openai.BadRequestError, "n_epochs"),
    ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": "many"}}}}, openai.BadRequestError, "n_epochs"),
    ({"hyperparameters": {"batch_size": 0.5}}, openai.BadRequestError, "batch_size"),
    ({"hyperparameters": {"learning_rate_multiplier": 1e9}}, openai.BadRequestError, "learning_rate_multiplier"),
    ({"hyperparameters": {"lora_rr": 3}}, openai.BadRequestError, "lora_r"),
    ({"metadata": {f"k{i}": "v" for i in range(17)}}, openai.BadRequestError, "metadata"),
    ({"metadata": {"k": "v" * 600}}, openai.BadRequestError, "metadata"),
    ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, openai.BadRequestError, "integrations"),
    ({"extra_body": {"colour": "red"}}, openai.BadRequestError, "colour"),
]


@pytest.mark.parametrize("change, kind, message", BAD)
def test_bad_requests(client, training_file, change, kind, message):
    with pytest.raises(kind) as e:
        client.fine_tuning.jobs.create(**{"model": "demo", "training_file": training_file.id, **change})
    assert message in str(e.value)
    assert e.value.body["type"] == "invalid_request_error"


# what is wrong, and the field as the client wrote it: in the message and as `param`
FIELDS = [
    ({"training_file": "file-nope"}, "training_file", "training_file: there is no file file-nope"),
    ({"validation_file": "file-nope"}, "validation_file", "validation_file: there is no file file-nope"),
    ({"training_file": ""}, "training_file", "training_file: is empty"),
    ({"validation_file": ""}, "validation_file", "validation_file: is empty"),
    ({"training_file": 3}, "training_file", "training_file: expected a string"),
    ({"model": 3}, "model", "model: expected a string"),
    ({"seed": -1}, "seed", "seed: "),
    ({"suffix": "s" * 65}, "suffix", "suffix: "),
    ({"metadata": {"k": "v" * 600}}, "metadata", "metadata: "),
    ({"integrations": [{"type": "wandb"}]}, "integrations", "integrations: "),
    ({"method": {"type": "dpo"}}, "method.type", "method.type: "),
    ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs", "hyperparameters.n_epochs: "),
    ({"hyperparameters": {"lora_r": 0}}, "hyperparameters.lora_r", "hyperparameters.lora_r: must be between"),
    ({"hyperparameters": {"epochs": 0}}, "hyperparameters.epochs", "hyperparameters.epochs: must be above 0"),
    ({"hyperparameters": {"learning_rate_multiplier": 1e4}}, "hyperparameters.learning_rate_multiplier", "is too large"),
    ({"hyperparameters": {"learning_rate": 5e-324, "learning_rate_multiplier": 1e-6}}, "hyperparameters.learning_rate_multiplier", "is too small"),
    ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"lora_r": 0}}}}, "method.supervised.hyperparameters.lora_r", "lora_r: must be"),
    ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"lora_rr": 1}}}}, "method.supervised.hyperparameters.lora_rr", "unknown field"),
    ({"method": {"type": "supervised", "supervised": {"hyperparameters": {"learning_rate_multiplier": 1e4}}}},
     "method.supervised.hyperparameters.learning_rate_multiplier", "is too large"),
    ({"extra_body": {"colour": "red"}}, "colour", "colour: unknown field"),
]


@pytest.mark.parametrize("change, param, message", FIELDS)
def test_errors_name_the_fields_of_this_route(client, training_file, change, param, message):
    with pytest.raises(openai.BadRequestError) as e:
        client.fine_tuning.jobs.create(**{"model": "demo", "training_file": training_file.id, **change})
    assert e.value.param == param and message in e.value.body["message"] and e.value.body["message"].startswith(param)
    assert "dataset" not in str(e.value)


def test_a_bad_validation_file_is_named(client, training_file):
    bad = client.files.create(file=("bad.jsonl", b'{"foo": 1}\n'), purpose="fine-tune")
    found = wait(client, create(client, training_file, validation_file=bad.id).id)
    assert found.status == "failed" and found.error.param == "validation_file" and bad.id in found.error.message


def test_every_text_calls_a_job_by_its_id_here(client, training_file, done):
    """job-x is its name on the other routes."""
    with pytest.raises(openai.BadRequestError) as e:
        client.fine_tuning.jobs.cancel(done.id)
    assert e.value.body["message"].startswith(f"{done.id} is succeeded")
    with pytest.raises(openai.BadRequestError) as e:
        client.fine_tuning.jobs.pause(done.id)
    assert done.id in str(e.value)
    job = create(client, training_file, hyperparameters={"max_steps": 5000, "n_epochs": 1000})
    with pytest.raises(openai.ConflictError) as e:
        client.files.delete(training_file.id)
    assert f"is used by {job.id}, " in str(e.value)
    client.fine_tuning.jobs.cancel(job.id)
    wait(client, job.id)
    texts = [e.message for j in (job.id, done.id) for e in client.fine_tuning.jobs.list_events(j)]
    assert texts and not [t for t in texts if "job-" in t.replace("ftjob-", "")]


def test_deleting_a_fine_tuned_model(client, ft, start, training_file):
    """As OpenAI's: it is gone from the list, its requests are 404, and the next start does not load it again."""
    made = wait(client, create(client, training_file, suffix="short lived", hyperparameters={"max_steps": 1}).id).fine_tuned_model
    assert client.models.retrieve(made).id == made and (ft.data / "adapters" / made).is_dir()
    gone = client.models.delete(made)
    assert gone.id == made and gone.deleted is True and gone.object == "model"
    assert made not in {m.id for m in client.models.list()} and not (ft.data / "adapters" / made).exists()
    for call in (client.models.retrieve, client.models.delete):
        with pytest.raises(openai.NotFoundError) as e:
            call(made)
        assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model=made, prompt="Tom", max_tokens=1)
    with pytest.raises(openai.BadRequestError) as e:
        client.models.delete("demo")
    assert "only fine-tuned models" in str(e.value) and client.models.retrieve("demo")
    for name in ("..", "%2e%2e%2fjobs.sqlite", "a%2f..%2f..%2flock"):
        assert requests.delete(f"{ft.url}/v1/models/{name}", timeout=300).status_code in (400, 404, 405)
    assert (ft.data / "jobs.sqlite").exists() and (ft.data / "lock").exists()


def test_unknown_job(client):
    with pytest.raises(openai.NotFoundError) as e:
        client.fine_tuning.jobs.retrieve("ftjob-nope")
    assert e.value.code == "fine_tune_not_found"
