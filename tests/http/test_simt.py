"""The daemon on a device whose memory is its own: simt, the CUDA kernels on the CPU."""
import subprocess

import pytest
import requests
from conftest import BINARY, ROOT, wait_for
from sse import stream

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


def test_a_lost_device_comes_back_once(start):
    """The n-th launch of the process fails for good: somewhere in a request, not while the model is loaded."""
    with start(*FLAGS, model=TINY, env={"SIMT_FAIL_LAUNCH": "200"}) as s:
        answers = [s.post("/generate", {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 10}}) for _ in range(6)]
        failed = [a for a in answers if a.status_code != 200]
        assert len(failed) == 1 and failed[0].status_code == 424  # as TGI has it
        assert "an illegal memory access was encountered" in failed[0].json()["error"]
        assert len({a.json()["generated_text"] for a in answers if a.status_code == 200}) == 1
        assert s.metric("tandem_gpu_restarts_total") == s.metric("tandem_failed_steps_total") == 1


def test_a_device_lost_twice_ends_the_process(start):
    s = start(*FLAGS, model=TINY, env={"SIMT_FAIL_LAUNCH": "200", "SIMT_FAIL_AGAIN": "200"})
    failed = []

    def ended():
        try:
            answer = s.post("/v1/completions", {"model": "qwen2", "prompt": "Once upon a time", "max_tokens": 10})
            failed.append(answer.status_code) if answer.status_code != 200 else None
        except requests.ConnectionError:
            pass
        return s.process.poll() is not None
    wait_for(ended, 60, "its end")
    assert s.process.returncode == 75, s.log()
    assert failed.count(500) >= 2 and "for good" in s.log()
