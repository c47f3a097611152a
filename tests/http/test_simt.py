"""The daemon on a device whose memory is its own: simt, the CUDA kernels on the CPU."""
import subprocess

import pytest
import requests
from conftest import BINARY, ROOT, wait_for
from sse import stream
from test_batches import attempts, completion, create, kill, talk, wait
from training import events, request, submit, wait_over

TINY = ROOT / "tests/fixtures/models/qwen2"
FLAGS = ("--device", "simt", "--max-seqs", "4", "--max-batch-tokens", "32", "--max-lora-rank", "8", "--kv-cache", "f32", "--activations", "f32",
         "--chat-template", "plain")


@pytest.fixture(scope="module", autouse=True)
def built():
    """simt is there in builds with the tests, on x86-64."""
    out = subprocess.run([BINARY, "generate", "--model", TINY, "--device", "simt", "--max-new-tokens", "1", "--prompt", "a"], capture_output=True, text=True)
    if "no device is called" in out.stderr:
        pytest.skip("this build has no simt")


def test_serves(start):
    with start("--device", "cpu", *FLAGS[2:], model=TINY) as cpu:
        want = cpu.generate("Once upon a time", max_new_tokens=10)["generated_text"]
    with start(*FLAGS, model=TINY) as s:
        assert s.generate("Once upon a time", max_new_tokens=10)["generated_text"] == want
        tokens = [e["token"]["text"] for e in stream(s, "Once upon a time", max_new_tokens=10)]
        assert "".join(tokens) == want
        chat = s.post("/v1/chat/completions", {"model": s.get("/info").json()["model_id"], "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]})
        assert chat.status_code == 200 and chat.json()["usage"]["completion_tokens"] >= 1
        assert s.post("/v1/embeddings", {"model": chat.json()["model"], "input": "one two"}).status_code == 200
        assert s.get("/info").json()["device"] == "simt sm_90"
        budget, taken = s.metric("tandem_memory_budget_bytes"), s.metric("tandem_memory_taken_bytes")
        parts = {p: s.metric("tandem_memory_bytes", part=p) for p in ("weights", "kv_cache", "workspace", "training")}
        assert budget > taken == sum(parts.values()) and parts["training"] == 0
        memory = s.get("/debug/state").json()["engine"]["memory"]
        assert (memory["budget"], memory["used"]) == (budget, taken)
        assert "may be taken: weights" in s.log() and "; training and adapters " in s.log()


def test_a_lost_device_ends_the_process(start):
    """The n-th launch of the process fails for good: somewhere in a request, not while the model is loaded."""
    s = start(*FLAGS, model=TINY, env={"SIMT_FAIL_LAUNCH": "200"})
    failed, texts = [], set()

    def ended():
        try:
            answer = s.post("/generate", {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 10}})
            if answer.status_code == 200:
                texts.add(answer.json()["generated_text"])
            else:
                failed.append((answer.status_code, answer.json()["error"]))
        except requests.ConnectionError:
            pass
        return s.process.poll() is not None
    wait_for(ended, 60, "its end")
    assert s.process.returncode == 75, s.log()
    assert failed and failed[0][0] == 424 and "an illegal memory access was encountered" in failed[0][1]  # 424: as TGI has it
    assert len(texts) <= 1 and "the device is lost" in s.log()


@pytest.mark.full
def test_a_job_goes_on_after_a_lost_device(start, tmp_path):
    """Lost in a job's steps: the process ends with 75, and the next one ends the job with the bytes of an unbroken one."""
    how = {"max_steps": 6, "save_steps": 1, "n": 8, "max_length": 32}
    with start(*FLAGS, "--data-dir", tmp_path / "whole", model=TINY) as s:
        assert wait_over(s, submit(s, "job", **how), 120)["status"] == "succeeded"
    lost = start(*FLAGS, "--data-dir", tmp_path / "d", model=TINY, env={"SIMT_FAIL_LAUNCH": "600"})
    job_id = submit(lost, "job", **how)
    wait_for(lambda: lost.process.poll() is not None, 120, "its end")
    assert lost.process.returncode == 75, lost.log()
    with start(*FLAGS, "--data-dir", tmp_path / "d", model=TINY) as s:
        assert wait_over(s, job_id, 120)["status"] == "succeeded"
        said = [e["message"] for e in events(s, job_id)]
        assert any("The device was lost" in m for m in said) and any("Going on from the checkpoint" in m for m in said), said
    bytes_of = [(tmp_path / d / "adapters/job/adapter_model.safetensors").read_bytes() for d in ("whole", "d")]
    assert bytes_of[0] == bytes_of[1]


def test_a_draft_goes_on_after_a_lost_device(start, tmp_path):
    """Lost while the served model writes its texts: the job stays `running`, and the next process makes the rest."""
    body = {**request("small", n=24, max_steps=1, lora_r=None, lora_alpha=None), "method": "draft", "draft": {"layers": 1, "max_new_tokens": 12}}
    lost = start(*FLAGS, "--data-dir", tmp_path, model=TINY, env={"SIMT_FAIL_LAUNCH": "400"})
    answer = lost.post("/train", body)
    assert answer.status_code == 202, answer.text
    job_id = answer.json()["id"]
    wait_for(lambda: lost.process.poll() is not None, 120, "its end")
    assert lost.process.returncode == 75, lost.log()
    path = tmp_path / "checkpoints" / job_id / "texts.jsonl"
    made = path.read_text()
    with start(*FLAGS, "--data-dir", tmp_path, model=TINY) as s:
        done = wait_over(s, job_id, 120)
        assert done["status"] == "succeeded", done["error"]
        assert any("The device was lost" in e["message"] for e in events(s, job_id))
    assert 1 < made.count("\n") < 25 and path.read_text().startswith(made)


def test_a_batch_that_loses_the_device_is_given_up(start, tmp_path):
    """What loses the device may be one of its lines: it counts as a crash does."""
    lines, batch = [completion(i, most=100, ignore_eos=True) for i in range(20)], None
    for n in range(5):
        lost = start(*FLAGS, "--data-dir", tmp_path, model=TINY, env={"SIMT_FAIL_LAUNCH": "300"})
        try:
            batch = batch or create(talk(lost), lines)
            wait_for(lambda s=lost: s.process.poll() is not None, 120, "its end")
        finally:
            kill(lost)
        assert lost.process.returncode == 75, lost.log()
        assert attempts(tmp_path) == n + 1
    with start(*FLAGS, "--data-dir", tmp_path, model=TINY) as s:
        done = wait(talk(s), batch)
        assert done.status == "failed" and done.errors.data[0].code == "crashed" and done.request_counts.failed == 0
