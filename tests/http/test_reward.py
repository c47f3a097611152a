"""Reward models: adapters with a head of scores, trained, served at /classify, and asked by method grpo."""
import json
import math
import shutil
import subprocess

import pytest
import requests
from conftest import BINARY, ENV, ROOT
from safetensors.numpy import load_file
from test_preferences import PAIRS, SMALL, command, data  # noqa: F401  (data: a fixture)
from training import events, wait_over, wait_step

LLAMA = ROOT / "tests/fixtures/models/llama-gqa"
FIXTURES = ROOT / "tests/fixtures/train"
ADAPTERS = ROOT / "tests/fixtures/adapters"


def classify(server, texts, model="judge", **fields):
    answer = server.post("/classify", {"model": model, "input": texts, "raw_scores": True, **fields})
    assert answer.status_code == 200, answer.text
    return [d["probs"][0] for d in answer.json()["data"]]


@pytest.fixture(scope="module")
def judged(start):
    with start("--adapters", f"judge={FIXTURES / 'reward-adapter'},plain={ADAPTERS / 'llama-gqa--qv'}", "--kv-cache", "f32", model=LLAMA) as server:
        yield server


def texts_of(file):
    ids, start = file["ids"].tolist(), file["start"].tolist()
    return [ids[a:b] for a, b in zip(start, start[1:])]


def test_scores_are_transformers(judged):
    """make_reward_fixtures.py: PEFT and AutoModelForSequenceClassification with the same adapter."""
    file = load_file(FIXTURES / "reward.safetensors")
    texts, want = texts_of(file), file["scores"].tolist()
    assert classify(judged, texts) == pytest.approx(want, abs=1e-5)
    assert [classify(judged, t)[0] for t in texts] == classify(judged, texts)  # alone and in a batch: the same bits
    answer = judged.post("/classify", {"model": "judge", "input": texts[0]}).json()
    (first,) = answer["data"]
    assert first["label"] == "LABEL_0" and first["num_classes"] == 1 and answer["usage"]["prompt_tokens"] == len(texts[0])
    assert first["probs"] == pytest.approx([1 / (1 + math.exp(-want[0]))], abs=1e-6)
    assert classify(judged, "a text of words") == pytest.approx(classify(judged, ["a text of words"]))


def test_it_gives_scores_only(judged):
    listed = {a["name"]: a["scores"] for a in judged.get("/adapters").json()["adapters"]}
    assert listed == {"judge": True, "plain": False}
    for route, body in (("/v1/completions", {"model": "judge", "prompt": "a", "max_tokens": 2}),
                        ("/v1/embeddings", {"model": "judge", "input": "a"})):
        answer = judged.post(route, body)
        assert answer.status_code == 400 and answer.json()["error"]["message"] == 'adapter "judge" gives scores of texts: use /classify', answer.text
    for model in ("plain", None):  # the base
        answer = judged.post("/classify", {"model": model, "input": "a"})
        assert answer.status_code == 400 and "or at /classify an adapter of method reward, gives scores" in answer.text, answer.text
    assert judged.post("/classify", {"model": "judge", "input": [[0, 999999]]}).status_code == 400


@pytest.mark.parametrize("change, says", [
    (lambda c: c.update(task_type="CAUSAL_LM"), "modules_to_save: whole trained modules are not supported, but `score` of task_type SEQ_CLS"),
    (lambda c: c.update(modules_to_save=["score", "lm_head"]), "modules_to_save: whole trained modules"),
    (lambda c: c.update(modules_to_save=None), "score.weight belongs to no module"),
])
def test_other_saved_modules(judged, tmp_path, change, says):
    folder = tmp_path / "other"
    shutil.copytree(FIXTURES / "reward-adapter", folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    change(config)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    got = subprocess.run([BINARY, "generate", "--model", LLAMA, "--adapter", folder, "--prompt", "a"], capture_output=True, text=True, env=ENV)
    assert got.returncode == 1 and says in got.stderr, got.stderr


def test_it_is_no_text_model(tmp_path, data):
    got = subprocess.run([BINARY, "merge", "--model", LLAMA, "--adapter", FIXTURES / "reward-adapter", "--out", tmp_path / "merged"],
                         capture_output=True, text=True, env=ENV)
    assert got.returncode == 1 and "its head of scores has no place in a model that gives text" in got.stderr, got.stderr
    got = subprocess.run(command(data("dpo"), tmp_path / "out", "dpo", "--from", FIXTURES / "reward-adapter", model=LLAMA),
                         capture_output=True, text=True, env=ENV)
    assert got.returncode == 1 and "the adapter gives scores, which only method reward trains" in got.stderr, got.stderr


def test_not_from_an_adapter_of_the_output_head(tmp_path, data):
    """The head of scores is in the place of the one that it adapts."""
    made = subprocess.run(command(data("lora", [{"prompt": "a", "completion": "b"}] * 4), tmp_path / "head", "lora", "--target-modules", "q_proj,lm_head", "--max-steps", 1),
                          capture_output=True, text=True, env=ENV)
    assert made.returncode == 0, made.stderr
    got = subprocess.run(command(data("reward"), tmp_path / "out", "reward", "--from", tmp_path / "head"), capture_output=True, text=True, env=ENV)
    assert got.returncode == 1 and "from: the adapter adapts the output head" in got.stderr, got.stderr


def job(server, **body):
    answer = server.post("/train", body)
    assert answer.status_code == 202, answer.text
    return wait_over(server, answer.json()["id"], 300)


def test_trained_served_and_asked(start, tmp_path):
    """One adapter is trained to judge texts, and another by its scores; both by the daemon that serves them."""
    small = {"batch_tokens": 128, "max_length": 96, "lora_r": 4, "seed": 7}
    prompts = [{"prompt": p["prompt"]} for p in PAIRS]
    with start("--data-dir", tmp_path, model=SMALL) as server:
        done = job(server, method="reward", serve_as="judge", dataset={"rows": PAIRS},
                   hyperparameters={**small, "epochs": 12, "learning_rate": 3e-3, "center_rewards_coefficient": 0.01})
        assert done["status"] == "succeeded" and done["method"] == "reward", done["error"]
        last = [e for e in events(server, done["id"]) if e["type"] == "step"][-1]
        assert last["accuracy"] == last["rewards/accuracies"] and last["rewards/margins"] > 0.5, last
        chosen, rejected = (classify(server, [p["prompt"] + p[side] for p in PAIRS]) for side in ("chosen", "rejected"))
        assert sum(c > r for c, r in zip(chosen, rejected)) >= 9, (chosen, rejected)
        config = json.loads((tmp_path / "adapters/judge/adapter_config.json").read_text())
        assert config["task_type"] == "SEQ_CLS" and config["modules_to_save"] == ["classifier", "score"]
        hyper = {**small, "max_length": 64, "samples": 4, "prompts_per_step": 2, "max_new_tokens": 12, "epochs": 1000, "max_steps": 4, "learning_rate": 1e-3}
        rewards = [{"type": "model", "model": "judge", "weight": 2}]
        done = job(server, method="grpo", serve_as="pupil", dataset={"rows": prompts}, rewards=rewards, hyperparameters=hyper)
        assert done["status"] == "succeeded", done["error"]
        seen = [e["reward"] for e in events(server, done["id"]) if e["type"] == "step"]
        assert len(seen) == 4 and len(set(seen)) == 4, seen
        for judge, says in (("pupil", "only an adapter of method reward gives scores"), ("nobody", 'no adapter is called "nobody"')):
            body = {"method": "grpo", "dataset": {"rows": prompts}, "rewards": [{"type": "contains", "text": "a"}, {"type": "model", "model": judge}], "hyperparameters": hyper}
            answer = server.post("/train", body)
            assert answer.status_code == 422 and answer.json()["error"].startswith("rewards: ") and says in answer.json()["error"], answer.text
    with start("--data-dir", tmp_path, model=SMALL) as server:  # the adapter is there again
        assert classify(server, [p["prompt"] + p["chosen"] for p in PAIRS]) == chosen
        waits = server.post("/train", {"method": "grpo", "dataset": {"rows": prompts}, "rewards": rewards, "hyperparameters": {**hyper, "max_steps": 1000}}).json()["id"]
        wait_step(server, waits)
        assert requests.delete(server.url + "/adapters/judge").status_code == 200
        done = wait_over(server, waits, 300)
        assert done["status"] == "failed" and 'rewards[0]: a text cannot be judged: no adapter is called "judge"' in done["error"]["message"], done
