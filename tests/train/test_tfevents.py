"""Event files, read by TensorBoard itself.

    TANDEM_BUILD_DIR=build python -m pytest tests/train/test_tfevents.py
"""
import math
import os
import pathlib
import struct
import subprocess
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util.tensor_util import make_ndarray

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR") or ROOT / "build") / "tests" / "tfevents_tool"


class Writer:
    def __init__(self, folder, first_step=0):
        self.process = subprocess.Popen([TOOL, folder, str(first_step)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        assert self.process.stdout.readline() == "ok\n"

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def add(self, step, **scalars):
        return self.say(" ".join([str(step)] + [f"{tag.replace('_', '/')}={value!r}" for tag, value in scalars.items()]))

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        self.process.stdout.close()

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def scalars(folder):
    """{tag: [(step, value)]}"""
    run = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    run.Reload()
    return {tag: [(e.step, float(make_ndarray(e.tensor_proto))) for e in run.Tensors(tag)] for tag in run.Tags()["tensors"]} | {
        tag: [(e.step, e.value) for e in run.Scalars(tag)] for tag in run.Tags()["scalars"]}


def event_file(folder):
    [path] = folder.glob("events.out.tfevents.*")
    return path


def write_some(folder, n=5):
    w = Writer(folder)
    for step in range(n):
        assert w.add(step, train_loss=step / 4) == "ok"
    return w


def test_tensorboard_reads_it(tmp_path):
    folder = tmp_path / "made"
    start = time.time()
    w = Writer(folder)
    big = 2**40
    assert w.add(1, train_loss=2.5, train_lr=1e-4) == "ok"
    assert w.add(200, train_loss=-math.inf, eval_loss=0.1) == "ok"
    assert w.add(big, train_loss=math.nan) == "ok"
    w.close()
    got = scalars(folder)
    assert set(got) == {"train/loss", "train/lr", "eval/loss"}
    assert got["train/loss"][:2] == [(1, 2.5), (200, -math.inf)]
    assert got["train/loss"][2][0] == big and math.isnan(got["train/loss"][2][1])
    assert got["train/lr"] == [(1, struct.unpack("f", struct.pack("f", 1e-4))[0])]
    events = list(EventFileLoader(str(event_file(folder))).Load())
    assert events[0].file_version == "brain.Event:2"
    assert all(start - 1 <= e.wall_time <= time.time() + 1 for e in events)


def test_killed_writer_loses_nothing(tmp_path):
    w = write_some(tmp_path)
    w.kill()
    assert scalars(tmp_path)["train/loss"] == [(step, step / 4) for step in range(5)]


def test_torn_record_is_ignored(tmp_path):
    w = write_some(tmp_path)
    w.kill()
    path = event_file(tmp_path)
    whole = path.read_bytes()
    expected = [(step, step / 4) for step in range(4)]
    for cut in (1, 4, 5, 20, 30):
        path.write_bytes(whole[:-cut])
        assert scalars(tmp_path)["train/loss"] == expected, cut


def test_resumed_run_goes_on(tmp_path):
    write_some(tmp_path).kill()
    w = Writer(tmp_path, first_step=3)
    for step in (3, 4, 5):
        assert w.add(step, train_loss=10 + step) == "ok"
    w.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert scalars(tmp_path)["train/loss"] == [(0, 0), (1, 0.25), (2, 0.5), (3, 13), (4, 14), (5, 15)]


def test_full_disk(tmp_path):
    w = write_some(tmp_path, 2)
    size = event_file(tmp_path).stat().st_size
    for room in (0, 1, 13, 30):
        assert w.say(f"limit {size + room}") == "ok"
        assert w.add(2, train_loss=7).endswith(("No space left on device", "File too large"))
        assert event_file(tmp_path).stat().st_size == size
    assert w.say("limit 1000000") == "ok"
    assert w.add(3, train_loss=8) == "ok"
    w.close()
    assert scalars(tmp_path)["train/loss"] == [(0, 0), (1, 0.25), (3, 8)]


def test_no_directory(tmp_path):
    (tmp_path / "file").touch()
    done = subprocess.run([TOOL, tmp_path / "file" / "x", "0"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.strip().endswith("Not a directory")
