"""Method grpo: texts that the served model samples are judged, and it learns from that; through the daemon and without."""
import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import BINARY, ENV, MODEL, ROOT, wait_for
from training import events, job, wait_over, wait_step

PROMPTS = ["Once upon a time, there was a little girl.", "One day, Tom went out.", "Lily and Ben were in the garden.",
           "It was a sunny day.", "Max had a new toy.", "There was a big tree.", "Sue woke up early.", "Mom and Sam went home."]
ROWS = [{"prompt": p, "word": w} for p, w in zip(PROMPTS, ["dog", "cake", "park", "ball"] * 2)]
WORD = [{"type": "regex", "pattern": r"(?s)^(?!.*\bpark\b.*\bpark\b).*\bpark\b"}]  # once
SMALL = {"max_steps": 12, "epochs": 1000, "samples": 4, "prompts_per_step": 2, "max_new_tokens": 16, "max_length": 64, "lora_r": 4,
         "learning_rate": 2e-3, "seed": 7}


def body(name, rewards=None, rows=None, **hyper):
    return {"method": "grpo", "serve_as": name, "rewards": rewards or WORD, "dataset": {"rows": rows or ROWS},
            "hyperparameters": {**SMALL, **hyper}}


def submit(server, *args, **kw):
    answer = server.post("/train", body(*args, **kw))
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


def steps(server, job_id):
    return [e for e in events(server, job_id) if e["type"] == "step"]


def finish(server, job_id, last):
    """Waits as long as the job gets on, step by step."""
    for step in range(1, last, 3):
        wait_step(server, job_id, step, 300)
    return wait_over(server, job_id, 300)


def counts(server):
    return [server.metric(f"tandem_train_sampled_{what}_total") for what in ("tokens", "mismatches")]


def adapter(folder, name):
    return {p.name: p.read_bytes() for p in sorted((folder / "adapters" / name).iterdir()) if p.name != "tandem.json"}


def test_the_reward_rises(start, tmp_path):
    """From one text in ten that names a park, once, to nearly all of them; and every text is trained on as it was sampled."""
    with start("--data-dir", tmp_path) as server:
        job_id = submit(server, "park", max_steps=60, samples=8, prompts_per_step=4, max_new_tokens=24, lora_r=8)
        done = finish(server, job_id, 60)
        assert done["status"] == "succeeded", done["error"]
        assert done["method"] == "grpo" and done["rewards"] == WORD and done["step"] == 60
        seen = steps(server, job_id)
        reward = [s["reward"] for s in seen]
        assert len(reward) == 60 and sum(reward[:5]) / 5 < 0.3 and sum(reward[-5:]) / 5 > 0.8, reward
        assert all(0 <= s["frac_reward_zero_std"] <= 1 and 0 < s["completions/mean_length"] <= 24 and s["reward_std"] >= 0 for s in seen)
        assert all(s["clip_ratio"] == 0 and "kl" not in s for s in seen)  # one step with each text
        tokens, mismatches = counts(server)
        assert tokens > 1000 and mismatches == 0
        series = server.get(f"/train/{job_id}/metrics").json()["metrics"]
        assert [p["value"] for p in series["reward"]] == pytest.approx(reward)
        said = [server.generate(PROMPTS[i % 8], max_new_tokens=24, do_sample=True, seed=i, adapter_id="park")["generated_text"] for i in range(16)]
        assert sum(text.count("park") == 1 for text in said) >= 10, said
        names = [a["name"] for a in server.get("/adapters").json()["adapters"]]
        assert names == ["park"]
        assert list((tmp_path / "tensorboard" / job_id).iterdir())


@pytest.mark.parametrize("hyper", [{}, pytest.param({"kl": 0.05, "num_iterations": 3, "loss_type": "dapo"}, marks=pytest.mark.full)])
def test_a_killed_daemon(start, tmp_path, hyper):
    """The texts of a step are sampled again with the same bits: an adapter does not show that its job was killed."""
    hyper = {**hyper, "max_steps": 30, "save_steps": 4}
    broken = tmp_path / "broken"
    server = start("--data-dir", broken)
    job_id = submit(server, "mine", **hyper)
    for step, number in ((6, signal.SIGKILL), (12, signal.SIGTERM), (18, signal.SIGKILL)):
        wait_step(server, job_id, step)
        server.signal(number)
        assert server.wait() in (0, -signal.SIGKILL), server.log()[-2000:]
        server.process.returncode = 0
        with contextlib.closing(sqlite3.connect(broken / "jobs.sqlite")) as db:
            assert db.execute("SELECT status FROM jobs").fetchone()[0] == "running"
        server = start("--data-dir", broken)
    with server:
        assert finish(server, job_id, 30)["status"] == "succeeded"
        assert any("Going on from the checkpoint at step" in e["message"] for e in events(server, job_id))
    with start("--data-dir", tmp_path / "whole", "--max-seqs", "3") as server:  # other batches
        job_id = submit(server, "mine", **hyper)
        assert finish(server, job_id, 30)["status"] == "succeeded"
        assert ("kl" in steps(server, job_id)[-1]) == ("kl" in hyper)
    assert adapter(broken, "mine") == adapter(tmp_path / "whole", "mine")


@pytest.mark.full
def test_a_quantised_base_and_messages(start, tmp_path):
    """Rows may be conversations; on a base of int8 and from an adapter texts are trained on as they were sampled, too."""
    chats = [{"messages": [{"role": "user", "content": r["prompt"]}], "word": r["word"]} for r in ROWS]
    judged = [{"type": "contains", "field": "word", "ignore_case": True}, {"type": "contains", "text": " the "}]
    with start("--data-dir", tmp_path, "--quantize", "int8", "--kv-cache", "int8", "--chat-template", "plain") as server:
        answer = server.post("/train/validate", body("chat", rows=chats))
        assert answer.status_code == 200, answer.text
        (segment,) = answer.json()["rows"][0]["segments"]
        assert segment["text"] == f"user: {PROMPTS[0]}\nassistant:" and not segment["trained"]
        for name, more in (("first", {}), ("second", {"from": "first"})):
            answer = server.post("/train", {**body(name, judged, chats, max_steps=4, kl=0.02), **more})
            assert answer.status_code == 202, answer.text
            done = wait_over(server, answer.json()["id"], 300)
            assert done["status"] == "succeeded", done["error"]
            seen = steps(server, done["id"])
            assert (seen[0]["kl"] == 0) == (name == "first") and seen[-1]["kl"] > 0, [s["kl"] for s in seen]
        tokens, mismatches = counts(server)
        assert tokens > 500 and mismatches == 0


@pytest.mark.concurrent
def test_pause_and_cancel(start, tmp_path):
    with start("--data-dir", tmp_path) as server:
        job_id = submit(server, "paused", max_steps=4000, kl=0.01)
        wait_step(server, job_id, 2)
        wait_for(lambda: server.metric("tandem_train_completion_tokens") > 0, 60, "figures of a step")
        assert server.metric("tandem_train_kl") >= 0 and 0 <= server.metric("tandem_train_reward_zero_std_ratio") <= 1
        want = server.generate(max_new_tokens=30)
        assert server.generate(max_new_tokens=30) == want  # others are served meanwhile
        answer = server.post("/generate", {"inputs": "Once", "parameters": {"adapter_id": f"@grpo-{job_id}"}})
        assert 400 <= answer.status_code < 500, answer.text  # what is being trained is nobody else's
        assert server.post(f"/train/{job_id}/pause", {}).status_code < 300
        at = wait_over(server, job_id, states=("paused",))["step"]
        assert server.post(f"/train/{job_id}/resume", {}).status_code < 300
        wait_step(server, job_id, at + 2)
        assert server.post(f"/train/{job_id}/cancel", {}).status_code < 300
        assert wait_over(server, job_id)["status"] == "cancelled"
        server.wait_idle()
        assert server.get("/adapters").json()["adapters"] == []


BAD = [
    ({"rewards": None}, "rewards: the field is missing"),
    ({"rewards": []}, "rewards: the list is empty"),
    ({"rewards": [{"type": "nice"}]}, "rewards[0].type: must be one of contains, exact, regex, json, json_schema, length, url, model"),
    ({"rewards": [{"type": "regex", "pattern": "("}]}, "rewards[0].pattern: at byte 1"),
    ({"method": "lora", "hyperparameters": {}}, "rewards: only with method grpo"),
    ({"validation": {"rows": ROWS}}, "validation: not with method grpo"),
    ({"gate": True}, "gate: not with method grpo"),
] + [({"hyperparameters": {**SMALL, **hyper}}, says) for hyper, says in [
    ({"samples": 1}, "hyperparameters.samples: must be between 2 and 1024"),
    ({"samples": 1025}, "hyperparameters.samples: must be between 2 and 1024"),
    ({"samples": 1024, "prompts_per_step": 5}, "hyperparameters.samples: at most 4096 texts to a step"),
    ({"prompts_per_step": 0}, "hyperparameters.prompts_per_step: must be between 1 and 1024"),
    ({"max_new_tokens": 0}, "hyperparameters.max_new_tokens: must be between 1 and"),
    ({"max_new_tokens": 64}, "hyperparameters.max_new_tokens: must be below max_length"),
    ({"temperature": 0}, "hyperparameters.temperature: must be at least 0.01 and at most 10"),
    ({"temperature": 11}, "hyperparameters.temperature: must be at least 0.01 and at most 10"),
    ({"num_iterations": 0}, "hyperparameters.num_iterations: must be between 1 and 64"),
    ({"num_iterations": 65}, "hyperparameters.num_iterations"),
    ({"clip_low": 0}, "hyperparameters.clip_low: must be above 0 and at most 1"),
    ({"epsilon": 2}, "hyperparameters.clip_low: must be above 0 and at most 1"),
    ({"epsilon": 0.1, "clip_low": 0.1}, "hyperparameters.epsilon: is the same as `clip_low`"),
    ({"num_generations": 8}, "hyperparameters.num_generations: is the same as `samples`"),
    ({"kl": -1}, "hyperparameters.beta: must be at least 0"),
    ({"loss_type": "best"}, "hyperparameters.loss_type: must be one of grpo, dr_grpo, dapo"),
    ({"scale_rewards": "all"}, "hyperparameters.scale_rewards: must be one of auto, group, batch, none"),
    ({"exact": False}, "hyperparameters.exact: must be true"),
    ({"eval_fraction": 0.1}, "hyperparameters.eval_fraction: not with method grpo"),
    ({"lora_dropout": 0.1}, "lora_dropout must be 0"),
    ({"gamma": 1}, "hyperparameters.gamma: only with method simpo or reward"),
]]


def test_what_is_refused(start, tmp_path):
    with start("--data-dir", tmp_path) as server:
        for change, says in BAD:
            answer = server.post("/train", {**body("bad"), **change})
            said = answer.text if answer.status_code != 202 else str(wait_over(server, answer.json()["id"])["error"])
            assert says in json.loads(answer.text).get("error", "") if answer.status_code == 422 else says in said, (change, said)
        answer = server.post("/train", {"dataset": {"rows": [{"prompt": "a", "completion": "b"}]}, "hyperparameters": {"samples": 4}})
        assert answer.status_code == 422 and "hyperparameters.samples: only with method grpo" in answer.text
        for rows, says in (([{"word": "a"}], 'no "prompt" and no "messages"'), ([{"prompt": 3}], '"prompt" must be a string'),
                           ([{"prompt": "Tom saw " * 80}], "leaves none for an answer"),
                           ([{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}], "ends with what the assistant says")):
            answer = server.post("/train/validate", body("bad", rows=rows))
            assert answer.status_code == 422 and says in answer.json()["error"], answer.text
        answer = server.post("/train/validate", body("good"))
        assert answer.status_code == 200 and answer.json()["plan"]["steps"] == 12, answer.text
        failed = wait_over(server, submit(server, "bad", rewards=[{"type": "exact", "field": "answer"}]))
        assert failed["status"] == "failed" and "rewards[0].field: a row has no field `answer`" in failed["error"]["message"]


def test_one_adapter_at_a_time(start, tmp_path):
    """What is sampled with is gone before the result is served: --max-adapters need not count it."""
    with start("--data-dir", tmp_path, "--max-adapters", "1") as server:
        done = wait_over(server, submit(server, "only", max_steps=2), 300)
        assert done["status"] == "succeeded", done["error"]
        assert [a["name"] for a in server.get("/adapters").json()["adapters"]] == ["only"]


def test_what_a_request_may_have(start, tmp_path):
    """What a job could not sample in its middle is refused at its start; a default is made to fit."""
    says = "max_length: 64 is above max_total_tokens 48"
    with start("--data-dir", tmp_path, "--max-total-tokens", "48") as server:
        for path in ("/train", "/train/validate"):
            answer = server.post(path, body("long"))
            assert answer.status_code == 422 and "hyperparameters." + says in answer.json()["error"], answer.text
        fits = {**body("fits", max_steps=1), "hyperparameters": {**SMALL, "max_length": None, "max_steps": 1}}
        answer = server.post("/train/validate", fits)
        assert answer.status_code == 200 and answer.json()["hyperparameters"]["max_length"] == 48, answer.text
        assert wait_over(server, server.post("/train", fits).json()["id"], 300)["status"] == "succeeded"
    with start("--data-dir", tmp_path) as server:
        job_id = submit(server, "later", max_steps=4000)
        wait_step(server, job_id, 1)
        assert server.post(f"/train/{job_id}/pause", {}).status_code < 300
        wait_over(server, job_id, states=("paused",))
    with start("--data-dir", tmp_path, "--max-total-tokens", "48") as server:
        assert server.post(f"/train/{job_id}/resume", {}).status_code < 300
        failed = wait_over(server, job_id)
        assert failed["status"] == "failed" and says in failed["error"]["message"], failed


@pytest.mark.full
@pytest.mark.parametrize("hyper", [
    {"samples": 2, "prompts_per_step": 1, "max_new_tokens": 1, "temperature": 0.01, "clip_low": 1e-30, "clip_high": 1e-30},
    {"samples": 1024, "prompts_per_step": 4, "max_new_tokens": 1, "max_steps": 1},
    {"prompts_per_step": 1024, "temperature": 10, "num_iterations": 64, "clip_low": 1, "clip_high": 100, "kl": 1000, "max_steps": 2}])
def test_the_limits_themselves(start, tmp_path, hyper):
    with start("--data-dir", tmp_path) as server:
        done = wait_over(server, submit(server, "limit", rewards=[{"type": "length", "min": 1, "max": 3}, {"type": "regex", "pattern": "e"}],
                                        **{"max_steps": 3, **hyper}), 300)
        assert done["status"] == "succeeded" and done["skipped_steps"] == 0, done


class Judge(ThreadingHTTPServer):
    """Answers with 1 for a text with the letter e, after `fails` answers of 503."""

    def __init__(self, fails):
        self.fails, self.asked, self.keys = fails, [], set()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/judge"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(asked)
        self.server.keys.add(self.headers.get("authorization"))
        answer = json.dumps([float("e" in t) for t in asked["texts"]]).encode()
        status = 503 if len(self.server.asked) <= self.server.fails else 200
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args):
        pass


@pytest.mark.smoke
def test_another_server_judges(start, tmp_path):
    judge, broken = Judge(2), Judge(10 ** 9)
    ask = {"type": "url", "url": judge.url, "key_env": "TANDEM_REWARD_KEY", "weight": 2}
    rows = [{**r, "id": 9007199254740993 + 2 * i, "share": 1.0} for i, r in enumerate(ROWS)]  # ids that no double is
    with start("--data-dir", tmp_path, env={"TANDEM_REWARD_KEY": "secret"}) as server:
        job_id = submit(server, "judged", rewards=[ask], rows=rows, max_steps=3)
        done = wait_over(server, job_id, 300)
        assert done["status"] == "succeeded", done["error"]
        assert len(judge.asked) == 5 and judge.asked[0] == judge.asked[2] and judge.keys == {"Bearer secret"}
        for asked, step in zip(judge.asked[2:], steps(server, job_id)):
            assert len(asked["texts"]) == len(asked["rows"]) == 8 and all(r in rows for r in asked["rows"])
            assert step["reward"] == pytest.approx(sum(2 * ("e" in t) for t in asked["texts"]) / 8)
        for change, says in ({"url": broken.url, "retries": 1}, "after 2 attempts: rewards[0].url: it answers with status 503"), \
                            ({"key_env": "TANDEM_REWARD_NO"}, "the environment variable TANDEM_REWARD_NO is not set"):
            failed = wait_over(server, submit(server, "bad", rewards=[{**ask, **change}], max_steps=3), 300)
            assert failed["status"] == "failed" and says in failed["error"]["message"], failed["error"]
        assert server.generate("Once", max_new_tokens=4)


# ---- without a daemon ---------------------------------------------------------------------------------------------


def command(folder, out, *more):
    flags = [x for k, v in SMALL.items() for x in (f"--{k.replace('_', '-')}", str(v))]
    return [BINARY, "train", "--model", MODEL, "--method", "grpo", "--data", folder / "rows.jsonl", "--rewards", folder / "rewards.json",
            "--out", out, *flags, *map(str, more)]


def train(folder, out, *more):
    return subprocess.run(command(folder, out, *more), capture_output=True, text=True, cwd=ROOT, env=ENV, timeout=300)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    (tmp_path / "rewards.json").write_text(json.dumps([{"type": "contains", "field": "word"}, {"type": "length", "min": 8, "weight": 0.1}]))
    return tmp_path


def test_the_command(start, folder):
    """It writes the bytes that a daemon writes, and those of a run that was killed."""
    got = train(folder, folder / "out")
    assert got.returncode == 0, got.stderr
    assert re.search(r"^step 12 of 12.* reward [0-9.]+", got.stderr, re.M), got.stderr
    process = subprocess.Popen(command(folder, folder / "broken", "--save-steps", 1), stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENV)
    for line in process.stderr:
        if line.startswith("step 5 of"):
            process.kill()
            break
    process.wait()
    process.stderr.close()
    rest = train(folder, folder / "broken", "--save-steps", 1)
    assert rest.returncode == 0 and "going on after step" in rest.stderr, rest.stderr
    weights = [(folder / name / "adapter_model.safetensors").read_bytes() for name in ("out", "broken")]
    assert weights[0] == weights[1]
    with start("--data-dir", folder / "data") as server:
        job_id = submit(server, "same", rewards=json.loads((folder / "rewards.json").read_text()))
        assert wait_over(server, job_id, 300)["status"] == "succeeded", job(server, job_id)
    assert (folder / "data/adapters/same/adapter_model.safetensors").read_bytes() == weights[0]


def test_what_the_command_refuses(folder):
    for flags, says in ((["--eval-data", folder / "rows.jsonl"], "--eval-data: method grpo has no use for it"),
                        (["--rewards", folder / "rows.jsonl"], "--rewards"), (["--samples", 1], "samples: must be between 2 and 1024"),
                        (["--max-length", 1000000], "max_length: 1000000 is above max_total_tokens")):
        got = train(folder, folder / "out", *flags)
        assert got.returncode in (1, 2) and says in got.stderr, got.stderr
