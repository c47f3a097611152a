"""Method distill with another served model as the teacher: it is asked about the rows once, before the student is trained."""
import json
import shutil
import struct

import pytest
from conftest import DEVICE, wait_for
from test_models_dir import SMALL, loaded, make_model, states
from test_train_draft import kill
from training import events, job, rows, wait_over, wait_step

pytestmark = pytest.mark.skipif(DEVICE not in (None, "cpu"), reason="several models share the memory of the host")

HYPER = {"batch_tokens": 128, "max_length": 64, "lora_r": 4, "seed": 7, "learning_rate": 3e-3, "epochs": 8}
BODY = {"method": "distill", "base": "student", "teacher": "master", "serve_as": "less", "dataset": {"rows": rows(16)}, "hyperparameters": HYPER}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Three of one tokenizer but for a token of the last one's, and different weights or positions."""
    root = tmp_path_factory.mktemp("models")
    make_model(root / "student", 40.0)
    make_model(root / "master", 10000.0)
    make_model(root / "foreign", 10000.0)
    tokenizer = root / "foreign/tokenizer.json"
    text = json.loads(tokenizer.read_text())
    tokenizer.unlink()
    vocab = text["model"]["vocab"]
    a, b = sorted(vocab, key=vocab.get)[-2:]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    tokenizer.write_text(json.dumps(text))
    return root


def serve(start, models, data, *more):
    return start("--models-dir", models, "--data-dir", data, *SMALL, *more, model=None)


def run(server, **change):
    answer = server.post("/train", {**BODY, **change})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def answers(path, k):
    """The whole records of the file: of each row its tokens and their log-probabilities, by trained token."""
    data, out, at = path.read_bytes(), {}, 40
    while at + 12 <= len(data):
        row, n, _ = struct.unpack_from("<3I", data, at)
        at += 12
        if at + 8 * n * k > len(data):
            break
        ids = struct.unpack_from(f"<{n * k}i", data, at)
        values = struct.unpack_from(f"<{n * k}f", data, at + 4 * n * k)
        out[row] = [list(zip(ids[i * k:i * k + k], values[i * k:i * k + k], strict=True)) for i in range(n)]
        at += 8 * n * k
    return out


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def adapter(data):
    return (data / "adapters/less/adapter_model.safetensors").read_bytes()


def test_it_learns(start, models, tmp_path):
    """The divergence falls, with room for one of the two models at a time."""
    with serve(start, models, tmp_path, "--models-max", "1") as server:
        done = wait_over(server, run(server, hyperparameters={**HYPER, "epochs": 12, "eval_fraction": 0.2, "eval_on_start": True}), 300)
        assert done["status"] == "succeeded", done["error"]
        said = events(server, done["id"])
        evals = [e["eval_loss"] for e in said if e["type"] == "eval"]
        assert evals[-1] < 0.5 * evals[0], evals
        assert any("Asking master about 16 rows" in e["message"] for e in said)
        assert "master" not in loaded(server)
    # the result is an adapter: as a teacher it comes before a model of its name, which tells 32 tokens at most
    make_model(models / "less", 10000.0)
    wide = {**BODY, "serve_as": "least", "teacher": "less", "hyperparameters": {**HYPER, "teacher_top_k": 64}}
    try:
        with serve(start, models, tmp_path) as server:
            assert "less" in states(server)
            assert server.post("/train/validate", wide).status_code == 200
        with serve(start, models, tmp_path / "other") as server:
            answer = server.post("/train/validate", wide)
            assert answer.status_code == 422 and "tells its 32 likeliest tokens at most" in answer.text, answer.text
    finally:
        shutil.rmtree(models / "less")


def test_what_it_was_told(start, models, tmp_path):
    """The values are those of prompt_logprobs, whatever else the teacher does; a job that is paused keeps them."""
    with serve(start, models, tmp_path) as server:
        told = [[t["id"] for t in server.post("/tokenize", {"model": "student", "inputs": r["prompt"] + r["completion"]}).json()][:60] for r in rows(6)]
        set_ = [{"input_ids": ids, "labels": [-100] * 5 + ids[5:]} for ids in told]
        id_ = run(server, dataset={"rows": set_}, hyperparameters={**HYPER, "teacher_top_k": 8, "epochs": 1000, "save_steps": 1})
        wait_for(lambda: job(server, id_)["step"] > 2, 60, "a few steps")
        assert server.post(f"/train/{id_}/pause", {}).status_code < 300
        wait_over(server, id_, 60, ("paused",))
        found = answers(tmp_path / "checkpoints" / id_ / "teacher/rows", 8)
        assert sorted(found) == list(range(6))
        for row, ids in enumerate(told):
            asked = {"model": "master", "token_ids": ids, "sampling_params": {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 8}}
            answer = server.post("/inference/v1/generate", asked)
            assert answer.status_code == 200, answer.text
            for mine, theirs in zip(found[row], answer.json()["prompt_logprobs"][5:], strict=True):
                best = sorted((t["rank"], int(i), t["logprob"]) for i, t in theirs.items())[:8]
                assert [(i, f32(v)) for i, v in mine] == [(i, f32(v)) for _, i, v in best]
        written = (tmp_path / "checkpoints" / id_ / "teacher/rows").stat().st_mtime_ns
        step = job(server, id_)["step"]
        assert server.post(f"/train/{id_}/resume", {}).status_code < 300
        wait_for(lambda: job(server, id_)["step"] > step, 60, "more steps")
        assert (tmp_path / "checkpoints" / id_ / "teacher/rows").stat().st_mtime_ns == written
        server.post(f"/train/{id_}/cancel", {})
        wait_over(server, id_, 60)


def test_refused(start, models, tmp_path):
    with serve(start, models, tmp_path) as server:
        for change, says in (({"teacher": "nobody"}, "there is no adapter nobody, and no other model of this name"),
                             ({"teacher": "student"}, "student is the model that is trained"),
                             ({"teacher_model": True}, "teacher_model"),
                             ({"hyperparameters": {**HYPER, "teacher_top_k": 33}}, "teacher_top_k: 33, and a teacher that is another model tells its 32")):
            answer = server.post("/train", {**BODY, **change})
            assert answer.status_code == 422 and says in answer.text, answer.text
        failed = wait_over(server, run(server, teacher="foreign"), 60)
        assert failed["status"] == "failed" and failed["error"]["code"] == "invalid_teacher", failed
        assert "teacher foreign: its vocabulary is another: token" in failed["error"]["message"], failed
        plan = server.post("/train/validate", BODY)
        assert plan.status_code == 200 and plan.json()["hyperparameters"]["teacher_top_k"] == 32, plan.text


@pytest.mark.full
def test_killed(start, models, tmp_path):
    """While the teacher is asked, and while the student is trained: the same bytes as of a run that nothing broke."""
    change = {"dataset": {"rows": rows(200)}, "validation": {"rows": rows(210)[200:]},
              "hyperparameters": {**HYPER, "epochs": 1, "save_steps": 1, "lora_dropout": 0.1}}
    with serve(start, models, tmp_path / "whole") as server:
        done = wait_over(server, run(server, **change), 300)
        assert done["status"] == "succeeded", done["error"]
        steps = done["step"]
    broken = tmp_path / "broken"
    with serve(start, models, broken, "--max-seqs", "1") as server:
        id_ = run(server, **change)
        file = broken / "checkpoints" / id_ / "teacher/rows"
        wait_for(lambda: file.exists() and len(answers(file, 32)) > 4, 60, "some rows")
        assert server.post(f"/train/{id_}/pause", {}).status_code < 300
        wait_over(server, id_, 60, ("paused",))
        some = len(answers(file, 32))
        assert server.post(f"/train/{id_}/resume", {}).status_code < 300
        wait_for(lambda: len(answers(file, 32)) > min(some + 4, 199), 60, "more rows")
        kill(server)
    with file.open("ab") as f:  # of a record that was not written whole
        f.write(struct.pack("<3I", 199, 10, 0) + b"x" * 40)
    with serve(start, models, broken) as server:
        wait_step(server, id_, 2)
        asked = sum("Asking master" in e["message"] for e in events(server, id_))
        kill(server)
    assert len(answers(file, 32)) == 200 and len(answers(file.with_name("held-out"), 32)) == 10
    with serve(start, models, broken) as server:
        assert job(server, id_)["step"] < steps
        done = wait_over(server, id_, 300)
        assert done["status"] == "succeeded", done["error"]
        assert sum("Asking master" in e["message"] for e in events(server, id_)) == asked
        assert not file.parent.exists()
    assert adapter(broken) == adapter(tmp_path / "whole")
