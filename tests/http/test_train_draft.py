"""Method draft: texts of the served model, a smaller model trained on them, and its use as --draft-model."""
import contextlib
import json
import shutil
import signal
import sqlite3

import pytest
from conftest import MODEL, ROOT, wait_for
from training import events, job, rows, wait_over

ASK = {"method": "draft", "serve_as": "small", "draft": {"layers": 1, "max_new_tokens": 40},
       "hyperparameters": {"max_steps": 6, "epochs": 1000, "batch_tokens": 256, "max_length": 64, "seed": 7}}


def prompts(n):
    return [{"prompt": r["prompt"], "completion": r["completion"]} for r in rows(n)]


def texts(server, job_id):
    """The lines that are written whole, without the first, by row."""
    path = server.data / "checkpoints" / job_id / "texts.jsonl"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return {json.loads(line)["row"]: line for line in lines}


def attempts(folder, value=None):
    """How often the job of the daemon that ended last was taken up in vain; value: another number for it."""
    with contextlib.closing(sqlite3.connect(folder / "jobs.sqlite")) as db, db:
        if value is not None:
            db.execute("UPDATE jobs SET attempts = ?", (value,))
        return db.execute("SELECT attempts FROM jobs ORDER BY seq DESC").fetchone()[0]


def kill(server):
    server.signal(signal.SIGKILL)
    server.wait()
    server.process.returncode = 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafts")


def serve(start, folder, *args, **kw):
    server = start("--data-dir", folder, *args, **kw)
    server.data = folder
    return server


def test_a_draft_survives_a_kill(start, folder):
    with serve(start, folder, "--max-seqs", "2") as server:
        answer = server.post("/train", {**ASK, "dataset": {"rows": prompts(240)}})
        assert answer.status_code == 202, answer.text
        job_id = answer.json()["id"]
        assert answer.json()["method"] == "draft" and answer.json()["draft"]["layers"] == 1
        wait_for(lambda: len(texts(server, job_id)) > 4, 60, "some texts")
        kill(server)
    attempts(folder, 4)  # killed before as often as may be, but it went on each time
    with serve(start, folder, "--max-seqs", "2") as server:
        wait_for(lambda: attempts(folder) == 0, 60, "more texts")
        kill(server)
        before = texts(server, job_id)
    with open(folder / "checkpoints" / job_id / "texts.jsonl", "a") as torn:
        torn.write('{"row":239,"prompt":3,"input_ids":[1,2')  # a line that was not written whole
    with serve(start, folder) as server:
        done = wait_over(server, job_id)
        assert done["status"] == "succeeded", done["error"]
        after = texts(server, job_id)
        assert before.items() <= after.items() and sorted(after) == list(range(len(after)))
        ordered = (folder / "checkpoints" / job_id / "texts-in-order.jsonl").read_text().splitlines()
        for line, row in zip(ordered, map(json.loads, map(after.get, sorted(after)))):
            made = json.loads(line)
            assert made["input_ids"] == row["input_ids"]
            assert made["labels"] == [-100] * row["prompt"] + row["input_ids"][row["prompt"]:]
        one = json.loads(after[0])  # it is what the model says
        said = server.post("/v1/completions", {"prompt": one["input_ids"][:one["prompt"]], "temperature": 0, "max_tokens": 40}).json()
        text = server.post("/detokenize", {"ids": one["input_ids"][one["prompt"]:], "skip_special_tokens": True})
        if text.status_code == 200:
            assert said["choices"][0]["text"].strip() == text.json()["text"].strip()
        assert 0 < done["acceptance"] <= 1 and done["eval_loss"] > 0
        about = json.loads((folder / "models" / "small" / "tandem.json").read_text())
        assert about["job"] == job_id and abs(about["acceptance"] - done["acceptance"]) < 1e-5
        assert json.loads((folder / "models" / "small" / "config.json").read_text())["num_hidden_layers"] == 1
        assert any("Generating texts for" in e["message"] for e in events(server, job_id))
        want = server.generate("One day, Tom saw", max_new_tokens=40, details=True)
        again = server.post("/train", {**ASK, "draft": {"init": "small", "temperature": 0.7, "max_new_tokens": 8}, "serve_as": "smaller",
                                       "dataset": {"text": "Tom saw a big dog.\n\nLily had a red ball and a cake."}})
        assert wait_over(server, again.json()["id"])["status"] == "succeeded", job(server, again.json()["id"])
    with start("--speculate", "on", "--draft-model", folder / "models" / "small") as server:
        assert server.generate("One day, Tom saw", max_new_tokens=40, details=True) == want
        assert server.metric("tandem_speculated_tokens_accepted_total", source="draft") > 0


def test_a_draft_is_paused_and_cancelled(start, folder):
    with serve(start, folder, "--max-seqs", "1") as server:
        job_id = server.post("/train", {**ASK, "serve_as": "other", "dataset": {"rows": prompts(2000)}}).json()["id"]
        wait_for(lambda: texts(server, job_id), 60, "a text")
        assert server.post(f"/train/{job_id}/pause", {}).status_code < 300
        wait_over(server, job_id, states=("paused",))
        before = texts(server, job_id)
        assert server.post(f"/train/{job_id}/resume", {}).status_code < 300
        wait_for(lambda: len(texts(server, job_id)) > len(before), 60, "another text")
        assert before.items() <= texts(server, job_id).items()
        assert server.post(f"/train/{job_id}/cancel", {}).status_code < 300
        assert wait_over(server, job_id)["status"] == "cancelled"
        assert not (folder / "checkpoints" / job_id).exists()


def with_one_more_token(model):
    """The same model with a row of zeros behind the vocabulary, in its weights, its config and its tokenizer."""
    config, tokens = json.loads((model / "config.json").read_text()), json.loads((model / "tokenizer.json").read_text())
    n = config["vocab_size"]
    tokens["added_tokens"].append({**tokens["added_tokens"][-1], "id": n, "content": "<|more|>"})
    data = (model / "model.safetensors").read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:begin]), b""
    for name, t in header.items():
        if name != "__metadata__":
            bytes_ = data[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]]
            if t["shape"][0] == n:
                t["shape"][0], bytes_ = n + 1, bytes_ + bytes(len(bytes_) // n)
            t["data_offsets"], body = [len(body), len(body) + len(bytes_)], body + bytes_
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    (model / "config.json").write_text(json.dumps({**config, "vocab_size": n + 1}))
    return n, json.dumps(tokens)


def test_a_prompt_that_the_model_does_not_take(start, tmp_path):
    """A token that the tokenizer has and the model has no weights for, while texts of other rows are under way: the job
    fails, and nothing else."""
    served, small = tmp_path / "served", tmp_path / "data/models/start"
    for folder in (served, small):
        shutil.copytree(ROOT / "tests/fixtures/models/tinystories-656k", folder)
    more, tokens = with_one_more_token(small)
    for folder in (served, small):
        (folder / "tokenizer.json").write_text(tokens)
    given = [{"input_ids": [5, 6, i, 7 + i], "labels": [-100, -100, -100, 7 + i]} for i in range(20, 50)]
    given.append({"input_ids": [5, more, 6, 7], "labels": [-100, -100, -100, 7]})
    with serve(start, tmp_path / "data", model=served, env={"MALLOC_CONF": "junk:true"}) as server:  # what is freed is overwritten
        body = {**ASK, "draft": {"init": "start", "max_new_tokens": 60}, "dataset": {"rows": given, "format": "tokens"}}
        answer = server.post("/train", body)
        assert answer.status_code == 202, answer.text
        failed = wait_over(server, answer.json()["id"])
        assert failed["error"]["code"] == "generation_failed" and "0 to 2047" in failed["error"]["message"], failed["error"]
        server.generate("One day, Tom saw", max_new_tokens=60)  # the texts under way are over by then


def test_what_a_draft_cannot_be(start, folder):
    with serve(start, folder) as server:
        bad = [({"draft": None}, "draft: the field is missing"), ({"draft": {}}, "needs one of `layers`, `init`"),
               ({"draft": {"layers": 1, "init": "x"}}, "needs one of"), ({"draft": {"init": "../x"}}, "draft.init"),
               ({"draft": {"layers": 1, "temperature": -1}}, "draft.temperature"), ({"draft": {"layers": 0}}, "draft.layers"),
               ({"draft": {"layers": 1, "wide": 1}}, "wide"), ({"method": "full"}, "draft: only with method draft"),
               ({"validation": {"rows": prompts(2)}}, "eval_fraction"), ({"from": "some"}, "from")]
        for change, message in bad:
            answer = server.post("/train", {**ASK, "dataset": {"rows": prompts(4)}, **change})
            assert answer.status_code == 422 and message in answer.text, answer.text
        for draft, message in [({"layers": 99}, "draft: layers: 99; the model has"), ({"init": "nothing"}, "draft.init: ")]:
            answer = server.post("/train", {**ASK, "draft": draft, "serve_as": "bad", "dataset": {"rows": prompts(4)}})
            failed = wait_over(server, answer.json()["id"])
            assert failed["status"] == "failed" and message in failed["error"]["message"], failed["error"]
    assert MODEL
