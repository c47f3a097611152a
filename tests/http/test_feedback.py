"""Feedback on answers: which requests it can name, the rows that it becomes, that none is lost or torn, and the whole way from
an answer to an adapter that is published only if it is better."""
import json
import random
import signal
import threading
import time
import uuid

import pytest
import requests
from conftest import PATIENCE, ROOT
from keys import Keys, bearer
from page_examples import commands, shell
from training import events, rows, wait_over

FLAGS = ("--feedback", "--chat-template", "plain", "--threads", "2")
CHAT = {"messages": [{"role": "user", "content": "Tell me of Tom."}], "max_tokens": 6}
GOOD = {"epochs": 1000, "max_steps": 8, "batch_tokens": 128, "max_length": 64, "lora_r": 4, "lora_alpha": 8, "learning_rate": 0.01, "seed": 7}
BAD = {**GOOD, "learning_rate": 1.0, "schedule": "constant", "warmup_ratio": 0.0, "max_steps": 2, "eval_steps": 1}


@pytest.fixture(scope="module")
def server(start):
    with start(*FLAGS) as s:
        yield s


def feedback(server, name, status=201, key=None, **body):
    answer = requests.post(server.url + "/feedback", json={"id": name, **body}, headers=bearer(key) if key else {}, timeout=PATIENCE)
    assert answer.status_code == status, answer.text
    return answer.json()


def complete(server, prompt="Tom saw", **more):
    answer = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 6, "return_token_ids": True, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stored(server, kind, dataset="default", model=None):
    """All rows, in their order."""
    folder = server.data / "feedback" / (model or next((server.data / "feedback").iterdir()).name) / dataset
    files = [*sorted(folder.glob(f"{kind}-*.jsonl")), *folder.glob(f"{kind}.open")]
    text = "".join(f.read_text() for f in files)
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def fresh():
    return "set-" + uuid.uuid4().hex


def sse(server, path, body):
    """The data of a stream's events, and the answer's headers."""
    with requests.post(server.url + path, json=body, stream=True, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.text
        lines = [line.split(":", 1)[1].strip() for line in answer.iter_lines(decode_unicode=True) if line.startswith("data:")]
        return [json.loads(line) for line in lines if line != "[DONE]"], answer.headers


# ---- what can be named, and what is stored -----------------------------------------------------------------------------

def test_rating_and_correction(server):
    """The ids are those that the model read and sampled; the texts beside them say the same."""
    name, answer = fresh(), complete(server, temperature=0)
    choice = answer["choices"][0]
    made = feedback(server, answer["id"], rating="up", better=" a red ball.", dataset=name)
    assert [r["kind"] for r in made["rows"]] == ["kto", "preference", "sft"] and made["dataset"] == name
    assert made["rows"][0]["path"] == f"feedback/{made['model']}/{name}/kto-*.jsonl"

    [kto], [pair], [row] = (stored(server, kind, name) for kind in ("kto", "preference", "sft"))
    assert kto["prompt_ids"] == pair["prompt_ids"] == row["prompt_ids"] == choice["prompt_token_ids"]
    assert kto["completion_ids"] == pair["rejected_ids"] == choice["token_ids"]
    assert pair["chosen_ids"] == row["completion_ids"] and kto["label"] is True and kto["rating"] == 1
    assert kto["completion"] == pair["rejected"] == choice["text"] and kto["prompt"].endswith("Tom saw")
    assert pair["chosen"] == row["completion"] == " a red ball." and "adapter" not in row and kto["id"] == answer["id"]
    *text, end = row["completion_ids"]
    assert server.post("/detokenize", {"tokens": text, "skip_special_tokens": False}).json()["prompt"].strip() == "a red ball."
    # the ids that a row of these texts has: a prompt is tokenised alone, and what follows it goes on
    body = {"dataset": {"rows": [{"prompt": "Tom saw", "completion": " a red ball."}]}, "hyperparameters": {"max_length": 64}}
    shown = server.post("/train/validate?rows=1", body).json()["rows"][0]
    body = {"dataset": {"path": f"feedback/{made['model']}/{name}/sft-*.jsonl"}, "hyperparameters": {"max_length": 64, "max_steps": 1}}
    assert wait_over(server, server.post("/train", body).json()["id"])["status"] == "succeeded"
    mine = server.post("/train/validate?rows=1", body).json()["rows"][0]
    assert mine["segments"] == shown["segments"]
    logprobs = complete(server, temperature=0, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
    assert kto["logprobs"] == pytest.approx(logprobs, abs=1e-5)


def ask_generate(server, stream):
    body = {"inputs": "Tom saw", "parameters": {"max_new_tokens": 6, "details": True}}
    if not stream:
        answer = server.post("/generate", body)
        return answer.headers["x-request-id"], [t["id"] for t in answer.json()["details"]["tokens"]]
    got, headers = sse(server, "/generate_stream", body)
    return headers["x-request-id"], [e["token"]["id"] for e in got]


def ask_openai(path, body):
    def ask(server, stream):
        body_ids = {**body, "return_token_ids": True}
        if not stream:
            answer = server.post(path, body_ids)
            assert answer.headers["x-request-id"] == answer.json()["id"]
            return answer.json()["id"], answer.json()["choices"][0]["token_ids"]
        got, _ = sse(server, path, {**body_ids, "stream": True})
        return got[0]["id"], [i for e in got for c in e["choices"] for i in c.get("token_ids") or []]
    return ask


def ask_tokens(server, stream):
    answer = server.post("/inference/v1/generate", {"token_ids": [5, 6, 7], "request_id": f"mine/{uuid.uuid4().hex}", "sampling_params": {"max_tokens": 4}})
    return answer.json()["request_id"], answer.json()["choices"][0]["token_ids"]


def ask_messages(server, stream):
    if not stream:
        return server.post("/v1/messages", {**CHAT, "model": "any"}).json()["id"], None
    got, _ = sse(server, "/v1/messages", {**CHAT, "model": "any", "stream": True})
    return got[0]["message"]["id"], None


def ask_responses(server, stream):
    body = {"model": "any", "input": "Tell me of Tom.", "max_output_tokens": 6}
    if not stream:
        return server.post("/v1/responses", body).json()["id"], None
    got, _ = sse(server, "/v1/responses", {**body, "stream": True})
    return got[0]["response"]["id"], None


ROUTES = {"generate": ask_generate, "completions": ask_openai("/v1/completions", {"prompt": "Tom saw", "max_tokens": 6}),
          "chat": ask_openai("/v1/chat/completions", CHAT), "tokens": ask_tokens, "messages": ask_messages, "responses": ask_responses}


@pytest.fixture(scope="module")
def any_model(start):
    with start(*FLAGS, "--accept-any-model") as s:
        yield s


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_every_route(any_model, route, stream):
    name = fresh()
    answer, ids = ROUTES[route](any_model, stream)
    feedback(any_model, answer, rating=-0.25, dataset=name)
    [row] = stored(any_model, "kto", name)
    assert row["label"] is False and row["rating"] == -0.25 and row["id"] == answer and len(row["completion_ids"]) in range(1, 7)
    assert ids is None or row["completion_ids"] == ids
    if route in ("chat", "messages", "responses"):  # rendered once, as the model had it
        assert row["prompt"].removeprefix("<s>") == "user: Tell me of Tom.\nassistant:", row["prompt"]
    if route == "tokens":
        assert row["prompt_ids"] == [5, 6, 7]


def test_the_clients_own_id(server):
    """Both ids name it; an id that comes again is the newest request's."""
    name, mine = fresh(), uuid.uuid4().hex
    answers = [server.post("/v1/completions", {"prompt": prompt, "max_tokens": 3}, headers={"X-Request-Id": mine}).json() for prompt in ("One", "Two")]
    assert [a["id"] for a in answers] == [f"cmpl-{mine}"] * 2
    feedback(server, mine, rating="up", dataset=name)
    feedback(server, answers[0]["id"], rating="up", dataset=name, status=200)
    assert [(r["prompt"].removeprefix("<s>"), r["label"], r["id"]) for r in stored(server, "kto", name)] == [("Two", True, mine)]


def test_choices(server):
    """Of several prompts and choices each can be named; of best_of those that were answered."""
    name = fresh()
    for more in ({"n": 2}, {"n": 2, "best_of": 4}):
        answer = complete(server, ["Tom saw", "Lily"], temperature=1.5, seed=3, **more)
        for i in (3, 0, 2):
            feedback(server, answer["id"], rating="up", choice=i, dataset=name)
        got = [(r["prompt_ids"], r["completion_ids"]) for r in stored(server, "kto", name)[-3:]]
        assert got == [(answer["choices"][i]["prompt_token_ids"], answer["choices"][i]["token_ids"]) for i in (3, 0, 2)]
        feedback(server, answer["id"], rating="up", choice=4, status=422)


def test_an_answer_that_ended(server):
    """A correction ends as the answer did; one that was cut with the model's own end."""
    name = fresh()
    answer = complete(server, "Tom saw", max_tokens=4)
    feedback(server, answer["id"], better=" a cat.", dataset=name)
    end = stored(server, "sft", name)[0]["completion_ids"][-1]
    ended = complete(server, "Tom saw", max_tokens=4, logit_bias={str(end): 100})
    assert ended["choices"][0]["finish_reason"] == "stop" and ended["choices"][0]["token_ids"] == [end]
    feedback(server, ended["id"], rating="down", better=" a cat.", dataset=name)
    [cut, whole] = stored(server, "preference", name)
    assert whole["rejected_ids"] == [end] and whole["rejected"] == "" and end not in cut["rejected_ids"]
    assert whole["chosen_ids"] == cut["chosen_ids"]
    full = complete(server, "Tom saw", max_tokens=1, logit_bias={str(end): 100})  # at its end where it would have been cut
    assert full["choices"][0]["finish_reason"] == "length" and full["choices"][0]["token_ids"] == [end]
    feedback(server, full["id"], better=" a cat.", dataset=name)
    assert stored(server, "preference", name)[-1]["rejected"] == "" and stored(server, "sft", name)[-1]["completion_ids"] == whole["chosen_ids"]


def test_said_again(server):
    name, answer = fresh(), complete(server)["id"]
    feedback(server, answer, rating="up", dataset=name)
    assert feedback(server, answer, rating="up", dataset=name, status=200)["rows"] == []
    feedback(server, answer, rating="down", dataset=name, status=409)
    assert [r["kind"] for r in feedback(server, answer, rating="up", better=" x.", dataset=name)["rows"]] == ["preference", "sft"]
    feedback(server, answer, better=" y.", dataset=name, status=409)
    feedback(server, answer, better=" x.", rating="down", dataset=name, status=409)
    feedback(server, answer, better=" x.", rating=1, dataset=name, status=200)
    assert [len(stored(server, kind, name)) for kind in ("kto", "preference", "sft")] == [1, 1, 1]


def test_refused(server):
    answer = complete(server)["id"]
    for body, says in (({}, "expected `rating`, `better` or both"), ({"rating": 0}, "rating: 0"), ({"rating": "good"}, "rating: expected"),
                       ({"rating": 1.5}, "rating: expected"), ({"rating": True}, "rating: expected"), ({"better": " \n"}, "better: is empty"),
                       ({"better": 5}, "better"), ({"better": "x" * 300000}, "better: longer than"), ({"rating": "up", "choice": 1}, "choice: the answer has 1"),
                       ({"rating": "up", "choice": -1}, "choice"), ({"rating": "up", "dataset": ".."}, "dataset: a letter"),
                       ({"rating": "up", "dataset": "a/b"}, "dataset: a letter"), ({"rating": "up", "dataset": "x" * 101}, "dataset: a letter"),
                       ({"rating": "up", "ratings": 1}, "ratings")):
        assert says in feedback(server, answer, status=422, **body)["error"], body
    for name in ("nobody", "", "x" * 1000, "\u00e9"):
        assert server.post("/feedback", {"id": name, "rating": "up"}).status_code == 404, name
    for body in ({"rating": "up"}, {"id": 5, "rating": "up"}, {"id": None, "rating": "up"}):
        assert server.post("/feedback", body).status_code == 422
    for text in ("", "[]", "{", '{"id":'):
        assert requests.post(server.url + "/feedback", data=text, timeout=PATIENCE).status_code in (400, 422), text
    assert feedback(server, answer, rating="up", dataset=fresh())  # nothing of this was counted
    feedback(server, answer, better=" x.", dataset=(name := fresh()))
    end = stored(server, "sft", name)[0]["completion_ids"][-1]
    same = complete(server, temperature=0, min_tokens=4, logit_bias={str(end): 100})
    choice = same["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["token_ids"][-1] == end and choice["text"]
    assert "is the answer that was given" in feedback(server, same["id"], better=choice["text"], status=422)["error"]


def test_failed_requests_are_not_kept(server):
    for body in ({"prompt": "Tom", "max_tokens": -1}, {"prompt": "Tom", "max_tokens": 0}):
        answer = server.post("/v1/completions", body, headers={"X-Request-Id": (mine := uuid.uuid4().hex)})
        assert answer.status_code in (200, 400)
        feedback(server, mine, rating="up", status=404)
    server.post("/v1/embeddings", {"input": "Tom"}, headers={"X-Request-Id": (mine := uuid.uuid4().hex)})
    feedback(server, mine, rating="up", status=404)


# ---- off, keys, limits -------------------------------------------------------------------------------------------------

def test_off(start):
    with start() as server:
        answer = server.post("/v1/completions", {"prompt": "Tom", "max_tokens": 2}).json()
        assert "--feedback" in feedback(server, answer["id"], rating="up", status=404)["error"]
        listed = server.get("/feedback").json()
        assert listed["data"] == [] and listed["collecting"] is False and listed["kept"]["requests"] == 0
        assert not (server.data / "feedback").exists()


def test_keys(start, tmp_path):
    """A key names its own answers; counts are for those who train, and only an administrator removes rows."""
    keys = Keys(tmp_path / "keys")
    with start(*FLAGS, "--api-keys", keys.file, key=keys.user) as server:
        answer = server.post("/v1/completions", {"prompt": "Tom", "max_tokens": 2}).json()["id"]
        for other in (keys.train, keys.admin):
            feedback(server, answer, rating="up", status=404, key=other)
        made = feedback(server, answer, rating="up", key=keys.user)
        assert server.get("/feedback").status_code == 403
        [listed] = requests.get(server.url + "/feedback", headers=bearer(keys.train), timeout=PATIENCE).json()["data"]
        assert (listed["kind"], listed["rows"], listed["dataset"], listed["model"]) == ("kto", 1, "default", made["model"])
        path = f"{server.url}/feedback/{made['model']}/default"
        assert [requests.delete(path, headers=bearer(k), timeout=PATIENCE).status_code for k in (keys.user, keys.train, keys.admin, keys.admin)] == [403, 403, 200, 404]
        assert not (server.data / "feedback" / made["model"] / "default").exists()
        for wrong in ("", "x", "../adapters", "%2e%2e/adapters", "a/b/c", f"{made['model']}/.."):
            assert requests.delete(f"{server.url}/feedback/{wrong}", headers=bearer(keys.admin), timeout=PATIENCE).status_code in (400, 404, 405), wrong


def test_memory_is_bounded(start):
    with start(*FLAGS, "--feedback-memory", "1M") as server:
        ids = [server.post("/v1/completions", {"prompt": [5] * 200, "max_tokens": 1, "n": 8}).json()["id"] for _ in range(600)]
        kept = server.get("/feedback").json()["kept"]
        assert kept["bytes"] <= kept["max_bytes"] == 1 << 20 and 100 < kept["requests"] < 600
        feedback(server, ids[0], rating="up", status=404)
        feedback(server, ids[-kept["requests"] - 1], rating="up", status=404)
        feedback(server, ids[-kept["requests"]], rating="up")
        feedback(server, ids[-1], rating="up")


def test_disk_is_bounded(start):
    with start(*FLAGS, "--feedback-size", "1M") as server:
        answer = server.post("/v1/completions", {"prompt": "Tom", "max_tokens": 2, "n": 8}).json()["id"]
        for i in range(8):
            posted = server.post("/feedback", {"id": answer, "choice": i, "better": "x" * 30000})
            assert posted.status_code in (201, 507) and (i or posted.status_code == 201), posted.text
        assert posted.status_code == 507 and posted.json()["error_type"] == "storage"
        listed = server.get("/feedback").json()
        assert listed["bytes"] <= listed["max_bytes"] == 1 << 20
        feedback(server, answer, rating="up")  # a small row still fits
        assert requests.delete(f"{server.url}/feedback/{listed['data'][0]['model']}/default", timeout=PATIENCE).status_code == 200
        feedback(server, answer, choice=7, better="x" * 30000)  # it was not counted as said


# ---- from an answer to an adapter --------------------------------------------------------------------------------------

def collect(server, name, n=24):
    """Corrections and ratings of n answers: what is said well is what the rows of training.py say."""
    for i, row in enumerate(rows(n)):
        answer = complete(server, row["prompt"], temperature=1, seed=i, max_tokens=12)
        feedback(server, answer["id"], better=row["completion"], rating="up" if i % 2 else "down", dataset=name)


def train(server, serve_as, path, held, method="lora", start_from=None, **hyper):
    body = {"method": method, "serve_as": serve_as, "gate": True, "dataset": {"path": path}, "validation": {"path": held},
            "hyperparameters": hyper, **({"from": start_from} if start_from else {})}
    answer = server.post("/train", body)
    assert answer.status_code == 202, answer.text
    found = wait_over(server, answer.json()["id"])
    assert found["status"] == "succeeded", found
    return found


def text(server, name):
    return server.generate("Tom saw a red ball.", max_new_tokens=24, adapter_id=name)["generated_text"]


def weights(server, name):
    return (server.data / "adapters" / name / "adapter_model.safetensors").read_bytes()


def test_the_whole_way(server):
    """Answers, corrections, a job: published because it is better, another that is not, and back."""
    name, held = fresh(), fresh()
    collect(server, name)
    collect(server, held, 8)
    listed = {(k["dataset"], k["kind"]): k for k in server.get("/feedback").json()["data"]}
    path, held_path = (listed[d, "sft"]["path"] for d in (name, held))
    assert listed[name, "sft"]["rows"] == 24 and listed[held, "preference"]["rows"] == 8

    first = train(server, "voice", path, held_path, **GOOD)
    assert first["published"] is True and first["best_step"] > 0
    one, bytes_one = text(server, "voice"), weights(server, "voice")
    kept = train(server, "voice", path, held_path, start_from="voice", **BAD)
    assert kept["published"] is False and text(server, "voice") == one

    sealed = sorted((server.data / path).parent.glob("sft-*.jsonl"))
    before = [f.read_bytes() for f in sealed]
    answer = server.post("/generate", {"inputs": "Lily", "parameters": {"max_new_tokens": 4, "adapter_id": "voice"}})
    feedback(server, answer.headers["x-request-id"], better=" Arr!", dataset=name)
    assert stored(server, "sft", name)[-1]["adapter"] == "voice"
    second = train(server, "voice", path, held_path, start_from="voice", **GOOD)
    assert [f.read_bytes() for f in sealed] == before and len(sorted((server.data / path).parent.glob("sft-*.jsonl"))) == len(sealed) + 1
    assert second["published"] is True and second["best_eval_loss"] < first["best_eval_loss"] and weights(server, "voice") != bytes_one
    assert server.post("/adapters/voice/rollback", {}).status_code == 200
    assert text(server, "voice") == one and weights(server, "voice") == bytes_one


@pytest.mark.full
@pytest.mark.parametrize("method, kind", [("kto", "kto"), ("dpo", "preference")])
def test_preferences(server, method, kind):
    name = fresh()
    collect(server, name)
    path = f"feedback/{feedback(server, complete(server)['id'], rating='up', dataset=fresh())['model']}/{name}/{kind}-*.jsonl"
    found = train(server, f"liked-{method}", path, path, method=method, **{**GOOD, "learning_rate": 0.003})
    counts = next(e for e in events(server, found["id"]) if e["type"] == "plan")
    assert found["published"] is True, (found, counts)
    evals = [e for e in events(server, found["id"]) if e["type"] == "eval"]
    assert evals[-1]["eval_loss"] < evals[0]["eval_loss"]


def test_a_growing_file_cannot_be_named(server):
    name = fresh()
    model = feedback(server, complete(server)["id"], rating="up", dataset=name)["model"]
    body = {"method": "kto", "dataset": {"path": f"feedback/{model}/{name}/kto.open"}, "hyperparameters": GOOD}
    answer = server.post("/train", body)
    assert answer.status_code == 422 and "No such file" in answer.json()["error"]  # it has its final name now
    body["dataset"]["path"] = f"feedback/{model}/{name}/kto-000001.jsonl"
    assert server.post("/train/validate", body).status_code == 200
    feedback(server, complete(server)["id"], rating="down", dataset=name)
    body["dataset"]["path"] = str(server.data / f"feedback/{model}/{name}/kto.open")
    answer = server.post("/train/validate", body)
    assert answer.status_code == 422 and "not inside the data directory" in answer.json()["error"]
    [growing] = (server.data / f"feedback/{model}/{name}").glob("*.open")
    assert growing.exists() and len(stored(server, "kto", name)) == 2


def test_only_a_job_makes_files(server):
    """Neither a validation nor what is refused seals rows; the one reads what is sealed."""
    name = fresh()
    model = feedback(server, complete(server)["id"], rating="up", dataset=name)["model"]
    folder = server.data / f"feedback/{model}/{name}"
    body = {"method": "kto", "dataset": {"path": f"feedback/{model}/{name}/kto-*.jsonl"}, "hyperparameters": {**GOOD, "max_steps": 1}}
    answer = server.post("/train/validate", body)
    assert answer.status_code == 422 and "rows of feedback get their file when a job is submitted" in answer.json()["error"]
    for more in ({"from": "nobody"}, {"validation": {"path": "nothing.jsonl"}}, {"serve_as": server.get("/info").json()["model_id"]}):
        assert server.post("/train", {**body, **more}).status_code == 422, more
    assert [f.name for f in folder.iterdir()] == ["kto.open"]
    assert wait_over(server, server.post("/train", body).json()["id"])["status"] == "succeeded"
    feedback(server, complete(server)["id"], rating="down", dataset=name)
    answer = server.post("/train/validate", body)
    assert answer.status_code == 200 and answer.json()["dataset"]["rows"] == 1, answer.text
    assert sorted(f.name for f in folder.iterdir()) == ["kto-000001.jsonl", "kto.open"]


@pytest.mark.full
def test_the_page(start):
    """The lines of docs/feedback.md, in their order, on a few more rows than the page has."""
    page = (ROOT / "docs/feedback.md").read_text()
    with start(*FLAGS) as server:
        collect(server, "default")
        ids, ran = {}, 0
        for line in commands(page):
            line = line.split("  #")[0].rstrip()
            if not line.startswith("curl "):
                assert line == "tandem serve --model models/demo --feedback"
                continue
            for name, known in ids.items():
                line = line.replace(name, known)
            got = shell(server, line.replace('"eval_fraction":0.1', '"eval_fraction":0.1,"max_steps":3'), "--fail-with-body")
            missing = "rollback" in line and '"not_found"' in got.stdout  # the first job of a name replaced nothing
            assert got.returncode == 0 or missing, f"{line}\n{got.stdout}{got.stderr}"
            answer, ran = json.loads(got.stdout), ran + 1
            if "/v1/completions" in line:
                ids["cmpl-..."] = answer["id"]
            if line.startswith("curl") and "/train -d" in line:
                ids["job-..."] = answer["id"]
                assert wait_over(server, answer["id"])["status"] == "succeeded"
        assert ran == 7 and "published" in server.get(f"/train/{ids['job-...']}").json()


# ---- killed ------------------------------------------------------------------------------------------------------------

class Rater(threading.Thread):
    """Rates and corrects as fast as it can, and remembers what was acknowledged."""

    def __init__(self, server, number):
        super().__init__()
        self.server, self.number, self.said = server, number, []

    def run(self):
        try:
            for i in range(100000):
                answer = self.server.post("/v1/completions", {"prompt": "Tom", "max_tokens": 1}).json()["id"]
                better = f" {self.number}-{i} " + "word " * (i % 200)
                made = self.server.post("/feedback", {"id": answer, "rating": "up", "better": better})
                if made.status_code == 201:
                    self.said.append((answer, better))
        except (requests.RequestException, ValueError):
            pass  # killed


def test_killed(start, tmp_path):
    """Killed while rows are written: each that was acknowledged is there, whole and once, and rows go on after it."""
    chance, flags, said = random.Random(3), (*FLAGS, "--data-dir", tmp_path / "data"), []
    for _ in range(4):
        server = start(*flags)
        raters = [Rater(server, n) for n in range(3)]
        for r in raters:
            r.start()
        time.sleep(chance.uniform(0.5, 1.5))
        server.signal(signal.SIGKILL)
        server.wait()
        for r in raters:
            r.join()
            said += r.said
        growing = [*(tmp_path / "data/feedback").glob("*/default/*.open")]
        if growing:  # what a lost power supply leaves, a kill does not
            with open(chance.choice(growing), "ab") as f:
                f.write(b'{"prompt_ids":[1,2')
    with start(*flags) as server:
        answer = server.post("/v1/completions", {"prompt": "Tom", "max_tokens": 1}).json()["id"]
        feedback(server, answer, rating="up", better=" last")
        said.append((answer, " last"))
        found = {kind: stored(server, kind) for kind in ("kto", "preference", "sft")}
        ids = {kind: [r["id"] for r in found[kind]] for kind in found}
        assert len(said) > 4
        for kind, texts in (("kto", None), ("preference", "chosen"), ("sft", "completion")):
            assert len(set(ids[kind])) == len(ids[kind])
            assert {answer for answer, _ in said} <= set(ids[kind])
            assert not texts or dict(said).items() <= {r["id"]: r[texts] for r in found[kind]}.items()
        path = server.get("/feedback").json()["data"][0]["path"]
        body = {"method": "kto", "dataset": {"path": path.replace(path.rsplit("/", 1)[1], "kto-*.jsonl")}, "hyperparameters": {"max_length": 64, "max_steps": 1}}
        assert wait_over(server, server.post("/train", body).json()["id"])["status"] == "succeeded"
        checked = server.post("/train/validate", body)
        assert checked.status_code == 200 and checked.json()["dataset"]["skipped"] == 0, checked.text
