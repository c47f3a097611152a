"""POST /train and what is below it, against the daemon with the demo model."""
import json
import os
import subprocess
import threading

import pytest
import requests
from conftest import BINARY, ENV, at_some_pace, wait_for
from training import OVER, events, job, jsonl, request, rows, stream, submit, wait_over, wait_step


@pytest.fixture(scope="module")
def train(start):
    with start() as s:
        s.data.mkdir(exist_ok=True)
        (s.data / "pirate.jsonl").write_text(jsonl(40))
        yield s


@pytest.fixture(scope="module")
def done(train):
    """One job that has succeeded."""
    job_id = submit(train, "done-one", dataset={"path": "pirate.jsonl"}, max_steps=8, eval_fraction=0.2, eval_steps=4)
    found = wait_over(train, job_id)
    assert found["status"] == "succeeded", found
    return found


@pytest.mark.smoke
def test_answer_and_job(train):
    answer = train.post("/train", request("pirate"))
    assert answer.status_code == 202
    body = answer.json()
    assert body["id"].startswith("job-") and body["status"] == "queued" and body["serve_as"] == "pirate"
    assert body["hyperparameters"]["lora_r"] == 4 and body["hyperparameters"]["schedule"] == "cosine"
    found = wait_over(train, body["id"])
    assert found["status"] == "succeeded" and found["progress"] == 1 and found["step"] == found["steps"] == 6
    assert 0 < found["loss"] < 20 and found["error"] is None
    assert found["created_at"] <= found["started_at"] <= found["finished_at"]
    assert found["report"]["kept"] == 24 and found["plan"]["steps"] == 6
    assert (train.data / "adapters/pirate/adapter_config.json").exists()
    assert not list((train.data / "inline").iterdir())  # the rows are not needed any more


@pytest.mark.smoke
def test_served_at_once(train, done):
    """adapter_id works from the moment the job has succeeded."""
    plain = train.generate("Tom saw", max_new_tokens=12)["generated_text"]
    ours = train.generate("Tom saw", max_new_tokens=12, adapter_id="done-one")["generated_text"]
    assert isinstance(plain, str) and isinstance(ours, str)
    unknown = train.post("/generate", {"inputs": "a", "parameters": {"adapter_id": "nobody"}})
    assert unknown.status_code in (404, 422)


def test_list_and_paging(train, done):
    ids = [submit(train, f"page-{i}", n=4, max_steps=1) for i in range(3)]
    for i in ids:
        wait_over(train, i)
    newest = train.get("/train?limit=2").json()
    assert [j["id"] for j in newest["data"]] == ids[:0:-1] and newest["has_more"]
    rest = train.get(f"/train?limit=100&after={ids[1]}").json()
    assert rest["data"][0]["id"] == ids[0] and done["id"] in [j["id"] for j in rest["data"]] and not rest["has_more"]
    assert all(j["status"] == "succeeded" for j in train.get("/train?status=succeeded").json()["data"])
    assert train.get("/train?status=nope").status_code == 422
    assert train.get("/train?limit=0").status_code == 422


def test_events_list(train, done):
    found = events(train, done["id"])
    ids = [e["id"] for e in found]
    assert ids == sorted(set(ids))
    kinds = [e["type"] for e in found]
    assert kinds[0] == "state" and found[-1]["status"] == "succeeded" and "plan" in kinds and "eval" in kinds
    steps = [e for e in found if e["type"] == "step"]
    assert [e["step"] for e in steps] == list(range(1, 9))
    for key in ("loss", "learning_rate", "grad_norm", "tokens_per_s", "percent", "eta_s", "progress", "epoch", "tokens"):
        assert key in steps[0], key
    assert steps[-1]["percent"] == 100 and steps[3]["percent"] == 50
    assert all(set(s["step_seconds"]) == PARTS for s in steps)


PARTS = {"data", "forward", "backward", "optimizer", "wait", "ranks", "other"}


def test_usage(train, done):
    used = train.get(f"/train/{done['id']}").json()["usage"]
    assert used["steps"] == 8 and used["rows"] >= 8 and used["evaluation_seconds"] > 0 and used["checkpoint_seconds"] > 0
    assert set(used["step_seconds"]) == PARTS and all(v >= 0 for v in used["step_seconds"].values())
    assert abs(sum(used["step_seconds"].values()) - used["seconds"]) < 1e-3 * used["seconds"]
    assert min(used["step_seconds"][part] for part in ("forward", "backward", "optimizer")) > 0
    assert used["tokens_per_s"] > 0 and used["peak_host_bytes"] > 1 << 20 and used["micro_batches_per_step"] >= 1
    assert 0 < used["cpu_seconds"] <= 1.1 * os.cpu_count() * used["seconds"] + 0.1
    assert any("Trained 8 steps" in e["message"] for e in events(train, done["id"]))


def test_advice_is_what_the_figures_say(train, done):
    used = train.get(f"/train/{done['id']}").json()["usage"]
    advice = {a["rule"]: a for a in used["advice"]}
    whole = used["seconds"] + used["evaluation_seconds"] + used["checkpoint_seconds"]
    shares = [("slow data", used["step_seconds"]["data"] / used["seconds"], 0.1),
              ("optimizer", used["step_seconds"]["optimizer"] / used["seconds"], 0.2),
              ("device idle", used["step_seconds"]["other"] / used["seconds"], 0.1),
              ("waiting for serving", used["step_seconds"]["wait"] / used["seconds"], 0.25),
              ("evaluations", used["evaluation_seconds"] / whole, 0.2), ("checkpoints", used["checkpoint_seconds"] / whole * (used["checkpoint_seconds"] > 0.2), 0.1)]
    for rule, share, above in shares:
        assert abs(share - above) < 1e-4 or (rule in advice) == (share > above), (rule, share, used)
    gains = [a["gain"] for a in used["advice"]]
    assert gains == sorted(gains, reverse=True) and all(g > 1 for g in gains)
    lines = [e["message"] for e in events(train, done["id"]) if e["message"].startswith("Advice: ")]
    assert [line.split(": ")[1] for line in lines] == list(advice)


def test_stream_and_resume(train):
    """A stream opened before the first step has everything once; a second one goes on where it was left."""
    job_id = submit(train, "streamed", max_steps=10)
    all_of_it = list(stream(train, job_id))
    assert [i for i, _, _ in all_of_it] == [e["id"] for e in events(train, job_id)]
    assert all_of_it[-1][1] == "state" and all_of_it[-1][2]["status"] == "succeeded"
    middle = all_of_it[len(all_of_it) // 2][0]
    assert [i for i, _, _ in stream(train, job_id, last=middle)] == [i for i, _, _ in all_of_it if i > middle]
    assert list(stream(train, job_id, last=all_of_it[-1][0])) == []


def test_stream_by_query(train, done):
    with requests.get(f"{train.url}/train/{done['id']}/events?stream=1", stream=True, timeout=300) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert b"event: step" in answer.content


def test_a_stream_that_is_left(train):
    """Clients that go away cost nothing and hurt nobody."""
    job_id = submit(train, "left", max_steps=10)
    for _ in range(5):
        with requests.get(f"{train.url}/train/{job_id}/events?stream=1", stream=True, timeout=300) as answer:
            next(answer.iter_lines())
    assert wait_over(train, job_id)["status"] == "succeeded"


def test_metrics_history(train, done):
    body = train.get(f"/train/{done['id']}/metrics").json()
    assert set(body["keys"]) == set(body["metrics"])
    assert [p["step"] for p in body["metrics"]["train_loss"]] == list(range(1, 9))
    assert [p["step"] for p in body["metrics"]["eval_loss"]] == [4, 8]


def test_checkpoints(train, done):
    found = train.get(f"/train/{done['id']}/checkpoints").json()["data"]
    assert found and all(c["step"] <= 8 for c in found)


def test_tensorboard_reads_it(train, done):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    board = EventAccumulator(str(train.data / "tensorboard" / done["id"])).Reload()
    assert [s.step for s in board.Scalars("train/loss")] == list(range(1, 9))
    assert [s.step for s in board.Scalars("eval/loss")] == [4, 8]
    assert abs(board.Scalars("train/loss")[-1].value - done["loss"]) < 1e-5


def test_prometheus(train, done):
    assert train.metric("tandem_train_jobs", status="succeeded") >= 1
    assert train.metric("tandem_train_steps_total") >= 8
    assert train.metric("tandem_train_tokens_total") > 0
    assert train.metric("tandem_requests_total", route="/train/{id}", status="200") >= 1


def test_prometheus_keeps_what_the_last_job_came_to(train):
    found = wait_over(train, submit(train, max_steps=8, n=40, eval_fraction=0.2, eval_steps=2))
    assert found["status"] == "succeeded"
    best = [e["best"] for e in events(train, found["id"]) if e["type"] == "eval"]
    assert len(best) == 4
    assert train.metric("tandem_train_eval_loss") == pytest.approx(found["eval_loss"], rel=1e-5)
    assert train.metric("tandem_train_best_eval_loss") == pytest.approx(found["best_eval_loss"], rel=1e-5)
    assert train.metric("tandem_train_evaluations_since_best") == best[::-1].index(True)
    assert train.metric("tandem_train_peak_host_bytes") == found["usage"]["peak_host_bytes"]
    assert train.metric("tandem_train_step") == train.metric("tandem_train_rows_per_second") == 0
    norms = found["grad_norms"]
    assert sum(v ** 2 for v in norms.values()) ** 0.5 == pytest.approx(found["grad_norm"], rel=1e-5)


def test_jobs_are_compared_by_their_answers(train, done, tmp_path):
    other = wait_over(train, submit(train, max_steps=2, lora_r=2))
    for name, answer in {"one": done, "other": other}.items():
        (tmp_path / name).write_text(json.dumps(answer))
    said = subprocess.run([BINARY, "train", "--compare", "one", "other", "--json"], cwd=tmp_path, env=ENV, capture_output=True, timeout=300)
    assert said.returncode == 0, said.stderr
    both = json.loads(said.stdout)
    assert {"name": "lora_r", "a": 4, "b": 2} in both["settings"] and not any(s["name"] == "seed" for s in both["settings"])
    figures = {f["name"]: f for f in both["figures"]}
    assert figures["best_eval_loss"]["a"] == pytest.approx(done["best_eval_loss"]) and figures["step"]["b"] == 2


def test_fifo_cancel_and_pause_of_queued(train):
    first = submit(train, "fifo-a", max_steps=2000, n=40)
    second, third = submit(train, "fifo-b"), submit(train, "fifo-c", max_steps=2)
    wait_step(train, first)
    assert job(train, second)["status"] == job(train, third)["status"] == "queued"
    assert train.post(f"/train/{second}/cancel", {}).json()["status"] == "cancelled"
    assert train.post(f"/train/{third}/pause", {}).json()["status"] == "paused"
    answer = train.post(f"/train/{first}/cancel", {})
    assert answer.status_code == 200 and answer.json()["wanted"] == "cancel"
    assert wait_over(train, first)["status"] == "cancelled"
    assert not (train.data / "checkpoints" / first).exists()
    assert job(train, third)["status"] == "paused"
    assert train.post(f"/train/{third}/resume", {}).json()["status"] == "queued"
    assert wait_over(train, third)["status"] == "succeeded"
    assert train.post(f"/train/{third}/cancel", {}).status_code == 409


def test_pause_and_resume_gives_the_same_bytes(train):
    """A paused job goes on from its checkpoint, and ends like one that was never paused."""
    paused = submit(train, "same-a", max_steps=60, n=40)
    wait_step(train, paused, 3)
    train.post(f"/train/{paused}/pause", {})
    found = wait_over(train, paused, states=("paused", *OVER))
    assert found["status"] == "paused" and 3 <= found["step"] < 60
    whole = submit(train, "same-b", max_steps=60, n=40)
    assert wait_over(train, whole)["status"] == "succeeded"
    assert train.post(f"/train/{paused}/resume", {}).status_code == 200
    assert wait_over(train, paused)["status"] == "succeeded"
    a, b = (train.data / f"adapters/same-{x}/adapter_model.safetensors" for x in "ab")
    assert a.read_bytes() == b.read_bytes()


def test_serving_goes_on_while_training(train):
    job_id = submit(train, "beside", max_steps=400, n=40)
    wait_step(train, job_id)
    texts = {train.generate("Once upon a time", max_new_tokens=8)["generated_text"] for _ in range(3)}
    assert len(texts) == 1
    train.post(f"/train/{job_id}/cancel", {})
    wait_over(train, job_id)


def test_idempotency_key(train):
    headers = {"Idempotency-Key": "once-only"}
    first = train.post("/train", request("idem", max_steps=1), headers=headers)
    again = train.post("/train", request("idem", max_steps=1), headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json()["id"] == again.json()["id"] and again.headers["Idempotent-Replayed"] == "true"
    other = train.post("/train", request("idem", max_steps=2), headers=headers)
    assert other.status_code == 409 and "Idempotency-Key" in other.json()["error"]
    wait_over(train, first.json()["id"])


def test_a_name_is_not_promised_twice(train):
    first = submit(train, "taken", max_steps=2000)
    refused = train.post("/train", request("taken"))
    assert refused.status_code == 409 and first in refused.json()["error"]
    train.post(f"/train/{first}/cancel", {})
    wait_over(train, first)
    assert wait_over(train, submit(train, "taken", max_steps=1))["status"] == "succeeded"


def test_a_name_can_be_trained_again(train, done):
    before = (train.data / "adapters/done-one/adapter_model.safetensors").read_bytes()
    assert wait_over(train, submit(train, "done-one", max_steps=3, seed=8))["status"] == "succeeded"
    assert (train.data / "adapters/done-one/adapter_model.safetensors").read_bytes() != before


def test_from_an_adapter(train, done):
    body = request("further", max_steps=2)
    body["from"] = "done-one"
    job_id = train.post("/train", body).json()["id"]
    assert wait_over(train, job_id)["status"] == "succeeded"


def test_a_dataset_that_turns_out_bad_fails_the_job(train):
    (train.data / "bad.jsonl").write_text('{"foo": 1}\n{"bar": 2}\n')
    found = wait_over(train, submit(train, "bad-data", dataset={"path": "bad.jsonl"}))
    assert found["status"] == "failed" and found["error"]["code"] == "invalid_dataset" and found["error"]["message"]
    (train.data / "bad.jsonl").write_text(jsonl(8))  # mended: a failed job can be tried again
    assert train.post(f"/train/{found['id']}/resume", {}).status_code == 200
    assert wait_over(train, found["id"])["status"] == "succeeded"


def test_bad_rows_are_reported_with_their_lines(train):
    text = jsonl(6) + "this is no json\n" + jsonl(8)
    (train.data / "mixed.jsonl").write_text(text)
    found = wait_over(train, submit(train, "mixed", dataset={"path": "mixed.jsonl"}, max_steps=1))
    assert found["status"] == "succeeded"
    report = found["report"]
    assert report["skipped"] == 1 and report["problems"][0]["line"] == 7 and report["duplicates"] == 6


def test_text_inline(train):
    text = "Once there was a ship. It was big.\n\n" * 3 + "The sea was calm and the men sang all day long.\n\nThey went home."
    body = request("inline-text", max_steps=1)
    body["dataset"] = {"text": text}
    assert wait_over(train, train.post("/train", body).json()["id"])["status"] == "succeeded"


def test_validate(train):
    answer = train.post("/train/validate?rows=2", request("validated"))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["dataset"]["kept"] == 24 and len(body["rows"]) == 2
    for row in body["rows"]:
        assert sum(s["tokens"] for s in row["segments"]) == row["tokens"]
        assert sum(s["tokens"] for s in row["segments"] if s["trained"]) == row["trained_tokens"]
        assert "Arr" in "".join(s["text"] for s in row["segments"] if s["trained"])
    assert body["plan"]["steps"] > 0 and body["estimate"]["steps"] == body["plan"]["steps"]
    assert "validated" not in json.dumps(train.get("/train").json())
    assert not list((train.data / "inline").iterdir())


def test_validate_divides(train):
    """How the job could be divided over GPUs that are not here, as tandem plan says it."""
    answer = train.post("/train/validate?rows=0&gpus=4x1G&link=12.5&tflops=2", request("divided")).json()
    splits = answer["splits"]
    assert splits["gpus"] == 4 and splits["memory_bytes"] == 2**30 and splits["flops"] == 2e12 and splits["link_bytes_per_s"] == 12.5e9
    assert {s["zero"] for s in splits["splits"] if s["tensor_parallel"] == 1} == {0, 1, 2, 3}
    assert splits["trainable_parameters"] == pytest.approx(answer["plan"]["trainable_parameters"]) and splits["best"] in splits["splits"]
    assert "splits" not in train.post("/train/validate?rows=0", request("divided")).json()
    undivided = train.post("/train/validate?rows=0&gpus=3x1G", request("divided"))
    assert undivided.status_code == 200 and undivided.json()["plan"] == answer["plan"]
    assert undivided.json()["splits"] == {"object": "train.splits", "error": "gpus: the number of cards must be a power of two (up to 64), not 3"}
    for query in ("gpus=4", "gpus=4x0G", "gpus=99x1G", "gpus=4x1G&link=0", "gpus=4x1G&tflops=fast"):
        refused = train.post(f"/train/validate?{query}", request("divided"))
        assert refused.status_code == 422 and refused.json()["error_type"] == "validation", query


def test_validate_refuses(train):
    answer = train.post("/train/validate", request(dataset={"rows": [{"nothing": 1}]}))
    assert answer.status_code == 422 and "dataset" in answer.json()["error"]


def test_delete(train):
    job_id = submit(train, "deleted", max_steps=1)
    wait_over(train, job_id)
    assert requests.delete(f"{train.url}/train/{job_id}", timeout=300).json()["deleted"] is True
    assert train.get(f"/train/{job_id}").status_code == 404 and train.get(f"/train/{job_id}/events").status_code == 404
    assert not (train.data / "checkpoints" / job_id).exists()
    assert (train.data / "adapters/deleted").exists()


def test_unknown_ids(train):
    for path in ("job-nope", "nope", "ftjob-nope", "job-nope/events", "job-nope/metrics", "job-nope/checkpoints"):
        answer = train.get(f"/train/{path}")
        assert answer.status_code == 404 and answer.json()["error_type"] == "not_found"
    with requests.get(f"{train.url}/train/job-nope/events?stream=1", timeout=300) as answer:
        assert answer.status_code == 404


@pytest.mark.concurrent
def test_many_clients_at_once(train):
    """Readers, writers and a stream at the same time."""
    job_id = submit(train, "crowd", max_steps=20)
    failed = []

    def read():
        for _ in range(10):
            for path in ("/train", f"/train/{job_id}", f"/train/{job_id}/events", "/v1/files", "/metrics"):
                if train.get(path).status_code != 200:
                    failed.append(path)
    threads = [threading.Thread(target=read) for _ in range(4)]
    for t in threads:
        t.start()
    seen = [i for i, _, _ in stream(train, job_id)]
    for t in threads:
        t.join()
    assert not failed and seen == sorted(seen) and job(train, job_id)["status"] == "succeeded"


def test_jobs_survive_a_restart(start, tmp_path):
    """SIGTERM in the middle of a job: it goes on at the next start, without a word from anybody."""
    with start("--data-dir", tmp_path / "d") as s:
        first, second = submit(s, "restart-a", max_steps=120, n=40), submit(s, "restart-b", max_steps=2)
        wait_step(s, first, 2)
    with start("--data-dir", tmp_path / "d") as s:
        assert wait_over(s, first)["status"] == "succeeded" and wait_over(s, second)["status"] == "succeeded"
        ids = [e["id"] for e in events(s, first)]
        assert ids == sorted(set(ids))
        assert any("restarted" in e["message"] for e in events(s, first))


def test_two_daemons_do_not_share_a_directory(start, tmp_path):
    with start("--data-dir", tmp_path / "d") as s:
        submit(s, "mine", max_steps=1)
        with start("--data-dir", tmp_path / "d") as other:
            refused = other.post("/train", request("theirs"))
            assert refused.status_code == 507 and "another tandem" in refused.json()["error"]
            assert other.generate(max_new_tokens=2)


def test_nothing_is_made_until_it_is_needed(start, tmp_path):
    with start("--data-dir", tmp_path / "d") as s:
        s.generate(max_new_tokens=1)
    assert not (tmp_path / "d").exists()


def test_rows_of_a_job_do_not_hold_up_the_loop(train):
    """A request with megabytes of rows is read on another thread: streams of text go on."""
    big = request("megabytes", n=30000, max_steps=1)

    def test(_):  # this machine may hold it up
        answer, took = [], [0]
        thread = threading.Thread(target=lambda: answer.append(train.post("/train", big)))
        thread.start()
        while thread.is_alive():
            took.append(train.get("/health").elapsed.total_seconds())
        assert answer[0].status_code == 202, answer[0].text
        train.post(f"/train/{answer[0].json()['id']}/cancel", {})
        wait_for(lambda: job(train, answer[0].json()["id"])["status"] in OVER)
        assert max(took) < 5
    at_some_pace(test)


def test_inline_rows_are_an_array_too(train):
    body = request("array", max_steps=1)
    body["dataset"] = rows(6)
    job_id = train.post("/train", body).json()["id"]
    assert wait_over(train, job_id)["status"] == "succeeded"


def test_several_files_and_weights(train):
    """A pattern means the files that match when the job is submitted; problems name the file; shares are as asked for."""
    (train.data / "many").mkdir(exist_ok=True)
    for i in range(3):
        (train.data / f"many/{i}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows(30)[10 * i:10 * i + 10]))
    (train.data / "many/b.jsonl").write_text('{"prompt": "a", "completion": "b"}\n8\n')
    dataset = {"path": ["many/[0-9].jsonl", "many/b.jsonl"], "weights": [1, 3]}
    answer = train.post("/train/validate", request(dataset=dataset))
    assert answer.status_code == 200, answer.text
    report = answer.json()["dataset"]
    assert (report["rows"], report["kept"], report["drawn"]) == (32, 31, 31)
    assert report["problems"] == [{"line": 2, "what": report["problems"][0]["what"], "file": "many/b.jsonl"}]
    job_id = submit(train, "of-many", dataset=dataset)
    found = wait_over(train, job_id)
    assert found["status"] == "succeeded", found
    assert found["dataset"]["path"] == [["many/0.jsonl", "many/1.jsonl", "many/2.jsonl"], "many/b.jsonl"]
    assert found["dataset"]["weights"] == [1, 3]
    for path in ["../*.jsonl", "/etc/*", "files/*", "many/x*", ["many/0.jsonl", "inline/*"], ".*/.*/etc/*", "many/.[.]/*", "*/" * 20 + "*", "*" * 2000]:
        answer = train.post("/train", request(dataset={"path": path}))
        assert answer.status_code == 422 and "dataset.path" in answer.text, path
