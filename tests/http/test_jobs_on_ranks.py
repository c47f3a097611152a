"""Jobs of a daemon that mpirun started several times with --ranks train: all ranks train them, to the bytes of one, while the
first one serves; a rank that is killed ends all, and the next start goes on."""
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import BINARY, ENV, PATIENCE, ROOT, wait_for
from test_preferences import PAIRS
from test_tensor_parallel import LAUNCH, SMALL, needs_mpi, ranks_of
from test_train_grpo import ROWS as PROMPTS, WORD
from training import events, job, request, submit, wait_over, wait_step

pytestmark = needs_mpi

DAEMON = ("--device", "cpu", "--threads", "1", "--chat-template", "plain")
SLOTS = {"grad_slots": 4, "f32": True, "learning_rate": 1e-2}


@pytest.fixture
def begin(start, tmp_path):
    """A daemon of so many ranks with a data directory of its own; the directory can be given again."""
    def run(ranks, name, *more):
        wrap = (*LAUNCH, "-n", str(ranks)) if ranks > 1 else ()
        args = ("--ranks", "train") if ranks > 1 else ()
        return start(*DAEMON, *args, *more, "--data-dir", tmp_path / name, model=SMALL, wrap=wrap)
    return run


def adapter(folder, name):
    return {p.name: p.read_bytes() for p in (folder / "adapters" / name).iterdir() if p.name != "tandem.json"}


def preference(serve_as, method, **hyper):
    return {**request(serve_as, dataset={"rows": PAIRS}, **SLOTS, **hyper), "method": method}


def send(server, body):
    answer = server.post("/train", body)
    assert answer.status_code == 202, answer.text
    done = wait_over(server, answer.json()["id"])
    assert done["status"] == "succeeded", done
    return done


def stop(server):
    """As a supervisor would: rank 0 drains, and ends the others."""
    pids = ranks_of(server) or {0: server.process.pid}
    os.kill(pids[0], signal.SIGTERM)
    assert server.process.wait(PATIENCE) == 0, server.log()


def test_the_bytes_of_one_rank(begin, tmp_path):
    """One job after the other, of several methods, mixed data and held-out rows, while texts are generated."""
    for ranks in (1, 2):
        server = begin(ranks, str(ranks))
        with ThreadPoolExecutor(2) as pool:
            stories = [pool.submit(server.generate, "Once", max_new_tokens=200, ignore_eos=True) for _ in range(4)]
            send(server, request("lora", eval_fraction=0.2, eval_steps=2, **SLOTS))
            send(server, preference("dpo", "dpo"))
            send(server, {**request("distilled", **SLOTS), "method": "distill", "teacher": "lora"})
            send(server, {**request("more", zero=2, **SLOTS), "from": "lora"})
            assert all(s.result()["generated_text"] for s in stories)
        answers = [server.generate("Tom saw", adapter_id=name, max_new_tokens=12)["generated_text"] for name in ("lora", "dpo", "distilled", "more")]
        assert len({*answers}) > 1
        stop(server)
    for name in ("lora", "dpo", "distilled", "more"):
        assert adapter(tmp_path / "1", name) == adapter(tmp_path / "2", name), name


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("method", ["lora", "full"])
def test_divided_state(begin, tmp_path, method, zero):
    """As much of it as the daemon's own weights leave to divide."""
    folder = "models" if method == "full" else "adapters"
    got = []
    for ranks in (1, 2):
        server = begin(ranks, str(ranks))
        hyper = request("z", zero=zero if ranks > 1 else 0, **{**SLOTS, "f32": False})
        if method == "full":
            hyper["hyperparameters"] = {k: v for k, v in hyper["hyperparameters"].items() if not k.startswith("lora")}
        with ThreadPoolExecutor(1) as pool:
            story = pool.submit(server.generate, "Once", max_new_tokens=300, ignore_eos=True)
            send(server, {**hyper, "method": method})
            got.append((story.result()["generated_text"], {p.name: p.read_bytes() for p in (tmp_path / str(ranks) / folder / "z").iterdir() if p.name != "tandem.json"}))
        stop(server)
    assert got[0] == got[1]


def test_texts_that_a_job_samples(begin):
    """grpo, whose texts rank 0 alone samples, is trained by it alone; the others wait for the next job."""
    server = begin(2, "grpo")
    send(server, {"method": "grpo", "serve_as": "g", "rewards": WORD, "dataset": {"rows": PROMPTS},
                  "hyperparameters": {"max_steps": 2, "samples": 2, "prompts_per_step": 2, "max_new_tokens": 8, "max_length": 64}})
    send(server, request("after", **SLOTS))
    stop(server)


def test_pause_cancel_and_errors(begin, tmp_path):
    server = begin(2, "d")
    first = submit(server, "a", max_steps=100000, **SLOTS)
    wait_step(server, first, 2)
    assert server.post(f"/train/{first}/pause", {}).status_code == 200
    assert wait_over(server, first, states=("paused",))["step"] >= 2
    second = submit(server, "b", max_steps=100000, **SLOTS)
    wait_step(server, second, 1)
    assert server.post(f"/train/{second}/cancel", {}).status_code == 200
    assert wait_over(server, second)["status"] == "cancelled"
    third = submit(server, "c", **{**SLOTS, "grad_slots": 1})  # which two ranks cannot divide: the first one trains it
    assert wait_over(server, third)["status"] == "succeeded"
    assert server.post(f"/train/{first}/resume", {}).status_code == 200
    wait_step(server, first, job(server, first)["step"] + 2)
    stop(server)  # which pauses the job
    server = begin(2, "d")
    at = job(server, first)["step"]
    wait_step(server, first, at + 2)
    assert server.post(f"/train/{first}/cancel", {}).status_code == 200
    wait_over(server, first)
    stop(server)


def hyperparameters(server, name):
    return job(server, name)["hyperparameters"]


def test_slots_are_kept(begin, tmp_path):
    """A job that says nothing of them has as many on ranks as it began with, also without ranks, and the other way round."""
    free = {"f32": True, "learning_rate": 1e-2, "max_steps": 1000000}
    server = begin(2, "d")
    on_ranks = submit(server, "a", **free)
    wait_step(server, on_ranks, 3)
    stop(server)
    server = begin(1, "d")
    wait_step(server, on_ranks, job(server, on_ranks)["step"] + 2)
    assert hyperparameters(server, on_ranks)["grad_slots"] == 8
    assert server.post(f"/train/{on_ranks}/cancel", {}).status_code == 200
    alone = submit(server, "b", **free)
    wait_step(server, alone, 3)
    stop(server)
    server = begin(2, "d")
    wait_step(server, alone, job(server, alone)["step"] + 2)
    assert hyperparameters(server, alone)["grad_slots"] == 1
    assert server.post(f"/train/{alone}/cancel", {}).status_code == 200
    assert wait_over(server, alone)["status"] == "cancelled" and job(server, on_ranks)["status"] == "cancelled"
    stop(server)


def test_a_quantised_base(begin, tmp_path):
    for ranks in (1, 2):
        server = begin(ranks, str(ranks), "--quantize", "int8")
        send(server, {**request("q", **SLOTS), "method": "qlora"})
        stop(server)
    assert adapter(tmp_path / "1", "q") == adapter(tmp_path / "2", "q")


@pytest.mark.parametrize("method, hyper", [("lora", {"eval_fraction": 0.5, "eval_on_start": True}), ("dpo", {"epochs": 100})])
def test_a_command_in_an_evaluation(begin, method, hyper):
    """Also before the first step of a job, in passes that take long: commands arrive, and so does SIGTERM."""
    data = PAIRS if method == "dpo" else [{"prompt": f"The {i}", "completion": f" is {i * 7}."} for i in range(4000)]
    rows = [{**r, "prompt": f"{i}: {r['prompt']}"} for i, r in enumerate(data * (400 if method == "dpo" else 1))]
    server = begin(2, "d")
    body = {**request("e", dataset={"rows": rows}, batch_tokens=64, **SLOTS, **hyper), "method": method}
    body["hyperparameters"].pop("max_steps")
    first = server.post("/train", body).json()["id"]
    wait_for(lambda: any(e["type"] == "plan" for e in events(server, first)) or job(server, first)["status"] != "queued", what="the job")
    assert server.post(f"/train/{first}/cancel", {}).status_code == 200
    assert wait_over(server, first)["status"] == "cancelled"
    second = server.post("/train", body).json()["id"]
    wait_for(lambda: job(server, second)["status"] == "running", what="the job")
    stop(server)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_killed_rank(begin, tmp_path, rank):
    """The daemon ends; started again, on another number of ranks, it trains the job to the same bytes."""
    whole = begin(1, "whole")
    send(whole, request("k", max_steps=40, save_steps=5, **SLOTS))
    stop(whole)
    server = begin(2, "d")
    name = submit(server, "k", max_steps=40, save_steps=5, **SLOTS)
    wait_step(server, name, 7)
    os.kill(ranks_of(server)[rank], signal.SIGKILL)
    assert server.process.wait(PATIENCE) != 0
    server = begin(4, "d")
    assert wait_over(server, name)["status"] == "succeeded"
    assert any("restarted" in json.dumps(e) for e in events(server, name))
    stop(server)
    assert adapter(tmp_path / "whole", "k") == adapter(tmp_path / "d", "k")


@pytest.mark.parametrize("zero", [0, pytest.param(1, marks=pytest.mark.full), 2])
def test_serving_does_not_wait_for_other_ranks(begin, zero):
    """A rank is stopped in the middle of a job: texts are generated all the same, and it goes on when the rank does."""
    server = begin(2, "d")
    name = submit(server, "w", max_steps=1000000, zero=zero, **SLOTS)
    wait_step(server, name, 3)
    other = ranks_of(server)[1]
    os.kill(other, signal.SIGSTOP)
    try:
        for _ in range(3):
            assert server.generate("Once", max_new_tokens=100, ignore_eos=True)["generated_text"]
        at = job(server, name)["step"]
        assert server.generate("Once", max_new_tokens=100, ignore_eos=True)["generated_text"]
        assert job(server, name)["step"] == at
    finally:
        os.kill(other, signal.SIGCONT)
    wait_step(server, name, at + 2)
    assert server.post(f"/train/{name}/cancel", {}).status_code == 200
    assert wait_over(server, name)["status"] == "cancelled"
    stop(server)


@pytest.mark.full
def test_a_stuck_rank_is_named(begin, tmp_path):
    """The job is not failed by it: it goes on at the next start."""
    server = begin(2, "d", "--comm-timeout", 5)
    name = submit(server, "s", max_steps=400, save_steps=5, **SLOTS)
    wait_step(server, name, 3)
    os.kill(ranks_of(server)[1], signal.SIGSTOP)
    assert server.process.wait(PATIENCE) != 0
    assert "rank 1 for 5 s" in server.log()
    server = begin(2, "d")
    wait_step(server, name, 8)
    assert server.post(f"/train/{name}/cancel", {}).status_code == 200
    assert wait_over(server, name)["status"] == "cancelled"
    stop(server)


@pytest.mark.parametrize("wrap, args, says", [
    ((), ("--ranks", "train"), "no mpirun started this process"),
    ((*LAUNCH, "-n", "2"), ("--ranks", "train", "--pipeline-parallel", "2"), "leave --tensor-parallel and --pipeline-parallel out"),
    ((*LAUNCH, "-n", "3"), ("--ranks", "train"), "3 ranks cannot share the slots of a step"),
    ((*LAUNCH, "-n", "2"), ("--ranks", "train", "--models", f"a={SMALL}"), "not with --ranks train"),
])
def test_refused(tmp_path, wrap, args, says):
    done = subprocess.run([*wrap, BINARY, "serve", "--model", SMALL, "--port", "0", "--data-dir", tmp_path, *DAEMON, *args], capture_output=True,
                          cwd=ROOT, env=ENV, timeout=PATIENCE)
    assert done.returncode != 0 and says in done.stderr.decode(), done.stderr.decode()
