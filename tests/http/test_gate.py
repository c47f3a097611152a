"""Jobs with a gate: the result is published only if it is better on held-out rows; and the way back."""
import random
import signal
import threading

import pytest
import requests
from training import events, request, rows, wait_over

HELD_OUT = {"rows": rows(40)[24:]}
BAD = {"learning_rate": 1.0, "schedule": "constant", "warmup_ratio": 0.0, "max_steps": 2, "eval_steps": 1}
GOOD = {"learning_rate": 0.01, "max_steps": 8}


@pytest.fixture(scope="module")
def server(start):
    with start() as s:
        yield s


def train(server, name, gate=True, start_from=None, **hyper):
    body = {**request(name, **hyper), "validation": HELD_OUT, "gate": gate, **({"from": start_from} if start_from else {})}
    answer = server.post("/train", body)
    assert answer.status_code == 202, answer.text
    found = wait_over(server, answer.json()["id"])
    assert found["status"] == "succeeded", found
    return found


def text(server, name):
    return server.generate("Tom saw a red ball.", max_new_tokens=24, adapter_id=name)["generated_text"]


def weights(server, name, folder="adapters"):
    return (server.data / folder / name / "adapter_model.safetensors").read_bytes()


def openai_view(server, job):
    return server.get(f"/v1/fine_tuning/jobs/ft{job['id']}").json()


def test_worse_than_the_model(server):
    """The first evaluation is of the model itself, and nothing gets better with such a rate."""
    found = train(server, "worse", **BAD)
    assert found["published"] is False and found["gate"] is True and found["best_step"] == 0
    evals = [e for e in events(server, found["id"]) if e["type"] == "eval"]
    assert [e["step"] for e in evals] == [0, 1, 2] and found["best_eval_loss"] == evals[0]["eval_loss"]
    assert all(e["eval_loss"] > evals[0]["eval_loss"] for e in evals[1:])
    assert server.post("/generate", {"inputs": "a", "parameters": {"adapter_id": "worse"}}).status_code == 422
    assert not (server.data / "adapters/worse").exists() and not (server.data / "checkpoints" / found["id"] / "result").exists()
    seen = openai_view(server, found)
    assert seen["status"] == "succeeded" and seen["fine_tuned_model"] is None
    assert any("Not published" in e["message"] for e in events(server, found["id"]))


def test_versions(server):
    first = train(server, "voice", **GOOD)
    assert first["published"] is True and first["best_step"] > 0 and openai_view(server, first)["fine_tuned_model"] == "voice"
    assert server.post("/adapters/voice/rollback", {}).status_code == 404  # nothing was replaced
    one, bytes_one = text(server, "voice"), weights(server, "voice")

    kept = train(server, "voice", start_from="voice", **BAD)
    assert kept["published"] is False and text(server, "voice") == one and weights(server, "voice") == bytes_one

    second = train(server, "voice", start_from="voice", **GOOD)
    assert second["published"] is True and second["best_eval_loss"] < first["best_eval_loss"]
    two, bytes_two = text(server, "voice"), weights(server, "voice")
    assert bytes_two != bytes_one and weights(server, "voice", "adapters-before") == bytes_one

    for want, now, before in ((one, bytes_one, bytes_two), (two, bytes_two, bytes_one)):
        answer = server.post("/adapters/voice/rollback", {})
        assert answer.status_code == 200 and answer.json() == {"name": "voice", "rolled_back": True}, answer.text
        assert text(server, "voice") == want
        assert weights(server, "voice") == now and weights(server, "voice", "adapters-before") == before


def test_without_a_gate(server):
    """A result that is worse replaces what is served, and can be taken back."""
    train(server, "free", **GOOD)
    one = text(server, "free")
    found = train(server, "free", gate=False, **BAD)
    assert "published" not in found and text(server, "free") != one
    assert server.post("/adapters/free/rollback", {}).status_code == 200 and text(server, "free") == one
    assert server.get("/adapters/free").status_code == 200
    assert requests.delete(server.url + "/adapters/free?files=true", timeout=300).status_code == 200
    assert not (server.data / "adapters/free").exists() and not (server.data / "adapters-before/free").exists()


def test_eval_on_start_alone(server):
    """Without a gate the start is the result when no step was better."""
    found = train(server, "start", gate=False, eval_on_start=True, **BAD)
    assert "published" not in found and (server.data / "adapters/start").exists()
    plain = server.generate("Tom saw a red ball.", max_new_tokens=24)["generated_text"]
    assert text(server, "start") == plain  # an adapter whose B is zero


def test_refused(server):
    held = {"validation": HELD_OUT, "gate": True}
    for body, says in (({**request("x"), "gate": True}, "gate: needs rows that are held out"),
                       ({**request("x"), **held, "gate": 1}, "gate"),
                       ({**request("x"), **held, "method": "full"}, "gate: only for adapters")):
        answer = server.post("/train", body)
        assert answer.status_code == 422 and says in answer.json()["error"], answer.text
    train(server, "taken", **GOOD)
    for start_from in (None, "other"):
        answer = server.post("/train", {**request("taken"), **held, **({"from": start_from} if start_from else {})})
        assert answer.status_code == 422 and "set `from` to it" in answer.json()["error"], answer.text
    for name in ("nobody", "..", "%2e%2e%2fadapters", "x" * 200):
        assert server.post(f"/adapters/{name}/rollback", {}).status_code in (400, 404), name
    assert server.get("/adapters/taken/rollback").status_code == 405


def test_killed(start, tmp_path):
    """Killed while it goes back and forth: one of the two versions is there, whole, and the other is kept."""
    chance, flags = random.Random(5), ("--data-dir", tmp_path / "data")
    with start(*flags) as server:
        train(server, "voice", **GOOD)
        one = weights(server, "voice")
        train(server, "voice", start_from="voice", **GOOD)
        versions = {one: None, weights(server, "voice"): None}
        assert len(versions) == 2
        versions[weights(server, "voice")] = text(server, "voice")
        server.post("/adapters/voice/rollback", {})
        versions[one] = text(server, "voice")
    for _ in range(4):
        server = start(*flags)
        try:
            now = weights(server, "voice")
            assert {now, weights(server, "voice", "adapters-before")} == set(versions)
            assert text(server, "voice") == versions[now]
            threading.Timer(chance.uniform(0.02, 0.3), server.signal, (signal.SIGKILL,)).start()
            try:
                while True:
                    answer = server.post("/adapters/voice/rollback", {})
                    assert answer.status_code == 200, answer.text
            except OSError:
                pass  # killed
        finally:
            server.process.kill()
            server.process.wait()
