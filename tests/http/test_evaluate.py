"""POST /evaluate: the results of tandem eval, from the daemon's own engine, whatever happens to the daemon."""
import json
import signal

import pytest
import requests
from conftest import DEMO, DEVICE, ROOT, wait_for
from keys import bearer, new_key

TASKS = ROOT / "tests" / "clients" / "tasks"
PIRATE = ROOT / "models" / "demo-pirate"
EXACT = ("--activations", "f32", "--kv-cache", "f32", "--threads", "2")
OVER = ("succeeded", "failed", "cancelled")
pytestmark = pytest.mark.skipif(not (DEMO / "model.safetensors").exists(), reason="no demo model")


@pytest.fixture(scope="module")
def daemon(start):
    with start(*EXACT, "--max-seqs", "8", "--adapters", f"pirate={PIRATE}", model=DEMO) as s:
        yield s
        s.wait_idle()


def rows(name):
    return [json.loads(line) for line in (TASKS / name).read_text().splitlines()]


def create(s, body, **kw):
    answer = s.post("/evaluate", body, **kw)
    assert answer.status_code == 202, answer.text
    return answer.json()


def wait(s, one, states=OVER, seconds=120):
    def over():
        got = s.get(f"/evaluate/{one['id']}").json()
        return got if got["status"] in states else None
    return wait_for(over, seconds, f"{one['id']} in {states}")


def row_lines(s, one):
    return [json.loads(line) for line in s.get(f"/v1/files/{one['rows_file']}/content").text.splitlines()]


def generations(n, most=16):
    """Rows whose texts take a while."""
    return {"dataset": [{"prompt": f"Once upon a time there were {i} dogs", "reference": "They ran."} for i in range(n)], "max_new_tokens": most}


OPTIONS = {"max_new_tokens": 12, "stop": ".", "window": 40, "resamples": 50, "seed": 3, "limit": 6}
ARGS = ("--max-new-tokens", 12, "--stop", ".", "--window", 40, "--resamples", 50, "--seed", 3, "--limit", 6)


def same(a, b):
    """Equal; on devices where other kernels take many rows than few, numbers but for their low bits."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == pytest.approx(b, rel=1e-4) if DEVICE and isinstance(a, float) else a == b


@pytest.mark.smoke
@pytest.mark.parametrize("task", ["texts.jsonl", "choices.jsonl", "stories.jsonl"])
def test_results_are_those_of_the_command(daemon, run, tmp_path, task):
    """Base and adapter; the rows inline, below the data directory, and uploaded."""
    data = [{"reference": "a dog ran", **row} if task == "stories.jsonl" else row for row in rows(task)]
    text = "".join(json.dumps(row) + "\n" for row in data)
    path = tmp_path / task
    path.write_text(text)
    done = run("eval", "--model", DEMO, "--data", path, "--adapter", PIRATE, *EXACT, *ARGS, "--json", tmp_path / "all.json",
               "--output", tmp_path / "rows.out")
    assert done.returncode == 0, done.stderr.decode()
    want = json.loads((tmp_path / "all.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "rows.out").read_text().splitlines()]
    (daemon.data / "sets").mkdir(parents=True, exist_ok=True)
    (daemon.data / "sets" / task).write_text(text)
    file = requests.post(daemon.url + "/v1/files", files={"file": (task, text)}, data={"purpose": "evals"}, timeout=300).json()
    sources = {"texts.jsonl": data, "choices.jsonl": {"path": f"sets/{task}"}, "stories.jsonl": {"file": file["id"]}}
    one = create(daemon, {"dataset": sources[task], "adapters": ["pirate"], **OPTIONS})
    assert one["object"] == "evaluation" and one["status"] == "queued" and one["results"] is None and one["adapters"] == ["pirate"]
    got = wait(daemon, one)
    assert got["status"] == "succeeded" and got["error"] is None and got["progress"] == 1, got
    assert got["created_at"] <= got["started_at"] <= got["finished_at"]
    results = got["results"]
    assert (results["kind"], results["rows"], results["resamples"], results["seed"]) == (want["kind"], want["rows"], 50, 3)
    assert [s["name"] for s in results["subjects"]] == ["base", "pirate"]
    for mine, theirs in zip(results["subjects"], want["subjects"], strict=True):
        assert same(mine["metrics"], theirs["metrics"]) and mine["tokens"] == theirs["tokens"] and mine["truncated"] == theirs["truncated"]
    assert all(m["low"] <= m["high"] for m in results["subjects"][1]["metrics"].values())
    for line in lines:
        line["subject"] = "base" if line["subject"] == "base" else "pirate"
    assert same(row_lines(daemon, got), lines)
    listed = daemon.get("/evaluate?limit=1").json()["data"]
    assert [v["id"] for v in listed] == [one["id"]] and "results" not in listed[0]


def test_requests_go_first_and_cancelling(daemon):
    one = create(daemon, generations(400, 200))
    wait_for(lambda: daemon.metric("tandem_requests_running") == 8, 60, "all places are taken")
    second = create(daemon, generations(1))
    assert daemon.post("/v1/completions", {"prompt": "The birds", "max_tokens": 20, "temperature": 0}).status_code == 200
    going = daemon.get(f"/evaluate/{one['id']}").json()
    assert going["status"] == "running" and 0 <= going["progress"] < 1 and going["rows"] == 400 and going["subject"] == "base"
    assert daemon.get(f"/evaluate/{second['id']}").json()["status"] == "queued"
    assert requests.delete(f"{daemon.url}/evaluate/{one['id']}", timeout=300).status_code == 409
    assert daemon.post(f"/evaluate/{one['id']}/cancel", {}).json()["status"] in ("cancelling", "cancelled")
    assert wait(daemon, one)["status"] == "cancelled" and wait(daemon, second)["status"] == "succeeded"
    assert daemon.post(f"/evaluate/{one['id']}/cancel", {}).status_code == 409
    assert requests.delete(f"{daemon.url}/evaluate/{one['id']}", timeout=300).json()["deleted"]
    assert daemon.get(f"/evaluate/{one['id']}").status_code == 404


@pytest.mark.parametrize("change, words", [
    ({"dataset": None}, "dataset: the field is missing"),
    ({"dataset": []}, "dataset: the list is empty"),
    ({"dataset": {"path": "../x.jsonl"}}, "dataset.path: "),
    ({"dataset": {"path": "jobs.sqlite"}}, "dataset.path: "),
    ({"dataset": {"path": "a", "file": "b"}}, "exclude each other"),
    ({"dataset": {"rows": 5}}, "dataset.rows: expected an array"),
    ({"dataset": {"file": "file-none"}}, "there is no file file-none"),
    ({"adapters": ["nobody"]}, "nobody"),
    ({"adapters": ["pirate", "pirate"]}, "given twice"),
    ({"stop": ["a"] * 17}, "stop: more than 16"),
    ({"ignore": "everything"}, "ignore: 'everything'"),
    ({"limit": -1}, "limit"),
    ({"max_new_tokens": 0}, "max_new_tokens"),
    ({"resamples": 1000000}, "resamples"),
    ({"quantize": "int8"}, "quantize"),
], ids=lambda v: next(iter(v)) if isinstance(v, dict) else "")
def test_a_request_that_is_wrong(daemon, change, words):
    answer = daemon.post("/evaluate", {**generations(1), **change})
    assert answer.status_code == 422 and words in answer.json()["error"], answer.text


@pytest.mark.parametrize("change, words", [
    ({"dataset": [{"prompt": "a", "reference": "b"}, {"prompt": "a"}]}, "dataset: row 2: "),
    ({"dataset": [{"text": "one"}, {"prompt": "a", "reference": "b"}]}, "rows of one kind"),
    ({"extract": "("}, "extract: "),
    ({"window": 16777216}, "window: "),
], ids=["row", "kinds", "extract", "window"])
def test_what_only_the_run_finds(daemon, change, words):
    got = wait(daemon, create(daemon, {**generations(1), **change}))
    assert got["status"] == "failed" and words in got["error"]["message"] and got["rows_file"] is None, got


def test_killed_in_the_middle(start, tmp_path):
    """It starts again, and a repetition of the request finds it."""
    args = (*EXACT, "--max-seqs", "4", "--data-dir", tmp_path / "data")
    body, key = generations(24, 48), {"Idempotency-Key": "one"}
    with start(*args, model=DEMO) as s:
        one = create(s, body, headers=key)
        wait_for(lambda: s.get(f"/evaluate/{one['id']}").json()["progress"] > 0.1, 60, "some rows are done")
        s.signal(signal.SIGKILL)
        s.wait()
        s.process.returncode = 0
    with start(*args, model=DEMO) as s:
        again = s.post("/evaluate", body, headers=key)
        assert again.json()["id"] == one["id"] and again.headers["Idempotent-Replayed"] == "true"
        assert s.post("/evaluate", {**body, "seed": 1}, headers=key).status_code == 409
        got = wait(s, one)
        same = wait(s, create(s, body))
        assert got["status"] == "succeeded" and row_lines(s, got) == row_lines(s, same) and len(row_lines(s, got)) == 24
        assert got["results"]["subjects"][0]["metrics"] == same["results"]["subjects"][0]["metrics"]
        assert not list((tmp_path / "data" / "inline").iterdir())


def test_stopped_in_the_middle(start, tmp_path):
    args = (*EXACT, "--max-seqs", "4", "--data-dir", tmp_path / "data")
    with start(*args, model=DEMO) as s:
        one = create(s, generations(200, 100))
        wait_for(lambda: s.get(f"/evaluate/{one['id']}").json()["status"] == "running", 60, "it runs")
    with start(*args, model=DEMO) as s:
        assert s.post(f"/evaluate/{one['id']}/cancel", {}).status_code == 200
        assert wait(s, one)["status"] == "cancelled"


def test_keys_and_roles(start, tmp_path):
    file = tmp_path / "keys"
    user, trainer = new_key(file, "u", "user"), new_key(file, "t", "train")
    with start("--threads", "2", "--api-keys", file, key=trainer, model=DEMO) as s:
        assert requests.post(s.url + "/evaluate", json=generations(1), headers=bearer(user), timeout=300).status_code == 403
        assert wait(s, create(s, generations(2, 4)))["status"] == "succeeded"
