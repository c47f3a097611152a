"""What POST /train and its neighbours refuse, each with a message that says what is wrong; and a daemon that serves on."""
import json
import os
import shutil
import socket

import pytest
import requests
import yaml
from conftest import ROOT, wait_for
from training import job, jsonl, request, rows, wait_over


@pytest.fixture(scope="module")
def train(start, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.jsonl").write_text(jsonl(20))
    with start() as s:
        s.data.mkdir(exist_ok=True)
        s.outside = outside / "secret.jsonl"
        (s.data / "ok.jsonl").write_text(jsonl(20))
        (s.data / "folder").mkdir()
        (s.data / "link.jsonl").symlink_to(s.outside)
        (s.data / "dir-link").symlink_to(outside)
        os.mkfifo(s.data / "pipe.jsonl")
        yield s
        wait_for(lambda: not any(j["status"] in ("queued", "running") for j in s.get("/train").json()["data"]), 60, "no job runs")
        assert s.generate(max_new_tokens=2)["generated_text"] is not None
        assert s.process.poll() is None


def hyper(**kw):
    return {**request("bad"), "hyperparameters": kw}


def data(value, **kw):
    return {"serve_as": "bad", "dataset": value, **kw}


ROW = [{"text": "a row"}]

# (body, status, what the message must hold)
REFUSED = [
    ("", 400, "malformed JSON"),
    ("{", 400, "malformed JSON"),
    ('{"dataset":{"rows":[{"text":"\ud800"}]}}'.encode("utf-8", "surrogatepass"), 400, "malformed JSON"),
    ([], 422, "expected an object"),
    ({}, 422, "dataset: the field is missing"),
    ({"serve_as": "bad"}, 422, "dataset: the field is missing"),
    (data(None), 422, "dataset: the field is missing"),
    (data("ok.jsonl"), 422, "dataset: expected an object"),
    (data({}), 422, "needs one of `path`, `file`, `rows`, `text`"),
    (data({"path": "ok.jsonl", "rows": ROW}), 422, "`path` and `rows` exclude each other"),
    (data({"rows": []}), 422, "dataset.rows: the list is empty"),
    (data([]), 422, "dataset: the list is empty"),
    (data({"rows": {"a": 1}}), 422, "dataset.rows: expected an array"),
    (data({"rows": ["text"]}), 422, "row 1: expected an object"),
    (data([{"text": "a"}, 3]), 422, "row 2: expected an object"),
    (data({"path": 3}), 422, "dataset.path: expected a string"),
    (data({"path": ""}), 422, "dataset.path: is empty"),
    (data({"path": "nothing.jsonl"}), 422, "nothing.jsonl: No such file"),
    (data({"path": "folder"}), 422, "folder: not a regular file"),
    (data({"path": "pipe.jsonl"}), 422, "pipe.jsonl: not a regular file"),
    (data({"path": "../outside0/secret.jsonl"}), 422, "not inside the data directory"),
    (data({"path": "../" * 20 + "etc/passwd"}), 422, "not inside the data directory"),
    (data({"path": "/etc/passwd"}), 422, "not inside the data directory"),
    (data({"path": "/nonexistent"}), 422, "not inside the data directory"),
    (data({"path": "folder/../../../etc/passwd"}), 422, "not inside the data directory"),
    (data({"path": "link.jsonl"}), 422, "not inside the data directory"),
    (data({"path": "dir-link/secret.jsonl"}), 422, "not inside the data directory"),
    (data({"path": "jobs.sqlite"}), 422, "not inside the data directory"),
    (data({"path": "a\u0000b"}), 400, "malformed JSON"),
    (data({"file": "file-nope"}), 422, "there is no file file-nope"),
    (data({"rows": ROW, "format": "xml"}), 422, "dataset.format: must be one of"),
    (data({"rows": ROW, "shuffle": True}), 422, "dataset.shuffle: unknown field"),
    (data({"rows": ROW, "train_on_prompts": True}), 422, "did you mean `train_on_prompt`?"),
    (data({"rows": ROW, "no_eos": "yes"}), 422, "dataset.no_eos: expected true or false"),
    (data({"rows": ROW}, validation={"path": "nope"}), 422, "validation.path: nope"),
    (data({"rows": ROW}, datset={}), 422, "datset: unknown field; did you mean `dataset`?"),
    (data({"rows": ROW}, method="ppo"), 422, "method: must be one of lora, qlora, full, dpo, orpo, simpo, kto, grpo, reward, distill, draft"),
    (hyper(beta=0.1), 422, "hyperparameters.beta: only with method dpo, orpo, simpo, kto, grpo or distill"),
    (hyper(beta=-1), 422, "hyperparameters.beta: must be at least 0"),
    ({**hyper(gamma=1), "method": "dpo"}, 422, "hyperparameters.gamma: only with method simpo or reward"),
    ({**hyper(label_smoothing=0.5), "method": "dpo"}, 422, "hyperparameters.label_smoothing: must be at least 0 and at most 0.499"),
    (data({"rows": ROW}, method=3), 422, "method: expected a string"),
    (data({"rows": ROW}, method="qlora"), 422, "qlora trains on quantised weights"),
    (data({"rows": ROW}, base="gpt-4"), 422, "base: gpt-4 is not served here; this is demo"),
    ({**data({"rows": ROW}), "from": "nobody"}, 422, "from: there is no adapter nobody"),
    ({**data({"rows": ROW}), "from": "../adapters/x"}, 422, "from: ../adapters/x is no adapter's name"),
    ({**data({"rows": ROW}), "serve_as": "../../etc/x"}, 422, "serve_as: must be 1 to 100 letters"),
    ({**data({"rows": ROW}), "serve_as": ""}, 422, "serve_as: must be 1 to 100 letters"),
    ({**data({"rows": ROW}), "serve_as": "a" * 101}, 422, "serve_as: must be 1 to 100 letters"),
    ({**data({"rows": ROW}), "serve_as": ".hidden"}, 422, "serve_as: must be 1 to 100 letters"),
    ({**data({"rows": ROW}), "serve_as": "demo"}, 422, "serve_as: demo is the name of the model itself"),
    ({**data({"rows": ROW}), "metadata": {"a": 1}}, 422, "metadata: a: expected a string"),
    ({**data({"rows": ROW}), "metadata": [1]}, 422, "metadata: expected an object"),
    ({**data({"rows": ROW}), "hyperparameters": [1]}, 422, "hyperparameters: expected an object"),
    (hyper(learning_rate=1e6), 422, "hyperparameters.learning_rate: must be above 0 and at most 1"),
    (hyper(learning_rate=0), 422, "hyperparameters.learning_rate: must be above 0"),
    (hyper(learning_rate=-1e-4), 422, "hyperparameters.learning_rate"),
    (hyper(learning_rate="2e-4"), 422, "hyperparameters.learning_rate: expected a number"),
    (hyper(lr=1e-4), 422, "hyperparameters.lr: unknown field; did you mean `learning_rate`?"),
    (hyper(learning_rte=1e-4), 422, "did you mean `learning_rate`?"),
    (hyper(num_train_epochs=3, epochs=2), 422, "hyperparameters.num_train_epochs: is the same as `epochs`: give one of them"),
    (hyper(epochs=0), 422, "hyperparameters.epochs: must be above 0 and at most 1000"),
    (hyper(epochs=1001), 422, "hyperparameters.epochs"),
    (hyper(max_steps=-1), 422, "hyperparameters.max_steps"),
    (hyper(max_steps=1.5), 422, "hyperparameters.max_steps: expected a whole number"),
    (hyper(lora_r=0), 422, "hyperparameters.lora_r: must be between 1 and 256"),
    (hyper(lora_r=257), 422, "hyperparameters.lora_r"),
    (hyper(lora_alpha=0), 422, "hyperparameters.lora_alpha"),
    (hyper(lora_dropout=1), 422, "hyperparameters.lora_dropout: must be at least 0 and at most 0.999"),
    (hyper(batch_tokens=8), 422, "hyperparameters.batch_tokens: must be between 16 and 1048576"),
    (hyper(max_length=4), 422, "hyperparameters.max_length"),
    (hyper(max_length=100000), 422, "hyperparameters.max_length: must be at most 512, the model's positions"),
    (hyper(max_length=256, micro_tokens=128), 422, "hyperparameters.micro_tokens: must be at least max_length"),
    (hyper(schedule="exponential"), 422, "hyperparameters.schedule: must be one of constant, linear, cosine"),
    (hyper(warmup_ratio=2), 422, "hyperparameters.warmup_ratio"),
    (hyper(weight_decay=-1), 422, "hyperparameters.weight_decay"),
    (hyper(max_grad_norm=-1), 422, "hyperparameters.max_grad_norm"),
    (hyper(seed=-1), 422, "hyperparameters.seed"),
    (hyper(seed=2**64), 422, "hyperparameters.seed"),
    (hyper(packing=1), 422, "hyperparameters.packing: expected true or false"),
    (hyper(eval_fraction=0.9), 422, "hyperparameters.eval_fraction"),
    (hyper(target_modules=[]), 422, "hyperparameters.target_modules: the list is empty"),
    (hyper(target_modules=["q_prj"]), 422, "unknown module \"q_prj\"; did you mean q_proj"),
    (hyper(target_modules=3), 422, "hyperparameters.target_modules: expected a list"),
    (hyper(recompute=True), 422, "hyperparameters.recompute: expected a string"),
    (hyper(random_init=True), 422, "hyperparameters.random_init: only with method full"),
    (hyper(optimizer="sgd"), 422, "hyperparameters.optimizer: must be one of adamw, muon, adamw_8bit"),
    (hyper(dropout=0.1), 422, "hyperparameters.dropout: only with method full; did you mean `lora_dropout`?"),
    (hyper(ema_decay=1), 422, "hyperparameters.ema_decay: must be at least 0 and at most 0.9999999"),
    (hyper(ema_decay=0.99999999), 422, "hyperparameters.ema_decay: must be at least 0 and at most 0.9999999"),
    (hyper(lora_dropout=0.999999), 422, "hyperparameters.lora_dropout: must be at least 0 and at most 0.999"),
    (hyper(beta1=0.99999999), 422, "hyperparameters.beta1: must be at least 0 and at most 0.99999"),
    (hyper(beta2=0.99999999), 422, "hyperparameters.beta2: must be at least 0 and at most 0.9999999"),
    (hyper(beta1=1), 422, "hyperparameters.beta1"),
    (hyper(epsilon=0), 422, "hyperparameters.epsilon"),
]


@pytest.mark.parametrize("path", ["/train", "/train/validate"])
@pytest.mark.parametrize("body, status, message", REFUSED)
def test_refused(train, path, body, status, message):
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    answer = requests.post(train.url + path, data=text, timeout=300)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"] and answer.json()["error_type"] in ("validation", "file_not_found")


@pytest.mark.smoke
def test_refused_leaves_nothing(train):
    before = train.get("/train").json()
    for body, status, _ in REFUSED[3:20]:
        assert train.post("/train", body).status_code == status
    assert train.get("/train").json() == before
    inline = train.data / "inline"
    assert not inline.exists() or not list(inline.iterdir())


NUMBERS = yaml.safe_load((ROOT / "docs/openapi.yaml").read_text())["components"]["schemas"]["Hyperparameters"]["properties"]


SAMPLED = ("samples", "prompts_per_step", "max_new_tokens", "temperature", "num_iterations", "clip_low", "clip_high")  # in test_train_grpo.py
PREFERENCES = ("beta", "label_smoothing", "gamma", "center_rewards_coefficient", "teacher_top_k", "desirable_weight", "undesirable_weight")  # in test_preferences.py


@pytest.mark.parametrize("end", ["least", "most"])
def test_the_limits_themselves_train(train, end):
    """What is accepted at the end of its range is not refused later, in other words or in other arithmetic."""
    ends = {"epochs": [1e-9, 1000], "learning_rate": [1e-30, 1], "lora_alpha": [1e-30, 4096]}  # these leave out the least
    values = {name: ends.get(name, [n.get("minimum"), n.get("maximum")])[end == "most"] for name, n in NUMBERS.items() if "maximum" in n}
    values.update(max_steps=2, max_length=[8, 512][end == "most"], max_grad_norm=1, seed=1)
    for full in (False, True):
        method = "full" if full else "lora"
        mine = {k: v for k, v in values.items() if full or k not in ("dropout", "ema_decay")}
        mine = {k: v for k, v in mine.items() if k not in PREFERENCES + SAMPLED}
        body = {"dataset": {"rows": [{"prompt": "Hello there.", "completion": f" General number {i}."} for i in range(8)]},
                "method": method, "serve_as": f"limit-{end}-{method}", "hyperparameters": mine}
        answer = train.post("/train", body)
        assert answer.status_code == 202, answer.text
        assert wait_over(train, answer.json()["id"])["status"] == "succeeded", job(train, answer.json()["id"])


def write(train, name, content):
    (train.data / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return {"path": name}


# what the data's own rows are worth is known when they are read: the job fails, and says why
FAILS = [
    ("empty.jsonl", "", "is empty"),
    ("blank.jsonl", "\n\n\n", "there are no rows"),
    ("binary.bin", bytes(range(256)) * 50, "NUL bytes"),
    ("no-answers.jsonl", "".join(json.dumps({"prompt": f"p{i}"}) + "\n" for i in range(5)), "line 1 is an object with the fields prompt"),
    ("wrong-types.jsonl", "".join(json.dumps({"prompt": i, "completion": [i]}) + "\n" for i in range(5)), "row 1: \"prompt\" must be a string"),
    ("no-assistant.jsonl", json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n", "no message of the assistant"),
    ("nothing-trained.jsonl", json.dumps({"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}) + "\n", "nothing to train on"),
    ("ids-out-of-range.jsonl", json.dumps({"input_ids": [1, 99999999], "labels": [1, 99999999]}) + "\n", "is not a token id below 2048"),
    ("half.json", '[{"text":"a"},', "the array does not end"),
]


@pytest.mark.parametrize("name, content, message", FAILS)
def test_data_that_cannot_be_used(train, name, content, message):
    dataset = write(train, name, content)
    job_id = train.post("/train", request(f"fails-{name}".replace(".", "-"), dataset=dataset)).json()["id"]
    found = wait_over(train, job_id)
    assert found["status"] == "failed" and found["error"]["code"] == "invalid_dataset", found
    assert name in found["error"]["message"] and message in found["error"]["message"]
    ended = [line for line in train.log().splitlines() if f"job={job_id} code=invalid_dataset" in line]
    assert len(ended) == 1 and "training failed" in ended[0] and message.replace('"', '\\"') in ended[0]
    refused = train.post("/train/validate", request(dataset=dataset))
    assert refused.status_code == 422 and refused.json()["error"].startswith("dataset: ")


def test_a_huge_row_is_skipped_and_reported(train):
    dataset = write(train, "huge.jsonl", jsonl(8) + json.dumps({"prompt": "p", "completion": "x" * 6_000_000}) + "\n")
    found = wait_over(train, train.post("/train", request("huge", dataset=dataset, max_steps=1)).json()["id"])
    assert found["status"] == "succeeded" and found["report"]["skipped"] == 1 and found["report"]["problems"][0]["line"] == 9


def test_a_file_that_changes_to_a_link_after_the_request(train):
    """What was a file in the directory when it was asked for may be a link out when it is read."""
    write(train, "swap.jsonl", jsonl(10))
    blocker = train.post("/train", request("blocker", max_steps=3000)).json()["id"]
    job_id = train.post("/train", request("swapped", dataset={"path": "swap.jsonl"})).json()["id"]
    (train.data / "swap.jsonl").unlink()
    (train.data / "swap.jsonl").symlink_to(train.outside)
    train.post(f"/train/{blocker}/cancel", {})
    found = wait_over(train, job_id)
    assert found["status"] == "failed" and "not inside the data directory" in found["error"]["message"]


def test_a_body_that_is_too_large(train):
    answer = requests.post(train.url + "/train", data=b" " * (65 << 20), timeout=300)
    assert answer.status_code == 413 and "larger than the limit" in answer.json()["error"]


def test_actions_that_make_no_sense(train):
    job_id = train.post("/train", request("short", max_steps=1)).json()["id"]
    wait_over(train, job_id)
    for action in ("pause", "resume", "cancel"):
        answer = train.post(f"/train/{job_id}/{action}", {})
        assert answer.status_code == 409 and "is succeeded and cannot be" in answer.json()["error"]
        assert train.post(f"/train/job-nope/{action}", {}).status_code == 404
    assert train.post(f"/train/{job_id}/explode", {}).status_code == 404
    assert requests.delete(train.url + "/train", timeout=300).status_code == 405
    assert requests.put(f"{train.url}/train/{job_id}", timeout=300).status_code == 405


def test_bad_pages_and_places(train):
    job_id = train.post("/train", request("places", max_steps=1)).json()["id"]
    wait_over(train, job_id)
    for query in ("limit=0", "limit=x", "limit=999999", "after=-1", "after=x"):
        assert train.get(f"/train/{job_id}/events?{query}").status_code == 422, query
    assert train.get(f"/train/{job_id}/events", headers={"Last-Event-ID": "x"}).status_code == 422
    assert train.get("/train?after=job-nope").status_code == 422


def test_a_bad_idempotency_key(train):
    assert train.post("/train", request("key"), headers={"Idempotency-Key": "k" * 300}).status_code == 400


def test_a_learning_rate_that_explodes_is_reported_not_fatal(train):
    """The guards of the trainer, seen from here: the job may fail with a reason; the daemon does not."""
    body = request("explodes", n=40, learning_rate=1, max_grad_norm=0, max_steps=30, schedule="constant")
    found = wait_over(train, train.post("/train", body).json()["id"])
    assert found["status"] in ("succeeded", "failed")
    assert found["status"] == "succeeded" or found["error"]["message"]


def test_weights_that_are_no_numbers(start, tmp_path):
    """Three steps without a finite loss, back, three more: the job fails and says so; the daemon serves on."""
    model = shutil.copytree(ROOT / "tests/fixtures/models/tinystories-656k", tmp_path / "model")
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    n = int.from_bytes(content[:8], "little")
    norm = json.loads(content[8:8 + n])["model.norm.weight"]
    nan = {"F32": b"\0\0\xc0\x7f", "BF16": b"\xc0\x7f", "F16": b"\0\x7e"}[norm["dtype"]]
    at = 8 + n + norm["data_offsets"][0]
    content[at:at + len(nan)] = nan
    weights.write_bytes(content)
    with start("--kv-cache-bytes", "16M", model=model) as s:
        found = wait_over(s, s.post("/train", request("nan", dataset={"rows": [{"input_ids": [5, 6, 7 + i]} for i in range(20)]})).json()["id"])
        message = found["error"]["message"]
        assert found["status"] == "failed" and "without a finite loss" in message, found
        assert "is NaN, in the head, forward pass, op norm of model.norm.weight, in the row of line " in message  # where it broke
        assert s.get("/adapters").json()["adapters"] == [] and s.get("/health").status_code == 200


def test_not_ready(start):
    """While the model is loading, reading works and asking is refused; here: after SIGTERM, while draining."""
    with start("--drain-timeout", 5) as s:
        with requests.post(s.url + "/generate", json={"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}, "stream": True},
                           stream=True, timeout=300) as answer:
            lines = answer.iter_lines()
            next(lines)
            s.signal()
            wait_for(lambda: s.get("/ready").status_code == 503, 10)
            refused = s.post("/train", request("late"))
            assert refused.status_code == 503 and "shutting down" in refused.json()["error"]


def test_the_table_is_long_enough():
    assert len(REFUSED) + len(FAILS) >= 40 and rows(3) and job


@pytest.mark.full
def test_bodies_of_clients_that_left_are_counted(start):
    """Large bodies that wait for the store are refused beyond a bound, also when nobody waits for their answers."""
    body = b'{"dataset":{"rows":[' + b"{}," * 2_500_000 + b'{}]},"nothing":1}'
    with start() as s:
        before = s.resident_bytes()
        assert s.post("/train", None, data=body).status_code in (413, 422)
        answers = []

        def ask():
            answers.append(requests.post(s.url + "/train", data=body, timeout=300).status_code)
        for _ in range(3):
            for _ in range(6):
                with socket.create_connection(("127.0.0.1", s.port)) as c:
                    c.sendall(b"POST /train HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            ask()
        assert set(answers) <= {422, 429, 503} and s.get("/health").status_code == 200
        assert s.resident_bytes() - before < 1 << 30
        wait_for(lambda: requests.post(s.url + "/train", data=body, timeout=300).status_code == 422, 60, "room again")


def test_resuming_a_job_whose_name_is_taken(train):
    failed = train.post("/train", {**request("taken"), "dataset": {"rows": [{"input_ids": [99999999]}]}}).json()["id"]
    assert wait_over(train, failed)["status"] == "failed"
    other = train.post("/train", request("taken", max_steps=100000)).json()["id"]
    refused = train.post(f"/train/{failed}/resume", {})
    assert refused.status_code == 409 and other in refused.json()["error"]
    train.post(f"/train/{other}/cancel", {})
    wait_over(train, other)
    assert train.post(f"/train/{failed}/resume", {}).status_code == 200
    wait_over(train, failed)


def test_too_many_event_streams(start):
    with start() as s:
        job_id, clients = s.post("/train", request("watched", max_steps=100000)).json()["id"], []
        for _ in range(256):
            c = socket.create_connection(("127.0.0.1", s.port))
            c.sendall(f"GET /train/{job_id}/events?stream=1 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            clients.append(c)
        for c in clients:
            assert c.recv(12) == b"HTTP/1.1 200"
        refused = s.get(f"/train/{job_id}/events?stream=1")
        assert refused.status_code == 429 and refused.headers["retry-after"]
        assert s.get(f"/train/{job_id}/events").status_code == 200
        for c in clients:
            c.close()
        wait_for(lambda: s.get(f"/train/{job_id}/events?stream=1", stream=True).status_code == 200, 30, "room again")
