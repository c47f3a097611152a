"""A model that is divided over ranks, by outputs or by layers, threads of the daemon or processes of mpirun: it answers byte
for byte what the whole one answers, whatever is asked, and ends when a rank does."""
import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import pytest
import requests
from conftest import BINARY, ENV, PATIENCE, ROOT, Server, wait_for

sys.path.insert(0, str(ROOT / "tests" / "model"))
import gguf_models  # noqa: E402

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
ADAPTERS = ROOT / "tests/fixtures/adapters"
MPIRUN = shutil.which("mpirun")
MODULE = BINARY.parent / "libtandem_mpi.so"
LAUNCH = (MPIRUN, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none")
needs_mpi = pytest.mark.skipif(not MPIRUN or not MODULE.exists(), reason="no mpirun here, or tandem was built without MPI")

CPU = ("--device", "cpu", "--chat-template", "plain")
GQA = ROOT / "tests/fixtures/models/llama-gqa"
DEMO = ROOT / "models/demo"


def ask(server):
    """Texts of every kind, some of them at once."""
    def story(i):
        return server.generate(f"Once upon a time {i}", max_new_tokens=40, do_sample=True, seed=i, details=True, ignore_eos=True,
                               decoder_input_details=i % 2 == 0)

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(story, i) for i in range(8)]
        texts = [a.result() for a in answers]
    chosen = server.post("/v1/completions", {"prompt": "Lily saw a", "max_tokens": 12, "logprobs": 5, "temperature": 0}).json()["choices"]
    formed = server.generate("The answer", max_new_tokens=40, grammar={"type": "regex", "value": "(yes|no), [a-z ]{5,20}"})
    vectors = server.post("/v1/embeddings", {"input": ["a cat", "Once upon a time there was a dog"]}).json()["data"]
    repeated = server.generate("a b c d a b c d a b c d a b", max_new_tokens=40)
    return json.dumps([texts, chosen, formed, vectors, repeated], sort_keys=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What one rank answers, by the options."""
    found = {}

    def answers(*args, model=SMALL):
        if (args, model) not in found:
            with Server(tmp_path_factory.mktemp("one") / "log", *CPU, *args, model=model) as server:
                found[args, model] = ask(server)
        return found[args, model]
    return answers


@pytest.mark.parametrize("args", [(), ("--quantize", "int8", "--kv-cache", "int8"), ("--quantize", "int4", "--speculate", "on"),
                                  pytest.param(("--quantize", "nf4", "--activations", "bf16"), marks=pytest.mark.full)])
def test_threads(start, whole, args):
    with start(*CPU, *args, "--tensor-parallel", 4, "--threads", 4, model=SMALL) as server:
        assert ask(server) == whole(*args)
        assert server.metric("tandem_ranks") == 4
        assert server.metric("tandem_comm_operations_total", op="all-gather") > 100
        assert server.metric("tandem_comm_sent_bytes_total", op="all-gather") > 0


@pytest.mark.parametrize("args", [(), pytest.param(("--quantize", "int8", "--kv-cache", "int8", "--speculate", "on"), marks=pytest.mark.full)])
def test_layers_in_threads(start, whole, args):
    """The demo model has five layers: a rank with two, and some with one."""
    with start(*CPU, *args, "--pipeline-parallel", 4, "--threads", 4, model=DEMO) as server:
        assert ask(server) == whole(*args, model=DEMO)
        assert server.metric("tandem_ranks") == 4
        assert server.metric("tandem_comm_operations_total", op="send") > 100
        assert server.metric("tandem_comm_operations_total", op="all-gather") < 20  # of the start


@pytest.mark.parametrize("args", [(), ("--quantize", "int4")])
def test_groups_of_ranks(start, whole, args):
    """Two stages of two ranks each."""
    with start(*CPU, *args, "--pipeline-parallel", 2, "--tensor-parallel", 2, "--threads", 4, model=SMALL) as server:
        assert ask(server) == whole(*args)
        assert server.metric("tandem_ranks") == 4


def test_layers_in_the_layout_of_a_processor(start, tmp_path):
    """A stage has whole matrices, so what tandem quantize wrote will do."""
    subprocess.run([BINARY, "quantize", "--model", SMALL, "--out", tmp_path / "q", "--type", "int8"], check=True, capture_output=True, cwd=ROOT, env=ENV)
    answers = []
    for ranks in (1, 2):
        with start(*CPU, "--pipeline-parallel", ranks, model=tmp_path / "q") as server:
            answers.append(server.generate("Once upon a time", max_new_tokens=30, ignore_eos=True, details=True))
    assert answers[0] == answers[1]


@needs_mpi
@pytest.mark.parametrize("ranks, args, says", [(3, ("--pipeline-parallel", 2), "does not divide the 3 processes"),
                                               (2, ("--pipeline-parallel", 2, "--tensor-parallel", 2), "are 4 ranks, and mpirun started 2 processes")])
def test_other_numbers_than_of_mpirun(tmp_path, ranks, args, says):
    done = subprocess.run([*LAUNCH, "-n", str(ranks), BINARY, "serve", "--model", SMALL, "--port", "0", "--data-dir", tmp_path, "--device", "cpu",
                           *map(str, args)], capture_output=True, cwd=ROOT, env=ENV, timeout=PATIENCE)
    assert done.returncode != 0 and says in done.stderr.decode()


def test_a_long_prompt_in_parts(start):
    """Its micro-batches are computed by several ranks at once, while other texts are generated."""
    answers = []
    for ranks in (1, 3):
        with start(*CPU, "--pipeline-parallel", ranks, "--max-batch-tokens", 300, model=DEMO) as server, ThreadPoolExecutor(6) as pool:
            texts = pool.map(lambda i: server.generate("Once upon a time " * (4 + 16 * i), max_new_tokens=30, ignore_eos=True, details=True,
                                                       decoder_input_details=i == 5), range(6))
            answers.append(list(texts))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("by", ["--tensor-parallel", "--pipeline-parallel"])
@pytest.mark.parametrize("name", ["bert-mean", "modernbert-mean", "classify-roberta", "classify-gpt2", "cross-xlm-roberta"])
def test_encoders_and_classifiers(start, name, by):
    texts, answers = ["a cat", "Once upon a time there was a dog", "x"], []
    for ranks in (1, 2):
        with start("--device", "cpu", by, ranks, model=ROOT / "tests/fixtures/encoders" / name) as server:
            found = [server.post(path, {"input": texts, "inputs": texts}).json() for path in ("/v1/embeddings", "/classify", "/embed")]
            answers.append([{k: v for k, v in a.items() if k not in ("id", "created")} if isinstance(a, dict) else a for a in found])
    assert answers[0] == answers[1] and any("error" not in a for a in answers[0])


@pytest.mark.full
@pytest.mark.parametrize("by", ["--tensor-parallel", "--pipeline-parallel"])
@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K", "Q5_1", "IQ4_NL", "MXFP4"])
def test_gguf(start, tmp_path, name, experts, by):
    path, answers = tmp_path / "m.gguf", []
    gguf_models.random_model(path, gguf.GGMLQuantizationType[name], False, ROOT / "tests/fixtures/models/llama-f16", mixture=experts)
    for ranks in (1, 2):
        with start("--device", "cpu", by, ranks, model=path) as server:
            answers.append(server.generate("a b c", max_new_tokens=12, details=True, decoder_input_details=True, ignore_eos=True))
    assert answers[0] == answers[1]


@needs_mpi
@pytest.mark.parametrize("ranks, args", [(2, ()), (2, ("--pipeline-parallel", 2)), pytest.param(4, (), marks=pytest.mark.full),
                                         pytest.param(4, ("--pipeline-parallel", 2), marks=pytest.mark.full)])
def test_processes(start, whole, ranks, args):
    with start(*CPU, *args, "--threads", 1, "--quantize", "int8", model=SMALL, wrap=(*LAUNCH, "-n", str(ranks))) as server:
        assert ask(server) == whole("--quantize", "int8")
        os.kill(first_of(server), signal.SIGTERM)  # rank 0 drains, and ends the others
        assert server.process.wait(PATIENCE) == 0, server.log()


@pytest.fixture(scope="module")
def on_simt(tmp_path_factory):
    """The CUDA kernels, which the CPU runs: the options of the device, and what one rank answers on it."""
    out = subprocess.run([BINARY, "generate", "--model", SMALL, "--device", "simt", "--max-new-tokens", "1", "--prompt", "a"], capture_output=True, cwd=ROOT, env=ENV)
    if out.returncode:
        pytest.skip("built without simt")
    few = ("--device", "simt", "--chat-template", "plain", "--max-seqs", "4", "--max-batch-tokens", "32", "--quantize", "int4")
    with Server(tmp_path_factory.mktemp("simt") / "log", *few, model=SMALL) as server:
        return few, some_texts(server)


def some_texts(server):
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda i: server.generate(f"Once {i}", max_new_tokens=10, do_sample=True, seed=i, details=True), range(3)))


@pytest.mark.full
@pytest.mark.parametrize("by, nccl, says", [
    (("--tensor-parallel", 2), "", "between the devices by NCCL"), (("--tensor-parallel", 2), "0", "through the host's memory: rank 0: SIMT_NCCL is 0"),
    (("--pipeline-parallel", 2), "", "through the host's memory"),
    (("--pipeline-parallel", 2, "--tensor-parallel", 2), "", "between the devices by NCCL"),
    (("--pipeline-parallel", 2, "--tensor-parallel", 2), "0", "through the host's memory: rank 0: SIMT_NCCL is 0")])
def test_devices_of_one_process(start, on_simt, by, nccl, says):
    few, texts = on_simt
    with start(*few, *by, model=SMALL, env={"SIMT_DEVICES": "4", "SIMT_NCCL": nccl}) as server:
        assert some_texts(server) == texts
        assert f"ranks      exchange {says}" in server.log()
        op = "all-gather" if "--tensor-parallel" in by else "send"
        assert server.metric("tandem_comm_sent_bytes_total", op=op) > 10000
        with ThreadPoolExecutor(1) as pool:
            trace = pool.submit(server.post, "/debug/trace?seconds=1", None)
            while not trace.done():
                server.generate(max_new_tokens=5, ignore_eos=True)
        events = [e for e in trace.result().json()["traceEvents"] if e.get("cat") == "exchange"]
        assert {op, "receive", "broadcast"} <= {e["name"] for e in events}
        assert some_texts(server) == texts


@pytest.mark.full
def test_a_stuck_device_is_named(start, on_simt):
    server = start(*on_simt[0], "--tensor-parallel", 2, "--comm-timeout", 10, model=SMALL, env={"SIMT_DEVICES": "2", "SIMT_NCCL": "stuck"})
    answer = server.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 5}})
    assert not answer.ok and "rank 0 of 2: all-gather of" in answer.text, answer.text
    assert server.process.wait(PATIENCE) != 0
    assert "between devices: nothing came from the other ranks for 10 s" in server.log()


@needs_mpi
@pytest.mark.full
@pytest.mark.parametrize("args", [(), ("--pipeline-parallel", 2)])
def test_devices_of_two_processes(start, on_simt, args):
    few, texts = on_simt
    with start(*few, *args, model=SMALL, wrap=(*LAUNCH, "-n", "2")) as server:
        assert some_texts(server) == texts
        assert "ranks      exchange through the host's memory" + ("" if args else ": rank 0: NCCL: ") in server.log()
        os.kill(first_of(server), signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0, server.log()


def ranks_of(server):
    """The processes that mpirun started: their pids, by rank."""
    found = {}
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    for pid in children:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = [e.split(b"=")[1] for e in environment if e.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if rank:
            found[int(rank[0])] = int(pid)
    return found


def first_of(server):
    return ranks_of(server)[0]


@pytest.mark.parametrize("by", ["--tensor-parallel", "--pipeline-parallel"])
def test_adapters(start, tmp_path, by):
    """They come and go while texts are computed."""
    for name in ("qv", "all-linear-bf16"):
        shutil.copytree(ADAPTERS / f"llama-gqa--{name}", tmp_path / "later" / name)
    answers = {}
    for ranks in (1, 2):
        with start(*CPU, by, ranks, "--adapter-dir", tmp_path, model=GQA) as server, ThreadPoolExecutor(4) as pool:
            def story(adapter):
                return server.generate("a b c", max_new_tokens=60, ignore_eos=True, **({"adapter_id": adapter} if adapter else {}))["generated_text"]

            base = [pool.submit(story, None) for _ in range(4)]
            assert server.post("/adapters", {"name": "qv", "path": str(tmp_path / "later" / "qv")}).status_code == 201
            base = [b.result() for b in base]
            assert server.post("/adapters", {"name": "all", "path": str(tmp_path / "later" / "all-linear-bf16")}).status_code == 201
            mixed = list(pool.map(story, ["all", None, "qv", "all"]))  # one batch with two adapters and none
            assert requests.delete(server.url + "/adapters/qv").status_code == 200
            answers[ranks] = [base, mixed, story(None)]
            assert len({*mixed}) == 3
    assert answers[1] == answers[2]


def test_a_trace_has_the_exchanges(start):
    with start(*CPU, "--tensor-parallel", 2, model=SMALL) as server, ThreadPoolExecutor(1) as pool:
        trace = pool.submit(server.post, "/debug/trace?seconds=1", None)
        while not trace.done():
            server.generate(max_new_tokens=20, ignore_eos=True)
        events = [e for e in trace.result().json()["traceEvents"] if e.get("cat") == "exchange"]
        assert {"all-gather", "receive", "broadcast"} <= {e["name"] for e in events}
        assert all(e["tid"] == 1 and e["dur"] >= 0 and e["args"]["sent_bytes"] > 0 for e in events if e["name"] == "all-gather")
        server.generate(max_new_tokens=3)  # nothing listens any more


def test_training_is_refused(start):
    rows = [{"prompt": "a", "completion": "b"}] * 8
    with start(*CPU, "--tensor-parallel", 2, model=SMALL) as server:
        job = server.post("/train", {"serve_as": "x", "dataset": {"rows": rows}}).json()["id"]
        state = wait_for(lambda: (j := server.get(f"/train/{job}").json())["status"] in ("failed", "succeeded") and j, what="the end of the job")
        assert state["status"] == "failed" and "divided over ranks" in json.dumps(state)
        assert server.generate(max_new_tokens=3)["generated_text"]


@pytest.mark.parametrize("args, says", [
    (("--tensor-parallel", 3), "cannot be divided over 3 ranks"),
    (("--tensor-parallel", 2, "--models", f"a={SMALL}"), "--models and --models-dir: not with a model that is divided over ranks"),
    (("--tensor-parallel", 2, "--kv-disk", "pages"), "--kv-disk: not with a model that is divided over ranks"),
    (("--tensor-parallel", 2, "--cpus", "0"), "--cpus has 1 cores for 2 ranks"),
    (("--tensor-parallel", 2000), "--tensor-parallel"),
    (("--pipeline-parallel", 3), "2 layers cannot be divided into 3 stages"),
    (("--pipeline-parallel", 2, "--kv-disk", "pages"), "--kv-disk: not with a model that is divided over ranks"),
])
def test_refused(tmp_path, args, says):
    args = [str(tmp_path / a) if a == "pages" else str(a) for a in args]
    done = subprocess.run([BINARY, "serve", "--model", SMALL, "--port", "0", "--data-dir", tmp_path, *CPU, *args], capture_output=True, cwd=ROOT, env=ENV,
                          timeout=PATIENCE)
    assert done.returncode in (1, 2) and says in done.stderr.decode(), done.stderr.decode()


@needs_mpi
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_killed_rank_ends_all(start, rank):
    server = start(*CPU, "--threads", 1, model=SMALL, wrap=(*LAUNCH, "-n", "2"))
    pids = ranks_of(server)

    def stories():
        while server.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}).ok:
            pass

    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(stories)
        wait_for(lambda: server.metric("tandem_steps_total") > 5, what="some steps")
        os.kill(pids[rank], signal.SIGKILL)
        assert server.process.wait(PATIENCE) != 0
        with pytest.raises(requests.RequestException):
            busy.result()
            requests.get(server.url, timeout=5)  # the last answer was an error
    for pid in pids.values():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists(), what="the end of all ranks")


@needs_mpi
@pytest.mark.full
def test_a_stuck_rank_is_named(start):
    server = start(*CPU, "--threads", 1, "--comm-timeout", 10, model=SMALL, wrap=(*LAUNCH, "-n", "2"))
    pids = ranks_of(server)
    os.kill(pids[1], signal.SIGSTOP)
    try:
        server.post("/generate", {"inputs": "Once", "parameters": {"max_new_tokens": 20}})
    except requests.RequestException:
        pass
    assert server.process.wait(PATIENCE) != 0
    assert "rank 1 for 10 s" in server.log()


@needs_mpi
def test_a_bad_template_ends_all(start, tmp_path):
    """Rank 0 fails before the others have anything to wait for."""
    done = subprocess.run([*LAUNCH, "-n", "2", BINARY, "serve", "--model", SMALL, "--port", "0", "--data-dir", tmp_path, "--device", "cpu",
                           "--chat-template", tmp_path / "none.jinja"], capture_output=True, cwd=ROOT, env=ENV, timeout=PATIENCE)
    assert done.returncode != 0 and "none.jinja" in done.stderr.decode()
