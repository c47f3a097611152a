"""tandem train on several ranks, which mpirun starts: the same bytes on any number of them, also after kills; and a rank
that is gone or stuck ends all of them."""
import json
import random
import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file
from conftest import BINARY, ENV, ROOT, wait_for

SMALL = ROOT / "tests/fixtures/models/tinystories-656k"
MPIRUN = shutil.which("mpirun")
MODULE = BINARY.parent / "libtandem_mpi.so"
RECORD = "training_record.json"
# Every rank on any core: the tests have more of them than the machine has cores.
LAUNCH = [MPIRUN, "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]

pytestmark = pytest.mark.skipif(not MPIRUN or not MODULE.exists(), reason="no mpirun here, or tandem was built without MPI")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Prompts with answers in capitals, of different lengths."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    words = "cat dog bird tree house girl boy ball sun moon".split()
    rng = random.Random(1)
    lines = [json.dumps({"prompt": " ".join(rng.sample(words, 3)) + ":", "completion": " ".join(rng.sample(words, rng.randint(1, 6))).upper()})
             for _ in range(100)]
    path.write_text("\n".join(lines) + "\n")
    return path


def command(ranks, rows, out, *more):
    """ranks 0: without mpirun, the same job by its slots."""
    launch = [*LAUNCH, "-n", str(ranks)] if ranks else []
    slots = [] if ranks or "--grad-slots" in more else ["--grad-slots", "8"]
    return [*launch, BINARY, "train", "--model", SMALL, "--data", rows, "--out", out, "--max-length", "96", "--batch-tokens", "256",
            "--threads", "1", *map(str, more), *slots]


def train(*args):
    return subprocess.run(command(*args), capture_output=True, cwd=ROOT, env=ENV, timeout=300)


def files(directory):
    """Those that have no times in them."""
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != RECORD}


def figures(stderr):
    """What each step and evaluation printed, without its speed."""
    return re.findall(r"^step .*?(?=  \d+ tokens/s|$)", stderr.decode(), re.M)


@pytest.mark.parametrize("more", [
    ["--f32", "--max-steps", 6, "--eval-fraction", "0.1", "--eval-steps", 2],
    pytest.param(["--max-steps", 4, "--lora-dropout", "0.1", "--micro-tokens", "auto"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 3, "--packing", "false", "--grad-slots", 4, "--batch-tokens", 64, "--early-stopping-patience", 1, "--eval-fraction", "0.1", "--eval-steps", 1], marks=pytest.mark.full),
    ["--max-steps", 4, "--method", "qlora", "--quantize", "int8"],
    pytest.param(["--max-steps", 4, "--method", "qlora", "--quantize", "int4"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "qlora", "--quantize", "nf4"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "full", "--optimizer", "muon", "--dropout", "0.1", "--ema-decay", "0.9", "--eval-fraction", "0.1"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "full", "--f32", "--optimizer", "adamw_8bit"], marks=pytest.mark.full),
], ids=["lora", "bf16", "few rows", "int8", "int4", "nf4", "full", "8bit"])
def test_the_same_bytes_on_any_number_of_ranks(rows, tmp_path, more):
    got = {}
    for ranks in (0, 1, 2, 4):
        out = tmp_path / str(ranks)
        done = train(ranks, rows, out, *more)
        assert done.returncode == 0, done.stderr.decode()
        got[ranks] = files(out), figures(done.stderr)
        assert not (tmp_path / f"{ranks}.train").exists()
        assert done.stderr.decode().count("written") == 1  # one of the ranks prints
        assert (f"ranks: {ranks}\n" in done.stderr.decode()) == (ranks > 0)
    assert len(got[0][1]) >= 3
    for ranks in (1, 2, 4):
        assert got[ranks] == got[0], ranks


@pytest.mark.parametrize("more", [
    ["--max-steps", 4, "--method", "full", "--eval-fraction", "0.1", "--eval-steps", 2],
    pytest.param(["--max-steps", 4, "--f32", "--lora-dropout", "0.1", "--micro-tokens", "auto", "--eval-fraction", "0.1"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "qlora", "--quantize", "nf4", "--optimizer", "adamw_8bit", "--lora-r", 64], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "full", "--optimizer", "muon", "--dropout", "0.1", "--ema-decay", "0.9", "--eval-fraction", "0.1"], marks=pytest.mark.full),
    pytest.param(["--max-steps", 4, "--method", "full", "--f32", "--optimizer", "adamw_8bit"], marks=pytest.mark.full),
], ids=["full", "lora", "nf4", "muon", "8bit"])
def test_the_same_bytes_when_state_is_divided(rows, tmp_path, more):
    alone = train(0, rows, tmp_path / "alone", *more)
    assert alone.returncode == 0, alone.stderr.decode()
    for ranks, zero in ((2, 1), (2, 2), (2, 3), (4, 1), (4, 2), (4, 3)):
        out = tmp_path / f"{ranks}-{zero}"
        done = train(ranks, rows, out, "--zero", zero, *more)
        assert done.returncode == 0, done.stderr.decode()
        assert files(out) == files(tmp_path / "alone") and figures(done.stderr) == figures(alone.stderr), (ranks, zero)


@pytest.mark.full
def test_divided_on_a_device_with_its_own_memory(rows, tmp_path):
    """The values that ranks exchange go by way of the host."""
    got = []
    for ranks, zero, *offload in ((0, 0), (2, 1), (2, 2), (2, 3), (2, 1, "--offload-optimizer", "true"), (2, 3, "--offload-optimizer", "true")):
        out = tmp_path / f"{ranks}-{zero}-{len(offload)}"
        args = [str(a) for a in command(ranks, rows, out, "--device", "simt", "--method", "full", "--optimizer", "adamw_8bit", "--max-steps", 2, "--save-steps", 1,
                                        "--eval-fraction", "0.02", "--grad-slots", 2, "--zero", zero, *offload)]
        args[args.index(str(SMALL))] = str(SMALL.parent / "llama-gqa")
        args[args.index("--max-length") + 1], args[args.index("--batch-tokens") + 1] = "32", "64"
        done = subprocess.run(args, capture_output=True, cwd=ROOT, env=ENV, timeout=600)
        if b"no device is called" in done.stderr:
            pytest.skip("tandem was built without simt")
        assert done.returncode == 0, done.stderr.decode()
        got.append(files(out))
        assert json.loads((out / RECORD).read_text())["plan"]["offload_optimizer"] == bool(offload)
        assert b"changes nothing" not in done.stderr
    assert all(one == got[0] for one in got)


def test_offload_where_there_is_nothing_to_save(rows, tmp_path):
    done = train(0, rows, tmp_path / "out", "--max-steps", 1, "--offload-optimizer", "true")
    assert done.returncode == 0 and done.stderr.count(b"offload_optimizer changes nothing on the device cpu, whose memory is the host's") == 1


@pytest.mark.full
def test_the_record_says_what_was_sent(rows, tmp_path):
    out, steps = tmp_path / "out", 5
    done = train(2, rows, out, "--max-steps", steps, "--lora-r", 32, "--save-steps", 1, "--tensorboard", tmp_path / "board")
    assert done.returncode == 0, done.stderr.decode()
    record = json.loads((out / RECORD).read_text())
    gradients = steps * 8 * record["plan"]["trainable_parameters"] / 2  # docs/ranks.md
    assert record["ranks"] == 2 and gradients <= record["sent_bytes"] < 1.1 * gradients
    assert record["usage"]["step_seconds"]["ranks"] > 0 and "ranks" in done.stderr.decode()
    assert len(list((tmp_path / "board").iterdir())) == 1  # one rank writes it
    assert b"ranks/bytes_per_second" in next((tmp_path / "board").iterdir()).read_bytes()
    sums = record["communication"]["all-reduce"]
    assert sums["calls"] == steps and sums["sent_bytes"] == gradients and sums["seconds"] > 0
    assert sums["bytes_per_second"] == pytest.approx(sums["sent_bytes"] / sums["seconds"], rel=1e-3)
    assert sum(c["sent_bytes"] for c in record["communication"].values()) == record["sent_bytes"]
    assert 0 < record["link_seconds"] <= record["usage"]["step_seconds"]["ranks"] * 1.001 * steps
    assert "sent by the first rank: all-reduce" in done.stderr.decode()
    alone = train(0, rows, tmp_path / "alone", "--max-steps", 1)
    assert alone.returncode == 0
    record = json.loads((tmp_path / "alone" / RECORD).read_text())
    assert "ranks" not in record and record["usage"]["step_seconds"]["ranks"] == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """(hidden, layers, inputs of down) -> a model with the tokenizer of the small one, whose states are hundreds of MiB."""
    made = {}

    def make(shape):
        hidden, layers, inner = shape
        path = tmp_path_factory.mktemp("large")
        for f in SMALL.iterdir():
            if not f.name.endswith(".safetensors"):
                shutil.copy(f, path)
        config = json.loads((SMALL / "config.json").read_text())
        config |= {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner}
        (path / "config.json").write_text(json.dumps(config))
        kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
        shapes = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
        for layer in range(layers):
            shapes |= {f"model.layers.{layer}.{name}": size for name, size in {
                "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden),
                "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden), "self_attn.o_proj": (hidden, hidden),
                "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner)}.items()}
        random_numbers = numpy.random.default_rng(1)
        save_file({f"{name}.weight": (random_numbers.standard_normal(size) * 0.02).astype("float32") for name, size in shapes.items()},
                  path / "model.safetensors", metadata={"format": "pt"})
        return path

    return lambda *shape: made[shape] if shape in made else made.setdefault(shape, make(shape))


@pytest.mark.full
@pytest.mark.parametrize("shape, ranks, more", [
    ((512, 8, 1408), 2, ["--method", "full"]),
    ((512, 8, 1408), 2, ["--method", "full", "--zero", 1, "--save-steps", 1]),
    ((512, 8, 1408), 2, ["--method", "full", "--zero", 2, "--save-steps", 1]),
    ((512, 8, 1408), 2, ["--method", "full", "--zero", 3, "--save-steps", 1]),
    ((512, 8, 1408), 4, ["--method", "full", "--zero", 1, "--eval-fraction", "0.1"]),
    ((768, 8, 2048), 4, ["--method", "full", "--zero", 3, "--f32", "--eval-fraction", "0.1"]),
    ((768, 4, 2048), 2, ["--method", "full", "--zero", 1, "--optimizer", "muon", "--ema-decay", "0.9"]),
    ((768, 4, 2048), 2, ["--method", "full", "--zero", 2, "--optimizer", "adamw_8bit", "--f32", "--grad-slots", 2]),
    ((512, 8, 1408), 2, ["--zero", 1, "--lora-r", 256]),
    ((512, 8, 1408), 2, ["--zero", 3, "--lora-r", 256]),
], ids=["0", "1", "2", "3", "1 on 4", "3 on 4", "muon", "8bit", "lora", "lora 3"])
def test_each_rank_takes_what_was_planned(rows, tmp_path, large, shape, ranks, more):
    out = tmp_path / "out"
    args = [str(a) for a in command(ranks, rows, out, "--max-steps", 2, *more)]
    args[args.index(str(SMALL))] = str(large(*shape))
    done = subprocess.run(args, capture_output=True, cwd=ROOT, env=ENV, timeout=600)
    assert done.returncode == 0, done.stderr.decode()
    memory = json.loads((out / RECORD).read_text())["rank_memory"]
    assert len(memory) == ranks and done.stderr.decode().count("MiB were planned beside the model") == ranks
    for m in memory:
        assert m["planned_bytes"] > 150 << 20 and 0.95 < m["taken_bytes"] / m["planned_bytes"] < 1.05, memory


@pytest.mark.full
def test_frozen_weights_are_divided(rows, tmp_path, large):
    """Of a base of 300 MiB in layers, four ranks keep a quarter each, and what two layers take."""
    most = {}
    for zero in (2, 3):
        out = tmp_path / str(zero)
        args = [str(a) for a in command(4, rows, out, "--max-steps", 1, "--lora-r", 8, "--zero", zero, "--f32")]
        args[args.index(str(SMALL))] = str(large(768, 12, 2048))
        done = subprocess.run(args, capture_output=True, cwd=ROOT, env=ENV, timeout=600)
        assert done.returncode == 0, done.stderr.decode()
        record = json.loads((out / RECORD).read_text())
        most[zero] = record["plan"]["weight_bytes"]
    assert files(tmp_path / "2") == files(tmp_path / "3")
    assert most[3] < 0.35 * most[2], most


@pytest.mark.full
def test_frozen_weights_of_a_mapped_file(rows, tmp_path):
    """tandem quantize packs them for this processor, and they are used where the file is mapped."""
    packed = tmp_path / "packed"
    subprocess.run([BINARY, "quantize", "--model", SMALL, "--out", packed, "--type", "int8"], check=True, capture_output=True, cwd=ROOT, env=ENV, timeout=300)
    got = []
    for ranks, zero in ((1, 0), (2, 3), (4, 3)):
        args = [str(a) for a in command(ranks, rows, tmp_path / f"{ranks}", "--max-steps", 3, "--method", "qlora", "--zero", zero)]
        args[args.index(str(SMALL))] = str(packed)
        done = subprocess.run(args, capture_output=True, cwd=ROOT, env=ENV, timeout=300)
        assert done.returncode == 0, done.stderr.decode()
        got.append(files(tmp_path / f"{ranks}"))
    assert got[1] == got[0] and got[2] == got[0]


@pytest.mark.full
def test_frozen_weights_that_cannot_be_divided(rows, tmp_path):
    def refused(says, *more, model=SMALL):
        args = [str(a) for a in command(2, rows, tmp_path / "no", "--zero", 3, *more)]
        args[args.index(str(SMALL))] = str(model)
        done = subprocess.run(args, capture_output=True, cwd=ROOT, env=ENV, timeout=300)
        assert done.returncode == 1 and done.stderr.decode().count(says) == 1, done.stderr.decode()

    refused("zero 3 divides a base that adapters are trained on only on the device cpu, not on ref: let zero be 2", "--device", "ref")
    refused("zero 3 does not divide a base that another program quantised in groups of its own", "--max-length", "32", model=SMALL.parent / "gpt-oss-mxfp4")


@pytest.mark.full
@pytest.mark.parametrize("method", ["orpo", "simpo", "dpo", "kto", "reward", "distill"])
def test_preferences(tmp_path, method):
    """With a reference and without, of pairs and of labels; also with divided state."""
    rng, words = random.Random(3), "cat dog bird tree house".split()
    rows = [{"prompt": f"{rng.choice(words)} {i}:", "chosen": " " + " ".join(rng.sample(words, 3)), "rejected": " " + rng.choice(words)} for i in range(24)]
    if method == "kto":
        rows = [{"prompt": r["prompt"], "completion": r["chosen"], "label": i % 2 == 0} for i, r in enumerate(rows)]
    if method == "distill":
        rows = [{"prompt": r["prompt"], "completion": r["chosen"]} for r in rows]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(r) + "\n" for r in rows))
    got, more = {}, []
    if method == "distill":
        assert train(0, data, tmp_path / "teacher", "--max-steps", 3).returncode == 0
        more = ["--teacher", tmp_path / "teacher"]
    for ranks, zero in ((0, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
        out = tmp_path / f"{ranks}-{zero}"
        done = train(ranks, data, out, "--method", method, *more, "--max-steps", 3, "--f32", "--eval-fraction", "0.2", "--zero", zero)
        assert done.returncode == 0, done.stderr.decode()
        got[ranks, zero] = files(out), figures(done.stderr)
    assert len(got[0, 0][1]) >= 3
    for ranks, zero in got:
        assert got[ranks, zero] == got[0, 0], (ranks, zero)


@pytest.mark.full
def test_what_fails_is_said_once(rows, tmp_path):
    def fails(says, ranks, *more, data=rows):
        done = train(ranks, data, tmp_path / "no", *more)
        text = done.stderr.decode()
        assert done.returncode == 1 and text.count(says) == 1, text
        assert not (tmp_path / "no").exists()

    fails("no/such/file", 2, data="no/such/file")
    fails("8 slots cannot be divided over 3 ranks", 3)
    fails("1 slots cannot be divided over 2 ranks", 2, "--grad-slots", 1)
    fails("no/such/adapter", 2, "--from", "no/such/adapter")
    assert train(2, rows, tmp_path / "out", "--max-steps", 1).returncode == 0
    again = train(2, rows, tmp_path / "out", "--max-steps", 1)
    assert again.returncode == 1 and again.stderr.count(b"is not empty") == 1, again.stderr
    odd = train(2, rows, tmp_path / "odd", "--grad-slots", 6)
    assert odd.returncode == 2 and b"grad_slots: must be a power of two" in odd.stderr


def test_without_a_launcher(rows, tmp_path):
    """--comm none: each process for itself."""
    alone = subprocess.run([*LAUNCH, "-n", "1", *command(0, rows, tmp_path / "alone", "--comm", "none", "--max-steps", 2)], capture_output=True, cwd=ROOT, env=ENV, timeout=300)
    assert alone.returncode == 0, alone.stderr.decode()
    lost = subprocess.run([*command(2, rows, tmp_path / "lost")], capture_output=True, cwd=ROOT, env={**ENV, "TANDEM_MPI_MODULE": "no/such/module.so"}, timeout=300)
    assert lost.returncode == 1 and b"the ranks of mpirun cannot be joined" in lost.stderr and b"no/such/module.so" in lost.stderr


# ---- ranks that go away -----------------------------------------------------------------------------------------------

def ranks_of(launcher):
    """{rank: pid} of the processes that this mpirun started and that run by now."""
    found = {}
    children = " ".join(p.read_text() for p in Path(f"/proc/{launcher}/task").glob("*/children"))
    for pid in children.split():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        number = [v.partition(b"=")[2] for v in environment if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if number and name == "tandem":
            found[int(number[0])] = int(pid)
    return found


def gone(pids):
    return all(not alive(pid) for pid in pids)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.full
def test_killed_ranks(rows, tmp_path, wanted=20):
    """A rank killed at any moment ends all of them; the same command, on another number of ranks, goes on to the same
    bytes."""
    more = ["--epochs", 3 * wanted, "--save-steps", 1, "--eval-steps", 5, "--eval-fraction", "0.1", "--f32", "--grad-slots", 8]
    began = time.monotonic()
    assert train(0, rows, tmp_path / "whole", *more).returncode == 0
    took = time.monotonic() - began
    rng, kills, resumed = random.Random(4), 0, 0
    for turn in range(100):
        ranks = (2, 4, 1)[turn % 3]
        with subprocess.Popen(command(ranks, rows, tmp_path / "broken", *more), stderr=subprocess.PIPE, cwd=ROOT, env=ENV) as p:
            there = {}
            if kills < wanted:
                there = wait_for(lambda: found if len(found := ranks_of(p.pid)) == ranks or p.poll() is not None else None, 300, "the ranks run")
                time.sleep((rng.uniform(0.02, 2 / wanted) + 0.01 * turn) * took)
                victim = there.get(rng.randrange(ranks))
                if victim and alive(victim):
                    subprocess.run(["kill", "-9", str(victim)], check=False)
            err = p.stderr.read().decode()
            p.wait(300)
            resumed += "going on after step" in err
            if p.returncode:
                kills += 1
                assert "signal 9 (Killed)" in err, err
                wait_for(lambda: gone(there.values()), 300, "all ranks are gone")
        if (tmp_path / "broken").exists():
            break
    assert kills >= 1 and resumed >= 1, (kills, resumed)
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_killed_with_divided_state(rows, tmp_path, zero):
    """kill -9 of a rank at ten random moments, of a job after the other: all ranks end within the bound, and each job that
    goes on ends with the same bytes, whatever its ranks and its division were before."""
    bound, wanted = 30, 10
    more = ["--method", "full", "--optimizer", "adamw_8bit", "--epochs", 4, "--save-steps", 1, "--eval-steps", 5, "--eval-fraction", "0.1", "--grad-slots", 8,
            "--comm-timeout", bound]
    began = time.monotonic()
    assert train(0, rows, tmp_path / "whole", *more).returncode == 0
    took = time.monotonic() - began
    rng, kills, resumed, ended = random.Random(40 + zero), 0, 0, 0
    for turn in range(200):
        ranks, stage = (2, 4)[turn % 2], zero if turn % 3 else zero % 3 + 1
        out = tmp_path / f"job-{ended}"
        with subprocess.Popen(command(ranks, rows, out, *more, "--zero", stage), stderr=subprocess.PIPE, cwd=ROOT, env=ENV) as p:
            there, killed = {}, 0
            if kills < wanted:
                there = wait_for(lambda: found if len(found := ranks_of(p.pid)) == ranks or p.poll() is not None else None, 300, "the ranks run")
                time.sleep(rng.uniform(0, 1.5) * took)
                victim = there.get(rng.randrange(ranks))
                if victim and alive(victim):
                    subprocess.run(["kill", "-9", str(victim)], check=False)
                    killed = time.monotonic()
            err = p.stderr.read().decode()
            p.wait(300)
            resumed += "going on after step" in err
            if p.returncode:
                kills += 1
                assert killed and "signal 9 (Killed)" in err, err
                assert time.monotonic() - killed < 2 * bound
                wait_for(lambda: gone(there.values()), 300, "all ranks are gone")
        if out.exists():
            assert files(out) == files(tmp_path / "whole")
            ended += 1
            if kills >= wanted:
                break
    assert kills >= wanted and resumed >= 1 and ended >= 1, (kills, resumed, ended)


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_stuck_rank(rows, tmp_path, zero):
    """It is stopped, not dead: the other says who and what, after the bound, and all end."""
    bound = 30  # longer than one rank takes to start after the other, on a loaded machine
    with subprocess.Popen(command(2, rows, tmp_path / "out", "--epochs", 1000, "--comm-timeout", bound, "--zero", zero), stderr=subprocess.PIPE, cwd=ROOT, env=ENV) as p:
        for line in p.stderr:
            if line.startswith(b"step "):
                break
        there = wait_for(lambda: found if len(found := ranks_of(p.pid)) == 2 else None, 300, "the ranks run")
        subprocess.run(["kill", "-STOP", str(there[1])], check=True)
        err = p.stderr.read().decode()
        assert p.wait(300) == 1
    assert re.search(rf"training failed: rank 0 of 2: [a-z-]+ of \d+ bytes: nothing (came from|was taken by) rank 1 for {bound} s", err), err
    wait_for(lambda: gone(there.values()), 300, "all ranks are gone")
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_interrupted(rows, tmp_path):
    """A signal to one rank is a command to all: a checkpoint, then the end."""
    out = tmp_path / "out"
    with subprocess.Popen(command(2, rows, out, "--epochs", 1000), stderr=subprocess.PIPE, cwd=ROOT, env=ENV) as p:
        for line in p.stderr:
            if line.startswith(b"step "):
                break
        there = wait_for(lambda: found if len(found := ranks_of(p.pid)) == 2 else None, 300, "the ranks run")
        subprocess.run(["kill", "-INT", str(there[1])], check=True)
        err = p.stderr.read().decode()
        assert p.wait(300) == 130, err
    assert "the same command goes on" in err and list((tmp_path / "out.train/checkpoints").iterdir())
