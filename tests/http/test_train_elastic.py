"""scripts/train-ranks: a job of ranks goes on when one of them ends, with as many as there are then."""
import os
import random
import re
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from conftest import ENV, ROOT, wait_for
from test_train_ranks import LAUNCH, MODULE, MPIRUN, alive, command, files, ranks_of, rows, train  # noqa: F401 (rows: a fixture)

SCRIPT = ROOT / "scripts/train-ranks"

# Instead of mpirun: notes the ranks, then does what the next line of `todo` says.
LAUNCHER = """#!/bin/bash
echo "$2" >>{folder}/ranks
read -r todo <{folder}/todo
sed -i 1d {folder}/todo
eval "$todo"
"""


@pytest.fixture
def launched(tmp_path):
    """(what each run does, more options) -> (ranks of each run, status, stderr)"""
    launcher = tmp_path / "launcher"
    launcher.write_text(LAUNCHER.format(folder=tmp_path))
    launcher.chmod(0o755)
    out = tmp_path / "out"

    def run(todo, *more, job=()):
        (tmp_path / "todo").write_text("".join(f"{t}\n" for t in todo))
        done = subprocess.run([SCRIPT, "-p", "0", "-m", launcher, *more, "tandem", "train", "--out", out, *job], capture_output=True, text=True, timeout=60)
        ranks = [int(n) for n in (tmp_path / "ranks").read_text().split()]
        return ranks, done.returncode, done.stderr

    return run


def saves(step, folder):
    return f"mkdir -p {folder}/out.train/checkpoints/step-{step:010d}; "


def test_ranks_of_each_run(launched, tmp_path):
    """Half of them after a run that was killed and saved nothing; all after one that did."""
    todo = [saves(1, tmp_path) + "exit 137", "exit 137", "exit 139", saves(2, tmp_path) + "exit 1", saves(3, tmp_path) + "exit 75", "exit 137", "exit 0"]
    ranks, status, err = launched(todo, "-n", "9")
    assert (ranks, status) == ([8, 8, 4, 2, 8, 8, 4], 0), err
    assert "2 ranks, from step-0000000001" in err and "a rank ended, with status 75: again" in err


@pytest.mark.parametrize("todo, ranks, status", [
    (["exit 1"], [4], 1),  # nobody was killed, and nothing was saved
    (["exit 2"], [4], 2),
    (["exit 130"], [4], 130),
    (["exit 137"] * 5, [4, 2, 1, 1, 1], 137),
    (["mkdir -p {0}/out.train {0}/out; touch {0}/out/adapter; exit 137"], [4], 0),  # after the result
], ids=["failed", "arguments", "interrupted", "killed", "done"])
def test_when_it_ends(launched, tmp_path, todo, ranks, status):
    assert launched([t.format(tmp_path) for t in todo], "-n", "4", "-r", "5")[:2] == (ranks, status)


def test_how_many_are_there(launched, tmp_path):
    (tmp_path / "there").write_text("".join(f"{n}\n" for n in ("05", 0, 0, 3, 100)))
    ask = f"head -n 1 {tmp_path}/there; sed -i 1d {tmp_path}/there"
    todo = [saves(i, tmp_path) + "exit 137" for i in range(2)] + ["exit 0"]
    ranks, status, err = launched(todo, "-n", "8", "-a", ask, job=["--grad-slots=4"])
    assert (ranks, status) == ([4, 2, 4], 0) and err.count("no rank can run") == 2


def test_wrong_arguments(launched, tmp_path):
    def refused(says, status, *args):
        done = subprocess.run([SCRIPT, *args], capture_output=True, text=True, timeout=60)
        assert done.returncode == status and says in done.stderr, done.stderr

    refused("usage: train-ranks -n RANKS", 2)
    refused("usage: train-ranks -n RANKS", 2, "-n", "0", "tandem", "train")
    refused("usage: train-ranks -n RANKS", 2, "-n", "2", "-p", "-1", "tandem", "train")
    refused("the command has no --out", 2, "-n", "2", "tandem", "train")
    refused("no number of --grad-slots", 2, "-n", "2", "tandem", "train", "--out", "x", "--grad-slots", "many")
    refused('-a printed "all", which is no number of ranks', 2, "-n", "2", "-a", "echo all", "tandem", "train", "--out", str(tmp_path / "x"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    refused("full is not empty", 1, "-n", "2", "tandem", "train", "--out", f"{tmp_path}/full/")


def test_a_signal_is_the_runs(tmp_path):
    """It goes to the run, whose end is the end: also while no rank can run."""
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!/bin/bash\ntrap 'touch {tmp_path}/told; exit 130' TERM\ntouch {tmp_path}/up\nwhile :; do sleep 0.05; done\n")
    launcher.chmod(0o755)
    asks = ["-a", f"touch {tmp_path}/asked; echo 0"], ["-a", f"touch {tmp_path}/asking; sleep 1; echo 0"]
    for more, up in ([], "up"), (asks[0], "asked"), (asks[1], "asking"):
        with subprocess.Popen([SCRIPT, "-n", "2", "-p", "30", "-m", launcher, *more, "tandem", "train", "--out", tmp_path / "out"], stderr=subprocess.DEVNULL) as p:
            wait_for((tmp_path / up).exists, 60, "it runs")
            p.send_signal(signal.SIGTERM)
            assert p.wait(20) == 130
    assert (tmp_path / "told").exists()


# ---- real ranks -------------------------------------------------------------------------------------------------------

def launcher_of(script):
    """The mpirun that the script has started; None: none now."""
    for pid in " ".join(p.read_text() for p in Path(f"/proc/{script}/task").glob("*/children")).split():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() in ("mpirun", "orterun"):
                return int(pid)
        except OSError:
            pass
    return None


def kill_one(script, rng):
    """Kills a random rank of the run that is now; the pid of its mpirun, None: there was none."""
    launcher = launcher_of(script)
    try:
        there = ranks_of(launcher)
    except OSError:
        return None
    if not there:
        return None
    victim = rng.choice(sorted(there.values()))
    if not alive(victim):
        return None
    try:
        os.kill(victim, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return launcher


def newest(out):
    """The step of the newest checkpoint of the job; 0: there is none."""
    return max((int(p.name[5:]) for p in Path(f"{out}.train/checkpoints").glob("step-" + "[0-9]" * 10)), default=0)


@pytest.mark.full
@pytest.mark.skipif(not MPIRUN or not MODULE.exists(), reason="no mpirun here, or tandem was built without MPI")
def test_twenty_kills(rows, tmp_path, wanted=20):  # noqa: F811
    """kill -9 of a random rank while ranks come and go, at random moments of a step and of a start; the bytes are those of an
    unbroken run.  When one is due is counted in steps, and the last is due in the middle of the job, however fast that is."""
    more = ["--method", "full", "--zero", 3, "--epochs", 40, "--save-steps", 1, "--eval-steps", 20, "--eval-fraction", "0.1", "--grad-slots", 8]
    began = time.monotonic()
    whole = train(0, rows, tmp_path / "whole", *more)
    assert whole.returncode == 0
    steps = int(re.search(rb"^step \d+ of (\d+) ", whole.stderr, re.M)[1])
    step = (time.monotonic() - began) / steps
    rng, gone_on, there, out = random.Random(7), 0, tmp_path / "there", tmp_path / "out"
    there.write_text("4")
    args = [SCRIPT, "-n", "4", "-p", "0", "-r", "100", "-a", f"cat {there}", "-m", shlex.join(map(str, LAUNCH)), *command(0, rows, out, *more)]
    with subprocess.Popen(args, stderr=subprocess.PIPE, cwd=ROOT, env=ENV, text=True) as p:
        said = []
        reader = threading.Thread(target=lambda: said.extend(p.stderr), daemon=True)
        reader.start()
        for kill in range(wanted):
            before = newest(out)
            at_start = kill % 4 == 3  # maybe before it has gone on
            due = before if at_start else max(before + 1, steps * (kill + 1) // (2 * wanted))
            while p.poll() is None and not (newest(out) >= due and launcher_of(p.pid)):
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 8 if at_start else 1.5) * step)
            there.write_text(str(rng.choice((1, 2, 3, 4, 4, 8))))
            while p.poll() is None and not (killed := kill_one(p.pid, rng)):
                time.sleep(0.002)
            assert p.poll() is None, (kill, "".join(said)[-4000:])
            wait_for(lambda: launcher_of(p.pid) != killed, 120, "the run ends")  # noqa: B023 (it is called here)
            gone_on += 0 < before < due
        there.write_text("4")
        assert p.wait(600) == 0, "".join(said)[-4000:]
        reader.join(60)
    text = "".join(said)
    assert text.count("a rank ended, with status") == wanted and text.count("going on after step") >= gone_on >= wanted // 2, text[-4000:]
    assert files(out) == files(tmp_path / "whole")
